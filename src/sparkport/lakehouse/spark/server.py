"""Spark, by way of Connect: a server that is started as a child process or runs already, and a pool of its sessions.

One thread watches the child and starts it again when it dies; the child cannot outlive that thread. Only those who need
Spark wait for it: reads and listings do not.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any

from sparkport.errors import Unavailable
from sparkport.lakehouse.faults import on_kill_spark
from sparkport.lakehouse.jars import JarCache
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.command import spark_command
from sparkport.lakehouse.spark.connect import open_session
from sparkport.lakehouse.spark.errors import LostRace, NoTable, translated
from sparkport.lakehouse.spark.guard import guard_jar
from sparkport.lakehouse.spark.heartbeat import TaskWatch, wait_for_answer, watch
from sparkport.lakehouse.spark.lock import UNLOCKED
from sparkport.lakehouse.spark.sessions import Sessions, Work

__all__ = ["LostRace", "NoTable", "Sessions", "SparkServer", "SparkState", "Work", "translated"]

logger = logging.getLogger(__name__)

_READY = "Spark Connect server started at"
_RESTART_SECONDS = 2.0
_PATIENT_SECONDS = 60.0
_START_SECONDS = 300.0
_DOWNLOAD_SECONDS = 1_800.0
"""How long a start may take before the next try: the very first one downloads jars."""
_TRIES = 5
"""After so many failures in a row writes are refused at once, and Spark is tried again at longer intervals."""


class SparkState(Enum):
    RESOLVING = "downloading jars"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class SparkServer:
    """``warm_up`` is called, in a thread of its own, each time that a child is ready."""

    def __init__(
        self,
        settings: LakehouseSettings,
        *,
        on_state: Callable[[SparkState], None] | None = None,
        warm_up: Callable[[], None] | None = None,
        for_queries: bool = False,
        restart_seconds: float = _RESTART_SECONDS,
    ) -> None:
        """``for_queries``: it does nothing else, so it is ended where a query goes on that was cancelled.

        One that did not start is tried again after ``restart_seconds``, and then after twice as many.
        """
        self.settings = settings
        self._on_state = on_state
        self.warm_up = warm_up
        self._for_queries = for_queries
        self._restart_seconds = restart_seconds
        self._starting = threading.Lock()
        self.tasks = TaskWatch()
        self._jars = JarCache(settings.packages(), settings.jars)
        self._external = settings.spark if settings.spark.startswith("sc://") else None
        self._changed = threading.Condition()
        self._state = SparkState.STARTING
        self._failure = ""
        self._generation = 0
        self._url = self._external or ""
        self._stopping = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._pools: weakref.WeakSet[Sessions] = weakref.WeakSet()
        self._sessions = self.sessions({})

    # Life

    def start(self) -> None:
        """Begin in the background; returns at once. Safe to repeat."""
        with self._starting:
            if self._thread is not None or self._stopping.is_set():
                return
            if not self._for_queries:
                on_kill_spark(self._kill)
            self._thread = threading.Thread(target=self._supervise, name="sparkport-spark", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the child, if there is one. Safe to repeat."""
        with self._starting:
            self._stopping.set()
        self._end_process()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=30)
        self._set(SparkState.STOPPED)

    @property
    def state(self) -> SparkState:
        return self._state

    @property
    def process_id(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def wait_ready(self, timeout: float | None = None) -> None:
        """Return when Spark can be used; raise Unavailable when it cannot, or not in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._state is not SparkState.READY:
                if self._state in (SparkState.STOPPED, SparkState.FAILED):
                    raise Unavailable(f"Spark is {self._state.value}{self._failure}")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise Unavailable(f"Spark is not ready yet ({self._state.value}); try again")
                self._changed.wait(left)

    @contextmanager
    def session(
        self, conf: Mapping[str, str] | None = None, *, timeout: float | None = None, limited: bool = True
    ) -> Iterator[Any]:
        """A session with settings that hold for the block only."""
        with self._sessions.session(conf, timeout=timeout, limited=limited) as session:
            yield session

    def sessions(self, conf: Mapping[str, str], size: int | None = None) -> Sessions:
        """A pool of sessions that all have these settings: several catalogs can share one Spark."""
        pool = Sessions(self, conf, size or self.settings.sessions, limit=lambda: self.settings.statement_seconds)
        self._pools.add(pool)
        return pool

    @property
    def is_child(self) -> bool:
        """Whether it ends with us; one that ran already goes on."""
        return self._external is None

    @property
    def url(self) -> str:
        """Where the Connect server is, once it is ready, and its token, with which anybody can do whatever we can."""
        return self._url

    @property
    def generation(self) -> int:
        """Counts the servers that there have been: sessions of an earlier one are gone with it."""
        return self._generation

    def open_session(self, same_as: Any = None) -> Any:
        return open_session(self._url, is_child=self.is_child, same_as=same_as)

    def lost(self, generation: int) -> bool:
        """Asked by one who could not reach the server: whether it has ended, so that there will be another one."""
        process = self._process
        if self._external is not None or self._stopping.is_set():
            return False
        if process is not None and generation == self._generation:
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                return False

        def replaced() -> bool:
            return self._state is not SparkState.READY or self._generation != generation

        with self._changed:
            return self._changed.wait_for(replaced, timeout=10)

    # The supervisor

    def _supervise(self) -> None:
        if self._external is not None:
            self._supervise_external()
            return
        failures = 0
        while not self._stopping.is_set():
            try:
                before = self._generation
                self._run_once()
                # One that was ready and then died, however often, is not one that cannot be started.
                failures = failures + 1 if self._generation == before else 1
            except Exception as exc:
                logger.error("Spark cannot be started: %s", exc)
                self._failure = f": {exc}"
                failures += 1
            if self._stopping.is_set():
                return
            self._set(SparkState.FAILED if failures >= _TRIES else SparkState.STARTING)
            self._stopping.wait(_PATIENT_SECONDS if failures >= _TRIES else self._restart_seconds * (failures - 1))

    def _supervise_external(self) -> None:
        """Wait for a Spark that was not started here, whatever became of it; no call waits in it meanwhile."""
        while not self._stopping.is_set():
            self._generation += 1
            self._set(SparkState.READY)
            if not watch(self.open_session, lambda: self.settings.silence_seconds, ended=self._stopping):
                return
            self._failure = ": it does not answer"
            self._set(SparkState.FAILED)
            for pool in list(self._pools):
                pool.cut_off("Spark does not answer; try again")
            wait_for_answer(self.open_session, ended=self._stopping)

    def _run_once(self) -> None:
        port, token = _free_port(), secrets.token_urlsafe(32)
        resolved = self._jars.resolved()
        if self._state is not SparkState.FAILED:  # and it stays failed until it is ready
            self._set(SparkState.STARTING if resolved else SparkState.RESOLVING)
        hidden = contextlib.ExitStack()
        jars = self._jars.arguments(guard_jar(self.settings.jars))
        start = spark_command(self.settings, port, token=token, jars=jars, for_queries=self._for_queries)
        command, environment = hidden.enter_context(start)
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
            umask=self.settings.file_mode.umask,
        )
        self._process = process
        limit = threading.Timer(_START_SECONDS if resolved else _DOWNLOAD_SECONDS, self._give_up, [process])
        limit.daemon = True
        limit.start()
        if self._stopping.is_set():  # by one who has looked for a process before it was there
            self._end_process()
        last: list[str] = []
        ended = threading.Event()
        try:
            for line in process.stdout or ():
                last = [*last[-20:], line.rstrip()]
                logger.log(logging.WARNING if line.startswith(UNLOCKED) else logging.DEBUG, "spark: %s", line.rstrip())
                if _READY in line:
                    limit.cancel()
                    hidden.close()
                    self._jars.remember()
                    self._url = f"sc://localhost:{port}/;token={token}"
                    self._generation += 1
                    self._set(SparkState.READY)
                    self._watch(ended)
                    if self.warm_up is not None:
                        threading.Thread(target=self.warm_up, name="sparkport-warm-up", daemon=True).start()
            code = process.wait()
        finally:
            limit.cancel()
            ended.set()
            hidden.close()
            self._end_process()
            if process.stdout is not None:
                process.stdout.close()
        if not self._stopping.is_set():
            if self._state is not SparkState.READY:
                self._failure = f": {_reason(last)}"
            logger.error("Spark has ended with code %s; its last lines:\n%s", code, "\n".join(last[-10:]))

    def _watch(self, ended: threading.Event) -> None:
        """Kill a Spark that runs and answers nobody: this wakes all who wait for it and brings the next one."""

        def work() -> None:
            if watch(self.open_session, lambda: self.settings.silence_seconds, ended=ended):
                self._kill()

        threading.Thread(target=work, name="sparkport-heartbeat", daemon=True).start()
        if self.settings.spark_is_local:  # tasks elsewhere would keep machines for nothing
            ask = partial(self.tasks.watch, self.open_session, ended=ended)
            threading.Thread(target=ask, name="sparkport-heartbeat-tasks", daemon=True).start()

    def stuck(self, generation: int) -> None:
        """A query was interrupted and goes on: where nothing else is under way, it ends with its Spark."""
        if self._for_queries and generation == self._generation:
            logger.error("Spark goes on with a query that was cancelled: it is started again")
            self._kill()

    def _give_up(self, process: subprocess.Popen[str]) -> None:
        logger.error("Spark has not become ready in time; it is started again")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)

    def _set(self, state: SparkState) -> None:
        with self._changed:
            if self._state is SparkState.STOPPED:
                return
            changed = self._state is not state
            self._state = state
            self._changed.notify_all()
        if changed:
            logger.debug("Spark: %s", state.value)
            if self._on_state is not None:
                self._on_state(state)


def _reason(lines: list[str]) -> str:
    """The line that says why Spark ended, rather than where in its code it did."""
    told = [line for line in lines if not line.startswith("\tat ")]
    raised = [line for line in told if "Exception" in line or "Error" in line]
    return [*told, *raised][-1] if told else "no output"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
