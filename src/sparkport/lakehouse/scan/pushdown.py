"""Filters for DuckDB to apply while it reads, written so that they can neither lose a row nor make the scan fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkport.catalog.best_effort import best_effort
from sparkport.catalog.row_ids import ROW_ID
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
    Not,
    NotIn,
    Or,
    SqlType,
    conjuncts,
    simplify,
    walk,
)
from sparkport.filters.sql import is_supported, to_sql, type_sql
from sparkport.filters.types import INTEGERS
from sparkport.lakehouse.columns.type_table import known_type
from sparkport.lakehouse.columns.types import sql_type

__all__ = ["filter_sql"]

# Types as which clients see what is stored as another, and values stay what they are (or the cast fails).
_EXACT = frozenset(
    {
        ("VARCHAR", "JSON"),
        ("VARCHAR", "ENUM"),
        ("VARCHAR", "UUID"),
        ("FLOAT", "DOUBLE"),
        ("TIMESTAMP", "TIMESTAMP_S"),
        ("TIMESTAMP", "TIMESTAMP_MS"),
    }
)
_NEVER_FAIL = (And, Or, Not, Comparison, IsNull, IsNotNull, In, NotIn, Between, Literal, Column)


def filter_sql(
    expr: Expression | None,
    fields: Sequence[Mapping[str, Any]],
    *,
    column: Callable[[Mapping[str, Any]], str],
    row_id: str,
) -> str | None:
    """A condition over stored columns that holds wherever ``expr`` does; None where nothing can be said.

    ``column`` spells a field; ``row_id`` is the spelling of the row id. What could fail on some value is put so that
    it keeps that row instead.
    """
    if expr is None:
        return None
    return best_effort(lambda: _Pushdown(fields, column, row_id).write(expr), otherwise=None)


class _Pushdown:
    def __init__(
        self, fields: Sequence[Mapping[str, Any]], column: Callable[[Mapping[str, Any]], str], row_id: str
    ) -> None:
        self._fields: dict[str, Mapping[str, Any] | None] = {}
        for field in fields:
            name = field["name"].lower()
            self._fields[name] = None if name in self._fields else field
        self._column = column
        self._row_id = row_id

    def write(self, expr: Expression) -> str | None:
        kept = simplify(expr, self._supported)
        parts = [self._condition(part) for part in conjuncts(kept)]
        return " AND ".join(parts) or None

    def _condition(self, part: Expression) -> str:
        text = to_sql(part, column=lambda used: self._spelled(used) or "NULL")
        safe = all(isinstance(node, _NEVER_FAIL) and not self._is_doubtful(node) for node in walk(part))
        return text if safe else f"(TRY({text}) IS DISTINCT FROM FALSE)"

    def _supported(self, node: Expression) -> bool:
        return is_supported(node) and (not isinstance(node, Column) or self._spelled(node) is not None)

    def _is_doubtful(self, node: Expression) -> bool:
        """Whether a column is compared as another type than it is stored in, or nobody knows as which."""
        return isinstance(node, Column) and (node.type is None or (self._spelled(node) or "").startswith("CAST("))

    def _spelled(self, column: Column) -> str | None:
        name = column.name.lower()
        if name == ROW_ID and name not in self._fields:
            return self._row_id if column.type in (None, SqlType("BIGINT")) else f"CAST({self._row_id} AS BIGINT)"
        field = self._fields.get(name)
        if field is None:
            return None
        spelled = self._column(field)
        if column.type is None:
            return spelled
        known, wanted = known_type(field["type"]), type_sql(column.type)
        if known is None or known.filtered is None or wanted is None:
            return spelled if wanted is not None and wanted == sql_type(field["type"]) else None
        if known.filtered == column.type:
            return spelled
        return f"CAST({spelled} AS {wanted})" if _is_exact(known.filtered, column.type) else None


def _is_exact(stored: SqlType, wanted: SqlType) -> bool:
    if wanted.id in INTEGERS:
        return stored.id in ("INTEGER", "BIGINT") or (stored.id == "DECIMAL" and stored.scale == 0)
    if (stored.id, wanted.id) == ("DECIMAL", "DECIMAL"):
        return wanted.scale >= stored.scale and wanted.width - wanted.scale >= stored.width - stored.scale
    return (stored.id, wanted.id) in _EXACT
