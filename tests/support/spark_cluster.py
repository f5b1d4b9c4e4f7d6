"""A Spark standalone cluster on loopback: a master and workers, processes of their own from the pyspark package."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.ports import free_port

from sparkport.errors import Unavailable
from sparkport.lakehouse.spark.launcher import launched
from sparkport.lakehouse.spark.server import SparkServer

__all__ = ["LOOPBACK", "ready_or_skip", "spark_cluster"]

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""What a driver needs to be told when its executors are on loopback too."""

_NO_JARS = ("unresolved dependency", "download failed", "UnknownHostException", "not ready yet (downloading jars)")


def ready_or_skip(server: SparkServer, timeout: float = 240) -> None:
    """Wait for a Spark. Skips the test when there is no way to its jars, and for no other reason."""
    try:
        server.wait_ready(timeout)
    except Unavailable as exc:
        if any(mark in str(exc) for mark in _NO_JARS):
            pytest.skip(f"the jars cannot be had: {exc}")
        raise


@contextmanager
def spark_cluster(
    folder: Path,
    *,
    workers: int = 1,
    cores: int = 2,
    memory: str = "1g",
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """The master's address. Each worker keeps its files in ``folder``, and its ``environment`` is that of executors,
    too; all end with the block or with us."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    common = ["--host", "127.0.0.1", "--webui-port", "0"]
    with _process("master.Master", *common, "--port", str(port), ready="New state: ALIVE"):
        limits = ["--cores", str(cores), "--memory", memory, "--work-dir", str(folder)]
        ready = "Successfully registered with master"
        with ExitStack() as running:
            for _ in range(workers):
                worker = _process("worker.Worker", *common, *limits, master, ready=ready, environment=environment)
                running.enter_context(worker)
            yield master


@contextmanager
def _process(name: str, *arguments: str, ready: str, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    pyspark = pytest.importorskip("pyspark")
    home = Path(pyspark.__file__).parent
    process = subprocess.Popen(
        # A worker that ends so ends its executors.
        launched(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments], end=signal.SIGTERM
        ),
        env={
            **os.environ,
            **(environment or {}),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    reader: threading.Thread | None = None
    try:
        seen: list[str] = []
        for line in process.stdout or ():
            seen.append(line)
            if ready in line:
                break
        else:
            pytest.fail(f"Spark's {name} did not start:\n" + "".join(seen[-10:]))
        reader = threading.Thread(target=_drain, args=(process,), name=f"spark-{name}-log", daemon=True)
        reader.start()
        yield
    finally:
        # The whole group: executors are children of the worker.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
        if reader is not None:
            reader.join(timeout=30)
        if process.stdout is not None:
            process.stdout.close()


def _drain(process: subprocess.Popen[str]) -> None:
    for _ in process.stdout or ():
        pass
