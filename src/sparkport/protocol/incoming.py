"""Serialized FlightData as record batches: what clients upload, read strictly one message at a time and never trusted.

The lock-step of an exchange depends on it that nothing is read ahead: a batch costs exactly the messages up to its own.
The batches point into the messages (no copies, any alignment). pyarrow checks the metadata of what it reads, but not
the content: offsets that lead out of a buffer would bring the process down later, so batches are validated before
anybody sees them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyarrow import types

from sparkport.catalog.memory_sizes import has_views, require_room, view_bytes
from sparkport.errors import InvalidArgument, ResourceExhausted
from sparkport.protocol import ipc
from sparkport.protocol.flight import FlightDescriptor
from sparkport.protocol.schemas import read_schema
from sparkport.protocol.targets import MAX_SCHEMA_BYTES

__all__ = ["Account", "FlightData", "MAX_BATCH_BYTES", "StreamReader", "parse_flight_data"]

MAX_BATCH_BYTES: Final = 2**30

_CONTINUATION: Final = b"\xff\xff\xff\xff"
_COPIED_BYTES: Final = 4 * 1024  # up to here a copy is cheaper than pyarrow's calls back for each piece of a message
_KEPT_BYTES: Final = 64 * 1024  # of a schema that is remembered
_MAX_MESSAGES: Final = 10_000  # before the schema, or of dictionaries before a batch
_FREE_ROWS: Final = 2**20  # columns of nulls need no bytes: beyond this each row of a batch takes at least one
_LENGTH_OF: Final = struct.Struct("<i").pack
_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class Account(Protocol):
    """A stream reports here what it takes; both raise ResourceExhausted when it is too much."""

    def hold(self, size: int) -> None:
        """Until the next message is asked for."""

    def keep(self, size: int) -> None:
        """Until the call ends."""


class _NoAccount:
    def hold(self, size: int) -> None: ...

    def keep(self, size: int) -> None: ...


class FlightData(NamedTuple):
    """The parts of a message, None where it has none."""

    descriptor: bytes | None
    header: memoryview | None
    metadata: bytes | None
    body: memoryview


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise InvalidArgument("not a FlightData message")


def parse_flight_data(data: bytes) -> FlightData:
    view = memoryview(data)
    end = len(data)
    fields: dict[int, memoryview] = {}
    at = 0
    try:
        while at < end:
            tag = data[at]  # varints of one byte are read in place: this runs for every message
            at += 1
            if tag > 0x7F:
                tag, at = _varint(data, at - 1)
            wire = tag & 7
            if wire == _LENGTH:
                length = data[at]
                at += 1
                if length > 0x7F:
                    length, at = _varint(data, at - 1)
                fields[tag >> 3] = view[at : at + length]
                at += length
            elif wire == _VARINT:
                _, at = _varint(data, at)
            elif wire in (_FIXED64, _FIXED32):
                at += 8 if wire == _FIXED64 else 4
            else:
                raise InvalidArgument("not a FlightData message")
    except IndexError as exc:
        raise InvalidArgument("a FlightData message is cut short") from exc
    if at > end:
        raise InvalidArgument("a FlightData message is cut short")
    descriptor, metadata = fields.get(_DESCRIPTOR), fields.get(_METADATA)
    return FlightData(
        None if descriptor is None else bytes(descriptor),
        fields.get(_HEADER) or None,
        None if metadata is None else bytes(metadata),
        fields.get(_BODY, view[end:]),
    )


class _Layout(NamedTuple):
    """What is to be known of a stream from its schema."""

    schema: pa.Schema
    risky: tuple[int, ...]
    views: tuple[int, ...]
    streamed: bool
    """Whether only a reader of the whole stream gets the batches right: dictionaries, bytes in another order."""


def _layout(header: bytes) -> _Layout:
    """Clients that insert row by row send the same schema with each of them: looking at it once is enough."""
    return _kept_layout(header) if len(header) <= _KEPT_BYTES else _new_layout(header)


def _new_layout(header: bytes) -> _Layout:
    try:
        schema = read_schema(b"".join((_CONTINUATION, _LENGTH_OF(len(header)), header)))
        streamed = ipc.is_big_endian(header) or any(ipc.has_dictionary(field.type) for field in schema)
    except Exception as exc:  # whatever pyarrow raises over these bytes, the bytes are at fault
        raise InvalidArgument("not an Arrow schema") from exc
    risky = tuple(i for i, field in enumerate(schema) if _is_risky(field.type))
    return _Layout(schema, risky, tuple(i for i in risky if has_views(schema.field(i).type)), streamed)


_kept_layout = lru_cache(maxsize=256)(_new_layout)


class _Source:
    """What pyarrow takes for a file: gives out the pieces of the messages it was fed."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[memoryview | bytes] = []

    def feed(self, data: FlightData) -> None:
        header = data.header or memoryview(b"")
        self.pieces += (_CONTINUATION, _LENGTH_OF(len(header)), header)
        if data.body:
            self.pieces.append(data.body)

    def read(self, _size: int) -> memoryview | bytes:
        # Each piece is what is asked for: the length of the body has been compared with what its header says.
        return self.pieces.pop(0) if self.pieces else b""

    def readable(self) -> bool:
        return True

    def close(self) -> None: ...


class StreamReader:
    """The record batches of one upload. Not for several threads at once.

    ``max_batch_bytes`` is for compressed batches, which may be many times as large as the messages they came in, and
    for what a stream makes the reader keep: dictionaries, and messages before the schema.
    """

    def __init__(
        self, messages: Iterator[bytes], *, max_batch_bytes: int = MAX_BATCH_BYTES, account: Account | None = None
    ) -> None:
        self._messages = messages
        self._max_batch_bytes = max_batch_bytes
        self._account = account or _NoAccount()
        self._kept_bytes = 0
        self._waiting_bytes = 0
        self._waiting_messages = 0
        self._dictionary_bytes: dict[int, int] = {}
        self._pending: FlightData | None = None
        self._descriptor: FlightDescriptor | None = None
        self._first = True
        self._source = _Source()
        self._reader: Any = None
        self._layout: _Layout | None = None
        self._known_header = b""
        self._known_length = 0
        self.preamble: list[bytes] = []
        """Metadata of the messages before the schema."""
        self.last_metadata: bytes | None = None
        """The newest metadata since the batch before: of the batch just read, or of a message without data."""

    @property
    def descriptor(self) -> FlightDescriptor:
        """What the stream is about. Waits for the first message, if that has not come yet."""
        if self._first:
            self._pending = self._pull()
        if self._descriptor is None:
            raise InvalidArgument("the first message of a stream must carry a flight descriptor")
        return self._descriptor

    def read_schema(self) -> pa.Schema:
        """Waits for the schema. MAY be called again."""
        while self._layout is None:
            data = self._pull()
            if data is None:
                raise InvalidArgument("the stream ended before its schema")
            if data.header is None:
                if data.metadata is not None:
                    self._keep(len(data.metadata))
                    self.preamble.append(data.metadata)
                continue
            if self._message_type(data) != ipc.SCHEMA:
                raise InvalidArgument("a stream must begin with its schema")
            if len(data.header) > MAX_SCHEMA_BYTES:
                raise ResourceExhausted(f"a schema of {len(data.header)} bytes, at most {MAX_SCHEMA_BYTES} are taken")
            self._source.feed(data)
            self._layout = _layout(bytes(data.header))
            self.last_metadata = data.metadata
        return self._layout.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        self.read_schema()
        self.last_metadata = None
        while True:
            data = self._pull()
            if data is None:
                raise StopIteration
            if data.metadata is not None:
                self.last_metadata = data.metadata
            if data.header is None:
                continue
            message_type = self._message_type(data)
            if message_type == ipc.SCHEMA:
                raise InvalidArgument("a second schema in the middle of a stream")
            if message_type == ipc.BATCH:
                self._waiting_bytes = self._waiting_messages = 0
                return self._decode(data)
            if self._layout is None or not self._layout.streamed:
                raise InvalidArgument("a dictionary for a schema that has none")
            self._source.feed(data)

    def _keep(self, size: int, *, instead_of: int = 0) -> None:
        """Count what a stream makes the reader keep: until a batch comes, all that has come, replaced or not."""
        self._kept_bytes += size - instead_of
        self._waiting_bytes += size
        self._waiting_messages += 1
        if max(self._kept_bytes, self._waiting_bytes) > self._max_batch_bytes or self._waiting_messages > _MAX_MESSAGES:
            raise ResourceExhausted("too much comes before the next batch: more than a batch may take")
        self._account.keep(size - instead_of)

    def _pull(self) -> FlightData | None:
        if self._pending is not None:
            data, self._pending = self._pending, None
            return data
        message = next(self._messages, None)
        first, self._first = self._first, False
        if message is None:
            return None
        data = parse_flight_data(message)
        if data.descriptor is not None:
            descriptor = FlightDescriptor.decode(data.descriptor)
            if first:
                self._descriptor = descriptor
            elif descriptor != self._descriptor:
                raise InvalidArgument("another flight descriptor in the middle of a stream")
        return data

    def _message_type(self, data: FlightData) -> int:
        header = bytes(data.header or b"")
        if header == self._known_header and len(data.body) == self._known_length:
            return ipc.BATCH  # batches of equal shape have equal headers
        try:
            message_type, body_length = ipc.peek(header)
            expanded = ipc.decompressed_length(header, data.body) if message_type in (ipc.DICTIONARY, ipc.BATCH) else 0
            dictionary = ipc.dictionary_of(header) if message_type == ipc.DICTIONARY else None
        except (struct.error, IndexError) as exc:
            raise InvalidArgument("not an Arrow IPC message") from exc
        if message_type not in (ipc.SCHEMA, ipc.DICTIONARY, ipc.BATCH):
            raise InvalidArgument(f"an Arrow IPC message of kind {message_type} in a stream of record batches")
        if body_length != len(data.body):
            raise InvalidArgument(f"the body of a message has {len(data.body)} bytes, its header says {body_length}")
        if expanded:
            if expanded > self._max_batch_bytes:
                raise ResourceExhausted(f"a batch of {expanded} bytes, at most {self._max_batch_bytes} are taken")
            self._account.hold(expanded)
        if dictionary is not None:
            self._keep_dictionary(*dictionary, size=max(expanded, body_length))
        if message_type == ipc.BATCH and not expanded:
            self._known_header, self._known_length = header, body_length
        return message_type

    def _keep_dictionary(self, number: int, delta: bool, *, size: int) -> None:
        """A dictionary takes the place of the one with its number, unless it says that it is an addition."""
        before = self._dictionary_bytes.get(number, 0)
        self._dictionary_bytes[number] = size + (before if delta else 0)
        self._keep(size, instead_of=0 if delta else before)

    def _decode(self, data: FlightData) -> pa.RecordBatch:
        try:
            batch = self._read(data)
            if batch.num_rows > _FREE_ROWS and batch.num_rows > batch.get_total_buffer_size():
                raise ResourceExhausted(f"a batch of {batch.num_rows} rows without bytes: send fewer at once")
            batch.validate()
            layout = self._layout
            if layout is not None and layout.views:  # a thousand views of one long text are a thousand texts to check
                require_room(sum(view_bytes(batch.column(index)) for index in layout.views))
            for index in layout.risky if layout is not None else ():
                batch.column(index).validate(full=True)
        except (InvalidArgument, ResourceExhausted):
            raise
        except Exception as exc:  # StopIteration too: a batch was there, and pyarrow took it for something else
            raise InvalidArgument(f"not a valid record batch: {exc}") from exc
        return batch

    def _read(self, data: FlightData) -> pa.RecordBatch:
        layout, header = self._layout, data.header
        if layout is None or header is None:
            raise InvalidArgument("a stream must begin with its schema")
        if not layout.streamed and len(data.body) <= _COPIED_BYTES:
            message = b"".join((_CONTINUATION, _LENGTH_OF(len(header)), header, data.body))
            return pa.ipc.read_record_batch(pa.py_buffer(message), layout.schema)
        self._source.feed(data)
        if self._reader is None:  # the schema is still in the source
            self._reader = pa.ipc.open_stream(pa.PythonFile(self._source, "r"))
        batch = self._reader.read_next_batch()
        if self._source.pieces:
            raise InvalidArgument("not a valid record batch: more data than it has a use for")
        return batch


def _is_risky(data_type: Any) -> bool:
    """Whether values lead elsewhere (offsets, indices, type ids): only those need a look at each of them.

    Plain values are left alone, since Arrow's rules are narrower than DuckDB's there: its times reach 24:00:00.
    """
    if isinstance(data_type, pa.BaseExtensionType):
        return _is_risky(data_type.storage_type)
    if types.is_struct(data_type):
        return any(_is_risky(field.type) for field in data_type)
    if types.is_fixed_size_list(data_type):
        return _is_risky(data_type.value_type)
    return not (
        types.is_primitive(data_type)
        or types.is_decimal(data_type)
        or types.is_fixed_size_binary(data_type)
        or types.is_null(data_type)
    )
