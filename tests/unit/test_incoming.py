"""The stream reader takes what pyarrow sends, one message at a time, and survives whatever else it gets."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkport.errors import InvalidArgument, ResourceExhausted
from sparkport.protocol.flight import FlightDescriptor
from sparkport.protocol.frames import StreamWriter, flight_data, metadata_message
from sparkport.protocol.incoming import StreamReader, parse_flight_data

pytestmark = pytest.mark.tier("fast")

DESCRIPTOR = FlightDescriptor(path=("public", "t"))
BATCH = pa.record_batch(
    {
        "id": pa.array([1, None, 3]),
        "s": ["a", None, "ccc"],
        "l": [["x"], [], None],
        "v": pa.array(["short", "a text beyond twelve bytes", None], pa.string_view()),
        "st": [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
        "d": pa.array(["p", "q", "p"]).dictionary_encode(),
        "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int8())),
        "u": pa.UnionArray.from_dense(
            pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["z"])]
        ),
        "r": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["r", None])),
        "w": pa.array([[1], None, [2, 3]], pa.list_view(pa.int16())),
    }
)


class Counted:
    """Messages that know how many of them were taken."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = iter(messages)
        self.taken = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        message = next(self._messages)
        self.taken += 1
        return message


def described(message: bytes, descriptor: FlightDescriptor = DESCRIPTOR) -> bytes:
    encoded = descriptor.encode()
    return b"\x0a" + bytes([len(encoded)]) + encoded + message


def stream(*batches: pa.RecordBatch) -> list[bytes]:
    writer = StreamWriter(batches[0].schema)
    rows = [message for batch in batches for message in writer.batch_messages(batch)]
    return [described(writer.schema_message()), *rows]


def reader(messages: list[bytes]) -> StreamReader:
    return StreamReader(iter(messages))


def framed(sink: Any) -> list[bytes]:
    """What pyarrow wrote as a stream, as messages of Flight."""
    messages = []
    for message in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        body = message.body.to_pybytes() if message.body is not None else b""
        messages.append(flight_data(message.metadata.to_pybytes(), [body], body_length=len(body)))
    return messages


def ints(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"a": pa.array(values, pa.int64())})


def test_batches_of_every_shape_come_back_equal() -> None:
    incoming = reader(stream(BATCH, BATCH.slice(1), BATCH.slice(0, 0)))

    assert incoming.descriptor == DESCRIPTOR
    assert incoming.read_schema().equals(BATCH.schema, check_metadata=True)
    assert [batch.to_pylist() for batch in incoming] == [BATCH.to_pylist(), BATCH.slice(1).to_pylist(), []]


def test_nothing_is_read_ahead() -> None:
    messages = Counted(stream(ints(1), ints(2), ints(3)))
    incoming = StreamReader(messages)
    assert messages.taken == 0
    assert incoming.descriptor == DESCRIPTOR
    assert messages.taken == 1
    incoming.read_schema()
    assert messages.taken == 1
    for taken in (2, 3, 4):
        next(incoming)
        assert messages.taken == taken


def test_bodies_are_not_copied() -> None:
    messages = stream(ints(*range(1000)))
    before = pa.total_allocated_bytes()

    batch = next(reader(messages))

    assert batch.column(0).buffers()[1].size == 8000
    assert pa.total_allocated_bytes() - before < 8000


def test_dictionaries_may_be_replaced() -> None:
    batches = [pa.record_batch({"d": pa.array(list(text)).dictionary_encode()}) for text in ("aba", "cdc", "e")]

    assert [batch.to_pydict()["d"] for batch in reader(stream(*batches))] == [list("aba"), list("cdc"), ["e"]]


def test_dictionaries_may_grow() -> None:
    sink = pa.BufferOutputStream()
    one = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", "b"]))
    two = pa.DictionaryArray.from_arrays(pa.array([2]), pa.array(["a", "b", "c"]))
    batches = [pa.record_batch({"d": column}) for column in (one, two)]
    with pa.ipc.new_stream(
        sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    ) as writer:
        for batch in batches:
            writer.write_batch(batch)

    assert [batch.to_pydict()["d"] for batch in reader(framed(sink))] == [["a", "b"], ["c"]]


def test_rows_without_columns_keep_their_number() -> None:
    assert [batch.num_rows for batch in reader(stream(ints(1, 2, 3).select([])))] == [3]


def test_metadata_before_the_schema_is_the_preamble() -> None:
    schema, rows = stream(ints(1))
    incoming = reader([described(metadata_message(b"first")), metadata_message(b"second"), schema, rows])

    assert incoming.descriptor == DESCRIPTOR
    assert incoming.preamble == []
    incoming.read_schema()
    assert incoming.preamble == [b"first", b"second"]
    assert next(incoming) == ints(1)


def test_last_metadata_is_the_newest_since_the_batch_before() -> None:
    writer = StreamWriter(ints(1).schema)
    incoming = reader(
        [
            writer.schema_message(),
            *writer.batch_messages(ints(1), b"one"),
            *writer.batch_messages(ints(2)),
            metadata_message(b"between"),
            *writer.batch_messages(ints(3)),
            metadata_message(b"end"),
        ]
    )

    seen = [(batch.column(0)[0].as_py(), incoming.last_metadata) for batch in incoming]

    assert seen == [(1, b"one"), (2, None), (3, b"between")]
    assert incoming.last_metadata == b"end"


def test_the_same_descriptor_may_come_again() -> None:
    schema, rows = stream(ints(1))

    assert list(reader([described(b""), schema, described(rows)])) == [ints(1)]


def test_another_descriptor_in_mid_stream_is_refused() -> None:
    schema, rows = stream(ints(1))
    incoming = reader([schema, described(rows, FlightDescriptor(command=b"x"))])

    with pytest.raises(InvalidArgument, match="another flight descriptor"):
        list(incoming)


def test_a_descriptor_that_comes_late_is_refused() -> None:
    schema, rows = stream(ints(1))
    incoming = reader([metadata_message(b"x"), schema, rows])

    with pytest.raises(InvalidArgument, match="first message"):
        _ = incoming.descriptor
    with pytest.raises(InvalidArgument, match="another flight descriptor"):
        incoming.read_schema()


@pytest.mark.parametrize("messages", [[], [StreamWriter(ints(1).schema).schema_message()]])
def test_a_stream_without_descriptor_says_so(messages: list[bytes]) -> None:
    with pytest.raises(InvalidArgument, match="descriptor"):
        _ = reader(messages).descriptor


def test_a_second_schema_is_refused() -> None:
    schema, rows = stream(ints(1))

    with pytest.raises(InvalidArgument, match="second schema"):
        list(reader([schema, rows, schema]))


def test_a_stream_must_begin_with_its_schema() -> None:
    with pytest.raises(InvalidArgument, match="must begin"):
        reader(stream(ints(1))[1:]).read_schema()
    with pytest.raises(InvalidArgument, match="ended before"):
        reader([metadata_message(b"x")]).read_schema()


def test_a_batch_without_its_dictionary_is_refused() -> None:
    schema, _dictionary, rows = stream(pa.record_batch({"d": pa.array(["a"]).dictionary_encode()}))

    with pytest.raises(InvalidArgument):
        list(reader([schema, rows]))


def test_a_body_of_another_length_than_announced_is_refused() -> None:
    schema, rows = stream(ints(1, 2))
    header = bytes(parse_flight_data(rows).header or b"")

    for body in (b"", bytes(8), bytes(4096)):
        with pytest.raises(InvalidArgument, match="its header says"):
            list(reader([schema, flight_data(header, [body], body_length=len(body))]))


def compressed(batch: pa.RecordBatch) -> list[bytes]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return framed(sink)


def test_compressed_batches_are_read() -> None:
    assert [batch.to_pylist() for batch in reader(compressed(BATCH))] == [BATCH.to_pylist()]


def test_a_small_message_that_holds_a_huge_batch_is_refused() -> None:
    messages = compressed(pa.record_batch({"a": pa.array([0] * 100_000, pa.int64())}))
    assert sum(map(len, messages)) < 10_000

    with pytest.raises(ResourceExhausted, match="a batch of 800"):
        list(StreamReader(iter(messages), max_batch_bytes=100_000))


def test_names_that_are_no_text_are_refused() -> None:
    schema = StreamWriter(pa.schema([("st", pa.struct([("inner", pa.int8())]))])).schema_message()

    with pytest.raises(InvalidArgument, match="schema"):
        reader([patched(schema, b"inner", b"in\xff\xfer")]).read_schema()


def patched(message: bytes, old: bytes, new: bytes) -> bytes:
    assert message.count(old) == 1
    return message.replace(old, new)


def test_offsets_beyond_the_buffer_are_refused() -> None:
    schema, rows = stream(pa.record_batch({"s": ["abc", "de"]}))
    bad = patched(rows, struct.pack("<3i", 0, 3, 5), struct.pack("<3i", 0, 3, 2**30))

    with pytest.raises(InvalidArgument, match="not a valid record batch"):
        list(reader([schema, bad]))


def test_indices_beyond_the_dictionary_are_refused() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1], pa.int32()), pa.array(["a", "b"]))
    schema, dictionary, rows = stream(pa.record_batch({"d": column}))
    bad = patched(rows, struct.pack("<4i", 0, 1, 0, 1), struct.pack("<4i", 0, 99, 0, 1))

    with pytest.raises(InvalidArgument, match="not a valid record batch"):
        list(reader([schema, dictionary, bad]))


def test_text_that_is_not_utf8_is_refused() -> None:
    schema, rows = stream(pa.record_batch({"s": ["abcdefgh"]}))

    with pytest.raises(InvalidArgument, match="UTF8"):
        list(reader([schema, patched(rows, b"abcdefgh", b"abc\xff\xfefgh")]))


def test_times_of_duckdb_reach_the_end_of_the_day() -> None:
    times = pa.array([86_400_000_000], pa.int64()).view(pa.time64("us"))

    (got,) = reader(stream(pa.record_batch({"t": times})))

    assert got.column(0).view(pa.int64()).to_pylist() == [86_400_000_000]


def test_failures_of_the_transport_pass_through() -> None:
    def messages() -> Iterator[bytes]:
        yield stream(ints(1))[0]
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        list(StreamReader(messages()))


@given(data=st.binary(max_size=300))
def test_any_bytes_are_a_message_or_an_invalid_argument(data: bytes) -> None:
    try:
        parsed = parse_flight_data(data)
    except InvalidArgument:
        return
    assert len(parsed.body) <= len(data)


GOOD = stream(BATCH, BATCH.slice(1))


@settings(max_examples=600)
@given(which=st.integers(0, len(GOOD) - 1), edits=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4))
def test_mutated_messages_never_do_harm(which: int, edits: list[tuple[int, int]]) -> None:
    message = bytearray(GOOD[which])
    for at, byte in edits:
        message[at % len(message)] = byte
    survives([*GOOD[:which], bytes(message), *GOOD[which + 1 :]])


@settings(max_examples=300)
@given(which=st.integers(0, len(GOOD) - 1), at=st.integers(0), number=st.sampled_from([-1, 1, 2**31 - 1, -(2**31), 8]))
def test_mutated_numbers_never_do_harm(which: int, at: int, number: int) -> None:
    message = bytearray(GOOD[which])
    at = at % (len(message) // 4) * 4
    struct.pack_into("<i", message, min(at, len(message) - 4), number)
    survives([*GOOD[:which], bytes(message), *GOOD[which + 1 :]])


def survives(messages: list[bytes]) -> None:
    """Reads and touches all values: whatever was let through must be safe to use."""
    incoming = reader(messages)
    batches: list[Any] = []
    with contextlib.suppress(InvalidArgument, ResourceExhausted):
        batches.extend(incoming)
    assert len(batches) <= 2
    for batch in batches:
        batch.validate()
        assert isinstance(str(batch.schema), str)
        if batch.num_rows < 1000:
            for column in batch.columns:
                assert len(repr(column)) > 0
