"""Filters so simple that Arrow finds the same rows by them as DuckDB does, without a query to set up.

Comparisons of whole numbers, texts, dates and timestamps with constants, and what AND and OR make of them. Floating
point is left out: the two do not agree on NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sparkport.filters.expressions import (
    And,
    Between,
    Column,
    Comparison,
    Expression,
    In,
    IsNotNull,
    IsNull,
    Literal,
    Or,
    SqlType,
)
from sparkport.filters.types import INTEGERS, arrow_sql_type

__all__ = ["COMPARED", "Mask", "compile_mask"]

Mask: TypeAlias = Callable[[Mapping[str, pa.Array]], pa.Array]
"""From columns by their names in small letters to a flag for each row; null means no."""

COMPARED: dict[Any, pa.DataType] = {
    pa.int32(): pa.int32(),
    pa.int64(): pa.int64(),
    pa.string(): pa.string(),
    pa.date32(): pa.int32(),
    pa.timestamp("us"): pa.int64(),
    pa.timestamp("us", "UTC"): pa.int64(),
}
"""The types that Arrow compares as DuckDB does, each with the one in which filters hold its literals."""

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<>": pc.not_equal,
}
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compile_mask(expr: Expression, types: Mapping[str, pa.DataType]) -> Mask | None:
    """The filter as a function of columns; None where any part of it is more than this understands.

    ``types`` has the columns' types by their names in small letters.
    """
    match expr:
        case And(nodes) if nodes:
            return _combined(nodes, types, pc.and_kleene)
        case Or(nodes) if nodes:
            return _combined(nodes, types, pc.or_kleene)
        case IsNull(Column(name)) if name.lower() in types:
            return lambda columns: pc.is_null(columns[name.lower()])
        case IsNotNull(Column(name)) if name.lower() in types:
            return lambda columns: pc.is_valid(columns[name.lower()])
        case Comparison(op, Column() as column, Literal() as literal) if op in _COMPARE:
            return _comparison(op, column, literal, types)
        case Comparison(op, Literal() as literal, Column() as column) if op in _FLIPPED:
            return _comparison(_FLIPPED[op], column, literal, types)
        case In(Column() as column, values) if values:
            return _membership(column, values, types)
        case Between(Column() as column, Literal() as low, Literal() as high, low_too, high_too):
            lower = Comparison(">=" if low_too else ">", column, low)
            return _combined([lower, Comparison("<=" if high_too else "<", column, high)], types, pc.and_kleene)
        case _:
            return None


def _combined(
    nodes: Sequence[Expression], types: Mapping[str, pa.DataType], combine: Callable[[Any, Any], Any]
) -> Mask | None:
    masks = [mask for node in nodes if (mask := compile_mask(node, types)) is not None]
    if len(masks) < len(nodes):
        return None
    return lambda columns: reduce(combine, (mask(columns) for mask in masks))


def _comparison(op: str, column: Column, literal: Literal, types: Mapping[str, pa.DataType]) -> Mask | None:
    values = _values(column, [literal], types)
    if values is None:
        return None
    name, compare, wanted = column.name.lower(), _COMPARE[op], values[0]
    return lambda columns: compare(columns[name], wanted)


def _membership(column: Column, nodes: Sequence[Expression], types: Mapping[str, pa.DataType]) -> Mask | None:
    literals = [node for node in nodes if isinstance(node, Literal)]
    values = _values(column, literals, types) if len(literals) == len(nodes) else None
    if values is None:
        return None
    name = column.name.lower()
    return lambda columns: pc.is_in(columns[name], value_set=values)


def _values(column: Column, literals: Sequence[Literal], types: Mapping[str, pa.DataType]) -> pa.Array | None:
    """The constants in the column's own type; None where it is compared as something else, or with NULL."""
    column_type = types.get(column.name.lower())
    if column_type not in COMPARED or (seen := arrow_sql_type(column_type)) is None:
        return None
    names = INTEGERS if seen.id in INTEGERS else {seen.id}
    if not all(_is_alike(column.type, literal, names) for literal in literals):
        return None
    try:
        return pa.array([literal.value for literal in literals], COMPARED[column_type]).view(column_type)
    except (pa.ArrowException, OverflowError):  # a number that the column cannot hold
        return None


def _is_alike(seen: SqlType | None, literal: Literal, names: Collection[str]) -> bool:
    right = str if "VARCHAR" in names else int
    seen_alike = seen is None or seen.id in names  # without a type the column is compared as what it is
    return seen_alike and literal.type.id in names and type(literal.value) is right
