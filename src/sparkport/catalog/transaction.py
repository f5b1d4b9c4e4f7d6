"""How the server speaks to whoever keeps transactions; a catalog without a manager works too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from sparkport.catalog.context import CallContext
from sparkport.catalog.figures import Figure
from sparkport.errors import TransactionNotActive, TransactionNotFound, Unsupported

__all__ = ["Isolation", "OpenTransaction", "TransactionManager", "TransactionState", "require_committable"]


class TransactionState(Enum):
    ACTIVE = "active"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Isolation(Enum):
    """Under ``SERIALIZABLE`` a commit is also refused when a table that was read has changed."""

    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A deferred transaction that has not ended, as ``tx.transactions`` shows it."""

    id: str
    owner: str
    isolation: Isolation
    begun: datetime
    last_used: datetime
    changed_tables: tuple[str, ...] = ()
    changed_rows: int = 0


class TransactionManager(ABC):
    """Coordinates the statements of a transaction. Called from several threads at once.

    A manager of your own needs the four abstract methods. In auto-commit the server calls ``commit`` after each
    operation that succeeds and ``rollback`` after one that fails; operations with the id of a transaction that
    auto-committed are still taken. The other methods are for managers that can hold a commit back.
    """

    @abstractmethod
    def begin(self, ctx: CallContext, *, auto_commit: bool = True, isolation: Isolation = Isolation.SNAPSHOT) -> str:
        """Open a transaction; its id MUST be unique for ever. MUST raise Unsupported for what it cannot do."""

    @abstractmethod
    def commit(self, transaction_id: str) -> None:
        """Make it last. MUST be safe to repeat."""

    @abstractmethod
    def rollback(self, transaction_id: str) -> None:
        """Undo it. MUST be safe to repeat."""

    @abstractmethod
    def status(self, transaction_id: str) -> TransactionState | None:
        """The state, or None for an id that was never given out or is long forgotten. MUST NOT change anything."""

    def auto_commits(self, transaction_id: str) -> bool:
        """Whether each operation of the transaction commits by itself."""
        return True

    def require_open(self, transaction_id: str) -> None:
        """Return when operations may still join the transaction; raise NotFound or TransactionNotActive when not."""
        state = self.status(transaction_id)
        if state is None:
            raise TransactionNotFound(transaction_id)
        if state is TransactionState.ABORTED:
            raise TransactionNotActive(transaction_id, state.value)

    def held(self, transaction_id: str) -> AbstractContextManager[None]:
        """Operations may join it while the block runs, however long that is: a scan or a statement is under way.

        Raises as ``require_open`` does. A manager that lets idle transactions expire SHOULD keep this one.
        """
        self.require_open(transaction_id)
        return nullcontext()

    def succeeded(self, transaction_id: str) -> None:
        """An operation of the transaction has succeeded: in auto-commit that commits it."""
        if self.auto_commits(transaction_id):
            self.commit(transaction_id)

    def failed(self, transaction_id: str) -> None:
        """An operation of the transaction has failed, which aborts it."""
        self.rollback(transaction_id)

    def defer(self, transaction_id: str) -> None:
        """Hold the commit back from now on. MUST refuse after a write, with FailedPrecondition."""
        raise Unsupported("this catalog's transactions commit each statement: they cannot be deferred")

    def figures(self) -> Iterable[Figure]:
        """Numbers about its transactions."""
        return ()

    def open_transactions(self) -> Sequence[OpenTransaction]:
        return ()

    def owner(self, transaction_id: str) -> str | None:
        """The subject that began it, to whom alone the server shows it; None where that is not known."""
        return None


def require_committable(manager: TransactionManager, transaction_id: str) -> None:
    """Return when a client may ask for a commit: a manager only promises that commits can be repeated."""
    state = manager.status(transaction_id)
    if state is None:
        raise TransactionNotFound(transaction_id)
    if state is TransactionState.ABORTED:
        raise TransactionNotActive(transaction_id, state.value)
