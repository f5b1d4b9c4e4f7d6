"""An orderly end: running calls get their grace, new ones are refused, and the port is free again."""

from __future__ import annotations

import socket
import threading

import grpc
import pytest
from tests.robustness.rig import ROWS, TIMEOUT, Answer, Blocking, Raw, catalog, numbers_ticket, ticket

from sparkport.app import Server
from sparkport.catalog import CatalogBuilder, StaticCatalog
from sparkport.errors import Unavailable
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")


def blocking(table: Blocking) -> StaticCatalog:
    return CatalogBuilder("lake").schema("public").scan_table("t", ROWS.schema, table.scan).build()


def stopping(server: Server, grace: float) -> threading.Thread:
    thread = threading.Thread(target=server.stop, args=(grace,))
    thread.start()
    return thread


def late_call(server: Server) -> Answer:
    """For a table that is not there, by a connection of its own."""
    with Raw(server.port) as late:
        return late.call("DoGet", numbers_ticket(), timeout=5)


def test_a_running_stream_may_end_within_the_grace() -> None:
    table = Blocking(1)
    with serving(blocking(table)) as server, Raw(server.port) as raw:
        call = raw.start("DoGet", [ticket("t")])
        assert next(call)
        assert table.waiting.wait(TIMEOUT)
        thread = stopping(server, TIMEOUT)
        refused = late_call(server)
        while refused.code is grpc.StatusCode.NOT_FOUND:  # the thread has not come to stop it yet
            refused = late_call(server)
        table.close()
        rest = list(call)
        thread.join(TIMEOUT)

        assert len(rest) == 1
        assert call.code() is grpc.StatusCode.OK
        assert refused.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        assert server.wait(TIMEOUT)


def test_a_stream_that_goes_on_is_cancelled_after_the_grace() -> None:
    table = Blocking(1)
    with serving(blocking(table)) as server, Raw(server.port) as raw:
        call = raw.start("DoGet", [ticket("t")])
        assert next(call)
        assert table.waiting.wait(TIMEOUT)
        server.stop(grace=0.2)
        assert table.closed.wait(TIMEOUT)
        with pytest.raises(grpc.RpcError):
            list(call)

        assert call.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
    assert table.closes == 1


@pytest.mark.parametrize("grace", [None, 0, 1.0])
def test_stopping_again_does_no_harm(grace: float | None) -> None:
    with serving(catalog()) as server:
        for _ in range(3):
            server.stop(grace)

        assert server.wait(0)


def test_a_server_that_never_started_can_be_stopped() -> None:
    server = Server(catalog(), port=0)
    server.stop()

    assert server.wait(0)


def test_the_port_is_free_afterwards() -> None:
    with serving(catalog()) as server:
        port = server.port
        with pytest.raises(Unavailable, match="another server"):
            Server(catalog(), port=port)
    with Server(catalog(), port=port) as again, Raw(again.port) as raw:
        assert raw.call("DoGet", numbers_ticket()).code is grpc.StatusCode.OK
    with socket.create_server(("127.0.0.1", port)) as bound:
        assert bound.getsockname()[1] == port
