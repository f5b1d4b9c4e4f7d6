"""Calls of the server's functions: scalar ones, table functions, and those that take rows in and give rows out."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sparkport.client.arguments import argument_row, argument_table
from sparkport.client.catalog import FunctionInfo, FunctionKind, function_info
from sparkport.client.connection import Connection
from sparkport.client.errors import translated
from sparkport.client.exchange import Exchange
from sparkport.client.results import ScanResult
from sparkport.client.rows import BatchRows, Input, as_input, table_batches
from sparkport.client.scan import open_scan, select
from sparkport.errors import Cancelled, InternalError, InvalidArgument
from sparkport.protocol.flight import FlightInfo
from sparkport.protocol.maps import pack
from sparkport.protocol.targets import Target

__all__ = ["call_in_out", "call_scalar", "call_table", "describe_function"]

_FINISHED = b"chunk_finished"


_METHODS = {FunctionKind.SCALAR: "call", FunctionKind.TABLE: "call_table", FunctionKind.IN_OUT: "call_in_out"}


def describe_function(connection: Connection, target: Target, kind: FunctionKind) -> FunctionInfo:
    """The function, if it is of that kind."""
    body = pack({"descriptor": target.descriptor().encode(), "at_unit": "", "at_value": ""})
    answer = connection.single_action("flight_info", body)
    with translated(connection.location, what="description of a function"):
        function = function_info(FlightInfo.decode(answer))
    if function.kind is not kind:
        method = _METHODS[function.kind]
        raise InvalidArgument(f"function '{function.name}' is {function.kind.value}: it is called with {method}()")
    return function


def call_scalar(connection: Connection, target: Target, args: Sequence[Any], *, rows: int | None) -> pa.ChunkedArray:
    arguments = argument_table(describe_function(connection, target, FunctionKind.SCALAR), args, rows)
    chunks: list[pa.Array] = []
    with Exchange(connection, target.descriptor(), arguments.schema, operation="scalar_function") as exchange:
        result = exchange.read_schema()
        if len(result) != 1:
            raise InternalError(f"a scalar function has one result, the server sends {len(result)} columns")
        for batch in table_batches(arguments):
            exchange.send(batch)
            chunks += (answer.column(0) for answer in exchange.answers(batch.num_rows))
        exchange.finish()
        exchange.read()
    return pa.chunked_array(chunks, result.field(0).type)


def call_table(connection: Connection, target: Target, args: Sequence[Any], named: Mapping[str, Any]) -> ScanResult:
    arguments = argument_row(describe_function(connection, target, FunctionKind.TABLE), args, named)
    schema = _call_schema(connection, target, arguments, None)
    return open_scan(connection, target, select(schema, what=f"function '{target.name}'"), arguments=arguments)


def call_in_out(
    connection: Connection, target: Target, args: Sequence[Any], named: Mapping[str, Any], rows: BatchRows
) -> ScanResult:
    given = as_input(rows)
    arguments = argument_row(describe_function(connection, target, FunctionKind.IN_OUT), args, named)
    result = _call_schema(connection, target, arguments, given.schema)
    return ScanResult(result, _InOut(connection, target, arguments, given, result))


def _call_schema(connection: Connection, target: Target, arguments: bytes, rows: pa.Schema | None) -> pa.Schema:
    """The columns of this very call: they may depend on its arguments and on the rows that go in."""
    body = {
        "descriptor": target.descriptor().encode(),
        "parameters": arguments,
        "table_input_schema": b"" if rows is None else rows.serialize().to_pybytes(),
        "at_unit": "",
        "at_value": "",
    }
    answer = connection.single_action("table_function_flight_info", pack(body))
    with translated(connection.location, what="description of a function"):
        return FlightInfo.decode(answer).schema


class _InOut:
    """A source whose rows are made from the caller's rows, which are taken one batch at a time as answers are read."""

    def __init__(
        self,
        connection: Connection,
        target: Target,
        arguments: bytes,
        rows: Input,
        result: pa.Schema,
    ) -> None:
        self._connection = connection
        self._target = target
        self._arguments = arguments
        self._rows = rows
        self._result = result
        self._lock = threading.Lock()
        self._exchange: Exchange | None = None
        self._cancelled = False

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        with self._open() as exchange:
            if not exchange.read_schema().equals(self._result):
                raise InternalError(f"function '{self._target.name}' returns other columns than it has said")
            for batch in self._rows.open():
                exchange.send(batch)
                yield from self._round(exchange)
            exchange.finish()
            yield from self._round(exchange)

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            exchange = self._exchange
        if exchange is not None:
            exchange.cancel()

    def _open(self) -> Exchange:
        parameters = {
            "json_filters": "",
            "column_ids": list(range(len(self._result))),
            "parameters": self._arguments,
            "at_unit": "",
            "at_value": "",
        }
        with self._lock:
            if self._cancelled:
                raise Cancelled("the call was closed")
            self._exchange = Exchange(
                self._connection,
                self._target.descriptor(),
                self._rows.schema,
                operation="table_function_in_out",
                preamble=pack(parameters),
            )
            return self._exchange

    def _round(self, exchange: Exchange) -> Iterator[pa.RecordBatch]:
        """Answers to one batch; an empty one only says that there are no rows."""
        while True:
            answer, mark = exchange.read()
            if answer is None:
                raise InternalError(f"function '{self._target.name}' ended in the middle of an answer")
            if answer.num_rows:
                yield answer
            if mark == _FINISHED:
                return
