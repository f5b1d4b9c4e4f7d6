"""Arrow Flight spoken by hand over gRPC, so that tests judge the server's bytes with code that is not the server's.

Messages are protobuf classes made from the Flight specification's field numbers; batches go through ``pyarrow.ipc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import grpc
import msgpack
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = [
    "AirportError",
    "BatchReader",
    "Connection",
    "FlightDataMessage",
    "Headers",
    "batch_messages",
    "decode",
    "encode",
    "schema_message",
]

Headers = Sequence[tuple[str, str]]

_SERVICE = "/arrow.flight.protocol.FlightService/"
_BYTES, _STRING = 12, 9
_IO_ERROR = "5"

# How Arrow's C++ client reads gRPC codes: these become IOError, which makes DuckDB try an action again.
_IO_CODES = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)

_FIELDS: dict[str, list[tuple[str, int, int]]] = {
    "Action": [("type", 1, _STRING), ("body", 2, _BYTES)],
    "Result": [("body", 1, _BYTES)],
    "Ticket": [("ticket", 1, _BYTES)],
    "Criteria": [("expression", 1, _BYTES)],
    # The descriptor is a message in the specification; on the wire that is the same as bytes.
    "FlightData": [
        ("descriptor", 1, _BYTES),
        ("header", 2, _BYTES),
        ("app_metadata", 3, _BYTES),
        ("body", 1000, _BYTES),
    ],
}


def _message_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="flight_for_tests.proto", package="flight_for_tests", syntax="proto3"
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            message.field.add(name=field, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"flight_for_tests.{name}"))
        for name in _FIELDS
    }


_CLASSES = _message_classes()
FlightDataMessage = Any
"""A FlightData message: ``descriptor``, ``header``, ``app_metadata`` and ``body``, each bytes."""


def encode(kind: str, **fields: Any) -> bytes:
    data: bytes = _CLASSES[kind](**fields).SerializeToString()
    return data


def decode(kind: str, data: bytes) -> Any:
    return _CLASSES[kind].FromString(data)


class AirportError(Exception):
    """A failed call as the DuckDB client sees it: the status, and the exception DuckDB would raise if one is named."""

    def __init__(self, code: grpc.StatusCode, message: str, trailers: dict[str, str | bytes]) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        arrow_status = trailers.get("x-arrow-status")
        self.is_io_error = arrow_status == _IO_ERROR if arrow_status is not None else code in _IO_CODES
        # Arrow hands the details on only next to a status of its own.
        details = trailers.get("grpc-status-details-bin") if arrow_status is not None else None
        self.extra: dict[str, str] | None = None if details is None else msgpack.unpackb(details)

    @property
    def exception_type(self) -> str | None:
        return None if self.extra is None else self.extra["exception_type"]

    @classmethod
    def from_grpc(cls, error: grpc.RpcError) -> AirportError:
        call: Any = error
        trailers = dict(call.trailing_metadata() or ())
        return cls(call.code(), call.details() or "", trailers)


class Connection:
    """One channel; each method is one RPC with bytes in and bytes out. Errors come as ``AirportError``."""

    def __init__(self, location: str, *, timeout: float = 30.0) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(location.split("://", 1)[-1], options=options)
        self._timeout = timeout

    def close(self) -> None:
        self._channel.close()

    def unary_stream(self, method: str, request: bytes, headers: Headers) -> Iterator[bytes]:
        call: Any = self._channel.unary_stream(_SERVICE + method)
        try:
            yield from call(request, metadata=tuple(headers), timeout=self._timeout)
        except grpc.RpcError as exc:
            raise AirportError.from_grpc(exc) from exc

    def stream_stream(self, method: str, requests: Iterable[bytes], headers: Headers) -> Any:
        """The running call: an iterator of answers that can be cancelled."""
        call: Any = self._channel.stream_stream(_SERVICE + method)
        return call(iter(requests), metadata=tuple(headers), timeout=self._timeout)

    def do_action(self, name: str, body: bytes, headers: Headers) -> list[bytes]:
        request = encode("Action", type=name, body=body)
        return [decode("Result", data).body for data in self.unary_stream("DoAction", request, headers)]

    def do_get(self, ticket: bytes, headers: Headers) -> Iterator[FlightDataMessage]:
        for data in self.unary_stream("DoGet", encode("Ticket", ticket=ticket), headers):
            yield decode("FlightData", data)


def _ipc(message: FlightDataMessage) -> bytes:
    length = len(message.header).to_bytes(4, "little")
    data: bytes = b"\xff\xff\xff\xff" + length + message.header + message.body
    return data


class BatchReader:
    """Turns FlightData into a schema and batches, one message at a time so that lock-step can be checked."""

    def __init__(self) -> None:
        self.schema: pa.Schema | None = None
        self._preamble: list[bytes] = []

    def take(self, message: FlightDataMessage) -> pa.RecordBatch | None:
        """The batch in ``message``; None when it holds the schema, a dictionary, or metadata alone."""
        if not message.header:
            return None
        data = _ipc(message)
        kind = pa.ipc.read_message(data).type
        if kind == "schema":
            self.schema = pa.ipc.read_schema(pa.py_buffer(data))
        if kind != "record batch":
            self._preamble.append(data)
            return None
        with pa.ipc.open_stream(b"".join([*self._preamble, data])) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
        return batch


def _messages(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> Iterator[tuple[str, bytes, bytes]]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    for message in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        body = message.body.to_pybytes() if message.body is not None else b""
        yield message.type, message.metadata.to_pybytes(), body


def schema_message(schema: pa.Schema, descriptor: bytes) -> bytes:
    """The client's second message: the descriptor again, with the schema."""
    (_, header, _), *_ = _messages(schema, [])
    return encode("FlightData", descriptor=descriptor, header=header)


def batch_messages(batch: pa.RecordBatch) -> list[bytes]:
    """A batch, after the dictionaries that it needs."""
    parts = [part for part in _messages(batch.schema, [batch]) if part[0] != "schema"]
    return [encode("FlightData", header=header, body=body) for _, header, body in parts]
