"""The calls of a server: those that run, and the last that were slow."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from sparkport.catalog.call_record import CallRecord, Step
from sparkport.errors import SparkportError

__all__ = ["CallListener", "CallView", "Calls"]

logger = logging.getLogger(__name__)

_KEPT_SLOW: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """A call as it was when somebody looked. ``seconds`` is how long it took, or has taken so far; ``code`` is empty
    while it runs. ``doing`` is the step that it is at."""

    id: str
    rpc: str
    action: str
    operation: str
    user: str
    peer: str
    catalog: str
    table: str
    statement_id: str | None
    transaction_id: str | None
    trace_id: str | None
    started: float
    seconds: float
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    changed_rows: int | None
    code: str
    message: str
    error_id: str | None
    doing: str
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, record: CallRecord) -> CallView:
        return cls(
            id=record.id,
            rpc=record.rpc,
            action=record.action,
            operation=record.operation,
            user=record.user,
            peer=record.peer,
            catalog=record.catalog,
            table=record.table,
            statement_id=record.statement_id,
            transaction_id=record.transaction_id,
            trace_id=record.trace_id,
            started=record.started,
            seconds=record.elapsed(),
            rows_in=record.rows_in,
            rows_out=record.rows_out,
            bytes_in=record.bytes_in,
            bytes_out=record.bytes_out,
            changed_rows=record.changed_rows,
            code=record.code,
            message=record.message,
            error_id=record.error_id,
            doing=record.doing,
            steps=tuple(record.steps),
        )


class CallListener(Protocol):
    """Somebody who wants to know of calls. Called on the thread of each call: MUST be quick."""

    def ended(self, record: CallRecord) -> None: ...


class Calls:
    """One for a server. Called from all threads.

    ``prepare`` is called with each new record, before anything is known of the call.
    """

    def __init__(
        self,
        listeners: Iterable[CallListener] = (),
        *,
        slow_seconds: float = 1.0,
        prepare: Callable[[CallRecord], None] | None = None,
    ) -> None:
        self._listeners = tuple(listeners)
        self._prepare = prepare
        self.slow_seconds = slow_seconds
        self._running: dict[str, CallRecord] = {}
        self._slow: deque[CallView] = deque(maxlen=_KEPT_SLOW)
        self._lock = threading.Lock()
        self._prefix = secrets.token_hex(3)
        self._numbers = itertools.count(1)

    def begin(self, rpc: str, peer: str, cancel: Callable[[], object] | None = None) -> CallRecord:
        record = CallRecord(f"{self._prefix}-{next(self._numbers):x}", rpc, peer)
        if cancel is not None:
            record.cancel = cancel
        if self._prepare is not None:
            self._prepare(record)
        with self._lock:
            self._running[record.id] = record
        return record

    def end(self, record: CallRecord, error: SparkportError | None = None) -> None:
        """Once for each record; what a listener does wrong hurts nobody's call."""
        with self._lock:
            if self._running.pop(record.id, None) is None:
                return
            record.seconds = time.perf_counter() - record.started_at
            record.doing = ""
            if error is None:
                record.code = "OK"
            else:
                record.fails(error.code.name, error.message, error.error_id)
            if self.is_slow(record):  # at the same instant: a call is in one of the two lists
                self._slow.append(CallView.of(record))
        for listener in self._listeners:
            try:
                listener.ended(record)
            except Exception:
                logger.exception("noting a call failed")

    def is_slow(self, record: CallRecord) -> bool:
        return record.elapsed() >= self.slow_seconds > 0

    def running(self) -> list[CallView]:
        """The longest first."""
        with self._lock:
            records = list(self._running.values())
        return sorted((CallView.of(record) for record in records), key=lambda view: view.started)

    def slow(self) -> list[CallView]:
        """The newest first."""
        with self._lock:
            return list(reversed(self._slow))

    def cancel(self, call_id: str) -> bool:
        """End a call as if its client had gone; False where there is none."""
        with self._lock:
            record = self._running.get(call_id)
        if record is None:
            return False
        record.cancel()
        return True
