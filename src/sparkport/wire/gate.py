"""Who gets in, and how much of the server one caller may have.

Every call is here from its first moment to its last: authenticated by its headers before anything of its body is read,
counted under its subject, and known with what it waits for. A thread looks after the waiting ones: who sends or takes
nothing for too long is cut off, and while memory is short a caller keeps only a few calls that wait for it. gRPC gives
no way to say how much of a message has come, so the memory of the process has to show it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from sparkport.auth.identity import ANONYMOUS, Identity
from sparkport.auth.model import Authenticator, Peer
from sparkport.auth.secret import Secret
from sparkport.catalog.figures import Figure
from sparkport.errors import ResourceExhausted
from sparkport.wire.limits import Limits
from sparkport.wire.memory import Memory, measure, return_large_blocks, trim

__all__ = ["AUTHENTICATING_CALLS", "Call", "FIRST_MESSAGE", "Gate", "MESSAGE", "READER", "RESERVED_CALLS"]

logger = logging.getLogger(__name__)

RESERVED_CALLS: Final = 16
"""Beyond ``max_concurrent_calls``, for subjects that have no other call: an administrator gets through."""
AUTHENTICATING_CALLS: Final = 64
"""Calls whose token is being looked at, which can take as long as a key set's server takes."""

NOTHING, FIRST_MESSAGE, MESSAGE, READER = range(4)
"""What a call can wait for: nothing of its client's, a message of it, or that it reads."""

_BODIES_AT_ONCE: Final = 4  # of the calls of a subject that have one message, those that are being read
_KEPT_WAITING: Final = 4  # calls that a subject keeps while memory is short
_STALLED_READER_SECONDS: Final = 5.0  # who is slow reads something in this time
_STOP_SECONDS: Final = 5.0
_TICK_SECONDS: Final = 0.05  # a machine's own clients send a gigabyte in a second
_TIDY_SECONDS: Final = 5.0
_SENT_PART: Final = 8  # of the room for messages, which all that are being sent take about
_LEAST_SLICE_BYTES: Final = 256 * 1024
_SMALL_BYTES: Final = 64 * 1024  # all calls' messages of this size together are not worth the counting


class Call:
    """A call that was let in. Its own thread changes it; the watching thread reads it."""

    __slots__ = ("_gate", "_keep", "_promised", "_transient", "cancel", "since", "subject", "waits_for")

    def __init__(self, gate: Gate, subject: str, cancel: Callable[[], object]) -> None:
        self._gate = gate
        self.subject = subject
        self.cancel = cancel
        self.waits_for = NOTHING
        self.since = 0.0
        self._transient = self._keep = self._promised = 0

    def wait_for(self, what: int) -> None:
        self.since = time.monotonic()
        self.waits_for = what

    def go_on(self) -> None:
        self.waits_for = NOTHING

    def hold(self, size: int) -> None:
        """Account for a message until ``release``. Raises ResourceExhausted when there is no room for it."""
        if size > _SMALL_BYTES:
            self._gate.take(self.subject, size)
            self._transient += size

    def keep(self, size: int) -> None:
        """Account for what stays until the end of the call; less than nothing is what does not stay after all."""
        self._gate.take(self.subject, size)
        self._keep += size

    def promise(self, size: int) -> None:
        """Account for an answer before it is made: what it answers may be committed by the time that it is sent."""
        self.keep(size)
        self._promised += size

    def send(self, size: int) -> None:
        """Account for a message that is being sent, until ``release``, as far as it was not promised."""
        self.hold(max(0, size - self._promised))

    def reading(self) -> AbstractContextManager[None]:
        return self._gate.reading(self.subject)

    def release(self) -> None:
        if self._transient:
            self._gate.give_back(self.subject, self._transient)
            self._transient = 0

    def end(self) -> None:
        self.release()
        if self._keep:
            self._gate.give_back(self.subject, self._keep)
            self._keep = 0


class Gate:
    """One for a server. Called from all threads."""

    def __init__(
        self,
        limits: Limits,
        authenticator: Authenticator | None = None,
        *,
        memory: Callable[[], Memory] | None = None,
    ) -> None:
        self.limits = limits
        self._authenticator = authenticator
        self._memory = memory or measure
        self._lock = threading.Lock()
        self._authenticating = 0
        self._running: Counter[str] = Counter()
        self._total = 0
        self._held: Counter[str] = Counter()
        self._reading: Counter[str] = Counter()
        self._turns = threading.Condition(self._lock)
        self._calls: set[Call] = set()
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None
        self._at_rest = Memory(0, 0)

    # Getting in

    def authenticate(self, token: Secret | None, peer: Peer) -> Identity:
        if self._authenticator is None:
            return ANONYMOUS
        with self._lock:
            if self._authenticating >= AUTHENTICATING_CALLS:
                raise ResourceExhausted("too many callers are being authenticated: try again")
            self._authenticating += 1
        try:
            return self._authenticator.authenticate(token, peer)
        finally:
            with self._lock:
                self._authenticating -= 1

    @contextmanager
    def admitted(self, identity: Identity, cancel: Callable[[], object]) -> Iterator[Call]:
        call = Call(self, identity.subject, cancel)
        self._enter(call)
        try:
            yield call
        finally:
            call.end()
            self._leave(call)

    @contextmanager
    def watched(self, cancel: Callable[[], object]) -> Iterator[Call]:
        """A call that needs no token and has threads of its own: only its waiting is looked after."""
        call = Call(self, "", cancel)
        with self._lock:
            self._calls.add(call)
        try:
            yield call
        finally:
            with self._lock:
                self._calls.discard(call)

    def _enter(self, call: Call) -> None:
        limits, subject = self.limits, call.subject
        with self._lock:
            mine = self._running[subject]
            if self._authenticator is not None and mine >= limits.calls_per_subject:
                raise ResourceExhausted(f"'{subject}' has {mine} calls running: wait for one to end")
            reserve = RESERVED_CALLS if self._authenticator is not None and not mine else 0
            if self._total >= limits.max_concurrent_calls + reserve:
                raise ResourceExhausted(f"{self._total} calls are running: try again later")
            self._running[subject] = mine + 1
            self._total += 1
            self._calls.add(call)

    def _leave(self, call: Call) -> None:
        with self._lock:
            self._calls.discard(call)
            self._total -= 1
            _subtract(self._running, call.subject, 1)

    # Bytes

    @contextmanager
    def reading(self, subject: str) -> Iterator[None]:
        """A call's turn to have its one message read: of many large ones only a few are on their way at once."""
        limit = _BODIES_AT_ONCE if self._authenticator is not None else RESERVED_CALLS
        with self._turns:
            if not self._turns.wait_for(lambda: self._reading[subject] < limit, self.limits.first_message_seconds):
                raise ResourceExhausted(f"{limit} messages of '{subject}' are on their way already: try again later")
            self._reading[subject] += 1
        try:
            yield
        finally:
            with self._turns:
                _subtract(self._reading, subject, 1)
                self._turns.notify_all()

    def take(self, subject: str, size: int) -> None:
        limits = self.limits
        with self._lock:
            if self._held[subject] + size > limits.held_bytes_per_subject:
                raise ResourceExhausted(
                    f"the messages of '{subject}' take {self._held[subject] + size} bytes at once, "
                    f"at most {limits.held_bytes_per_subject} are taken"
                )
            if self._held.total() + size > max(limits.max_held_bytes, limits.max_message_bytes):
                raise ResourceExhausted("the messages of all callers take too much memory: try again later")
            self._held[subject] += size

    def give_back(self, subject: str, size: int) -> None:
        with self._lock:
            _subtract(self._held, subject, size)

    @property
    def slice_bytes(self) -> int:
        """What batches are sliced to that are sent: less while many calls run, each of which has such messages."""
        limits = self.limits
        shared = limits.max_held_bytes // _SENT_PART // max(self._total, 1)
        return min(limits.max_batch_bytes, max(shared, _LEAST_SLICE_BYTES))

    def figures(self) -> Iterator[Figure]:
        with self._lock:
            running, held, authenticating = self._total, self._held.total(), self._authenticating
        memory = self._memory()
        yield Figure("calls_running", "Calls that were let in and have not ended", running)
        yield Figure("calls_limit", "How many may be at once", self.limits.max_concurrent_calls)
        yield Figure("calls_authenticating", "Calls whose token is being looked at", authenticating)
        yield Figure("held_bytes", "What messages of running calls take", held)
        yield Figure("held_bytes_limit", "How much they may take", self.limits.max_held_bytes)
        yield Figure("heap_bytes", "What C's malloc has given out", memory.heap)

    # Looking after those who wait

    def start(self) -> None:
        return_large_blocks()
        self._at_rest = self._memory()
        self._watcher = threading.Thread(target=self._watch, name="sparkport-gate", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._watcher is not None:
            self._watcher.join(_STOP_SECONDS)

    def _watch(self) -> None:
        tidied = time.monotonic()
        while not self._stopped.wait(_TICK_SECONDS):
            try:
                now = time.monotonic()
                self.look_around(now)
                if now - tidied > _TIDY_SECONDS:
                    tidied = now
                    self._tidy()
            except Exception:
                logger.exception("looking after waiting calls failed")

    def look_around(self, now: float) -> None:
        """End the calls that have waited for too long."""
        limits = self.limits
        allowed = {
            FIRST_MESSAGE: limits.first_message_seconds,
            MESSAGE: limits.idle_seconds,
            READER: limits.write_seconds,
        }
        for call in self._waiting():
            seconds = allowed.get(call.waits_for)
            if seconds is not None and now - call.since > seconds:
                logger.info("a call of '%s' is ended: its client did nothing for %g seconds", call.subject, seconds)
                call.cancel()
        if self._crowded():
            self._relieve(now, self._memory())

    def _tidy(self) -> None:
        """After many large messages the process has a lot that nobody uses."""
        memory = self._memory()
        unused = (memory.whole - self._at_rest.whole) - (memory.heap - self._at_rest.heap)
        if unused > self.limits.max_held_bytes // 4:
            trim()

    def _relieve(self, now: float, memory: Memory) -> None:
        """Messages on their way are in the heap; what was made for a reader that does not read can be anywhere."""
        room = self.limits.max_held_bytes
        heap, whole = memory.heap - self._at_rest.heap, memory.whole - self._at_rest.whole
        patience = {
            READER: _STALLED_READER_SECONDS if whole > room else math.inf,
            MESSAGE: _TICK_SECONDS if heap > room // 2 else 0.5 if heap > room // 4 else math.inf,
        }
        patience[FIRST_MESSAGE] = patience[MESSAGE]
        by_subject: dict[str, list[Call]] = {}
        for call in self._waiting():
            if now - call.since > patience.get(call.waits_for, math.inf):
                by_subject.setdefault(call.subject, []).append(call)
        for subject, calls in by_subject.items():
            calls.sort(key=lambda call: call.since)
            for call in calls[: max(0, len(calls) - _KEPT_WAITING)]:
                logger.warning("memory is short: a call of '%s' is ended that waits for its client", subject)
                call.cancel()

    def _waiting(self) -> list[Call]:
        with self._lock:
            return [call for call in self._calls if call.waits_for != NOTHING]

    def _crowded(self) -> bool:
        """Whether somebody has more calls that wait than may be there when memory is short."""
        with self._lock:
            if len(self._calls) <= _KEPT_WAITING:
                return False
            waiting = Counter(call.subject for call in self._calls if call.waits_for != NOTHING)
        return any(number > _KEPT_WAITING for number in waiting.values())


def _subtract(counter: Counter[str], subject: str, number: int) -> None:
    counter[subject] -= number
    if counter[subject] <= 0:
        del counter[subject]
