"""Spark elsewhere: the same statements on a standalone cluster, and by a Connect server that is not ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.spark_cluster import LOOPBACK, ready_or_skip, spark_cluster

from sparkport.client import Client, connect
from sparkport.errors import InvalidArgument
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer, SparkState
from sparkport.testing import serving

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]  # the first start of all downloads jars

ITEMS = pa.table({"id": pa.array(range(1000), pa.int64()), "name": [f"n{number}" for number in range(1000)]})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    """A Connect server whose executors are processes of two workers."""
    folder = tmp_path_factory.mktemp("cluster")
    with spark_cluster(folder / "work", workers=2, cores=1) as master:
        settings = LakehouseSettings(
            warehouse=str(folder / "warehouse"),
            spark=master,
            driver_memory="1g",
            sessions=2,
            properties={**LOOPBACK, "spark.executor.memory": "1g", "spark.executor.cores": "1"},
        )
        server = SparkServer(settings)
        server.start()
        try:
            ready_or_skip(server)
            yield server
        finally:
            server.stop()


def tell(client: Client, lake: Lakehouse) -> None:
    """Insert, change, delete, and read here and by Spark."""
    client.create_table("public.items", ITEMS.schema)
    assert client.insert("public.items", ITEMS).count == 1000
    found = client.scan("public.items", columns=["id"], row_id=True).read_all()
    ids = dict(zip(found["id"].to_pylist(), found["rowid"].to_pylist(), strict=True))
    assert client.update("public.items", pa.table({"name": ["a", "b"]}), row_ids=[ids[1], ids[2]]).count == 2
    assert client.delete("public.items", [ids[number] for number in range(3, 1000)]).count == 997
    expected = [(0, "n0"), (1, "a"), (2, "b")]
    rows = client.scan("public.items", columns=["id", "name"]).read_all().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == expected
    with lake.engine.storage.spark.session(timeout=60) as session:
        seen = session.sql("SELECT id, name FROM lake.public.items ORDER BY id").collect()
    assert [tuple(row) for row in seen] == expected


def master_of(lake: Lakehouse) -> Any:
    with lake.engine.storage.spark.session(timeout=60) as session:
        return session.conf.get("spark.master")


def test_statements_run_on_a_cluster_of_other_processes(cluster: SparkServer, tmp_path: Path) -> None:
    settings = LakehouseSettings(warehouse=str(tmp_path), sessions=2)
    with (
        Lakehouse(settings, spark=cluster) as lake,
        serving(lake.catalog) as server,
        connect(server.location) as client,
    ):
        assert master_of(lake).startswith("spark://")
        tell(client, lake)


def test_a_query_in_sparks_sql_runs_on_a_cluster_and_leaves_nothing(cluster: SparkServer, tmp_path: Path) -> None:
    with (
        Lakehouse(LakehouseSettings(warehouse=str(tmp_path), sessions=2), spark=cluster) as lake,
        serving(lake.catalog) as server,
        connect(server.location) as client,
    ):
        client.create_table("public.items", ITEMS.schema)
        client.insert("public.items", ITEMS)
        query = "SELECT i.id, r.id AS other FROM public.items i CROSS JOIN range(0, 200, 1, 4) r WHERE i.id < ?"
        found = client.call_table("spark.sql", query, args=[500]).read_all()
        assert found.num_rows == 100_000
        assert sum(found["other"].to_pylist()) == 500 * 199 * 100
        failing = "SELECT if(id = 3, raise_error('lost'), id) FROM range(0, 8, 1, 8)"
        with pytest.raises(InvalidArgument, match="lost"):
            client.call_table("spark.sql", failing).read_all()
        assert list(lake.engine.storage.staging.folder.glob("query-*/*")) == []


def test_a_connect_server_that_runs_already_is_given_the_catalog_and_left_running(
    cluster: SparkServer, tmp_path: Path
) -> None:
    """It has a catalog of the same name, which is another one: only the sessions know ours."""
    with (
        Lakehouse(LakehouseSettings(warehouse=str(tmp_path), spark=cluster.url, sessions=2)) as lake,
        serving(lake.catalog) as server,
        connect(server.location) as client,
    ):
        tell(client, lake)
        assert lake.spark.process_id is None
    assert lake.spark.state is SparkState.STOPPED
    assert cluster.state is SparkState.READY
    with cluster.session(timeout=60) as session:
        assert session.sql("SELECT 7").collect()[0][0] == 7
        assert str(tmp_path) not in session.conf.get("spark.sql.catalog.lake.uri")


def test_a_driver_for_executors_elsewhere_is_not_hidden_on_loopback() -> None:
    from sparkport.lakehouse.spark.command import spark_command

    with spark_command(LakehouseSettings(spark="spark://head:7077"), 1234, token="x", jars=[]) as (command, _):
        assert not any("spark.driver" in part for part in command)
    with spark_command(LakehouseSettings(), 1234, token="x", jars=[]) as (command, _):
        assert "spark.driver.host=127.0.0.1" in command
