"""DELETE: the action, its answer and its table of errors; and the header that all operations share."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.contract.clients import JsonClient, refused
from tests.contract.conftest import Lake, events
from tests.support.flight_rpc import Connection

from sparkport.catalog.builder import CatalogBuilder
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

TARGET = {"schema_name": "analytics", "table_name": "events"}


def test_rows_are_deleted_and_counted(lake: Lake) -> None:
    assert lake.json.action("delete", {**TARGET, "row_ids": [1, 3]}) == {"status": "success", "affected_rows": 2}
    assert list(lake.rows()) == [0, 2, 4]


def test_any_flight_client_can_delete(lake: Lake) -> None:
    with pf.connect(lake.server.location) as client:
        (result,) = client.do_action(("delete", json.dumps({**TARGET, "row_ids": [0]}).encode()))
        assert json.loads(result.body.to_pybytes()) == {"status": "success", "affected_rows": 1}


@pytest.mark.tier("fast")
def test_returning_gives_the_rows_as_they_were_in_the_order_of_the_ids(lake: Lake) -> None:
    answer = lake.json.delete("analytics.events", [3, 1], returning=True)
    assert answer.affected_rows == 2
    assert answer.rows is not None
    assert answer.rows.select(["name", "rowid"]).to_pylist() == [
        {"name": "old3", "rowid": 3},
        {"name": "old1", "rowid": 1},
    ]
    assert answer.rows.column_names == ["id", "name", "score", "kind", "tags", "rowid"]


@pytest.mark.parametrize("row_ids", [[], None])
def test_empty_row_ids(lake: Lake, row_ids: Any) -> None:
    with refused("INVALID_ARGUMENT", "row_ids cannot be empty for DELETE"):
        lake.json.delete("analytics.events", row_ids)


def test_absent_row_ids(lake: Lake) -> None:
    with refused("INVALID_ARGUMENT", "row_ids cannot be empty for DELETE"):
        lake.json.action("delete", TARGET)


def test_no_rowid_support() -> None:
    catalog = CatalogBuilder("lake").schema("analytics").table("events", events(1)).build()
    with serving(catalog) as server:
        connection = Connection(server.location)
        with refused("FAILED_PRECONDITION", "table 'events' does not support DELETE (no rowid)"):
            JsonClient(connection).delete("analytics.events", [1])
        connection.close()


@pytest.mark.tier("fast")
@pytest.mark.parametrize("missing", [99, -7, 2**63 - 1])
def test_an_id_that_is_not_there_is_told_and_nothing_is_deleted(lake: Lake, missing: int) -> None:
    with refused("NOT_FOUND", f"row_id {missing} not found in table"):
        lake.json.delete("analytics.events", [1, missing])
    assert list(lake.rows()) == [0, 1, 2, 3, 4]


def test_a_row_deleted_before_is_not_found(lake: Lake) -> None:
    lake.json.delete("analytics.events", [1])
    with refused("NOT_FOUND", "row_id 1 not found in table"):
        lake.json.delete("analytics.events", [1])


def test_schema_and_table_not_found(lake: Lake) -> None:
    with refused("NOT_FOUND", "schema 'nothing' not found"):
        lake.json.delete("nothing.events", [1])
    with refused("NOT_FOUND", "table 'analytics.nothing' not found"):
        lake.json.delete("analytics.nothing", [1])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "body is not valid JSON"),
        (b"{}", "body lacks the key 'schema_name'"),
        (b"", "body lacks the key 'schema_name'"),
        (b'{"schema_name": "analytics"}', "body lacks the key 'table_name'"),
        (b'{"schema_name": null, "table_name": "events"}', "body lacks the key 'schema_name'"),
        (b'{"schema_name": 5, "table_name": "events"}', "body key 'schema_name' must be text"),
        (
            b'{"schema_name": "analytics", "table_name": "events", "row_ids": [0.5]}',
            "body key 'row_ids' must be a list of integers",
        ),
        (
            b'{"schema_name": "analytics", "table_name": "events", "row_ids": [9223372036854775808]}',
            "row_ids has 9223372036854775808, which is out of range",
        ),
    ],
)
def test_a_bad_body_names_the_key(lake: Lake, body: bytes, message: str) -> None:
    with refused("INVALID_ARGUMENT", message):
        lake.json.action("delete", body)


def test_a_msgpack_body_is_refused(lake: Lake) -> None:
    with refused("INVALID_ARGUMENT", "action 'delete' takes no msgpack body"):
        lake.json.action("delete", b"\x80")


def test_an_id_given_twice_counts_once_and_comes_back_twice(lake: Lake) -> None:
    assert lake.json.delete("analytics.events", [1, 2, 1]).affected_rows == 2
    answer = lake.json.delete("analytics.events", [3, 3], returning=True, returning_columns=["rowid"])
    assert answer.affected_rows == 1
    assert answer.rows is not None
    assert answer.rows.to_pylist() == [{"rowid": 3}, {"rowid": 3}]


def test_all_operations_take_the_transaction_header_of_duckdb(lake: Lake) -> None:
    client = lake.json.inside(lake.json.begin(auto_commit=False), header="airport-transaction-id")
    client.insert("analytics.events", events(10))
    client.update("analytics.events", [1], events(11))
    client.delete("analytics.events", [2])
    assert lake.names() == {number: f"old{number}" for number in range(5)}
    client.commit(client.headers[0][1])
    assert lake.names() == {0: "old0", 1: "new11", 3: "old3", 4: "old4", 5: "new10"}


def test_ids_as_numpy_would_print_them_are_read(lake: Lake) -> None:
    body = json.dumps({**TARGET, "row_ids": pa.array([4, 0]).to_pylist()}).encode()
    assert lake.json.action("delete", body)["affected_rows"] == 2
