"""The JSON contract: row changes from any Flight client, by DoPut and by the action ``delete``."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.repeats import statement_key
from sparkport.catalog.row_ids import as_row_ids, data_schema
from sparkport.catalog.statement import Change, MissingRows, StatementRequest
from sparkport.catalog.table import DMLOptions
from sparkport.errors import AlreadyExists, InvalidArgument
from sparkport.handlers.columns import fit_all
from sparkport.handlers.directory import Directory, ResolvedTable
from sparkport.handlers.execution import Execution, Push, require_ability
from sparkport.handlers.keyed_changes import KeyedChanges
from sparkport.handlers.operations import Operations, StatementLog
from sparkport.handlers.returned_rows import ReturnedRows, ipc_stream
from sparkport.protocol.contents import table_schema
from sparkport.protocol.maps import MapReader, pack
from sparkport.protocol.streams import Upload
from sparkport.protocol.targets import Kind, Target
from sparkport.upserts.model import KeyedChange

__all__ = ["JsonContract"]

_NOTHING = pa.schema([])
_KEYED = tuple(change.value for change in KeyedChange)
_OPERATIONS = (Change.INSERT.value, Change.UPDATE.value, *_KEYED)
_INT64 = range(-(2**63), 2**63)


class JsonContract:
    def __init__(self, directory: Directory, operations: Operations, log: StatementLog) -> None:
        self._directory = directory
        self._operations = operations
        self._log = log
        self._keyed = KeyedChanges(directory, operations)

    def do_put(self, ctx: CallContext, upload: Upload) -> Iterator[bytes]:
        command = upload.descriptor.command
        if command is None:
            raise InvalidArgument("DoPut needs a CMD descriptor with a JSON command")
        body = MapReader.from_json(command, what="descriptor")
        operation = body.text("operation")
        if operation not in _OPERATIONS:
            known = f"{', '.join(_OPERATIONS[:-1])} or {_OPERATIONS[-1]}"
            raise InvalidArgument(f"descriptor key 'operation' must be {known}, not '{operation}'")
        ctx.record.action = operation
        if operation in _KEYED:
            yield from self._keyed.put(ctx, upload, body, KeyedChange(operation))
            return
        change = Change(operation)
        count, rows = self._run(ctx, body, change, upload)
        returned = None if rows is None else ipc_stream(rows).to_pybytes()
        yield pack({"status": "success", "affected_rows": count, "returning_data": returned})

    def delete(self, ctx: CallContext, body: MapReader) -> bytes:
        count, rows = self._run(ctx, body, Change.DELETE, None)
        answer = json.dumps({"status": "success", "affected_rows": count}).encode()
        if rows is None:
            return answer
        return b"".join([answer[:-1], b', "returning_data": "', base64.b64encode(ipc_stream(rows)), b'"}'])

    def _run(
        self, ctx: CallContext, body: MapReader, change: Change, upload: Upload | None
    ) -> tuple[int, pa.Table | None]:
        target = Target(
            body.optional_text("catalog_name") or "", body.text("schema_name"), Kind.TABLE, body.text("table_name")
        )
        returning = body.flag("returning", default=False)
        wanted = body.texts("returning_columns") if "returning_columns" in body else ()
        catalog = self._directory.catalog(ctx, target.catalog)
        key = statement_key(ctx, catalog, change, schema=target.schema, table=target.name)
        with self._log.once(key, catalog, schema=target.schema, table=target.name) as once:
            if once.done is not None:
                if returning:
                    raise AlreadyExists(
                        f"statement '{ctx.statement_id}' has been committed: its rows cannot be returned again"
                    )
                self._directory.require_repeat(ctx, target, change)
                return once.done, None
            with (
                self._operations.running(ctx, catalog),
                self._directory.changing(ctx, target, change, returning=returning) as (inner, resolved),
            ):
                require_ability(resolved.table, change)
                row_ids = None if change is Change.INSERT else _row_ids(body, change)
                columns, pushes = _pushes(resolved, change, row_ids, upload)
                back = _returned_schema(resolved, change, wanted) if returning or wanted else _NOTHING
                execution = Execution(
                    catalog=catalog,
                    table=resolved.table,
                    request=StatementRequest(
                        change=change,
                        columns=columns,
                        returning=returning,
                        missing=MissingRows.REFUSE,
                        statement=key,
                    ),
                    options=DMLOptions(True, _asked(back, change, wanted)) if returning else DMLOptions(),
                    lock_step=False,
                )
                count, batches = _collected(ctx, execution.run(inner, pushes(inner), self._operations))
            once.count = count
            ctx.record.changed(count)
        return count, _table_of(batches, back) if returning else None


def _collected(ctx: CallContext, rows: Generator[pa.RecordBatch, None, int]) -> tuple[int, list[pa.RecordBatch]]:
    """The rows to be returned. Where they are too many nothing is committed: the statement ends with the generator."""
    returned = ReturnedRows(ctx)
    with closing(rows):
        while True:
            try:
                returned.append(next(rows))
            except StopIteration as end:
                return int(end.value), returned.batches


def _returned_schema(resolved: ResolvedTable, change: Change, wanted: Sequence[str]) -> pa.Schema:
    """The columns that RETURNING gives back: those asked for, else all, and the id of a deleted row."""
    schema = table_schema(resolved.table)
    if not wanted:
        return schema if change is Change.DELETE else data_schema(schema)
    folded = {name.casefold(): name for name in schema.names}
    known = set(schema.names)
    names = [name if name in known else folded.get(name.casefold(), "") for name in wanted]
    for name, asked in zip(names, wanted, strict=True):
        if not name:
            raise InvalidArgument(f"returning_columns has '{asked}', which is not in the table")
    if len(set(names)) < len(names):
        raise InvalidArgument("returning_columns has a column twice")
    return pa.schema([schema.field(name) for name in names])


def _asked(back: pa.Schema, change: Change, wanted: Sequence[str]) -> tuple[str, ...]:
    return () if change is Change.DELETE and not wanted else tuple(back.names)


def _table_of(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """What the table gave back, in the columns asked for; a table of a user's may have left some out, or given more."""
    if not batches:
        return schema.empty_table()
    rows = pa.Table.from_batches(batches)
    return rows.select([name for name in schema.names if name in rows.column_names])


def _row_ids(body: MapReader, change: Change) -> pa.Int64Array:
    values: Sequence[int] = body.integers("row_ids") if "row_ids" in body else ()
    if not values:
        raise InvalidArgument(f"row_ids cannot be empty for {change.name}")
    for value in values:
        if value not in _INT64:
            raise InvalidArgument(f"row_ids has {value}, which is out of range")
    return as_row_ids(pa.array(values, pa.int64()))


def _pushes(
    resolved: ResolvedTable, change: Change, row_ids: pa.Int64Array | None, upload: Upload | None
) -> tuple[pa.Schema, Callable[[CallContext], Iterator[Push]]]:
    if upload is None:
        return pa.schema([]), lambda ctx: iter([(None, row_ids)])
    stream = upload
    columns = data_schema(resolved.table.schema)
    fit = fit_all(resolved.table.name, stream.read_schema(), columns, defaults=change is Change.INSERT)

    def inserts(ctx: CallContext) -> Iterator[Push]:
        for batch in stream:
            ctx.check()
            yield fit(batch), None

    def updates(ctx: CallContext) -> Iterator[Push]:
        total = 0 if row_ids is None else len(row_ids)
        used = 0
        for batch in stream:
            ctx.check()
            used += batch.num_rows
            if used <= total and row_ids is not None:
                yield fit(batch), row_ids.slice(used - batch.num_rows, batch.num_rows)
        if used != total:
            raise InvalidArgument(f"row_ids count ({total}) does not match input rows ({used})")

    return columns, inserts if change is Change.INSERT else updates
