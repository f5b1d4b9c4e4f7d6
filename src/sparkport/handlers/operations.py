"""One operation in its transaction: who commits, who aborts, and which statements have been done before."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sparkport.catalog.context import CallContext, entered
from sparkport.catalog.model import Catalog
from sparkport.catalog.repeats import KNOWN_SECONDS, Recent
from sparkport.catalog.transaction import Isolation, TransactionManager, TransactionState
from sparkport.errors import (
    ConstraintViolation,
    DuplicateKey,
    TransactionNotActive,
    TransactionNotFound,
    Unavailable,
    Unsupported,
)
from sparkport.policies.discretion import Discretion, Violation

__all__ = ["Operations", "StatementLog", "require_manager"]

logger = logging.getLogger(__name__)


def require_manager(catalog: Catalog) -> TransactionManager:
    if catalog.transactions is None:
        raise Unsupported("transaction manager not configured")
    return catalog.transactions


class Operations:
    """Brackets operations. Transactions that a client has ended itself take no more of them."""

    def __init__(self) -> None:
        self.statements = StatementLog()
        self._ended: Recent[tuple[int, str], bool] = Recent()
        self._limits_lock = threading.Lock()
        self._limits: Recent[str, Mapping[str, Discretion]] = Recent()

    @contextmanager
    def running(self, ctx: CallContext, catalog: Catalog) -> Iterator[None]:
        """In auto-commit the end of the block commits; a failure inside it aborts the transaction."""
        if ctx.transaction_id is None:
            yield
            return
        manager = require_manager(catalog)
        transaction_id = ctx.transaction_id
        with (
            self.held(manager, transaction_id),
            _ending(transaction_id, self._discreetly(manager.succeeded), manager.failed),
        ):
            yield

    @contextmanager
    def new_transaction(
        self, ctx: CallContext, manager: TransactionManager, isolation: Isolation = Isolation.SNAPSHOT
    ) -> Iterator[CallContext]:
        """A transaction for the length of the block, for a call that has none: commits at its end, or rolls back."""
        transaction_id = manager.begin(ctx, isolation=isolation)
        inner = replace(ctx, transaction_id=transaction_id)
        with _ending(transaction_id, self._discreetly(manager.commit), manager.rollback), entered(inner):
            yield inner

    def limit(self, transaction_id: str, discretion: Discretion) -> None:
        """A transaction uses a table that its owner sees a part of: what its commit tells is limited as well."""
        with self._limits_lock:
            known = self._limits.get(transaction_id) or {}
            others = [item for name, item in known.items() if name == discretion.table]
            self._limits.put(transaction_id, {**known, discretion.table: discretion.common(others)})

    def commit(self, manager: TransactionManager, transaction_id: str) -> None:
        self._discreetly(manager.commit)(transaction_id)

    def _discreetly(self, end: Callable[[str], None]) -> Callable[[str], None]:
        """Rows are looked at when all is committed: of a constraint that is hidden no values are told."""

        def ended(transaction_id: str) -> None:
            try:
                end(transaction_id)
                return
            except (ConstraintViolation, DuplicateKey) as exc:
                told = self._told(transaction_id, exc)
                if told is exc:
                    raise
            raise told

        return ended

    def _told(self, transaction_id: str, exc: Violation) -> Violation:
        limits = self._limits.get(transaction_id) or {}
        if exc.table is not None:
            return limits[exc.table].told(exc) if exc.table in limits else exc
        # It may be about any of them.
        return next((told for limit in limits.values() if (told := limit.told(exc)) is not exc), exc)

    def require_owner(self, ctx: CallContext, manager: TransactionManager, transaction_id: str) -> None:
        """For a caller, others' transactions do not exist, so that an id alone is of no use."""
        owner = manager.owner(transaction_id)
        if owner is not None and owner != ctx.identity.subject:
            raise TransactionNotFound(transaction_id)

    def require_joinable(self, ctx: CallContext, catalog: Catalog) -> None:
        """Return when the call is in no transaction, or in none of another caller."""
        if ctx.transaction_id is not None and catalog.transactions is not None:
            self.require_owner(ctx, catalog.transactions, ctx.transaction_id)

    def state(self, ctx: CallContext, manager: TransactionManager, transaction_id: str) -> TransactionState:
        """The state of a caller's transaction."""
        self.require_owner(ctx, manager, transaction_id)
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
        return self._ended.get((id(manager), transaction_id)) is not None

    def ended(self, manager: TransactionManager, transaction_id: str) -> None:
        """The client has ended the transaction, which a manager that auto-commits takes for its own commits."""
        self._ended.put((id(manager), transaction_id), True)


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


class StatementLog:
    """Statements by their ids, so that one that is sent again after a lost answer is not done twice."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._counts: Recent[str, int] = Recent(KNOWN_SECONDS, clock)

    @contextmanager
    def once(self, key: str | None, catalog: Catalog, *, schema: str, table: str) -> Iterator[_Once]:
        """Runs the block for a statement on a table; ``done`` of what it yields says what came of an earlier run.

        The catalog may remember what the server, because it was started anew, does not.
        """
        if key is None:
            yield _Once()
            return
        with self._lock:
            count = self._counts.get(key)
            if count is None:
                if key in self._running:
                    raise Unavailable("the same statement is still running: send it again for its outcome")
                self._running.add(key)
        if count is not None:
            yield _Once(count)
            return
        once = _Once()
        try:
            once.done = catalog.committed_statement(key, schema=schema, table=table)
            yield once
        finally:
            count = once.done if once.count is None else once.count
            with self._lock:
                if count is not None:
                    self._counts.put(key, count)
                self._running.discard(key)


@dataclass(slots=True)
class _Once:
    """``done`` is the count of an earlier run; set ``count`` when the statement has been committed."""

    done: int | None = None
    count: int | None = None
