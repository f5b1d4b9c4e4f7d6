"""``sparkport maintain TABLE``: have a running server compact a table and clean up behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from sparkport.cli.progress import Progress
from sparkport.cli.remote import Remote, connected
from sparkport.client.names import parse_name

__all__ = ["maintain"]

_LINES = {
    "compacted_files": "{:,} small files put together",
    "written_files": "{:,} files written for them",
    "rewritten_manifests": "{:,} manifests rewritten",
    "expired_snapshots": "{:,} snapshots expired",
    "removed_files": "{:,} files of theirs removed",
    "removed_orphans": "{:,} files that belong to nothing removed",
    "removed_metadata": "{:,} old metadata files removed",
}


def maintain(remote: Remote, table: str, *, steps: Sequence[str], out: TextIO) -> int:
    name = parse_name(table)
    with connected(remote) as session, Progress("maintenance") as progress:
        progress.tell(f"of {name}")
        place = {"catalog_name": name.catalog, "schema_name": name.schema, "table_name": name.name}
        report = list(session.act("maintain", **place, what=list(steps)))[-1]
    done = [text.format(report[key]) for key, text in _LINES.items() if report.get(key)]
    print(f"{report['table']}: {'; '.join(done) or 'there was nothing to do'}", file=out)
    for step, reason in sorted(report.get("skipped", {}).items()):
        print(f"{report['table']}: {step} was left out: {reason}", file=out)
    return 0
