"""The HTTP port: what is there, for whom, and what rude clients can do to it and to Flight."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.robustness.rig import catalog
from tests.unit.test_tls import Authority, Files

from sparkport.app import HttpSettings, Server, TlsSettings
from sparkport.auth import Secret, StaticTokens
from sparkport.auth.identity import Identity
from sparkport.auth.model import Authorizer, Operation, Resource
from sparkport.client import connect
from sparkport.errors import FailedPrecondition, Unavailable
from sparkport.http import HttpServer, Mounts
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

FREE = HttpSettings(port=0)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(catalog(), http=FREE) as running:
        yield running


def get(
    location: str, path: str, *, context: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    request = urllib.request.Request(location + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode(), dict(exc.headers)


def at(server: Server) -> str:
    assert server.http_location is not None
    return server.http_location


def test_a_running_server_is_alive_and_ready(server: Server) -> None:
    assert get(at(server), "/healthz")[:2] == (200, '{"alive": true}\n')
    status, body, headers = get(at(server), "/readyz")
    assert (status, json.loads(body)) == (200, {"ready": True, "reads": True, "writes": True})
    assert headers["Content-Type"] == "application/json"
    assert get(at(server), "/readyz/reads")[0] == get(at(server), "/readyz/writes")[0] == 200


def test_what_is_not_there_is_not_found(server: Server) -> None:
    for path in ("/metricsx", "/metrics/x", "/readyz/x", "/../etc/passwd", "/%00"):
        assert get(at(server), path)[0] in (400, 404), path


def test_a_catalog_that_cannot_be_written_is_not_ready_and_says_which() -> None:
    from sparkport.catalog.readiness import Readiness

    class Half(MemoryCatalog):
        def readiness(self) -> Readiness:
            return Readiness(True, False, "Spark is starting")

    with serving(catalog(), Half("half"), http=FREE) as server:
        status, body, _ = get(at(server), "/readyz")
        assert (status, json.loads(body)) == (
            503,
            {"ready": False, "reads": True, "writes": False, "why": "Spark is starting"},
        )
        assert get(at(server), "/readyz/reads")[0] == 200
        assert get(at(server), "/readyz/writes")[0] == 503
        assert get(at(server), "/healthz")[0] == 200


def test_a_server_has_no_http_port_unless_it_is_asked_for() -> None:
    with serving(catalog()) as server:
        assert server.http_location is None


def test_a_taken_port_is_an_error_or_where_it_need_not_be_there_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        before = set(threading.enumerate())
        server = Server(catalog(), port=0, http=HttpSettings(port=port))
        with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port} for HTTP"):
            server.start()
        left = set(threading.enumerate()) - before
        assert not [thread.name for thread in left if thread.name.startswith("sparkport-gate")]
        with serving(catalog(), http=HttpSettings(port=port, require=False)) as server:
            assert server.http_location is None
            assert "going on without metrics" in caplog.text
            with connect(server.location) as client:
                assert client.scan("public.numbers").read_all().num_rows == 3


def test_the_port_is_free_again_after_the_end_and_no_thread_is_left() -> None:
    before = {thread.name for thread in threading.enumerate()}
    server = Server(catalog(), port=0, http=FREE).start()
    place = at(server)
    assert get(place, "/healthz")[0] == 200
    server.stop(0)
    server.stop(0)
    with pytest.raises(urllib.error.URLError):
        get(place, "/healthz")
    left = {thread.name for thread in threading.enumerate() if "http" in thread.name or "CP Server" in thread.name}
    assert left - before == set()


def test_beyond_loopback_it_needs_tls_and_authentication() -> None:
    with pytest.raises(FailedPrecondition, match=r"refusing to listen on '0\.0\.0\.0' without TLS and authentication"):
        Server(catalog(), port=0, http=HttpSettings(host="0.0.0.0", port=0))


class Only(Authorizer):
    def allows(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
        return operation is Operation.LIST or identity.subject == "prometheus"


def test_beyond_loopback_metrics_need_a_token_and_the_right_to_them_and_probes_do_not() -> None:
    tokens = StaticTokens({Secret("t0ken"): "prometheus", Secret("0ther"): "alice"})
    server = Server(
        catalog(),
        port=0,
        authenticator=tokens,
        authorizer=Only(),
        http=HttpSettings(host="0.0.0.0", port=0),
        insecure=True,
    )
    with server:
        place = at(server).replace("0.0.0.0", "127.0.0.1")
        assert get(place, "/healthz")[0] == get(place, "/readyz")[0] == 200
        assert get(place, "/metrics")[0] == 401
        assert get(place, "/metrics", Authorization="Bearer wrong")[0] == 401
        assert get(place, "/metrics", Authorization="Basic dTpw")[0] == 401
        assert get(place, "/metrics", Authorization="Bearer 0ther")[0] == 403
        assert get(place, "/metrics", Authorization="Bearer t0ken")[0] == 200


def test_on_loopback_metrics_need_a_token_where_there_are_tokens() -> None:
    """They name all tables, and the machine may have users who may not know of them."""
    with serving(catalog(), authenticator=StaticTokens({Secret("t"): "a"}), http=FREE) as server:
        assert get(at(server), "/metrics")[0] == 401
        assert get(at(server), "/metrics", Authorization="Bearer t")[0] == 200
    with serving(catalog(), http=FREE) as server:
        assert get(at(server), "/metrics")[0] == 200


def test_with_tls_it_has_the_same_certificate_which_can_be_renewed(tmp_path: Path) -> None:
    authority = Authority("first")
    files = Files(tmp_path)
    files.put(authority.issue("server"))
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.check_hostname = False
    with serving(catalog(), tls=TlsSettings(files.certificate, files.key), http=FREE) as server:
        assert at(server).startswith("https://")
        assert get(at(server), "/healthz", context=context)[0] == 200
        other = Authority("second")
        files.put(other.issue("server"))
        renewed = ssl.create_default_context(cadata=other.pem.decode())
        renewed.check_hostname = False
        assert get(at(server), "/healthz", context=renewed)[0] == 200


# Rude clients


@contextmanager
def half_requests(server: Server, number: int, text: bytes) -> Iterator[list[socket.socket]]:
    place = at(server).rpartition(":")[2]
    with ExitStack() as open_ones:
        made = []
        for _ in range(number):
            connection = open_ones.enter_context(socket.create_connection(("127.0.0.1", int(place)), 10))
            connection.sendall(text)
            made.append(connection)
        yield made


def test_silent_connections_keep_nobody_waiting(server: Server) -> None:
    with half_requests(server, 600, b""):
        for _ in range(3):
            assert get(at(server), "/healthz")[0] == 200


def test_half_requests_make_way_for_whole_ones(server: Server) -> None:
    with half_requests(server, 40, b"GET /healthz HTTP/1.1\r\nHost: "):
        assert get(at(server), "/healthz")[0] == 200


def test_bodies_that_do_not_come_make_way_too(server: Server) -> None:
    with half_requests(server, 40, b"POST /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc"):
        assert get(at(server), "/healthz")[0] == 200


def test_more_connections_than_are_taken_are_closed_and_flight_goes_on(server: Server) -> None:
    with half_requests(server, 300, b"") as connections, connect(server.location) as client:
        assert client.scan("public.numbers").read_all().num_rows == 3
        closed = 0
        for connection in connections:
            connection.settimeout(0.01)
            try:
                closed += connection.recv(1) == b""
            except OSError as exc:
                closed += not isinstance(exc, TimeoutError)
        assert closed >= 150
    assert get(at(server), "/healthz")[0] == 200


@pytest.mark.parametrize(
    "text",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
        b"\r\n" * 5_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["header", "line", "body", "tls", "blank", "http2"],
)
def test_what_is_no_reasonable_request_is_refused(server: Server, text: bytes) -> None:
    with half_requests(server, 1, b"") as (connection,):
        connection.settimeout(20)
        answer = b""
        try:
            connection.sendall(text)
            while part := connection.recv(4096):
                answer += part
        except OSError:
            pass
        assert b" 200 " not in answer.split(b"\r\n")[0]
    assert get(at(server), "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Transfer-Encoding: chunked", 411),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5", 411),
        (b"Content-Length: -1", 400),
        (b"Content-Length: +5", 400),
        (b"Content-Length: 5, 5", 400),
        (b"Content-Length: much", 400),
    ],
)
def test_a_body_that_does_not_say_how_long_it_is_is_not_read(server: Server, headers: bytes, status: int) -> None:
    """It could go on for ever, and all of it would be held in memory."""
    with half_requests(server, 1, b"POST /healthz HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n\r\n") as (connection,):
        connection.settimeout(2)  # sooner than a body that does not come is given up
        assert connection.recv(4096).split(b" ")[1] == str(status).encode()
        assert connection.recv(1) == b""


@pytest.mark.parametrize("path", [b"/healthz", b"/readyz", b"/metrics", b"/metrics/x", b"/login", b"/"])
def test_head_has_no_body_that_the_next_answer_would_begin_with(server: Server, path: bytes) -> None:
    asked = b"HEAD " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.0\r\n\r\n"
    with half_requests(server, 1, asked) as (connection,):
        connection.settimeout(20)
        answer = b""
        while part := connection.recv(4096):
            answer += part
    first, _, rest = answer.partition(b"\r\n\r\n")
    assert b"Content-Length" in first
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_silent_client_in_a_tls_handshake_keeps_nobody_waiting(tmp_path: Path) -> None:
    authority = Authority("first")
    files = Files(tmp_path)
    files.put(authority.issue("server"))
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.check_hostname = False
    with (
        serving(catalog(), tls=TlsSettings(files.certificate, files.key), http=FREE) as server,
        half_requests(server, 20, b"\x16\x03"),
    ):
        assert get(at(server), "/healthz", context=context)[0] == 200


def test_who_takes_no_answer_makes_way_for_others() -> None:
    def much(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [])
        return [b"x" * 30_000_000] if environ["PATH_INFO"] == "/much" else [b"little"]

    server = HttpServer("127.0.0.1", 0, {"/": much})
    server.start()
    try:
        with ExitStack() as rude:
            for _ in range(18):
                connection = rude.enter_context(socket.create_connection(("127.0.0.1", server.port), 10))
                connection.sendall(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n")
            assert get(server.location, "/little")[1] == "little"
    finally:
        server.stop()


# Applications by path


def _app(name: str) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read()
        start("200 OK", [("Content-Type", "text/plain")])
        return [f"{name} {environ['SCRIPT_NAME']} {environ['PATH_INFO']} {len(body)}".encode()]

    return app


def test_the_longest_path_wins_and_a_failing_application_is_an_error_of_the_server() -> None:
    def broken(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        raise RuntimeError("no luck")

    mounts: Mounts = {"/": _app("root"), "/a": _app("a"), "/a/b": _app("b"), "/broken": broken}
    server = HttpServer("127.0.0.1", 0, mounts)
    server.start()
    try:
        assert get(server.location, "/a/b/c")[1] == "b /a/b /c 0"
        assert get(server.location, "/ab")[1] == "root  /ab 0"
        assert get(server.location, "/")[1] == "root  / 0"
        status, body, _ = get(server.location, "/broken")
        assert (status, "luck" in body) == (500, False)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("POST", "/a", body=b"12345")
        assert connection.getresponse().read() == b"a /a  5"
        connection.close()
    finally:
        server.stop()


def test_a_slow_application_is_waited_for_at_the_end() -> None:
    begun, end = threading.Event(), threading.Event()

    def slow(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        begun.set()
        end.wait(20)
        start("200 OK", [])
        return [b"done"]

    server = HttpServer("127.0.0.1", 0, {"/": slow})
    server.start()
    asking = threading.Thread(target=lambda: _quietly(server.location))
    asking.start()
    assert begun.wait(20)
    since = time.monotonic()
    end.set()
    server.stop()
    asking.join(20)
    assert not asking.is_alive()
    assert time.monotonic() - since < 20


def _quietly(location: str) -> None:
    with suppress(OSError, http.client.HTTPException):  # the answer may be cut off in its midst
        get(location, "/")
