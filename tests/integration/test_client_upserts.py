"""Changes by key over the wire: by the Python client, by the JSON contract, and by DuckDB's functions of tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest
from tests.contract.clients import JsonClient, batches_of
from tests.support.duckdb_client import AirportError, DuckDBClient
from tests.support.flight_rpc import Connection

from sparkport.app import Server
from sparkport.auth import RuleAuthorizer
from sparkport.client import Client, KeyedResult, connect
from sparkport.errors import AlreadyExists, FailedPrecondition, InvalidArgument, PermissionDenied
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

USERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("level", pa.int32(), metadata={"default": "7"}),
    ]
)
ANN, BOB = {"id": 1, "name": "ann", "level": 1}, {"id": 2, "name": "bob", "level": 2}


@pytest.fixture
def catalog() -> MemoryCatalog:
    catalog = MemoryCatalog("lake")
    rows = pa.Table.from_pylist([ANN, BOB], USERS)
    catalog.create_table("public.users", USERS, rows=rows, primary_key=["id"])
    catalog.create_table("public.plain", USERS, rows=rows)
    return catalog


@pytest.fixture
def server(catalog: MemoryCatalog) -> Iterator[Server]:
    with serving(catalog) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.location) as client:
        yield client


def users(client: Client, table: str = "public.users") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.scan(table).read_all().sort_by("id").to_pylist()
    return rows


def test_the_client_is_told_how_many_rows_were_inserted_and_updated(client: Client) -> None:
    done = client.upsert("public.users", [{"id": 2, "name": "BOB"}, {"id": 3, "name": "cid"}])
    assert done == KeyedResult(2, inserted=1, updated=1, deleted=0, untouched=0)
    assert users(client) == [ANN, {"id": 2, "name": "BOB", "level": 2}, {"id": 3, "name": "cid", "level": 7}]
    done = client.insert_missing("public.users", [{"id": 3}, {"id": 4}], key=["id"])
    assert done == KeyedResult(1, inserted=1, updated=0, deleted=0, untouched=1)
    done = client.delete_matching("public.users", [{"name": "cid"}, {"name": "BOB"}, {"name": "none"}], key=["name"])
    assert done == KeyedResult(2, inserted=0, updated=0, deleted=2, untouched=1)
    assert [row["id"] for row in users(client)] == [1, 4]


def test_the_client_is_told_what_became_of_each_row(client: Client) -> None:
    rows = pa.table({"id": range(5000), "name": ["x"] * 5000})
    told = client.upsert("public.users", rows, returning=True).rows
    assert told is not None
    assert told.column("id").to_pylist() == list(range(5000))
    assert told.column("merge_action").to_pylist() == ["INSERT", "UPDATE", "UPDATE", *["INSERT"] * 4997]


def test_an_enum_comes_back_as_its_values(catalog: MemoryCatalog, client: Client) -> None:
    moods = pa.table({"id": [1, 2], "mood": pa.array(["sad", "ok"]).dictionary_encode()})
    catalog.create_table("public.moods", moods.schema)
    told = client.upsert("public.moods", moods, key=["id"], returning=True).rows
    assert told is not None
    assert (told["mood"].type, told["mood"].to_pylist()) == (pa.string(), ["sad", "ok"])


def test_a_transaction_sees_its_own_upserts_and_commits_them_together(client: Client) -> None:
    with client.transaction() as tx:
        assert tx.upsert("public.users", [{"id": 3, "name": "cid"}]).inserted == 1
        assert tx.upsert("public.users", [{"id": 3, "name": "CID"}]).updated == 1
        assert tx.insert_missing("public.users", [{"id": 3, "name": "no"}]).untouched == 1
        assert tx.delete_matching("public.users", [{"id": 1}]).deleted == 1
        assert users(client) == [ANN, BOB]
    assert users(client) == [BOB, {"id": 3, "name": "CID", "level": 7}]


def test_an_upsert_that_fails_ends_its_transaction(client: Client) -> None:
    tx = client.transaction()
    tx.insert("public.plain", [{"id": 9, "name": "gus"}])
    with pytest.raises(InvalidArgument, match="more than one row with the key"):
        tx.upsert("public.users", [{"id": 3}, {"id": 3}])
    with pytest.raises(FailedPrecondition):
        tx.commit()
    assert users(client) == users(client, "public.plain") == [ANN, BOB]


def test_a_key_must_be_named_where_the_table_has_none(client: Client) -> None:
    with pytest.raises(FailedPrecondition, match="has no primary key"):
        client.upsert("public.plain", [{"id": 3}])
    with pytest.raises(InvalidArgument, match="a list of names"):
        client.upsert("public.plain", [{"id": 3}], key="id")
    assert client.upsert("public.plain", [{"id": 3}], key=["id"]).count == 1


def test_another_key_of_the_table_still_holds(catalog: MemoryCatalog, client: Client) -> None:
    catalog.create_table("public.mail", USERS, primary_key=["id"], unique=[["name"]])
    client.upsert("public.mail", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    with pytest.raises(AlreadyExists, match=r"violates UNIQUE \(name\)"):
        client.upsert("public.mail", [{"id": 3, "name": "a"}])
    assert client.upsert("public.mail", [{"id": 2, "name": "c"}]).updated == 1


# The JSON contract


@pytest.fixture
def json_client(server: Server) -> Iterator[JsonClient]:
    connection = Connection(server.location)
    try:
        yield JsonClient(connection)
    finally:
        connection.close()


def put(json_client: JsonClient, operation: str, rows: pa.Table, **more: Any) -> dict[str, Any]:
    command = {"operation": operation, "schema_name": "public", "table_name": "users", **more}
    return json_client.put(json.dumps(command).encode(), rows.schema, batches_of(rows))


def test_the_json_contract_upserts(json_client: JsonClient, client: Client) -> None:
    rows = pa.table({"id": [2, 3], "name": ["BOB", "cid"]})
    assert put(json_client, "upsert", rows) == {
        "status": "success",
        "affected_rows": 2,
        "inserted": 1,
        "updated": 1,
        "deleted": 0,
        "untouched": 0,
        "returning_data": None,
    }
    answer = put(json_client, "insert_missing", rows, key=["id"], returning=True)
    assert (answer["affected_rows"], answer["untouched"]) == (0, 2)
    with pa.ipc.open_stream(answer["returning_data"]) as reader:
        assert reader.read_all().to_pylist() == [
            {"id": 2, "name": "BOB", "merge_action": "NOTHING"},
            {"id": 3, "name": "cid", "merge_action": "NOTHING"},
        ]
    assert put(json_client, "delete_matching", pa.table({"id": [1, 9]}))["deleted"] == 1
    assert [row["id"] for row in users(client)] == [2, 3]


def test_the_json_contract_upserts_in_a_transaction(json_client: JsonClient, client: Client) -> None:
    transaction = json_client.begin(auto_commit=False)
    inside = json_client.inside(transaction)
    assert put(inside, "upsert", pa.table({"id": [3], "name": ["cid"]}))["inserted"] == 1
    assert put(inside, "upsert", pa.table({"id": [3], "name": ["CID"]}))["updated"] == 1
    assert len(users(client)) == 2
    json_client.commit(transaction)
    assert users(client)[-1] == {"id": 3, "name": "CID", "level": 7}


def test_a_statement_that_is_sent_again_is_not_done_twice(json_client: JsonClient, client: Client) -> None:
    once = json_client.with_header("x-statement-id", "s-1")
    first = put(once, "upsert", pa.table({"id": [2, 3]}))
    client.delete_matching("public.users", [{"id": 3}])
    assert put(once, "upsert", pa.table({"id": [2, 3]})) == first
    assert users(client) == [ANN, BOB]
    with pytest.raises(AirportError, match="cannot be told again"):
        put(once, "upsert", pa.table({"id": [2, 3]}), returning=True)
    assert put(once, "insert_missing", pa.table({"id": [3]}))["inserted"] == 1


def test_the_json_contract_names_what_it_does_not_take(json_client: JsonClient) -> None:
    for more in ({"row_ids": [1]}, {"returning_columns": ["id"]}):
        with pytest.raises(AirportError, match="takes neither row_ids nor returning_columns"):
            put(json_client, "upsert", pa.table({"id": [2]}), **more)
    with pytest.raises(AirportError, match="must be insert, update, upsert, "):
        put(json_client, "merge", pa.table({"id": [2]}))


# From DuckDB


def test_duckdb_calls_functions_that_take_the_rows(server: Server) -> None:
    with DuckDBClient(server.location) as duckdb:
        lake = duckdb.attach("lake")
        rows = pa.table({"id": pa.array(range(3000), pa.int32()), "name": ["x"] * 3000})
        told = lake.call_in_out("rows.upsert", rows, "public.users")
        assert told.column_names == ["id", "name", "merge_action"]
        assert told.column("merge_action").value_counts().to_pylist() == [
            {"values": "INSERT", "counts": 2998},
            {"values": "UPDATE", "counts": 2},
        ]
        told = lake.call_in_out("rows.delete_matching_by", rows.select(["name"]).slice(0, 1), "public.plain", ["name"])
        assert told.to_pylist() == [{"name": "x", "merge_action": "NOTHING"}]
        with pytest.raises(AirportError, match="the key is NULL"):
            lake.call_in_out("rows.delete_matching_by", rows.select(["id"]), "public.users", None)
        with pytest.raises(AirportError, match=r"write 'schema\.table'") as caught:
            lake.call_in_out("rows.upsert", rows, "lake.public.users")
        assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("missing", ["read", "insert", "update"])
def test_an_upsert_needs_the_rights_to_read_insert_and_update(catalog: MemoryCatalog, missing: str) -> None:
    given = [right for right in ("read", "insert", "update") if right != missing]
    rules = RuleAuthorizer.from_table({"rules": [{"operations": given, "resources": "lake", "subjects": "*"}]})
    with (
        serving(catalog, authorizer=rules) as server,
        connect(server.location) as client,
        pytest.raises(PermissionDenied, match=missing),
    ):
        client.upsert("public.users", [{"id": 3}])
