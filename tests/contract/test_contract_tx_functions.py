"""The schema ``tx``: how DuckDB, which never sends COMMIT or ROLLBACK, holds several statements together."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.contract.clients import refused
from tests.contract.conftest import Lake, events
from tests.contract.own_tables import Inserts, RecordingManager, own_table, served
from tests.support.duckdb_client import Attached, DuckDBClient

from sparkport.catalog.builder import CatalogBuilder
from sparkport.errors import InvalidArgument
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

EVENTS = "analytics.events"


def call(duckdb: Attached, function: str) -> str:
    (answer,) = duckdb.call_scalar(f"tx.{function}", rows=1).to_pylist()
    return str(answer)


def test_without_begin_each_statement_commits(lake: Lake) -> None:
    duckdb = lake.duckdb()
    with duckdb.transaction():
        duckdb.insert(EVENTS, events(10))
        assert len(lake.rows()) == 6
        assert call(duckdb, "status") == "committed"


def test_begin_holds_all_statements_back_until_commit(lake: Lake) -> None:
    duckdb = lake.duckdb()
    with duckdb.transaction():
        assert call(duckdb, "begin") == duckdb.transaction_id
        duckdb.insert(EVENTS, events(10))
        duckdb.update(EVENTS, pa.table({"name": ["x"], "rowid": [1]}), returning=True)
        duckdb.delete(EVENTS, [2])
        duckdb.insert("analytics.other", pa.table({"a": [1], "b": ["x"]}))
        assert sorted(duckdb.scan(EVENTS, ["id"]).rows.column("id").to_pylist()) == [0, 1, 3, 4, 10]
        assert call(duckdb, "status") == "active"
        assert len(lake.rows()) == 5
        assert call(duckdb, "commit") == "committed"
    assert lake.names() == {0: "old0", 1: "x", 3: "old3", 4: "old4", 5: "new10"}
    assert len(lake.rows("analytics.other")) == 1


def test_rollback_undoes_all_statements(lake: Lake) -> None:
    duckdb = lake.duckdb()
    before = lake.rows()
    with duckdb.transaction():
        call(duckdb, "begin")
        duckdb.insert(EVENTS, events(10))
        duckdb.delete(EVENTS, [2])
        assert call(duckdb, "rollback") == "aborted"
        assert call(duckdb, "status") == "aborted"
    assert lake.rows() == before


def test_begin_twice_is_begin_once(lake: Lake) -> None:
    duckdb = lake.duckdb()
    with duckdb.transaction():
        assert call(duckdb, "begin") == call(duckdb, "begin")


def test_begin_after_a_write_is_refused(lake: Lake) -> None:
    duckdb = lake.duckdb()
    with duckdb.transaction():
        duckdb.insert(EVENTS, events(10))
        message = f"transaction '{duckdb.transaction_id}' has written already: it cannot be deferred"
        with refused("FAILED_PRECONDITION", message):
            call(duckdb, "begin")


def test_begin_after_a_read_is_taken(lake: Lake) -> None:
    duckdb = lake.duckdb()
    with duckdb.transaction():
        duckdb.scan(EVENTS, ["id"])
        assert call(duckdb, "begin") == duckdb.transaction_id


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_after_the_end_statements_are_refused(lake: Lake, end: str) -> None:
    duckdb = lake.duckdb()
    with duckdb.transaction():
        call(duckdb, "begin")
        state = call(duckdb, end)
        with refused("FAILED_PRECONDITION", f"transaction '{duckdb.transaction_id}' is not active (state: {state})"):
            duckdb.insert(EVENTS, events(10))


def test_a_commit_that_loses_is_aborted(lake: Lake) -> None:
    duckdb = lake.duckdb()
    with duckdb.transaction():
        call(duckdb, "begin")
        duckdb.update(EVENTS, pa.table({"name": ["x"], "rowid": [1]}))
        lake.json.update(EVENTS, [1], events(11))
        with refused("ABORTED", "table 'events': 1 row changed by another transaction; run this one again"):
            call(duckdb, "commit")
        assert call(duckdb, "status") == "aborted"
    assert lake.names()[1] == "new11"


@pytest.mark.parametrize("function", ["begin", "commit", "rollback", "status"])
def test_outside_a_transaction_there_is_nothing_to_act_on(lake: Lake, function: str) -> None:
    duckdb = lake.duckdb()
    duckdb.join(None)
    message = f"tx.{function}() acts on the transaction it is called in: begin one first"
    with refused("FAILED_PRECONDITION", message):
        call(duckdb, function)


@pytest.mark.lakehouse_gap("the names of changed tables have their schema before them")
def test_transactions_lists_the_deferred_ones_that_are_open(lake: Lake) -> None:
    lake.json.begin()
    transaction = lake.json.begin(auto_commit=False, isolation="serializable")
    lake.json.inside(transaction).insert(EVENTS, events(10, 11))
    lake.json.inside(transaction).delete(EVENTS, [1])
    duckdb = lake.duckdb()
    (row,) = duckdb.scan("tx.transactions").rows.to_pylist()
    assert row == {
        "id": transaction,
        "owner": "anonymous",
        "isolation": "serializable",
        "begun": lake.clock.now,
        "last_used": lake.clock.now,
        "changed_tables": ["events"],
        "changed_rows": 3,
    }
    lake.json.commit(transaction)
    assert duckdb.scan("tx.transactions").rows.num_rows == 0


def test_a_manager_that_cannot_defer_says_so() -> None:
    with served(own_table([Inserts]), manager=True) as own:
        client = DuckDBClient(own.location)
        duckdb = client.attach("lake")
        message = "this catalog's transactions commit each statement: they cannot be deferred"
        with duckdb.transaction(), refused("UNIMPLEMENTED", message):
            call(duckdb, "begin")
        client.close()


def test_tx_is_a_reserved_name_where_there_is_a_manager() -> None:
    taken = CatalogBuilder("lake", transactions=RecordingManager()).schema("TX").table("t", events(1)).build()
    with pytest.raises(InvalidArgument, match="catalog 'lake' has a schema 'tx', a reserved name"), serving(taken):
        pass


def test_there_is_no_tx_without_a_manager() -> None:
    with served(own_table([])) as own, refused("NOT_FOUND", "schema 'tx' not found"):
        own.json.delete("tx.transactions", [1])
