"""Journalled tables under attack: others flush, alter, rename, drop and commit at the worst moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.lakehouse.transacting import FIVE, Tx, at_point, by_key, names, people
from tests.support.lakehouse import Lake, impatient_database, lakehouse

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableSchema, SetComment, TableDefinition
from sparkport.catalog.statement import Change, StatementRequest
from sparkport.catalog.transaction import Isolation
from sparkport.errors import Conflict, InternalError, Unavailable
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.tables.table import LakeTable

pytest_plugins = ["tests.support.services"]
pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

_numbers = count()
SETTINGS = JournalSettings(new_tables=True, seconds=3_600.0)
SERIALIZABLE = Isolation.SERIALIZABLE


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Its journal is applied when a test asks for it."""
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=SETTINGS) as opened:
        yield Lake(opened)


@pytest.fixture(scope="module")
def other(lake: Lake) -> Iterator[Lake]:
    """Another server on the same catalog."""
    with lakehouse(lake.warehouse, journal=SETTINGS) as opened:
        yield Lake(opened)


@pytest.fixture
def table(lake: Lake) -> Handle:
    return create(lake, f"t{next(_numbers)}", FIVE)


def flush(lake: Lake) -> int:
    return lake.opened.journal.flush(60).rows


def spark_only(lake: Lake, rows: pa.Table = FIVE) -> Handle:
    """A table whose journal was never used."""
    made = create(lake, f"t{next(_numbers)}", rows.slice(0, 0))
    settings = lake.opened.engine.journal.settings
    lake.opened.engine.journal.settings = replace(settings, rows=1)
    try:
        made.insert(rows)
    finally:
        lake.opened.engine.journal.settings = settings
    assert made.current.journal is None
    return made


def run(table: Handle, change: Change, key: str, ids: list[int]) -> int:
    request = StatementRequest(change=change, columns=pa.schema([]), statement=key)
    statement = table.table().open_statement(NOBODY, request)
    statement.push(None, pa.array(ids, pa.int64()))
    return statement.finish()


class LakeHandle:
    """A table of any schema."""

    def __init__(self, lake: Lake, schema: str, name: str) -> None:
        self.lake = lake
        self.schema = schema
        self.name = name

    def create(self, rows: pa.Table) -> None:
        schema = self.lake.opened.catalog.schema(NOBODY, self.schema)
        assert isinstance(schema, MutableSchema)
        schema.create_table(NOBODY, TableDefinition(name=self.name, columns=rows.schema))
        self.insert(rows)

    def table(self) -> LakeTable:
        schema = self.lake.opened.catalog.schema(NOBODY, self.schema)
        assert schema is not None
        table = schema.table(NOBODY, self.name)
        assert isinstance(table, LakeTable)
        return table

    def insert(self, rows: pa.Table) -> None:
        self.table().insert(NOBODY, rows.to_reader())

    def count(self) -> int | None:
        return self.table().row_count(NOBODY)


# Isolation


def test_a_serializable_transaction_that_read_what_nobody_changed_commits(lake: Lake, table: Handle) -> None:
    for flushed in (False, True):
        tx = Tx(lake, SERIALIZABLE)
        assert len(table.sparkport(tx.ctx)) == 5
        if flushed:
            flush(lake)
        table.update([table.ids()[0]] if not flushed else [*table.sparkport(tx.ctx)][:1], names("mine"), tx.ctx)
        tx.commit()


def test_a_serializable_transaction_that_read_what_others_changed_conflicts(lake: Lake, table: Handle) -> None:
    other = create(lake, f"t{next(_numbers)}", FIVE)
    for flushed in (False, True):
        tx = Tx(lake, SERIALIZABLE)
        assert len(table.sparkport(tx.ctx)) == 5
        table.update([table.ids()[0]], names("by others"))
        if flushed:
            flush(lake)
        other.insert(people((9, "mine")), tx.ctx)
        with pytest.raises(Conflict, match="was read"):
            tx.commit()


def test_a_large_commit_meets_the_first_entry_of_a_table(lake: Lake) -> None:
    """Both change one row, and the journal had no record of the table when the large one was decided."""
    table = spark_only(lake)
    ids = table.ids()
    large = Tx(lake)
    table.update([ids[0]], names("large"), large.ctx)
    journal = lake.opened.engine.journal

    def small() -> None:
        journal.settings = SETTINGS
        table.update([ids[0]], names("small"))

    journal.settings = JournalSettings(new_tables=True, seconds=3_600.0, rows=1, bytes=1)
    try:
        with at_point("publish.before", small), pytest.raises(Conflict, match="1 row changed by another"):
            large.commit()
    finally:
        journal.settings = SETTINGS
    assert by_key(table.sparkport())[0] == "small"
    flush(lake)
    assert by_key(table.agreed())[0] == "small"


def test_a_read_is_checked_against_the_first_entry_of_a_table(lake: Lake) -> None:
    read, written = spark_only(lake), spark_only(lake)
    tx = Tx(lake, SERIALIZABLE)
    assert len(read.sparkport(tx.ctx)) == 5
    written.insert(people((9, "mine")), tx.ctx)
    journal = lake.opened.engine.journal

    def small() -> None:
        journal.settings = SETTINGS
        read.insert(people((7, "phantom")))

    journal.settings = JournalSettings(new_tables=True, seconds=3_600.0, rows=1, bytes=1)
    try:
        with at_point("publish.before", small), pytest.raises(Conflict, match="was read"):
            tx.commit()
    finally:
        journal.settings = SETTINGS


def test_what_was_read_stays_until_the_journal_has_the_commit(postgres_uri: str, tmp_path: Path) -> None:
    """By PostgreSQL others could publish a table between the look at it and the commit."""
    with lakehouse(tmp_path, catalog_uri=postgres_uri, journal=SETTINGS) as opened:
        lake = Lake(opened)
        read, written = create(lake, "read", FIVE), create(lake, "written", FIVE)
        tx = Tx(lake, SERIALIZABLE)
        assert len(read.sparkport(tx.ctx)) == 5
        written.insert(people((9, "mine")), tx.ctx)
        database = impatient_database(postgres_uri)
        outcomes: list[str] = []

        def publish() -> None:
            location = read.current.location
            try:
                with database.transaction(write=True) as work:
                    sql = "UPDATE iceberg_tables SET metadata_location = ? WHERE metadata_location = ?"
                    work.change(sql, [location, location])
                outcomes.append("moved")
            except Unavailable:
                outcomes.append("waits")

        with closing(database), at_point("pointer.before", publish):
            tx.commit()
        assert outcomes == ["waits"]


def test_a_session_that_altered_a_table_does_not_overwrite_what_was_flushed_since(lake: Lake, table: Handle) -> None:
    session = CallContext(session_id="duckdb-7")
    flush(lake)
    tx = Tx(lake)
    ctx = CallContext(session_id="duckdb-7", transaction_id=tx.id)
    table.table(session).alter(session, SetComment("altered"))
    table.update([table.ids()[0]], names("by others"))
    flush(lake)
    seen = table.sparkport(ctx)
    assert by_key(seen)[0] == "n0"
    mine = next(row_id for row_id, row in seen.items() if row["id"] == 0)
    table.update([mine], names("mine"), ctx)
    with pytest.raises(Conflict, match="1 row changed by another"):
        tx.commit()
    assert by_key(table.sparkport())[0] == "by others"


def test_a_transaction_that_commits_each_statement_lists_its_own_rows(lake: Lake, table: Handle) -> None:
    manager = lake.opened.engine.transactions
    ctx = CallContext(transaction_id=manager.begin(NOBODY, auto_commit=True))
    table.insert(people((9, "mine")), ctx)
    listed = next(t for t in main_of(lake, ctx).tables(ctx) if t.name == table.name)
    assert listed.row_count(ctx) == 6
    manager.rollback(ctx.transaction_id or "")


# Repeats


def test_a_repeat_of_a_delete_that_was_late_says_what_the_first_one_did(lake: Lake, table: Handle) -> None:
    ids = table.ids()
    doomed = [ids[0], ids[1]]
    answers: list[int] = []
    with at_point("stage.after", lambda: answers.append(run(table, Change.DELETE, f"d-{table.name}", doomed))):
        answers.append(run(table, Change.DELETE, f"d-{table.name}", doomed))
    assert answers == [2, 2]


def test_many_who_change_one_row_as_it_is_meet_no_conflict(lake: Lake, table: Handle) -> None:
    row = table.ids()[0]
    start = threading.Barrier(24)

    def change(number: int) -> int:
        start.wait()
        return sum(table.update([row], names(f"{number}-{turn}")).affected_rows for turn in range(4))

    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(change, range(24))) == [4] * 24


# Statistics


def test_statistics_know_all_rows_of_a_long_journal(lake: Lake) -> None:
    table = create(lake, f"t{next(_numbers)}", people((1, "one")))
    flush(lake)
    for block in range(8):
        rows = [(10 + block * 10_000 + n, "x") for n in range(9_000)]
        table.insert(people(*rows))
    table.insert(pa.table({"id": pa.array([1_000_000, None], pa.int64()), "name": pa.array(["last", None])}))
    known = table.table().column_statistics(NOBODY, "id")
    assert known is not None
    assert known.has_null is True
    assert known.maximum is None or known.maximum.as_py() == 1_000_000
    flush(lake)


# Other names


def test_a_table_that_others_renamed_keeps_its_entries_when_its_old_name_is_dropped(lake: Lake, table: Handle) -> None:
    flush(lake)
    table.insert(people((9, "acknowledged")))
    moved = Handle(lake, f"{table.name}_moved")
    table.sql(f"ALTER TABLE {{t}} RENAME TO public.{moved.name}")
    main_of(lake).create_table(NOBODY, TableDefinition(name=table.name, columns=FIVE.schema))
    main_of(lake).drop_table(NOBODY, table.name)
    assert by_key(moved.sparkport())[9] == "acknowledged"
    flush(lake)
    assert by_key(moved.agreed())[9] == "acknowledged"


def test_a_schema_that_could_not_be_dropped_keeps_its_entries(lake: Lake, other: Lake) -> None:
    """What a transaction of the database that failed had read is not taken for what there is."""
    catalog = lake.opened.catalog
    catalog.create_schema(NOBODY, "doomed")
    tables = [LakeHandle(lake, "doomed", name) for name in ("a", "b")]
    for table in tables:
        table.create(FIVE)

    def fail() -> None:
        raise InternalError("the disk is full")

    on_fault("pointer.before", fail)
    try:
        with pytest.raises(InternalError):
            catalog.drop_schema(NOBODY, "doomed")
    finally:
        on_fault("pointer.before", None)
    for table in tables:
        LakeHandle(other, "doomed", table.name).insert(people((7, "later")))
    assert [table.count() for table in tables] == [6, 6]
    catalog.drop_schema(NOBODY, "doomed")


def test_a_journal_is_switched_off_while_others_write(lake: Lake, table: Handle) -> None:
    stop, written = threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            table.insert(people((100 + written[0], "more")))
            written[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        lake.opened.journal.set(NOBODY, TableName("public", table.name), False)
    finally:
        stop.set()
        writer.join()
    assert not table.current.is_journalled
    assert len(table.agreed()) == 5 + written[0]
