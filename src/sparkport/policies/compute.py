"""The expressions of rules over Arrow batches, strictly: what cannot be computed is an error, never a row too many.

Clients' filters are the other way round (:mod:`sparkport.filters.evaluate`): there a row too many is harmless.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from sparkport.errors import PermissionDenied
from sparkport.filters.expressions import Expression, Or, conjunction, conjuncts
from sparkport.filters.masks import COMPARED, compile_mask
from sparkport.filters.masks import Mask as ArrowMask
from sparkport.filters.rule_expressions import BoundExpression
from sparkport.filters.sandbox import SANDBOX

__all__ = [
    "Branch",
    "Condition",
    "Misfit",
    "ShownColumn",
    "are_same",
    "find_column",
    "require_condition",
    "shown_values",
]

logger = logging.getLogger(__name__)


class Misfit(Exception):
    """Why an expression cannot be computed for a table: for the log, not for callers."""


def find_column(schema: pa.Schema, name: str) -> str | None:
    """The one column of that name, case aside."""
    found = [column for column in schema.names if column.lower() == name.lower()]
    return found[0] if len(found) == 1 else None


def _used(schema: pa.Schema, expressions: Iterable[BoundExpression]) -> pa.Schema:
    """The columns that expressions name, in the table's order."""
    names = {name for expression in expressions for name in expression.columns}
    found = {name: find_column(schema, name) for name in names}
    missing = sorted(name for name, column in found.items() if column is None)
    if missing:
        raise Misfit(f"the table has no column '{missing[0]}', or more than one")
    return pa.schema([column for column in schema if column.name in found.values()])


def require_condition(expression: BoundExpression, schema: pa.Schema) -> None:
    """Raise Misfit for what names other columns than there are, or is no condition over them."""
    value = _computed([expression.sql], _empty(_used(schema, [expression]))).column(0)
    if value.type not in (pa.bool_(), pa.null()):
        raise Misfit(f"the condition gives {value.type}, not true or false")


def _empty(schema: pa.Schema) -> pa.Table:
    return schema.empty_table() if len(schema) else pa.table({"no column": pa.nulls(0)})


def _computed(expressions: Sequence[str], rows: pa.Table) -> pa.Table:
    """A column for each expression; Misfit where that cannot be."""
    selected = ", ".join(f"({sql}\n) AS v{number}" for number, sql in enumerate(expressions))

    def work(db: duckdb.DuckDBPyConnection) -> pa.Table:
        db.register("sparkport rows", rows)
        try:
            return db.sql(f'SELECT {selected} FROM "sparkport rows"').to_arrow_table()
        finally:
            db.unregister("sparkport rows")

    try:
        table = SANDBOX.run(work)
    except (duckdb.Error, pa.ArrowException) as exc:
        # Not chained, and of a computation over rows only its kind: the message may have a value in it.
        reason = str(exc).splitlines()[0] if not rows.num_rows else type(exc).__name__
        raise Misfit(reason) from None
    if table.num_rows != rows.num_rows:
        raise Misfit(f"it gives {table.num_rows} values for {rows.num_rows} rows")
    return table


def _refused(table: str, why: Misfit) -> PermissionDenied:
    logger.error("authorization rules: a rule for rows or columns of table '%s' cannot be computed: %s", table, why)
    return PermissionDenied(
        f"table '{table}': a rule about its rows or columns cannot be computed; ask whoever keeps the rules"
    )


def _rows(batch: pa.RecordBatch, columns: pa.Schema) -> pa.Table:
    if not len(columns):
        return pa.table({"no column": pa.nulls(batch.num_rows)})
    return pa.Table.from_batches([batch.select(columns.names)])


class Condition:
    """Whether a row is given by one of several expressions; None among them gives every row, and none gives no row."""

    def __init__(self, table: str, schema: pa.Schema, alternatives: Sequence[BoundExpression | None]) -> None:
        self._table = table
        written = [item for item in alternatives if item is not None]
        self.always = len(written) < len(alternatives)
        self.never = not alternatives
        self.columns = _used(schema, () if self.always else written)
        self.pushed: Expression | None = None
        self._arrow: ArrowMask | None = None
        self.sql = "true" if self.always else _either(item.sql for item in written)
        if not self.always:
            self._simplify(schema, written)

    def _simplify(self, schema: pa.Schema, written: Sequence[BoundExpression]) -> None:
        """What of it tables understand, and whether Arrow can compute it all."""
        types = {column.name.lower(): column.type for column in self.columns if column.type in COMPARED}
        pushed: list[Expression | None] = []
        for item in written:
            parts = conjuncts(item.pushed)
            pushed.append(conjunction(part for part in parts if compile_mask(part, types) is not None))
        known = [part for part in pushed if part is not None]
        if not known or len(known) < len(written):
            return
        self.pushed = known[0] if len(known) == 1 else Or(tuple(known))
        if all(item.is_all_pushed and part == item.pushed for part, item in zip(known, written, strict=True)):
            self._arrow = compile_mask(self.pushed, types)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """True or false for each row of a batch that has at least the condition's columns."""
        if self.always or self.never:
            return pa.array([self.always] * batch.num_rows, pa.bool_())
        if self._arrow is not None:
            columns = {name.lower(): batch.column(name) for name in self.columns.names}
            return pc.fill_null(self._arrow(columns), False)
        try:
            values = _computed([self.sql], _rows(batch, self.columns)).column(0).combine_chunks()
        except Misfit as exc:
            raise _refused(self._table, exc) from None
        return values


def _either(expressions: Iterable[str]) -> str:
    return " OR ".join(f"coalesce(CAST(({sql}\n) AS BOOLEAN), false)" for sql in expressions) or "false"


@dataclass(frozen=True, slots=True)
class Branch:
    """A value that is shown where a condition holds. ``columns`` are those that both are computed from."""

    condition: Condition
    sql: str
    columns: frozenset[str]


class ShownColumn:
    """A column that is not always shown as it is. Of its branches the first that holds counts; else it is NULL."""

    def __init__(self, column: pa.Field, branches: Sequence[Branch]) -> None:
        self.column = column
        self.columns = frozenset(name for branch in branches for name in branch.columns)
        duckdb_type = _duckdb_type(column)
        values = [f"CAST(({branch.sql}\n) AS {duckdb_type})" for branch in branches]
        if branches and branches[0].condition.always:
            self.sql = values[0]
        else:
            cases = zip(branches, values, strict=True)
            whens = " ".join(f"WHEN ({branch.condition.sql}\n) THEN {value}" for branch, value in cases)
            self.sql = f"CASE {whens} END" if whens else f"CAST(NULL AS {duckdb_type})"

    def require_fit(self, schema: pa.Schema) -> None:
        """Raise Misfit where its values cannot be computed, or are none of the column's type."""
        _shown([self], _empty(pa.schema([column for column in schema if column.name in self.columns])))


def shown_values(table: str, columns: Sequence[ShownColumn], batch: pa.RecordBatch) -> list[pa.Array]:
    """What is shown of columns, in one query over a batch that has at least what they are computed from."""
    if not columns:
        return []
    used = {name for column in columns for name in column.columns}
    rows = _rows(batch, pa.schema([column for column in batch.schema if column.name in used]))
    try:
        return _shown(columns, rows)
    except Misfit as exc:
        raise _refused(table, exc) from None


def _shown(columns: Sequence[ShownColumn], rows: pa.Table) -> list[pa.Array]:
    arrays = []
    for item, values in zip(columns, _computed([item.sql for item in columns], rows).columns, strict=True):
        array = values.combine_chunks()
        try:
            arrays.append(array if array.type == item.column.type else array.cast(item.column.type))
        except pa.ArrowException as exc:
            raise Misfit(f"column '{item.column.name}': {type(exc).__name__}") from None
    return arrays


def _duckdb_type(column: pa.Field) -> str:
    try:
        return SANDBOX.run(lambda db: str(db.from_arrow(pa.schema([column]).empty_table()).types[0]))
    except (duckdb.Error, pa.ArrowException) as exc:
        raise Misfit(f"column '{column.name}' cannot be masked: {type(exc).__name__}") from None


def are_same(left: pa.Array, right: pa.Array) -> pa.BooleanArray:
    """Which values are the same, NULL and NaN included, whatever their type."""
    rows = pa.table({"l": left, "r": right})
    return _computed(["l IS NOT DISTINCT FROM r"], rows).column(0).combine_chunks()
