"""How much of a filter the server reads: past it a part is left to the client, which applies its filters itself anyway.

The limits hold for the JSON before anything is made of it, because all that follows costs more: a tree, SQL text, and
a query that DuckDB must bind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["MAX_BYTES", "MAX_DEPTH", "within_limits"]

MAX_BYTES = 4 << 20
MAX_DEPTH = 100

_BUDGET = 10_000
"""What all parts of a filter may weigh: up to ten thousand values for IN, or five hundred expressions."""
_EXPRESSION = 20


def within_limits(filters: list[Any]) -> Iterator[bool]:
    """For each part in its turn, whether it fits into what the parts before it have left."""
    left = _BUDGET
    for item in filters:
        weight = _weight(item, limit=left)
        yield weight <= left
        if weight <= left:
            left -= weight


def _weight(item: Any, *, limit: int) -> int:
    """What a part weighs; counting stops above the limit. What stands in lists counts: constants, names in types."""
    weight = 0
    waiting = [item]
    while waiting and weight <= limit:
        match waiting.pop():
            case {"expression_class": expression_class} as node:
                weight += 0 if expression_class == "BOUND_CONSTANT" else _EXPRESSION
                waiting.extend(node.values())
            case dict() as node:
                waiting.extend(node.values())
            case list() as parts:
                weight += len(parts)
                waiting.extend(parts if weight <= limit else ())
    return weight
