"""Who sends an HTTP request: the same credentials as on a Flight call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkport.auth.hosts import is_loopback_host
from sparkport.auth.model import Peer
from sparkport.auth.secret import Secret
from sparkport.errors import PermissionDenied, Unauthenticated
from sparkport.http.tls import CERTIFICATE_SUBJECT

__all__ = ["bearer_token", "peer_of", "require_local_name"]


def bearer_token(environ: Mapping[str, Any]) -> Secret | None:
    """The token of the header ``Authorization: Bearer TOKEN``; None where there is no such header."""
    header = environ.get("HTTP_AUTHORIZATION")
    if header is None:
        return None
    scheme, _, token = str(header).partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("the authorization header must be 'Bearer TOKEN'")
    return Secret(token.strip())


def peer_of(environ: Mapping[str, Any]) -> Peer:
    host = str(environ.get("REMOTE_ADDR", ""))
    address = f"ipv6:[{host}]" if ":" in host else f"ipv4:{host}"
    return Peer(f"{address}:{environ.get('REMOTE_PORT', '')}", environ.get(CERTIFICATE_SUBJECT))


def require_local_name(environ: Mapping[str, Any]) -> None:
    """For what needs no token because only this machine reaches it: refuse requests by a name that is not its own.

    Such a name can be another site's that leads here today, whose pages a browser then lets ask us anything.
    """
    if not is_loopback_host(str(environ.get("HTTP_HOST", ""))):
        raise PermissionDenied("this address is not one of this machine's own: use localhost, or set up authentication")
