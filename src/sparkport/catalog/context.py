"""What every layer and every user's table knows about the call it serves.

A ``CallContext`` goes down from the wire to the table as the first argument; code that is too deep to be
handed one asks ``current_call()``, or ``transaction_id()``.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from sparkport.auth.identity import ANONYMOUS, Identity
from sparkport.catalog.call_record import CallRecord
from sparkport.errors import Cancelled, DeadlineExceeded

__all__ = ["Account", "CallContext", "Cancellation", "current_call", "entered", "transaction_id"]

logger = logging.getLogger(__name__)

_call: ContextVar[CallContext | None] = ContextVar("sparkport_call", default=None)


def current_call() -> CallContext | None:
    """The call that this thread serves; None outside of calls."""
    return _call.get()


def transaction_id() -> str | None:
    """The id of the transaction that the current call belongs to, from anywhere inside the call."""
    call = _call.get()
    return None if call is None else call.transaction_id


class Cancellation:
    """Set at most once, by a client that cancels or vanishes, or by the call's end; callbacks run at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next = 0

    @property
    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        with self._lock:
            if self._set:
                return
            self._set = True
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            try:
                callback()
            except Exception:
                logger.exception("a callback of a cancelled call failed")

    def add_callback(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` when set (now, if it is already). Returns what takes it back."""
        with self._lock:
            if not self._set:
                token = self._next
                self._next += 1
                self._callbacks[token] = callback
                return lambda: self._forget(token)
        callback()
        return lambda: None

    def _forget(self, token: int) -> None:
        with self._lock:
            self._callbacks.pop(token, None)


class Account(Protocol):
    """What a call takes of its caller's room. All raise ResourceExhausted when there is not enough of it."""

    def keep(self, size: int) -> None:
        """Until the call ends; less than nothing is what does not stay after all."""

    def promise(self, size: int) -> None:
        """For an answer that is being made: once it has its room, its messages are not refused."""


class _Unlimited:
    def keep(self, size: int) -> None: ...

    def promise(self, size: int) -> None: ...


@dataclass(slots=True, kw_only=True)
class CallContext:
    """One call: who asks, in which transaction, until when.

    Tables that work for long SHOULD call ``check()`` between batches; it raises when the caller is gone. Actions that
    tell of tables which the caller has not named ask ``sees`` whether he may know of them, by schema and name.
    """

    identity: Identity = ANONYMOUS
    catalog: str = ""
    transaction_id: str | None = None
    statement_id: str | None = None
    session_id: str | None = None
    deadline: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cancellation: Cancellation = field(default_factory=Cancellation)
    record: CallRecord = field(default_factory=CallRecord, repr=False, compare=False)
    sees: Callable[[str, str], bool] = field(default=lambda schema, name: True, repr=False, compare=False)
    account: Account = field(default_factory=_Unlimited, repr=False, compare=False)

    @property
    def cancelled(self) -> bool:
        return self.cancellation.is_set

    @property
    def session(self) -> str | None:
        """The client's session as a key for what is kept of it: another caller that sends the same id has another."""
        if self.session_id is None:
            return None
        return hashlib.sha256(repr((self.identity.subject, self.session_id)).encode()).hexdigest()

    def remaining(self) -> float | None:
        """Seconds until the deadline, never below zero; None when there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def check(self) -> None:
        """Raise when the call is cancelled or past its deadline."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise DeadlineExceeded("the call's deadline has passed")
        if self.cancellation.is_set:
            raise Cancelled("the call was cancelled")


@contextmanager
def entered(ctx: CallContext) -> Iterator[CallContext]:
    """Make ``ctx`` the current call of this thread, so that ``current_call()`` answers."""
    token = _call.set(ctx)
    try:
        yield ctx
    finally:
        _call.reset(token)
