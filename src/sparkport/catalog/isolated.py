"""Expressions that strangers wrote, computed in processes of their own (:mod:`sparkport.filters.isolated_worker`).

Whatever such an expression does, it does not do it here: the process has no file, no secret and no other caller's
rows in reach, its memory is limited, and it is ended when the time is up or the caller has gone.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkport.catalog.context import CallContext, current_call
from sparkport.catalog.waiting import is_readable
from sparkport.errors import InternalError, ResourceExhausted
from sparkport.filters import isolated_worker

__all__ = [
    "ExpressionRefused",
    "Processes",
    "failing_conditions",
    "limit_seconds",
    "running",
    "shortened",
    "stabilities",
    "values_of",
]

DEFAULT_SECONDS = 10.0

_MEMORY = 768 << 20
"""What one process may hold, libraries included. Its DuckDB stays below."""
_MAX_ANSWER = 256 << 20
_START_SECONDS = 120.0
_PASSED_ON = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")
"""Where Python finds itself and its libraries."""

_TOO_LARGE = "an expression needs more memory than it may have"


class ExpressionRefused(Exception):
    """Why an expression is not computed, in words to follow its text."""


class Processes:
    """A few processes, each busy with one expression at a time; nobody's expressions take them all."""

    def __init__(self, *, most: int = 4, most_of_one: int = 2, kept: int = 2) -> None:
        self.seconds = DEFAULT_SECONDS
        self._most, self._most_of_one, self._kept = most, most_of_one, kept
        self._changed = threading.Condition()
        self._idle: list[_Process] = []
        self._busy: Counter[str] = Counter()

    def run(self, what: str, expressions: Sequence[str], **more: Any) -> tuple[dict[str, Any], pa.Table | None]:
        call = current_call() or CallContext()
        rows: pa.Table | None = more.pop("table", None)
        request = {"what": what, "expressions": list(expressions), "seconds": self.seconds + 1, **more}
        with self._process(call) as process:
            answer, values = process.ask(call, request, rows, seconds=self.seconds)
        if "exhausted" in answer:
            raise ResourceExhausted(_TOO_LARGE)
        if "refused" in answer:
            raise ExpressionRefused(answer["refused"])
        return answer, values

    @property
    def running(self) -> int:
        """How many expressions are being computed."""
        return self._busy.total()

    def close(self) -> None:
        with self._changed:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    @contextlib.contextmanager
    def _process(self, call: CallContext) -> Iterator[_Process]:
        subject = call.identity.subject
        process = self._take(call, subject)
        try:
            if process is None:
                process = _Process()
            yield process
        except BaseException:
            if process is not None:
                process.end()
            raise
        finally:
            with self._changed:
                self._busy[subject] -= 1
                # A call that was cancelled may be about to end it.
                usable = process is not None and process.alive and not call.cancelled
                if process is not None and usable and len(self._idle) < self._kept:
                    self._idle.append(process)
                    process = None
                self._changed.notify_all()
            if process is not None:
                process.end()

    def _take(self, call: CallContext, subject: str) -> _Process | None:
        """An idle process, or the right to start one: None."""
        until = time.monotonic() + self.seconds
        with self._changed:
            while self._busy.total() >= self._most or self._busy[subject] >= self._most_of_one:
                call.check()
                if time.monotonic() >= until:
                    raise ResourceExhausted("too many expressions of CHECK and DEFAULT are being computed; try again")
                self._changed.wait(0.1)
            self._busy[subject] += 1
            while self._idle:
                if (process := self._idle.pop()).is_there:
                    return process
                process.end()  # somebody else has ended it
            return None


class _Process:
    def __init__(self) -> None:
        # Nothing of the server's environment: it may hold secrets. The system's allocator, because others set aside
        # more than they use, which the limit would count.
        environment = {"ARROW_DEFAULT_MEMORY_POOL": "system", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        environment |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        self._child = subprocess.Popen(
            [sys.executable, "-P", str(Path(isolated_worker.__file__)), str(_MEMORY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
        )
        self.pid = self._child.pid
        self.alive = True
        self._is_ready = False

    @property
    def is_there(self) -> bool:
        return self._child.poll() is None

    def ask(
        self, call: CallContext, request: dict[str, Any], rows: pa.Table | None, *, seconds: float
    ) -> tuple[dict[str, Any], pa.Table | None]:
        """The answer, or an error that says why there is none; then the process is of no use any more."""
        forget = call.cancellation.add_callback(self._child.kill)
        try:
            if not self._is_ready:
                self._read(call, _START_SECONDS)
                self._is_ready = True
            self._send(request, rows)
            return self._read(call, seconds)
        except (OSError, EOFError) as exc:
            call.check()
            if not self._is_ready:
                raise InternalError("the process that computes expressions does not start") from exc
            raise ResourceExhausted(_TOO_LARGE) from exc
        finally:
            forget()

    def end(self) -> None:
        if self.alive:
            self.alive = False
            self._child.kill()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._child.wait()

    def _send(self, request: dict[str, Any], rows: pa.Table | None) -> None:
        header = json.dumps(request).encode()
        sink = pa.BufferOutputStream()
        if rows is not None:
            with pa.ipc.new_stream(sink, rows.schema) as writer:
                writer.write_table(rows)
        data = sink.getvalue()
        pipe = self._child.stdin
        if pipe is None:
            raise EOFError
        pipe.write(isolated_worker.HEAD.pack(len(header), data.size) + header)
        pipe.write(data)
        pipe.flush()

    def _read(self, call: CallContext, seconds: float) -> tuple[dict[str, Any], pa.Table | None]:
        pipe = self._child.stdout
        if pipe is None:
            raise EOFError
        remaining = call.remaining()
        wait = seconds if remaining is None else min(seconds, remaining)
        if not is_readable(pipe.fileno(), wait):
            call.check()
            raise ResourceExhausted(f"an expression was computed for {seconds:g} seconds without an end")
        header, payload = isolated_worker.HEAD.unpack(_exactly(pipe.read(isolated_worker.HEAD.size), 12))
        if payload > _MAX_ANSWER:
            raise ResourceExhausted("an expression gives more than the server takes")
        answer = json.loads(_exactly(pipe.read(header), header))
        data = _exactly(pipe.read(payload), payload)
        return answer, pa.ipc.open_stream(data).read_all() if data else None


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise EOFError
    return data


_PROCESSES = Processes()
atexit.register(_PROCESSES.close)


def limit_seconds(seconds: float) -> None:
    """How long one expression may compute, for one batch of rows."""
    _PROCESSES.seconds = seconds


def running() -> int:
    """How many expressions are being computed."""
    return _PROCESSES.running


def values_of(expression: str, rows: int) -> pa.Array:
    """The value of an expression without columns for each of so many rows."""
    _, values = _PROCESSES.run("values", [expression], rows=rows)
    if values is None or values.num_rows != rows:
        raise InternalError("an expression was computed for other rows than were asked for")
    return values.column(0).combine_chunks()


def failing_conditions(conditions: Sequence[str], rows: pa.RecordBatch) -> list[bool]:
    """For each condition, whether a row breaks it."""
    answer, _ = _PROCESSES.run("failing", conditions, table=pa.Table.from_batches([rows]))
    failing: list[bool] = answer["failing"]
    return failing


def stabilities(expression: str) -> frozenset[str]:
    """How often the functions of an expression change their answer, in DuckDB's words."""
    answer, _ = _PROCESSES.run("stabilities", [expression])
    return frozenset(answer["stabilities"])


def shortened(expression: str) -> str:
    """An expression as messages show it."""
    return expression if len(expression) <= 200 else f"{expression[:200]}…"
