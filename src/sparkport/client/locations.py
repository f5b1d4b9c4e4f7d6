"""From a location as people write it to what gRPC dials, TLS included."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import grpc

from sparkport.auth.hosts import is_loopback
from sparkport.errors import InvalidArgument

__all__ = ["Location", "Pem", "channel_credentials", "parse_location"]

Pem: TypeAlias = "bytes | str | Path"
"""PEM text as bytes, or the path of a file that holds it."""

_FORMS = "grpc://host:port, grpc+tcp://host:port, grpc+tls://host:port or grpc+unix:///path"


@dataclass(frozen=True, slots=True)
class Location:
    """``target`` is the address in gRPC's own spelling; ``local`` ones never leave this machine."""

    text: str
    target: str
    tls: bool
    local: bool


def parse_location(text: str) -> Location:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise InvalidArgument(f"location '{text}' must be {_FORMS}") from exc
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument(f"a location takes no user or password: it must be {_FORMS}")
    if parts.scheme == "grpc+unix" and not parts.netloc and parts.path:
        return Location(text, f"unix:{parts.path}", tls=False, local=True)
    rest = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in ("grpc", "grpc+tcp", "grpc+tls") or not host or port is None or rest:
        raise InvalidArgument(f"location '{text}' must be {_FORMS}")
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Location(text, target, tls=parts.scheme == "grpc+tls", local=is_loopback(host))


def channel_credentials(
    location: Location, *, tls_root: Pem | None, client_certificate: tuple[Pem, Pem] | None
) -> grpc.ChannelCredentials | None:
    """None for a plain connection. Certificates that could have no effect are refused, not ignored."""
    if not location.tls:
        if tls_root is not None or client_certificate is not None:
            raise InvalidArgument(f"certificates need a grpc+tls:// location, not '{location.text}'")
        return None
    certificate, key = client_certificate or (None, None)
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls_root), private_key=_read(key), certificate_chain=_read(certificate)
    )


def _read(pem: Pem | None) -> bytes | None:
    if pem is None or isinstance(pem, bytes):
        return pem
    try:
        return Path(pem).read_bytes()
    except OSError as exc:
        raise InvalidArgument(f"cannot read the PEM file '{pem}': {exc.strerror}") from exc
