"""Whoever holds calls open, with a token or without, keeps nobody else out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.attacks.rig import Victim, needs_proc
from tests.robustness.rig import (
    SCALAR_HEADERS,
    TIMEOUT,
    Blocking,
    Raw,
    Sender,
    action,
    catalog,
    eventually,
    numbers_ticket,
    ticket,
)

from sparkport.app import Limits, Server
from sparkport.auth import Secret, StaticTokens
from sparkport.auth.identity import Identity
from sparkport.auth.model import Peer
from sparkport.catalog import CatalogBuilder
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

OK, EXHAUSTED = grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED
TOKENS = {Secret(name): name for name in ("alice", "bob", "carol", "root")}
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
HEALTH = "/grpc.health.v1.Health/Check"


def tokens() -> StaticTokens:
    return StaticTokens(TOKENS)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(catalog(), authenticator=tokens(), limits=Limits(max_concurrent_calls=16)) as running:
        yield running


class Holder:
    """Calls that have sent their headers and nothing else."""

    def __init__(self, raw: Raw, method: str, calls: int) -> None:
        self._senders = [Sender() for _ in range(calls)]
        self.calls = [raw.start(method, sender, headers=SCALAR_HEADERS) for sender in self._senders]

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for call in self.calls:
            call.cancel()
        for sender in self._senders:
            sender.end()

    def codes(self) -> set[grpc.StatusCode]:
        for call in self.calls:
            eventually(call.done)
        return {call.code() for call in self.calls}


def reads(server: Server, name: str) -> grpc.StatusCode:
    with Raw(server.port, token=name) as raw:
        return raw.call("DoGet", numbers_ticket(), timeout=10).code


def health(server: Server) -> int:
    with Raw(server.port) as raw:
        stub = health_pb2_grpc.HealthStub(raw.channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status)


@pytest.mark.parametrize("method", ["DoGet", "GetFlightInfo", "DoAction", "DoPut", "DoExchange", "Handshake"])
def test_calls_without_a_token_and_without_a_message_are_told_at_once_and_hold_nothing(
    server: Server, method: str
) -> None:
    with Raw(server.port) as stranger, Holder(stranger, method, 300) as held:
        assert held.codes() == {grpc.StatusCode.UNAUTHENTICATED}
        assert reads(server, "alice") is OK
        assert health(server) == health_pb2.HealthCheckResponse.SERVING


@needs_proc
def test_the_body_of_a_stranger_is_never_read() -> None:
    body = action("list_schemas", b"x" * 30_000_000)
    with Victim() as victim:
        before = victim.memory()
        with ExitStack() as stack:
            strangers = [stack.enter_context(Raw(victim.port)) for _ in range(10)]
            calls = [stranger.start("DoAction", [body]) for stranger in strangers]
            for call in calls:
                eventually(call.done)
        assert {call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}
        assert victim.peak - before < 30_000_000


@pytest.mark.parametrize("method", ["DoGet", "GetSchema", "DoPut", "DoExchange", "Handshake"])
def test_one_user_who_holds_all_calls_it_can_get_keeps_nobody_else_out(server: Server, method: str) -> None:
    with Raw(server.port, token="alice") as raw, Holder(raw, method, 40) as held:
        eventually(lambda: sum(call.done() for call in held.calls) == 28)

        assert {call.code() for call in held.calls if call.done()} == {EXHAUSTED}
        assert reads(server, "alice") is EXHAUSTED
        assert reads(server, "bob") is OK
        assert health(server) == health_pb2.HealthCheckResponse.SERVING


def test_who_has_no_other_call_gets_through_when_all_calls_are_taken(server: Server) -> None:
    with ExitStack() as stack:
        for name, calls in (("alice", 12), ("bob", 12)):
            raw = stack.enter_context(Raw(server.port, token=name))
            stack.enter_context(Holder(raw, "DoPut", calls))
        eventually(lambda: reads(server, "alice") is EXHAUSTED and reads(server, "bob") is EXHAUSTED)

        assert reads(server, "root") is OK
        assert reads(server, "carol") is OK


def test_calls_that_are_given_up_are_free_again(server: Server) -> None:
    with Raw(server.port, token="alice") as raw, Holder(raw, "DoGet", 12):
        eventually(lambda: reads(server, "alice") is EXHAUSTED)

    eventually(lambda: reads(server, "alice") is OK)


@pytest.mark.parametrize("method", ["DoGet", "DoAction", "DoPut", "DoExchange", "Handshake"])
def test_a_first_message_that_does_not_come_ends_the_call(method: str) -> None:
    limits = Limits(max_concurrent_calls=4, first_message_seconds=0.2)
    with serving(catalog(), authenticator=tokens(), limits=limits) as server:
        with Raw(server.port, token="alice") as raw, Holder(raw, method, 3) as held:
            assert held.codes() == {grpc.StatusCode.CANCELLED}
        assert reads(server, "alice") is OK


def test_an_upload_that_goes_silent_is_ended() -> None:
    limits = Limits(max_concurrent_calls=4, idle_seconds=0.2)
    with serving(catalog(), limits=limits) as server, Raw(server.port) as raw:
        sender = Sender()
        sender.send(b"")
        call = raw.start("Handshake", sender)
        assert next(call) == b""
        eventually(lambda: bool(call.done()))
        sender.end()

        assert call.code() is grpc.StatusCode.CANCELLED


def test_a_reader_that_does_not_read_is_ended_and_its_scan_closed() -> None:
    batch = pa.RecordBatch.from_pydict({"id": list(range(100_000)), "name": ["x" * 20] * 100_000})
    table = Blocking(served=10_000, batch=batch)
    lake = CatalogBuilder("lake").schema("public").scan_table("t", batch.schema, table.scan).build()
    with serving(lake, limits=Limits(write_seconds=0.3)) as server, Raw(server.port) as raw:
        call = raw.start("DoGet", [ticket("t")])
        next(call)

        assert table.closed.wait(TIMEOUT)
        assert table.produced < 1_000
        call.cancel()


def test_a_server_does_not_describe_itself_unless_it_is_told_to(server: Server) -> None:
    with Raw(server.port) as stranger:
        assert stranger.call(REFLECTION, b"").code is grpc.StatusCode.UNIMPLEMENTED


def test_reflection_needs_a_token_and_counts_as_a_call() -> None:
    limits = Limits(max_concurrent_calls=16, reflection=True)
    with serving(catalog(), authenticator=tokens(), limits=limits) as server:
        with Raw(server.port) as stranger, Holder(stranger, REFLECTION, 300) as held:
            assert held.codes() == {grpc.StatusCode.UNAUTHENTICATED}
        with Raw(server.port, token="alice") as raw:
            assert raw.call(REFLECTION, b"\x3a\x00").code is OK
            with Holder(raw, REFLECTION, 40):
                eventually(lambda: reads(server, "alice") is EXHAUSTED)
                assert reads(server, "bob") is OK


def test_health_checks_that_are_never_finished_do_not_stop_others(server: Server) -> None:
    with Raw(server.port) as stranger, Holder(stranger, HEALTH, 300):
        for _ in range(20):
            assert health(server) == health_pb2.HealthCheckResponse.SERVING
        assert reads(server, "alice") is OK


def test_those_who_watch_the_health_are_counted(server: Server) -> None:
    with Raw(server.port) as stranger:
        watch = "/grpc.health.v1.Health/Watch"
        calls = [stranger.start(watch, [b""]) for _ in range(64)]
        for call in calls:
            next(call)
        assert stranger.call(watch, b"").code is EXHAUSTED
        assert health(server) == health_pb2.HealthCheckResponse.SERVING
        for call in calls:
            call.cancel()
        eventually(lambda: _watches(stranger))


def _watches(raw: Raw) -> bool:
    call = raw.start("/grpc.health.v1.Health/Watch", [b""])
    try:
        return bool(next(call))
    except grpc.RpcError:
        return False
    finally:
        call.cancel()


class Slow(StaticTokens):
    """Takes as long to tell who calls as the test wants."""

    def __init__(self) -> None:
        super().__init__(TOKENS)
        self.release = threading.Event()

    def authenticate(self, token: Secret | None, peer: Peer) -> Identity:
        if token is not None and token.reveal() == "slow":
            self.release.wait(TIMEOUT)
        return super().authenticate(token, peer)


def test_tokens_that_take_long_to_check_hold_no_call_of_others() -> None:
    slow = Slow()
    with serving(catalog(), authenticator=slow, limits=Limits(max_concurrent_calls=16)) as server:
        with Raw(server.port, token="slow") as raw, Holder(raw, "DoGet", 200) as held:
            try:
                eventually(lambda: sum(bool(call.done()) for call in held.calls) >= 136)
                begun = time.monotonic()
                code = reads(server, "alice")
                assert time.monotonic() - begun < 5
                assert code is EXHAUSTED
            finally:
                slow.release.set()
        eventually(lambda: reads(server, "alice") is OK)
