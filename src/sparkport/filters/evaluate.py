"""Row filters applied to Arrow batches by DuckDB itself, because nobody else agrees with DuckDB on NaN, LIKE or casts.

DuckDB only computes a mask, from the columns that the filter names; the rows are then taken from the batch by
Arrow, so that every other column comes through untouched, whatever its type. What cannot be computed is not
filtered by: the client filters again, and a row too many costs little where a row too few would be a wrong answer.
Filters so simple that Arrow agrees are left to Arrow, which has no query to set up.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from sparkport.filters.expressions import Column, Expression, Function, SqlType, conjuncts, simplify, walk
from sparkport.filters.masks import COMPARED, Mask, compile_mask
from sparkport.filters.sandbox import SANDBOX
from sparkport.filters.sql import ColumnSql, is_supported, to_sql, type_sql
from sparkport.filters.types import ROW_ID, ROW_ID_MARK, SIGNED, arrow_sql_type

__all__ = ["RowFilter", "keep_rows"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Part:
    """One conjunct, ready to run."""

    expr: Expression
    sql: str


class RowFilter:
    """A filter bound to a schema. Safe to use from several threads at once.

    Never raises for what is in the filter or the data, and never loses a row that the filter keeps.
    """

    def __init__(self, expr: Expression, schema: pa.Schema) -> None:
        self._expr = expr
        self._schema = schema
        self._used: dict[int, Any] = {}
        self._parts: tuple[_Part, ...] = ()
        self._simple: Mask | None = None
        try:
            self._simple = _simple(expr, schema)
            if self._simple is not None:
                self._parts = tuple(_Part(part, "") for part in conjuncts(expr))
                return
            spelled = {node: self._spell(node) for node in walk(expr) if isinstance(node, Column)}
            kept = simplify(
                expr, lambda node: is_supported(node) and not (isinstance(node, Column) and spelled[node] is None)
            )
            self._parts = self._bind(conjuncts(kept), lambda column: spelled[column] or "NULL")
        except RecursionError:
            _log.debug("a filter nested too deep is not applied")

    @property
    def pushed(self) -> tuple[Expression, ...]:
        """The conjuncts that are applied."""
        return tuple(part.expr for part in self._parts)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray | None:
        """True for the rows to keep, one entry per row (null means false); None where all rows are to be kept."""
        if not self._parts:
            return None
        if batch.schema != self._schema:
            return RowFilter(self._expr, batch.schema).mask(batch)
        if self._simple is not None:
            return self._simple({name.lower(): column for name, column in zip(batch.schema.names, batch, strict=True)})
        rows = self._columns(batch)
        if (whole := _evaluate(" AND ".join(part.sql for part in self._parts), rows)) is not None:
            return whole
        if len(self._parts) == 1:
            return None
        masks = [mask for part in self._parts if (mask := _evaluate(part.sql, rows)) is not None]
        if not masks:
            return None
        result = masks[0]
        for mask in masks[1:]:
            result = pc.and_kleene(result, mask)
        return result

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mask = self.mask(batch)
        if mask is None or mask.true_count == len(mask):
            return batch
        return keep_rows(batch, mask)

    def _spell(self, column: Column) -> str | None:
        """How to refer to a column, cast to the type in which the sender compares it; None where that cannot be."""
        index = _find(self._schema, column.name)
        if index is None:
            return None
        name = f"c{index}"
        field = self._schema.field(index).with_name(name)
        actual = _attempt(lambda db: str(_empty(db, [field]).types[0]))
        if actual is None:
            return None
        self._used[index] = field
        if column.type is None:
            return name
        wanted = type_sql(column.type)
        if wanted is None:
            return None
        if _attempt(lambda db: _same_type(db, actual, wanted)):
            return name
        return f"CAST({name} AS {wanted})" if _is_exact(actual, column.type) else None

    def _bind(self, parts: tuple[Expression, ...], column: ColumnSql) -> tuple[_Part, ...]:
        """The conjuncts that DuckDB can bind: all at once if that goes, else one by one."""
        bound = tuple(_Part(part, to_sql(part, column=column)) for part in parts)
        if len(bound) > 1 and _attempt(partial(self._binds, parts=bound, column=column)):
            return bound
        return tuple(part for part in bound if _attempt(partial(self._binds, parts=(part,), column=column)))

    def _binds(self, db: duckdb.DuckDBPyConnection, *, parts: tuple[_Part, ...], column: ColumnSql) -> bool:
        """Whether these are conditions, and each function in them gives the type that the sender's gave."""
        nodes = (node for part in parts for node in walk(part.expr))
        calls = [(node, node.type) for node in nodes if isinstance(node, Function) and node.type is not None]
        wanted = ["BOOLEAN"] * len(parts) + [type_sql(sql_type) for _, sql_type in calls]
        values = [part.sql for part in parts] + [to_sql(call, column=column) for call, _ in calls]
        selected = ", ".join(f"{sql} AS v{n}" for n, sql in enumerate(values))
        actual = _empty(db, list(self._used.values())).project(selected).types
        return all(w is not None and _same_type(db, str(f), w) for f, w in zip(actual, wanted, strict=True))

    def _columns(self, batch: pa.RecordBatch) -> pa.Table:
        arrays = [batch.column(index) for index in self._used]
        if not arrays:  # a constant still needs as many rows
            return pa.table({"c": pa.nulls(batch.num_rows)})
        return pa.Table.from_arrays(arrays, schema=pa.schema(list(self._used.values())))


def _simple(expr: Expression, schema: pa.Schema) -> Mask | None:
    names = [name.lower() for name in schema.names]
    if len(set(names)) < len(names):
        return None
    types = {name: arrow_type for name, arrow_type in zip(names, schema.types, strict=True) if arrow_type in COMPARED}
    for node in walk(expr):  # numbers that the sender compares in another width are cast, or not compared at all
        if isinstance(node, Column) and node.type is not None:
            arrow_type = types.get(node.name.lower())
            if arrow_type is not None and pa.types.is_integer(arrow_type) and arrow_sql_type(arrow_type) != node.type:
                return None
    return compile_mask(expr, types)


def keep_rows(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """The rows of a batch where the mask is true, whatever the batch's columns are."""
    if not batch.num_columns:  # Arrow's filter would lose the number of rows
        return batch.slice(0, mask.true_count)
    try:
        return batch.filter(mask)
    except pa.ArrowNotImplementedError:  # of view types, which Arrow can put together but not pick from
        runs: list[tuple[int, int]] = []
        for row, keep in enumerate(mask.to_pylist()):
            if keep and runs and runs[-1][1] == row:
                runs[-1] = (runs[-1][0], row + 1)
            elif keep:
                runs.append((row, row + 1))
        return pa.concat_batches([batch.slice(start, end - start) for start, end in runs] or [batch.slice(0, 0)])


def _find(schema: pa.Schema, name: str) -> int | None:
    """The one column of that name, case aside; ``rowid`` is also the name of whichever column holds the row ids."""
    matches = [index for index, field in enumerate(schema) if field.name.lower() == name.lower()]
    if not matches and name.lower() == ROW_ID:
        matches = [index for index, field in enumerate(schema) if (field.metadata or {}).get(ROW_ID_MARK)]
    return matches[0] if len(matches) == 1 else None


def _empty(db: duckdb.DuckDBPyConnection, fields: list[Any]) -> duckdb.DuckDBPyRelation:
    schema = pa.schema(fields or [pa.field("c", pa.null())])
    return db.from_arrow(schema.empty_table())


def _same_type(db: duckdb.DuckDBPyConnection, actual: str, wanted: str) -> bool:
    """Whether two spellings name one type; DuckDB quotes names in its own only where it must."""
    if actual == wanted:
        return True
    rows = db.execute(f"SELECT typeof(CAST(NULL AS {wanted}))").fetchall()  # all: a half-read result blocks the next
    return bool(rows == [(actual,)])


_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_EXACT = frozenset(
    {
        ("FLOAT", "DOUBLE"),
        ("JSON", "JSON"),
        ("JSON", "VARCHAR"),
        ("VARCHAR", "UUID"),
        ("UUID", "VARCHAR"),
        ("VARCHAR", "ENUM"),
        ("ENUM", "VARCHAR"),
        ("ENUM", "ENUM"),
        ("TIMESTAMP_S", "TIMESTAMP"),
        ("TIMESTAMP_MS", "TIMESTAMP"),
        ("DATE", "TIMESTAMP"),
    }
)


def _is_exact(actual: str, wanted: SqlType) -> bool:
    """Whether a cast keeps every value what it is (or fails, which is seen)."""
    if (decimal := _DECIMAL.fullmatch(actual)) and wanted.id == "DECIMAL":
        width, scale = int(decimal[1]), int(decimal[2])
        return wanted.scale >= scale and wanted.width - wanted.scale >= width - scale
    if actual.removeprefix("U") in SIGNED and wanted.id in SIGNED:
        return SIGNED[actual.removeprefix("U")] + actual.startswith("U") <= SIGNED[wanted.id]
    return (actual.partition("(")[0], wanted.id) in _EXACT


def _attempt(work: Callable[[duckdb.DuckDBPyConnection], _T]) -> _T | None:
    try:
        return SANDBOX.run(work)
    except Exception as exc:  # whatever the reason, the answer is not to filter by it
        _log.debug("a filter is not applied: %s", exc)
        return None


def _evaluate(condition: str, rows: pa.Table) -> pa.BooleanArray | None:
    def work(db: duckdb.DuckDBPyConnection) -> Any:
        db.register("batch", rows)
        try:
            return db.sql(f"SELECT {condition} AS keep FROM batch").to_arrow_table().column(0).combine_chunks()
        finally:
            db.unregister("batch")

    mask = _attempt(work)
    if mask is None or len(mask) != rows.num_rows or mask.type != pa.bool_():
        return None
    return mask
