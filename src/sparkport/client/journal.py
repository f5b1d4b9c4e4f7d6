"""The journal of a lakehouse: whose changes go through it, and publishing at once what it holds."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sparkport.client.connection import Connection
from sparkport.client.errors import translated
from sparkport.protocol.maps import MapReader
from sparkport.protocol.targets import Target

__all__ = ["FlushResult", "flush_journal", "set_journal"]


@dataclass(frozen=True, slots=True)
class FlushResult:
    """What a flush has published: changed rows of so many tables, and how long it took."""

    tables: int
    rows: int
    seconds: float


def set_journal(connection: Connection, table: Target, on: bool) -> None:
    body = {
        "catalog_name": table.catalog,
        "schema_name": table.schema,
        "table_name": table.name,
        "journal": on,
    }
    connection.action("set_table", json.dumps(body).encode(), repeatable=True)


def flush_journal(connection: Connection) -> FlushResult:
    """Sent once: the answer to a repetition would not count what the first one has published."""
    results = connection.action("flush_journal")
    with translated(connection.location, what="answer to action 'flush_journal'"):
        report = MapReader.from_json(results[-1] if results else b"", what="report")
        return FlushResult(report.integer("tables"), report.integer("rows"), report.number("seconds"))
