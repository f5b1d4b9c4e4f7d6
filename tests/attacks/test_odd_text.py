"""Text that is no text, and numbers that are none: a client's mistake, and never a defect of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import msgpack
import pyarrow as pa
import pytest
from tests.robustness.rig import ROWS, Raw, action, descriptor
from tests.support.listing import create_table_body

from sparkport.memory import MemoryCatalog
from sparkport.protocol.flight import FlightDescriptor, Ticket
from sparkport.protocol.frames import StreamWriter
from sparkport.protocol.targets import Kind, Target
from sparkport.protocol.targets import Ticket as ScanTicket
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

INVALID = grpc.StatusCode.INVALID_ARGUMENT
TICKET = ScanTicket(target=Target("lake", "public", Kind.TABLE, "numbers"))


@pytest.fixture(scope="module")
def raw() -> Iterator[Raw]:
    catalog = MemoryCatalog("lake")
    catalog.create_table("public.numbers", ROWS.schema, rows=ROWS)
    with serving(catalog) as server, Raw(server.port) as connection:
        yield connection


def rows_there(raw: Raw) -> int:
    answer = raw.call("DoGet", Ticket(TICKET.encode()).encode())
    assert answer.code is grpc.StatusCode.OK
    return sum(len(message) > 300 for message in answer.messages)


def table(columns: bytes) -> bytes:
    return action("create_table", msgpack.packb(create_table_body("public", "fresh", columns)))


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("us", "ZONE"),
        pa.list_(pa.timestamp("us", "ZONE")),
        pa.struct([("a", pa.timestamp("us", "ZONE"))]),
        pa.dictionary(pa.int8(), pa.timestamp("us", "ZONE")),
    ],
    ids=str,
)
def test_a_time_zone_is_text(raw: Raw, kind: pa.DataType) -> None:
    columns = pa.schema([("at", kind)]).serialize().to_pybytes().replace(b"ZONE", b"\xff\xfe\xff\xff")
    assert raw.call("DoAction", table(columns)).code is INVALID
    stream = pa.schema([("at", kind)])
    message = StreamWriter(stream).schema_message().replace(b"ZONE", b"\xff\xfe\xff\xff")
    of = descriptor("numbers")
    headers = (("airport-operation", "insert"), ("return-chunks", "0"))
    answer = raw.call("DoExchange", b"\x0a" + bytes([len(of)]) + of + message, headers=headers)
    assert answer.code is INVALID


def test_a_default_is_text(raw: Raw) -> None:
    field = pa.field("a", pa.string(), metadata={"default": b"\xff\xfe"})
    assert raw.call("DoAction", table(pa.schema([field]).serialize().to_pybytes())).code is INVALID


@pytest.mark.parametrize("columns", [["id", "id", "ID"], ["id", "ID"], ["name", "name"]])
@pytest.mark.parametrize("operation", ["insert", "update"])
def test_a_column_that_is_wanted_back_twice_is_refused_before_anything_changes(
    raw: Raw, operation: str, columns: list[str]
) -> None:
    before = rows_there(raw)
    command = {"operation": operation, "schema_name": "public", "table_name": "numbers", "row_ids": [1, 2, 3]}
    body = json.dumps({**command, "returning": True, "returning_columns": columns}).encode()
    encoded = FlightDescriptor(command=body).encode()
    writer = StreamWriter(ROWS.schema)
    length = bytes([len(encoded) & 0x7F | 0x80, len(encoded) >> 7])
    messages = [b"\x0a" + length + encoded + writer.schema_message(), *writer.batch_messages(ROWS.to_batches()[0])]

    assert raw.call("DoPut", *messages).code is INVALID
    assert rows_there(raw) == before
