"""Scans: planning one into tickets, and streaming what a ticket asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from sparkport.auth.model import Operation
from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import Arguments, TableFunction
from sparkport.catalog.row_ids import find_row_id_column
from sparkport.catalog.scan import DuckDBCall, Scan, Scannable, ScanRequest, as_scan
from sparkport.catalog.steps import step
from sparkport.catalog.table import DirectTable, Table
from sparkport.errors import InternalError, InvalidArgument
from sparkport.filters.expressions import Expression
from sparkport.handlers.closing import closed_with
from sparkport.handlers.directory import Directory
from sparkport.handlers.discovery import readable_schema
from sparkport.handlers.user_agents import is_duckdb
from sparkport.protocol.call_locations import call_location
from sparkport.protocol.contents import table_schema
from sparkport.protocol.filters import parse_filters
from sparkport.protocol.flight import FlightDescriptor, FlightEndpoint
from sparkport.protocol.maps import MapReader, pack
from sparkport.protocol.streams import BatchMessage, Outgoing, SchemaMessage
from sparkport.protocol.targets import Kind, Target, Ticket, as_of, decode_arguments

__all__ = ["Reads"]

_ROW_ID_COLUMN = 2**64 - 1
"""How DuckDB asks for the row id, and for no column at all when it only counts."""


class Reads:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def endpoints(self, ctx: CallContext, body: MapReader) -> bytes:
        target = Target.from_descriptor(FlightDescriptor.decode(body.raw("descriptor")))
        parameters = body.map("parameters")
        filters = parameters.optional_text("json_filters")
        at = as_of(parameters.optional_text("at_unit"), parameters.optional_text("at_value"))
        column_ids = parameters.integers("column_ids")
        arguments = parameters.optional_raw("table_function_parameters")
        if target.kind is Kind.TABLE:
            with self._reading(ctx, target) as table:
                condition = _condition(ctx, filters)
                schema = readable_schema(ctx, table, at)
                request = ScanRequest(columns=_names(schema, column_ids), filter=condition, at=at)
                calls = None if _wants_row_id(schema, column_ids) else _duckdb_calls(ctx, table, request)
                if calls is not None:
                    ctx.record.asks("read files", catalog=ctx.record.catalog, name=ctx.record.table)
                    ctx.record.accesses()
                    return pack([FlightEndpoint(b"", (call_location(call),)).encode() for call in calls])
                with step("plan"):
                    parts: Sequence[ScanRequest] = table.plan(ctx, request)
        else:
            function = self._directory.function(ctx, target, TableFunction)  # type: ignore[type-abstract]
            condition = _condition(ctx, filters)
            schema = function.schema(ctx, function.bind(decode_arguments(arguments)))
            parts = [ScanRequest(columns=_names(schema, column_ids), filter=condition, at=at)]
        text = filters if condition is not None else None
        tickets = [
            Ticket(target=target, columns=part.columns, filters=text, at=at, part=part.part, arguments=arguments)
            for part in parts
        ]
        return pack([FlightEndpoint(ticket.encode()).encode() for ticket in tickets])

    def do_get(self, ctx: CallContext, data: bytes) -> Iterator[Outgoing]:
        ticket = Ticket.decode(data)
        if ticket.target.kind is Kind.TABLE:
            with self._reading(ctx, ticket.target) as table:
                request = _request(ctx, ticket)
                schema = readable_schema(ctx, table, ticket.at)
                if ticket.at is None:
                    schema = table_schema(table, table.schema_of(ctx, request))
                _check_columns(schema, request)
                yield from _stream(ctx, schema, request, table.scan(ctx, request))
        else:
            function = self._directory.function(ctx, ticket.target, TableFunction)  # type: ignore[type-abstract]
            request = _request(ctx, ticket)
            arguments: Arguments = function.bind(decode_arguments(ticket.arguments))
            schema = function.schema(ctx, arguments)
            _check_columns(schema, request)
            yield from _stream(ctx, schema, request, function.scan(ctx, arguments, request))

    @contextmanager
    def _reading(self, ctx: CallContext, target: Target) -> Iterator[Table]:
        """The table of a scan. A scan joins its transaction, which does not expire while rows are on their way.

        One that is over, or was never begun, is refused.
        """
        resolved = self._directory.table(ctx, target, Operation.READ)
        manager = resolved.catalog.transactions
        if ctx.transaction_id is None or manager is None:
            yield resolved.table
            return
        with self._directory.operations.held(manager, ctx.transaction_id):
            yield resolved.table


def _condition(ctx: CallContext, filters: str | bytes | None) -> Expression | None:
    """The filter. It is read only for callers who may read the table, and while they still wait."""
    ctx.check()
    condition = None if filters is None else parse_filters(filters)
    ctx.check()
    return condition


def _request(ctx: CallContext, ticket: Ticket) -> ScanRequest:
    columns = None if ticket.columns is None else tuple(dict.fromkeys(ticket.columns))
    return ScanRequest(columns=columns, filter=_condition(ctx, ticket.filters), at=ticket.at, part=ticket.part)


def _names(schema: pa.Schema, column_ids: Sequence[int]) -> tuple[str, ...]:
    """Column numbers as names, in the schema's order."""
    row_id = find_row_id_column(schema)
    wanted: set[int] = set()
    for number in column_ids:
        if number == _ROW_ID_COLUMN:
            if row_id is not None:
                wanted.add(row_id)
        elif 0 <= number < len(schema):
            wanted.add(number)
        else:
            raise InvalidArgument(f"column_ids has {number}, the table has {len(schema)} columns")
    return tuple(schema.field(number).name for number in sorted(wanted))


def _wants_row_id(schema: pa.Schema, column_ids: Sequence[int]) -> bool:
    return _ROW_ID_COLUMN in column_ids or find_row_id_column(schema) in column_ids


def _duckdb_calls(ctx: CallContext, table: Table, request: ScanRequest) -> Sequence[DuckDBCall] | None:
    """Other clients cannot run functions of DuckDB's."""
    if not isinstance(table, DirectTable) or not is_duckdb(ctx):
        return None
    return table.duckdb_calls(ctx, request)


def _check_columns(schema: pa.Schema, request: ScanRequest) -> None:
    known = set(schema.names)
    for name in request.columns or ():
        if name not in known:
            raise InvalidArgument(f"ticket asks for a column '{name}' that is not there")


def _stream(ctx: CallContext, schema: pa.Schema, request: ScanRequest, rows: Scannable) -> Iterator[Outgoing]:
    """The scan's batches, each with just the columns asked for, until the caller goes."""
    scan = as_scan(rows)
    # Only a Scan promises that it can be closed while another thread reads from it: readers and generators do not.
    with closed_with(ctx, scan.close, early=isinstance(rows, Scan)):
        yield SchemaMessage(schema)
        select = _Selection(schema, request)
        done = 0
        batches = iter(scan)
        while True:
            with step("read"):
                batch = next(batches, None)
            if batch is None:
                return
            ctx.check()
            done += batch.num_rows
            part = done / scan.total_rows if scan.total_rows else scan.progress()
            yield BatchMessage(select(batch), None if part is None else pack({"progress": min(1.0, part)}))


class _Selection:
    """Picks the asked columns out of each batch. Batches that break the table's own schema are an error."""

    def __init__(self, schema: pa.Schema, request: ScanRequest) -> None:
        self._schema = schema
        self._names = [name for name in schema.names if request.selects(name)]
        self._seen: pa.Schema | None = None
        self._indices: list[int] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._seen is None or not batch.schema.equals(self._seen):
            self._indices = [self._index(batch.schema, name) for name in self._names]
            self._seen = batch.schema
        return batch.select(self._indices)

    def _index(self, schema: pa.Schema, name: str) -> int:
        index: int = schema.get_field_index(name)
        if index < 0:
            raise InternalError(f"the table's scan returned no column '{name}'")
        declared, actual = self._schema.field(name).type, schema.field(index).type
        if declared != actual:
            raise InternalError(f"the table's scan returned column '{name}' as {actual}, declared is {declared}")
        return index
