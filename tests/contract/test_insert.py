"""INSERT: the operation, its answer and its table of errors."""

from __future__ import annotations

import json

import msgpack
import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.contract.clients import JsonClient, command, refused
from tests.contract.conftest import EVENTS, Lake, events
from tests.support.flight_rpc import Connection, schema_message
from tests.support.lockstep import MessageExchange

from sparkport.catalog.builder import CatalogBuilder
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

OPERATIONS = "insert, update, upsert, insert_missing or delete_matching"


@pytest.mark.tier("fast")
def test_rows_are_inserted_and_counted(lake: Lake) -> None:
    answer = lake.json.insert("analytics.events", events(10, 11, 12))
    assert (answer.status, answer.affected_rows, answer.rows) == ("success", 3, None)
    assert [row["id"] for row in lake.rows().values()] == [0, 1, 2, 3, 4, 10, 11, 12]


def test_the_answer_has_exactly_the_documented_keys(lake: Lake) -> None:
    answer = lake.json.put(command("insert", "analytics.events"), EVENTS, events(10).to_batches())
    assert answer == {"status": "success", "affected_rows": 1, "returning_data": None}


def test_returning_false_is_the_default_and_may_be_said(lake: Lake) -> None:
    assert lake.json.insert("analytics.events", events(10), returning=False).rows is None


@pytest.mark.tier("fast")
def test_returning_gives_the_inserted_rows_back(lake: Lake) -> None:
    answer = lake.json.insert("analytics.events", events(10, 11), returning=True)
    assert answer.affected_rows == 2
    assert answer.rows is not None
    assert answer.rows.to_pylist() == events(10, 11).to_pylist()


def test_any_flight_client_can_insert(lake: Lake) -> None:
    with pf.connect(lake.server.location) as client:
        descriptor = pf.FlightDescriptor.for_command(command("insert", "analytics.events"))
        writer, reader = client.do_put(descriptor, EVENTS)
        with writer:
            writer.write_table(events(10, 11))
            writer.done_writing()
            assert msgpack.unpackb(reader.read().to_pybytes())["affected_rows"] == 2
    assert len(lake.rows()) == 7


def test_many_batches_are_one_insert(lake: Lake) -> None:
    batches = [events(number).to_batches()[0] for number in range(10, 20)]
    answer = lake.json.put(command("insert", "analytics.events"), EVENTS, batches)
    assert answer["affected_rows"] == 10
    assert len(lake.rows()) == 15


def test_an_insert_of_nothing_is_a_success(lake: Lake) -> None:
    assert lake.json.put(command("insert", "analytics.events"), EVENTS, [])["affected_rows"] == 0


def test_returning_of_nothing_still_has_the_columns(lake: Lake) -> None:
    answer = lake.json.insert("analytics.events", EVENTS.empty_table(), returning=True)
    assert answer.rows is not None
    assert answer.rows.schema.names == EVENTS.names
    assert answer.rows.num_rows == 0


def test_schema_not_found(lake: Lake) -> None:
    with refused("NOT_FOUND", "schema 'nothing' not found"):
        lake.json.insert("nothing.events", events(10))


def test_table_not_found(lake: Lake) -> None:
    with refused("NOT_FOUND", "table 'analytics.nothing' not found"):
        lake.json.insert("analytics.nothing", events(10))


def test_table_read_only() -> None:
    catalog = CatalogBuilder("lake").schema("analytics").table("events", events(1)).build()
    with serving(catalog) as server:
        connection = Connection(server.location)
        with refused("FAILED_PRECONDITION", "table 'events' does not support INSERT operations"):
            JsonClient(connection).insert("analytics.events", events(10))
        connection.close()


def test_schema_mismatch(lake: Lake) -> None:
    with refused("INVALID_ARGUMENT", "column mismatch: table has 5 columns, input has 4"):
        lake.json.insert("analytics.events", events(10).drop_columns(["tags"]))
    assert len(lake.rows()) == 5


def test_names_that_differ_are_each_told(lake: Lake) -> None:
    rows = events(10).rename_columns(["id", "nom", "score", "kind", "tags"])
    message = "schema mismatch: column 'name' is missing; column 'nom' is not in the table"
    with refused("INVALID_ARGUMENT", message):
        lake.json.insert("analytics.events", rows)


def test_types_that_differ_are_each_told(lake: Lake) -> None:
    rows = events(10).set_column(1, "name", pa.array([1])).set_column(3, "kind", pa.array([1], pa.int64()))
    message = "schema mismatch: column 'name' is string, input has int64; column 'kind' is int32, input has int64"
    with refused("INVALID_ARGUMENT", message):
        lake.json.insert("analytics.events", rows)


def test_nullable_columns_take_nulls(lake: Lake) -> None:
    row = {"id": 10, "name": None, "score": None, "kind": None, "tags": None}
    lake.json.insert("analytics.events", pa.Table.from_pylist([row], EVENTS))
    assert lake.rows()[5] == row


def test_null_into_a_not_null_column_names_the_column(lake: Lake) -> None:
    loose = pa.schema([column.with_nullable(True) for column in EVENTS])
    rows = pa.Table.from_pylist([{"id": None, "name": "x"}], loose)
    with refused("INVALID_ARGUMENT", "NOT NULL constraint failed: events.id"):
        lake.json.insert("analytics.events", rows)
    assert len(lake.rows()) == 5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "descriptor is not valid JSON"),
        (b"[]", "descriptor must be a JSON object"),
        (b"", "descriptor lacks the key 'operation'"),
        (b'{"operation": "insert"}', "descriptor lacks the key 'schema_name'"),
        (b'{"operation": "insert", "schema_name": "analytics"}', "descriptor lacks the key 'table_name'"),
        (b'{"operation": 1}', "descriptor key 'operation' must be text"),
        (b'{"operation": "merge"}', f"descriptor key 'operation' must be {OPERATIONS}, not 'merge'"),
        (b'{"operation": "delete"}', f"descriptor key 'operation' must be {OPERATIONS}, not 'delete'"),
        (b'{"operation": "upsert"}', "descriptor lacks the key 'schema_name'"),
    ],
)
def test_a_bad_command_names_the_key(lake: Lake, body: bytes, message: str) -> None:
    with refused("INVALID_ARGUMENT", message):
        lake.json.put(body, EVENTS, [])


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("schema_name", 1, "text"),
        ("table_name", ["events"], "text"),
        ("returning", "yes", "a boolean"),
        ("returning", 1, "a boolean"),
        ("returning_columns", "id", "a list of texts"),
        ("returning_columns", [1], "text"),
        ("catalog_name", 5, "text"),
    ],
)
def test_a_key_of_the_wrong_type_is_named(lake: Lake, key: str, value: object, expected: str) -> None:
    body = {"operation": "insert", "schema_name": "analytics", "table_name": "events", key: value}
    with refused("INVALID_ARGUMENT", f"descriptor key '{key}' must be {expected}"):
        lake.json.put(json.dumps(body).encode(), EVENTS, [])


def test_a_path_descriptor_is_refused(lake: Lake) -> None:

    descriptor = pf.FlightDescriptor.for_path("lake", "analytics", "table", "events").serialize()
    with MessageExchange(lake.connection, "DoPut", []) as call:
        call.send(schema_message(EVENTS, descriptor))
        call.done_writing()
        with refused("INVALID_ARGUMENT", "DoPut needs a CMD descriptor with a JSON command"):
            call.receive()
