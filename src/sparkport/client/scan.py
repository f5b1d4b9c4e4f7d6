"""A scan from the user's words to batches: which columns to ask for, what to push down, and filtering again here.

Servers may return more rows than a filter keeps and send columns that nobody asked for as nulls. So the filter is
applied once more to what arrives, and only the columns asked for are passed on.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkport.catalog.row_ids import find_row_id_column
from sparkport.catalog.scan import AsOf, AsOfUnit
from sparkport.client.connection import Connection
from sparkport.client.errors import translated
from sparkport.client.parallel import BatchSource, Parallel
from sparkport.client.results import ScanResult
from sparkport.errors import Cancelled, FailedPrecondition, InvalidArgument, Unsupported
from sparkport.filters.evaluate import RowFilter, keep_rows
from sparkport.filters.expressions import Expression, Or, conjuncts, referenced_columns, simplify
from sparkport.filters.predicates import Predicate
from sparkport.protocol.contents import plain_schema
from sparkport.protocol.filter_writer import dump_filters
from sparkport.protocol.flight import REUSE_CONNECTION, FlightEndpoint
from sparkport.protocol.incoming import StreamReader
from sparkport.protocol.maps import pack, unpack
from sparkport.protocol.targets import Target

__all__ = ["Selection", "as_of", "open_scan", "select"]

_ROW_ID_NUMBER = 2**64 - 1


def as_of(version: int | str | None, timestamp: dt.datetime | str | None) -> AsOf | None:
    if version is not None and timestamp is not None:
        raise InvalidArgument("a scan is as of a version or as of a time, not both")
    if version is not None:
        return AsOf(AsOfUnit.VERSION, str(version))
    if timestamp is None:
        return None
    if isinstance(timestamp, dt.datetime):
        if timestamp.tzinfo is not None:
            timestamp = timestamp.astimezone(dt.UTC)
        timestamp = timestamp.isoformat(sep=" ")
    return AsOf(AsOfUnit.TIMESTAMP, timestamp)


@dataclass(frozen=True, slots=True)
class Selection:
    """What is fetched, and what is handed on. ``wire`` is the schema that columns are numbered by."""

    wire: pa.Schema
    fetched: pa.Schema
    returned: pa.Schema
    filter: Expression | None = None

    @property
    def column_ids(self) -> list[int]:
        row_id = find_row_id_column(self.wire)
        numbers = (self.wire.get_field_index(name) for name in self.fetched.names)
        return sorted(_ROW_ID_NUMBER if number == row_id else number for number in numbers)

    @property
    def json_filters(self) -> str:
        return "" if self.filter is None else dump_filters(self.filter, self.wire)

    def row_filter(self) -> RowFilter | None:
        """The filter for the fetched columns. One that could only be applied in part is refused."""
        if self.filter is None:
            return None
        # As the one alternative of an OR it is applied whole or not at all, and which of the two can be seen.
        whole = Or((self.filter,))
        row_filter = RowFilter(whole, self.fetched)
        if row_filter.pushed != conjuncts(simplify(whole, lambda _: True)):
            raise _not_applied(self.filter)
        return row_filter


def select(
    schema: pa.Schema,
    *,
    columns: Sequence[str] | None = None,
    condition: Predicate | Expression | None = None,
    row_id: bool = False,
    what: str,
) -> Selection:
    """Columns by name, case aside. Without ``columns`` all of them, the row id only when asked for."""
    if isinstance(columns, str):
        raise InvalidArgument("columns must be a list of names, not one text")
    hidden = find_row_id_column(schema)
    if columns is None:
        columns = [name for index, name in enumerate(schema.names) if index != hidden]
    wanted = [_find(schema, name, what) for name in columns]
    if row_id:
        if hidden is None:
            raise InvalidArgument(f"{what} has no row ids")
        if hidden not in wanted:
            wanted.append(hidden)
    if len(set(wanted)) < len(wanted):
        raise InvalidArgument("a column is asked for twice")
    expr = condition.expr if isinstance(condition, Predicate) else condition
    used = set() if expr is None else {_find(schema, name, what) for name in referenced_columns(expr)}
    return Selection(
        wire=schema,
        fetched=pa.schema([schema.field(index) for index in sorted(used | set(wanted))]),
        returned=pa.schema([schema.field(index) for index in wanted], metadata=plain_schema(schema).metadata),
        filter=expr,
    )


def _find(schema: pa.Schema, name: str, what: str) -> int:
    matches = [index for index, field in enumerate(schema) if field.name == name]
    matches = matches or [index for index, field in enumerate(schema) if field.name.lower() == name.lower()]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InvalidArgument(f"column '{name}' of {what} is ambiguous")
    raise InvalidArgument(f"{what} has no column '{name}'; it has: {', '.join(schema.names)}")


def open_scan(
    connection: Connection,
    target: Target,
    selection: Selection,
    *,
    at: AsOf | None = None,
    arguments: bytes = b"",
) -> ScanResult:
    """Plan it on the server now, read it when the result is read."""
    row_filter = selection.row_filter()
    parameters = {
        "json_filters": selection.json_filters,
        "column_ids": selection.column_ids,
        "table_function_parameters": arguments,
        "table_function_input_schema": "",
        "at_unit": "" if at is None else at.unit.value.upper(),
        "at_value": "" if at is None else at.value,
    }
    body = pack({"descriptor": target.descriptor().encode(), "parameters": parameters})
    answer = connection.single_action("endpoints", body)
    with translated(connection.location, what="answer to action 'endpoints'"):
        endpoints = _decode_endpoints(answer)
    parts = [_Part(connection, _ticket(endpoint, connection), selection, row_filter) for endpoint in endpoints]
    source: BatchSource = parts[0] if len(parts) == 1 else Parallel(parts)
    return ScanResult(selection.returned, source)


def _decode_endpoints(data: bytes) -> list[FlightEndpoint]:
    encoded = unpack(data)
    if not isinstance(encoded, list) or not all(isinstance(item, bytes) for item in encoded):
        raise InvalidArgument("it is not an array of endpoints")
    return [FlightEndpoint.decode(item) for item in encoded]


def _ticket(endpoint: FlightEndpoint, connection: Connection) -> bytes:
    """Other places are not followed: they would get this client's token."""
    here = (connection.location, REUSE_CONNECTION, REUSE_CONNECTION.removesuffix("?"))
    if endpoint.locations and not any(place in here for place in endpoint.locations):
        raise Unsupported("the server wants the rows to be read from another place, which this client does not do")
    return endpoint.ticket


class _Part:
    """The stream of one endpoint, opened when its first batch is wanted."""

    def __init__(
        self, connection: Connection, ticket: bytes, selection: Selection, row_filter: RowFilter | None
    ) -> None:
        self._connection = connection
        self._ticket = ticket
        self._selection = selection
        self._filter = row_filter
        self._lock = threading.Lock()
        self._call: Any = None
        self._cancelled = False

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        location = self._connection.location
        try:
            with translated(location, what="stream"):
                reader = StreamReader(self._open())
                indices = self._indices(reader.read_schema())
            while True:
                with translated(location, what="stream"):
                    batch = next(reader, None)
                if batch is None:
                    return
                yield self._shaped(batch.select(indices))
        finally:
            self.cancel()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            call = self._call
        if call is not None:
            call.cancel()

    def _open(self) -> Any:
        with self._lock:
            if self._cancelled:
                raise Cancelled("the scan was closed")
            self._call = self._connection.do_get(self._ticket)
            return self._call

    def _indices(self, stream: pa.Schema) -> list[int]:
        """Where the fetched columns are in the stream, which may be younger than the plan."""
        indices = [stream.get_field_index(field.name) for field in self._selection.fetched]
        for index, field in zip(indices, self._selection.fetched, strict=True):
            if index < 0 or stream.field(index).type != field.type:
                raise FailedPrecondition(f"column '{field.name}' has changed since the scan was planned: scan again")
        return indices

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._filter is not None and batch.num_rows:
            # The schema that the filter was bound to; the stream's may differ in its metadata.
            batch = (
                pa.RecordBatch.from_arrays(batch.columns, schema=self._selection.fetched) if batch.columns else batch
            )
            mask = self._filter.mask(batch)
            if mask is None:
                raise _not_applied(self._selection.filter)
            batch = keep_rows(batch, mask)
        names = self._selection.returned.names
        if not names:
            return batch.select([])
        return pa.RecordBatch.from_arrays([batch.column(name) for name in names], schema=self._selection.returned)


def _not_applied(condition: Expression | None) -> Unsupported:
    return Unsupported(f"the filter {condition} cannot be applied exactly; scan without it and filter the result")
