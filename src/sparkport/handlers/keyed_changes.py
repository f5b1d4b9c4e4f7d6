"""Changes by key from clients other than DuckDB: by DoExchange, and by DoPut in the JSON contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.errors import InvalidArgument
from sparkport.handlers.directory import Directory
from sparkport.handlers.operations import Operations, require_manager
from sparkport.handlers.returned_rows import ReturnedRows, ipc_stream
from sparkport.handlers.upserts import Upsert
from sparkport.protocol.maps import MapReader, pack
from sparkport.protocol.streams import BatchMessage, MetadataMessage, Outgoing, SchemaMessage, Upload
from sparkport.protocol.targets import Kind, Target
from sparkport.upserts.model import KeyedChange, KeyedRequest

__all__ = ["KeyedChanges"]


class KeyedChanges:
    def __init__(self, directory: Directory, operations: Operations) -> None:
        self._directory = directory
        self._operations = operations

    def exchange(self, ctx: CallContext, upload: Upload, change: KeyedChange) -> Iterator[Outgoing]:
        """The schema first; the rows, if they are wanted, and the counts when all input has come."""
        target = Target.from_descriptor(upload.descriptor)
        sent = upload.read_schema()
        body = MapReader.from_msgpack(upload.preamble[0], what="parameters") if upload.preamble else None
        key = None if body is None else _key(body)
        returning = ctx.headers.get("return-chunks") == "1"
        with self._statement(ctx, target, change, key, sent) as statement:
            yield SchemaMessage(statement.output)
            for batch in upload:
                statement.push(batch)
            if returning:
                for batch in statement.finish():
                    yield BatchMessage(batch)
            else:
                statement.commit()
            answer = _counts(statement)
        yield MetadataMessage(pack({"total_changed": answer.pop("affected_rows"), **answer}))

    def put(self, ctx: CallContext, upload: Upload, body: MapReader, change: KeyedChange) -> Iterator[bytes]:
        target = Target(
            body.optional_text("catalog_name") or "", body.text("schema_name"), Kind.TABLE, body.text("table_name")
        )
        if "returning_columns" in body or "row_ids" in body:
            raise InvalidArgument(f"operation '{change.value}' takes neither row_ids nor returning_columns")
        returning = body.flag("returning", default=False)
        returned: pa.Table | None = None
        room = ReturnedRows(ctx)
        with self._statement(ctx, target, change, _key(body), upload.read_schema()) as statement:
            for batch in upload:
                size = statement.push(batch)
                if returning:
                    room.reserve(size)
            if returning:
                returned = pa.Table.from_batches(list(statement.finish(at_once=True)), statement.output)
            else:
                statement.commit()
            answer = _counts(statement)
        data = None if returned is None else ipc_stream(returned).to_pybytes()
        yield pack({"status": "success", **answer, "returning_data": data})

    @contextmanager
    def _statement(
        self, ctx: CallContext, target: Target, change: KeyedChange, key: Sequence[str] | None, sent: pa.Schema
    ) -> Iterator[Upsert]:
        """One that fails ends the transaction it is in, as others do."""
        catalog = self._directory.catalog(ctx, target.catalog)
        require_manager(catalog)
        request = KeyedRequest(change, target.schema, target.name, None if key is None else tuple(key))
        upserts = self._directory.upserts(catalog)
        with self._operations.running(ctx, catalog), closing(upserts.open(ctx, request, sent)) as statement:
            yield statement


def _key(body: MapReader) -> tuple[str, ...] | None:
    return body.texts("key") if "key" in body else None


def _counts(statement: Upsert) -> dict[str, object]:
    """Of a statement that was done long ago only the sum is known."""
    counts = statement.counts
    return {
        "affected_rows": statement.changed,
        "inserted": None if counts is None else counts.inserted,
        "updated": None if counts is None else counts.updated,
        "deleted": None if counts is None else counts.deleted,
        "untouched": None if counts is None else counts.untouched,
    }
