"""Record batches as serialized FlightData: the hot path of every read, so bytes are touched once.

pyarrow hands its buffers to a sink that only collects them; one join with the protobuf tags makes the message. (Writing
into preallocated memory without the interpreter lock was no faster: gRPC makes its own copy under the lock anyway.)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from sparkport.errors import InternalError, ResourceExhausted
from sparkport.protocol import ipc

__all__ = ["HARD_LIMIT_BYTES", "MAX_MESSAGE_BYTES", "StreamWriter", "flight_data", "metadata_message"]

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
HARD_LIMIT_BYTES: Final = 2**31 - 1  # of Arrow, and of gRPC

_HEADER_TAG: Final = b"\x12"
_METADATA_TAG: Final = b"\x1a"
_BODY_TAG: Final = b"\xc2\x3e"  # field 1000
_FRAME_BYTES: Final = 32  # more than the tags and lengths around header, metadata and body


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def flight_data(header: bytes, body: list[Any], *, body_length: int, metadata: bytes | None = None) -> bytes:
    """A FlightData message in one copy; ``body`` is a list of anything that has a buffer."""
    front = [_HEADER_TAG, _varint(len(header)), header] if header else []
    if metadata is not None:
        front += (_METADATA_TAG, _varint(len(metadata)), metadata)
    if body_length:
        front += (_BODY_TAG, _varint(body_length))
    return b"".join(front + body)


def metadata_message(metadata: bytes) -> bytes:
    """A FlightData message with application metadata and nothing else."""
    return flight_data(b"", [], body_length=0, metadata=metadata)


class _Sink:
    """What pyarrow takes for a file: keeps the buffers that are written to it, without copying them."""

    closed = False

    def __init__(self) -> None:
        self.chunks: list[Any] = []

    def write(self, chunk: Any) -> None:
        self.chunks.append(chunk)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def messages(self) -> Iterator[tuple[int, bytes, list[Any], int]]:
        """Kind, header, body and body length of each message written since the last time."""
        chunks, self.chunks = self.chunks, []
        at = 0
        while at < len(chunks):
            head, size = b"", 8  # a marker, the length of the header, the header
            while len(head) < size:
                head += chunks[at]
                at += 1
                if len(head) == 8:
                    size += int.from_bytes(head[4:], "little")
            header = head[8:]
            message_type, body_length = ipc.peek(header)
            start, seen = at, 0
            while seen < body_length:
                seen += len(chunks[at])
                at += 1
            yield message_type, header, chunks[start:at], body_length


class _Plan:
    """How batches with one set of columns become batches of the stream; made once per set."""

    def __init__(self, stream: pa.Schema, given: pa.Schema) -> None:
        places = _places(stream, given)
        # A dictionary's number on the wire is its place among all dictionaries of the stream: write all of them.
        self._written = [
            index for index, field in enumerate(stream) if places[index] is not None or ipc.has_dictionary(field.type)
        ]
        written = set(self._written)
        absent = [field for index, field in enumerate(stream) if index not in written]
        self._columns = [places[index] for index in self._written]
        self._schema = pa.schema([stream.field(index) for index in self._written])
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), self._schema) if self._written else None
        self._as_given = given.equals(self._schema)
        self._blank = lru_cache(maxsize=4)(lambda rows: ipc.blank(absent, rows)) if absent or not written else None
        # For each field of the stream: nodes, buffers and views that a written one has, None for an absent one.
        merged = list(enumerate(stream)) if self._blank is not None else []
        self._shapes = [_shape(field) if index in written else None for index, field in merged]
        self.max_rows = min((ipc.max_rows(field.type) for field in absent), default=ipc.max_rows(pa.null()))

    def write(self, batch: pa.RecordBatch) -> Iterator[tuple[int, bytes, list[Any], int]]:
        if self._writer is None:
            yield self._merge(ipc.BatchMetadata(batch.num_rows, (), (), ()), [], 0)
            return
        try:
            self._writer.write_batch(batch if self._as_given else self._arrange(batch))
        except pa.ArrowException as exc:
            raise InternalError(f"a batch that cannot be sent: {exc}") from exc
        for message_type, header, body, body_length in self._sink.messages():
            if message_type == ipc.BATCH and self._blank is not None:
                yield self._merge(ipc.read_batch(header), body, body_length)
            elif message_type != ipc.SCHEMA:
                yield message_type, header, body, body_length

    def _arrange(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.num_rows
        return pa.RecordBatch.from_arrays(
            [
                pa.nulls(rows, field.type) if column is None else batch.column(column)
                for column, field in zip(self._columns, self._schema, strict=True)
            ],
            schema=self._schema,
        )

    def _merge(
        self, written: ipc.BatchMetadata, body: list[Any], body_length: int
    ) -> tuple[int, bytes, list[Any], int]:
        """Puts the absent columns between the written ones; their block stands before the body."""
        blank = self._blank(written.rows) if self._blank is not None else ipc.Blank((), b"")
        absent = iter(blank.fields)
        shifted = list(written.buffers)
        shifted[::2] = [offset + len(blank.block) for offset in shifted[::2]]
        nodes: list[int] = []
        buffers: list[int] = []
        variadic: list[int] = []
        node = buffer = view = 0
        for shape in self._shapes:
            if shape is None:
                field = next(absent)
                nodes += field.nodes
                buffers += field.buffers
                variadic += field.variadic
                continue
            its_nodes, its_buffers, its_views = shape
            views = written.variadic[view : view + its_views]
            its_buffers += 2 * sum(views)
            nodes += written.nodes[node : node + its_nodes]
            buffers += shifted[buffer : buffer + its_buffers]
            variadic += views
            node, buffer, view = node + its_nodes, buffer + its_buffers, view + its_views
        body_length += len(blank.block)
        merged = ipc.BatchMetadata(written.rows, tuple(nodes), tuple(buffers), tuple(variadic))
        return ipc.BATCH, ipc.build_batch(merged, body_length), [blank.block, *body], body_length


def _places(stream: pa.Schema, given: pa.Schema) -> list[int | None]:
    """The column of the batch for each field of the stream."""
    if given.names == stream.names:
        places: list[int | None] = list(range(len(stream)))
    else:
        by_name = {name: index for index, name in enumerate(given.names)}
        if len(by_name) < len(given) or len(set(stream.names)) < len(stream):
            raise InternalError("a batch with some of the columns must not have two of the same name")
        if unknown := sorted(by_name.keys() - set(stream.names)):
            raise InternalError(f"columns that the stream does not have: {', '.join(unknown)}")
        places = [by_name.get(name) for name in stream.names]
    for place, field in zip(places, stream, strict=True):
        if place is not None and given.field(place).type != field.type:
            raise InternalError(f"column '{field.name}' is {given.field(place).type}, the stream has {field.type}")
    return places


def _shape(field: pa.Field) -> tuple[int, int, int]:
    (layout,) = ipc.blank([field], 0).fields
    return len(layout.nodes), len(layout.buffers), len(layout.variadic)


class StreamWriter:
    """Turns the batches of one stream into messages. Not for several threads at once.

    A batch MAY have only some of the stream's columns, in any order: the others are sent as nulls, or as zeros where
    they are not nullable, at next to no cost. A batch over ``max_message_bytes`` is sliced by rows; a single row may
    exceed it, up to ``hard_limit_bytes``.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        hard_limit_bytes: int = HARD_LIMIT_BYTES,
    ) -> None:
        self.schema = schema
        self._max = min(max_message_bytes, hard_limit_bytes)
        self._hard_limit = hard_limit_bytes
        self._has_dictionary: bool | None = None  # not known before it matters: many streams carry no rows
        self._plans: dict[pa.Schema, _Plan] = {}
        self._last: tuple[pa.Schema, _Plan] | None = None

    def schema_message(self) -> bytes:
        return flight_data(self.schema.serialize().slice(8).to_pybytes(), [], body_length=0)

    def batch_messages(self, batch: pa.RecordBatch, metadata: bytes | None = None) -> Iterator[bytes]:
        """``metadata`` rides on the last message."""
        plan = self._plan(batch.schema)
        yield from self._messages(plan, batch, metadata)

    def _plan(self, given: pa.Schema) -> _Plan:
        if self._last is not None and given.equals(self._last[0]):
            return self._last[1]
        if self._has_dictionary is None:
            self._has_dictionary = any(ipc.has_dictionary(field.type) for field in self.schema)
        # A plan of old would not know which dictionaries the client has got in the meantime.
        plan = None if self._has_dictionary else self._plans.get(given)
        if plan is None:
            plan = self._plans[given] = _Plan(self.schema, given)
        self._last = given, plan
        return plan

    def _messages(self, plan: _Plan, batch: pa.RecordBatch, metadata: bytes | None) -> Iterator[bytes]:
        rows = batch.num_rows
        if rows > plan.max_rows:
            yield from self._slices(plan, batch, metadata, rows=plan.max_rows)
            return
        for message_type, header, body, body_length in plan.write(batch):
            size = body_length + len(header) + _FRAME_BYTES
            if message_type == ipc.DICTIONARY:
                self._check(size, "a dictionary")
                yield flight_data(header, body, body_length=body_length)
                continue
            size += len(metadata or b"")
            if size > self._max and rows > 1:
                yield from self._slices(plan, batch, metadata, rows=max(1, rows * self._max // size))
                continue
            self._check(size, "one row")
            yield flight_data(header, body, body_length=body_length, metadata=metadata)

    def _slices(self, plan: _Plan, batch: pa.RecordBatch, metadata: bytes | None, *, rows: int) -> Iterator[bytes]:
        if rows > 64:  # whole bytes of the bitmaps, which then need no shifting
            rows -= rows % 64
        for start in range(0, batch.num_rows, rows):
            last = start + rows >= batch.num_rows
            yield from self._messages(plan, batch.slice(start, rows), metadata if last else None)

    def _check(self, size: int, what: str) -> None:
        if size > self._hard_limit:
            raise ResourceExhausted(f"{what} takes {size} bytes, a message holds at most {self._hard_limit}")
