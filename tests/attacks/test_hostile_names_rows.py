"""Rows of tables with odd names: what is written into one is read from it, and no other table sees any of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.contract.clients import JsonClient
from tests.support.duckdb_client import DuckDBClient
from tests.support.flight_rpc import Connection

from sparkport.app import Server
from sparkport.catalog.ddl import MutableCatalog
from sparkport.client import Client, connect
from sparkport.testing import serving

pytestmark = [pytest.mark.tier("fast"), pytest.mark.timeout(300)]

NAMES = [
    *("../../x", "a`b``", "'; DROP TABLE t; --", 'q"q', "a\\'b", ".hidden", "_hidden", "a.snapshots", "metadata"),
    "日本 %2e",
]


@pytest.fixture
def server(catalog: MutableCatalog) -> Iterator[Server]:
    with serving(catalog) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.location) as connected:
        yield connected


def test_tables_schemas_and_columns_with_odd_names_hold_rows(server: Server, client: Client) -> None:
    """One name for all three, changed by all kinds of statements, with fields of that name in a struct."""
    for number, name in enumerate(NAMES):
        schema = f"{name} {uuid.uuid4().hex[:6]}".replace(".", "")
        table = ("lake", schema, name)
        client.create_schema(("lake", schema))
        inner = pa.struct([(name, pa.int64())])
        client.create_table(table, pa.schema([(name, pa.int64()), ("inner", inner)]))
        rows = pa.table({name: [1, 2, 3], "inner": pa.array([{name: number}] * 3, inner)})
        assert client.insert(table, rows).count == 3
        assert client.update(table, pa.table({name: [20]}), row_ids=[1]).count == 1
        assert client.delete(table, [2]).count == 1
        found = client.scan(table).read_all()
        assert sorted(found.column(name).to_pylist()) == [1, 20]
        assert found.column("inner").to_pylist() == [{name: number}] * 2
        client.rename_table(table, f"{name}2")
        assert client.scan(("lake", schema, f"{name}2")).read_all().num_rows == 2


@pytest.mark.parametrize("name", ["a`b'c\"d/e", "日本/é %C3%A9"])
def test_the_other_dialects_take_the_same_names(server: Server, client: Client, name: str) -> None:
    table = f"{name} {uuid.uuid4().hex[:6]}"
    client.create_table(("lake", "public", table), pa.schema([(name, pa.int64())]))
    connection = Connection(server.location, timeout=120)
    body = {"schema_name": "public", "table_name": table}
    put = pa.table({name: [1, 2]})
    with DuckDBClient(server.location, watchdog=120.0) as duckdb:
        lake = duckdb.attach("lake")
        assert lake.insert(f"public.{table}", pa.table({name: [7]})).count == 1
        assert lake.scan(f"public.{table}").rows.column(name).to_pylist() == [7]
    try:
        client_of_json = JsonClient(connection)
        assert client_of_json.action("delete", {**body, "row_ids": [0]})["affected_rows"] == 1
        answer = client_of_json.put(json.dumps({**body, "operation": "insert"}).encode(), put.schema, put.to_batches())
        assert answer["affected_rows"] == 2
    finally:
        connection.close()
    assert sorted(client.scan(("lake", "public", table)).read_all().column(name).to_pylist()) == [1, 2]
