"""DoExchange in the strict order of the DuckDB client, with a watchdog, so that a deadlock fails the test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import grpc
import pyarrow as pa
from tests.support.flight_rpc import (
    AirportError,
    BatchReader,
    Connection,
    FlightDataMessage,
    Headers,
    batch_messages,
    decode,
    encode,
    schema_message,
)

__all__ = ["Exchange", "LockStepError", "MessageExchange"]

_WATCHDOG_SECONDS = 60.0
_END = object()


class LockStepError(AssertionError):
    """The server did not keep to the order that the client insists on."""


class MessageExchange:
    """Raw messages both ways. Sending never waits for the server; ``receive`` waits, but not for ever."""

    def __init__(
        self, connection: Connection, method: str, headers: Headers, *, watchdog: float = _WATCHDOG_SECONDS
    ) -> None:
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._watchdog = watchdog
        self._call = connection.stream_stream(method, self._requests(), headers)
        self._reader = threading.Thread(target=self._read, name="exchange-reader", daemon=True)
        self._reader.start()

    def send(self, message: bytes) -> None:
        self._outgoing.put(message)

    def done_writing(self) -> None:
        self._outgoing.put(_END)

    def receive(self) -> bytes | None:
        """The next message; None at the end of the stream. Raises what the server raised."""
        try:
            item = self._incoming.get(timeout=self._watchdog)
        except queue.Empty:
            self.close()
            raise LockStepError(
                f"deadlock: the client waits and the server sent nothing for {self._watchdog} s"
            ) from None
        if isinstance(item, AirportError):
            raise item
        return None if item is _END else item

    def cancel(self) -> None:
        """Without the end of input."""
        self._call.cancel()

    def close(self) -> None:
        self._outgoing.put(_END)
        self.cancel()
        self._reader.join(timeout=self._watchdog)

    def _requests(self) -> Iterator[bytes]:
        while (message := self._outgoing.get()) is not _END:
            yield message

    def _read(self) -> None:
        try:
            for message in self._call:
                self._incoming.put(message)
        except grpc.RpcError as exc:
            self._incoming.put(AirportError.from_grpc(exc))
        else:
            self._incoming.put(_END)

    def __enter__(self) -> MessageExchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Exchange:
    """Descriptor, schema, the server's schema; then batches. Use as a context manager: leaving it cancels the call."""

    def __init__(
        self,
        connection: Connection,
        headers: Headers,
        *,
        descriptor: bytes,
        schema: pa.Schema,
        parameters: bytes | None = None,
        watchdog: float = _WATCHDOG_SECONDS,
    ) -> None:
        self.messages = MessageExchange(connection, "DoExchange", headers, watchdog=watchdog)
        self._reader = BatchReader()
        self._schema = schema
        self.last_metadata: bytes | None = None
        self.messages.send(encode("FlightData", descriptor=descriptor))
        if parameters is not None:
            self.messages.send(encode("FlightData", app_metadata=parameters))
        self.messages.send(schema_message(schema, descriptor))
        try:
            self.server_schema = self._read_schema()
        except BaseException:
            self.messages.close()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.schema.equals(self._schema):
            raise LockStepError(f"the client promised {self._schema} and would send {batch.schema}")
        for message in batch_messages(batch):
            self.messages.send(message)

    def read(self) -> pa.RecordBatch:
        """Exactly one batch, which the server owes now; ``last_metadata`` is what came with it."""
        while True:
            message = self._receive()
            if message is None:
                raise LockStepError("the server ended the stream while it owed a batch")
            batch = self._reader.take(message)
            self.last_metadata = message.app_metadata or None
            if batch is not None:
                return batch
            if not message.header:
                raise LockStepError("the server sent metadata alone while it owed a batch")

    def done_writing(self) -> None:
        self.messages.done_writing()

    def read_final_metadata(self) -> bytes:
        """One message without data, then the end of the stream."""
        message = self._receive()
        if message is None or message.header or not message.app_metadata:
            raise LockStepError("after the client's end the server owes one message of metadata without data")
        self.read_end()
        final: bytes = message.app_metadata
        return final

    def read_end(self) -> None:
        if self._receive() is not None:
            raise LockStepError("the server sent more than it was asked for")

    def close(self) -> None:
        self.messages.close()

    def _read_schema(self) -> pa.Schema:
        message = self._receive()
        if message is None or not message.header:
            raise LockStepError("the server's first message must be its schema")
        self._reader.take(message)
        if self._reader.schema is None:
            raise LockStepError("the server's first message must be its schema")
        return self._reader.schema

    def _receive(self) -> FlightDataMessage | None:
        data = self.messages.receive()
        return None if data is None else decode("FlightData", data)

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
