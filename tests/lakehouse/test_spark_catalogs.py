"""Spark and this server on one PostgreSQL or REST catalog: each sees, and never overwrites, what the other did."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.postgres import PostgresCluster
from tests.support.spark import shared_spark

from sparkport.errors import AlreadyExists
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.pointers import Edit, Moved, Pointers
from sparkport.lakehouse.catalogs.rest import RestPointers
from sparkport.lakehouse.catalogs.rest_client import RestClient
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.iceberg.edits import move_main, new_table
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.sessions import Sessions

pytest_plugins = ["tests.support.services"]
pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]  # the first start of all downloads jars

Json = dict[str, Any]
FIELDS: list[Json] = [{"id": 1, "name": "x", "type": "long", "required": False}]
PROPERTIES = {"write.wap.enabled": "true", "write.merge.mode": "merge-on-read"}


@dataclass(frozen=True, slots=True)
class Side:
    """One catalog, seen from here and, under its name, from Spark."""

    name: str
    pointers: Pointers
    spark: Sessions
    folder: Path

    def new_table(self, name: str) -> TableName:
        location = self.folder / uuid.uuid4().hex
        metadata = new_table(str(location), FIELDS, last_column_id=1, properties=PROPERTIES)
        self.pointers.create(TableName("public", name), self.write(metadata))
        return TableName("public", name)

    def write(self, metadata: Json) -> str:
        folder = Path(metadata["location"], "metadata")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{len(list(folder.glob('*.json'))):05}-{uuid.uuid4()}.metadata.json"
        path.write_text(json.dumps(metadata))
        return str(path)

    def load(self, table: TableName) -> tuple[str, Json]:
        location = self.pointers.location(table)
        assert location is not None
        return location, json.loads(Path(location.removeprefix("file:")).read_text())

    def run(self, sql: str, *, wap_id: str | None = None) -> list[Any]:
        with self.spark.session({} if wap_id is None else {"spark.wap.id": wap_id}, timeout=60) as session:
            return [tuple(row) for row in session.sql(sql.replace("CATALOG", self.name)).collect()]

    def publish(self, *published: tuple[TableName, str]) -> None:
        """Move ``main`` of all tables to the snapshots that Spark staged under these ids."""
        changes = []
        for table, wap_id in published:
            location, before = self.load(table)
            staged = next(item for item in before["snapshots"] if item["summary"].get("wap.id") == wap_id)
            changes.append((table, location, before, move_main(before, staged["snapshot-id"], previous=location)))
        self.commit(changes)

    def commit(self, changes: list[tuple[TableName, str, Json, Json]]) -> None:
        """Tables, where their metadata was, what it was and what it shall be."""
        statements = {uuid.uuid4().hex: 1}
        self.pointers.commit(
            [Edit(table, before, after, location) for table, location, before, after in changes], statements
        )


@pytest.fixture(scope="module")
def sides(
    postgres: PostgresCluster, rest_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Side]]:
    """Spark sessions with both catalogs."""
    folder = tmp_path_factory.mktemp("catalogs")
    rest = {
        "spark.sql.catalog.rest": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.rest.type": "rest",
        "spark.sql.catalog.rest.uri": rest_uri,
        "spark.sql.catalog.rest.cache-enabled": "false",
    }
    with ExitStack() as stack:
        uri = stack.enter_context(postgres.database())
        database = stack.enter_context(closing(open_database(uri)))
        settings = LakehouseSettings(warehouse=str(folder), catalog_uri=uri)
        found: dict[str, Pointers] = {
            "lake": SqlPointers(database, "lake"),
            "rest": RestPointers(RestClient(rest_uri, {})),
        }
        for pointers in found.values():
            with suppress(AlreadyExists):  # the REST server is there for the whole test run
                pointers.create_schema("public", {"comment": "ours"})
        spark = shared_spark().sessions({**settings.session_conf(), **rest})
        stack.callback(spark.close)
        yield {name: Side(name, pointers, spark, folder) for name, pointers in found.items()}


@pytest.fixture(params=["lake", "rest"])
def side(request: pytest.FixtureRequest, sides: dict[str, Side]) -> Side:
    return sides[request.param]


def test_spark_writes_into_our_tables(side: Side) -> None:
    table = side.new_table("ours")
    assert ("public", "ours", False) in side.run("SHOW TABLES IN CATALOG.public")
    side.run("INSERT INTO CATALOG.public.ours VALUES (1), (2)")
    assert side.run("SELECT sum(x) FROM CATALOG.public.ours") == [(3,)]
    assert side.load(table)[1]["format-version"] == 3


def test_we_see_what_spark_makes(side: Side) -> None:
    side.run("CREATE NAMESPACE CATALOG.theirs COMMENT 'made by Spark'")
    side.run("CREATE TABLE CATALOG.theirs.t (x BIGINT) TBLPROPERTIES ('format-version' = '3')")
    cut = side.pointers.cut()
    assert cut.schemas["theirs"]["comment"] == "made by Spark"
    assert cut.tables[TableName("theirs", "t")] == side.pointers.location(TableName("theirs", "t"))
    side.pointers.rename(TableName("theirs", "t"), TableName("public", "taken over"))
    assert side.run("SELECT count(*) FROM CATALOG.public.`taken over`") == [(0,)]
    side.pointers.drop(TableName("public", "taken over"))
    side.pointers.drop_schema("theirs")
    assert ("theirs",) not in side.run("SHOW NAMESPACES IN CATALOG")


def test_what_spark_stages_is_seen_when_it_is_published_by_us(side: Side) -> None:
    tables = [side.new_table(f"staged_{number}") for number in range(2)]
    for _, name in tables:
        side.run(f"INSERT INTO CATALOG.public.{name} VALUES (1), (2), (3)", wap_id=f"first {name}")
        assert side.run(f"SELECT count(*) FROM CATALOG.public.{name}") == [(0,)]
    side.publish(*[(table, f"first {table.name}") for table in tables])
    for _, name in tables:
        assert side.run(f"SELECT count(*) FROM CATALOG.public.{name}") == [(3,)]
    name = tables[0][1]
    merge = f"MERGE INTO CATALOG.public.{name} t USING (SELECT 0L AS id) s ON t._row_id = s.id WHEN MATCHED THEN DELETE"
    side.run(merge, wap_id="second")
    assert side.run(f"SELECT count(*) FROM CATALOG.public.{name}") == [(3,)]
    side.publish((tables[0], "second"))
    assert side.run(f"SELECT count(*) FROM CATALOG.public.{name}") == [(2,)]


def test_a_commit_of_sparks_stops_ours(side: Side) -> None:
    table = side.new_table("contended")
    side.run("INSERT INTO CATALOG.public.contended VALUES (1)", wap_id="late")
    location, before = side.load(table)
    staged = before["snapshots"][-1]["snapshot-id"]
    side.run("INSERT INTO CATALOG.public.contended VALUES (10)")
    after = move_main(before, staged, previous=location)
    with pytest.raises(Moved):
        side.commit([(table, location, before, after)])
    assert side.run("SELECT sum(x) FROM CATALOG.public.contended") == [(10,)]
