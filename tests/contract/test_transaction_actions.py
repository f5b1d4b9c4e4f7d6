"""The actions, the header, and the sequence of calls that a user's manager gets."""

from __future__ import annotations

import msgpack
import pyarrow as pa
import pytest
from tests.contract.clients import change, open_exchange, refused
from tests.contract.conftest import Lake, events
from tests.contract.own_tables import (
    Deletes,
    DeletesBatches,
    Inserts,
    OwnTable,
    Updates,
    UpdatesBatches,
    own_table,
    served,
)
from tests.support.flight_rpc import AirportError

from sparkport.catalog.transaction import TransactionState
from sparkport.errors import PermissionDenied

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"id": pa.array([10, 11], pa.int64()), "name": ["a", "b"]})
ALL = (Inserts, Updates, Deletes)


@pytest.mark.parametrize("body", [b"", b"{}", b"  {} "])
def test_create_transaction_takes_an_empty_body(lake: Lake, body: bytes) -> None:
    answer = lake.json.action("create_transaction", body)
    assert set(answer) == {"status", "transaction_id"}
    assert answer["status"] == "success"
    assert lake.json.status(answer["transaction_id"]) == "active"


def test_the_status_answer(lake: Lake) -> None:
    transaction = lake.json.begin()
    assert lake.json.action("get_transaction_status", {"transaction_id": transaction}) == {
        "status": "success",
        "transaction_id": transaction,
        "transaction_status": "active",
    }


@pytest.mark.parametrize("action", ["get_transaction_status", "commit_transaction", "rollback_transaction"])
def test_transaction_not_found(lake: Lake, action: str) -> None:
    with refused("NOT_FOUND", "transaction '550e8400' not found"):
        lake.json.action(action, {"transaction_id": "550e8400"})


@pytest.mark.parametrize("action", ["get_transaction_status", "commit_transaction", "rollback_transaction"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{}", "body lacks the key 'transaction_id'"),
        (b'{"transaction_id": 5}', "body key 'transaction_id' must be text"),
        (b"{", "body is not valid JSON"),
    ],
)
def test_a_bad_body_names_the_key(lake: Lake, action: str, body: bytes, message: str) -> None:
    with refused("INVALID_ARGUMENT", message):
        lake.json.action(action, body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"auto_commit": "no"}, "body key 'auto_commit' must be a boolean"),
        ({"isolation": "chaos"}, "body key 'isolation' must be snapshot or serializable"),
        ({"isolation": 1}, "body key 'isolation' must be text"),
    ],
)
def test_create_transaction_names_a_bad_key(lake: Lake, body: dict[str, object], message: str) -> None:
    with refused("INVALID_ARGUMENT", message):
        lake.json.action("create_transaction", body)


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("create_transaction", {}),
        ("get_transaction_status", {"transaction_id": "x"}),
        ("commit_transaction", {"transaction_id": "x"}),
        ("rollback_transaction", {"transaction_id": "x"}),
    ],
)
def test_no_transaction_manager(action: str, body: dict[str, str]) -> None:
    with served(own_table(ALL)) as own, refused("UNIMPLEMENTED", "transaction manager not configured"):
        own.json.action(action, body)


def test_duckdb_gets_no_identifier_without_a_manager() -> None:
    with served(own_table(ALL)) as own:
        (result,) = own.connection.do_action("create_transaction", msgpack.packb({"catalog_name": "lake"}), [])
        assert msgpack.unpackb(result) == {"identifier": None}


def test_duckdb_gets_an_identifier(lake: Lake) -> None:
    (result,) = lake.connection.do_action("create_transaction", msgpack.packb({"catalog_name": "lake"}), [])
    assert lake.json.status(msgpack.unpackb(result)["identifier"]) == "active"


def test_creation_failed() -> None:
    with served(own_table(ALL), manager=True) as own:
        assert own.manager is not None
        own.manager.begin_failure = RuntimeError("disk full")
        with pytest.raises(AirportError, match=r"^INTERNAL: failed to create transaction: disk full"):
            own.json.begin()
        own.manager.begin_failure = PermissionDenied("not today")
        with refused("PERMISSION_DENIED", "not today"):
            own.json.begin()


def test_the_lifecycle_as_drawn() -> None:
    with served(own_table(ALL), manager=True) as own:
        assert own.manager is not None
        transaction = own.json.begin()
        own.json.inside(transaction).insert("public.own", ROWS)
        assert own.manager.log == [("begin", "tx1"), ("commit", "tx1")]
        assert own.calls[0].transaction == "tx1"
        assert own.json.status(transaction) == "committed"
        assert len(own.table.rows) == 7


def test_the_error_case_as_drawn() -> None:
    with served(own_table(ALL), manager=True) as own:
        assert own.manager is not None
        transaction = own.json.begin()
        with refused("INVALID_ARGUMENT", "column mismatch: table has 2 columns, input has 1"):
            own.json.inside(transaction).insert("public.own", ROWS.select(["id"]))
        assert own.manager.log == [("begin", "tx1"), ("rollback", "tx1")]
        assert own.json.status(transaction) == "aborted"
        with refused("FAILED_PRECONDITION", "transaction 'tx1' is not active (state: aborted)"):
            own.json.inside(transaction).insert("public.own", ROWS)


def test_the_example_inserts_then_deletes_then_finds_committed() -> None:
    with served(own_table(ALL), manager=True) as own:
        assert own.manager is not None
        inside = own.json.inside(own.json.begin())
        inside.insert("public.own", ROWS)
        inside.delete("public.own", [1])
        assert inside.status("tx1") == "committed"
        assert own.manager.log == [("begin", "tx1"), ("commit", "tx1"), ("commit", "tx1")]


@pytest.mark.parametrize("fails", ["table", "ability", "schema", "lookup"])
def test_every_failure_of_an_operation_rolls_back(fails: str) -> None:
    with served(own_table([Inserts]), manager=True) as own:
        assert own.manager is not None
        inside = own.json.inside(own.json.begin())
        own.table.failure = RuntimeError("broken") if fails == "table" else None
        rows = ROWS.select(["id"]) if fails == "schema" else ROWS
        name = "public.nothing" if fails == "lookup" else "public.own"
        with pytest.raises(AirportError):
            inside.delete(name, [1]) if fails == "ability" else inside.insert(name, rows)
        assert own.manager.log == [("begin", "tx1"), ("rollback", "tx1")]
        assert len(own.table.rows) == 5


def test_a_call_that_cannot_be_understood_is_no_operation() -> None:
    with served(own_table(ALL), manager=True) as own:
        inside = own.json.inside(own.json.begin())
        with refused("INVALID_ARGUMENT", "body lacks the key 'table_name'"):
            inside.action("delete", {"schema_name": "public"})
        assert inside.status("tx1") == "active"


def test_a_commit_that_fails_fails_the_operation_and_leaves_nothing_open() -> None:
    with served(own_table(ALL), manager=True) as own:
        assert own.manager is not None
        own.manager.commit_failure = RuntimeError("disk full")
        inside = own.json.with_header("x-statement-id", "s1").inside(own.json.begin())
        with pytest.raises(AirportError, match="INTERNAL"):
            inside.insert("public.own", ROWS)
        assert own.manager.log == [("begin", "tx1"), ("commit", "tx1"), ("rollback", "tx1")]
        assert (len(own.table.rows), own.table.staged) == (5, {})
        own.manager.commit_failure = None
        again = own.json.with_header("x-statement-id", "s1").inside(own.json.begin())
        assert again.insert("public.own", ROWS).affected_rows == 2
        assert len(own.table.rows) == 7, "a statement that was never committed was taken for a repeat"


def test_an_unknown_transaction(lake: Lake) -> None:
    with refused("NOT_FOUND", "transaction 'nobody' not found"):
        lake.json.inside("nobody").insert("analytics.events", events(10))
    with served(own_table(ALL), manager=True) as own, refused("NOT_FOUND", "transaction 'nobody' not found"):
        own.json.inside("nobody").insert("public.own", ROWS)


def test_the_managers_own_states_are_believed() -> None:
    with served(own_table(ALL), manager=True) as own:
        assert own.manager is not None
        transaction = own.json.begin()
        own.manager.states[transaction] = TransactionState.ABORTED
        with refused("FAILED_PRECONDITION", "transaction 'tx1' is not active (state: aborted)"):
            own.json.inside(transaction).delete("public.own", [1])
        assert own.manager.log == [("begin", "tx1")]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_after_an_explicit_end_a_users_manager_gets_no_more_operations(end: str) -> None:
    with served(own_table(ALL), manager=True) as own:
        assert own.manager is not None
        transaction = own.json.begin()
        getattr(own.json, end)(transaction)
        state = {"commit": "committed", "rollback": "aborted"}[end]
        with refused("FAILED_PRECONDITION", f"transaction 'tx1' is not active (state: {state})"):
            own.json.inside(transaction).insert("public.own", ROWS)
        assert own.manager.log == [("begin", "tx1"), (end, "tx1")]


def test_a_users_manager_is_not_asked_to_turn_an_end_round() -> None:
    with served(own_table(ALL), manager=True) as own:
        assert own.manager is not None
        aborted, committed = own.json.begin(), own.json.begin()
        own.json.rollback(aborted)
        own.json.commit(committed)
        with refused("FAILED_PRECONDITION", "transaction 'tx1' is not active (state: aborted)"):
            own.json.commit(aborted)
        with refused("FAILED_PRECONDITION", "transaction 'tx2' is not active (state: committed)"):
            own.json.rollback(committed)
        assert (own.json.rollback(aborted), own.json.commit(committed)) == ("aborted", "committed")
        for action in ("commit_transaction", "rollback_transaction"):
            with refused("NOT_FOUND", "transaction 'nobody' not found"):
                own.json.action(action, {"transaction_id": "nobody", "catalog_name": "lake"})
        assert [call for call, _ in own.manager.log] == ["begin", "begin", "rollback", "commit", "rollback", "commit"]


def test_a_manager_that_cannot_defer_says_so() -> None:
    with served(own_table(ALL), manager=True) as own, refused("UNIMPLEMENTED", "this manager commits each statement"):
        own.json.begin(auto_commit=False)


# RETURNING from DuckDB: a user's table is called once per batch, in one transaction

CASES = [
    (Inserts, "insert", ROWS),
    (Updates, "update", pa.table({"name": ["x", "y"], "rowid": [3, 1]})),
    (UpdatesBatches, "update", pa.table({"name": ["x", "y"], "rowid": [3, 1]})),
    (Deletes, "delete", pa.table({"rowid": [3, 1]})),
    (DeletesBatches, "delete", pa.table({"rowid": [3, 1]})),
]


class OneByOne(list[pa.RecordBatch]):
    def __init__(self, rows: pa.Table) -> None:
        super().__init__(rows.to_batches(max_chunksize=1))
        self.schema = rows.schema


@pytest.mark.parametrize(("ability", "operation", "rows"), CASES)
def test_returning_is_called_per_batch_and_commits_at_the_end(
    ability: type[OwnTable], operation: str, rows: pa.Table
) -> None:
    with served(own_table([ability]), manager=True) as own:
        assert own.manager is not None
        before = {row_id: dict(row) for row_id, row in own.table.rows.items()}
        with open_exchange(own.connection, operation, "public.own", rows.schema, returning=True) as exchange:
            for batch in OneByOne(rows):
                exchange.write(batch)
                assert exchange.read().num_rows == 1
                assert own.table.rows == before
            exchange.done_writing()
            assert msgpack.unpackb(exchange.read_final_metadata()) == {"total_changed": 2}
        assert own.manager.log == [("begin", "tx1"), ("commit", "tx1")]
        assert [(len(call.ids or call.rows), call.transaction) for call in own.calls] == [(1, "tx1"), (1, "tx1")]
        assert own.table.rows != before


@pytest.mark.parametrize(("ability", "operation", "rows"), CASES)
def test_returning_rolls_back_when_a_later_batch_fails(ability: type[OwnTable], operation: str, rows: pa.Table) -> None:
    with served(own_table([ability]), manager=True) as own:
        assert own.manager is not None
        before = {row_id: dict(row) for row_id, row in own.table.rows.items()}
        first, second = OneByOne(rows)
        with open_exchange(own.connection, operation, "public.own", rows.schema, returning=True) as exchange:
            exchange.write(first)
            exchange.read()
            own.table.failure = RuntimeError("broken")
            exchange.write(second)
            with pytest.raises(AirportError, match="INTERNAL"):
                exchange.read()
        assert own.manager.log == [("begin", "tx1"), ("rollback", "tx1")]
        assert (own.table.rows, own.table.staged) == (before, {})


def test_returning_inside_the_callers_transaction_uses_that_one() -> None:
    with served(own_table([Inserts]), manager=True) as own:
        assert own.manager is not None
        headers = [("airport-transaction-id", own.json.begin())]
        change(own.connection, "insert", "public.own", OneByOne(ROWS), returning=True, headers=headers)
        assert own.manager.log == [("begin", "tx1"), ("commit", "tx1")]
        assert [call.transaction for call in own.calls] == ["tx1", "tx1"]


def test_returning_without_a_manager_works_for_one_batch_and_says_so_clearly_for_a_second() -> None:
    message = (
        "table 'own' keeps no transactions: RETURNING works for one batch of rows only. "
        "The first batch of this statement has been changed, the rest has not"
    )
    with served(own_table([Inserts])) as own:
        assert change(own.connection, "insert", "public.own", ROWS, returning=True)[0] == 2
        with refused("UNIMPLEMENTED", message):
            change(own.connection, "insert", "public.own", OneByOne(ROWS), returning=True)
        assert len(own.table.rows) == 8


def test_without_returning_no_transaction_is_begun_for_a_users_table() -> None:
    with served(own_table([Inserts]), manager=True) as own:
        assert own.manager is not None
        change(own.connection, "insert", "public.own", OneByOne(ROWS))
        own.json.insert("public.own", ROWS, returning=True)
        assert own.manager.log == []
        assert [len(call.rows) for call in own.calls] == [2, 2]
