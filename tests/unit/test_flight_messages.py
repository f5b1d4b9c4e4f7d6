"""Our Flight messages against pyarrow's own: what one encodes the other reads, and no bytes do harm."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight as pf

from sparkport.errors import InvalidArgument
from sparkport.protocol import flight
from sparkport.protocol.flight import FlightDescriptor
from sparkport.protocol.targets import Kind, Target

pytestmark = pytest.mark.tier("fast")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("näme", pa.string(), metadata={"k": "v"})])
WHEN = datetime(2031, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)
DESCRIPTORS = [
    (flight.FlightDescriptor(path=("public", "tablé")), pf.FlightDescriptor.for_path("public", "tablé")),
    (flight.FlightDescriptor(path=()), pf.FlightDescriptor.for_path()),
    (flight.FlightDescriptor(command=b"\x00\xffSELECT"), pf.FlightDescriptor.for_command(b"\x00\xffSELECT")),
    (flight.FlightDescriptor(command=b""), pf.FlightDescriptor.for_command(b"")),
]
INFO = flight.FlightInfo(
    SCHEMA,
    flight.FlightDescriptor(path=("public", "t")),
    (flight.FlightEndpoint(b"one", ("grpc://a:1", "grpc://b:2")), flight.FlightEndpoint(b"two", (), b"meta", WHEN)),
    total_records=5,
    total_bytes=-1,
    ordered=True,
    app_metadata=b"\x81\xff",
)


@pytest.mark.parametrize(("ours", "theirs"), DESCRIPTORS)
def test_a_descriptor_is_the_same_to_pyarrow(ours: flight.FlightDescriptor, theirs: Any) -> None:
    assert pf.FlightDescriptor.deserialize(ours.encode()) == theirs
    assert flight.FlightDescriptor.decode(theirs.serialize()) == ours
    assert ours.encode() == theirs.serialize()


def test_a_flight_info_survives_the_way_through_pyarrow() -> None:
    theirs = pf.FlightInfo.deserialize(INFO.encode())

    assert theirs.schema.equals(SCHEMA, check_metadata=True)
    assert theirs.descriptor == pf.FlightDescriptor.for_path("public", "t")
    assert (theirs.total_records, theirs.total_bytes, theirs.ordered, theirs.app_metadata) == (5, -1, True, b"\x81\xff")
    assert [endpoint.ticket.ticket for endpoint in theirs.endpoints] == [b"one", b"two"]
    assert flight.FlightInfo.decode(theirs.serialize()) == INFO


def test_an_endpoint_is_the_same_to_pyarrow() -> None:
    ours = INFO.endpoints[1]
    theirs = pf.FlightEndpoint.deserialize(ours.encode())

    assert (theirs.ticket.ticket, theirs.app_metadata) == (b"two", b"meta")
    assert theirs.expiration_time.as_py() == WHEN
    assert flight.FlightEndpoint.decode(theirs.serialize()) == ours
    assert [str(place.uri) for place in pf.FlightEndpoint.deserialize(INFO.endpoints[0].encode()).locations] == [
        str(pf.Location(uri).uri) for uri in INFO.endpoints[0].locations
    ]


def test_an_endpoint_without_expiration_keeps_none() -> None:
    assert flight.FlightEndpoint.decode(pf.FlightEndpoint(b"t", []).serialize()).expiration is None


def test_tickets_are_the_same_to_pyarrow() -> None:
    assert pf.Ticket.deserialize(flight.Ticket(b"\x00t\xff").encode()).ticket == b"\x00t\xff"
    assert flight.Ticket.decode(pf.Ticket(b"\x00t\xff").serialize()).ticket == b"\x00t\xff"


def test_actions_and_results_are_the_same_to_pyarrow() -> None:
    action = pf.Action.deserialize(flight.Action("drop", b"\x80").encode())

    assert (action.type, action.body.to_pybytes()) == ("drop", b"\x80")
    assert flight.Action.decode(pf.Action("drop", b"\x80").serialize()) == flight.Action("drop", b"\x80")
    assert pf.Result.deserialize(flight.Result(b"r\xff").encode()).body.to_pybytes() == b"r\xff"
    assert flight.Result.decode(pf.Result(pa.py_buffer(b"r\xff")).serialize()).body == b"r\xff"


def test_a_schema_result_is_the_same_to_pyarrow() -> None:
    assert pf.SchemaResult.deserialize(flight.SchemaResult(SCHEMA).encode()).schema.equals(SCHEMA, check_metadata=True)
    assert flight.SchemaResult.decode(pf.SchemaResult(SCHEMA).serialize()).schema.equals(SCHEMA, check_metadata=True)


@pytest.mark.parametrize(
    "value",
    [
        flight.ActionType("drop", "drops it"),
        flight.Criteria(b"\xffx"),
        flight.PutResult(b"\xffm"),
        flight.Handshake(b"token", 3),
        flight.FlightDescriptor(),
    ],
)
def test_messages_pyarrow_keeps_to_itself_come_back_equal(value: Any) -> None:
    assert type(value).decode(value.encode()) == value


def test_equal_content_gives_equal_bytes() -> None:
    again = flight.FlightInfo.decode(INFO.encode())

    assert again is not INFO
    assert again.encode() == INFO.encode()


def test_reflection_finds_every_method_of_the_service() -> None:
    service: Any = descriptor_pool.Default().FindFileByName(flight.FILE_NAME).services_by_name["FlightService"]

    assert service.full_name == flight.SERVICE_NAME
    assert [method.name for method in service.methods] == list(flight.METHODS)
    assert service.methods_by_name["DoExchange"].client_streaming
    assert not service.methods_by_name["DoGet"].client_streaming


DECODERS: list[Callable[[bytes], object]] = [
    flight.Action.decode,
    flight.ActionType.decode,
    flight.FlightDescriptor.decode,
    flight.FlightEndpoint.decode,
    flight.FlightInfo.decode,
    flight.Handshake.decode,
    flight.Criteria.decode,
    flight.PutResult.decode,
    flight.Result.decode,
    flight.SchemaResult.decode,
    flight.Ticket.decode,
]


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=200), at=st.integers(0, 600))
def test_garbage_is_an_invalid_argument_and_nothing_else(decode: Any, data: bytes, at: int) -> None:
    good = INFO.encode()
    for mutated in (data, good[:at] + data + good[at + len(data) :]):
        try:
            value = decode(mutated)
        except InvalidArgument:
            continue
        assert value is not None


def test_names_that_are_no_text_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="Action"):
        flight.Action.decode(b"\x0a\x02\xff\xfe")


def test_an_unknown_type_of_descriptor_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="type 7"):
        flight.FlightDescriptor.decode(b"\x08\x07")


@pytest.mark.parametrize("name", ["t", "a/b", "%C3%A9", "é", "日本/%", "percent-encoded", "a b"])
def test_a_descriptor_of_any_name_is_of_ascii_and_means_that_name(name: str) -> None:
    target = Target("lake", name, Kind.TABLE, name)
    descriptor = target.descriptor()
    assert all(part.isascii() for part in descriptor.path or ())
    assert Target.from_descriptor(FlightDescriptor.decode(descriptor.encode())) == target


def test_a_descriptor_that_is_encoded_wrongly_is_an_invalid_argument() -> None:
    with pytest.raises(InvalidArgument, match="no UTF-8"):
        Target.from_descriptor(FlightDescriptor(path=("lake", "s", "table", "%FF", "percent-encoded"), command=None))
