"""Schemas that are small on the wire and huge in memory: flatbuffers may refer to the same table or text many times."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
import pytest

from sparkport.errors import InvalidArgument
from sparkport.protocol.flight import SchemaResult
from sparkport.protocol.frames import flight_data
from sparkport.protocol.incoming import StreamReader
from sparkport.protocol.schemas import MAX_EXPANDED_BYTES, check_expanded, read_schema
from sparkport.protocol.targets import decode_arguments, decode_schema

pytestmark = pytest.mark.tier("fast")

PLAIN = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"comment": "the row's number"}),
        pa.field("at", pa.timestamp("us", "Europe/Berlin")),
        pa.field("parts", pa.list_(pa.struct([("a", pa.int8()), ("b", pa.dictionary(pa.int32(), pa.string()))]))),
    ],
    metadata={"about": "a table"},
)


class Flatbuffer:
    """A schema message whose references can be bent."""

    def __init__(self, schema: pa.Schema) -> None:
        self.data = bytearray(schema.serialize().to_pybytes())
        self.schema = self.follow(8 + self.number(8), 2)

    def number(self, at: int) -> int:
        return int(struct.unpack_from("<I", self.data, at)[0])

    def place(self, table: int, index: int) -> int:
        vtable = table - struct.unpack_from("<i", self.data, table)[0]
        offset = struct.unpack_from("<H", self.data, vtable + 4 + 2 * index)[0]
        return int(table + offset)

    def follow(self, table: int, index: int) -> int:
        at = self.place(table, index)
        return at + self.number(at)

    def items(self, table: int, index: int) -> list[int]:
        """Where the references of a vector are."""
        start = self.follow(table, index)
        return [start + 4 + 4 * item for item in range(self.number(start))]

    def bend(self, at: int, target: int) -> None:
        assert target > at
        struct.pack_into("<I", self.data, at, target - at)


def doubling(levels: int, filler: int = 0) -> bytes:
    """Each struct has the next one twice; in memory two to the power of ``levels`` fields.

    Arrow takes eight tables for each byte of the message: with ``filler`` it is long enough for all of them.
    """
    inner = pa.struct([("a", pa.int8()), ("b", pa.int8())])
    for _ in range(levels - 1):
        inner = pa.struct([("a", inner), ("b", pa.int8())])
    made = Flatbuffer(pa.schema([("x", inner)], metadata={"filler": "a" * filler}))
    (top,) = made.items(made.schema, 1)
    field = top + made.number(top)
    for _ in range(levels):
        first, second = made.items(field, 5)
        field = first + made.number(first)
        made.bend(second, field)
    return bytes(made.data)


def one_name_for_all(fields: int) -> bytes:
    made = Flatbuffer(pa.schema([("n" * 100_000, pa.int8()), *((f"c{i}", pa.int8()) for i in range(fields))]))
    tables = [at + made.number(at) for at in made.items(made.schema, 1)]
    longest = next(made.follow(table, 0) for table in tables if made.number(made.follow(table, 0)) == 100_000)
    for table in tables:
        if made.place(table, 0) < longest:
            made.bend(made.place(table, 0), longest)
    return bytes(made.data)


def one_comment_for_all(pairs: int) -> bytes:
    metadata = {f"{i:05}": "c" * 50_000 * (i == 0) for i in range(pairs)}
    made = Flatbuffer(pa.schema([("a", pa.int8())], metadata=metadata))
    places = made.items(made.schema, 2)
    longest = max((at + made.number(at) for at in places), key=lambda table: made.number(made.follow(table, 1)))
    for at in places:
        if at < longest:
            made.bend(at, longest)
    return bytes(made.data)


BOMBS = [lambda: doubling(19, filler=1 << 19), lambda: one_name_for_all(2_000), lambda: one_comment_for_all(2_000)]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_schema_that_says_the_same_over_and_over_is_refused_before_arrow_makes_it(
    bomb: Callable[[], bytes],
) -> None:
    data = bomb()
    before = pa.total_allocated_bytes()
    with pytest.raises(ValueError, match="come to more than"):
        read_schema(data)
    assert pa.total_allocated_bytes() == before
    for read in (
        lambda: decode_schema(data, what="arrow_schema"),
        lambda: StreamReader(iter([flight_data(data[8:], [], body_length=0)])).read_schema(),
        lambda: SchemaResult.decode(_schema_result(data)),
        lambda: decode_arguments(data),
    ):
        with pytest.raises(InvalidArgument):
            read()


def test_a_schema_of_a_few_shared_tables_is_what_arrow_makes_of_it() -> None:
    data = doubling(3)
    assert read_schema(data).equals(pa.ipc.read_schema(pa.py_buffer(data)))


def test_schemas_of_every_kind_are_read_as_they_are() -> None:
    wide = pa.schema([(f"column {i}", pa.struct([("x", pa.int8())])) for i in range(10_000)])
    deep = pa.schema([("a", _nested(50))])
    for schema in (PLAIN, wide, deep, pa.schema([])):
        message = schema.serialize().to_pybytes()
        assert read_schema(message).equals(schema, check_metadata=True)
        old = message[4:]  # before Arrow 0.15 a message began with its length
        assert read_schema(old).equals(schema, check_metadata=True)


def test_a_schema_that_ends_early_is_no_schema() -> None:
    message = PLAIN.serialize().to_pybytes()
    for length in range(0, len(message), 7):
        with pytest.raises(InvalidArgument):
            decode_schema(message[:length], what="arrow_schema")


def test_counting_stops_where_there_is_too_much() -> None:
    """Two to the power of 40 fields would not be counted in a lifetime."""
    check_expanded(doubling(12)[8:])
    with pytest.raises(ValueError, match=str(MAX_EXPANDED_BYTES)):
        check_expanded(doubling(40)[8:])


def _nested(levels: int) -> pa.DataType:
    inner: pa.DataType = pa.int8()
    for _ in range(levels):
        inner = pa.list_(inner)
    return inner


def _schema_result(data: bytes) -> bytes:
    length, varint = len(data), b""
    while length > 127:
        varint, length = varint + bytes([length & 127 | 128]), length >> 7
    return b"\x0a" + varint + bytes([length]) + data
