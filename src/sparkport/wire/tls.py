"""TLS for the server: certificates that can be renewed while it runs, and a guard against exposing it by mistake."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from sparkport.auth.files import Reloaded, read_file
from sparkport.auth.hosts import is_loopback
from sparkport.auth.model import Peer
from sparkport.errors import FailedPrecondition, InvalidArgument

__all__ = ["TlsSettings", "check_exposure", "is_loopback", "peer_of", "server_credentials"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files. With ``client_ca`` every client must show a certificate that this CA has signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    require_client: bool | None = None
    """Follows ``client_ca``. gRPC for Python either demands client certificates or does not ask for them at all, so
    anything else is refused, not quietly done another way."""

    def __post_init__(self) -> None:
        if self.require_client is None:
            object.__setattr__(self, "require_client", self.client_ca is not None)
        if self.require_client and self.client_ca is None:
            raise FailedPrecondition("client certificates are required, but there is no client CA to check them with")
        if not self.require_client and self.client_ca is not None:
            raise FailedPrecondition("with a client CA every client must show a certificate: it cannot be optional")

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.certificate, self.key) + (() if self.client_ca is None else (self.client_ca,))


def server_credentials(settings: TlsSettings) -> grpc.ServerCredentials:
    """Credentials whose files are looked at with each new connection.

    Files that do not fit together stop the start; later they are logged and the previous ones stay in use.
    """
    configuration = Reloaded(settings.files, lambda: _configuration(settings), interval=0.0)
    # Always the whole configuration, never "unchanged": each port asks on its own, so the others would miss a change
    # that one port has learnt.
    return grpc.dynamic_ssl_server_credentials(
        configuration.current(), configuration.current, require_client_authentication=bool(settings.require_client)
    )


def peer_of(context: grpc.ServicerContext) -> Peer:
    """Where the call comes from and, under mutual TLS, whom its certificate names: the common name, else the first
    alternative name."""
    # The stubs call the values bytes; they are sequences of bytes.
    auth = cast("Mapping[str, Sequence[bytes]]", context.auth_context() or {})
    names = [*auth.get("x509_common_name", ()), *auth.get("x509_subject_alternative_name", ())]
    subject = next((name.decode("utf-8", "replace") for name in names if name), None)
    return Peer(str(context.peer()), subject)


def check_exposure(host: str, *, tls: bool, authentication: bool, insecure: bool) -> None:
    """Refuse to listen where others can reach the server without both TLS and authentication."""
    missing = " and ".join(name for name, present in (("TLS", tls), ("authentication", authentication)) if not present)
    if not missing or is_loopback(host):
        return
    if insecure:
        logger.warning("listening on %s without %s, as --insecure asks", host, missing)
        return
    raise FailedPrecondition(
        f"refusing to listen on '{host}' without {missing}: others can reach this address. "
        "Configure what is missing, listen on 127.0.0.1, or pass --insecure."
    )


def _configuration(settings: TlsSettings) -> grpc.ServerCertificateConfiguration:
    key, chain = read_file(settings.key), read_file(settings.certificate)
    _check_pair(key, chain, settings)
    client_ca = None
    if settings.client_ca is not None:
        client_ca = read_file(settings.client_ca)
        _certificates(client_ca, settings.client_ca)
    return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=client_ca)


def _check_pair(key: bytes, chain: bytes, settings: TlsSettings) -> None:
    """gRPC takes whatever it is given and then fails every handshake, so the files are checked before."""
    try:
        private = load_pem_private_key(key, password=None)
    except TypeError as exc:
        raise InvalidArgument(f"{settings.key} is encrypted: the server needs the key without a password") from exc
    except (ValueError, UnsupportedAlgorithm) as exc:
        raise InvalidArgument(f"{settings.key} is not a PEM private key") from exc
    leaf = _certificates(chain, settings.certificate)[0]
    encoding, form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if leaf.public_key().public_bytes(encoding, form) != private.public_key().public_bytes(encoding, form):
        raise InvalidArgument(f"{settings.key} is not the key of the certificate in {settings.certificate}")


def _certificates(data: bytes, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as exc:
        raise InvalidArgument(f"{path} holds no PEM certificate") from exc
