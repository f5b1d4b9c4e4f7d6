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
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Generic, TypeVar

from sparkport.auth.identity import ANONYMOUS
from sparkport.catalog.context import CallContext
from sparkport.catalog.figures import Figure
from sparkport.catalog.repeats import Recent
from sparkport.catalog.transaction import Isolation, OpenTransaction, TransactionManager, TransactionState
from sparkport.errors import (
    FailedPrecondition,
    ResourceExhausted,
    TransactionNotActive,
    TransactionNotFound,
)
from sparkport.transactions.counts import EXPIRED, FAILED, TransactionCounts, why
from sparkport.transactions.model import Engine, InDoubt, Transaction, TransactionSettings, require_usable

__all__ = ["Engine", "InDoubt", "Transaction", "TransactionSettings", "Transactions", "require_usable"]

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class _Ending:
    """What is remembered of a transaction that is over."""

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
        self._counts = TransactionCounts()
        # In order of last use, so that the first is the one to expire or to be let go.
        self._auto: OrderedDict[str, Transaction[S]] = OrderedDict()
        self._deferred: OrderedDict[str, Transaction[S]] = OrderedDict()
        self._remembered: Recent[str, _Ending] = Recent(
            self._settings.remember_seconds, clock, at_most=self._settings.max_remembered
        )

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
                self._counts.begun += 1
        if not auto_commit:
            self._note_begun(transaction)
        return transaction.id

    def commit(self, transaction_id: str) -> None:
        self._end(transaction_id, TransactionState.COMMITTED)

    def rollback(self, transaction_id: str) -> None:
        self._end(transaction_id, TransactionState.ABORTED)

    def failed(self, transaction_id: str) -> None:
        with contextlib.suppress(InDoubt, TransactionNotActive):  # it stays open, or was committed after all
            self._end(transaction_id, TransactionState.ABORTED, reason=FAILED)

    def status(self, transaction_id: str) -> TransactionState | None:
        self.expire()
        self._resolve(transaction_id)
        with self._lock:
            open_one = self._open(transaction_id)
            if open_one is not None:
                return open_one.status
            remembered = self._remembered.get(transaction_id)
        return remembered.state if remembered is not None else self._engine.recorded(transaction_id)

    def owner(self, transaction_id: str) -> str | None:
        with self._lock:
            known = self._open(transaction_id) or self._remembered.get(transaction_id)
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
            transaction = self._open(transaction_id)
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
                self._counts.begun += 1
            transaction.auto_commit = False
            self._note_begun(transaction)

    def open_transactions(self) -> Sequence[OpenTransaction]:
        self.expire()
        with self._lock:
            deferred = list(self._deferred.values())
        return [*(self._described(transaction) for transaction in deferred), *self._engine.open_elsewhere()]

    def figures(self) -> Iterator[Figure]:
        with self._lock:
            return self._counts.figures(deferred=len(self._deferred), pins=len(self._auto))

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
        """Abort what has been idle for too long. Called by every look at transactions."""
        now = self._clock()
        idle: list[Transaction[S]] = []
        with self._lock:
            for open_transactions in (self._auto, self._deferred):
                for transaction in open_transactions.values():
                    if now - transaction.last_used < self._settings.idle_seconds:
                        break
                    if not transaction.in_use:
                        idle.append(transaction)
        for transaction in idle:
            if not transaction.lock.acquire(blocking=False):
                continue  # somebody is at it
            try:
                still_idle = not transaction.in_use and now - transaction.last_used >= self._settings.idle_seconds
                if still_idle and not transaction.ended:
                    self._let_go(transaction)
            finally:
                transaction.lock.release()

    # Parts of them

    def _open(self, transaction_id: str) -> Transaction[S] | None:
        """One that has not ended; ``_lock`` is held."""
        return self._auto.get(transaction_id) or self._deferred.get(transaction_id)

    def _resolve(self, transaction_id: str) -> None:
        """End an auto-commit transaction whose statement may have been committed; or raise InDoubt."""
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
            transaction = self._open(transaction_id)
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

    def _end(self, transaction_id: str, wanted: TransactionState, *, reason: str | None = None) -> None:
        """End a transaction; ending it again the same way does nothing, ending it the other way is refused."""
        self.expire()
        with self._lock:
            transaction = self._open(transaction_id)
            remembered = self._remembered.get(transaction_id)
            if transaction is not None:
                transaction.in_use += 1  # a commit may take longer than a transaction may be idle
                transaction.why = reason or transaction.why
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
            except BaseException as exc:
                transaction.why = why(exc)
                self._finish(transaction, self._engine.abort(transaction))
                raise
            self._finish(transaction, wanted)

    def _let_go(self, transaction: Transaction[S]) -> None:
        """End one that was idle for too long."""
        transaction.why = EXPIRED
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
            if self._deferred.pop(transaction.id, None) is not None:
                self._counts.committed += status is TransactionState.COMMITTED
                self._counts.aborted[transaction.why] += status is TransactionState.ABORTED
            self._remember(transaction, status)

    def _remember(self, transaction: Transaction[S], status: TransactionState) -> None:
        self._remembered.put(transaction.id, _Ending(status, transaction.owner))

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
        for open_transactions in (self._auto, self._deferred):
            if transaction.id in open_transactions:
                open_transactions.move_to_end(transaction.id)

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
        count = sum(other.owner == transaction.owner for other in self._deferred.values())
        if count >= self._settings.max_deferred_per_subject:
            raise ResourceExhausted(f"'{transaction.owner}' has {count} open deferred transactions, the limit for one")

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
