"""What a repeat is: a call that a client sends again because the first one's answer was lost. It is not done twice.

| what | is the same if it has the same | is known for |
|---|---|---|
| a statement with an id | table, change, caller and id (`statement_key`) | a day, here and in a lakehouse |
| DDL | session and words, and nothing else was done there since | a minute, here |
| the end of a transaction | transaction, and way to end | an hour here, a day in a lakehouse |

A server's own memory is a `Recent`. A lakehouse writes statements and ends down where it commits them, in the
catalog's database or in the properties of a table that a REST catalog has, each for `KNOWN_SECONDS`.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from sparkport.catalog.context import CallContext
from sparkport.catalog.model import Catalog

__all__ = ["DDL_SECONDS", "KNOWN_SECONDS", "Recent", "statement_key"]

KNOWN_SECONDS = 24 * 3600.0
DDL_SECONDS = 60.0
_REMEMBERED = 100_000
_OWNERS = 10

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """What has happened within a time, and no more of it than so many. Safe to use from several threads.

    Of what belongs to one ``owner`` at most a tenth is kept: who makes up keys pushes out its own, not others'.
    """

    def __init__(
        self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic, *, at_most: int = _REMEMBERED
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._at_most = at_most
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, tuple[float, V, str | None]] = OrderedDict()
        self._owned: dict[str, OrderedDict[K, None]] = {}

    def get(self, key: K) -> V | None:
        with self._lock:
            when, value, _ = self._kept.get(key, (None, None, None))
        return None if when is None or self._clock() - when >= self._seconds else value

    def put(self, key: K, value: V, owner: str | None = None) -> None:
        now = self._clock()
        with self._lock:
            self._forget(key)
            self._kept[key] = now, value, owner
            if owner is not None:
                own = self._owned.setdefault(owner, OrderedDict())
                own[key] = None
                if len(own) > max(1, self._at_most // _OWNERS):
                    self._forget(next(iter(own)))
            while self._kept and (
                len(self._kept) > self._at_most or now - next(iter(self._kept.values()))[0] >= self._seconds
            ):
                self._forget(next(iter(self._kept)))

    def _forget(self, key: K) -> None:
        _, _, owner = self._kept.pop(key, (None, None, None))
        if owner is not None:
            del self._owned[owner][key]
            if not self._owned[owner]:
                del self._owned[owner]


def statement_key(ctx: CallContext, catalog: Catalog, change: Enum, *, schema: str, table: str) -> str | None:
    """None without an id. In a deferred transaction a statement is part of that one only."""
    if ctx.statement_id is None:
        return None
    manager, transaction_id = catalog.transactions, ctx.transaction_id
    deferred = manager is not None and transaction_id is not None and not manager.auto_commits(transaction_id)
    parts = (
        catalog.name,
        schema.casefold(),
        table.casefold(),
        change.value,
        ctx.identity.subject,
        ctx.statement_id,
        transaction_id if deferred else None,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()
