"""Small charts as SVG, drawn on the server: steps, because a table stays as it is until the next commit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from markupsafe import Markup

__all__ = ["Points", "chart", "sparkline", "total"]

Points = Sequence[tuple[datetime, float]]
"""What a number was from each of these times on, oldest first."""

_WIDTH, _HEIGHT = 560, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 8, 10, 26
_MOST = 240


def chart(points: Points, *, title: str, text: Callable[[float], str], until: datetime | None = None) -> Markup:
    """Numbers over time with axes; empty for less than one point."""
    if not points:
        return Markup("")
    points, end = _thinned(points, _MOST), max(until or datetime.now(UTC), points[-1][0])
    top = _nice(max(value for _, value in points))
    begin = points[0][0]
    span = max((end - begin).total_seconds(), 1.0)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(when: datetime) -> float:
        return _LEFT + width * (when - begin).total_seconds() / span

    def up(value: float) -> float:
        return _TOP + height * (1 - value / top)

    line = _steps([(across(when), up(value)) for when, value in points], across(end))
    base = f"{_TOP + height:.1f}"
    described = f"{title}: {text(points[0][1])} at first, {text(points[-1][1])} now"
    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(_WIDTH, _HEIGHT, described)
    ]
    for value in (0.0, top / 2, top):
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                _LEFT, _WIDTH - _RIGHT, up(value), up(value)
            )
        )
        parts.append(
            Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                _LEFT - 6, up(value) + 3.5, text(value)
            )
        )
    for when, anchor in ((begin, "start"), (end, "end")):
        parts.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                across(when), _HEIGHT - 5, anchor, _day(when, span)
            )
        )
    parts.append(Markup('<path class="area" d="{}V{}H{:.1f}Z"/>').format(line, base, across(begin)))
    parts.append(Markup('<path class="line" d="{}"/>').format(line))
    parts.append(
        Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3"/></svg>').format(across(end), up(points[-1][1]))
    )
    return Markup("").join(parts)


def sparkline(points: Points, *, until: datetime | None = None) -> Markup:
    """The course of a number without any words: the number itself stands beside it."""
    if not points:
        return Markup("")
    points, end = _thinned(points, 60), max(until or datetime.now(UTC), points[-1][0])
    begin, top = points[0][0], max(max(value for _, value in points), 1.0)
    span = max((end - begin).total_seconds(), 1.0)
    places = [(80 * (when - begin).total_seconds() / span, 19 - 17 * value / top) for when, value in points]
    line = _steps(places, 80)
    return Markup(
        '<svg class="spark" viewBox="0 0 80 20" aria-hidden="true"><path class="area" d="{}V20H0Z"/>'
        '<path class="line" d="{}"/></svg>'
    ).format(line, line)


def total(series: Sequence[Points]) -> list[tuple[datetime, float]]:
    """The sum of several numbers, each of which was nothing before its first time."""
    events = sorted(
        (
            (when, value - (points[place - 1][1] if place else 0.0))
            for points in series
            for place, (when, value) in enumerate(points)
        ),
        key=lambda event: event[0],
    )
    summed: list[tuple[datetime, float]] = []
    now = 0.0
    for when, change in events:
        now += change
        if summed and summed[-1][0] == when:
            summed.pop()
        summed.append((when, now))
    return summed


def _steps(places: Sequence[tuple[float, float]], end: float) -> str:
    x, y = places[0]
    return f"M{x:.1f} {y:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in places[1:]) + f"H{end:.1f}"


def _thinned(points: Points, most: int) -> Points:
    """As many as can be told apart; the last one always."""
    if len(points) <= most:
        return points
    stride = math.ceil(len(points) / most)
    return [*points[:-1:stride], points[-1]]


def _nice(number: float) -> float:
    """The next round number, so that half of it is one too."""
    if number <= 2:
        return 2.0
    scale = 10.0 ** math.floor(math.log10(number))
    return next(scale * step for step in (1, 2, 4, 6, 8, 10) if scale * step >= number)


def _day(when: datetime, span: float) -> str:
    return when.astimezone(UTC).strftime("%H:%M" if span < 86_400 else "%d %b" if span < 300 * 86_400 else "%b %Y")
