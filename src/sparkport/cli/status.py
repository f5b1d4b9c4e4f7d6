"""``sparkport status``: whether a server serves, and what there is to know of it."""

from __future__ import annotations

from typing import TextIO

from sparkport import __version__
from sparkport.cli.journal import STATUS_ACTION, journal_lines
from sparkport.cli.remote import Remote, connected

__all__ = ["status"]


def status(remote: Remote, out: TextIO) -> int:
    """Whether the server serves, its catalogs with the versions of their listings, and what a journal holds."""
    with connected(remote) as session:
        actions = session.actions()
        counts: dict[str, dict[str, int]] = {}
        for item in session.items():
            totals = counts.setdefault(item.catalog, {"tables": 0, "functions": 0})
            totals["tables" if item.kind == "table" else "functions"] += 1
        versions = {catalog: session.version(catalog) for catalog in counts}
        journal = journal_lines(session) if any(name == STATUS_ACTION for name, _ in actions) else []
    print(f"{remote.location} is serving ({len(actions)} actions; this is sparkport {__version__})", file=out)
    for catalog, count in sorted(counts.items()):
        print(
            f"catalog {catalog}: version {versions[catalog]}, {count['tables']} tables, {count['functions']} functions",
            file=out,
        )
    for line in journal:
        print(line, file=out)
    return 0
