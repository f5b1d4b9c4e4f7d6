"""Numbers and times as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

__all__ = ["NOTHING", "age", "bytes_text", "count", "duration", "moment", "plural", "report_text", "short_count"]

NOTHING = "\N{EN DASH}"

_REPORT = {
    "compacted_files": ("small file put together", "small files put together"),
    "written_files": ("file written for them", "files written for them"),
    "rewritten_manifests": ("manifest rewritten", "manifests rewritten"),
    "expired_snapshots": ("snapshot expired", "snapshots expired"),
    "removed_files": ("file of theirs removed", "files of theirs removed"),
    "removed_orphans": ("orphan file removed", "orphan files removed"),
    "removed_metadata": ("old metadata file removed", "old metadata files removed"),
    "dropped_branches": ("left-over branch dropped", "left-over branches dropped"),
    "rows": ("row published", "rows published"),
}
"""What the reports of actions count."""

_UNITS = ("KB", "MB", "GB", "TB", "PB")
_THOUSANDS = ("k", "M", "B", "T")


def count(number: int | None) -> str:
    return NOTHING if number is None else f"{number:,}"


def short_count(number: float | None) -> str:
    """1,234,567 as 1.2M, for tiles and axes."""
    if number is None:
        return NOTHING
    if abs(number) < 10_000:
        return f"{number:,.0f}"
    return _scaled(number, 1000, _THOUSANDS, "")


def bytes_text(number: float | None) -> str:
    if number is None:
        return NOTHING
    if number < 1000:
        return f"{number:.0f} B"
    return _scaled(number, 1000, _UNITS, " ")


def _scaled(number: float, base: int, units: tuple[str, ...], blank: str) -> str:
    value, place = number / base, 0
    while abs(value) >= base - 0.5 and place + 1 < len(units):
        value, place = value / base, place + 1
    return f"{value:.{1 if abs(value) < 99.95 else 0}f}{blank}{units[place]}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} days"


def age(when: datetime | None, now: datetime | None = None) -> str:
    """How long ago, in one unit."""
    if when is None:
        return NOTHING
    seconds = max(0.0, ((now or datetime.now(UTC)) - when).total_seconds())
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds // 86_400)} days ago"


def moment(when: datetime | None) -> str:
    return NOTHING if when is None else when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def plural(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def report_text(report: Mapping[str, object]) -> str:
    """What an action has done, from the numbers in its report."""
    counts = ((report.get(key), words) for key, words in _REPORT.items())
    done = [plural(number, *words) for number, words in counts if isinstance(number, int) and number > 0]
    return ", ".join(done) or "there was nothing to do"
