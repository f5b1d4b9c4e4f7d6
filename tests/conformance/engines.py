"""The engines that the conformance suite runs against, each with one declaration of what it can do.

What an engine lacks is said with a reason, and the tests of it must then fail: a gap that closes without a word
here is a failure too.

    notimpl   could be had, nobody has built it
    notyet    something that we depend on cannot do it yet
    never     it makes no sense for this engine
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path

import pyarrow as pa
from tests.support.lakehouse import Contents, lakehouse

from sparkport.catalog import (
    CallContext,
    Catalog,
    CatalogBuilder,
    DeletableTable,
    InsertableTable,
    ScanRequest,
    Table,
    UpdatableTable,
    VersionedTable,
    as_scan,
)
from sparkport.catalog.ddl import MutableSchema, TableDefinition
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.memory import MemoryCatalog

__all__ = ["Ability", "ENGINES", "EngineUnderTest", "Gap", "Ground", "never", "notimpl", "notyet"]


class Ability(Enum):
    ROW_IDS = "row ids"
    INSERT = "insert"
    UPDATE_AND_DELETE = "update and delete"
    VERSIONS = "versions"
    COMMIT_VERSIONS = "each commit of rows is a version"
    CHANGES = "commits and changes are told"
    STATISTICS = "statistics"
    DDL = "create, alter and drop"
    OWN_DDL = "a transaction sees what its own session has created since"
    CHECKED_COLUMNS = "a column that a check needs stays"
    PLANNED_MOMENT = "a planned scan reads what it was planned for"


@dataclass(frozen=True, slots=True)
class Gap:
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


def notimpl(reason: str) -> Gap:
    return Gap("notimpl", reason)


def notyet(reason: str) -> Gap:
    return Gap("notyet", reason)


def never(reason: str) -> Gap:
    return Gap("never", reason)


@dataclass(slots=True)
class Ground:
    """A catalog with the tables that a test asked for, in the schema ``public``."""

    catalog: Catalog
    moment: Callable[[], datetime]
    """A time after all commits so far and before all later ones."""
    ctx: CallContext = field(default_factory=CallContext)
    keep: Callable[[], None] = lambda: None
    """For one that outlives its test: others are given another catalog."""

    def table(self, name: str = "t") -> Table:
        schema = self.catalog.schema(self.ctx, "public")
        assert schema is not None
        table = schema.table(self.ctx, name)
        assert table is not None
        return table

    def insertable(self, name: str = "t") -> InsertableTable:
        table = self.table(name)
        assert isinstance(table, InsertableTable)
        return table

    def versioned(self, name: str = "t") -> VersionedTable:
        table = self.table(name)
        assert isinstance(table, VersionedTable)
        return table

    def insert(self, rows: pa.Table, name: str = "t") -> int:
        table = self.insertable(name)
        reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches())
        return table.insert(self.ctx, reader).affected_rows

    def update(self, row_ids: list[int], rows: pa.Table, name: str = "t") -> int:
        table = self.table(name)
        assert isinstance(table, UpdatableTable)
        reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches())
        return table.update(self.ctx, row_ids, reader).affected_rows

    def delete(self, row_ids: list[int], name: str = "t") -> int:
        table = self.table(name)
        assert isinstance(table, DeletableTable)
        return table.delete(self.ctx, row_ids).affected_rows

    def read(self, request: ScanRequest | None = None, name: str = "t") -> pa.Table:
        """The rows of a request, all parts of it one after the other, with the asked columns in the table's order."""
        table = self.table(name)
        request = request or ScanRequest()
        assert set(request.columns or ()) <= set(table.schema.names)
        wanted = [column for column in table.schema if request.selects(column.name)]
        batches: list[pa.RecordBatch] = []
        for part in table.plan(self.ctx, request):
            scan = as_scan(table.scan(self.ctx, part))
            try:
                batches.extend(scan)
            finally:
                scan.close()
        columns = [pa.chunked_array([batch.column(column.name) for batch in batches], column.type) for column in wanted]
        return pa.table(columns, schema=pa.schema(wanted))

    def count(self, request: ScanRequest) -> int:
        table = self.table()
        return sum(
            batch.num_rows for part in table.plan(self.ctx, request) for batch in as_scan(table.scan(self.ctx, part))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnderTest:
    """``make`` builds a catalog that holds the given tables; ``gaps`` are the abilities that it lacks."""

    name: str
    make: Callable[[Mapping[str, pa.Table]], Ground]
    gaps: Mapping[Ability, Gap] = field(default_factory=dict)


class _Clock:
    """A second passes with every look."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self._now += timedelta(seconds=1)
        return self._now


def _memory(tables: Mapping[str, pa.Table]) -> Ground:
    clock = _Clock()
    catalog = MemoryCatalog("lake", clock=clock)
    for name, rows in tables.items():
        catalog.create_table(f"public.{name}", rows.schema, rows=rows)
    return Ground(catalog, clock)


def _static(tables: Mapping[str, pa.Table]) -> Ground:
    schema = CatalogBuilder("lake").schema("public")
    for name, rows in tables.items():
        schema.table(name, rows)
    return Ground(schema.build(), lambda: datetime.now(UTC))


class _Lakehouses:
    """One is enough for all tests that come after each other; of tables that were filled once the files are kept."""

    def __init__(self, journal: JournalSettings | None = None) -> None:
        self._journal = journal
        self._empty: tuple[Lakehouse, Contents] | None = None
        self._filled: list[tuple[str, pa.Table, str]] = []

    def make(self, tables: Mapping[str, pa.Table]) -> Ground:
        if self._empty is None:
            opened = _opened(self._journal)
            self._empty = opened, Contents(opened)
        lake, contents = self._empty
        contents.restore()
        ground = Ground(lake.catalog, _later, keep=self._give_up)
        for name, rows in tables.items():
            self._fill(lake, ground, name, rows)
        return ground

    def _fill(self, lake: Lakehouse, ground: Ground, name: str, rows: pa.Table) -> None:
        table, pointers = TableName("public", name), lake.engine.storage.pointers
        for known, held, location in self._filled:
            if known == name and held.schema.equals(rows.schema, check_metadata=True) and held.equals(rows):
                pointers.create(table, location)
                return
        schema = lake.catalog.schema(ground.ctx, "public")
        assert isinstance(schema, MutableSchema)
        schema.create_table(ground.ctx, TableDefinition(name=name, columns=rows.schema))
        if rows.num_rows:
            ground.insert(rows, name)
            if self._journal is not None:
                lake.journal.flush(60)
        made = pointers.location(table)
        assert made is not None
        self._filled.append((name, rows, made))

    def _give_up(self) -> None:
        self._empty = None
        self._filled.clear()


def _opened(journal: JournalSettings | None) -> Lakehouse:
    folder = Path(tempfile.mkdtemp(prefix="sparkport-lake-"))
    opened = contextlib.ExitStack()
    opened.callback(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(opened.close)
    return opened.enter_context(lakehouse(folder, journal=journal))


def _later() -> datetime:
    """Commits are told apart by the millisecond."""
    time.sleep(0.002)
    moment = datetime.now(UTC)
    time.sleep(0.002)
    return moment


_READ_ONLY = never("an Arrow table is served as it is")

ENGINES: tuple[EngineUnderTest, ...] = (
    EngineUnderTest(name="memory", make=_memory),
    EngineUnderTest(
        name="lakehouse",
        make=_Lakehouses().make,
    ),
    EngineUnderTest(
        name="journal",
        make=_Lakehouses(JournalSettings(new_tables=True, seconds=3_600.0)).make,
        gaps={Ability.COMMIT_VERSIONS: never("what is published counts: a flush is one version")},
    ),
    EngineUnderTest(
        name="static",
        make=_static,
        gaps={
            Ability.ROW_IDS: never("rows of an Arrow table have no identity"),
            Ability.INSERT: _READ_ONLY,
            Ability.UPDATE_AND_DELETE: _READ_ONLY,
            Ability.VERSIONS: never("an Arrow table has no history"),
            Ability.CHANGES: never("an Arrow table has no history"),
            Ability.DDL: _READ_ONLY,
            Ability.PLANNED_MOMENT: never("an Arrow table does not change"),
        },
    ),
)
