"""TLS with a real server: certificates renewed while it runs, client certificates, and what may be exposed."""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from sparkport.auth import MutualTls
from sparkport.errors import FailedPrecondition, InvalidArgument, Unauthenticated
from sparkport.wire.tls import TlsSettings, check_exposure, is_loopback, peer_of, server_credentials

pytestmark = pytest.mark.tier("fast")

PrivateKey = ec.EllipticCurvePrivateKey


class Authority:
    """A certificate authority of the test's own."""

    def __init__(self, name: str) -> None:
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.pem = self._sign(self.name, self.key, None)

    def issue(self, common_name: str | None, *, host: str = "localhost") -> tuple[bytes, bytes]:
        """A key and a certificate for it, both PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)] if common_name else []
        return private_pem(key), self._sign(x509.Name(attributes), key, host)

    def _sign(self, subject: x509.Name, key: PrivateKey, host: str | None) -> bytes:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def private_pem(key: PrivateKey, encryption: KeySerializationEncryption | None = None) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())


class Files:
    """The server's PEM files, replaced as renewal tools do it."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key, self.client_ca = folder / "tls.crt", folder / "tls.key", folder / "ca.crt"

    def put(self, pair: tuple[bytes, bytes]) -> None:
        replace(self.key, pair[0])
        replace(self.certificate, pair[1])


def replace(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    os.replace(fresh, path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("first")


def who_am_i(request: bytes, context: grpc.ServicerContext) -> bytes:
    peer = peer_of(context)
    try:
        return MutualTls().authenticate(None, peer).subject.encode()
    except Unauthenticated:
        return peer.address.encode()


@contextmanager
def serving(settings: TlsSettings, *, ports: int = 1) -> Iterator[list[int]]:
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(who_am_i)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {"WhoAmI": handler}),))
        credentials = server_credentials(settings)
        bound = [server.add_secure_port("127.0.0.1:0", credentials) for _ in range(ports)]
        server.start()
        try:
            yield bound
        finally:
            server.stop(None).wait()


def call(port: int, root: bytes, client: tuple[bytes, bytes] | None = None) -> str:
    """One call over a connection of its own, or the status code's name when it fails."""
    key, chain = client or (None, None)
    credentials = grpc.ssl_channel_credentials(root, private_key=key, certificate_chain=chain)
    # A local pool: channels to one address would otherwise share a connection, and with it the old certificate.
    options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        try:
            method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/t.T/WhoAmI")
            answer = method(b"", timeout=20)
        except grpc.RpcError as exc:
            return str(exc.code().name)
        return answer.decode()


def test_a_renewed_certificate_is_used_for_the_next_connection_on_every_port(
    files: Files, authority: Authority
) -> None:
    second = Authority("second")
    files.put(authority.issue("server"))
    with serving(TlsSettings(files.certificate, files.key), ports=2) as ports:
        for port in ports:
            assert call(port, authority.pem).startswith("ipv4:127.0.0.1:")
            assert call(port, second.pem) == "UNAVAILABLE"
        files.put(second.issue("server"))
        for port in ports:
            assert call(port, second.pem).startswith("ipv4:127.0.0.1:")
            assert call(port, authority.pem) == "UNAVAILABLE"


def test_broken_new_files_leave_the_old_certificate_in_use_and_are_logged_once(
    files: Files, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    second = Authority("second")
    files.put(authority.issue("server"))
    with serving(TlsSettings(files.certificate, files.key)) as (port,):
        replace(files.certificate, second.issue("server")[1])
        for _ in range(3):
            assert call(port, authority.pem).startswith("ipv4:")
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "is not the key of the certificate" in errors[0].getMessage()
        files.key.unlink()
        assert call(port, authority.pem).startswith("ipv4:")
        assert "cannot be read" in caplog.text
        files.put(second.issue("server"))
        assert call(port, second.pem).startswith("ipv4:")


def test_mutual_tls_takes_clients_of_the_ca_and_refuses_all_others(files: Files, authority: Authority) -> None:
    clients, others = Authority("clients"), Authority("others")
    files.put(authority.issue("server"))
    files.client_ca.write_bytes(clients.pem)
    with serving(TlsSettings(files.certificate, files.key, files.client_ca)) as (port,):
        assert call(port, authority.pem, clients.issue("alice")) == "alice"
        assert call(port, authority.pem, clients.issue(None, host="bob.example")) == "bob.example"
        assert call(port, authority.pem) == "UNAVAILABLE"
        assert call(port, authority.pem, others.issue("alice")) == "UNAVAILABLE"
        replace(files.client_ca, others.pem)
        assert call(port, authority.pem, others.issue("carol")) == "carol"
        assert call(port, authority.pem, clients.issue("alice")) == "UNAVAILABLE"


def test_the_start_fails_with_files_that_cannot_be_used(files: Files, authority: Authority) -> None:
    settings = TlsSettings(files.certificate, files.key, files.client_ca)
    key, chain = authority.issue("server")
    encrypted = private_pem(ec.generate_private_key(ec.SECP256R1()), BestAvailableEncryption(b"password"))
    cases = [
        (b"x", chain, authority.pem, "tls.key is not a PEM private key"),
        (encrypted, chain, authority.pem, "tls.key is encrypted"),
        (key, b"x", authority.pem, "tls.crt holds no PEM certificate"),
        (key, authority.pem, authority.pem, "is not the key of the certificate"),
        (key, chain, b"", "ca.crt holds no PEM certificate"),
    ]
    for bad_key, bad_chain, client_ca, message in cases:
        files.put((bad_key, bad_chain))
        replace(files.client_ca, client_ca)
        with pytest.raises(InvalidArgument, match=message):
            server_credentials(settings)
    files.client_ca.unlink()
    files.put((key, chain))
    with pytest.raises(InvalidArgument, match=r"ca.crt cannot be read"):
        server_credentials(settings)


def test_client_certificates_follow_the_client_ca(files: Files) -> None:
    assert TlsSettings(files.certificate, files.key).require_client is False
    assert TlsSettings(files.certificate, files.key, files.client_ca).require_client is True
    with pytest.raises(FailedPrecondition, match="no client CA"):
        TlsSettings(files.certificate, files.key, None, True)
    with pytest.raises(FailedPrecondition, match="cannot be optional"):
        TlsSettings(files.certificate, files.key, files.client_ca, False)


LOOPBACK = ["localhost", "LOCALHOST", "127.0.0.1", "127.8.9.1", "::1", "[::1]", "::ffff:127.0.0.1", "unix:/run/s.sock"]
REACHABLE = ["", "0.0.0.0", "::", "[::]", "10.0.0.1", "example.com", "localhost.example.com", "127.0.0.1.nip.io", "*"]


@pytest.mark.parametrize("host", [*LOOPBACK, "localhost:50051", "127.0.0.1:0", "[::1]:50051"])
def test_these_hosts_are_this_machine_only(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", [*REACHABLE, "0.0.0.0:50051", "[::]:50051", ":50051", "::ffff:10.0.0.1", "127.1"])
def test_these_hosts_can_be_reached_by_others(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", REACHABLE)
def test_exposure_needs_tls_and_authentication(host: str, caplog: pytest.LogCaptureFixture) -> None:
    for tls, authentication, missing in [
        (False, False, "without TLS and authentication:"),
        (True, False, "without authentication:"),
        (False, True, "without TLS:"),
    ]:
        with pytest.raises(FailedPrecondition) as failure:
            check_exposure(host, tls=tls, authentication=authentication, insecure=False)
        assert missing in failure.value.message
        assert "--insecure" in failure.value.message
        caplog.clear()
        check_exposure(host, tls=tls, authentication=authentication, insecure=True)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
    caplog.clear()
    check_exposure(host, tls=True, authentication=True, insecure=False)
    assert caplog.records == []


@pytest.mark.parametrize("host", LOOPBACK)
def test_this_machine_alone_needs_neither(host: str, caplog: pytest.LogCaptureFixture) -> None:
    check_exposure(host, tls=False, authentication=False, insecure=False)
    assert caplog.records == []
