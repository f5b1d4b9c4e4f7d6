"""The servers to compare with: ``pyarrow.flight`` with as little around it as its Python interface allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import flight

from benchmarks.data import SCANS

__all__ = ["batches_server", "echo_server", "sink_server"]


class _Batches(flight.FlightServerBase):  # type: ignore[misc]
    """DoGet of batches in memory, named by the ticket."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._tables = {name: make() for name, make in SCANS.items()}

    def do_get(self, context: Any, ticket: Any) -> Any:
        return flight.RecordBatchStream(self._tables[ticket.ticket.decode()])


class _Sink(flight.FlightServerBase):  # type: ignore[misc]
    """DoExchange that answers with a schema, drops every batch and sends one message at the end."""

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(reader.schema)
        for _ in reader:
            pass
        writer.write_metadata(b"end")


class _Echo(flight.FlightServerBase):  # type: ignore[misc]
    """DoExchange that sends every batch back as it comes."""

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        schema: pa.Schema = reader.schema
        writer.begin(schema)
        for chunk in reader:
            writer.write_batch(chunk.data)
        writer.write_metadata(b"end")


@contextmanager
def _running(server: Any) -> Iterator[str]:
    with server:
        yield f"grpc://127.0.0.1:{server.port}"


@contextmanager
def batches_server() -> Iterator[str]:
    with _running(_Batches()) as location:
        yield location


@contextmanager
def sink_server() -> Iterator[str]:
    with _running(_Sink("grpc://127.0.0.1:0")) as location:
        yield location


@contextmanager
def echo_server() -> Iterator[str]:
    with _running(_Echo("grpc://127.0.0.1:0")) as location:
        yield location
