"""The catalog of the row-change contract, served by each engine, and a client of each kind."""

from __future__ import annotations

import time
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
from tests.support.lakehouse import Contents, lakehouse
from tests.support.tiers import FAST, THOROUGH

from sparkport.app import Server
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableCatalog, MutableSchema, TableDefinition
from sparkport.catalog.scan import ScanRequest, as_scan
from sparkport.catalog.statement import ChangeableTable
from sparkport.lakehouse.journal.net import FIRST_ID
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving
from sparkport.transactions.manager import TransactionSettings

OTHER = pa.schema([("a", pa.int64()), ("b", pa.string())])
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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "memory_only(reason): what is tested is only there in the memory engine")
    config.addinivalue_line("markers", "lakehouse_gap(reason): what the lakehouse does otherwise, for now")
    config.addinivalue_line("markers", "journal_gap(reason): what journalled tables do otherwise")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lake" in metafunc.fixturenames:
        marks = {mark.name: mark for mark in metafunc.definition.iter_markers()}
        gap = marks.get("lakehouse_gap")
        journal_gap = marks.get("journal_gap", gap)
        lakehouses = [
            pytest.param("lakehouse", marks=[THOROUGH, *_xfail(gap)]),
            pytest.param("journal", marks=[THOROUGH, *_xfail(journal_gap)]),
        ]
        if "memory_only" in marks:
            lakehouses = []
        engines = [pytest.param("memory", marks=FAST), *lakehouses]
        metafunc.parametrize("lake", engines, indirect=True)


def _xfail(gap: pytest.Mark | None) -> list[pytest.MarkDecorator]:
    return [] if gap is None else [pytest.mark.xfail(strict=True, reason=gap.args[0])]


_FILLED = 5


@dataclass
class Lake:
    """``analytics.events`` has the rows 0 to 4 under the row ids 0 to 4; ``analytics.other`` has two columns."""

    catalog: MutableCatalog
    server: Server
    clock: Clock
    connection: Connection
    json: JsonClient
    opened: list[DuckDBClient] = field(default_factory=list)

    @property
    def events(self) -> ChangeableTable:
        return self.table("analytics.events")

    def table(self, name: str) -> ChangeableTable:
        schema, _, table_name = name.partition(".")
        table = self.schema(schema).table(CallContext(), table_name)
        assert isinstance(table, ChangeableTable)
        return table

    def schema(self, name: str) -> MutableSchema:
        return _schema(self.catalog, name)

    def create_table(self, name: str, columns: pa.Schema) -> str:
        """Its name again."""
        schema, _, table_name = name.partition(".")
        self.schema(schema).create_table(CallContext(), TableDefinition(name=table_name, columns=columns))
        return name

    def rows(self, name: str = "analytics.events") -> dict[int, dict[str, Any]]:
        return rows_in(self.table(name))

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
        attached.join(transaction_id)
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
def lake(request: pytest.FixtureRequest, settings: TransactionSettings) -> Iterator[Lake]:
    clock = Clock()
    catalog: MutableCatalog
    if request.param == "memory":
        catalog = MemoryCatalog("lake", settings=settings, clock=clock)
        fill(catalog)
        with served(catalog, clock) as lake:
            yield lake
        return
    fixture = "filled_lakehouse" if request.param == "lakehouse" else "journalled_lakehouse"
    filled: FilledLakehouse = request.getfixturevalue(fixture)
    with filled.by(clock), served(filled.opened.catalog, clock) as lake:
        yield lake


def fill(catalog: MutableCatalog) -> None:
    ctx = CallContext()
    catalog.create_schema(ctx, "analytics")
    schema = _schema(catalog, "analytics")
    schema.create_table(ctx, TableDefinition(name="other", columns=OTHER))
    table = schema.create_table(ctx, TableDefinition(name="events", columns=EVENTS))
    assert isinstance(table, ChangeableTable)
    table.insert(ctx, events(0, 1, 2, 3, 4, name="old").to_reader())


@contextmanager
def served(catalog: MutableCatalog, clock: Clock) -> Iterator[Lake]:
    with serving(catalog) as server:
        connection = Connection(server.location)
        lake = Lake(catalog, server, clock, connection, JsonClient(connection))
        try:
            yield lake
        finally:
            for client in lake.opened:
                client.close()
            connection.close()


@pytest.fixture(scope="session")
def filled_lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledLakehouse]:
    clock = SharedClock()
    with lakehouse(tmp_path_factory.mktemp("warehouse"), clock=clock) as opened:
        fill(opened.catalog)
        yield FilledLakehouse(opened, clock)


@pytest.fixture(scope="session")
def journalled_lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledLakehouse]:
    """Its tables are journalled. What tests change stays in the journal."""
    journal = JournalSettings(new_tables=True, seconds=3_600.0)
    clock = SharedClock()
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=journal, clock=clock) as opened:
        fill(opened.catalog)
        opened.journal.flush(60)
        yield FilledLakehouse(opened, clock)


class SharedClock:
    """That of the test that runs, and the usual one in between."""

    test: Clock | None = None

    def __call__(self) -> float:
        return time.time() if self.test is None else self.test.now.timestamp()


class FilledLakehouse:
    """One for all tests, which is set back after each of them."""

    def __init__(self, opened: Lakehouse, clock: SharedClock) -> None:
        self.opened = opened
        self._clock = clock
        self._contents = Contents(opened)

    @contextmanager
    def by(self, clock: Clock) -> Iterator[None]:
        """Its transactions expire by a test's own clock."""
        self._clock.test = clock
        try:
            yield
        finally:
            self._contents.restore()
            self._clock.test = None


def rows_in(table: ChangeableTable) -> dict[int, dict[str, Any]]:
    """What is committed, by row id and in the order of these."""
    ctx = CallContext()
    found = [
        row
        for part in table.plan(ctx, ScanRequest())
        for batch in as_scan(table.scan(ctx, part))
        for row in batch.to_pylist()
    ]
    rows = {row.pop("rowid"): row for row in sorted(found, key=lambda row: int(row["rowid"]))}
    # New rows have the journal's ids until they are flushed. Here they are counted on, as a flush will do it.
    new = [row_id for row_id in rows if row_id >= FIRST_ID]
    following = {row_id: number for number, row_id in enumerate(new, _FILLED)}
    return {following.get(row_id, row_id): row for row_id, row in rows.items()}


def _schema(catalog: MutableCatalog, name: str) -> MutableSchema:
    schema = catalog.schema(CallContext(), name)
    assert isinstance(schema, MutableSchema)
    return schema
