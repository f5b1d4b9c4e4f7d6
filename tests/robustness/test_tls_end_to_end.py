"""TLS, tokens and client certificates through the whole server, with a stock Flight client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.robustness.rig import ROWS, catalog
from tests.unit.test_tls import Authority, Files, replace

from sparkport.app import Server, TlsSettings
from sparkport.auth import MutualTls, Secret, StaticTokens
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

TOKEN = "s3cret"
AUTHORIZED = pf.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())], timeout=30)
ANONYMOUS = pf.FlightCallOptions(timeout=30)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("first")


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> Files:
    made = Files(tmp_path)
    made.put(authority.issue("server"))
    return made


@pytest.fixture
def server(files: Files) -> Iterator[Server]:
    tokens = StaticTokens({Secret(TOKEN): "alice"})
    with serving(catalog(), authenticator=tokens, tls=TlsSettings(files.certificate, files.key)) as running:
        yield running


def read(server: Server, root: bytes, options: pf.FlightCallOptions = AUTHORIZED, **client: bytes) -> pa.Table:
    """A scan over a connection of its own."""
    with pf.connect(
        server.location,
        tls_root_certs=root,
        override_hostname="localhost",
        generic_options=[("grpc.use_local_subchannel_pool", 1)],
        **client,
    ) as connection:
        info = connection.get_flight_info(pf.FlightDescriptor.for_path("public", "numbers"), options)
        return connection.do_get(info.endpoints[0].ticket, options).read_all()


def test_a_stock_client_reads_over_tls_with_a_token(server: Server, authority: Authority) -> None:
    assert server.location.startswith("grpc+tls://")
    assert read(server, authority.pem).to_pylist() == ROWS.to_pylist()


def test_tls_alone_is_not_enough(server: Server, authority: Authority) -> None:
    with pytest.raises(pf.FlightUnauthenticatedError):
        read(server, authority.pem, ANONYMOUS)


def test_a_client_that_trusts_somebody_else_stays_away(server: Server) -> None:
    with pytest.raises(pf.FlightUnavailableError):
        read(server, Authority("other").pem)


def test_a_client_without_tls_gets_nowhere(server: Server) -> None:
    with pf.connect(f"grpc://127.0.0.1:{server.port}") as client, pytest.raises(pf.FlightUnavailableError):
        list(client.list_actions(AUTHORIZED))


def test_a_certificate_is_replaced_while_the_server_runs(server: Server, files: Files, authority: Authority) -> None:
    assert read(server, authority.pem).num_rows == 3
    second = Authority("second")
    files.put(second.issue("server"))

    assert read(server, second.pem).num_rows == 3
    with pytest.raises(pf.FlightUnavailableError):
        read(server, authority.pem)


def test_a_client_certificate_says_who_is_calling(files: Files, authority: Authority) -> None:
    clients = Authority("clients")
    replace(files.client_ca, clients.pem)
    tls = TlsSettings(files.certificate, files.key, files.client_ca)
    with serving(catalog(), authenticator=MutualTls(), tls=tls) as server:
        key, chain = clients.issue("alice")
        rows = read(server, authority.pem, ANONYMOUS, private_key=key, cert_chain=chain)
        strange_key, strange_chain = Authority("strangers").issue("alice")

        assert rows.num_rows == 3
        with pytest.raises(pf.FlightUnavailableError):
            read(server, authority.pem, ANONYMOUS)
        with pytest.raises(pf.FlightUnavailableError):
            read(server, authority.pem, ANONYMOUS, private_key=strange_key, cert_chain=strange_chain)
