"""A query that cannot be interrupted ends with its Spark; those who write have another one, and notice nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from tests.support.spark_cluster import ready_or_skip

from sparkport.client import Client, connect
from sparkport.errors import SparkportError
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.query import queries
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark import heartbeat
from sparkport.lakehouse.spark.heartbeat import TaskWatch
from sparkport.testing import serving

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(600)]

_LONG = 300.0
_RESTART = 60.0
ENDLESS = "rlike(concat(repeat('a', 60), {}), '(.*a){{20}}$')"
"""For longer than anybody lives, and Java looks at nothing else meanwhile."""
QUERIES = {
    "all places for tasks": f"SELECT count(*) FROM range(0, 8, 1, 8) WHERE {ENDLESS.format('CAST(id AS STRING)')}",
    "the driver": f"SELECT {ENDLESS.format(repr('!'))} AS a",
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    pytest.importorskip("pyspark")
    settings = LakehouseSettings(
        warehouse=str(tmp_path_factory.mktemp("warehouse")),
        spark="local[2]",
        driver_memory="1g",
        sessions=2,
        properties={"spark.sparkport.stuck.seconds": "2"},
    )
    with Lakehouse(settings) as opened:
        ready_or_skip(opened.spark)
        yield opened


@pytest.fixture(scope="module")
def client(lake: Lakehouse) -> Iterator[Client]:
    with serving(lake.catalog) as server, connect(server.location) as opened:
        opened.create_table("public.t", pa.schema([("id", pa.int64())]))
        assert opened.call_table("spark.sql", "SELECT 1").read_all().num_rows == 1
        yield opened


def until(what: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _LONG
    while not what():
        assert time.monotonic() < give_up
        threading.Event().wait(0.1)


@pytest.mark.parametrize("held", QUERIES)
def test_a_cancelled_query_that_goes_on_ends_with_its_spark_and_writes_go_on(
    held: str, lake: Lakehouse, client: Client
) -> None:
    before, writers = lake.query_spark.generation, lake.spark.generation

    def is_started_again() -> bool:
        # One that is cancelled before Spark has begun with it ends at once, and nothing is stuck: this is met again.
        cancel_under_way(held, lake, client)
        give_up = time.monotonic() + _RESTART
        while lake.query_spark.generation == before and time.monotonic() < give_up:
            threading.Event().wait(0.1)
        return lake.query_spark.generation > before

    until(is_started_again)
    assert client.call_table("spark.sql", "SELECT count(*) FROM range(0, 8, 1, 8)").read_all().num_rows == 1
    client.insert("public.t", pa.table({"id": pa.array([1], pa.int64())}))
    assert lake.spark.generation == writers


def cancel_under_way(held: str, lake: Lakehouse, client: Client) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            client.call_table("spark.sql", QUERIES[held]).read_all()
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    jobs = lake.catalog.jobs
    assert jobs is not None
    until(lambda: any(job.purpose == "query" for job in jobs.running()))
    client.insert("public.t", pa.table({"id": pa.array([1], pa.int64())}))
    until(lambda: any(jobs.end(job.id, "cancelled") for job in jobs.running() if job.purpose == "query"))
    thread.join(_LONG)
    assert isinstance(failures[0], SparkportError)


def test_looking_at_a_query_has_an_end(lake: Lakehouse, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_LOOK_SECONDS", 1.0)
    before = lake.query_spark.generation
    with pytest.raises(SparkportError):
        client.call_table("spark.explain", QUERIES["the driver"]).read_all()
    until(lambda: lake.query_spark.generation > before)


def test_a_server_whose_spark_has_no_place_for_a_task_is_not_ready_for_writes(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lake.catalog.readiness().writes
    monkeypatch.setattr(TaskWatch, "is_late", property(lambda watch: True))
    now = lake.catalog.readiness()
    assert (now.reads, now.writes) == (True, False)
    assert "no place" in now.why


def test_a_task_that_waits_is_noticed_and_one_that_ends_is_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_TASK_EVERY_SECONDS", 0.001)
    monkeypatch.setattr(heartbeat, "_TASK_SECONDS", 0.0)
    asked, free, ended = threading.Event(), threading.Event(), threading.Event()

    class Session:
        def sql(self, text: str) -> Session:
            return self

        def collect(self) -> None:
            asked.set()
            free.wait(_LONG)
            ended.set()

    watch = TaskWatch()
    thread = threading.Thread(target=watch.watch, args=[Session], kwargs={"ended": ended})
    thread.start()
    assert asked.wait(_LONG)
    until(lambda: watch.is_late)
    free.set()
    thread.join(_LONG)
    assert not watch.is_late
