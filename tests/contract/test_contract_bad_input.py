"""What clients should not send, each with the answer that docs/row-changes.md gives for it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.contract.clients import change, command, open_exchange, refused
from tests.contract.conftest import EVENTS, Lake, events
from tests.support.flight_rpc import AirportError, batch_messages, encode, schema_message
from tests.support.lockstep import MessageExchange

pytestmark = pytest.mark.tier("fast")

TABLE = "analytics.events"


def ids(*values: Any, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"rowid": pa.array(values, kind or pa.int64())})


def updates(*values: Any, kind: pa.DataType | None = None) -> pa.Table:
    names = [f"n{index}" for index in range(len(values))]
    return pa.table({"name": names, "rowid": pa.array(values, kind or pa.int64())})


MAKERS = {"update": updates, "delete": ids}


@pytest.mark.parametrize("operation", MAKERS)
@pytest.mark.parametrize("returning", [False, True])
def test_a_null_row_id(lake: Lake, operation: str, returning: bool) -> None:
    with refused("INVALID_ARGUMENT", "rowid must not be null"):
        change(lake.connection, operation, TABLE, MAKERS[operation](1, None), returning=returning)
    assert lake.names()[1] == "old1"


@pytest.mark.parametrize("operation", MAKERS)
def test_a_row_id_beyond_int64(lake: Lake, operation: str) -> None:
    with refused("INVALID_ARGUMENT", f"rowid {2**64 - 1} is out of range"):
        change(lake.connection, operation, TABLE, MAKERS[operation](1, 2**64 - 1, kind=pa.uint64()))
    assert lake.names()[1] == "old1"


@pytest.mark.parametrize("operation", MAKERS)
@pytest.mark.parametrize("row_id", [-1, -(2**63), 2**63 - 1, 5])
def test_negative_huge_and_unknown_row_ids_are_rows_that_are_not_there(lake: Lake, operation: str, row_id: int) -> None:
    assert change(lake.connection, operation, TABLE, MAKERS[operation](row_id))[0] == 0
    assert len(lake.rows()) == 5


def test_an_id_repeated_in_a_delete_counts_once(lake: Lake) -> None:
    assert change(lake.connection, "delete", TABLE, ids(1, 2, 1))[0] == 2
    count, back = change(lake.connection, "delete", TABLE, ids(3, 3), returning=True)
    assert count == 1
    assert back is not None
    assert back.column("name").to_pylist() == ["old3", "old3"]


class Batches(list[pa.RecordBatch]):
    def __init__(self, *tables: pa.Table) -> None:
        super().__init__(batch for table in tables for batch in table.to_batches())
        self.schema = tables[0].schema


def test_an_id_repeated_in_later_batches_of_a_delete_counts_once(lake: Lake) -> None:
    assert change(lake.connection, "delete", TABLE, Batches(ids(1), ids(2), ids(1)))[0] == 2


def test_delete_returning_of_an_id_that_an_earlier_batch_deleted_is_aborted(lake: Lake) -> None:
    with refused("ABORTED", "table 'events': row 1 is gone; run the statement again"):
        change(lake.connection, "delete", TABLE, Batches(ids(1), ids(1)), returning=True)
    assert len(lake.rows()) == 5


def test_of_an_id_repeated_in_an_update_the_last_value_wins_and_counts_once(lake: Lake) -> None:
    assert change(lake.connection, "update", TABLE, updates(1, 2, 1))[0] == 2
    assert (lake.names()[1], lake.names()[2]) == ("n2", "n1")


def test_of_an_id_repeated_in_an_update_the_last_value_comes_back_each_time(lake: Lake) -> None:
    count, back = change(lake.connection, "update", TABLE, updates(1, 2, 1), returning=True)
    assert count == 2
    assert (lake.names()[1], lake.names()[2]) == ("n2", "n1")
    assert back is not None
    assert back.column("name").to_pylist() == ["n2", "n1", "n2"]


def test_of_an_id_repeated_over_batches_of_an_update_the_last_value_wins(lake: Lake) -> None:
    second = updates(1).set_column(0, "name", pa.array(["later"]))
    assert change(lake.connection, "update", TABLE, Batches(updates(1), second))[0] == 1
    assert lake.names()[1] == "later"


def test_a_dictionary_encoded_column_is_its_values(lake: Lake) -> None:
    rows = events(10, 11)
    encoded = rows.set_column(1, "name", rows.column("name").dictionary_encode())
    assert change(lake.connection, "insert", TABLE, encoded.combine_chunks())[0] == 2
    assert lake.names()[6] == "new11"


def test_a_dictionary_encoded_row_id_is_refused(lake: Lake) -> None:
    rows = pa.table({"rowid": pa.array([1]).dictionary_encode()})
    with refused("INVALID_ARGUMENT", "rowid must be integer type"):
        change(lake.connection, "delete", TABLE, rows)


def test_an_extension_typed_column_is_its_storage_where_the_table_has_that(lake: Lake) -> None:
    rows = events(10)
    json_type = pa.json_(pa.string())
    wrapped = rows.set_column(
        1, pa.field("name", json_type), pa.chunked_array([json_type.wrap_array(pa.array(["{}"]))])
    )
    lake.json.insert(TABLE, wrapped)
    assert lake.names()[5] == "{}"


def test_a_uuid_is_text_where_the_table_has_text_and_the_other_way_round(lake: Lake) -> None:
    table = lake.create_table("analytics.keys", pa.schema([("a", pa.string()), ("b", pa.uuid())]))
    text = "550e8400-e29b-41d4-a716-446655440000"
    key = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes.fromhex(text.replace("-", ""))], pa.binary(16)))
    lake.json.insert("analytics.keys", pa.table({"a": key, "b": pa.array([text])}))
    (row,) = lake.rows(table).values()
    assert (row["a"], str(row["b"])) == (text, text)
    with refused("INVALID_ARGUMENT", "column 'b': not a UUID"):
        lake.json.insert("analytics.keys", pa.table({"a": ["x"], "b": ["nonsense"]}))


def test_an_extension_type_of_another_name_is_a_mismatch(lake: Lake) -> None:
    lake.create_table("analytics.keys", pa.schema([("b", pa.uuid())]))
    other = pa.opaque(pa.binary(16), "thing", "somebody")
    with pytest.raises(AirportError, match=r"INVALID_ARGUMENT: schema mismatch: column 'b' is extension<arrow\.uuid>"):
        lake.json.insert("analytics.keys", pa.schema([("b", other)]).empty_table())


@pytest.mark.parametrize("returning", [False, True])
@pytest.mark.parametrize(
    ("operation", "schema"), [("insert", EVENTS), ("update", updates().schema), ("delete", ids().schema)]
)
def test_zero_batches_and_batches_of_zero_rows_change_nothing(
    lake: Lake, operation: str, schema: pa.Schema, returning: bool
) -> None:
    empty = pa.RecordBatch.from_pylist([], schema)
    with open_exchange(lake.connection, operation, TABLE, schema, returning=returning) as exchange:
        for _ in range(2):
            exchange.write(empty)
            if returning:
                assert exchange.read().num_rows == 0
        exchange.done_writing()
        assert exchange.read_final_metadata() == b"\x81\xadtotal_changed\x00"
    assert change(lake.connection, operation, TABLE, schema.empty_table())[0] == 0
    assert len(lake.rows()) == 5


def test_an_update_of_no_columns_counts_the_rows_it_names(lake: Lake) -> None:
    count, _ = change(lake.connection, "update", TABLE, ids(1, 99))
    assert count == 1
    assert lake.names()[1] == "old1"


def put_messages(lake: Lake, *messages: bytes) -> MessageExchange:
    call = MessageExchange(lake.connection, "DoPut", [])
    for message in messages:
        call.send(message)
    call.done_writing()
    return call


def descriptor(table: str = TABLE) -> bytes:
    data: bytes = pf.FlightDescriptor.for_command(command("insert", table)).serialize()
    return data


def test_a_second_schema_in_mid_stream(lake: Lake) -> None:
    begin = schema_message(EVENTS, descriptor())
    again = encode("FlightData", header=_header(pa.schema([("a", pa.int64())])))
    with (
        put_messages(lake, begin, *batch_messages(events(10).to_batches()[0]), again) as call,
        refused("INVALID_ARGUMENT", "a second schema in the middle of a stream"),
    ):
        call.receive()
    assert len(lake.rows()) == 5


def _header(schema: pa.Schema) -> bytes:
    return pa.ipc.read_message(schema.serialize()).metadata.to_pybytes()  # type: ignore[no-any-return]


def test_batches_of_another_shape_than_the_schema(lake: Lake) -> None:
    other = batch_messages(pa.record_batch({"a": [1]}))
    with (
        put_messages(lake, schema_message(EVENTS, descriptor()), *other) as call,
        pytest.raises(AirportError, match="INVALID_ARGUMENT: not a valid record batch"),
    ):
        call.receive()
    assert len(lake.rows()) == 5


def test_a_second_descriptor_in_mid_stream(lake: Lake) -> None:
    (message,) = batch_messages(events(10).to_batches()[0])
    other = message + encode("FlightData", descriptor=descriptor("analytics.other"))
    with (
        put_messages(lake, schema_message(EVENTS, descriptor()), other) as call,
        refused("INVALID_ARGUMENT", "another flight descriptor in the middle of a stream"),
    ):
        call.receive()
    assert len(lake.rows()) == 5


def test_the_same_descriptor_again_does_no_harm(lake: Lake) -> None:
    (message,) = batch_messages(events(10).to_batches()[0])
    same = message + encode("FlightData", descriptor=descriptor())
    with put_messages(lake, schema_message(EVENTS, descriptor()), same) as call:
        assert call.receive() is not None
    assert len(lake.rows()) == 6


def test_a_stream_without_a_schema(lake: Lake) -> None:
    with (
        put_messages(lake, encode("FlightData", descriptor=descriptor())) as call,
        refused("INVALID_ARGUMENT", "the stream ended before its schema"),
    ):
        call.receive()


def test_a_stream_without_a_descriptor(lake: Lake) -> None:
    with (
        put_messages(lake, encode("FlightData", header=_header(EVENTS))) as call,
        refused("INVALID_ARGUMENT", "the first message of a stream must carry a flight descriptor"),
    ):
        call.receive()


@pytest.mark.journal_gap("new rows have ids of the journal's own until they are flushed")
def test_row_ids_of_another_table_are_just_numbers(lake: Lake) -> None:
    lake.json.insert("analytics.other", pa.table({"a": [7], "b": ["x"]}))
    assert change(lake.connection, "delete", "analytics.other", ids(0, 1, 2))[0] == 1
    assert lake.rows("analytics.other") == {}
    assert len(lake.rows()) == 5
    with refused("NOT_FOUND", "row_id 4 not found in table"):
        lake.json.delete("analytics.other", [4])


def test_an_update_of_unknown_columns_names_each(lake: Lake) -> None:
    rows = pa.table({"nom": ["x"], "age": [1], "rowid": [1]})
    message = "schema mismatch: column 'nom' is not in the table; column 'age' is not in the table"
    with refused("INVALID_ARGUMENT", message):
        change(lake.connection, "update", TABLE, rows)


def test_an_exchange_without_operation_or_of_an_unknown_one(lake: Lake) -> None:
    path = pf.FlightDescriptor.for_path("lake", "analytics", "table", "events").serialize()
    for headers, code, message in (
        ([], "INVALID_ARGUMENT", "the header 'airport-operation' is missing"),
        ([("airport-operation", "merge")], "UNIMPLEMENTED", "exchange operation 'merge' is not implemented"),
    ):
        with MessageExchange(lake.connection, "DoExchange", headers) as call:
            call.send(schema_message(EVENTS, path))
            with refused(code, message):
                call.receive()


def test_an_exchange_on_a_table_that_is_not_there(lake: Lake) -> None:
    with refused("NOT_FOUND", "table 'analytics.nothing' not found"):
        change(lake.connection, "insert", "analytics.nothing", events(1))
    with refused("NOT_FOUND", "schema 'nothing' not found"):
        change(lake.connection, "insert", "nothing.events", events(1))
    with refused("NOT_FOUND", "catalog 'pond' not found; known catalogs: 'lake'"):
        change(lake.connection, "insert", TABLE, events(1), catalog="pond")
