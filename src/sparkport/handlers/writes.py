"""Row changes from DuckDB over DoExchange. Generators without I/O: an upload in, messages out, in lock-step.

The client waits for the server's schema before it sends rows; when it wants rows back it reads exactly one batch for
each that it writes, of as many rows, before it writes the next. At the end it gets the number of changed rows. That
comes after the commit: with it the client's statement has succeeded, whatever error follows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import pyarrow as pa

from sparkport.catalog.casting import converter
from sparkport.catalog.context import CallContext
from sparkport.catalog.repeats import statement_key
from sparkport.catalog.row_ids import data_schema, find_row_id_column, require_row_id_column, split_row_ids
from sparkport.catalog.statement import Change, MissingRows, StatementRequest
from sparkport.catalog.table import DMLOptions
from sparkport.errors import AlreadyExists, InternalError
from sparkport.handlers.columns import fit_all, fit_some
from sparkport.handlers.directory import Directory, ResolvedTable
from sparkport.handlers.execution import Execution, Push, require_ability
from sparkport.handlers.operations import Operations, StatementLog
from sparkport.protocol.contents import table_schema
from sparkport.protocol.maps import pack
from sparkport.protocol.streams import BatchMessage, MetadataMessage, Outgoing, SchemaMessage, Upload
from sparkport.protocol.targets import Target

__all__ = ["Writes"]

_Answer = Callable[[pa.RecordBatch], pa.RecordBatch]


class Writes:
    def __init__(self, directory: Directory, operations: Operations, log: StatementLog) -> None:
        self._directory = directory
        self._operations = operations
        self._log = log

    def insert(self, ctx: CallContext, upload: Upload) -> Iterator[Outgoing]:
        return self._change(ctx, upload, Change.INSERT)

    def update(self, ctx: CallContext, upload: Upload) -> Iterator[Outgoing]:
        return self._change(ctx, upload, Change.UPDATE)

    def delete(self, ctx: CallContext, upload: Upload) -> Iterator[Outgoing]:
        return self._change(ctx, upload, Change.DELETE)

    def _change(self, ctx: CallContext, upload: Upload, change: Change) -> Iterator[Outgoing]:
        target = Target.from_descriptor(upload.descriptor)
        catalog = self._directory.catalog(ctx, target.catalog)
        returning = ctx.headers.get("return-chunks") == "1"
        key = statement_key(ctx, catalog, change, schema=target.schema, table=target.name)
        with self._log.once(key, catalog, schema=target.schema, table=target.name) as once:
            if once.done is not None:
                count = once.done
                yield from self._repeated(ctx, upload, target, change, returning=returning)
            else:
                with self._operations.running(ctx, catalog):
                    count = yield from self._statement(ctx, upload, target, change, returning=returning, key=key)
                once.count = count
                ctx.record.changed(count)
        yield MetadataMessage(pack({"total_changed": count}))

    def _statement(
        self,
        ctx: CallContext,
        upload: Upload,
        target: Target,
        change: Change,
        *,
        returning: bool,
        key: str | None,
    ) -> Generator[Outgoing, None, int]:
        with self._directory.changing(ctx, target, change, returning=returning) as (ctx, resolved):
            require_ability(resolved.table, change)
            sent = upload.read_schema()
            execution, pushes = _planned(resolved, change, sent, upload, returning=returning, key=key)
            yield SchemaMessage(_answer_schema(resolved, change, sent))
            rows = execution.run(ctx, pushes(ctx), self._operations)
            return (yield from _answered(rows, _echo(sent) if change is Change.UPDATE else _table_types(resolved)))

    def _repeated(
        self, ctx: CallContext, upload: Upload, target: Target, change: Change, *, returning: bool
    ) -> Iterator[Outgoing]:
        """A statement that was committed before: its rows are read and left alone."""
        if returning:
            raise AlreadyExists(f"statement '{ctx.statement_id}' has been committed: its rows cannot be returned again")
        resolved = self._directory.changeable(ctx, target, change, returning=returning)
        yield SchemaMessage(_answer_schema(resolved, change, upload.read_schema()))
        for _ in upload:
            ctx.check()


def _answer_schema(resolved: ResolvedTable, change: Change, sent: pa.Schema) -> pa.Schema:
    return sent if change is Change.UPDATE else table_schema(resolved.table)


def _planned(
    resolved: ResolvedTable, change: Change, sent: pa.Schema, upload: Upload, *, returning: bool, key: str | None
) -> tuple[Execution, Callable[[CallContext], Iterator[Push]]]:
    """How the statement will run, and the pushes it will run on; all that is wrong with the schema is raised here."""
    table = resolved.table
    columns = data_schema(table.schema)
    returning_columns: tuple[str, ...] = ()
    if change is Change.INSERT:
        fit = fit_all(table.name, sent, columns)
        returning_columns = tuple(sent.names)

        def push(batch: pa.RecordBatch) -> Push:
            return fit(batch), None
    else:
        index = require_row_id_column(sent, change.name)
        rest = sent.remove(index)
        if change is Change.UPDATE:
            fit = fit_some(table.name, rest, columns)
            returning_columns = tuple(rest.names)

            def push(batch: pa.RecordBatch) -> Push:
                row_ids, rows = split_row_ids(batch, index)
                return fit(rows), row_ids
        else:
            fit = fit_some(table.name, pa.schema([]), columns)

            def push(batch: pa.RecordBatch) -> Push:
                return None, split_row_ids(batch, index)[0]

    def pushes(ctx: CallContext) -> Iterator[Push]:
        for batch in upload:
            ctx.check()
            yield push(batch)

    request = StatementRequest(
        change=change, columns=fit.target, returning=returning, missing=MissingRows.SKIP, statement=key
    )
    options = DMLOptions(returning, returning_columns if returning else ())
    return (
        Execution(catalog=resolved.catalog, table=table, request=request, options=options, lock_step=True),
        pushes,
    )


def _answered(
    rows: Generator[pa.RecordBatch, None, int], answer: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> Generator[Outgoing, None, int]:
    try:
        while True:
            yield BatchMessage(answer(next(rows)))
    except StopIteration as end:
        return int(end.value)
    finally:
        rows.close()


def _echo(sent: pa.Schema) -> _Answer:
    """Rows back in exactly the columns, order and types that were sent: the client reads them by position."""
    row_id = find_row_id_column(sent)

    def answer(batch: pa.RecordBatch) -> pa.RecordBatch:
        places = {name.casefold(): index for index, name in enumerate(batch.schema.names)}
        places.update({name: index for index, name in enumerate(batch.schema.names)})
        columns = []
        for position, column in enumerate(sent):
            if position == row_id:
                index = find_row_id_column(batch.schema)
            else:
                index = places.get(column.name, places.get(column.name.casefold()))
            if index is None:
                raise InternalError(f"the table returned no column '{column.name}'")
            columns.append(_as_sent(batch.column(index), column.type))
        return pa.RecordBatch.from_arrays(columns, schema=sent)

    return answer


def _as_sent(column: pa.Array, sent_type: pa.DataType) -> pa.Array:
    """From the table's type back to the client's, in which the values came."""
    if pa.types.is_null(sent_type):
        return pa.nulls(len(column))
    convert = converter(column.type, sent_type)
    return column.cast(sent_type) if convert is None else convert(column)


def _table_types(resolved: ResolvedTable) -> _Answer:
    """Rows back in the table's types; columns that the table did not give back are null."""
    types: list[pa.Schema] = []  # most statements give no rows back

    def answer(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not types:
            types.append(table_schema(resolved.table))
        (schema,) = types
        names = [name for name in schema.names if name in batch.schema.names]
        for name in names:
            if batch.schema.field(name).type != schema.field(name).type:
                raise InternalError(f"the table returned column '{name}' as {batch.schema.field(name).type}")
        return batch.select(names)

    return answer
