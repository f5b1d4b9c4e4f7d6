"""How transactions ended, and why those that were aborted were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sparkport.catalog.figures import Figure
from sparkport.errors import Conflict

__all__ = ["EXPIRED", "FAILED", "ROLLED_BACK", "TransactionCounts", "why"]

ROLLED_BACK, FAILED, CONFLICT, EXPIRED = "rolled back", "failed", "conflict", "expired"


def why(exc: BaseException) -> str:
    return CONFLICT if isinstance(exc, Conflict) else FAILED


class TransactionCounts:
    """Of deferred transactions; those of auto-commit are mere pins. The manager's lock guards it."""

    def __init__(self) -> None:
        self.begun = self.committed = 0
        self.aborted: Counter[str] = Counter(dict.fromkeys((ROLLED_BACK, FAILED, CONFLICT, EXPIRED), 0))

    def figures(self, *, deferred: int, pins: int) -> Iterator[Figure]:
        yield Figure("transactions_open", "Deferred transactions that are open", deferred)
        yield Figure("transactions_pins", "Auto-commit transactions that are remembered with what they see", pins)
        yield Figure("transactions_begun", "Deferred transactions begun", self.begun, total=True)
        yield Figure("transactions_committed", "Deferred transactions committed", self.committed, total=True)
        yield from Figure.by_label(
            "transactions_aborted", "Deferred transactions aborted, and why", "reason", dict(self.aborted), total=True
        )
