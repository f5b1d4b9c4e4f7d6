"""One memory catalog as 001 draws it, served, and a client of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.clients import JsonClient
from tests.support.duckdb_client import Attached, DuckDBClient
from tests.support.flight_rpc import Connection

from sparkport.app import Server
from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import ScanRequest
from sparkport.memory import MemoryCatalog, MemoryTable
from sparkport.testing import serving
from sparkport.transactions.manager import TransactionSettings

EVENTS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("score", pa.float64()),
        ("kind", pa.int32()),
        ("tags", pa.list_(pa.string())),
    ]
)


def events(*ids: int, name: str = "new") -> pa.Table:
    rows = [{"id": number, "name": f"{name}{number}", "score": 0.5, "kind": 1, "tags": ["t"]} for number in ids]
    return pa.Table.from_pylist(rows, EVENTS)


@dataclass
class Clock:
    now: datetime = field(default_factory=lambda: datetime(2026, 1, 1, tzinfo=UTC))

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **much: float) -> None:
        self.now += timedelta(**much)


@dataclass
class Lake:
    """``analytics.events`` has the rows 0 to 4 under the row ids 0 to 4; ``analytics.other`` has two columns."""

    catalog: MemoryCatalog
    server: Server
    clock: Clock
    events: MemoryTable
    other: MemoryTable
    connection: Connection
    json: JsonClient
    opened: list[DuckDBClient] = field(default_factory=list)

    def rows(self, table: MemoryTable | None = None) -> dict[int, dict[str, Any]]:
        """What is committed, by row id."""
        scan = (table or self.events).scan(CallContext(), ScanRequest())
        found = [row for batch in scan for row in batch.to_pylist()]
        return {row.pop("rowid"): row for row in found}

    def names(self) -> dict[int, str]:
        return {row_id: row["name"] for row_id, row in self.rows().items()}

    def duckdb(self) -> Attached:
        """A DuckDB process of its own."""
        client = DuckDBClient(self.server.location)
        self.opened.append(client)
        return client.attach("lake")

    @contextmanager
    def reader(self, transaction_id: str) -> Iterator[Attached]:
        """DuckDB inside a transaction that somebody else has begun."""
        attached = self.duckdb()
        attached.transaction_id = transaction_id
        attached._in_transaction = True
        yield attached

    def seen(self, transaction_id: str, table: str = "analytics.events") -> dict[int, dict[str, Any]]:
        """What a scan inside the transaction sees, by row id."""
        with self.reader(transaction_id) as attached:
            entry = attached.table(table)
            rows = attached.scan(table, [*entry.columns, "rowid"]).rows.to_pylist()
        return {row.pop("rowid"): row for row in rows}


@pytest.fixture
def settings() -> TransactionSettings:
    return TransactionSettings()


@pytest.fixture
def lake(settings: TransactionSettings) -> Iterator[Lake]:
    clock = Clock()
    catalog = MemoryCatalog("lake", settings=settings, clock=clock)
    catalog.new_schema("analytics")
    table = catalog.create_table("analytics.events", EVENTS, rows=events(0, 1, 2, 3, 4, name="old"))
    other = catalog.create_table("analytics.other", pa.schema([("a", pa.int64()), ("b", pa.string())]))
    with serving(catalog) as server:
        connection = Connection(server.location)
        lake = Lake(catalog, server, clock, table, other, connection, JsonClient(connection))
        yield lake
        for client in lake.opened:
            client.close()
        connection.close()
