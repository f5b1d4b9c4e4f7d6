"""Whatever one caller with a token sends, the server stays under a gigabyte and answers others within a second."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import msgpack
import pyarrow as pa
import pytest
from tests.attacks.http2 import HandMade
from tests.attacks.rig import Victim, needs_proc
from tests.robustness.rig import Answer, Raw, action, eventually
from tests.support.listing import create_table_body

from sparkport.protocol.flight import FlightDescriptor, Ticket
from sparkport.protocol.frames import flight_data
from sparkport.protocol.targets import Kind, Target
from sparkport.protocol.targets import Ticket as ScanTicket

pytestmark = [pytest.mark.tier("thorough"), needs_proc]

GIGABYTE = 10**9
OK, EXHAUSTED, INVALID = (
    grpc.StatusCode.OK,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INVALID_ARGUMENT,
)
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("vector", pa.list_(pa.float32(), 1_536))])


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with one_table() as running:
        yield running


@pytest.fixture
def fresh() -> Iterator[Victim]:
    """A server that nobody has attacked before."""
    with one_table() as running:
        yield running


@contextmanager
def one_table() -> Iterator[Victim]:
    with Victim() as running:
        with Raw(running.port, token="bob") as raw:
            body = create_table_body("public", "t", COLUMNS.serialize().to_pybytes())
            answer = raw.call("DoAction", action("create_table", body))
            assert answer.code is OK, answer.details
        yield running


@pytest.fixture
def alice(victim: Victim) -> Iterator[Raw]:
    victim.forget_peak()
    with Raw(victim.port, token="alice") as raw:
        yield raw
    others_are_answered(victim)
    assert victim.peak < GIGABYTE


def others_are_answered(victim: Victim) -> None:
    """In a second; the test gives a slow machine some more, and one that others keep busy a second and a third try."""
    taken: list[float] = []
    with Raw(victim.port, token="bob") as bob:
        assert bob.call("DoAction", action("list_schemas", {"catalog_name": "lake"})).code is OK
        while len(taken) < 3 and (not taken or taken[-1] >= 5):
            begun = time.monotonic()
            assert bob.call("DoAction", action("list_schemas", {"catalog_name": "lake"})).code is OK
            taken.append(time.monotonic() - begun)
    assert taken[-1] < 5, taken


def varint(number: int) -> bytes:
    low = b""
    while number > 0x7F:
        low += bytes([number & 0x7F | 0x80])
        number >>= 7
    return low + bytes([number])


def put(table: str = "t", **command: object) -> bytes:
    body = {"operation": "insert", "schema_name": "public", "table_name": table, **command}
    encoded = FlightDescriptor(command=json.dumps(body).encode()).encode()
    return b"\x0a" + varint(len(encoded)) + encoded


def ipc_messages(batches: Sequence[pa.RecordBatch], **options: Any) -> list[bytes]:
    """FlightData of everything that a writer of Arrow's makes of some batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    found = []
    for message in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        body = b"" if message.body is None else message.body.to_pybytes()
        found.append(flight_data(message.metadata.to_pybytes(), [body], body_length=len(body)))
    return found


def short_of(*, compression: str | None = None, **columns: pa.Array) -> list[bytes]:
    """An upload in which all other columns are null."""
    rows = len(next(iter(columns.values())))
    given: dict[str, pa.Array] = {name: pa.nulls(rows) for name in COLUMNS.names}
    return ipc_messages([pa.RecordBatch.from_pydict({**given, **columns})], compression=compression)


def upload(alice: Raw, messages: Sequence[bytes], *, table: str = "t") -> Answer:
    return alice.call("DoPut", put(table) + messages[0], *messages[1:])


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\x00\x0f\x42\x40" * 3 + b"\x90" * 16_000_000,
        (b"\xdd\x00\x01\x86\xa0" + b"\x90" * 100_000) * 160,
        b"\x81\xa1a\xdd\x00\x00\x00\xa0" + (b"\xdd\x00\x01\x86\xa0" + b"\x90" * 100_000) * 160,
        b"\x81\xa1a\xdd\x00\x00\x00\xa0" + (b"\xde\xff\xff" + b"\xcd\x10\x00\x80" * 65_535) * 160,
        b'{"a": [' + b"[]," * 10_000_000 + b"[]]}",
        b'{"a": [' + b"{}," * 5_000_000 + b"{}]}",
    ],
    ids=["lists that announce", "lists in a row", "lists in a map", "maps", "JSON lists", "JSON maps"],
)
@pytest.mark.parametrize("name", ["list_schemas", "create_transaction"])
def test_a_body_of_countless_empty_things_is_refused(alice: Raw, name: str, body: bytes) -> None:
    assert alice.call("DoAction", action(name, body)).code in (EXHAUSTED, INVALID)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_small_batch_of_compressed_zeros_is_refused(alice: Raw, codec: str) -> None:
    messages = short_of(compression=codec, id=pa.array([0] * 6_000_000, pa.int64()))

    assert max(map(len, messages)) < 1_000_000
    assert upload(alice, messages).code is EXHAUSTED


def test_compressed_batches_in_many_calls_at_once_share_the_room(victim: Victim, alice: Raw) -> None:
    messages = short_of(compression="zstd", id=pa.array([0] * 4_000_000, pa.int64()))
    calls = [alice.start("DoPut", [put() + messages[0], *messages[1:] * 20]) for _ in range(100)]
    for call in calls:
        eventually(call.done)
    assert {call.code() for call in calls} <= {EXHAUSTED, INVALID}


def test_metadata_of_a_schema_has_a_limit_and_is_not_kept(victim: Victim, alice: Raw) -> None:
    rows = pa.RecordBatch.from_pydict({"id": pa.array([1])})
    large = rows.replace_schema_metadata({"x": "y" * 20_000_000})
    assert upload(alice, ipc_messages([large])).code is EXHAUSTED
    before = victim.memory()
    for number in range(50):
        small = rows.replace_schema_metadata({"x": str(number) * 2_000_000})
        assert upload(alice, ipc_messages([small])).code is INVALID
    assert victim.memory() - before < 150_000_000


def test_messages_before_the_schema_have_a_limit(alice: Raw) -> None:
    message = flight_data(b"", [], body_length=0, metadata=b"x" * 8_000_000)
    assert alice.call("DoPut", put() + message, *[message] * 30).code is EXHAUSTED
    assert alice.call("DoPut", put(), *[flight_data(b"", [], body_length=0, metadata=b"x")] * 20_000).code is EXHAUSTED


def test_dictionaries_that_no_batch_uses_have_a_limit(alice: Raw) -> None:
    names = pa.array(["x" * 8_000_000]).dictionary_encode()
    schema, dictionary, _ = short_of(name=names)
    plain = short_of(name=pa.array(["x"]))[0]

    assert upload(alice, [schema, *[dictionary] * 30]).code is EXHAUSTED
    assert upload(alice, [plain, *[dictionary] * 30]).code is INVALID


def views(text: str, rows: int) -> pa.Array:
    """Rows that all refer to the one text."""
    _, view, data = pa.array([text], pa.string_view()).buffers()
    return pa.Array.from_buffers(pa.string_view(), rows, [None, pa.py_buffer(view.to_pybytes()[:16] * rows), data])


@pytest.mark.parametrize(
    "messages",
    [
        short_of(id=pa.nulls(1_000_000)),
        short_of(id=pa.array([1] * 200_000, pa.int64())),
        short_of(name=pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), pa.array(["x" * 5_000_000]))),
        short_of(name=views("x" * 5_000_000, 10_000)),
    ],
    ids=["nulls of vectors", "vectors left out", "a dictionary of one long text", "views of one long text"],
)
def test_rows_that_take_little_and_stand_for_much_are_refused(alice: Raw, messages: list[bytes]) -> None:
    assert sum(map(len, messages)) < 32 * 2**20
    assert upload(alice, messages).code is EXHAUSTED


def test_rows_without_bytes_are_refused_by_the_billion(alice: Raw) -> None:
    assert upload(alice, short_of(id=pa.nulls(2_000_000_000))).code is EXHAUSTED


def test_large_messages_in_many_calls_at_once_share_the_room(fresh: Victim) -> None:
    body = action("list_schemas", msgpack.packb({"catalog_name": "x" * 30_000_000}))
    with Raw(fresh.port, token="alice") as alice:
        calls = [alice.start("DoAction", [body]) for _ in range(40)]
        for call in calls:
            eventually(call.done)

    assert OK not in {call.code() for call in calls}
    others_are_answered(fresh)
    assert fresh.peak < GIGABYTE


def test_of_messages_that_stop_in_the_middle_only_a_few_are_taken_in(fresh: Victim) -> None:
    """No call of gRPC tells how much of a message is there already: so they are read in turn."""
    size = 30_000_000
    with HandMade(fresh.port) as hand:
        streams = [hand.headers("DoAction", ("authorization", "Bearer alice")) for _ in range(100)]
        for stream in streams:
            hand.announce(stream, size)
        left = dict.fromkeys(streams, size - 1_000)
        quiet = 0
        while left and quiet < 100 and not hand.gone:
            sent = 0
            for stream in list(left):
                went = hand.send(stream, left[stream])
                sent += went
                left[stream] -= went
                if not left[stream] or stream in hand.ended:
                    del left[stream]
            quiet = 0 if sent else quiet + 1
            if not sent:
                hand.listen(0.02)
        others_are_answered(fresh)
        assert fresh.peak < GIGABYTE
        assert sum(left.values()) > 80 * size


def test_what_waits_for_readers_that_do_not_read_is_little(fresh: Victim) -> None:
    """Whom of them the server ends when memory is short nevertheless: ``tests/unit/test_gate.py``."""
    rows = pa.RecordBatch.from_pydict({"name": pa.array(["x" * 1_000_000] * 30)})
    with Raw(fresh.port, token="bob") as bob:
        nulls = {name: pa.nulls(30) for name in COLUMNS.names}
        batch = pa.RecordBatch.from_pydict({**nulls, "name": rows.column(0)})
        assert upload(bob, ipc_messages([batch])).code is OK
    ticket = ScanTicket(target=Target("lake", "public", Kind.TABLE, "t")).encode()
    with ExitStack() as stack:
        readers = [stack.enter_context(Raw(fresh.port, token="alice")) for _ in range(10)]
        calls = [reader.start("DoGet", [Ticket(ticket).encode()]) for reader in readers for _ in range(16)]
        for call in calls:
            try:
                next(call)
            except grpc.RpcError:
                continue
        others_are_answered(fresh)
        assert fresh.peak < GIGABYTE
        for call in calls:
            call.cancel()


def test_a_put_that_wants_a_column_back_twice_changes_nothing(victim: Victim, alice: Raw) -> None:
    """The row was committed before the answer failed."""
    messages = short_of(id=pa.array([77], pa.int64()))
    for columns in (["id", "id", "ID"], ["id", "ID"], ["name", "name"]):
        first = put(returning=True, returning_columns=columns) + messages[0]
        assert alice.call("DoPut", first, *messages[1:]).code is INVALID
    ticket = ScanTicket(target=Target("lake", "public", Kind.TABLE, "t"), columns=("id",)).encode()
    answer = alice.call("DoGet", Ticket(ticket).encode())
    assert answer.code is OK
    assert not any((77).to_bytes(8, "little") in message for message in answer.messages)
