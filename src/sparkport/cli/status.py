"""``sparkport status``: whether a server serves, and what there is to know of it."""

from __future__ import annotations

from typing import TextIO

import pyarrow as pa
from pyarrow import flight

from sparkport import __version__
from sparkport.cli.journal import STATUS_ACTION, journal_lines
from sparkport.cli.remote import Remote, RemoteSession, connected

__all__ = ["status"]

_UNREADABLE_ACTION = "unreadable_tables"


def status(remote: Remote, out: TextIO) -> int:
    """Whether the server serves, its catalogs with the versions of their listings, and what a journal holds."""
    with connected(remote) as session:
        actions = session.actions()
        counts: dict[str, dict[str, int]] = {}
        for item in session.items():
            totals = counts.setdefault(item.catalog, {"tables": 0, "functions": 0})
            totals["tables" if item.kind == "table" else "functions"] += 1
        versions = {catalog: session.version(catalog) for catalog in counts}
        known = {name for name, _ in actions}
        journal = journal_lines(session) if STATUS_ACTION in known else []
        damaged = _damaged(session) if _UNREADABLE_ACTION in known else []
    print(f"{remote.location} is serving ({len(actions)} actions; this is sparkport {__version__})", file=out)
    for catalog, count in sorted(counts.items()):
        print(
            f"catalog {catalog}: version {versions[catalog]}, {count['tables']} tables, {count['functions']} functions",
            file=out,
        )
    for line in (*damaged, *journal):
        print(line, file=out)
    return 0


def _damaged(session: RemoteSession) -> list[str]:
    """A line for each table that the listing leaves out; none where the caller may not ask."""
    try:
        head, *tables = session.act(_UNREADABLE_ACTION)
    except (pa.ArrowKeyError, flight.FlightUnauthorizedError):  # the lakehouse is hidden, or this of it
        return []
    return [
        f"catalog {head['catalog']}: table {item['schema_name']}.{item['table_name']} cannot be read: "
        f"{' '.join(str(item['reason']).split())}"
        for item in tables
    ]
