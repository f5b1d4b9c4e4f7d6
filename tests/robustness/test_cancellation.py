"""A caller that goes, however it goes, is noticed at once: what its call holds is closed and its thread is free."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc
import msgpack
import pyarrow as pa
import pytest
from tests.robustness.rig import (
    IN_OUT_HEADERS,
    ROWS,
    TIMEOUT,
    Blocking,
    Proxy,
    Raw,
    Sender,
    eventually,
    exchange_messages,
    numbers_ticket,
    ticket,
)

from sparkport.app import Limits, Server
from sparkport.catalog import (
    CallContext,
    CatalogBuilder,
    DMLOptions,
    DMLResult,
    InOutCall,
    InsertableTable,
    Parameter,
    Scan,
    ScanRequest,
    StaticCatalog,
)
from sparkport.protocol.flight import FlightDescriptor
from sparkport.protocol.frames import StreamWriter
from sparkport.protocol.targets import Kind
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

WAYS = ["cancel", "close", "cut", "reset", "deadline"]


class Caller:
    """A client that starts one call and then goes, in one of several ways."""

    def __init__(self, server: Server, way: str) -> None:
        self._way = way
        self._stack = ExitStack()
        self._proxy = self._stack.enter_context(Proxy(server.port))
        self._raw = self._stack.enter_context(Raw(self._proxy.port))
        self.sender = Sender()
        self._call: Any = None

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.sender.end()
        self._stack.close()

    def start(self, method: str, *messages: bytes, headers: Iterable[tuple[str, str]] = (), received: int = 0) -> None:
        self.sender.send(*messages)
        timeout = 1.0 if self._way == "deadline" else TIMEOUT
        self._call = self._raw.start(method, self.sender, headers=list(headers), timeout=timeout)
        for _ in range(received):
            next(self._call)

    def go(self) -> None:
        match self._way:
            case "cancel":
                self._call.cancel()
            case "close":
                self._raw.channel.close()
            case "cut" | "reset":
                self._proxy.cut(reset=self._way == "reset")
            case _:
                eventually(lambda: bool(self._call.done()))
                assert self._call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def one_table(scan: Any) -> StaticCatalog:
    return (
        CatalogBuilder("lake").schema("public").table("numbers", ROWS).scan_table("blocking", ROWS.schema, scan).build()
    )


def few(calls: int = 1) -> Limits:
    """So few that a call that is left behind shows: the next one would be refused."""
    return Limits(max_concurrent_calls=calls)


def answers(server: Server) -> None:
    with Raw(server.port) as raw:
        eventually(lambda: raw.call("DoGet", numbers_ticket()).code is grpc.StatusCode.OK)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("served", [0, 2], ids=["before the first batch", "in the middle"])
def test_a_table_that_is_at_work_is_closed_once_and_at_once(way: str, served: int) -> None:
    table = Blocking(served)
    with serving(one_table(table.scan), limits=few()) as server:
        with Caller(server, way) as caller:
            caller.start("DoGet", ticket("blocking"), received=1 + served)
            assert table.waiting.wait(TIMEOUT)
            caller.go()
            assert table.closed.wait(TIMEOUT)
            assert table.left.wait(TIMEOUT)
        answers(server)

    assert table.closes == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_generator_that_waits_for_its_reader_is_closed(way: str) -> None:
    closed = threading.Event()
    started = threading.Event()
    batch = pa.RecordBatch.from_pydict({"id": pa.array([0] * 100_000), "name": ["x"] * 100_000})

    def scan(ctx: CallContext, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                started.set()
                yield batch
        finally:
            closed.set()

    with serving(one_table(scan), limits=few()) as server:
        with Caller(server, way) as caller:
            caller.start("DoGet", ticket("blocking"), received=2)
            assert started.wait(TIMEOUT)
            caller.go()
            assert closed.wait(TIMEOUT)
        answers(server)


def test_a_generator_at_work_is_left_alone_and_closed_when_it_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    inside, gone, closed = threading.Event(), threading.Event(), threading.Event()

    def scan(ctx: CallContext, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        ctx.cancellation.add_callback(gone.set)
        try:
            inside.set()
            assert gone.wait(TIMEOUT)
            yield ROWS.to_batches()[0]
        finally:
            closed.set()

    with serving(one_table(scan), limits=few()) as server:
        with Caller(server, "cut") as caller:
            caller.start("DoGet", ticket("blocking"))
            assert inside.wait(TIMEOUT)
            caller.go()
            assert closed.wait(TIMEOUT)
        answers(server)

    assert not caplog.records


def test_a_table_that_is_slow_to_close_holds_nobody_up() -> None:
    """gRPC tells of all that happens on one thread, which must not be the one that closes."""
    at_work, closing, release = threading.Event(), threading.Event(), threading.Event()

    def close() -> None:
        closing.set()
        assert release.wait(TIMEOUT)

    def batches() -> Iterator[pa.RecordBatch]:
        at_work.set()
        assert release.wait(TIMEOUT)
        yield from ()

    with serving(one_table(lambda ctx, request: Scan(batches(), close=close))) as server:
        try:
            with Caller(server, "cancel") as caller:
                caller.start("DoGet", ticket("blocking"), received=1)
                assert at_work.wait(TIMEOUT)
                caller.go()
                assert closing.wait(TIMEOUT)
                with Raw(server.port) as raw:
                    assert raw.call("DoGet", numbers_ticket(), timeout=10).code is grpc.StatusCode.OK
        finally:
            release.set()


def test_a_close_that_fails_is_logged_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    def close() -> None:
        raise ValueError("no")

    with (
        serving(one_table(lambda ctx, request: Scan([ROWS.to_batches()[0]], close=close))) as server,
        Raw(server.port) as raw,
    ):
        answer = raw.call("DoGet", ticket("blocking"))

    assert answer.code is grpc.StatusCode.OK
    assert [record.message for record in caplog.records] == ["closing failed"]


def test_a_reader_that_pauses_makes_the_server_pause() -> None:
    batch = pa.RecordBatch.from_pydict({"id": pa.array([0] * 65_536), "name": ["12345678"] * 65_536})
    far_ahead, closed = threading.Event(), threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(1_000):
            if number == 64:
                far_ahead.set()
            yield batch

    with serving(one_table(lambda ctx, request: Scan(batches(), close=closed.set))) as server, Raw(server.port) as raw:
        call = raw.start("DoGet", [ticket("blocking")])
        next(call)
        next(call)
        before = pa.total_allocated_bytes()
        assert not far_ahead.wait(1.0), "64 batches, 80 MB, were made for a client that took one"
        assert pa.total_allocated_bytes() - before < 16 * 1024 * 1024
        assert sum(1 for _ in zip(range(100), call, strict=False)) == 100
        assert far_ahead.is_set()
        call.cancel()
        assert closed.wait(TIMEOUT)


def test_a_client_that_has_fallen_silent_is_given_up() -> None:
    table = Blocking(1)
    limits = Limits(max_concurrent_calls=2, keepalive_seconds=1.0, keepalive_timeout_seconds=1.0)
    with serving(one_table(table.scan), limits=limits) as server:
        with Proxy(server.port) as proxy, Raw(proxy.port) as raw:
            call = raw.start("DoGet", [ticket("blocking")], timeout=None)
            assert next(call)
            proxy.silence()
            assert table.closed.wait(TIMEOUT)
        answers(server)


# Functions


@dataclass
class Waiting(InOutCall):
    """Blocks in its second push until it is closed."""

    pushes: int = 0
    closes: int = 0
    inside: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

    def push(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self.pushes += 1
        if self.pushes == 2:
            self.inside.set()
            assert self.closed.wait(TIMEOUT)
        return [batch]

    def close(self) -> None:
        self.closes += 1
        self.closed.set()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sent", [1, 2], ids=["waiting for input", "at work"])
def test_a_function_is_closed_once_and_at_once(way: str, sent: int) -> None:
    call = Waiting()
    catalog = (
        CatalogBuilder("lake")
        .schema("public")
        .table("numbers", ROWS)
        .in_out_function("echo", lambda *_: call, [Parameter("rows", table=True)], ROWS.schema)
        .build()
    )
    messages = exchange_messages(
        "echo", Kind.TABLE_FUNCTION, ROWS.to_batches()[0], preamble=msgpack.packb({"parameters": ""}), batches=sent
    )
    with serving(catalog, limits=few()) as server:
        with Caller(server, way) as caller:
            caller.start("DoExchange", *messages, headers=IN_OUT_HEADERS, received=2)
            assert sent == 1 or call.inside.wait(TIMEOUT)
            caller.go()
            assert call.closed.wait(TIMEOUT)
        answers(server)

    assert call.closes == 1


# Uploads


class Recorder(InsertableTable):
    """Says how each insert ended."""

    name = "inbox"

    def __init__(self) -> None:
        self.first = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self.complete = 0
        self.broken = 0

    @property
    def schema(self) -> pa.Schema:
        return ROWS.schema

    def scan(self, ctx: CallContext, request: ScanRequest) -> pa.Table:
        return ROWS.slice(0, 0)

    def insert(self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None) -> DMLResult:
        count = 0
        try:
            for batch in rows:
                count += batch.num_rows
                self.first.release()
            self.complete += 1
        except BaseException:
            self.broken += 1
            raise
        finally:
            self.ended.release()
        return DMLResult(count)


def upload(table: str = "inbox") -> list[bytes]:
    """A DoPut of one batch."""
    command = json.dumps({"operation": "insert", "schema_name": "public", "table_name": table}).encode()
    descriptor = FlightDescriptor(command=command).encode()
    writer = StreamWriter(ROWS.schema)
    first = b"\x0a" + bytes([len(descriptor)]) + descriptor + writer.schema_message()
    return [first, *writer.batch_messages(ROWS.to_batches()[0])]


def test_an_upload_that_ends_is_complete() -> None:
    table = Recorder()
    with serving(CatalogBuilder("lake").schema("public").add(table).build()) as server, Raw(server.port) as raw:
        answer = raw.call("DoPut", *upload())

    assert (answer.code, table.complete, table.broken) == (grpc.StatusCode.OK, 1, 0)


@pytest.mark.parametrize("way", ["cancel", "close", "cut", "reset"])
def test_an_upload_is_never_taken_for_complete_when_its_client_has_gone(way: str) -> None:
    """gRPC often reports a lost client as the end of the stream, which must not become half a statement."""
    table = Recorder()
    rounds = 25
    with serving(CatalogBuilder("lake").schema("public").table("numbers", ROWS).add(table).build()) as server:
        for _ in range(rounds):
            with Caller(server, way) as caller:
                caller.start("DoPut", *upload())
                assert table.first.acquire(timeout=TIMEOUT)
                caller.go()
                assert table.ended.acquire(timeout=TIMEOUT)
        answers(server)

    assert (table.complete, table.broken) == (0, rounds)


def test_threads_do_not_add_up() -> None:
    with serving(one_table(Blocking(1).scan), limits=few(4)) as server:
        before = threading.active_count()
        for way in ["cancel", "close", "cut", "reset"] * 4:
            table = Blocking(1)
            server.remove_catalog("lake")
            server.add_catalog(one_table(table.scan))
            with Caller(server, way) as caller:
                caller.start("DoGet", ticket("blocking"), received=2)
                caller.go()
                assert table.left.wait(TIMEOUT)
        answers(server)
        eventually(lambda: threading.active_count() <= before + 4)
        pool = [thread for thread in threading.enumerate() if thread.name.startswith("sparkport-call")]

    assert len(pool) <= 4
