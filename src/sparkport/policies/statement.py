"""INSERT, UPDATE and DELETE by somebody who sees only a part of a table.

Rows that the caller does not see are not there for it; rows that it writes must be among those that it sees. An
UPDATE sends back what it does not change (DuckDB does, where rows are returned): a masked value that comes back as
it was shown leaves the true one as it is, and any other is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparkport.auth.operations import Operation
from sparkport.catalog.context import CallContext
from sparkport.catalog.defaults import default_values
from sparkport.catalog.scan import ScanRequest, as_scan
from sparkport.catalog.statement import Change, ChangeableTable, MissingRows, Statement, StatementRequest
from sparkport.catalog.table import Key
from sparkport.errors import (
    Conflict,
    ConstraintViolation,
    DuplicateKey,
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    RowNotFound,
)
from sparkport.filters.expressions import Column, In, Literal, SqlType
from sparkport.filters.types import ROW_ID
from sparkport.policies.compute import Condition, are_same
from sparkport.policies.discretion import Discretion
from sparkport.policies.view import View

__all__ = ["GuardedStatement", "GuardedUpsert"]

_OPERATIONS = {
    Change.INSERT: Operation.INSERT,
    Change.UPDATE: Operation.UPDATE,
    Change.DELETE: Operation.DELETE,
}
_BIGINT = SqlType("BIGINT")

T = TypeVar("T")


class GuardedStatement(Statement):
    def __init__(
        self,
        ctx: CallContext,
        request: StatementRequest,
        *,
        table: ChangeableTable,
        view: View,
        checks: Sequence[str],
        keys: Sequence[Key],
        into: Statement | None = None,
    ) -> None:
        """``checks`` and ``keys`` are those of the table's that the caller may know of.

        ``into`` is a statement of the table that takes the rows, where there is one already.
        """
        self._ctx = ctx
        self._discretion = Discretion(view.table, keys, checks)
        self._request = request
        self._table = table
        self._view = view
        operation = _OPERATIONS[request.change]
        view.require(operation)
        self._touchable = view.touchable(operation)
        self._admitted = view.admitted(operation)
        self._doubtful = {
            name: conditions
            for name in (request.columns.names if request.change is Change.UPDATE else ())
            if (conditions := view.settable(name))
        }
        names = [name for name in request.columns.names if name in view.schema.names]
        if len(names) != len(request.columns):
            raise FailedPrecondition(f"table '{view.table}' has been altered; run the statement again")
        if request.change is Change.INSERT:
            names = [name for name in view.raw.names if name in {*names, *view.hidden.names}]
        self._columns = pa.schema([view.raw.field(name) for name in names])
        self._statement = into or table.open_statement(ctx, replace(request, columns=self._columns))

    def push(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array | None) -> pa.RecordBatch | None:
        if row_ids is None:
            return None if rows is None else self._insert(rows)
        if rows is not None:
            self._require_values(rows)
        if not (self._touchable or self._admitted or self._doubtful):
            return self._shown(self._push(rows, row_ids))
        return self._change(rows, row_ids)

    def finish(self) -> int:
        return self._discreetly(self._statement.finish)

    def abort(self) -> None:
        self._statement.abort()

    # Rows that come

    def _insert(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        arrays = {name: rows.column(name) for name in rows.schema.names}
        for column in self._view.hidden:
            arrays[column.name] = self._default(column, rows.num_rows)
        whole = pa.RecordBatch.from_arrays([arrays[column.name] for column in self._columns], schema=self._columns)
        self._require_values(whole)
        self._require_admitted(whole)
        return self._shown(self._push(whole, None))

    def _default(self, column: pa.Field, rows: int) -> pa.Array:
        try:
            values = default_values(column, rows)
        except InvalidArgument:
            values = None  # the reason would name the column
        if values is None or (values.null_count and not column.nullable):
            raise PermissionDenied(
                f"table '{self._view.table}': rows need values in columns that you do not see; they cannot be inserted"
            )
        return values

    def _require_values(self, rows: pa.RecordBatch) -> None:
        """NOT NULL, of columns that are shown as nullable because what is shown may be NULL."""
        for name in rows.schema.names:
            if rows.column(name).null_count and not self._view.raw.field(name).nullable:
                raise ConstraintViolation(f"NOT NULL constraint failed: {self._view.table}.{name}")

    def _change(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array) -> pa.RecordBatch | None:
        old, places = self._old(row_ids)
        there = np.array([place is not None for place in places], np.bool_)
        if self._request.missing is MissingRows.REFUSE and not there.all():
            raise RowNotFound(row_ids[int(np.argmin(there))].as_py())
        if rows is None and self._request.returning and not there.all():
            gone = row_ids[int(np.argmin(there))].as_py()
            raise Conflict(f"table '{self._view.table}': row {gone} is gone; run the statement again")
        kept = pa.array(np.flatnonzero(there), pa.int64())
        ids = row_ids.take(kept)
        old = old.take(pa.array([place for place in places if place is not None], pa.int64()))
        new = None if rows is None else self._new(rows.take(kept), old)
        back = self._push(new, ids) if len(ids) else None
        if not self._request.returning:
            return None
        shown = None if back is None else self._shown(back)
        return shown if rows is None or len(ids) == len(row_ids) else self._echoed(rows, row_ids, there, shown)

    def _old(self, row_ids: pa.Int64Array) -> tuple[pa.RecordBatch, list[int | None]]:
        """The rows that the caller may change, and where each of the ids is among them; None for all others."""
        view = self._view
        if view.row_id is None:
            raise FailedPrecondition(f"table '{view.table}' has no row ids")
        used = {name for condition in (*self._touchable, *self._admitted) for name in condition.columns.names}
        for name, conditions in self._doubtful.items():
            used |= {name, *view.needed([name]), *(item for each in conditions for item in each.columns.names)}
        names = [name for name in view.raw.names if name in used and name != view.row_id]
        wanted = tuple(Literal(row_id, _BIGINT) for row_id in dict.fromkeys(row_ids.to_pylist()))
        request = ScanRequest(columns=(*names, view.row_id), filter=In(Column(ROW_ID), wanted))
        values = pa.array([literal.value for literal in wanted], pa.int64())
        found: list[pa.RecordBatch] = []
        scan = as_scan(self._table.scan(self._ctx, request))
        try:
            for batch in scan:
                self._ctx.check()
                chosen = batch.select([*names, view.row_id])
                chosen = chosen.filter(pc.is_in(chosen.column(view.row_id).cast(pa.int64()), values))
                found.append(chosen.filter(_all(self._touchable, chosen)))
        finally:
            scan.close()
        schema = pa.schema([view.raw.field(name) for name in (*names, view.row_id)])
        rows = _one(pa.Table.from_batches(found) if found else schema.empty_table())
        places = {row_id: place for place, row_id in enumerate(rows.column(view.row_id).to_pylist())}
        return rows, [places.get(row_id) for row_id in row_ids.to_pylist()]

    def _new(self, rows: pa.RecordBatch, old: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are written: what was sent, with the true values where a masked one came back as it was."""
        arrays = {name: rows.column(name) for name in rows.schema.names}
        shown = self._view.masks(old, tuple(self._doubtful))
        for name, conditions in self._doubtful.items():
            settable = _all(conditions, old)
            unchanged = are_same(arrays[name], shown.get(name, old.column(name)))
            if not pc.all(pc.or_(settable, unchanged), min_count=0).as_py():
                raise PermissionDenied(
                    f"column '{name}' of table '{self._view.table}' is not shown to you as it is: it cannot be updated"
                )
            arrays[name] = _chosen(settable, arrays[name], old.column(name))
        new = pa.RecordBatch.from_arrays([arrays[column.name] for column in self._columns], schema=self._columns)
        changed = set(new.schema.names)
        if any(changed & set(condition.columns.names) for condition in self._admitted):
            names = [name for name in old.schema.names if name not in changed]
            whole = pa.RecordBatch.from_arrays(
                [*new.columns, *(old.column(name) for name in names)],
                schema=pa.schema([*new.schema, *(old.schema.field(name) for name in names)]),
            )
            self._require_admitted(whole)
        return new

    def _require_admitted(self, rows: pa.RecordBatch) -> None:
        if not pc.all(_all(self._admitted, rows), min_count=0).as_py():
            raise PermissionDenied(f"table '{self._view.table}': you would not see a row as it is written here")

    # Rows that go back

    def _shown(self, back: pa.RecordBatch | None) -> pa.RecordBatch | None:
        if back is None:
            return None
        view = self._view
        if not view.rows.always and not pc.all(view.rows.mask(back), min_count=0).as_py():
            raise PermissionDenied(f"table '{view.table}': a row that you do not see cannot be returned")
        names = [name for name in back.schema.names if name in view.schema.names and name != ROW_ID]
        shown = view.show(back, names)
        return shown.append_column(ROW_ID, back.column(ROW_ID)) if ROW_ID in back.schema.names else shown

    def _echoed(
        self, rows: pa.RecordBatch, row_ids: pa.Int64Array, there: npt.NDArray[np.bool_], shown: pa.RecordBatch | None
    ) -> pa.RecordBatch:
        """One row back for each that came; of those that are not there for the caller, what was sent."""
        schema = pa.schema([column for column in self._view.schema if column.name != self._view.row_id])
        sent = [
            rows.column(column.name) if column.name in rows.schema.names else pa.nulls(rows.num_rows, column.type)
            for column in schema
        ]
        echo = pa.Table.from_arrays([*sent, row_ids], names=[*schema.names, ROW_ID])
        if shown is None:
            return _one(echo)
        positions = np.where(there, np.cumsum(there) - 1, shown.num_rows + np.arange(len(there)))
        both = pa.concat_tables([pa.Table.from_batches([shown.select(echo.column_names)]).cast(echo.schema), echo])
        return _one(both.take(pa.array(positions, pa.int64())))

    def _push(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array | None) -> pa.RecordBatch | None:
        if rows is not None:
            rows = pa.RecordBatch.from_arrays(rows.columns, schema=self._columns)
        return self._discreetly(lambda: self._statement.push(rows, row_ids))

    def _discreetly(self, act: Callable[[], T]) -> T:
        """A constraint over columns that the caller does not see fails without its words, which have values in them."""
        try:
            return act()
        except (ConstraintViolation, DuplicateKey) as exc:
            told = self._discretion.told(exc)
            if told is exc:
                raise
        raise told


class GuardedUpsert(Statement):
    """New rows and changed ones, each within the limits of its kind, into one statement of the table."""

    def __init__(
        self,
        ctx: CallContext,
        request: StatementRequest,
        *,
        table: ChangeableTable,
        view: View,
        checks: Sequence[str],
        keys: Sequence[Key],
    ) -> None:
        self._statement = table.open_statement(ctx, request)
        shown = pa.schema([column for column in view.schema if column.name != view.row_id])
        try:
            self._new, self._changed = (
                GuardedStatement(ctx, part, table=table, view=view, checks=checks, keys=keys, into=self._statement)
                for part in (
                    replace(request, change=Change.INSERT, columns=shown),
                    replace(request, change=Change.UPDATE),
                )
            )
        except BaseException:
            self._statement.abort()
            raise

    def push(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array | None) -> None:
        (self._new if row_ids is None else self._changed).push(rows, row_ids)

    def finish(self) -> int:
        return self._changed.finish()

    def abort(self) -> None:
        self._statement.abort()


def _all(conditions: Sequence[Condition], rows: pa.RecordBatch) -> pa.BooleanArray:
    result = pa.array([True] * rows.num_rows, pa.bool_())
    for condition in conditions:
        result = pc.and_(result, condition.mask(rows))
    return result


def _chosen(mask: pa.BooleanArray, where_true: pa.Array, where_false: pa.Array) -> pa.Array:
    """By taking: Arrow chooses between values of some types only."""
    rows = np.arange(len(mask))
    both = pa.chunked_array([where_true, where_false])
    return both.take(pa.array(np.where(np.array(mask), rows, len(rows) + rows), pa.int64())).combine_chunks()


def _one(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return (
        batches[0]
        if batches
        else pa.RecordBatch.from_arrays([pa.array([], column.type) for column in table.schema], schema=table.schema)
    )
