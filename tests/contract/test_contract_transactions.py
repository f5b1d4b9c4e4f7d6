"""The contract's decisions about transactions: headers, auto-commit, deferred commit, views, conflicts, expiry."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.contract.clients import JsonClient, change, refused
from tests.contract.conftest import Lake, events
from tests.contract.own_tables import Deletes, Inserts, Updates, own_table, served
from tests.support.duckdb_client import DuckDBClient
from tests.support.flight_rpc import Connection

from sparkport.auth.identity import Identity
from sparkport.auth.model import Authorizer, Operation, Resource
from sparkport.catalog.context import CallContext
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving
from sparkport.transactions.manager import TransactionSettings

pytestmark = pytest.mark.tier("fast")

HEADERS = ["x-transaction-id", "airport-transaction-id"]
EVENTS = "analytics.events"
ONE_ROW = "table 'events': 1 row changed by another transaction; run this one again"


def named(row_id: int, name: str) -> pa.Table:
    return pa.table({"name": [name], "rowid": pa.array([row_id], pa.int64())})


def ids(*row_ids: int) -> pa.Table:
    return pa.table({"rowid": pa.array(row_ids, pa.int64())})


def in_tx(transaction: str) -> list[tuple[str, str]]:
    return [("airport-transaction-id", transaction)]


# Headers


@pytest.mark.parametrize("header", HEADERS)
def test_either_header_puts_a_call_into_the_transaction(lake: Lake, header: str) -> None:
    transaction = lake.json.begin(auto_commit=False)
    change(lake.connection, "insert", EVENTS, events(10), headers=[(header, transaction)])
    assert len(lake.rows()) == 5
    lake.json.commit(transaction)
    assert len(lake.rows()) == 6


def test_both_headers_with_one_id_are_fine(lake: Lake) -> None:
    transaction = lake.json.begin(auto_commit=False)
    lake.json.inside(transaction).inside(transaction, header=HEADERS[1]).delete(EVENTS, [1])
    assert len(lake.rows()) == 5


def test_both_headers_with_different_ids_are_refused(lake: Lake) -> None:
    client = lake.json.inside(lake.json.begin()).inside(lake.json.begin(), header=HEADERS[1])
    with refused("INVALID_ARGUMENT", "the headers x-transaction-id and airport-transaction-id differ"):
        client.delete(EVENTS, [1])


def test_a_scan_in_a_transaction_that_never_was_is_refused(lake: Lake) -> None:
    with refused("NOT_FOUND", "transaction 'nobody' not found"):
        lake.seen("nobody")


# Auto-commit


def test_after_an_auto_commit_the_status_reads_committed_and_more_is_taken(lake: Lake) -> None:
    transaction = lake.json.begin()
    client = lake.json.inside(transaction)
    for number in range(3):
        client.insert(EVENTS, events(10 + number))
        assert client.status(transaction) == "committed"
        assert len(lake.rows()) == 6
        client.delete(EVENTS, [number])
        assert client.status(transaction) == "committed"
        assert len(lake.rows()) == 5


def test_a_failure_aborts_an_auto_commit_transaction_and_what_was_committed_stays(lake: Lake) -> None:
    transaction = lake.json.begin()
    client = lake.json.inside(transaction)
    client.insert(EVENTS, events(10))
    with refused("NOT_FOUND", "row_id 99 not found in table"):
        client.delete(EVENTS, [99])
    assert client.status(transaction) == "aborted"
    with refused("FAILED_PRECONDITION", f"transaction '{transaction}' is not active (state: aborted)"):
        client.insert(EVENTS, events(11))
    assert len(lake.rows()) == 6


@pytest.mark.parametrize("auto_commit", [True, False])
@pytest.mark.parametrize(("end", "state"), [("commit", "committed"), ("rollback", "aborted")])
def test_after_an_explicit_end_nothing_more_is_taken(lake: Lake, auto_commit: bool, end: str, state: str) -> None:
    transaction = lake.json.begin(auto_commit=auto_commit)
    assert getattr(lake.json, end)(transaction) == state
    message = f"transaction '{transaction}' is not active (state: {state})"
    with refused("FAILED_PRECONDITION", message):
        lake.json.inside(transaction).insert(EVENTS, events(10))
    with refused("FAILED_PRECONDITION", message):
        lake.seen(transaction)


def test_ends_can_be_repeated_and_not_turned_round(lake: Lake) -> None:
    committed, aborted = lake.json.begin(auto_commit=False), lake.json.begin(auto_commit=False)
    assert [lake.json.commit(committed) for _ in range(3)] == ["committed"] * 3
    assert [lake.json.rollback(aborted) for _ in range(3)] == ["aborted"] * 3
    with refused("FAILED_PRECONDITION", f"transaction '{aborted}' is not active (state: aborted)"):
        lake.json.commit(aborted)
    with refused("FAILED_PRECONDITION", f"transaction '{committed}' is not active (state: committed)"):
        lake.json.rollback(committed)


# Deferred commit


@pytest.mark.tier("fast")
def test_nothing_is_seen_before_the_commit_and_all_of_it_after(lake: Lake) -> None:
    transaction = lake.json.begin(auto_commit=False)
    client = lake.json.inside(transaction)
    assert client.insert(EVENTS, events(10)).affected_rows == 1
    assert client.update(EVENTS, [1], events(11)).affected_rows == 1
    assert client.delete(EVENTS, [2]).affected_rows == 1
    client.insert("analytics.other", pa.table({"a": [1], "b": ["x"]}))
    assert client.status(transaction) == "active"
    assert lake.names() == {number: f"old{number}" for number in range(5)}
    assert lake.rows("analytics.other") == {}
    assert client.commit(transaction) == "committed"
    assert lake.names() == {0: "old0", 1: "new11", 3: "old3", 4: "old4", 5: "new10"}
    assert list(lake.rows("analytics.other").values()) == [{"a": 1, "b": "x"}]


@pytest.mark.tier("fast")
def test_all_tables_change_at_one_instant(lake: Lake) -> None:
    before = lake.json.begin(auto_commit=False)
    transaction = lake.json.begin(auto_commit=False)
    lake.json.inside(transaction).delete(EVENTS, [0, 1])
    lake.json.inside(transaction).insert("analytics.other", pa.table({"a": [1, 2], "b": ["x", "y"]}))
    lake.json.commit(transaction)
    after = lake.json.begin(auto_commit=False)
    assert (len(lake.seen(before)), len(lake.seen(before, "analytics.other"))) == (5, 0)
    assert (len(lake.seen(after)), len(lake.seen(after, "analytics.other"))) == (3, 2)


def test_a_rollback_leaves_no_trace(lake: Lake) -> None:
    transaction = lake.json.begin(auto_commit=False)
    before = lake.rows()
    lake.json.inside(transaction).insert(EVENTS, events(10))
    lake.json.inside(transaction).delete(EVENTS, [1])
    assert lake.json.rollback(transaction) == "aborted"
    assert lake.rows() == before


@pytest.mark.tier("fast")
def test_a_failed_operation_aborts_a_deferred_transaction_whole(lake: Lake) -> None:
    transaction = lake.json.begin(auto_commit=False)
    lake.json.inside(transaction).insert(EVENTS, events(10))
    with refused("INVALID_ARGUMENT", "row_ids cannot be empty for DELETE"):
        lake.json.inside(transaction).delete(EVENTS, [])
    assert lake.json.status(transaction) == "aborted"
    with refused("FAILED_PRECONDITION", f"transaction '{transaction}' is not active (state: aborted)"):
        lake.json.commit(transaction)
    assert len(lake.rows()) == 5


def test_a_failed_read_aborts_nothing(lake: Lake) -> None:
    transaction = lake.json.begin(auto_commit=False)
    lake.json.inside(transaction).insert(EVENTS, events(10))
    with (
        lake.reader(transaction) as attached,
        refused("NOT_FOUND", "table 'events' has no version 99; the oldest is 0"),
    ):
        attached.scan(EVENTS, at=("VERSION", "99"))
    assert lake.json.status(transaction) == "active"
    assert lake.json.commit(transaction) == "committed"


# Views


def test_reads_see_the_moment_of_the_beginning_and_the_own_changes(lake: Lake) -> None:
    transaction = lake.json.begin(auto_commit=False)
    lake.json.insert(EVENTS, events(50))
    lake.json.delete(EVENTS, [4])
    lake.json.inside(transaction).update(EVENTS, [1], events(11))
    assert {row["name"] for row in lake.seen(transaction).values()} == {"old0", "new11", "old2", "old3", "old4"}
    assert len(lake.rows()) == 5


def test_in_auto_commit_an_own_commit_moves_the_table_it_wrote_and_no_other(lake: Lake) -> None:
    transaction = lake.json.begin()
    lake.json.insert(EVENTS, events(50))
    lake.json.insert("analytics.other", pa.table({"a": [1], "b": ["x"]}))
    assert len(lake.seen(transaction)) == 5
    lake.json.inside(transaction).insert(EVENTS, events(60))
    assert len(lake.seen(transaction)) == 7
    assert len(lake.seen(transaction, "analytics.other")) == 0


def test_rows_of_the_own_transaction_can_be_changed_again(lake: Lake) -> None:
    transaction = lake.json.begin(auto_commit=False)
    client = lake.json.inside(transaction)
    client.insert(EVENTS, events(10, 11))
    own = {row["id"]: row_id for row_id, row in lake.seen(transaction).items()}
    client.update(EVENTS, [own[10]], events(12))
    client.delete(EVENTS, [own[11]])
    with refused("NOT_FOUND", f"row_id {own[11]} not found in table"):
        lake.json.inside(lake.json.begin()).delete(EVENTS, [own[11]])
    lake.json.commit(transaction)
    assert [row["id"] for row in lake.rows().values()] == [0, 1, 2, 3, 4, 12]


# Conflicts


@pytest.mark.parametrize("auto_commit", [True, False])
@pytest.mark.parametrize("first", ["update", "delete"])
def test_an_update_of_a_row_that_another_has_changed_is_aborted(lake: Lake, auto_commit: bool, first: str) -> None:
    transaction = lake.json.begin(auto_commit=auto_commit)
    change(lake.connection, first, EVENTS, named(1, "theirs"), headers=in_tx(lake.json.begin()))
    before = lake.rows()
    with refused("ABORTED", ONE_ROW):
        change(lake.connection, "update", EVENTS, named(1, "mine"), headers=in_tx(transaction))
        lake.json.commit(transaction)
    assert lake.rows() == before
    assert lake.json.status(transaction) == "aborted"


@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_delete_of_a_row_that_another_has_updated_is_aborted(lake: Lake, auto_commit: bool) -> None:
    transaction = lake.json.begin(auto_commit=auto_commit)
    lake.json.update(EVENTS, [1], events(11))
    with refused("ABORTED", ONE_ROW):
        change(lake.connection, "delete", EVENTS, ids(1, 2), headers=in_tx(transaction))
        lake.json.commit(transaction)
    assert len(lake.rows()) == 5


def test_a_delete_of_a_row_that_another_has_deleted_skips_it(lake: Lake) -> None:
    transaction = lake.json.begin()
    lake.json.delete(EVENTS, [1])
    count, _ = change(lake.connection, "delete", EVENTS, ids(1, 2), headers=in_tx(transaction))
    assert count == 1
    assert list(lake.rows()) == [0, 3, 4]


def test_a_deferred_delete_of_a_row_that_another_has_deleted_commits(lake: Lake) -> None:
    transaction = lake.json.begin(auto_commit=False)
    change(lake.connection, "delete", EVENTS, ids(1, 2), headers=in_tx(transaction))
    lake.json.delete(EVENTS, [1])
    assert lake.json.commit(transaction) == "committed"
    assert list(lake.rows()) == [0, 3, 4]


def test_delete_returning_of_a_row_that_another_has_deleted_is_aborted(lake: Lake) -> None:
    transaction = lake.json.begin()
    lake.json.delete(EVENTS, [1])
    with refused("ABORTED", ONE_ROW):
        change(lake.connection, "delete", EVENTS, ids(1), returning=True, headers=in_tx(transaction))


def test_rows_that_were_not_in_the_own_view_are_skipped(lake: Lake) -> None:
    transaction = lake.json.begin()
    lake.json.insert(EVENTS, events(50))
    assert change(lake.connection, "update", EVENTS, named(5, "x"), headers=in_tx(transaction))[0] == 0
    assert change(lake.connection, "delete", EVENTS, ids(5), headers=in_tx(transaction))[0] == 0
    with refused("NOT_FOUND", "row_id 5 not found in table"):
        lake.json.inside(transaction).delete(EVENTS, [5])


def test_the_conflict_names_the_table_and_the_number_of_rows(lake: Lake) -> None:
    transaction = lake.json.begin(auto_commit=False)
    lake.json.inside(transaction).update(EVENTS, [1, 2, 3], events(1, 2, 3))
    lake.json.update(EVENTS, [2, 3], events(22, 33))
    with refused("ABORTED", "table 'events': 2 rows changed by another transaction; run this one again"):
        lake.json.commit(transaction)


def test_changes_of_different_rows_do_not_conflict(lake: Lake) -> None:
    transaction = lake.json.begin(auto_commit=False)
    lake.json.inside(transaction).update(EVENTS, [1], events(11))
    lake.json.update(EVENTS, [2], events(22))
    lake.json.insert(EVENTS, events(50))
    assert lake.json.commit(transaction) == "committed"
    assert (lake.names()[1], lake.names()[2]) == ("new11", "new22")


def test_without_a_header_the_last_write_wins(lake: Lake) -> None:
    lake.json.update(EVENTS, [1], events(11))
    assert change(lake.connection, "update", EVENTS, named(1, "last"))[0] == 1
    assert lake.names()[1] == "last"


def test_after_an_own_commit_the_own_row_can_be_changed_again(lake: Lake) -> None:
    transaction = lake.json.begin()
    for name in ("one", "two"):
        assert change(lake.connection, "update", EVENTS, named(1, name), headers=in_tx(transaction))[0] == 1
        assert lake.seen(transaction)[1]["name"] == name
    assert lake.names()[1] == "two"


@pytest.mark.parametrize(("isolation", "refuses"), [("snapshot", False), ("serializable", True)])
def test_serializable_also_refuses_when_a_table_that_was_read_has_changed(
    lake: Lake, isolation: str, refuses: bool
) -> None:
    transaction = lake.json.begin(auto_commit=False, isolation=isolation)
    lake.seen(transaction)
    lake.json.inside(transaction).insert("analytics.other", pa.table({"a": [1], "b": ["x"]}))
    lake.json.insert(EVENTS, events(50))
    if not refuses:
        assert lake.json.commit(transaction) == "committed"
        return
    with refused("ABORTED", "table 'events' was read by this transaction and has been changed since"):
        lake.json.commit(transaction)
    assert lake.rows("analytics.other") == {}


# Expiry and limits


def test_an_idle_transaction_expires_after_fifteen_minutes(lake: Lake) -> None:
    transaction = lake.json.begin(auto_commit=False)
    lake.json.inside(transaction).insert(EVENTS, events(10))
    lake.clock.advance(minutes=14)
    lake.json.inside(transaction).insert(EVENTS, events(11))
    lake.clock.advance(minutes=14)
    assert lake.json.status(transaction) == "active"
    lake.clock.advance(minutes=2)
    assert lake.json.status(transaction) == "aborted"
    with refused("FAILED_PRECONDITION", f"transaction '{transaction}' is not active (state: aborted)"):
        lake.json.commit(transaction)
    with refused("FAILED_PRECONDITION", f"transaction '{transaction}' is not active (state: aborted)"):
        lake.json.inside(transaction).insert(EVENTS, events(12))
    assert len(lake.rows()) == 5


def test_an_expired_transaction_that_auto_committed_still_says_so(lake: Lake) -> None:
    transaction = lake.json.begin()
    lake.json.inside(transaction).insert(EVENTS, events(10))
    lake.clock.advance(minutes=16)
    assert lake.json.status(transaction) == "committed"
    with refused("FAILED_PRECONDITION", f"transaction '{transaction}' is not active (state: committed)"):
        lake.json.inside(transaction).insert(EVENTS, events(11))


def test_an_end_is_forgotten_at_last(lake: Lake) -> None:
    transaction = lake.json.begin()
    lake.json.commit(transaction)
    lake.clock.advance(days=2)
    with refused("NOT_FOUND", f"transaction '{transaction}' not found"):
        lake.json.status(transaction)


@pytest.mark.memory_only("needs settings of its own")
@pytest.mark.parametrize("settings", [TransactionSettings(max_deferred=2, max_auto_commit=3, idle_seconds=60)])
def test_limits_are_about_deferred_transactions(lake: Lake) -> None:
    first = lake.json.begin(auto_commit=False)
    lake.json.begin(auto_commit=False)
    with refused("RESOURCE_EXHAUSTED", "there are 2 open deferred transactions, the limit"):
        lake.json.begin(auto_commit=False)
    lake.json.rollback(first)
    lake.json.begin(auto_commit=False)
    lake.clock.advance(seconds=61)
    lake.json.begin(auto_commit=False)


@pytest.mark.memory_only("needs settings of its own")
@pytest.mark.parametrize("settings", [TransactionSettings(max_auto_commit=3)])
def test_of_auto_commit_transactions_the_oldest_is_let_go(lake: Lake) -> None:
    first = lake.json.begin()
    second = lake.json.begin()
    lake.json.inside(second).insert(EVENTS, events(10))
    others = [lake.json.begin() for _ in range(3)]
    assert [lake.json.status(one) for one in others] == ["active"] * 3
    assert lake.json.status(first) == "aborted"
    assert lake.json.status(second) == "committed"


# Permission


class NoTransactions(Authorizer):
    def allows(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
        return operation is not Operation.TRANSACTION


def test_to_begin_and_to_end_transactions_needs_permission() -> None:
    catalog = MemoryCatalog("lake")
    assert catalog.transactions is not None
    transaction = catalog.transactions.begin(CallContext(), auto_commit=False)
    with serving(catalog, authorizer=NoTransactions()) as server:
        client = JsonClient(Connection(server.location))
        message = "'anonymous' may not transaction 'lake'"
        with refused("PERMISSION_DENIED", message):
            client.begin()
        with refused("PERMISSION_DENIED", message):
            client.commit(transaction)
        with refused("PERMISSION_DENIED", message):
            client.rollback(transaction)
        assert client.status(transaction) == "active"
        client.connection.close()


# No manager


def test_without_a_manager_the_header_is_unimplemented_for_row_changes() -> None:
    with served(own_table([Inserts, Updates, Deletes])) as own:
        inside = own.json.inside("anything")
        with refused("UNIMPLEMENTED", "transaction manager not configured"):
            inside.delete("public.own", [1])
        with refused("UNIMPLEMENTED", "transaction manager not configured"):
            change(own.connection, "delete", "public.own", ids(1), headers=in_tx("anything"))
        assert own.calls == []


def test_without_a_manager_the_header_is_ignored_by_scans() -> None:
    with served(own_table([])) as own:
        attached = DuckDBClient(own.location).attach("lake")
        attached.join("anything")
        assert attached.scan("public.own", ["id"]).rows.num_rows == 5
        attached.client.connection.close()
