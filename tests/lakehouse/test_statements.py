"""Single statements in and out of transactions: who wins, who sees what, and what a repeated statement gets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.lakehouse.transacting import at_point, names
from tests.support.lakehouse import Lake, lakehouse

from sparkport.catalog import CallContext
from sparkport.catalog.ddl import AddColumn, OnConflict, RenameColumn, SetNotNull, TableDefinition
from sparkport.catalog.statement import Change, MissingRows, StatementRequest
from sparkport.catalog.transaction import Isolation
from sparkport.errors import (
    Conflict,
    ConstraintViolation,
    InternalError,
    NotFound,
    SparkportError,
)
from sparkport.lakehouse.spark.staging import StagedRows

pytestmark = pytest.mark.tier("thorough")

_numbers = count()

TEN = pa.table({"id": pa.array(range(10), pa.int64()), "name": pa.array([f"n{i}" for i in range(10)])})


@pytest.fixture
def table(lake: Lake) -> Handle:
    return create(lake, f"t{next(_numbers)}", TEN)


def begin(lake: Lake, *, session: str | None = None) -> CallContext:
    manager = lake.opened.catalog.transactions
    assert manager is not None
    return CallContext(transaction_id=manager.begin(NOBODY), session_id=session)


# Conflicts


@pytest.mark.tier("fast")
def test_of_two_updates_of_one_row_the_first_committer_wins(lake: Lake, table: Handle) -> None:
    ids = table.ids()
    first, second = begin(lake), begin(lake)
    assert table.update([ids[1]], names("first"), first).affected_rows == 1
    with pytest.raises(Conflict, match="1 row changed by another transaction"):
        table.update([ids[1], ids[2]], names("second", "second"), second)
    rows = table.agreed()
    assert (rows[ids[1]]["name"], rows[ids[2]]["name"]) == ("first", "n2")


@pytest.mark.tier("fast")
def test_changes_of_different_rows_do_not_conflict(lake: Lake, table: Handle) -> None:
    ids = table.ids()
    first, second = begin(lake), begin(lake)
    table.update([ids[1]], names("first"), first)
    assert table.update([ids[2]], names("second"), second).affected_rows == 1
    rows = table.sparkport()
    assert (rows[ids[1]]["name"], rows[ids[2]]["name"]) == ("first", "second")


# What transactions see


def test_a_table_that_was_replaced_is_not_changed_by_row_ids_of_the_old_one(lake: Lake, table: Handle) -> None:
    ids, mine = table.ids(), begin(lake)
    main_of(lake).create_table(NOBODY, TableDefinition(name=table.name, columns=TEN.schema), OnConflict.REPLACE)
    table.insert(TEN)
    with pytest.raises(Conflict, match="altered"):
        table.update([ids[1]], names("wrong table"), mine)
    with pytest.raises(Conflict, match="altered"):
        table.insert(TEN, begin_before(lake, table))
    assert "wrong table" not in {row["name"] for row in table.agreed().values()}


def begin_before(lake: Lake, table: Handle) -> CallContext:
    """A transaction that began before the table was replaced once more."""
    ctx = begin(lake)
    main_of(lake).create_table(NOBODY, TableDefinition(name=table.name, columns=TEN.schema), OnConflict.REPLACE)
    return ctx


def test_rows_made_for_another_schema_are_refused(lake: Lake, table: Handle) -> None:
    mine, ids = begin(lake), table.ids()
    table.alter(AddColumn(pa.field("extra", pa.int64())))
    with pytest.raises(Conflict, match="altered"):
        table.insert(TEN, mine)
    with pytest.raises(Conflict, match="altered"):
        table.update([ids[1]], names("late"), begin_pinned(lake, table))
    assert len(table.agreed()) == 10


def begin_pinned(lake: Lake, table: Handle) -> CallContext:
    ctx = begin(lake)
    table.alter(RenameColumn("extra", f"extra{next(_numbers)}"))
    return ctx


@pytest.mark.parametrize("point", ["apply.before", "apply.after"])
def test_an_alter_in_the_middle_of_an_insert_aborts_it(table: Handle, point: str) -> None:
    nulls = pa.table({"id": pa.array([100], pa.int64()), "name": pa.array([None], pa.string())})
    with at_point(point, lambda: table.alter(SetNotNull("name"))), pytest.raises(Conflict, match="altered"):
        table.insert(nulls)
    assert len(table.agreed()) == 10
    assert None not in {row["name"] for row in table.sparkport().values()}


def test_a_session_sees_what_it_created_and_altered_after_its_transaction_began(lake: Lake) -> None:
    """CREATE TABLE … AS: the client sends no transaction with DDL."""
    session = CallContext(session_id="duckdb-1")
    mine, stranger = begin(lake, session="duckdb-1"), begin(lake, session="duckdb-2")
    name = f"t{next(_numbers)}"
    main_of(lake).create_table(session, TableDefinition(name=name, columns=TEN.schema))
    table = Handle(lake, name)
    assert table.insert(TEN, mine).affected_rows == 10
    table.table(mine).alter(session, AddColumn(pa.field("extra", pa.int64())))
    more = TEN.append_column("extra", pa.array(range(10), pa.int64()))
    assert table.insert(more, mine).affected_rows == 10
    assert len(table.sparkport(mine)) == 20
    assert name in {found.name for found in main_of(lake, mine).tables(mine)}
    assert main_of(lake, stranger).table(stranger, name) is None
    main_of(lake).drop_table(session, name)
    assert main_of(lake, mine).table(mine, name) is None


def test_a_schema_made_by_the_session_is_found_in_its_transaction(lake: Lake) -> None:
    session, mine = CallContext(session_id="duckdb-3"), begin(lake, session="duckdb-3")
    lake.opened.catalog.create_schema(session, "fresh")
    assert lake.opened.catalog.schema(mine, "fresh") is not None
    assert lake.opened.catalog.schema(begin_elsewhere(lake), "fresh") is not None
    lake.opened.catalog.drop_schema(session, "fresh")
    assert lake.opened.catalog.schema(mine, "fresh") is None


def begin_elsewhere(lake: Lake) -> CallContext:
    return begin(lake, session="another")


# Deferred transactions, which are not there yet


# Statement ids


def run(table: Handle, key: str, rows: pa.Table) -> int:
    request = StatementRequest(change=Change.INSERT, columns=rows.schema, statement=key)
    statement = table.table().open_statement(NOBODY, request)
    statement.push(rows.to_batches()[0], None)
    return statement.finish()


def address(table: Handle) -> dict[str, str]:
    return {"schema": "public", "table": table.name}


@pytest.mark.tier("fast")
def test_a_statement_is_remembered_with_its_count_by_the_next_server_too(lake: Lake, table: Handle) -> None:
    assert run(table, "insert-3", TEN.slice(0, 3)) == 3
    assert lake.opened.catalog.committed_statement("insert-3", **address(table)) == 3
    with lakehouse(lake.warehouse) as again:
        assert again.catalog.committed_statement("insert-3", **address(table)) == 3
        assert again.catalog.committed_statement("never", **address(table)) is None
        second = Handle(Lake(again), table.name)
        assert run(second, "insert-3", TEN.slice(0, 3)) == 3
    assert len(table.agreed()) == 13


def test_a_statement_that_fails_at_publishing_is_not_remembered(lake: Lake, table: Handle) -> None:
    def fail() -> None:
        raise InternalError("the disk is on fire")

    with at_point("publish.before", fail), pytest.raises(InternalError, match="fire"):
        run(table, "on-fire", TEN)
    assert lake.opened.catalog.committed_statement("on-fire", **address(table)) is None
    assert len(table.agreed()) == 10
    assert run(table, "on-fire", TEN) == 10


@pytest.mark.tier("fast")
def test_of_two_runs_of_one_statement_at_once_only_one_happens_and_both_are_told(table: Handle) -> None:
    barrier = Barrier(2)

    def once() -> int:
        barrier.wait()
        return run(table, "twins", TEN.slice(0, 2))

    with ThreadPoolExecutor(2) as pool:
        assert [done.result() for done in [pool.submit(once) for _ in range(2)]] == [2, 2]
    assert len(table.sparkport()) == 12


@pytest.mark.parametrize("isolation", [None, *Isolation])
@pytest.mark.parametrize("change", [Change.INSERT, Change.UPDATE, Change.DELETE])
def test_a_statement_that_is_at_two_servers_at_once_happens_once_and_both_are_told(
    lake: Lake, table: Handle, change: Change, isolation: Isolation | None
) -> None:
    """The second finds the rows of the first in its way: new, changed or gone."""
    ids = pa.array([table.ids()[0], table.ids()[1]], pa.int64())
    rows = None if change is Change.DELETE else TEN.slice(0, 2) if change is Change.INSERT else names("a", "b")

    def send(handle: Handle) -> int:
        manager = handle.lake.opened.engine.transactions
        ctx = NOBODY if isolation is None else CallContext(transaction_id=manager.begin(NOBODY, isolation=isolation))
        request = StatementRequest(
            change=change,
            columns=pa.schema([]) if rows is None else rows.schema,
            missing=MissingRows.REFUSE,
            statement=f"both-{table.name}",
        )
        statement = handle.table(ctx).open_statement(ctx, request)
        statement.push(None if rows is None else rows.to_batches()[0], None if change is Change.INSERT else ids)
        return statement.finish()

    with lakehouse(lake.warehouse) as again:
        first, told = Handle(Lake(again), table.name), []
        with at_point("apply.before", lambda: told.append(send(first))):
            told.append(send(table))
    assert told == [2, 2]
    assert len(table.agreed()) == 10 + {Change.INSERT: 2, Change.UPDATE: 0, Change.DELETE: -2}[change]


# Group commit


@pytest.mark.tier("fast")
def test_inserts_that_wait_share_snapshots_and_a_bad_one_fails_alone(
    lake: Lake, table: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = 16
    barrier = Barrier(writers)
    finish, damaged = StagedRows.finish, list[Path]()

    def damage_one(staged: StagedRows) -> None:
        finish(staged)
        if not damaged and [1007] in pq.read_table(staged.path).to_pydict().values():
            damaged.append(staged.path)
            staged.path.write_bytes(b"PAR1 this is no Parquet file PAR1")

    monkeypatch.setattr(StagedRows, "finish", damage_one)

    def insert(number: int) -> int | SparkportError:
        rows = pa.table({"id": pa.array([1000 + number], pa.int64()), "name": ["group"]})
        request = StatementRequest(change=Change.INSERT, columns=rows.schema)
        statement = table.table().open_statement(NOBODY, request)
        statement.push(rows.to_batches()[0], None)
        barrier.wait()
        try:
            return statement.finish()
        except SparkportError as exc:
            return exc

    before = table.number
    with ThreadPoolExecutor(writers) as pool:
        results = list(pool.map(insert, range(writers)))
    assert [result for number, result in enumerate(results) if number != 7] == [1] * 15
    assert isinstance(results[7], SparkportError)
    rows = table.agreed()
    assert sorted(row["id"] for row in rows.values())[10:] == [1000 + n for n in range(writers) if n != 7]
    assert table.number - before <= 16
    ten = [pa.table({"id": pa.array([2000 + number], pa.int64()), "name": ["group"]}) for number in range(12)]
    again = table.number
    with ThreadPoolExecutor(12) as pool:
        assert [done.affected_rows for done in pool.map(table.insert, ten)] == [1] * 12
    assert table.number - again < 6
    assert len(table.agreed()) == 10 + 15 + 12


# Refusals


@pytest.mark.tier("fast")
def test_rows_that_break_a_check_are_refused_and_leave_nothing(lake: Lake) -> None:
    table = create(lake, f"t{next(_numbers)}", TEN, checks=("id >= 0",))
    ids, location = table.ids(), table.current.location
    bad = pa.table({"id": pa.array([5, -1], pa.int64()), "name": ["good", "bad"]})
    with pytest.raises(ConstraintViolation):
        table.insert(bad)
    with pytest.raises(ConstraintViolation):
        table.update([ids[1]], pa.table({"id": pa.array([-1], pa.int64())}))
    assert table.current.location == location
    assert not list((lake.warehouse / ".staging").rglob("*.parquet"))


def test_a_dropped_table_is_not_found_by_a_statement_under_way(lake: Lake, table: Handle) -> None:
    ids = table.ids()
    gone = table.table()
    main_of(lake).drop_table(NOBODY, table.name)
    with pytest.raises(NotFound, match="has been dropped"):
        gone.insert(NOBODY, pa.RecordBatchReader.from_batches(TEN.schema, TEN.to_batches()))
    with pytest.raises(NotFound, match="has been dropped"):
        gone.delete(NOBODY, [ids[1]])
