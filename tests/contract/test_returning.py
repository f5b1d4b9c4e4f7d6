"""The options that a table gets, and what RETURNING gives back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.contract.clients import change, open_exchange, refused
from tests.contract.conftest import EVENTS, Lake, events
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

from sparkport.catalog.table import DMLOptions

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"id": pa.array([10, 11], pa.int64()), "name": ["a", "b"]})
CHANGES = pa.table({"name": ["x", "y"], "rowid": pa.array([3, 1], pa.int64())})
IDS = pa.table({"rowid": pa.array([3, 1], pa.int64())})


def test_options_are_a_value_and_default_to_nothing() -> None:
    assert DMLOptions() == DMLOptions(returning=False, returning_columns=())
    assert hash(DMLOptions(True, ("a",))) == hash(DMLOptions(True, ("a",)))


@pytest.mark.parametrize(
    ("ability", "operation", "rows", "columns"),
    [
        (Inserts, "insert", ROWS, ("id", "name")),
        (Updates, "update", CHANGES, ("name",)),
        (UpdatesBatches, "update", CHANGES, ("name",)),
        (Deletes, "delete", IDS, ()),
        (DeletesBatches, "delete", IDS, ()),
    ],
)
@pytest.mark.parametrize("returning", [False, True])
def test_the_options_that_duckdb_leads_to(
    ability: type[OwnTable], operation: str, rows: pa.Table, columns: tuple[str, ...], returning: bool
) -> None:
    with served(own_table([ability])) as own:
        count, back = change(own.connection, operation, "public.own", rows, returning=returning)
        assert count == 2
        assert own.calls[0].options == (DMLOptions(True, columns) if returning else DMLOptions())
        assert (back is None) is not returning


@pytest.mark.parametrize(
    ("call", "columns"),
    [
        (lambda own, **more: own.json.insert("public.own", ROWS, **more), ("id", "name")),
        (lambda own, **more: own.json.update("public.own", [3, 1], ROWS, **more), ("id", "name")),
        (lambda own, **more: own.json.delete("public.own", [3, 1], **more), ()),
    ],
)
def test_the_options_that_json_leads_to(call: Any, columns: tuple[str, ...]) -> None:
    with served(own_table([Inserts, Updates, Deletes])) as own:
        call(own)
        call(own, returning=False, returning_columns=["id"]) if columns else None
    with served(own_table([Inserts, Updates, Deletes])) as again:
        answer = call(again, returning=True)
        assert again.calls[0].options == DMLOptions(True, columns)
        assert answer.rows.num_rows == 2
    assert all(made.options == DMLOptions() for made in own.calls)


@pytest.mark.lakehouse_gap("the row ids of new rows are not known before they are committed")
@pytest.mark.journal_gap("new rows have ids of the journal's own until they are flushed")
def test_returning_columns_are_handed_on_and_answered(lake: Lake) -> None:
    answer = lake.json.insert("analytics.events", events(10), returning=True, returning_columns=["rowid", "NAME"])
    assert answer.rows is not None
    assert answer.rows.to_pylist() == [{"rowid": 5, "name": "new10"}]
    with served(own_table([Inserts])) as own:
        back = own.json.insert("public.own", ROWS, returning=True, returning_columns=["name"]).rows
        assert own.calls[0].options == DMLOptions(True, ("name",))
        assert back is not None
        assert back.to_pylist() == [{"name": "a"}, {"name": "b"}]


def test_an_unknown_returning_column_is_named_before_anything_happens(lake: Lake) -> None:
    with refused("INVALID_ARGUMENT", "returning_columns has 'nothing', which is not in the table"):
        lake.json.insert("analytics.events", events(10), returning=True, returning_columns=["nothing"])
    assert len(lake.rows()) == 5


@pytest.mark.lakehouse_gap("the row ids of new rows are not known before they are committed")
@pytest.mark.journal_gap("new rows have ids of the journal's own until they are flushed")
def test_an_insert_returns_the_tables_columns(lake: Lake) -> None:
    count, back = change(lake.connection, "insert", "analytics.events", events(10, 11), returning=True)
    assert count == 2
    assert back is not None
    assert back.drop_columns(["rowid"]).to_pylist() == events(10, 11).to_pylist()
    assert back.column("rowid").to_pylist() == [5, 6]


def test_a_delete_returns_the_rows_as_they_were(lake: Lake) -> None:
    count, back = change(lake.connection, "delete", "analytics.events", IDS, returning=True)
    assert count == 2
    assert back is not None
    assert back.select(["name", "rowid"]).to_pylist() == [{"name": "old3", "rowid": 3}, {"name": "old1", "rowid": 1}]


@pytest.mark.parametrize("order", [["name", "tags", "kind", "score", "id", "rowid"], ["rowid", "score", "name"]])
def test_an_update_returns_exactly_the_columns_and_order_that_were_sent(lake: Lake, order: list[str]) -> None:
    rows = events(33, 11).append_column("rowid", pa.array([3, 1])).select(order)
    count, back = change(lake.connection, "update", "analytics.events", rows, returning=True)
    assert count == 2
    assert back is not None
    assert back.schema.equals(rows.schema)
    assert back.to_pylist() == rows.to_pylist()


def test_an_update_returns_the_types_and_names_that_were_sent(lake: Lake) -> None:
    rows = pa.table(
        {
            "NAME": pa.array(["x"]).dictionary_encode(),
            "score": pa.array([1.5], pa.float32()),
            "rowid": pa.array([3], pa.int32()),
        }
    )
    count, back = change(lake.connection, "update", "analytics.events", rows, returning=True)
    assert count == 1
    assert back is not None
    assert back.schema.types == rows.schema.types
    assert back.to_pylist() == [{"NAME": "x", "score": 1.5, "rowid": 3}]
    assert lake.rows()[3]["score"] == 1.5


@pytest.mark.parametrize("operation", ["update", "delete"])
def test_rows_that_are_not_there_are_skipped_silently_from_duckdb(lake: Lake, operation: str) -> None:
    rows = pa.table({"name": ["x", "y", "z"], "rowid": pa.array([99, 1, -5], pa.int64())})
    count, _ = change(lake.connection, operation, "analytics.events", rows)
    assert count == 1
    assert lake.names().get(1) == ("y" if operation == "update" else None)


def test_a_skipped_row_of_an_update_is_echoed_and_not_counted(lake: Lake) -> None:
    rows = pa.table({"name": ["x", "y"], "rowid": pa.array([99, 1], pa.int64())})
    count, back = change(lake.connection, "update", "analytics.events", rows, returning=True)
    assert count == 1
    assert back is not None
    assert back.to_pylist() == rows.to_pylist()


def test_delete_returning_of_a_row_that_is_gone_is_aborted(lake: Lake) -> None:
    rows = pa.table({"rowid": pa.array([1, 99], pa.int64())})
    with refused("ABORTED", "table 'events': row 99 is gone; run the statement again"):
        change(lake.connection, "delete", "analytics.events", rows, returning=True)
    assert len(lake.rows()) == 5


def test_a_users_table_decides_what_a_missing_id_means() -> None:
    with served(own_table([Deletes])) as own:
        own.table.failure = KeyError(99)
        with pytest.raises(AirportError) as failure:
            own.json.delete("public.own", [99])
        assert failure.value.code.name == "INTERNAL"


@pytest.mark.parametrize("ability", [Updates, UpdatesBatches])
def test_the_server_puts_the_row_id_back_for_duckdb(ability: type[OwnTable]) -> None:
    with served(own_table([ability])) as own:
        _, back = change(own.connection, "update", "public.own", CHANGES, returning=True)
        assert back is not None
        assert back.to_pylist() == CHANGES.to_pylist()


def test_a_table_that_returns_too_many_rows_fails_the_statement() -> None:
    table = own_table([Inserts])
    table.extra_returned = 1
    with served(table, manager=True) as own:
        with pytest.raises(AirportError, match="INTERNAL: table 'own' returned 3 rows for 2"):
            change(own.connection, "insert", "public.own", ROWS, returning=True)
        assert len(own.table.rows) == 5


def test_returning_with_batches_of_no_rows_is_answered_in_step() -> None:
    empty = CHANGES.schema.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], CHANGES.schema)]
    with served(own_table([Updates])) as own:
        with open_exchange(own.connection, "update", "public.own", CHANGES.schema, returning=True) as exchange:
            exchange.write(empty[0])
            assert exchange.read().num_rows == 0
            exchange.write(CHANGES.to_batches()[0])
            assert exchange.read().num_rows == 2
            exchange.done_writing()
            exchange.read_final_metadata()
        assert [call.method for call in own.calls] == ["update"]


def test_returning_of_no_batches_counts_nothing(lake: Lake) -> None:
    for operation, schema in (("insert", EVENTS), ("update", CHANGES.schema), ("delete", IDS.schema)):
        with open_exchange(lake.connection, operation, "analytics.events", schema, returning=True) as exchange:
            exchange.done_writing()
            assert exchange.read_final_metadata() == b"\x81\xadtotal_changed\x00"


def test_wide_rows_come_back_in_one_batch_all_the_same(lake: Lake) -> None:
    rows = events(*range(10, 60)).set_column(1, "name", pa.array(["x" * 200_000] * 50))
    count, back = change(lake.connection, "insert", "analytics.events", rows, returning=True)
    assert count == 50
    assert back is not None
    assert back.column("name").num_chunks == 1
