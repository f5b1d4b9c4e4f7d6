"""Connections that stop anywhere, end anyhow or say too much: others are served, and nothing is left behind."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest
from tests.attacks.http2 import HandMade
from tests.robustness.rig import Raw, catalog, eventually, numbers_ticket

from sparkport.app import Limits, Server
from sparkport.auth import Secret, StaticTokens
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

TOKENS = {Secret("alice"): "alice", Secret("bob"): "bob"}
ALICE = ("authorization", "Bearer alice")


@pytest.fixture
def server() -> Iterator[Server]:
    limits = Limits(max_concurrent_calls=8)
    with serving(catalog(), authenticator=StaticTokens(TOKENS), limits=limits) as running:
        yield running


def answers(server: Server, name: str = "bob") -> bool:
    with Raw(server.port, token=name) as raw:
        return raw.call("DoGet", numbers_ticket(), timeout=10).code is grpc.StatusCode.OK


def test_connections_that_say_nothing_keep_nobody_out(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        assert answers(server)


def test_headers_that_never_end_keep_nobody_out(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(50):
            hand = stack.enter_context(HandMade(server.port))
            hand.headers("DoGet", ALICE, end=False)
        assert answers(server)
        assert answers(server, "alice")


@pytest.mark.parametrize("size", [20_000, 1_000_000])
def test_headers_without_measure_are_refused(server: Server, size: int) -> None:
    with Raw(server.port, token="alice") as raw:
        answer = raw.call("DoGet", numbers_ticket(), headers=[("x-statement-id", "x" * size)])
    assert answer.code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
    assert answers(server)


@pytest.mark.parametrize("more", ["Bearer alice", "Bearer bob", "Bearer wrong", "Basic x"])
def test_two_tokens_are_none(server: Server, more: str) -> None:
    with Raw(server.port, token="alice") as raw:
        answer = raw.call("DoGet", numbers_ticket(), headers=[("authorization", more)])
    assert answer.code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("sent", [0, 4, 5, 1_000], ids=["headers", "part of a prefix", "a prefix", "part of a message"])
@pytest.mark.parametrize("method", ["DoGet", "DoPut", "DoAction"])
def test_a_connection_that_is_reset_in_any_phase_frees_its_calls(server: Server, method: str, sent: int) -> None:
    for _ in range(3):
        with HandMade(server.port) as hand:
            for _ in range(6):
                stream = hand.headers(method, ALICE)
                if sent >= 5:
                    hand.announce(stream, 100_000)
                    hand.send(stream, sent - 5)
            hand.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        eventually(lambda: answers(server, "alice"))
    assert answers(server)
