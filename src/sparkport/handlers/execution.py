"""Running one INSERT, UPDATE or DELETE on whatever the table can do, from one form of input to one form of answer.

Input is a stream of pushes: rows, row ids, or both, already fitted to the table. A table with statements takes them one
by one. A user's table takes them as a reader, in one call for the whole stream; when DuckDB wants rows back batch by
batch, it is called once per batch, inside one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.model import Catalog
from sparkport.catalog.row_ids import ROW_ID, data_schema, find_row_id_column, row_id_field
from sparkport.catalog.statement import Change, ChangeableTable, StatementRequest
from sparkport.catalog.steps import step
from sparkport.catalog.table import (
    DeletableBatchTable,
    DeletableTable,
    DMLOptions,
    DMLResult,
    InsertableTable,
    Table,
    UpdatableBatchTable,
    UpdatableTable,
)
from sparkport.errors import FailedPrecondition, InternalError, Unsupported
from sparkport.handlers.operations import Operations

__all__ = ["Execution", "Push", "require_ability"]

Push = tuple[pa.RecordBatch | None, pa.Int64Array | None]
"""Rows without row id, and row ids: both for UPDATE, one of them for the others."""

_ABILITIES: dict[Change, tuple[type[Table], ...]] = {
    Change.INSERT: (InsertableTable,),
    Change.UPDATE: (UpdatableBatchTable, UpdatableTable),
    Change.DELETE: (DeletableBatchTable, DeletableTable),
}
_REFUSALS = {
    Change.INSERT: "INSERT operations",
    Change.UPDATE: "UPDATE (no rowid)",
    Change.DELETE: "DELETE (no rowid)",
}


def require_ability(table: Table, change: Change) -> None:
    if not isinstance(table, _ABILITIES[change]):
        raise FailedPrecondition(f"table '{table.name}' does not support {_REFUSALS[change]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One statement on one table. ``lock_step``: an answer is due for each push before the next one is read."""

    catalog: Catalog
    table: Table
    request: StatementRequest
    options: DMLOptions
    lock_step: bool

    def run(
        self, ctx: CallContext, pushes: Iterator[Push], operations: Operations
    ) -> Generator[pa.RecordBatch, None, int]:
        """Yields the rows wanted back; its value is the number of rows changed."""
        if isinstance(self.table, ChangeableTable):
            return (yield from self._by_statement(ctx, self.table, pushes))
        if self.request.returning and self.lock_step:
            return (yield from self._by_batch(ctx, pushes, operations))
        result = self._call(ctx, pushes)
        yield from _returned(result, self.request.returning)
        return result.affected_rows

    def _by_statement(
        self, ctx: CallContext, table: ChangeableTable, pushes: Iterator[Push]
    ) -> Generator[pa.RecordBatch, None, int]:
        statement = table.open_statement(ctx, self.request)
        try:
            for rows, row_ids in pushes:
                with step("stage"):
                    back = statement.push(rows, row_ids)
                if back is not None:
                    yield back if self.lock_step else _selected(back, self.options.returning_columns)
            ctx.check()
            with step("commit"):
                return statement.finish()
        finally:
            statement.abort()

    def _by_batch(
        self, ctx: CallContext, pushes: Iterator[Push], operations: Operations
    ) -> Generator[pa.RecordBatch, None, int]:
        manager = self.catalog.transactions
        transaction: AbstractContextManager[CallContext] = nullcontext(ctx)
        if ctx.transaction_id is None and manager is not None:
            transaction = operations.new_transaction(ctx, manager)
        count = 0
        with transaction as inner:
            called = False
            for rows, row_ids in pushes:
                sent = _length(rows, row_ids)
                if not sent:
                    yield self._no_rows()
                    continue
                if called and inner.transaction_id is None:
                    raise Unsupported(
                        f"table '{self.table.name}' keeps no transactions: RETURNING works for one batch of rows only. "
                        f"The first batch of this statement has been changed, the rest has not"
                    )
                called = True
                result = self._call(inner, iter([(rows, row_ids)]))
                count += result.affected_rows
                back = _one_batch(list(_returned(result, True)))
                if back.num_rows != sent:
                    raise InternalError(f"table '{self.table.name}' returned {back.num_rows} rows for {sent}")
                if row_ids is not None and find_row_id_column(back.schema) is None:
                    back = back.append_column(self._row_id_field(), row_ids)
                yield back
        return count

    def _row_id_field(self) -> pa.Field:
        """The row-id column under the name that the table gives it."""
        index = find_row_id_column(self.table.schema)
        return row_id_field(ROW_ID if index is None else self.table.schema.field(index).name)

    def _no_rows(self) -> pa.RecordBatch:
        schema = data_schema(self.table.schema).append(self._row_id_field())
        return pa.RecordBatch.from_arrays([pa.array([], column.type) for column in schema], schema=schema)

    # The abilities of users' tables

    def _call(self, ctx: CallContext, pushes: Iterator[Push]) -> DMLResult:
        table, columns, options = self.table, self.request.columns, self.options
        if self.request.change is Change.INSERT and isinstance(table, InsertableTable):
            return _with_reader(columns, (rows for rows, _ in pushes), lambda rows: table.insert(ctx, rows, options))
        if isinstance(table, UpdatableBatchTable) and self.request.change is Change.UPDATE:
            schema = columns.append(row_id_field())
            whole = (rows.append_column(row_id_field(), ids) for rows, ids in pushes if rows is not None)
            return _with_reader(schema, whole, lambda rows: table.update_batches(ctx, rows, options))
        if isinstance(table, DeletableBatchTable) and self.request.change is Change.DELETE:
            schema = pa.schema([row_id_field()])
            ids_only = (pa.RecordBatch.from_arrays([ids], schema=schema) for _, ids in pushes)
            return _with_reader(schema, ids_only, lambda rows: table.delete_batches(ctx, rows, options))
        collected = list(pushes)
        row_ids = [row_id for _, ids in collected if ids is not None for row_id in ids.to_pylist()]
        if isinstance(table, UpdatableTable) and self.request.change is Change.UPDATE:
            stripped = (rows for rows, _ in collected if rows is not None)
            return _with_reader(columns, stripped, lambda rows: table.update(ctx, row_ids, rows, options))
        if isinstance(table, DeletableTable):
            return table.delete(ctx, row_ids, options)
        raise FailedPrecondition(f"table '{table.name}' does not support {_REFUSALS[self.request.change]}")


def _with_reader(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], call: Callable[[pa.RecordBatchReader], DMLResult]
) -> DMLResult:
    """Call a table with a reader, and read what it left: the client has to get rid of its rows.

    The client gets an error in the input as it was, whatever the table made of it: wrapped it, or took it for the end.
    """
    failures: list[BaseException] = []

    def watched() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as exc:
            failures.append(exc)
            raise

    source = watched()
    with pa.RecordBatchReader.from_batches(schema, source) as reader:
        try:
            result = call(reader)
            for _ in source:
                pass
        except Exception:
            if failures:
                raise failures[0] from None
            raise
    if failures:
        raise failures[0]
    return result


def _returned(result: DMLResult, wanted: bool) -> Iterator[pa.RecordBatch]:
    if result.returning_data is None:
        return
    with result.returning_data as reader:
        if wanted:
            yield from reader


def _selected(batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    if not columns:
        return batch
    return batch.select(list(columns))


def _one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    batches = pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []
    return batches[0] if batches else pa.RecordBatch.from_pydict({})


def _length(rows: pa.RecordBatch | None, row_ids: pa.Int64Array | None) -> int:
    return int(rows.num_rows) if rows is not None else len(row_ids or ())
