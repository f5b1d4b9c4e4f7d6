"""Raw gRPC against a real server: bytes in, status codes out, and a network that can be cut."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
import msgpack
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from sparkport.catalog import Arguments, CallContext, CatalogBuilder, Parameter, Scan, ScanRequest, StaticCatalog
from sparkport.protocol.flight import METHODS, SERVICE_NAME, Action, FlightDescriptor, Handshake, Ticket
from sparkport.protocol.frames import StreamWriter, flight_data
from sparkport.protocol.targets import Kind, Target
from sparkport.protocol.targets import Ticket as ScanTicket

__all__ = [
    "ALL_METHODS",
    "Answer",
    "Blocking",
    "IN_OUT_HEADERS",
    "Proxy",
    "ROWS",
    "Raw",
    "SCALAR_HEADERS",
    "Sender",
    "TIMEOUT",
    "action",
    "catalog",
    "descriptor",
    "eventually",
    "exchange_messages",
    "ipc_row",
    "mutated",
    "numbers_ticket",
    "ticket",
    "valid_requests",
]

TIMEOUT = 30.0
"""Seconds after which something that should have happened counts as never happening."""

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", None]})


@dataclass(frozen=True, slots=True)
class Answer:
    code: grpc.StatusCode
    details: str
    messages: list[bytes]
    trailers: dict[str, str | bytes]


class Raw:
    """A connection of its own that speaks bytes."""

    def __init__(self, port: int, *, token: str | None = None) -> None:
        # Without a pool of its own a channel shares its connection with others to the same address.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._headers = [("authorization", f"Bearer {token}")] if token else []

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.channel.close()

    def start(
        self,
        method: str,
        requests: Iterable[bytes],
        *,
        headers: Sequence[tuple[str, str]] = (),
        timeout: float | None = TIMEOUT,
    ) -> Any:
        """A running call of any kind, as an iterator of its answers."""
        path = method if "/" in method else f"/{SERVICE_NAME}/{method}"
        # On the wire a unary call is a stream of one message.
        method_of: grpc.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(path)
        return method_of(iter(requests), metadata=(*self._headers, *headers), timeout=timeout)

    def call(
        self,
        method: str,
        *requests: bytes,
        headers: Sequence[tuple[str, str]] = (),
        timeout: float | None = TIMEOUT,
    ) -> Answer:
        running = self.start(method, requests, headers=headers, timeout=timeout)
        messages: list[bytes] = []
        with suppress(grpc.RpcError):
            messages.extend(running)
        trailers = {item.key: item.value for item in running.trailing_metadata() or ()}
        return Answer(running.code(), running.details() or "", messages, trailers)


class Sender:
    """Requests handed to a call one by one while it runs."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def send(self, *messages: bytes) -> None:
        for message in messages:
            self._queue.put(message)

    def end(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._queue.get, None)


class Proxy:
    """A piece of network between client and server that can be cut, or go silent."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._silent = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += (client, server)
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=(source, sink), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                if not self._silent.is_set():
                    sink.sendall(data)
        except OSError:
            return

    def silence(self) -> None:
        """Keep the connections open and pass nothing on any more, as when a machine has lost its power."""
        self._silent.set()

    def cut(self, *, reset: bool = False) -> None:
        for end in self._sockets:
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(TIMEOUT)
        for end in self._sockets:
            end.close()


@dataclass
class Blocking:
    """A scan that is under control of the test: ``served`` batches come at once, then it blocks until it is closed."""

    served: int = 0
    batch: pa.RecordBatch = field(default_factory=lambda: ROWS.to_batches()[0])
    closes: int = 0
    produced: int = 0

    def __post_init__(self) -> None:
        self.waiting = threading.Event()
        self.closed = threading.Event()
        self.left = threading.Event()

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        return Scan(self._batches(), close=self.close)

    def close(self) -> None:
        self.closes += 1
        self.closed.set()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for _ in range(self.served):
                self.produced += 1
                yield self.batch
            self.waiting.set()
            if not self.closed.wait(TIMEOUT):
                raise AssertionError("nobody closed the scan")
        finally:
            self.left.set()


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    moment = threading.Event()
    for _ in range(int(TIMEOUT * 100)):
        if condition():
            return
        moment.wait(0.01)
    raise AssertionError("it never happened")


def catalog() -> StaticCatalog:
    """One of each: what the fuzzed calls are about."""

    def series(ctx: CallContext, arguments: Arguments, request: ScanRequest) -> pa.Table:
        return ROWS

    return (
        CatalogBuilder("lake")
        .schema("public")
        .table("numbers", ROWS)
        .scalar_function(
            "double", lambda ctx, rows: pc.multiply(rows["x"], 2), [Parameter("x", pa.int64())], pa.int64()
        )
        .table_function("series", series, [Parameter("n", pa.int64())], ROWS.schema)
        .in_out_function(
            "echo",
            lambda ctx, arguments, schema: lambda batch: [batch],
            [Parameter("rows", table=True), Parameter("n", pa.int64())],
            lambda arguments, schema: schema or ROWS.schema,
        )
        .build()
    )


def ipc_row(**values: Any) -> bytes:
    batch = pa.RecordBatch.from_pylist([values])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def ticket(name: str, kind: Kind = Kind.TABLE, arguments: bytes | None = None) -> bytes:
    target = Target("lake", "public", kind, name)
    return Ticket(ScanTicket(target=target, arguments=arguments).encode()).encode()


def numbers_ticket() -> bytes:
    return ticket("numbers")


def action(name: str, body: object) -> bytes:
    data = body if isinstance(body, bytes) else msgpack.packb(body)
    return Action(name, data).encode()


def descriptor(name: str, kind: Kind = Kind.TABLE) -> bytes:
    return Target("lake", "public", kind, name).descriptor().encode()


def exchange_messages(
    name: str, kind: Kind, rows: pa.RecordBatch, *, preamble: bytes | None = None, batches: int = 2
) -> list[bytes]:
    """A function's call: descriptor, parameters, schema, batches."""
    encoded = descriptor(name, kind)
    writer = StreamWriter(rows.schema)
    messages = [b"\x0a" + bytes([len(encoded)]) + encoded]
    if preamble is not None:
        messages.append(flight_data(b"", [], body_length=0, metadata=preamble))
    messages.append(writer.schema_message())
    for _ in range(batches):
        messages += writer.batch_messages(rows)
    return messages


SCALAR_HEADERS = (("airport-operation", "scalar_function"), ("return-chunks", "1"))
IN_OUT_HEADERS = (("airport-operation", "table_function_in_out"), ("return-chunks", "1"))
_XS = pa.RecordBatch.from_pydict({"x": pa.array([1, 2], pa.int64())})


def valid_requests() -> list[tuple[str, list[bytes], Sequence[tuple[str, str]]]]:
    """Method, messages and headers of calls that work: the seeds of the fuzzing, and all ten RPCs."""
    endpoints = {
        "descriptor": descriptor("numbers"),
        "parameters": {"json_filters": "", "column_ids": [0], "at_unit": "", "at_value": ""},
    }
    arguments = ipc_row(n=3)
    function = {
        "descriptor": descriptor("series", Kind.TABLE_FUNCTION),
        "parameters": arguments,
        "table_input_schema": None,
        "at_unit": "",
        "at_value": "",
    }
    preamble = msgpack.packb({"parameters": arguments})
    statistics = {"flight_descriptor": descriptor("numbers"), "column_name": "id", "type": "BIGINT"}
    return [
        ("Handshake", [Handshake(b"hello", 1).encode()], ()),
        ("ListFlights", [b""], ()),
        ("GetFlightInfo", [descriptor("numbers")], ()),
        ("GetSchema", [FlightDescriptor(path=("public", "numbers")).encode()], ()),
        ("DoGet", [numbers_ticket()], ()),
        ("DoGet", [ticket("series", Kind.TABLE_FUNCTION, arguments)], ()),
        ("DoExchange", exchange_messages("double", Kind.SCALAR_FUNCTION, _XS), SCALAR_HEADERS),
        ("DoExchange", exchange_messages("echo", Kind.TABLE_FUNCTION, _XS, preamble=preamble), IN_OUT_HEADERS),
        ("DoAction", [action("list_schemas", {"catalog_name": "lake"})], ()),
        ("DoAction", [action("create_transaction", {"catalog_name": "lake"})], ()),
        ("DoAction", [action("endpoints", endpoints)], ()),
        ("DoAction", [action("flight_info", {"descriptor": descriptor("numbers"), "at_unit": "", "at_value": ""})], ()),
        ("DoAction", [action("table_function_flight_info", function)], ()),
        ("DoAction", [action("column_statistics", statistics)], ()),
        ("ListActions", [b""], ()),
    ]


ALL_METHODS = tuple(METHODS)


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Some bytes changed, cut out, doubled or put in."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(changed)))
        match draw(st.integers(0, 4)):
            case 0:
                changed[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                del changed[at : at + draw(st.integers(1, 16))]
            case 2:
                changed[at:at] = draw(st.binary(max_size=8))
            case 3:
                changed[at:at] = changed[at : at + draw(st.integers(1, 32))]
            case _:
                del changed[at:]
    return bytes(changed)
