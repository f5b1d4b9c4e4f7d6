"""Lists in tables that somebody rewrites: what comes after a rewriting are other lists than those before it.

Nobody begins or commits while a table is rewritten, so each transaction is on one side with its reads and on one side
with its appends. Each side's lists go before the same checker, without what they began with.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from tests.consistency.checker import Anomaly, Kind, check_lists
from tests.consistency.history import Append, Operation, Outcome, Read, Rewrite, Transaction

__all__ = ["check_rewritten_lists"]

_Started = tuple[int, dict[Hashable, tuple[Hashable, ...]]]
"""The moment at which a rewriting was over, and the elements of each key then."""


def check_rewritten_lists(history: Sequence[Transaction]) -> list[Anomaly]:
    """For transactions of ``Read`` and ``Append``, whose keys are pairs of table and key, and ``Rewrite`` by others."""
    rewritten: dict[str, list[_Started]] = {}
    for transaction in history:
        for operation in transaction.operations:
            if isinstance(operation, Rewrite) and transaction.outcome is not Outcome.ABORTED:
                rewritten.setdefault(operation.table, []).append((transaction.ended, dict(operation.content)))
    for started in rewritten.values():
        started.sort(key=lambda found: found[0])
    appended_in = {
        (operation.key, operation.element): _epoch(rewritten, _parts(operation.key)[0], transaction.ended)
        for transaction in history
        for operation in transaction.operations
        if isinstance(operation, Append) and transaction.outcome is not Outcome.ABORTED
    }
    found: list[Anomaly] = []
    translated: list[Transaction] = []
    for transaction in history:
        operations: list[Operation] = []
        appended: set[str] = set()
        for operation in transaction.operations:
            if not isinstance(operation, Read | Append):
                continue
            table, key = _parts(operation.key)
            begun = _epoch(rewritten, table, transaction.begun)
            ended = _epoch(rewritten, table, transaction.ended)
            if isinstance(operation, Append):
                appended.add(table)
                operations.append(Append((table, key, ended), operation.element))
            elif begun == ended or table not in appended:  # else its own appends would be in a list of the other side
                elements = tuple(operation.value or ())
                first = rewritten[table][begun - 1][1].get(key, ()) if begun else ()
                later = elements[len(first) :]
                detail = f"{operation.key}: {elements}, which began with {first}"
                if elements[: len(first)] != first:
                    found.append(Anomaly(Kind.DIVERGED, (transaction.id,), detail))
                elif any(appended_in.get((operation.key, element), begun) < begun for element in later):
                    found.append(Anomaly(Kind.RESURRECTED, (transaction.id,), detail))
                else:
                    operations.append(Read((table, key, begun), later))
        translated.append(replace(transaction, operations=tuple(operations)))
    return found + check_lists(translated)


def _parts(key: Hashable) -> tuple[str, Hashable]:
    assert isinstance(key, tuple)
    return key


def _epoch(rewritten: dict[str, list[_Started]], table: str, moment: int) -> int:
    return sum(ended < moment for ended, _ in rewritten.get(table, ()))
