"""DoExchange from the client's side: in lock-step, a batch out, its answer in, before the next one goes out; or one way
only, as fast as the server takes it."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

import pyarrow as pa

from sparkport.client.connection import Connection, Outbox
from sparkport.client.errors import translated
from sparkport.errors import InternalError
from sparkport.protocol.flight import FlightDescriptor
from sparkport.protocol.frames import StreamWriter, metadata_message
from sparkport.protocol.incoming import StreamReader

__all__ = ["Exchange"]

_DESCRIPTOR_TAG = b"\x0a"


class Exchange:
    """One exchange, to be used in a ``with`` block: its end ends the call, finished or not."""

    def __init__(
        self,
        connection: Connection,
        descriptor: FlightDescriptor,
        schema: pa.Schema,
        *,
        operation: str,
        preamble: bytes | None = None,
        return_chunks: bool = True,
    ) -> None:
        self._location = connection.location
        self._outbox = Outbox()
        self._writer = StreamWriter(schema)
        opening = [self._writer.schema_message()]
        if preamble is not None:
            opening.insert(0, metadata_message(preamble))
        opening[0] = _described(descriptor, opening[0])
        for message in opening:
            self._outbox.put(message)
        headers = {"airport-operation": operation, "return-chunks": "1" if return_chunks else "0"}
        self._call: Any = connection.do_exchange(self._outbox, headers)
        if not self._call.add_callback(self._outbox.drop):
            self._outbox.drop()
        self._reader = StreamReader(self._call)

    def read_schema(self) -> pa.Schema:
        with translated(self._location, what="stream"):
            return self._reader.read_schema()

    def send(self, batch: pa.RecordBatch) -> None:
        """In lock-step: MUST NOT wait for the server, which may itself wait for its answers to be read."""
        for message in self._writer.batch_messages(batch):
            self._outbox.put(message)

    def feed(self, batch: pa.RecordBatch) -> bool:
        """Without lock-step: waits until the server has taken most of what was sent before. False when the call has
        ended, and no more is taken."""
        return all(self._outbox.put_when_room(message) for message in self._writer.batch_messages(batch))

    def answers(self, rows: int) -> Iterator[pa.RecordBatch]:
        """The answer of as many rows as were sent; a big one comes in slices."""
        while rows > 0:
            answer, _ = self.read()
            if answer is None or answer.num_rows > rows:
                raise InternalError(f"the server sent no answer for {rows} rows, or too long a one")
            rows -= answer.num_rows
            yield answer

    def finish(self) -> None:
        """No more input."""
        self._outbox.close()

    def read(self) -> tuple[pa.RecordBatch | None, bytes | None]:
        """The next batch and the metadata that came with it; no batch at the end."""
        with translated(self._location, what="stream"):
            return next(self._reader, None), self._reader.last_metadata

    def cancel(self) -> None:
        """From any thread. Safe to repeat."""
        self._call.cancel()
        self._outbox.drop()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()


def _described(descriptor: FlightDescriptor, message: bytes) -> bytes:
    """A message with a descriptor in front: fields of protobuf can simply be put one after the other."""
    encoded = descriptor.encode()
    length, size = bytearray(), len(encoded)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return _DESCRIPTOR_TAG + bytes(length) + encoded + message
