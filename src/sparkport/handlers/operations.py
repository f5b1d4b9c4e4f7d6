"""One operation in its transaction: who commits, who aborts, and which statements have been done before."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sparkport.catalog.context import CallContext, entered
from sparkport.catalog.model import Catalog
from sparkport.catalog.transaction import TransactionManager, TransactionState
from sparkport.errors import TransactionNotActive, TransactionNotFound, Unavailable, Unsupported

__all__ = ["Operations", "StatementLog", "require_manager"]

logger = logging.getLogger(__name__)

_REMEMBERED = 100_000
_DAY = 24 * 60 * 60.0


def require_manager(catalog: Catalog) -> TransactionManager:
    if catalog.transactions is None:
        raise Unsupported("transaction manager not configured")
    return catalog.transactions


class Operations:
    """Brackets operations. Transactions that a client has ended itself take no more of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: OrderedDict[tuple[int, str], None] = OrderedDict()

    @contextmanager
    def running(self, ctx: CallContext, catalog: Catalog) -> Iterator[None]:
        """In auto-commit the end of the block commits; a failure inside it aborts the transaction."""
        if ctx.transaction_id is None:
            yield
            return
        manager = require_manager(catalog)
        transaction_id = ctx.transaction_id
        with self.held(manager, transaction_id), _ending(transaction_id, manager.succeeded, manager.failed):
            yield

    @contextmanager
    def own(self, ctx: CallContext, manager: TransactionManager) -> Iterator[CallContext]:
        """A transaction for the length of the block, for a call that has none: commits at its end, or rolls back."""
        transaction_id = manager.begin(ctx)
        inner = replace(ctx, transaction_id=transaction_id)
        with _ending(transaction_id, manager.commit, manager.rollback), entered(inner):
            yield inner

    def require_own(self, ctx: CallContext, manager: TransactionManager, transaction_id: str) -> None:
        """To a caller another's transaction is one that does not exist, so that an id alone is of no use."""
        owner = manager.owner(transaction_id)
        if owner is not None and owner != ctx.identity.subject:
            raise TransactionNotFound(transaction_id)

    def require_joinable(self, ctx: CallContext, catalog: Catalog) -> None:
        """Return when the call is in no transaction, or in none of another caller."""
        if ctx.transaction_id is not None and catalog.transactions is not None:
            self.require_own(ctx, catalog.transactions, ctx.transaction_id)

    def state(self, ctx: CallContext, manager: TransactionManager, transaction_id: str) -> TransactionState:
        """The state of a caller's transaction."""
        self.require_own(ctx, manager, transaction_id)
        state = manager.status(transaction_id)
        if state is None:
            raise TransactionNotFound(transaction_id)
        return state

    def require_open(self, manager: TransactionManager, transaction_id: str) -> None:
        manager.require_open(transaction_id)
        if self.is_ended(manager, transaction_id):
            state = manager.status(transaction_id) or TransactionState.COMMITTED
            raise TransactionNotActive(transaction_id, state.value)

    @contextmanager
    def held(self, manager: TransactionManager, transaction_id: str) -> Iterator[None]:
        """Require a transaction that is open, and keep it from expiring while the block runs."""
        with manager.held(transaction_id):
            self.require_open(manager, transaction_id)
            yield

    def is_ended(self, manager: TransactionManager, transaction_id: str) -> bool:
        with self._lock:
            return (id(manager), transaction_id) in self._ended

    def ended(self, manager: TransactionManager, transaction_id: str) -> None:
        """The client has ended the transaction, which a manager that auto-commits cannot tell from its own commits."""
        with self._lock:
            self._ended[(id(manager), transaction_id)] = None
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)


@contextmanager
def _ending(transaction_id: str, commit: Callable[[str], None], rollback: Callable[[str], None]) -> Iterator[None]:
    """A commit that fails is a failure too: the transaction must not stay open."""
    try:
        yield
        commit(transaction_id)
    except BaseException:
        try:
            rollback(transaction_id)
        except Exception:
            logger.exception("transaction %s could not be rolled back", transaction_id)
        raise


@dataclass(slots=True)
class _Entry:
    when: float
    count: int | None = None


class StatementLog:
    """Statements by their ids, so that one that is sent again after a lost answer is not done twice."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    @contextmanager
    def once(self, key: str | None, catalog: Catalog, *, schema: str, table: str) -> Iterator[_Once]:
        """Runs the block for a statement on a table; ``done`` of what it yields says what came of an earlier run.

        What the server itself does not remember, because it was started anew, the catalog may.
        """
        if key is None:
            yield _Once()
            return
        with self._lock:
            self._forget()
            entry = self._entries.get(key)
            if entry is not None and entry.count is None:
                raise Unavailable("the same statement is still running: send it again for its outcome")
            if entry is None:
                self._entries[key] = _Entry(self._clock())
        try:
            known = catalog.committed_statement(key, schema=schema, table=table) if entry is None else entry.count
            once = _Once(known)
        except BaseException:
            with self._lock:
                self._entries.pop(key, None)
            raise
        try:
            yield once
        finally:
            if entry is None:
                with self._lock:
                    count = once.done if once.count is None else once.count
                    if count is None:
                        self._entries.pop(key, None)
                    else:
                        self._entries[key] = _Entry(self._clock(), count)

    def _forget(self) -> None:
        now = self._clock()
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if now - entry.when < _DAY and len(self._entries) <= _REMEMBERED:
                return
            del self._entries[key]


@dataclass(slots=True)
class _Once:
    """``done`` is the count of an earlier run; set ``count`` when the statement has been committed."""

    done: int | None = None
    count: int | None = None
