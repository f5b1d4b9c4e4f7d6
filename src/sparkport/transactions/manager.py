"""The life of a transaction, whatever engine its changes live in: begin, use, end, expire, be remembered.

An engine gives an ``Engine``; what it needs to know about one transaction it keeps in ``Transaction.state``.
DuckDB asks for a transaction with every query and never ends one, so auto-commit transactions are mere pins: any
number of them may be begun, and the oldest are let go. Limits and listings are about deferred ones.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Generic, Protocol, TypeVar

from sparkport.auth.identity import ANONYMOUS
from sparkport.catalog.context import CallContext
from sparkport.catalog.transaction import Isolation, OpenTransaction, TransactionManager, TransactionState
from sparkport.errors import (
    FailedPrecondition,
    ResourceExhausted,
    TransactionNotActive,
    TransactionNotFound,
    Unavailable,
)

__all__ = ["Engine", "InDoubt", "Transaction", "TransactionSettings", "Transactions", "require_usable"]

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """``remember_seconds`` is how long the end of a transaction can still be asked for.

    ``max_deferred`` is for all together and ``max_deferred_per_subject`` for each caller that can be told from others.
    ``max_staged_bytes`` is how much all deferred transactions together may hold on disk before they are committed.
    """

    idle_seconds: float = 15 * 60.0
    remember_seconds: float = 60 * 60.0
    max_deferred: int = 1_000
    max_deferred_per_subject: int = 100
    max_staged_bytes: int = 64 << 30
    max_auto_commit: int = 100_000
    max_remembered: int = 100_000


class InDoubt(Unavailable):
    """Whether a commit was made cannot be found out now. The transaction stays open, so that it can be asked again."""

    def __init__(self, transaction_id: str, *, auto_commit: bool = False) -> None:
        advice = "ask for its status" if auto_commit else "commit it again"
        super().__init__(f"it is not known yet whether transaction '{transaction_id}' is committed: {advice}")


@dataclass(slots=True, eq=False)
class Transaction(Generic[S]):
    """One transaction. ``lock`` guards all that can change, the engine's ``state`` too."""

    id: str
    owner: str
    state: S
    auto_commit: bool
    isolation: Isolation
    begun: float
    last_used: float
    status: TransactionState = TransactionState.ACTIVE
    ended: bool = False
    wrote: bool = False
    in_doubt: bool = False
    in_use: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)


def require_usable(transaction: Transaction[S]) -> None:
    """For engines, under the transaction's lock: it may have ended since it was found."""
    if transaction.ended:
        raise TransactionNotActive(transaction.id, transaction.status.value)
    if transaction.in_doubt:
        raise InDoubt(transaction.id, auto_commit=transaction.auto_commit)


class Engine(Protocol[S]):
    """What the manager asks of the store that holds the changes."""

    def pin(self) -> S:
        """The state of this instant. Cheap: it happens at every DuckDB query."""

    def begun(self, transaction: Transaction[S]) -> None:
        """A transaction is deferred from now on."""

    def publish(self, transaction: Transaction[S]) -> None:
        """Make a deferred transaction's changes visible in all tables at one instant, or raise Conflict.

        InDoubt where it cannot be told whether that has happened; it is called again then.
        """

    def abort(self, transaction: Transaction[S]) -> TransactionState:
        """Make sure that it will never be committed; the state that holds, if it has been committed after all.

        InDoubt where that cannot be told. In auto-commit it is about a statement whose commit was not answered.
        """

    def discard(self, transaction: Transaction[S]) -> None:
        """Forget the changes. Safe to repeat."""

    def changes(self, transaction: Transaction[S]) -> tuple[tuple[str, ...], int]:
        """The tables it has changed and the number of rows, for listings."""

    def recorded(self, transaction_id: str) -> TransactionState | None:
        """What lasting records say of a transaction that is not known here, as after a restart."""

    def recorded_owner(self, transaction_id: str) -> str | None:
        """Whose it is by these records. MUST NOT change anything."""

    def open_elsewhere(self) -> Sequence[OpenTransaction]:
        """Deferred transactions of other servers on the same catalog."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """What is remembered of a transaction that is over."""

    when: float
    state: TransactionState
    owner: str


class Transactions(TransactionManager, Generic[S]):
    def __init__(
        self,
        engine: Engine[S],
        settings: TransactionSettings | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._settings = settings or TransactionSettings()
        self._clock = clock
        self._lock = threading.Lock()
        # In order of last use, so that the first is the one to expire or to be let go.
        self._auto: OrderedDict[str, Transaction[S]] = OrderedDict()
        self._deferred: OrderedDict[str, Transaction[S]] = OrderedDict()
        self._remembered: OrderedDict[str, _Ending] = OrderedDict()

    # The manager's interface

    def begin(self, ctx: CallContext, *, auto_commit: bool = True, isolation: Isolation = Isolation.SNAPSHOT) -> str:
        self.expire()
        now = self._clock()
        transaction = Transaction(
            str(uuid.uuid4()), ctx.identity.subject, self._engine.pin(), auto_commit, isolation, now, now
        )
        with self._lock:
            if auto_commit:
                self._auto[transaction.id] = transaction
                self._evict()
            else:
                self._admit_deferred(transaction)
                self._deferred[transaction.id] = transaction
        if not auto_commit:
            self._note_begun(transaction)
        return transaction.id

    def commit(self, transaction_id: str) -> None:
        self._end(transaction_id, TransactionState.COMMITTED)

    def rollback(self, transaction_id: str) -> None:
        self._end(transaction_id, TransactionState.ABORTED)

    def failed(self, transaction_id: str) -> None:
        with contextlib.suppress(InDoubt, TransactionNotActive):  # it stays open, or was committed after all
            self.rollback(transaction_id)

    def status(self, transaction_id: str) -> TransactionState | None:
        self.expire()
        self._resolve(transaction_id)
        with self._lock:
            open_one = self._auto.get(transaction_id) or self._deferred.get(transaction_id)
            if open_one is not None:
                return open_one.status
            remembered = self._remembered.get(transaction_id)
        return remembered.state if remembered is not None else self._engine.recorded(transaction_id)

    def owner(self, transaction_id: str) -> str | None:
        with self._lock:
            known = (
                self._auto.get(transaction_id)
                or self._deferred.get(transaction_id)
                or self._remembered.get(transaction_id)
            )
        return known.owner if known is not None else self._engine.recorded_owner(transaction_id)

    def auto_commits(self, transaction_id: str) -> bool:
        with self._lock:
            return transaction_id not in self._deferred

    def require_open(self, transaction_id: str) -> None:
        self._find(transaction_id)

    @contextmanager
    def held(self, transaction_id: str) -> Iterator[None]:
        transaction = self.enter(transaction_id)
        try:
            yield
        finally:
            self.leave(transaction)

    def succeeded(self, transaction_id: str) -> None:
        """An auto-commit statement has published itself: the status says so, and the transaction stays open."""
        with self._lock:
            transaction = self._auto.get(transaction_id) or self._deferred.get(transaction_id)
        if transaction is None:
            return  # ended by another call meanwhile: what the statement published stays
        with transaction.lock:
            transaction.wrote = True
            if transaction.auto_commit:
                transaction.status = TransactionState.COMMITTED

    def defer(self, transaction_id: str) -> None:
        transaction = self._find(transaction_id)
        with transaction.lock:
            if not transaction.auto_commit:
                return
            require_usable(transaction)
            if transaction.wrote:
                raise FailedPrecondition(f"transaction '{transaction_id}' has written already: it cannot be deferred")
            with self._lock:
                self._admit_deferred(transaction)
                self._auto.pop(transaction_id, None)
                self._deferred[transaction_id] = transaction
            transaction.auto_commit = False
            self._note_begun(transaction)

    def open_transactions(self) -> Sequence[OpenTransaction]:
        self.expire()
        with self._lock:
            deferred = list(self._deferred.values())
        return [*(self._described(transaction) for transaction in deferred), *self._engine.open_elsewhere()]

    # For engines

    @contextmanager
    def use(self, ctx: CallContext) -> Iterator[Transaction[S] | None]:
        """The transaction of a call, kept from expiry while the block runs; None when the call is in none."""
        if ctx.transaction_id is None:
            yield None
            return
        transaction = self.enter(ctx.transaction_id)
        try:
            yield transaction
        finally:
            self.leave(transaction)

    def enter(self, transaction_id: str) -> Transaction[S]:
        """Begin to use a transaction; each ``enter`` needs a ``leave``."""
        return self._find(transaction_id, use=True)

    def leave(self, transaction: Transaction[S]) -> None:
        with self._lock:
            transaction.in_use -= 1
            self._touch(transaction)

    def everyone(self) -> list[Transaction[S]]:
        """All that are open, auto-commit ones too: what they see must stay."""
        with self._lock:
            return [*self._auto.values(), *self._deferred.values()]

    def expire(self) -> None:
        """Abort what has been idle for too long, and forget old endings. Called by every look at transactions."""
        now = self._clock()
        idle: list[Transaction[S]] = []
        with self._lock:
            for kind in (self._auto, self._deferred):
                for transaction in kind.values():
                    if now - transaction.last_used < self._settings.idle_seconds:
                        break
                    if not transaction.in_use:
                        idle.append(transaction)
            while self._remembered:
                transaction_id, ending = next(iter(self._remembered.items()))
                too_many = len(self._remembered) > self._settings.max_remembered
                if now - ending.when < self._settings.remember_seconds and not too_many:
                    break
                del self._remembered[transaction_id]
        for transaction in idle:
            if not transaction.lock.acquire(blocking=False):
                continue  # somebody is at it
            try:
                still = not transaction.in_use and now - transaction.last_used >= self._settings.idle_seconds
                if still and not transaction.ended:
                    self._let_go(transaction)
            finally:
                transaction.lock.release()

    # Parts of them

    def _resolve(self, transaction_id: str) -> None:
        """End an auto-commit transaction of whose statement nobody knew whether it was committed; or raise InDoubt."""
        with self._lock:
            transaction = self._auto.get(transaction_id)
        if transaction is not None and transaction.in_doubt:
            with contextlib.suppress(TransactionNotActive):  # it was committed
                self._end(transaction_id, TransactionState.ABORTED)

    def _find(self, transaction_id: str, *, use: bool = False) -> Transaction[S]:
        """An open transaction. Its use begins under the same lock, or it could be let go in between."""
        self.expire()
        self._resolve(transaction_id)
        with self._lock:
            transaction = self._auto.get(transaction_id) or self._deferred.get(transaction_id)
            if transaction is not None:
                self._touch(transaction)
                if transaction.in_doubt:
                    raise InDoubt(transaction_id)
                transaction.in_use += use
                return transaction
            remembered = self._remembered.get(transaction_id)
        state = remembered.state if remembered is not None else self._recorded(transaction_id)
        raise TransactionNotActive(transaction_id, state.value)

    def _recorded(self, transaction_id: str) -> TransactionState:
        """How a transaction ended that is not remembered here."""
        state = self._engine.recorded(transaction_id)
        if state is None:
            raise TransactionNotFound(transaction_id)
        if state is TransactionState.ACTIVE:
            raise FailedPrecondition(f"transaction '{transaction_id}' is open on another server")
        return state

    def _end(self, transaction_id: str, wanted: TransactionState) -> None:
        """End a transaction; to end it again the same way does nothing, to end it the other way is refused."""
        self.expire()
        with self._lock:
            transaction = self._auto.get(transaction_id) or self._deferred.get(transaction_id)
            remembered = self._remembered.get(transaction_id)
            if transaction is not None:
                transaction.in_use += 1  # a commit may take longer than a transaction may be idle
        if transaction is None:
            state = remembered.state if remembered is not None else self._recorded(transaction_id)
            self._check_repeat(transaction_id, state, wanted)
            return
        try:
            self._end_one(transaction, wanted)
        finally:
            self.leave(transaction)

    def _end_one(self, transaction: Transaction[S], wanted: TransactionState) -> None:
        with transaction.lock:
            if transaction.ended:
                self._check_repeat(transaction.id, transaction.status, wanted)
                return
            doubtful = transaction.auto_commit and transaction.in_doubt  # its statement may have ended either way
            if wanted is TransactionState.ABORTED or doubtful:
                state = self._engine.abort(transaction)
                self._finish(transaction, state)
                self._check_repeat(transaction.id, state, wanted)
                return
            try:
                self._engine.publish(transaction)
            except InDoubt:
                transaction.in_doubt = True
                raise
            except BaseException:
                self._finish(transaction, self._engine.abort(transaction))
                raise
            self._finish(transaction, wanted)

    def _let_go(self, transaction: Transaction[S]) -> None:
        """End one that was idle for too long."""
        try:
            known = transaction.auto_commit and not transaction.in_doubt
            state = _left_as(transaction) if known else self._engine.abort(transaction)
        except InDoubt:
            with self._lock:
                self._touch(transaction)  # the next time
            return
        self._finish(transaction, state)

    def _check_repeat(self, transaction_id: str, state: TransactionState, wanted: TransactionState) -> None:
        if state is not wanted:
            raise TransactionNotActive(transaction_id, state.value)

    def _finish(self, transaction: Transaction[S], status: TransactionState) -> None:
        transaction.status = status
        transaction.ended = True
        self._engine.discard(transaction)
        with self._lock:
            self._auto.pop(transaction.id, None)
            self._deferred.pop(transaction.id, None)
            self._remember(transaction, status)

    def _remember(self, transaction: Transaction[S], status: TransactionState) -> None:
        self._remembered[transaction.id] = _Ending(self._clock(), status, transaction.owner)

    def _evict(self) -> None:
        """Let the oldest pins go, those in use excepted."""
        excess = len(self._auto) - self._settings.max_auto_commit
        unused = (other for other in self._auto.values() if not (other.in_use or other.in_doubt))
        for transaction in list(islice(unused, max(0, excess))):
            del self._auto[transaction.id]
            self._engine.discard(transaction)
            self._remember(transaction, _left_as(transaction))

    def _touch(self, transaction: Transaction[S]) -> None:
        transaction.last_used = self._clock()
        for kind in (self._auto, self._deferred):
            if transaction.id in kind:
                kind.move_to_end(transaction.id)

    def _note_begun(self, transaction: Transaction[S]) -> None:
        try:
            self._engine.begun(transaction)
        except BaseException:
            with transaction.lock:
                self._finish(transaction, TransactionState.ABORTED)
            raise

    def _admit_deferred(self, transaction: Transaction[S]) -> None:
        if len(self._deferred) >= self._settings.max_deferred:
            raise ResourceExhausted(f"there are {len(self._deferred)} open deferred transactions, the limit")
        if transaction.owner == ANONYMOUS.subject:
            return  # without authentication all callers are one
        own = sum(other.owner == transaction.owner for other in self._deferred.values())
        if own >= self._settings.max_deferred_per_subject:
            raise ResourceExhausted(f"'{transaction.owner}' has {own} open deferred transactions, the limit for one")

    def _described(self, transaction: Transaction[S]) -> OpenTransaction:
        tables, rows = self._engine.changes(transaction)
        return OpenTransaction(
            id=transaction.id,
            owner=transaction.owner,
            isolation=transaction.isolation,
            begun=datetime.fromtimestamp(transaction.begun, UTC),
            last_used=datetime.fromtimestamp(transaction.last_used, UTC),
            changed_tables=tables,
            changed_rows=rows,
        )


def _left_as(transaction: Transaction[S]) -> TransactionState:
    """The state of one that nobody ended: a client that asks late must learn that its statements were committed."""
    committed = transaction.auto_commit and transaction.status is TransactionState.COMMITTED
    return TransactionState.COMMITTED if committed else TransactionState.ABORTED
