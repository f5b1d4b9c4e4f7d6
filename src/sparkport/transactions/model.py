"""A transaction, its settings, and what a store must do for the manager to keep some."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from sparkport.catalog.transaction import Isolation, OpenTransaction, TransactionState
from sparkport.errors import TransactionNotActive, Unavailable
from sparkport.transactions.counts import ROLLED_BACK

__all__ = ["Engine", "InDoubt", "Transaction", "TransactionSettings", "require_usable"]

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """``remember_seconds`` is how long the end of a transaction can still be asked for.

    ``max_deferred`` is for all together and ``max_deferred_per_subject`` for each caller that is not anonymous.
    ``max_staged_bytes`` is how much all deferred transactions together may hold, in memory and on disk.
    """

    idle_seconds: float = 15 * 60.0
    remember_seconds: float = 60 * 60.0
    max_deferred: int = 1_000
    max_deferred_per_subject: int = 100
    max_staged_bytes: int = 64 << 30
    max_auto_commit: int = 100_000
    max_remembered: int = 100_000


class InDoubt(Unavailable):
    """Nobody can say now whether a commit was made. The transaction stays open, so that a caller can ask again."""

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
    why: str = ROLLED_BACK
    """The reason, should it be aborted."""
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

        InDoubt if nobody can say now whether that has happened; it is called again then.
        """

    def abort(self, transaction: Transaction[S]) -> TransactionState:
        """Make sure that it will never be committed; returns its state, since it may have been committed after all.

        InDoubt if nobody can say. In auto-commit it is about a statement whose commit was not answered.
        """

    def discard(self, transaction: Transaction[S]) -> None:
        """Forget the changes. Safe to repeat."""

    def changes(self, transaction: Transaction[S]) -> tuple[tuple[str, ...], int]:
        """The tables it has changed and the number of rows, for listings."""

    def recorded(self, transaction_id: str) -> TransactionState | None:
        """What lasting records say of a transaction that is not known here, as after a restart."""

    def recorded_owner(self, transaction_id: str) -> str | None:
        """The owner that these records name. MUST NOT change anything."""

    def open_elsewhere(self) -> Sequence[OpenTransaction]:
        """Deferred transactions of other servers on the same catalog."""
