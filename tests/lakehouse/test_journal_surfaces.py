"""The journal as users meet it: switched, seen and flushed by the command, by Python and by SQL, with a real Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.duckdb_client import Attached, DuckDBClient
from tests.support.lakehouse import Lake
from tests.support.spark import shared_spark

from sparkport.app import Server, lakehouse_actions
from sparkport.cli.main import main
from sparkport.client import Client, connect
from sparkport.errors import FailedPrecondition, NotFound, Unsupported
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings

pytestmark = pytest.mark.tier("thorough")

pytest_plugins = ["tests.support.services"]

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
NEVER = JournalSettings(seconds=1_000_000)
"""What waits is published only when it is asked for."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    settings = LakehouseSettings(warehouse=str(tmp_path_factory.mktemp("warehouse")), sessions=2)
    shared_spark().wait_ready(300)
    with Lakehouse(settings, spark=shared_spark(), journal=NEVER) as lakehouse:
        yield lakehouse


@pytest.fixture(scope="module")
def server(opened: Lakehouse) -> Iterator[Server]:
    with Server(opened.catalog, port=0, actions=lakehouse_actions(opened)) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.location) as connected:
        yield connected


@pytest.fixture
def table(client: Client) -> str:
    name = f"public.t{uuid.uuid4().hex}"
    client.create_table(name, COLUMNS)
    return name


def by_command(client: Client, table: str, on: bool) -> None:
    assert main(["table", "set", table, f"journal={'on' if on else 'off'}", "--location", client.location], {}) == 0


def by_python(client: Client, table: str, on: bool) -> None:
    client.set_journal(table, on)


def by_sql(client: Client, table: str, on: bool) -> None:
    with DuckDBClient(client.location) as process:
        answer = process.attach("lake").call_scalar("tx.set_journal", pa.array([table]), pa.array([on]))
    assert answer.to_pylist() == [on]


def flushed(duckdb: Attached) -> int:
    (rows,) = duckdb.call_scalar("tx.flush", rows=1).to_pylist()
    return int(rows)


def waiting(client: Client, table: str) -> list[dict[str, Any]]:
    schema, _, name = table.partition(".")
    rows = client.scan("tx.journal").read_all().to_pylist()
    return [row for row in rows if (row["schema_name"], row["table_name"]) == (schema, name)]


def published(opened: Lakehouse, table: str) -> list[int]:
    """What plain Spark sees."""
    with Lake(opened).spark() as session:
        session.sql(f"REFRESH TABLE lake.{table}")
        return sorted(row["id"] for row in session.sql(f"SELECT id FROM lake.{table}").collect())


@pytest.mark.parametrize("switch", [by_command, by_python, by_sql])
def test_a_table_is_journalled_from_then_on(opened: Lakehouse, client: Client, table: str, switch: Any) -> None:
    switch(client, table, True)
    switch(client, table, True)
    client.insert(table, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    client.insert(table, [{"id": 3, "name": "c"}])
    (row,) = waiting(client, table)
    assert (row["entries"], row["rows"]) == (2, 3)
    assert row["bytes"] > 0
    assert row["oldest"] is not None
    assert sorted(client.scan(table).read_all()["id"].to_pylist()) == [1, 2, 3]
    assert published(opened, table) == []

    switch(client, table, False)
    assert waiting(client, table) == []
    assert published(opened, table) == [1, 2, 3]
    client.insert(table, [{"id": 4, "name": "d"}])
    assert waiting(client, table) == []


def test_a_flush_from_duckdb_counts_the_rows(opened: Lakehouse, client: Client, table: str) -> None:
    client.flush_journal()
    client.set_journal(table, True)
    client.insert(table, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    with DuckDBClient(client.location) as process:
        duckdb = process.attach("lake")
        assert flushed(duckdb) == 2
        assert flushed(duckdb) == 0
    assert published(opened, table) == [1, 2]


def test_a_flush_within_a_transaction_leaves_its_own_changes_out(opened: Lakehouse, client: Client, table: str) -> None:
    client.set_journal(table, True)
    with client.transaction() as transaction:
        transaction.insert(table, [{"id": 1, "name": "a"}])
        transaction.call("tx.flush", rows=1)
        assert published(opened, table) == []
        assert transaction.scan(table).read_all()["id"].to_pylist() == [1]
    assert client.scan(table).read_all()["id"].to_pylist() == [1]


def test_status_and_flush_tell_what_waits(client: Client, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    client.flush_journal()
    client.set_journal(table, True)
    client.insert(table, [{"id": 1, "name": "a"}])
    capsys.readouterr()
    assert main(["status", client.location], {}) == 0
    assert "journal of lake: 1 row of 1 table to be published (1 entry, " in capsys.readouterr().out
    assert main(["flush", "--location", client.location], {}) == 0
    assert capsys.readouterr().out.startswith("1 row of 1 table published in ")
    assert main(["status", client.location], {}) == 0
    assert "journal of lake: nothing waits\n" in capsys.readouterr().out


def test_what_is_no_table_cannot_be_journalled(client: Client) -> None:
    for name in ("public.none", "tx.transactions", "tx.journal"):
        with pytest.raises(NotFound):
            client.set_journal(name, True)
        with pytest.raises(NotFound):
            client.call("tx.set_journal", name, True)


def test_a_table_that_does_not_fit_says_what_to_do(opened: Lakehouse, client: Client) -> None:
    names = {kind: f"public.t{uuid.uuid4().hex}" for kind in ("old", "partitioned")}
    with Lake(opened).spark() as session:
        session.sql(
            f"CREATE TABLE lake.{names['old']} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '2')"
        )
        session.sql(
            f"CREATE TABLE lake.{names['partitioned']} (id BIGINT) USING iceberg PARTITIONED BY (id) "
            "TBLPROPERTIES ('format-version' = '3', 'write.merge.mode' = 'merge-on-read')"
        )
    with pytest.raises(FailedPrecondition, match="sparkport table upgrade"):
        client.set_journal(names["old"], True)
    with pytest.raises(Unsupported, match="partitioned or sorted"):
        client.call("tx.set_journal", names["partitioned"], True)


def test_new_tables_are_journalled_where_that_is_set(tmp_path: Path) -> None:
    settings = LakehouseSettings(warehouse=str(tmp_path), sessions=2)
    every = JournalSettings(new_tables=True, seconds=1_000_000)
    with (
        Lakehouse(settings, spark=shared_spark(), journal=every) as lakehouse,
        Server(lakehouse.catalog, port=0) as server,
        connect(server.location) as client,
    ):
        client.create_table("public.new", COLUMNS)
        client.insert("public.new", [{"id": 1, "name": "a"}])
        assert [row["rows"] for row in waiting(client, "public.new")] == [1]


def test_two_servers_of_one_database_show_and_flush_the_same_journal(postgres_uri: str, tmp_path: Path) -> None:
    settings = LakehouseSettings(warehouse=str(tmp_path), catalog_uri=postgres_uri, sessions=2)
    with (
        Lakehouse(settings, spark=shared_spark(), journal=NEVER) as one,
        Lakehouse(settings, spark=shared_spark(), journal=NEVER) as other,
        Server(one.catalog, port=0, actions=lakehouse_actions(one)) as first,
        Server(other.catalog, port=0, actions=lakehouse_actions(other)) as second,
        connect(first.location) as here,
        connect(second.location) as there,
    ):
        here.create_table("public.shared", COLUMNS)
        there.set_journal("public.shared", True)
        here.insert("public.shared", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
        assert waiting(there, "public.shared") == waiting(here, "public.shared")
        assert [row["rows"] for row in waiting(there, "public.shared")] == [2]
        assert there.flush_journal().rows == 2
        assert waiting(here, "public.shared") == []
        assert sorted(here.scan("public.shared").read_all()["id"].to_pylist()) == [1, 2]


def test_a_rest_catalog_has_no_journal_and_says_so(rest_uri: str, tmp_path: Path) -> None:
    settings = LakehouseSettings(warehouse=str(tmp_path), catalog_uri=rest_uri, sessions=2)
    name = f"public.t{uuid.uuid4().hex}"
    with (
        Lakehouse(settings, spark=shared_spark()) as lakehouse,
        Server(lakehouse.catalog, port=0, actions=lakehouse_actions(lakehouse)) as server,
        connect(server.location) as client,
    ):
        client.create_table(name, COLUMNS)
        with pytest.raises(FailedPrecondition, match="REST catalog"):
            client.set_journal(name, True)
        assert [found.name for found in client.tables("tx")] == ["transactions"]
        assert main(["status", server.location], {}) == 0
