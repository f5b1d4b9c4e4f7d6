"""Functions called over DoExchange. Generators without I/O: an upload in, messages out, one answer per batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import ScalarFunction, TableInOutFunction
from sparkport.errors import InternalError, InvalidArgument
from sparkport.handlers.closing import closed_with
from sparkport.handlers.directory import Directory
from sparkport.protocol.maps import MapReader
from sparkport.protocol.streams import BatchMessage, Outgoing, SchemaMessage, Upload
from sparkport.protocol.targets import Target, decode_arguments

__all__ = ["Functions"]

_CONTINUES = b"chunk_continues"
_FINISHED = b"chunk_finished"
_VECTOR_ROWS = 2_048


class Functions:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def scalar(self, ctx: CallContext, upload: Upload) -> Iterator[Outgoing]:
        """One batch back for each batch in, of as many rows, before the next one is read."""
        function = self._directory.function(ctx, Target.from_descriptor(upload.descriptor), ScalarFunction)  # type: ignore[type-abstract]
        sent = upload.read_schema()
        expected = len(function.parameters)
        if len(sent) != expected:
            raise InvalidArgument(f"function '{function.name}' takes {expected} arguments, got {len(sent)}")
        schema = pa.schema([pa.field("result", function.returns)])
        yield SchemaMessage(schema)
        for batch in upload:
            ctx.check()
            result = function.call(ctx, _arguments(function, batch))
            yield BatchMessage(_result(function, result, batch.num_rows, schema))

    def table_in_out(self, ctx: CallContext, upload: Upload) -> Iterator[Outgoing]:
        """Any number of batches back for each batch in, the last one marked; one more round after the end of input."""
        function = self._directory.function(ctx, Target.from_descriptor(upload.descriptor), TableInOutFunction)  # type: ignore[type-abstract]
        input_schema = upload.read_schema()
        if not upload.preamble:
            raise InvalidArgument("the call's parameters must come before the schema")
        parameters = MapReader.from_msgpack(upload.preamble[0], what="parameters")
        arguments = function.bind(decode_arguments(parameters.optional_raw("parameters")))
        schema = function.schema(ctx, arguments, input_schema)
        call = function.open(ctx, arguments, input_schema)
        with closed_with(ctx, call.close):
            yield SchemaMessage(schema)
            for batch in upload:
                ctx.check()
                yield from _round(call.push(batch), schema)
            yield from _round(call.finish(), schema)


def _arguments(function: ScalarFunction, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the names and types that the function declares."""
    columns, fields = [], []
    for parameter, column in zip(function.parameters, batch.columns, strict=True):
        if isinstance(parameter.type, pa.DataType) and column.type != parameter.type:
            try:
                column = column.cast(parameter.type)
            except pa.ArrowException as exc:
                raise InvalidArgument(
                    f"function '{function.name}': argument '{parameter.name}' is {column.type}, "
                    f"which does not go into {parameter.type}"
                ) from exc
        columns.append(column)
        fields.append(pa.field(parameter.name, column.type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)) if columns else batch


def _result(function: ScalarFunction, result: pa.Array, rows: int, schema: pa.Schema) -> pa.RecordBatch:
    if isinstance(result, pa.Scalar):
        result = pa.repeat(result, rows)
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if not isinstance(result, pa.Array):
        result = pa.array(result, function.returns)
    if len(result) != rows:
        raise InternalError(f"function '{function.name}' returned {len(result)} values for {rows} rows")
    if result.type != function.returns:
        raise InternalError(f"function '{function.name}' returned {result.type}, declared is {function.returns}")
    return pa.RecordBatch.from_arrays([result], schema=schema)


def _round(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[Outgoing]:
    """All batches but the last say that more come; a round without rows is one empty batch."""
    last: pa.RecordBatch | None = None
    for batch in batches:
        if last is not None:
            yield BatchMessage(last, _CONTINUES)
        last = batch
    if last is not None and last.num_rows and last.num_rows % _VECTOR_ROWS == 0:
        # DuckDB's client asks for the next batch after a full vector before it looks at this one's mark.
        yield BatchMessage(last, _CONTINUES)
        last = None
    yield BatchMessage(_empty(schema) if last is None else last, _FINISHED)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], column.type) for column in schema], schema=schema)
