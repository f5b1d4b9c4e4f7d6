"""Nobody gets anything parsed, or told, before the server knows who is calling; and tokens are never repeated."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import grpc
import pyarrow.flight as pf
import pytest
from tests.robustness.rig import ALL_METHODS, SCALAR_HEADERS, Raw, catalog, numbers_ticket, valid_requests

from sparkport.app import Server
from sparkport.auth import Secret, StaticTokens
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

TOKEN = "a-token-that-must-not-be-seen"
WRONG = "another-token-that-must-not-be-seen"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(catalog(), authenticator=StaticTokens({Secret(TOKEN): "alice"})) as running:
        yield running


@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize("token", [None, WRONG])
@pytest.mark.parametrize("garbage", [b"", b"\xff" * 50, b"\x0a\xff"])
def test_garbage_without_a_token_is_unauthenticated(
    server: Server, method: str, token: str | None, garbage: bytes
) -> None:
    with Raw(server.port, token=token) as raw:
        answer = raw.call(method, garbage, headers=SCALAR_HEADERS)

    assert answer.code is grpc.StatusCode.UNAUTHENTICATED
    assert not answer.messages


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Basic YTpi", TOKEN, f"bearer{TOKEN}", ""])
def test_a_header_of_another_form_is_unauthenticated(server: Server, header: str) -> None:
    with Raw(server.port) as raw:
        answer = raw.call("DoGet", numbers_ticket(), headers=[("authorization", header)])

    assert answer.code is grpc.StatusCode.UNAUTHENTICATED
    assert TOKEN not in answer.details


@pytest.mark.parametrize(("method", "messages", "headers"), valid_requests())
def test_the_token_opens_every_call(
    server: Server, method: str, messages: list[bytes], headers: tuple[tuple[str, str], ...]
) -> None:
    with Raw(server.port, token=TOKEN) as raw:
        assert raw.call(method, *messages, headers=headers).code is grpc.StatusCode.OK


@pytest.mark.parametrize("token", [TOKEN, WRONG])
def test_tokens_are_in_no_log_and_no_message(
    server: Server, token: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    answers = []
    with Raw(server.port, token=token) as raw:
        for method in ALL_METHODS:
            answers += [raw.call(method, body, headers=SCALAR_HEADERS) for body in (b"", b"\xff\xff", numbers_ticket())]

    said = f"{answers!r}{caplog.text}{capfd.readouterr()!r}"
    assert len(answers) == 3 * len(ALL_METHODS)
    assert token not in said


def test_a_stock_clients_basic_login_is_refused_and_does_no_harm(server: Server) -> None:
    with pf.connect(server.location) as client, pytest.raises(pf.FlightUnauthenticatedError):
        client.authenticate_basic_token("user", "password")
    with pf.connect(server.location) as client:
        options = pf.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
        assert len(list(client.list_flights(options=options))) == 4
