"""Answers that are lost: at every step of every change, by whoever was asked, and the client's own connection.

The database, Spark or the store has done what it was told, and nobody hears of it; or the client has sent its
statement, and its connection ends. What runs then and what must hold is in ``cases`` and ``transactions``.
"""

from __future__ import annotations

import random

from tests.faults.cases import CHANGES, DDL, WAYS, Case, ddl_points, statement_points
from tests.faults.transactions import TRANSACTIONS, kinds_of_one_table

from sparkport.lakehouse.faults import POINTS, Fault

__all__ = ["lost_cases"]


def lost_cases(seed: int) -> list[Case]:
    """All of them, in an order that the seed decides."""
    chance = random.Random(seed)
    chosen: list[tuple[str, Fault, str]] = []
    for change in CHANGES:
        for point in statement_points(change):
            chosen += [(change, Fault(point, action), "") for action in ("lost", "cut")]
            if point != "publish.after":  # when all who had to answer have done so but the server itself
                chosen += [(change, Fault(point, "lost"), way) for way in WAYS[1:]]
    chosen += [(operation, Fault(point, "lost"), "") for operation in DDL for point in ddl_points(operation)]
    for point in POINTS:
        for action in ("lost", "cut"):
            kinds = [kinds_of_one_table(point), TRANSACTIONS[2:]]
            chosen += [(chance.choice(kind), Fault(point, action), "") for kind in kinds]
    chance.shuffle(chosen)
    return [Case(number, *what) for number, what in enumerate(chosen, 1)]
