"""How people write filters in Python: ``(col("a") == 1) & col("b").is_null()``.

Apart from the tree because ``==`` here makes predicates, while nodes of the tree must compare and hash as values.
"""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sparkport.filters.expressions import (
    BOOLEAN,
    And,
    Between,
    Column,
    Comparison,
    Expression,
    ILike,
    In,
    IsNotNull,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    SqlType,
    conjuncts,
)

__all__ = ["ColumnBuilder", "Predicate", "col", "lit"]


def lit(value: Any, type: SqlType | None = None) -> Literal:  # noqa: A002 - the word users expect
    """A literal of the type that fits a Python value, or of the given one (the value then as described above)."""
    if type is not None:
        return Literal(value, type)
    match value:
        case Literal():
            return value
        case None:
            return Literal(None, SqlType("NULL"))
        case bool():
            return Literal(value, BOOLEAN)
        case int():
            return Literal(value, SqlType("BIGINT" if -(2**63) <= value < 2**63 else "HUGEINT"))
        case float():
            return Literal(value, SqlType("DOUBLE"))
        case str():
            return Literal(value, SqlType("VARCHAR"))
        case bytes():
            return Literal(value, SqlType("BLOB"))
        case uuid.UUID():
            return Literal(value, SqlType("UUID"))
        case Decimal():
            return _decimal(value)
        case dt.datetime():
            zone = SqlType("TIMESTAMP" if value.tzinfo is None else "TIMESTAMP WITH TIME ZONE")
            epoch = dt.datetime(1970, 1, 1, tzinfo=None if value.tzinfo is None else dt.UTC)
            return Literal((value - epoch) // dt.timedelta(microseconds=1), zone)
        case dt.date():
            return Literal((value - dt.date(1970, 1, 1)).days, SqlType("DATE"))
        case dt.time():
            micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
            return Literal(micros, SqlType("TIME"))
        case dt.timedelta():
            return Literal((0, value.days, value.seconds * 1_000_000 + value.microseconds), SqlType("INTERVAL"))
        case _:
            raise TypeError(f"no SQL literal for a Python {value.__class__.__name__}")


def _decimal(value: Decimal) -> Literal:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        return Literal(math.nan if value.is_nan() else float(value), SqlType("DOUBLE"))
    scale = max(0, -exponent)
    width = max(len(value.as_tuple().digits) + max(0, exponent), scale, 1)
    return Literal(value, SqlType("DECIMAL", width=width, scale=scale))


@dataclass(frozen=True, slots=True)
class Predicate:
    """What the builder makes: ``&``, ``|`` and ``~`` join predicates; ``expr`` is the tree."""

    expr: Expression

    def __and__(self, other: Predicate) -> Predicate:
        return Predicate(And((*conjuncts(self.expr), *conjuncts(other.expr))))

    def __or__(self, other: Predicate) -> Predicate:
        return Predicate(Or((self.expr, other.expr)))

    def __invert__(self) -> Predicate:
        return Predicate(Not(self.expr))

    def __bool__(self) -> bool:
        raise TypeError("join predicates with &, | and ~ (each side in parentheses), not with and, or, not")


class ColumnBuilder:
    """``col("x") > 5``: its ``==`` makes predicates, which is why it is not the column node itself."""

    __slots__ = ("expr",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self.expr = Column(name)

    def _compare(self, op: str, other: Any) -> Predicate:
        right = other.expr if isinstance(other, ColumnBuilder) else lit(other)
        return Predicate(Comparison(op, self.expr, right))

    def __eq__(self, other: object) -> Predicate:  # type: ignore[override]
        return self._compare("=", other)

    def __ne__(self, other: object) -> Predicate:  # type: ignore[override]
        return self._compare("<>", other)

    def __lt__(self, other: Any) -> Predicate:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Predicate:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Predicate:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Predicate:
        return self._compare(">=", other)

    def is_null(self) -> Predicate:
        return Predicate(IsNull(self.expr))

    def is_not_null(self) -> Predicate:
        return Predicate(IsNotNull(self.expr))

    def isin(self, values: Iterable[Any]) -> Predicate:
        return Predicate(In(self.expr, tuple(lit(value) for value in values)))

    def between(self, lower: Any, upper: Any) -> Predicate:
        return Predicate(Between(self.expr, lit(lower), lit(upper)))

    def like(self, pattern: str) -> Predicate:
        return Predicate(Like(self.expr, lit(pattern)))

    def ilike(self, pattern: str) -> Predicate:
        return Predicate(ILike(self.expr, lit(pattern)))


def col(name: str) -> ColumnBuilder:
    return ColumnBuilder(name)
