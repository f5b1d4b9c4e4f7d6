"""Spark as a child process: ready, shared without mixing, started again when it dies, and never left behind."""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkport.catalog.waiting import is_readable
from sparkport.errors import FailedPrecondition, InternalError, SparkportError, Unavailable
from sparkport.lakehouse.jars import JarCache
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark import heartbeat
from sparkport.lakehouse.spark.heartbeat import watch
from sparkport.lakehouse.spark.server import SparkServer, SparkState, translated

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]  # the first start of all downloads jars

_START = 240.0
_NO_NETWORK = " ".join(f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=9" for scheme in ("http", "https"))


class Spark:
    """A server and the states that it went through."""

    def __init__(self, settings: LakehouseSettings, *, restart_seconds: float = 2.0) -> None:
        self.states: queue.Queue[SparkState] = queue.Queue()
        self.server = SparkServer(settings, on_state=self.states.put, restart_seconds=restart_seconds)

    def until(self, state: SparkState) -> list[SparkState]:
        seen = [self.states.get(timeout=_START)]
        while seen[-1] is not state:
            seen.append(self.states.get(timeout=_START))
        return seen


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    pytest.importorskip("pyspark")
    folder = tmp_path_factory.mktemp("spark")
    made = Spark(LakehouseSettings(warehouse=str(folder), spark="local[2]", driver_memory="1g", sessions=2))
    made.server.start()
    try:
        made.server.wait_ready(_START)
        made.until(SparkState.READY)
        yield made
    finally:
        made.server.stop()


def process_id(server: SparkServer) -> int:
    found = server.process_id
    assert found is not None
    return found


def arguments(process: int) -> list[str]:
    return Path(f"/proc/{process}/cmdline").read_text().split("\0")


@contextmanager
def ending(process: int) -> Iterator[None]:
    """Passes when a process that lives at the start of the block ends in it, or soon after."""
    descriptor = os.pidfd_open(process)
    try:
        yield
        assert is_readable(descriptor, 30), f"process {process} still runs"
    finally:
        os.close(descriptor)


def value(session: Any, sql: str) -> Any:
    return session.sql(sql).collect()[0][0]


# A server that runs


def test_a_session_computes(spark: Spark) -> None:
    with spark.server.session(timeout=60) as session:
        assert value(session, "SELECT sum(id) FROM range(10)") == 45
    assert spark.server.state is SparkState.READY


def test_iceberg_tables_can_be_made(spark: Spark) -> None:
    with spark.server.session(timeout=60) as session:
        session.sql("CREATE NAMESPACE lake.public").collect()
        session.sql("CREATE TABLE lake.public.t (x BIGINT) TBLPROPERTIES ('format-version' = '3')").collect()
        session.sql("INSERT INTO lake.public.t VALUES (1), (2)").collect()
        assert value(session, "SELECT sum(x) FROM lake.public.t") == 3


def test_settings_of_a_block_are_seen_in_it_only(spark: Spark) -> None:
    with spark.server.session({"spark.wap.id": "one"}, timeout=60) as one, spark.server.session(timeout=60) as two:
        assert one.conf.get("spark.wap.id") == "one"
        assert two.conf.get("spark.wap.id", None) is None
    with spark.server.session(timeout=60) as one, spark.server.session(timeout=60) as two:
        assert [session.conf.get("spark.wap.id", None) for session in (one, two)] == [None, None]


def test_temporary_views_are_of_one_session(spark: Spark) -> None:
    with spark.server.session(timeout=60) as one, spark.server.session(timeout=60) as two:
        one.sql("CREATE TEMPORARY VIEW mine AS SELECT 1 AS x").collect()
        with pytest.raises(InternalError, match="TABLE_OR_VIEW_NOT_FOUND"), translated("looking"):
            two.sql("SELECT * FROM mine").collect()
        one.catalog.dropTempView("mine")


def test_a_block_that_fails_leaves_no_settings_behind(spark: Spark) -> None:
    with pytest.raises(ZeroDivisionError), spark.server.session({"spark.wap.id": "lost"}, timeout=60):
        raise ZeroDivisionError
    with spark.server.session(timeout=60) as one, spark.server.session(timeout=60) as two:
        assert [session.conf.get("spark.wap.id", None) for session in (one, two)] == [None, None]


def test_an_error_of_spark_is_told_by_us_alone_and_takes_nobodys_log_format(
    spark: Spark, capfd: pytest.CaptureFixture[str]
) -> None:
    with spark.server.session() as session, pytest.raises(SparkportError), translated("a query"):
        session.sql("SELECT nothing FROM nowhere").collect()

    assert "nowhere" not in capfd.readouterr().err
    assert "SQLQueryContextLogger" not in logging.root.manager.loggerDict


def test_who_finds_all_sessions_busy_is_told_so(spark: Spark) -> None:
    server = spark.server
    with server.session(timeout=60), server.session(timeout=60), pytest.raises(Unavailable, match="busy"):
        server.session(timeout=0.05).__enter__()


def test_a_server_that_runs_already_is_used_and_left_running(spark: Spark) -> None:
    other = SparkServer(LakehouseSettings(spark=spark.server.url))
    other.start()
    with other.session(timeout=60) as session:
        assert value(session, "SELECT 7") == 7
    other.stop()
    assert other.process_id is None
    with spark.server.session(timeout=60) as session:
        assert value(session, "SELECT 8") == 8


_LONG = "SELECT count(*) FROM range(1000000000000) WHERE hash(id) % 7 = 3 AND hash(id * 3) % 11 = 5"


def test_a_statement_that_takes_too_long_is_interrupted_and_the_next_one_runs(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spark.server
    monkeypatch.setattr(server, "settings", replace(server.settings, statement_seconds=2.0))
    for _ in range(2):
        with pytest.raises(Unavailable, match="not come to an end within 2 seconds"):
            _compute(server, _LONG)
    assert server.state is SparkState.READY
    monkeypatch.setattr(server, "settings", replace(server.settings, statement_seconds=60.0))
    with server.session(timeout=60) as one, server.session(timeout=60) as two:
        assert [value(session, "SELECT 1") for session in (one, two)] == [1, 1]


def _compute(server: SparkServer, sql: str) -> None:
    with server.session(timeout=60) as session, translated("computing"):
        value(session, sql)


def test_a_server_that_runs_already_and_hangs_is_waited_for_by_nobody_until_it_answers(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_EVERY_SECONDS", 0.5)
    process = process_id(spark.server)
    other = Spark(LakehouseSettings(spark=spark.server.url, silence_seconds=3.0))
    other.server.start()
    try:
        other.server.wait_ready(60)
        with pytest.raises(Unavailable, match="Spark does not answer"):
            _compute_while_stopped(other.server, process)
        with pytest.raises(Unavailable, match="does not answer"):
            _compute(other.server, "SELECT 1")
        os.killpg(process, signal.SIGCONT)
        assert other.until(SparkState.FAILED) == [SparkState.READY, SparkState.FAILED]
        other.until(SparkState.READY)
        _compute(other.server, "SELECT 1")
    finally:
        os.killpg(process, signal.SIGCONT)
        other.server.stop()
    assert process_id(spark.server) == process


def _compute_while_stopped(server: SparkServer, process: int) -> None:
    with server.session(timeout=60) as session, translated("computing"):
        os.killpg(process, signal.SIGSTOP)
        value(session, "SELECT 1")


# A server that ends


def test_a_killed_spark_is_unavailable_and_then_comes_back_without_a_network(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = process_id(spark.server)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", _NO_NETWORK)
    with pytest.raises(Unavailable):
        _compute_while_it_dies(spark.server, first)
    assert SparkState.STARTING in spark.until(SparkState.READY)
    second = process_id(spark.server)
    assert second != first
    assert "--jars" in arguments(second)
    assert "--packages" not in arguments(second)
    for _ in range(3):  # whichever place of the pool
        with spark.server.session(timeout=60) as session:
            assert value(session, "SELECT sum(id) FROM range(4)") == 6


def _compute_while_it_dies(server: SparkServer, process: int) -> None:
    with server.session(timeout=60) as session, translated("computing"):
        with ending(process):
            os.kill(process, signal.SIGKILL)
        value(session, "SELECT 1")


def _compute_while_it_stands_still(server: SparkServer, process: int) -> None:
    with server.session(timeout=60) as session, translated("computing"), ending(process):
        os.killpg(process, signal.SIGSTOP)
        value(session, "SELECT 1")


def test_a_spark_that_no_longer_answers_is_unavailable_and_then_comes_back(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, first = spark.server, process_id(spark.server)
    monkeypatch.setattr(server, "settings", replace(server.settings, silence_seconds=2.0))
    with pytest.raises(Unavailable):
        _compute_while_it_stands_still(server, first)
    monkeypatch.undo()
    assert SparkState.STARTING in spark.until(SparkState.READY)
    assert process_id(server) != first
    with server.session(timeout=60) as session:
        assert value(session, "SELECT sum(id) FROM range(4)") == 6


def test_a_spark_that_answers_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_EVERY_SECONDS", 0.01)
    ended, asked = threading.Event(), threading.Semaphore(0)

    class Answering:
        conf = client = property(lambda self: self)

        def get(self, key: str) -> str:
            asked.release()
            raise RuntimeError(f"{key} is not known")  # which is an answer too

        def close(self) -> None: ...

    lost: list[bool] = []
    watching = threading.Thread(target=lambda: lost.append(watch(Answering, lambda: 60.0, ended=ended)))
    watching.start()
    assert asked.acquire(timeout=60)
    ended.set()
    watching.join(60)
    assert lost == [False]


_CHILD = """
import sys
from pathlib import Path
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer
server = SparkServer(LakehouseSettings(warehouse=sys.argv[1], jars=Path(sys.argv[2]), spark="local[1]"))
server.start()
server.wait_ready(120)
print(server.process_id, flush=True)
sys.stdin.read()
"""


def test_spark_does_not_outlive_a_server_that_is_killed(spark: Spark, tmp_path: Path) -> None:
    """It is given its jars in a folder, so that starting without anything resolved is tried too."""
    jars = tmp_path / "jars"
    jars.mkdir()
    kept = JarCache(LakehouseSettings().packages()).arguments()
    assert kept[0] == "--jars"
    for jar in kept[1].split(","):
        (jars / Path(jar).name).symlink_to(jar)
    environment = {**os.environ, "SPARKPORT_CACHE": str(tmp_path / "empty"), "JAVA_TOOL_OPTIONS": _NO_NETWORK}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(tmp_path / "warehouse"), str(jars)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line.strip(), "the child's Spark did not start"
        with ending(int(line)):
            child.kill()
    finally:
        child.kill()
        child.communicate(timeout=30)


def test_stop_ends_spark_for_good(spark: Spark) -> None:
    """The last one of those who share the server."""
    process = process_id(spark.server)
    with ending(process):
        spark.server.stop()
    spark.server.stop()
    assert spark.server.state is SparkState.STOPPED
    assert spark.server.process_id is None
    with pytest.raises(Unavailable, match="stopped"), spark.server.session(timeout=5):
        pass


# A server that cannot start


def test_a_spark_that_cannot_start_says_why(tmp_path: Path) -> None:
    broken = Spark(LakehouseSettings(warehouse=str(tmp_path), jars=tmp_path), restart_seconds=0.0)
    broken.server.start()
    broken.until(SparkState.FAILED)
    with pytest.raises(Unavailable, match="no jar in"):
        broken.server.wait_ready(5)
    broken.server.stop()


def test_who_cannot_wait_is_told_that_spark_is_not_ready(tmp_path: Path) -> None:
    server = SparkServer(LakehouseSettings(warehouse=str(tmp_path)))
    with pytest.raises(Unavailable, match="not ready"):
        server.wait_ready(0)


# Jars


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARKPORT_CACHE", str(tmp_path))
    return tmp_path


def test_jars_are_resolved_once_and_then_kept(cache: Path) -> None:
    jars = JarCache(["group:one:1", "group:two:2"])
    first = jars.arguments()
    assert first[:2] == ["--packages", "group:one:1,group:two:2"]
    folder = Path(first[-1].removeprefix("spark.jars.ivy="), "jars")
    assert folder.is_relative_to(cache)
    folder.mkdir()
    made = [folder / name for name in ("one.jar", "two.jar")]
    for path in made:
        path.touch()
    jars.remember()
    assert JarCache(["group:one:1", "group:two:2"]).arguments() == ["--jars", ",".join(map(str, made))]
    assert JarCache(["group:one:2"]).arguments()[0] == "--packages"
    made[0].unlink()
    assert jars.arguments()[0] == "--packages"


def test_nothing_is_remembered_before_jars_are_there(cache: Path) -> None:
    jars = JarCache(["group:one:1"])
    jars.remember()
    assert not jars.resolved()


def test_a_broken_list_of_jars_is_made_anew(cache: Path) -> None:
    jars = JarCache(["group:one:1"])
    folder = Path(jars.arguments()[-1].removeprefix("spark.jars.ivy="))
    (folder / "resolved.json").write_text("[")
    assert jars.arguments()[0] == "--packages"


def test_a_folder_of_jars_is_used_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="group:one:1"):
        JarCache(["group:one:1"], tmp_path).arguments()
    (tmp_path / "b.jar").touch()
    (tmp_path / "a.jar").touch()
    assert JarCache(["group:one:1"], tmp_path).arguments() == ["--jars", f"{tmp_path}/a.jar,{tmp_path}/b.jar"]
