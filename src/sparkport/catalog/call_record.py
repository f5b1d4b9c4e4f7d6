"""What is known of one call, from its first moment to its last: for metrics, the log, the audit and the console.

The wire opens a record and closes it; the layers in between note what they know. An engine says what it is at with
``step("apply")``, whoever listens: the record is found through the current call, and where there is none nothing is
noted. A record is changed by the thread of its call; others may look at it at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["CallRecord", "Step"]

_LONGEST = 1_000
"""Characters of a text that a client has chosen: a record outlives the message that brought it."""

_MAX_STEPS = 64
"""What a statement of many batches does again and again is added up after this many."""


class Step(NamedTuple):
    """A part of a call; ``started`` counts from the call's start. ``times`` is how often it was done."""

    name: str
    started: float
    seconds: float
    times: int = 1


class CallRecord:
    """One call. ``access`` is asked before anything is read or changed, and raises where that must not be."""

    __slots__ = (
        "access",
        "action",
        "asked",
        "bytes_in",
        "bytes_out",
        "cancel",
        "catalog",
        "changed_rows",
        "code",
        "doing",
        "error_id",
        "granted",
        "id",
        "message",
        "operation",
        "peer",
        "rows_in",
        "rows_out",
        "rpc",
        "seconds",
        "settled",
        "started",
        "started_at",
        "statement_id",
        "steps",
        "table",
        "trace_id",
        "transaction_id",
        "user",
    )

    def __init__(self, call_id: str = "", rpc: str = "", peer: str = "") -> None:
        self.id = call_id
        self.rpc = rpc
        self.peer = peer
        self.action = ""
        self.operation = ""
        self.asked = self.granted = ("", "", "")
        self.user = ""
        self.catalog = ""
        self.table = ""
        self.statement_id: str | None = None
        self.transaction_id: str | None = None
        self.trace_id: str | None = None
        self.started = time.time()
        self.started_at = time.perf_counter()
        self.seconds: float | None = None
        self.rows_in = self.rows_out = self.bytes_in = self.bytes_out = 0
        self.changed_rows: int | None = None
        self.code = ""
        self.message = ""
        self.error_id: str | None = None
        self.steps: list[Step] = []
        self.doing = ""
        self.cancel: Callable[[], object] = _nothing
        self.access: Callable[[CallRecord], None] | None = None
        self.settled: Callable[[CallRecord], None] | None = None

    def elapsed(self) -> float:
        return time.perf_counter() - self.started_at if self.seconds is None else self.seconds

    def asks(self, operation: str, *, catalog: str, name: str) -> None:
        """The caller wants to do ``operation`` to something, and it is not known yet whether it may.

        The first is what a call is about; an action or a function is about the table that it goes on to ask for.
        """
        self.asked = operation, catalog[:_LONGEST], name[:_LONGEST]
        if self.operation in ("", "action", "call"):
            self.operation, self.catalog, self.table = self.asked

    def fails(self, code: str, message: str, error_id: str | None) -> None:
        self.code, self.message, self.error_id = code, message[:_LONGEST], error_id

    def accesses(self) -> None:
        """The caller may do what it last asked for, and is about to. Raises where that cannot be recorded."""
        self.granted = self.asked
        if self.access is not None:
            self.access(self)

    def changed(self, rows: int) -> None:
        """A change is committed, and its answer not yet given."""
        self.changed_rows = rows
        if self.settled is not None:
            self.settled(self)

    def add_step(self, name: str, since: float, until: float) -> None:
        """Times are of ``perf_counter``."""
        seconds = until - since
        if len(self.steps) < _MAX_STEPS:
            self.steps.append(Step(name, since - self.started_at, seconds))
            return
        for place, known in enumerate(self.steps):
            if known.name == name:
                self.steps[place] = known._replace(seconds=known.seconds + seconds, times=known.times + 1)
                return


def _nothing() -> None:
    pass
