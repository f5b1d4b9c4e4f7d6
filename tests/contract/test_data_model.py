"""The abilities of tables, results, transaction states, the context helpers and the table of errors."""

from __future__ import annotations

import uuid
from dataclasses import FrozenInstanceError

import pyarrow as pa
import pytest
from tests.contract.clients import JsonClient, command, refused
from tests.contract.conftest import EVENTS, Lake, events
from tests.support.flight_rpc import Connection

from sparkport.catalog.builder import CatalogBuilder
from sparkport.catalog.context import CallContext, entered, transaction_id
from sparkport.catalog.statement import ChangeableTable
from sparkport.catalog.static import ArrowTable
from sparkport.catalog.table import (
    DeletableBatchTable,
    DeletableTable,
    DMLOptions,
    DMLResult,
    InsertableTable,
    Table,
    UpdatableBatchTable,
    UpdatableTable,
)
from sparkport.catalog.transaction import TransactionManager, TransactionState
from sparkport.errors import InvalidArgument
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ABILITIES = (InsertableTable, UpdatableTable, DeletableTable, UpdatableBatchTable, DeletableBatchTable)


@pytest.mark.parametrize("ability", ABILITIES)
def test_an_ability_is_a_table_that_cannot_be_made_without_its_method(ability: type[Table]) -> None:
    assert issubclass(ability, Table)
    with pytest.raises(TypeError, match="abstract"):
        ability()


@pytest.mark.parametrize("ability", ABILITIES)
def test_abilities_are_told_apart_by_inheritance_alone(ability: type[Table]) -> None:
    others = [other for other in ABILITIES if other is not ability]
    assert not any(issubclass(ability, other) for other in others)
    assert issubclass(ChangeableTable, ability)
    assert not isinstance(ArrowTable("t", pa.table({"a": [1]})), ability)


def test_a_result_is_a_value() -> None:
    result = DMLResult(3)
    assert (result.affected_rows, result.returning_data) == (3, None)
    with pytest.raises(FrozenInstanceError):
        result.affected_rows = 4  # type: ignore[misc]


def test_the_states_are_named_as_on_the_wire() -> None:
    assert {state.value for state in TransactionState} == {"active", "committed", "aborted"}


def test_a_manager_needs_four_methods() -> None:
    assert TransactionManager.__abstractmethods__ == {"begin", "commit", "rollback", "status"}


def test_begin_never_gives_an_id_twice(lake: Lake) -> None:
    ids = {lake.json.begin() for _ in range(20)}
    assert len(ids) == 20
    assert all(str(uuid.UUID(one)) == one for one in ids)


def test_to_ask_for_the_status_changes_nothing(lake: Lake) -> None:
    transaction = lake.json.begin()
    assert [lake.json.status(transaction) for _ in range(3)] == ["active"] * 3


def test_the_transaction_of_a_call_is_read_from_anywhere_inside_it() -> None:
    assert transaction_id() is None
    with entered(CallContext(transaction_id="outer")):
        assert transaction_id() == "outer"
        with entered(CallContext()):
            assert transaction_id() is None
        assert transaction_id() == "outer"
    assert transaction_id() is None


@pytest.mark.journal_gap("new rows have ids of the journal's own until they are flushed")
def test_tables_take_no_options_at_all(lake: Lake) -> None:
    ctx = CallContext()
    rows = events(10)
    assert lake.events.insert(ctx, rows.to_reader(), None).affected_rows == 1
    assert lake.events.update(ctx, [5], rows.to_reader(), None).affected_rows == 1
    with_ids = rows.append_column("rowid", pa.array([5]))
    assert lake.events.update_batches(ctx, with_ids.to_reader()).affected_rows == 1
    assert lake.events.delete(ctx, [5]).affected_rows == 1
    assert lake.events.delete_batches(ctx, pa.table({"rowid": [4]}).to_reader(), DMLOptions()).affected_rows == 1


def test_tables_called_in_process_keep_to_the_same_rules(lake: Lake) -> None:
    ctx = CallContext()
    with pytest.raises(InvalidArgument, match="rowid must not be null"):
        lake.events.delete(ctx, [1, None])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="returning_columns has 'x', which is not in the table"):
        lake.events.delete(ctx, [1], DMLOptions(True, ("x",)))
    with pytest.raises(InvalidArgument, match=r"row_ids count \(2\) does not match input rows \(1\)"):
        lake.events.update(ctx, [1, 2], events(10).to_reader())
    assert lake.names() == {number: f"old{number}" for number in range(5)}
    back = lake.events.insert(ctx, EVENTS.empty_table().to_reader(), DMLOptions(True, ("id", "rowid"))).returning_data
    assert back is not None
    assert back.schema.names == ["id", "rowid"]


def test_errors_are_statuses_and_no_bodies(lake: Lake) -> None:
    with refused("NOT_FOUND", "table 'analytics.nothing' not found"):
        lake.json.put(command("insert", "analytics.nothing"), EVENTS, [])


def test_a_schema_mismatch_has_its_details(lake: Lake) -> None:
    with refused("INVALID_ARGUMENT", "schema mismatch: column 'score' is double, input has string"):
        lake.json.insert("analytics.events", events(1).set_column(2, "score", pa.array(["x"])))


def test_a_transaction_that_is_not_active(lake: Lake) -> None:
    transaction = lake.json.begin()
    lake.json.rollback(transaction)
    with refused("FAILED_PRECONDITION", f"transaction '{transaction}' is not active (state: aborted)"):
        lake.json.inside(transaction).insert("analytics.events", events(10))


@pytest.mark.parametrize(
    ("operation", "message"),
    [("insert", "INSERT operations"), ("update", "UPDATE (no rowid)"), ("delete", "DELETE (no rowid)")],
)
def test_what_a_table_cannot_do_is_told(operation: str, message: str) -> None:
    catalog = CatalogBuilder("lake").schema("analytics").table("events", events(1)).build()
    with serving(catalog) as server:
        client = JsonClient(Connection(server.location))
        with refused("FAILED_PRECONDITION", f"table 'events' does not support {message}"):
            if operation == "delete":
                client.delete("analytics.events", [1])
            else:
                client.put(command(operation, "analytics.events", row_ids=[1]), EVENTS, events(1).to_batches())
        client.connection.close()


def test_the_schema_of_transactions_takes_no_rows(lake: Lake) -> None:
    with refused("FAILED_PRECONDITION", "table 'transactions' does not support DELETE (no rowid)"):
        lake.json.delete("tx.transactions", [1])
