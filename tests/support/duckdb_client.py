"""Plays the DuckDB Airport client: the same calls, headers and order, and the same demands on the answers.

client = DuckDBClient(server.location)
lake = client.attach("lake")
rows = lake.scan("public.users", ["id", "name"]).rows
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as pf
from tests.support.duckdb_calls import CALL, run_call
from tests.support.duckdb_session import HeaderList, Process, Session, exchange_headers
from tests.support.filters import Node, filter_json
from tests.support.flight_rpc import AirportError, BatchReader
from tests.support.listing import ROW_ID_COLUMN, Entry, is_marked, pack, raw, unpack
from tests.support.lockstep import Exchange, LockStepError

__all__ = ["AirportError", "Attached", "Changed", "DuckDBClient", "ROW_ID_COLUMN", "ScanResult", "argument_row"]

VECTOR_SIZE = 2048


@dataclass(frozen=True, slots=True)
class ScanResult:
    """``rows`` has the asked columns; ``full`` all of the stream's, as the server sent them.

    ``calls`` are the endpoints whose rows this client's own DuckDB has read.
    """

    rows: pa.Table
    full: pa.Table
    progress: tuple[float, ...]
    received_bytes: int
    endpoints: int
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    count: int
    rows: pa.Table | None = None


@dataclass(slots=True)
class _Stream:
    schema: pa.Schema | None = None
    batches: list[pa.RecordBatch] = field(default_factory=list)
    progress: list[float] = field(default_factory=list)
    received: int = 0
    called: bool = False


class DuckDBClient(Process):
    """One DuckDB process."""

    def attach(self, catalog: str = "") -> Attached:
        attached = Attached(self, catalog)
        attached.load()
        return attached


class Attached(Session):
    """Queries of one attached catalog."""

    # Reads

    def scan(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        *,
        filters: Sequence[Node] | str = (),
        at: tuple[str, str] | None = None,
    ) -> ScanResult:
        """``columns`` of () is a count: DuckDB asks for the row id alone, whether there is one or not."""
        with self.query():
            entry = self.table(table)
            unit, value = at or ("", "")
            if at is not None:
                self.flight_info(table, at=at)
                body = {"descriptor": entry.descriptor.serialize(), "at_unit": unit, "at_value": value}
                entry = Entry.decode(self.action("flight_info", body, *self.flight_headers(entry)))
            names = entry.columns if columns is None else list(columns)
            text = filters if isinstance(filters, str) else filter_json(names, *filters)
            parameters = {
                "json_filters": text,
                "column_ids": entry.column_ids(names) if names else [ROW_ID_COLUMN],
                "table_function_parameters": "",
                "table_function_input_schema": "",
                "at_unit": unit,
                "at_value": value,
            }
            return self._fetch(entry, parameters, names, *self.transaction_headers())

    def call_table(self, function: str, *arguments: Any, **named: Any) -> ScanResult:
        """A table function; it is never told the transaction."""
        with self.query():
            listed = self.entry(function, "table_function")
            row = argument_row(listed.input_schema, arguments, named)
            info = self._function_info(listed, row, b"")
            parameters = {
                "json_filters": filter_json(info.columns),
                "column_ids": list(range(len(info.columns))),
                "table_function_parameters": row,
                "table_function_input_schema": "",
                "at_unit": "",
                "at_value": "",
            }
            return self._fetch(info, parameters, info.columns)

    def _function_info(self, entry: Entry, row: bytes, input_schema: bytes) -> Entry:
        body = {
            "descriptor": entry.descriptor.serialize(),
            "parameters": row,
            "table_input_schema": input_schema,
            "at_unit": "",
            "at_value": "",
        }
        return Entry.decode(self.action("table_function_flight_info", body, *self.flight_headers(entry)))

    def _fetch(
        self, entry: Entry, parameters: dict[str, Any], names: Sequence[str], *more: tuple[str, str]
    ) -> ScanResult:
        flight = self.flight_headers(entry)
        body = {"descriptor": entry.descriptor.serialize(), "parameters": parameters}
        endpoints = [
            pf.FlightEndpoint.deserialize(raw(item)) for item in unpack(self.action("endpoints", body, *more, *flight))
        ]
        headers = self.headers(*more, *flight)
        with ThreadPoolExecutor(max(1, len(endpoints))) as pool:
            streams = list(pool.map(lambda point: self.read_ticket(point, entry.schema, headers, names), endpoints))
        full = pa.Table.from_batches([batch for stream in streams for batch in stream.batches], entry.schema)
        progress = tuple(value for stream in streams for value in stream.progress)
        received = sum(stream.received for stream in streams)
        calls = sum(stream.called for stream in streams)
        return ScanResult(full.select(list(names)), full, progress, received, len(endpoints), calls)

    def read_ticket(
        self, endpoint: pf.FlightEndpoint, schema: pa.Schema, headers: HeaderList, names: Sequence[str] = ()
    ) -> _Stream:
        stream, reader = _Stream(), BatchReader()
        assert endpoint.locations, "DuckDB fails: No locations specified in flight endpoint"
        (location,) = {place.uri for place in endpoint.locations}
        if location.startswith(CALL):
            return _Stream(batches=run_call(location, schema, names).to_batches(), called=True)
        assert location == b"arrow-flight-reuse-connection://?", f"this client does not dial {location!r}"
        for message in self.client.connection.do_get(endpoint.ticket.ticket, headers):
            batch = reader.take(message)
            stream.received += len(message.header) + len(message.body)
            if batch is not None:
                stream.batches.append(batch)
            if message.app_metadata:
                stream.progress.append(unpack(message.app_metadata)["progress"])
        assert reader.schema is not None, "a stream without a schema"
        assert reader.schema.equals(schema), f"the stream's schema is not the FlightInfo's:\n{reader.schema}\n{schema}"
        return stream

    # Row changes

    def insert(self, table: str, rows: pa.Table, *, returning: bool = False) -> Changed:
        """All of the table's columns, in its order."""
        entry = self.table(table)
        schema = _plain(entry.schema, entry.columns)
        with self.query(), self.exchange(entry, "insert", schema, returning=returning) as exchange:
            _check_found(exchange.server_schema, schema, returning=returning)
            return _push(exchange, rows.select(entry.columns).cast(schema), returning=returning)

    def update(self, table: str, changes: pa.Table, *, returning: bool = False) -> Changed:
        """``changes`` has the changed columns and ``rowid``.

        With RETURNING all columns are sent, the changed ones first and the others after them from the last to the
        first; DuckDB reads them in a scan that it begins when the exchange is open already.
        """
        entry = self.table(table)
        changed = [name for name in changes.column_names if name != "rowid"]
        others = [name for name in reversed(entry.columns) if name not in changed] if returning else []
        schema = _plain(entry.schema, [*changed, *others]).append(pa.field("rowid", pa.int64()))
        with self.query(), self.exchange(entry, "update", schema, returning=returning) as exchange:
            rows = changes
            if others:
                assert entry.row_id is not None
                now = self.scan(table, [*others, entry.row_id]).rows.rename_columns([*others, "rowid"])
                places = {row_id: index for index, row_id in enumerate(now.column("rowid").to_pylist())}
                found = now.take(pa.array([places.get(row_id) for row_id in changes["rowid"].to_pylist()], pa.int64()))
                for name in others:
                    rows = rows.append_column(name, found.column(name))
            if returning:
                names = exchange.server_schema.names
                assert names == schema.names, f"DuckDB crashes: it sent {schema.names} and gets back {names}"
            return _push(exchange, rows.select(schema.names).cast(schema), returning=returning)

    def delete(self, table: str, row_ids: Sequence[int], *, returning: bool = False) -> Changed:
        entry = self.table(table)
        rows = pa.table({"rowid": pa.array(row_ids, pa.int64())})
        with self.query(), self.exchange(entry, "delete", rows.schema, returning=returning) as exchange:
            _check_found(exchange.server_schema, _plain(entry.schema, entry.columns), returning=returning)
            return _push(exchange, rows, returning=returning)

    # Functions

    def call_scalar(self, function: str, *arguments: pa.Array, rows: int | None = None) -> pa.ChunkedArray:
        """``rows`` is for a function without arguments."""
        entry = self.entry(function, "scalar_function")
        declared = entry.input_schema
        fields = [
            pa.field(column.name, values.type if is_marked(column, b"is_any_type") else column.type)
            for column, values in zip(declared, arguments, strict=True)
        ]
        schema = pa.schema(fields)
        table = pa.table(list(arguments), schema=schema) if fields else _without_columns(rows or 0)
        back: list[pa.RecordBatch] = []
        with self.query(), self.exchange(entry, "scalar_function", schema, returning=True) as exchange:
            assert exchange.server_schema.equals(entry.schema), "the answer's schema is not the listed one"
            for batch in _vectors(table):
                exchange.write(batch)
                back.append(exchange.read())
                assert back[-1].num_rows == batch.num_rows
            exchange.done_writing()
            exchange.read_end()
        return pa.Table.from_batches(back, entry.schema).column(0)

    def call_in_out(self, function: str, rows: pa.Table, *arguments: Any, **named: Any) -> pa.Table:
        """A table in-out function: the answers to each batch, then the last round, each ended by ``chunk_finished``."""
        with self.query():
            listed = self.entry(function, "table_function")
            row = argument_row(listed.input_schema, arguments, named)
            info = self._function_info(listed, row, rows.schema.serialize().to_pybytes())
            parameters = {
                "json_filters": filter_json(info.columns),
                "column_ids": [],
                "parameters": row,
                "at_unit": "",
                "at_value": "",
            }
            back: list[pa.RecordBatch] = []
            headers = self.headers(
                *exchange_headers("table_function_in_out", returning=True), *self.flight_headers(info)
            )
            with Exchange(
                self.client.connection,
                headers,
                descriptor=info.descriptor.serialize(),
                schema=rows.schema,
                parameters=pack(parameters),
                watchdog=self.client.watchdog,
            ) as exchange:
                assert exchange.server_schema.equals(info.schema), "the answer's schema is not that of the flight info"
                for batch in _vectors(rows):
                    exchange.write(batch)
                    back.extend(_round(exchange))
                exchange.done_writing()
                back.extend(_round(exchange))
                exchange.read_end()
            return pa.Table.from_batches(back, info.schema)


def _plain(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Columns as DuckDB sends them: names and types, nothing more."""
    return pa.schema([pa.field(name, schema.field(name).type) for name in names])


def _vectors(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Batches of at most 2,048 rows, full ones but for the last."""
    if not rows.num_columns:
        for start in range(0, rows.num_rows, VECTOR_SIZE):
            yield rows.to_batches()[0].slice(start, VECTOR_SIZE)
        return
    yield from rows.combine_chunks().to_batches(max_chunksize=VECTOR_SIZE)


def _without_columns(rows: int) -> pa.Table:
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))])


def _push(exchange: Exchange, rows: pa.Table, *, returning: bool) -> Changed:
    back: list[pa.RecordBatch] = []
    for batch in _vectors(rows):
        exchange.write(batch)
        if returning:
            answer = exchange.read()
            assert answer.num_rows == batch.num_rows, f"{batch.num_rows} rows sent, {answer.num_rows} came back"
            back.append(answer)
    exchange.done_writing()
    final = unpack(exchange.read_final_metadata())
    assert set(final) == {"total_changed"}
    return Changed(final["total_changed"], pa.Table.from_batches(back, exchange.server_schema) if returning else None)


def _check_found(answer: pa.Schema, wanted: pa.Schema, *, returning: bool) -> None:
    """INSERT and DELETE look the returned columns up by name."""
    for column in wanted if returning else ():
        assert column.name in answer.names, f"RETURNING lacks the column {column.name}"
        assert answer.field(column.name).type == column.type


def _round(exchange: Exchange) -> Iterator[pa.RecordBatch]:
    while True:
        batch = exchange.read()
        yield batch
        finished = exchange.last_metadata == b"chunk_finished"
        if not finished and exchange.last_metadata != b"chunk_continues":
            raise LockStepError(f"a batch of an in-out round is marked {exchange.last_metadata!r}")
        if finished and batch.num_rows and batch.num_rows % VECTOR_SIZE == 0:
            # The client looks at the mark only after a vector that is not full.
            raise LockStepError("DuckDB waits for ever: a round must not end with a batch of only full vectors")
        if finished:
            return


def argument_row(declared: pa.Schema, arguments: Sequence[Any], named: dict[str, Any]) -> bytes:
    """The one row of a table function's arguments, in the order of the declaration; absent named ones are NULL."""
    tables = [index for index, column in enumerate(declared) if is_marked(column, b"is_table_type")]
    if tables and tables != [len(declared) - 1]:
        raise LockStepError("DuckDB writes past its arguments: the table parameter must be declared last")
    positional = iter(arguments)
    columns: dict[str, pa.Array] = {}
    for column in declared:
        if is_marked(column, b"is_table_type"):
            continue
        value = named.get(column.name) if is_marked(column, b"is_named_parameter") else next(positional)
        columns[column.name] = pa.array([value], None if is_marked(column, b"is_any_type") else column.type)
    row = pa.record_batch(columns) if columns else _without_columns(1).to_batches()[0]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    data: bytes = sink.getvalue().to_pybytes()
    return data
