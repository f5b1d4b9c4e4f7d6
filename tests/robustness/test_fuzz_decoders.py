"""Every decoder takes any bytes: it gives a value or says that the argument is invalid, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.robustness.rig import ROWS, descriptor, ipc_row, mutated, numbers_ticket, valid_requests

from sparkport.catalog.scan import AsOf, AsOfUnit
from sparkport.errors import InvalidArgument, ResourceExhausted
from sparkport.protocol import flight
from sparkport.protocol.filters import parse_filters
from sparkport.protocol.incoming import StreamReader, parse_flight_data
from sparkport.protocol.maps import MapReader, unpack
from sparkport.protocol.targets import MAX_ARGUMENT_BYTES, Kind, Target, Ticket, as_of, decode_arguments, decode_schema

pytestmark = pytest.mark.tier("fast")

_INFO = flight.FlightInfo(
    ROWS.schema,
    flight.FlightDescriptor(path=("a", "b")),
    (flight.FlightEndpoint(b"t", ("grpc://x",), b"m", datetime(2030, 1, 1, tzinfo=UTC)),),
)
_TICKET = Ticket(
    target=Target("lake", "public", Kind.TABLE, "t"),
    columns=("a", "b"),
    filters='{"filters": []}',
    at=AsOf(AsOfUnit.VERSION, "3"),
    part=b"\x00\xff",
    arguments=ipc_row(n=1, s="x"),
)
_NESTED = {"l": [1, None], "s": {"a": "x", "b": [b"y"]}, "f": 1.5, "o": True, "t": datetime(2020, 1, 1), "d": None}
_FILTER = {
    "column_binding_names_by_index": ["id"],
    "filters": [
        {
            "expression_class": "BOUND_COMPARISON",
            "type": "COMPARE_EQUAL",
            "left": {
                "expression_class": "BOUND_COLUMN_REF",
                "type": "BOUND_COLUMN_REF",
                "return_type": {"id": "BIGINT"},
                "binding": {"table_index": 0, "column_index": 0},
            },
            "right": {
                "expression_class": "BOUND_CONSTANT",
                "type": "VALUE_CONSTANT",
                "value": {"type": {"id": "BIGINT"}, "is_null": False, "value": 3},
            },
        }
    ],
}


def _text(function: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: function(data.decode("latin-1"))


def _schema(data: bytes) -> object:
    schema = decode_schema(data, what="schema")
    return [(field.name, str(field.type)) for field in schema]


def _arguments(data: bytes) -> object:
    row = decode_arguments(data)
    return None if row is None else [(name, row.column(i)[0].is_valid) for i, name in enumerate(row.schema.names)]


def _map(data: bytes) -> object:
    """Every way of asking for every key, as handlers do it."""
    body = MapReader.from_body(data)
    asked: list[object] = []
    for key in ("a", "b", "c", "d"):
        for ask in (body.text, body.raw, body.integer, body.integers, body.texts, body.text_map, body.map):
            try:
                asked.append(ask(key))
            except InvalidArgument:
                asked.append(None)
    return asked


def _upload(data: bytes) -> object:
    """A whole stream: lengths, then messages."""
    messages, at = [], 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        messages.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    reader = StreamReader(iter(messages))
    _ = reader.descriptor
    return [batch.num_rows for batch in reader]


def _framed(messages: list[bytes]) -> bytes:
    return b"".join(len(message).to_bytes(2, "little") + message for message in messages)


DECODERS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "descriptor": (flight.FlightDescriptor.decode, descriptor("numbers")),
    "target": (lambda data: Target.from_descriptor(flight.FlightDescriptor.decode(data)), descriptor("numbers")),
    "ticket message": (flight.Ticket.decode, numbers_ticket()),
    "ticket": (Ticket.decode, _TICKET.encode()),
    "action": (flight.Action.decode, flight.Action("x", b"body").encode()),
    "criteria": (flight.Criteria.decode, flight.Criteria(b"x").encode()),
    "handshake": (flight.Handshake.decode, flight.Handshake(b"x", 3).encode()),
    "endpoint": (flight.FlightEndpoint.decode, _INFO.endpoints[0].encode()),
    "info": (flight.FlightInfo.decode, _INFO.encode()),
    "schema result": (flight.SchemaResult.decode, flight.SchemaResult(ROWS.schema).encode()),
    "msgpack": (unpack, msgpack.packb({"a": [1, {"b": b"\xff"}], "c": -1.5, "d": None})),
    "msgpack map": (_map, msgpack.packb({"a": "x", "b": [1, 2], "c": {"k": "v"}, "d": b"\xff"})),
    "json map": (_map, json.dumps({"a": "eA==", "b": [1, 2], "c": {"k": "v"}, "d": ["ü"]}).encode()),
    "as of": (_text(lambda text: as_of(text[:7], text[7:])), b"version3"),
    "filters": (_text(parse_filters), json.dumps(_FILTER).encode()),
    "schema": (_schema, pa.RecordBatch.from_pylist([_NESTED]).schema.serialize().to_pybytes()),
    "arguments": (_arguments, ipc_row(**_NESTED)),
    "flight data": (parse_flight_data, valid_requests()[6][1][-1]),
    "upload": (_upload, _framed(valid_requests()[7][1])),
}


def decodes(decode: Callable[[bytes], object], data: bytes) -> bool:
    try:
        decode(data)
    except (InvalidArgument, ResourceExhausted) as exc:
        exc.message.encode()
        return False
    return True


@pytest.mark.parametrize("name", DECODERS)
def test_what_was_encoded_is_decoded(name: str) -> None:
    decode, seed = DECODERS[name]

    assert decodes(decode, seed)


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.binary(max_size=256))
@example(data=b"")
@example(data=b"\xff" * 64)
@example(data=b"\xff\xff\xff\xff\xff\xff\xff\x7f")
def test_random_bytes_are_a_value_or_an_invalid_argument(name: str, data: bytes) -> None:
    assert decodes(DECODERS[name][0], data) in (True, False)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=100)
@given(data=st.data())
def test_damaged_bytes_are_a_value_or_an_invalid_argument(name: str, data: st.DataObject) -> None:
    decode, seed = DECODERS[name]
    assert decodes(decode, data.draw(mutated(seed))) in (True, False)


@pytest.mark.parametrize("name", DECODERS)
def test_bytes_that_end_anywhere_are_a_value_or_an_invalid_argument(name: str) -> None:
    decode, seed = DECODERS[name]
    outcomes = [decodes(decode, seed[:end]) for end in range(len(seed))]

    assert len(outcomes) == len(seed)


def test_a_column_whose_name_is_no_text_is_refused() -> None:
    odd = ipc_row(nnnn=1).replace(b"nnnn", b"\xff\xfe\xfd\xfc")

    with pytest.raises(InvalidArgument):
        decode_arguments(odd)


@pytest.mark.parametrize("rows", [0, 2, 1000])
def test_arguments_are_exactly_one_row(rows: int) -> None:
    batch = pa.RecordBatch.from_pydict({"n": pa.array(range(rows), pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)

    with pytest.raises(InvalidArgument, match="one row"):
        decode_arguments(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("encoded", [False, True], ids=["batch", "dictionary"])
def test_arguments_that_would_expand_to_too_much_are_refused_before_they_do(codec: str, encoded: bool) -> None:
    text = pa.array(["x" * (MAX_ARGUMENT_BYTES + 1)])
    data = _stream({"s": text.dictionary_encode() if encoded else text}, pa.ipc.IpcWriteOptions(compression=codec))
    held = pa.total_allocated_bytes()
    assert len(data) < 1 << 20
    with pytest.raises(ResourceExhausted, match="at most"):
        decode_arguments(data)
    assert pa.total_allocated_bytes() - held < 1 << 20
    few = _stream({"s": ["x" * 1000]}, pa.ipc.IpcWriteOptions(compression=codec))
    row = decode_arguments(few)
    assert row is not None
    assert row.to_pylist() == [{"s": "x" * 1000}]


def test_the_older_way_to_tell_of_compression_is_seen_too() -> None:
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    data = _stream({"n": [MAX_ARGUMENT_BYTES + 1]}, options, {"ARROW:experimental_compression": "zstd"})
    with pytest.raises(ResourceExhausted, match="at most"):
        decode_arguments(data)


def _stream(values: dict[str, Any], options: pa.ipc.IpcWriteOptions, metadata: dict[str, str] | None = None) -> bytes:
    batch = pa.RecordBatch.from_pydict(values)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch, metadata)
    return bytes(sink.getvalue().to_pybytes())
