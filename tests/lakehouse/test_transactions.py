"""Deferred transactions: what they see of their own changes, and how they become the tables' at one instant."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.lakehouse.transacting import FIVE, Tx, at_point, by_key, names, people, wait_until
from tests.support.lakehouse import Lake

from sparkport.catalog import ROW_ID, CallContext, DMLOptions
from sparkport.catalog.ddl import AddColumn
from sparkport.catalog.statement import Change, MissingRows, StatementRequest
from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.errors import Conflict, ConstraintViolation, RowNotFound, TransactionNotActive
from sparkport.lakehouse.names import TableName

pytestmark = pytest.mark.tier("thorough")

_numbers = count()

RETURNING = DMLOptions(returning=True)


@pytest.fixture
def table(lake: Lake) -> Handle:
    return create(lake, f"d{next(_numbers)}", FIVE)


@pytest.fixture
def other(lake: Lake) -> Handle:
    return create(lake, f"d{next(_numbers)}", FIVE)


# What a transaction sees


@pytest.mark.tier("fast")
def test_own_changes_are_seen_inside_and_nowhere_else(lake: Lake, table: Handle) -> None:
    tx, ids = Tx(lake), table.ids()
    table.insert(people((10, "new")), tx.ctx)
    table.update([ids[1]], names("changed"), tx.ctx)
    table.delete([ids[2]], tx.ctx)

    inside = table.sparkport(tx.ctx)
    assert by_key(inside) == {0: "n0", 1: "changed", 3: "n3", 4: "n4", 10: "new"}
    assert {row["id"]: row_id for row_id, row in inside.items() if row_id >= 0} == {
        key: ids[key] for key in (0, 1, 3, 4)
    }
    assert [row_id for row_id in inside if row_id < 0] == [-1]
    assert by_key(table.agreed()) == {i: f"n{i}" for i in range(5)}

    tx.commit()
    rows = table.agreed()
    assert by_key(rows) == {0: "n0", 1: "changed", 3: "n3", 4: "n4", 10: "new"}
    assert {row["id"]: row_id for row_id, row in rows.items() if row["id"] < 10} == {
        key: ids[key] for key in (0, 1, 3, 4)
    }


@pytest.mark.tier("fast")
def test_several_statements_on_one_row_come_to_one_change(lake: Lake, table: Handle) -> None:
    tx, ids = Tx(lake), table.ids()
    table.update([ids[1]], names("once"), tx.ctx)
    table.update([ids[1], ids[1]], names("twice", "thrice"), tx.ctx)
    table.update([ids[2]], names("doomed"), tx.ctx)
    assert table.delete([ids[2]], tx.ctx).affected_rows == 1
    assert table.delete([ids[2]], tx.ctx).affected_rows == 0
    assert table.update([ids[2]], names("too late"), tx.ctx).affected_rows == 0

    assert lake.opened.engine.transactions.open_transactions()[-1].changed_rows == 2
    tx.commit()
    assert by_key(table.agreed()) == {0: "n0", 1: "thrice", 3: "n3", 4: "n4"}


def test_returning_gives_rows_as_the_transaction_sees_them(lake: Lake, table: Handle) -> None:
    tx, ids = Tx(lake), table.ids()
    inserted = table.insert(people((10, "new")), tx.ctx, RETURNING).returning_data
    assert inserted is not None
    assert inserted.read_all().to_pylist() == [{"id": 10, "name": "new", ROW_ID: -1}]
    table.update([ids[1]], names("once"), tx.ctx)

    updated = table.update([-1, ids[1], ids[2]], names("x", "y", "z"), tx.ctx, RETURNING).returning_data
    assert updated is not None
    assert updated.read_all().to_pylist() == [
        {"id": 10, "name": "x", ROW_ID: -1},
        {"id": 1, "name": "y", ROW_ID: ids[1]},
        {"id": 2, "name": "z", ROW_ID: ids[2]},
    ]
    deleted = table.delete([ids[1], -1], tx.ctx, RETURNING).returning_data
    assert deleted is not None
    assert [row["name"] for row in deleted.read_all().to_pylist()] == ["y", "x"]
    tx.rollback()


@pytest.mark.tier("fast")
def test_a_transaction_keeps_to_the_moment_it_began(lake: Lake, table: Handle, other: Handle) -> None:
    tx, ids = Tx(lake), table.ids()
    table.update([ids[0]], names("later"))
    other.insert(people((10, "later")))
    other.alter(AddColumn(pa.field("more", pa.int64())))

    assert by_key(table.sparkport(tx.ctx))[0] == "n0"
    assert 10 not in by_key(other.sparkport(tx.ctx))
    assert other.table(tx.ctx).schema.names == ["id", "name", ROW_ID]
    main_of(lake).drop_table(NOBODY, other.name)
    assert len(other.sparkport(tx.ctx)) == 5
    tx.rollback()


@pytest.mark.tier("fast")
def test_rollback_leaves_nothing(lake: Lake, table: Handle) -> None:
    tx, ids = Tx(lake), table.ids()
    before, held = table.current.location, lake.opened.engine.workspace.bytes_held()
    table.insert(people((10, "new")), tx.ctx)
    assert lake.opened.engine.workspace.bytes_held() > held
    table.delete(list(ids.values()), tx.ctx)
    tx.rollback()
    tx.rollback()

    assert table.current.location == before
    assert tx.status is TransactionState.ABORTED
    assert lake.opened.engine.workspace.bytes_held() <= held
    with pytest.raises(TransactionNotActive):
        tx.commit()


def test_checks_hold_for_rows_that_the_transaction_has_changed_before(lake: Lake) -> None:
    table = create(lake, f"d{next(_numbers)}", people((1, "a")), checks=("id < 10 OR name IS NOT NULL",))
    tx = Tx(lake)
    table.update([0], pa.table({"id": pa.array([50], pa.int64())}), tx.ctx)
    with pytest.raises(ConstraintViolation):
        table.update([0], names(None), tx.ctx)
    tx.rollback()


def test_ids_that_are_not_there_are_skipped_or_refused(lake: Lake, table: Handle) -> None:
    tx, ids = Tx(lake), table.ids()
    assert table.update([ids[0], 999, -7], names("a", "b", "c"), tx.ctx).affected_rows == 1
    assert table.delete([999, ids[1]], tx.ctx).affected_rows == 1
    request = StatementRequest(change=Change.DELETE, columns=pa.schema([]), missing=MissingRows.REFUSE)
    statement = table.table(tx.ctx).open_statement(tx.ctx, request)
    statement.push(None, pa.array([ids[2], 999], pa.int64()))
    with pytest.raises(RowNotFound):
        statement.finish()
    assert by_key(table.sparkport(tx.ctx)) == {0: "a", 2: "n2", 3: "n3", 4: "n4"}
    tx.rollback()


# Commits


@pytest.mark.tier("fast")
def test_two_tables_change_at_one_instant(lake: Lake, table: Handle, other: Handle) -> None:
    tx, ids, other_ids = Tx(lake), table.ids(), other.ids()
    table.update([ids[0]], names("paid"), tx.ctx)
    other.insert(people((10, "bill")), tx.ctx)
    other.delete([other_ids[3]], tx.ctx)
    seen: list[tuple[object, object]] = []

    def look() -> None:
        seen.append((by_key(table.sparkport())[0], by_key(other.sparkport()).get(10)))

    with at_point("publish.before", look):
        tx.commit()
    assert seen == [("n0", None)]
    assert by_key(table.agreed())[0] == "paid"
    assert by_key(other.agreed()) == {0: "n0", 1: "n1", 2: "n2", 4: "n4", 10: "bill"}
    assert tx.status is TransactionState.COMMITTED
    tx.commit()


def test_a_table_with_new_and_changed_rows_keeps_no_branch(lake: Lake, table: Handle) -> None:
    tx, ids = Tx(lake), table.ids()
    table.insert(people((10, "new")), tx.ctx)
    table.update([ids[0]], names("x"), tx.ctx)
    table.delete([ids[1]], tx.ctx)
    tx.commit()
    assert by_key(table.agreed()) == {0: "x", 2: "n2", 3: "n3", 4: "n4", 10: "new"}
    metadata = table.current.metadata
    assert set(metadata.refs) == {"main"}
    newest = list(islice(metadata.ancestors(metadata.main_snapshot_id), 2))
    assert [snapshot.operation for snapshot in newest] == ["overwrite", "append"]
    totals = [int(newest[0].summary[f"total-{word}"]) for word in ("records", "position-deletes")]
    assert totals == [5 + 1 + 1, 2]  # Iceberg's own: a new version of a row, a new row, and two versions that are gone


@pytest.mark.tier("fast")
def test_the_first_committer_of_a_row_wins(lake: Lake, table: Handle, other: Handle) -> None:
    first, second, ids = Tx(lake), Tx(lake), table.ids()
    table.update([ids[0]], names("first"), first.ctx)
    table.update([ids[0], ids[1]], names("second", "second"), second.ctx)
    other.insert(people((10, "second")), second.ctx)
    first.commit()
    with pytest.raises(Conflict, match=f"table '{table.name}': 1 row changed by another transaction"):
        second.commit()
    assert by_key(table.agreed()) == {0: "first", 1: "n1", 2: "n2", 3: "n3", 4: "n4"}
    assert len(other.agreed()) == 5
    assert second.status is TransactionState.ABORTED


def test_a_deleted_row_is_handed_out_to_one_only(lake: Lake, table: Handle) -> None:
    first, second, ids = Tx(lake), Tx(lake), table.ids()
    for tx in (first, second):
        given = table.delete([ids[0]], tx.ctx, RETURNING).returning_data
        assert given is not None
        assert given.read_all().num_rows == 1
    first.commit()
    with pytest.raises(Conflict, match="1 row changed by another transaction"):
        second.commit()


def test_inserts_never_conflict(lake: Lake, table: Handle) -> None:
    open_ones = [Tx(lake) for _ in range(3)]
    for number, tx in enumerate(open_ones):
        table.insert(people((10 + number, "new")), tx.ctx)
    table.insert(people((20, "statement")))
    for tx in open_ones:
        tx.commit()
    assert set(by_key(table.agreed())) == {0, 1, 2, 3, 4, 10, 11, 12, 20}


@pytest.mark.parametrize("point", ["commit.decided", "apply.before", "apply.after", "publish.before"])
def test_a_foreign_append_in_the_middle_of_a_commit_loses_nothing(lake: Lake, table: Handle, point: str) -> None:
    tx, ids = Tx(lake), table.ids()
    table.insert(people((10, "new")), tx.ctx)
    new = next(row_id for row_id in table.sparkport(tx.ctx) if row_id < 0)
    table.update([new, ids[0]], names("NEW", "x"), tx.ctx)
    with at_point(point, lambda: table.sql("INSERT INTO {t} VALUES (20, 'spark')")):
        tx.commit()
    assert by_key(table.agreed()) == {0: "x", 1: "n1", 2: "n2", 3: "n3", 4: "n4", 10: "NEW", 20: "spark"}
    assert set(table.current.metadata.refs) == {"main"}


@pytest.mark.tier("fast")
def test_a_foreign_update_of_the_same_row_in_the_middle_of_a_commit_conflicts(lake: Lake, table: Handle) -> None:
    tx, ids = Tx(lake), table.ids()
    table.update([ids[0]], names("x"), tx.ctx)
    with (
        at_point("apply.after", lambda: table.sql("UPDATE {t} SET name = 'spark' WHERE id = 0")),
        pytest.raises(Conflict, match="1 row changed"),
    ):
        tx.commit()
    assert by_key(table.agreed())[0] == "spark"


@pytest.mark.tier("fast")
def test_compaction_moves_rows_without_a_conflict(lake: Lake, table: Handle) -> None:
    for number in range(3):
        table.insert(people((10 + number, "more")))
    tx, ids = Tx(lake), table.ids()
    table.delete([ids[10]], tx.ctx)
    table.update([ids[0]], names("x"), tx.ctx)
    lake.opened.maintenance.run(TableName("public", table.name), ["compact"])
    assert len(table.sparkport(tx.ctx)) == 7
    tx.commit()
    assert by_key(table.agreed()) == {0: "x", 1: "n1", 2: "n2", 3: "n3", 4: "n4", 11: "more", 12: "more"}


def test_an_altered_table_refuses_the_commit(lake: Lake, table: Handle) -> None:
    tx = Tx(lake)
    table.insert(people((10, "new")), tx.ctx)
    table.alter(AddColumn(pa.field("more", pa.int64())))
    with pytest.raises(Conflict, match="altered"):
        tx.commit()
    assert len(table.agreed()) == 5


def test_transactions_that_wait_are_committed_together(lake: Lake, table: Handle) -> None:
    ids = table.ids()
    open_ones = [Tx(lake) for _ in range(6)]
    for number, tx in enumerate(open_ones[:5]):
        table.update([ids[number]], names(f"by {number}"), tx.ctx)
        table.insert(people((10 + number, "new")), tx.ctx)
    table.update([ids[0]], names("late"), open_ones[5].ctx)
    committer = lake.opened.engine.committer
    before = len(table.current.metadata.snapshot_log)

    def committed(tx: Tx) -> bool:
        try:
            tx.commit()
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        with committer.turn(TableName("public", table.name)):
            outcomes = pool.map(committed, open_ones)
            wait_until(lambda: committer.waiting() == len(open_ones))
        done = list(outcomes)
    assert sum(done) == 5
    assert all(done[1:5])
    rows = by_key(table.agreed())
    assert {key: rows[key] for key in (1, 2, 3, 4)} == {number: f"by {number}" for number in (1, 2, 3, 4)}
    assert rows[0] in ("by 0", "late")
    assert len(table.current.metadata.snapshot_log) - before <= 3


# Serializable


@pytest.mark.tier("fast")
def test_write_skew_happens_under_snapshot_and_is_refused_under_serializable(
    lake: Lake, table: Handle, other: Handle
) -> None:
    for isolation, allowed in ((Isolation.SNAPSHOT, True), (Isolation.SERIALIZABLE, False)):
        first, second = Tx(lake, isolation), Tx(lake, isolation)
        table.sparkport(first.ctx)
        other.sparkport(second.ctx)
        other.insert(people((20, "first")), first.ctx)
        table.insert(people((20, "second")), second.ctx)
        first.commit()
        if allowed:
            second.commit()
        else:
            with pytest.raises(Conflict, match="was read by this transaction"):
                second.commit()


def test_compaction_of_a_table_that_was_read_is_no_change(lake: Lake, table: Handle, other: Handle) -> None:
    table.insert(people((10, "more")))
    tx = Tx(lake, Isolation.SERIALIZABLE)
    table.sparkport(tx.ctx)
    other.insert(people((10, "new")), tx.ctx)
    lake.opened.maintenance.run(TableName("public", table.name), ["compact"])
    tx.commit()
    assert 10 in by_key(other.agreed())


def test_a_read_table_that_moves_in_the_middle_of_the_commit_refuses_it(
    lake: Lake, table: Handle, other: Handle
) -> None:
    tx = Tx(lake, Isolation.SERIALIZABLE)
    table.sparkport(tx.ctx)
    other.insert(people((10, "new")), tx.ctx)
    with (
        at_point("publish.before", lambda: table.sql("INSERT INTO {t} VALUES (10, 'quick')")),
        pytest.raises(Conflict, match="was read by this transaction"),
    ):
        tx.commit()
    assert len(other.agreed()) == 5


def test_single_statements_are_serializable_too(lake: Lake, table: Handle, other: Handle) -> None:
    manager = lake.opened.engine.transactions
    ctx = CallContext(transaction_id=manager.begin(NOBODY, isolation=Isolation.SERIALIZABLE))
    table.sparkport(ctx)
    other.insert(people((10, "new")), ctx)
    assert by_key(other.sparkport(ctx))[10] == "new" == by_key(other.agreed())[10]
    table.insert(people((10, "meanwhile")))
    with pytest.raises(Conflict, match="was read by this transaction"):
        other.insert(people((11, "new")), ctx)
    assert 11 not in by_key(other.agreed())
