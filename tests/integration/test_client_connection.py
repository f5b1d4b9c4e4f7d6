"""How the client connects, who it says it is, and what becomes of failures."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.support.ports import free_port

from sparkport import errors
from sparkport.app import Server
from sparkport.auth.secret import Secret
from sparkport.auth.tokens import StaticTokens
from sparkport.catalog.builder import CatalogBuilder
from sparkport.catalog.context import CallContext
from sparkport.catalog.model import Catalog, CatalogVersion, Schema
from sparkport.client import connect
from sparkport.client.connection import Connection, open_channel
from sparkport.client.errors import ERRORS
from sparkport.client.locations import parse_location
from sparkport.errors import (
    Code,
    ConstraintViolation,
    DeadlineExceeded,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    NotFound,
    SparkportError,
    Unauthenticated,
    Unavailable,
)
from sparkport.handlers.directory import Directory
from sparkport.handlers.service import ActionFunction, CustomAction, Handlers
from sparkport.testing import serving
from sparkport.wire.gate import Gate
from sparkport.wire.limits import Limits
from sparkport.wire.service import FlightService
from sparkport.wire.tls import TlsSettings

pytestmark = pytest.mark.tier("fast")

TOKEN = "s3cret-token"
USERS = pa.table({"id": [1, 2, 3]})


def catalog(name: str = "lake") -> Catalog:
    return CatalogBuilder(name).schema("public").table("users", USERS).build()


def to(location: str, *, token: Secret | None = None) -> Connection:
    place = parse_location(location)
    return Connection(place, open_channel(place, None), token=token)


def tokens() -> StaticTokens:
    return StaticTokens({Secret(TOKEN): "alice"})


# Who is calling


def test_the_right_token_opens_the_door_and_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(catalog(), authenticator=tokens()) as server, connect(server.location, token=TOKEN) as client:
        assert client.scan("public.users").read_all() == USERS
        assert TOKEN not in repr(client)
    assert TOKEN not in caplog.text
    connection = to("grpc://127.0.0.1:50051", token=Secret(TOKEN))
    assert TOKEN not in repr(vars(connection))


def test_a_secret_is_taken_as_a_token_too() -> None:
    with serving(catalog(), authenticator=tokens()) as server, connect(server.location, token=Secret(TOKEN)) as client:
        assert client.describe("users").name == "users"


@pytest.mark.parametrize("token", [None, "wrong"])
def test_without_the_right_token_every_call_is_unauthenticated(token: str | None) -> None:
    with serving(catalog(), authenticator=tokens()) as server, connect(server.location, token=token) as client:
        for call in (client.schemas, client.version, client.actions, lambda: client.scan("users")):
            with pytest.raises(Unauthenticated) as caught:
                call()
            assert "Flight" not in str(caught.value)


def test_a_token_that_no_header_can_hold_is_refused_without_being_quoted() -> None:
    with pytest.raises(InvalidArgument) as caught:
        connect("grpc://127.0.0.1:1", token="geheim\n")
    assert "geheim" not in str(caught.value)


def test_a_token_in_the_clear_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    connect("grpc://lake.example:50051", token=TOKEN).close()
    connect("grpc://127.0.0.1:50051", token=TOKEN).close()
    connect("grpc+tls://lake.example:50051", token=TOKEN).close()
    assert [record.getMessage() for record in caplog.records] == [
        "the token for grpc://lake.example:50051 is sent without TLS: others on the way can read it"
    ]


def test_the_servers_side_knows_catalog_session_and_client() -> None:
    seen: list[CallContext] = []

    def look(ctx: CallContext, body: bytes) -> list[bytes]:
        seen.append(ctx)
        return []

    with (
        serving(catalog("a"), catalog("b"), actions=[CustomAction("look", look)]) as server,
        connect(server.location, catalog="b") as client,
    ):
        assert client.action("look") == []
        client.action("look")
        assert client.describe("public.users").catalog == "b"
        assert repr(client) == f"Client(location='{server.location}', catalog='b')"
    first, second = seen
    assert first.catalog == "b"
    assert first.session_id == second.session_id
    assert first.headers["airport-user-agent"] == "sparkport-python"
    assert first.headers["airport-action-name"] == "look"


def test_a_catalog_may_have_a_name_that_no_header_can_hold() -> None:
    with serving(catalog("Müller"), catalog("other")) as server, connect(server.location, catalog="Müller") as client:
        assert client.scan("public.users").read_all() == USERS
        assert [table.catalog for table in client.tables()] == ["Müller"]


def test_headers_can_be_added_on_the_same_channel() -> None:
    seen: list[str | None] = []

    def look(ctx: CallContext, body: bytes) -> list[bytes]:
        seen.append(ctx.transaction_id)
        return []

    with serving(catalog(), actions=[CustomAction("look", look)]) as server, closing(to(server.location)) as connection:
        connection.with_headers({"x-transaction-id": "t1"}).action("look")
        connection.action("look")
    assert seen == ["t1", None]


# Errors


def failure(function: ActionFunction, body: bytes) -> SparkportError:
    """What a client sees when an action fails so."""
    with (
        serving(catalog(), actions=[CustomAction("fail", function)]) as server,
        connect(server.location) as client,
        pytest.raises(SparkportError) as caught,
    ):
        client.action("fail", body)
    return caught.value


def test_there_is_a_class_for_every_code() -> None:
    assert set(ERRORS) == set(Code)
    assert all(kind.code is code for code, kind in ERRORS.items())


@pytest.mark.parametrize("code", list(Code))
def test_every_code_arrives_as_its_class_with_the_message_as_it_was(code: Code) -> None:
    kind = ERRORS[code]

    def fail(ctx: CallContext, body: bytes) -> list[bytes]:
        raise kind("just so: ü")

    caught = failure(fail, b"")
    assert type(caught) is kind
    assert caught.message.startswith("just so: ü")
    assert isinstance(caught.__cause__, grpc.RpcError)


def test_finer_classes_arrive_where_the_server_tells_them() -> None:
    def fail(ctx: CallContext, body: bytes) -> list[bytes]:
        raise ConstraintViolation("id must not be null") if body else errors.RowNotFound(7)

    finer, other = failure(fail, b"x"), failure(fail, b"")
    assert (type(finer), str(finer)) == (ConstraintViolation, "id must not be null")
    assert (type(other), str(other)) == (NotFound, "row_id 7 not found in table")


def test_a_defect_of_the_server_is_an_internal_error_without_its_details() -> None:
    def fail(ctx: CallContext, body: bytes) -> list[bytes]:
        raise ZeroDivisionError("hidden")

    caught = failure(fail, b"")
    assert type(caught) is InternalError
    assert "error id" in str(caught)
    assert "hidden" not in str(caught)


def test_nobody_listening_is_unavailable_and_names_the_place() -> None:
    location = f"grpc://127.0.0.1:{free_port()}"
    with connect(location) as client, pytest.raises(Unavailable, match=f"^cannot reach a server at {location}: "):
        client.schemas()


def test_a_closed_client_says_so_and_closing_twice_is_fine() -> None:
    with serving(catalog()) as server:
        client = connect(server.location)
        assert client.schemas()
        client.close()
        client.close()
        with pytest.raises(FailedPrecondition, match="is closed"):
            client.schemas()
        with pytest.raises(FailedPrecondition, match="is closed"):
            client.actions()


def test_a_call_that_takes_too_long_ends_at_the_deadline() -> None:
    release = threading.Event()

    def slow(ctx: CallContext, body: bytes) -> list[bytes]:
        release.wait(30)
        return []

    with (
        serving(catalog(), actions=[CustomAction("slow", slow)]) as server,
        connect(server.location, timeout=0.2) as client,
    ):
        with pytest.raises(DeadlineExceeded):
            client.action("slow")
        release.set()


class Flaky(Catalog):
    """Says it is unavailable the first ``failures`` times that its version is asked for."""

    name = "flaky"

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.asked = 0

    def schemas(self, ctx: CallContext) -> list[Schema]:
        return []

    def version(self, ctx: CallContext) -> CatalogVersion:
        self.asked += 1
        if self.asked <= self.failures:
            raise Unavailable("come back later")
        return CatalogVersion(5, True)


def test_what_only_asks_is_tried_twice_and_no_more() -> None:
    once, always = Flaky(1), Flaky(100)
    with serving(once) as server, connect(server.location) as client:
        assert (client.version().version, client.version().fixed) == (5, True)
    assert once.asked == 3
    with (
        serving(always) as server,
        connect(server.location) as client,
        pytest.raises(Unavailable, match=r"^come back later$"),
    ):
        client.version()
    assert always.asked == 2


def test_actions_of_the_users_own_are_never_repeated() -> None:
    calls: list[bytes] = []

    def fail(ctx: CallContext, body: bytes) -> list[bytes]:
        calls.append(body)
        raise Unavailable("not now")

    assert type(failure(fail, b"x")) is Unavailable
    assert calls == [b"x"]


def test_a_client_finds_a_server_that_was_started_again() -> None:
    with serving(catalog()) as server, connect(server.location) as client:
        assert client.version()
        server.stop(grace=0)
        with Server(catalog(), port=server.port):
            assert client.scan("users").read_all() == USERS


def test_many_threads_may_share_a_client() -> None:
    with serving(catalog()) as server, connect(server.location) as client, ThreadPoolExecutor(8) as pool:
        tables = list(pool.map(lambda _: client.scan("users").read_all(), range(40)))
    assert tables == [USERS] * 40


# Where to


@pytest.mark.parametrize(
    ("text", "target", "tls", "local"),
    [
        ("grpc://127.0.0.1:50051", "127.0.0.1:50051", False, True),
        ("grpc+tcp://lake.example:1", "lake.example:1", False, False),
        ("grpc+tls://lake.example:443/", "lake.example:443", True, False),
        ("grpc://[::1]:5", "[::1]:5", False, True),
        ("grpc+unix:///run/lake.sock", "unix:/run/lake.sock", False, True),
        ("grpc+unix:lake.sock", "unix:lake.sock", False, True),
    ],
)
def test_locations_are_read_as_arrow_flight_writes_them(text: str, target: str, tls: bool, local: bool) -> None:
    location = parse_location(text)
    assert (location.text, location.target, location.tls, location.local) == (text, target, tls, local)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:50051",
        "http://host:1",
        "grpc://host",
        "grpc://:50051",
        "grpc://host:port",
        "grpc://host:99999",
        "grpc://host:1/path",
        "grpc://host:1?x=1",
        "grpc://[::1:5",
        "grpc+unix://host/path",
        "grpc+unix:",
    ],
)
def test_other_locations_are_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"must be grpc://host:port"):
        connect(text)


def test_a_password_in_a_location_is_refused_without_being_quoted() -> None:
    with pytest.raises(InvalidArgument) as caught:
        connect("grpc://me:geheim@host:1")
    assert "geheim" not in str(caught.value)


def test_a_server_is_reached_through_a_unix_socket(tmp_path: Path) -> None:
    service = FlightService(Handlers(Directory([catalog()])), Gate(Limits()))
    server = grpc.server(ThreadPoolExecutor(4), handlers=[service])
    server.add_insecure_port(f"unix:{tmp_path}/s")
    server.start()
    try:
        with connect(f"grpc+unix://{tmp_path}/s") as client:
            assert client.scan("users").read_all() == USERS
    finally:
        server.stop(None).wait()


# TLS


def issue(name: str) -> tuple[bytes, bytes]:
    """A certificate that has signed itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), pem


@pytest.fixture
def tls(tmp_path: Path) -> tuple[Path, Path]:
    certificate, key = issue("localhost")
    (tmp_path / "crt").write_bytes(certificate)
    (tmp_path / "key").write_bytes(key)
    return tmp_path / "crt", tmp_path / "key"


def test_tls_takes_its_root_from_a_file_or_from_bytes(tls: tuple[Path, Path]) -> None:
    with serving(catalog(), tls=TlsSettings(*tls)) as server:
        location = f"grpc+tls://localhost:{server.port}"
        for root in (tls[0], str(tls[0]), tls[0].read_bytes()):
            with connect(location, tls_root=root) as client:
                assert client.scan("users").read_all() == USERS
        with connect(location) as client, pytest.raises(Unavailable, match="cannot reach a server at"):
            client.schemas()


def test_a_client_certificate_is_shown_where_the_server_asks_for_one(tls: tuple[Path, Path]) -> None:
    settings = TlsSettings(*tls, client_ca=tls[0])
    with serving(catalog(), tls=settings) as server:
        location = f"grpc+tls://localhost:{server.port}"
        with connect(location, tls_root=tls[0], client_certificate=tls) as client:
            assert client.scan("users").read_all() == USERS
        with connect(location, tls_root=tls[0]) as client, pytest.raises(Unavailable):
            client.schemas()


def test_certificates_that_would_do_nothing_or_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"certificates need a grpc\+tls:// location"):
        connect("grpc://host:1", tls_root=b"x")
    with pytest.raises(InvalidArgument, match="cannot read the PEM file"):
        connect("grpc+tls://host:1", tls_root=tmp_path / "nothing")
