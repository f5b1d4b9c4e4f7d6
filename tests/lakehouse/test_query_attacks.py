"""What callers with the right to run queries try: to hold the server or its Spark, and to learn what is not theirs."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest
from tests.support.spark_cluster import ready_or_skip

from sparkport.client import Client, connect
from sparkport.errors import InvalidArgument, Unavailable
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.query.columns import arrow_schema
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.testing import serving

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    pytest.importorskip("pyspark")
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    with Lakehouse(LakehouseSettings(warehouse=warehouse, spark="local[2]", driver_memory="1g", sessions=2)) as opened:
        ready_or_skip(opened.spark)
        yield opened


@pytest.fixture(scope="module")
def client(lake: Lakehouse) -> Iterator[Client]:
    with serving(lake.catalog) as server, connect(server.location) as opened:
        opened.create_table("public.t", pa.schema([("id", pa.int64())]))
        opened.insert("public.t", pa.table({"id": pa.array([1, 2, 3], pa.int64())}))
        assert opened.call_table("spark.sql", "SELECT 1").read_all().num_rows == 1
        yield opened


def test_a_query_with_any_number_of_columns_of_one_name_does_not_hold_the_server() -> None:
    count = 200_000  # to compare each with all before it would take hours
    number = SimpleNamespace(simpleString=lambda: "int")
    columns = [SimpleNamespace(name=name, dataType=number) for name in ("X", "x_2", *["x"] * count)]
    named = arrow_schema(columns).names
    assert named[:5] == ["X", "x_2", "x_1", "x_3", "x_4"]
    assert len({name.casefold() for name in named}) == count + 2


@pytest.mark.parametrize("who", ["current_user()", "current_user", "user", "session_user()"])
def test_a_query_is_not_told_as_which_user_of_the_machine_spark_runs(who: str, client: Client) -> None:
    with pytest.raises(InvalidArgument, match="user"):
        client.call_table("spark.sql", f"SELECT {who} AS a").read_all()


HUNGRY = {
    "the driver": "SELECT * FROM VALUES (sequence(1L, 200000000L)) AS t(a)",
    "a task": "SELECT sum(size(sequence(id, id + 200000000))) AS a FROM range(0, 2, 1, 1)",
}


@pytest.mark.parametrize("where", HUNGRY)
def test_a_spark_for_queries_that_has_no_memory_left_ends_at_once_and_there_is_another(
    where: str, lake: Lakehouse, client: Client
) -> None:
    """Java would go on without the thread that asked for too much, whichever that is."""
    before, writers = lake.query_spark.generation, lake.spark.generation
    with pytest.raises(Unavailable):
        client.call_table("spark.sql", HUNGRY[where]).read_all()
    assert client.call_table("spark.sql", "SELECT count(*) FROM range(0, 8, 1, 8)").read_all().num_rows == 1
    assert lake.query_spark.generation > before
    assert lake.spark.generation == writers
