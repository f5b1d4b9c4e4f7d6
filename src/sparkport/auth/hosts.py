"""Which addresses only this machine can reach: the line between "safe in the clear" and "needs TLS"."""

from __future__ import annotations

import ipaddress
import re

__all__ = ["is_loopback", "is_loopback_host"]

_WITH_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*):\d+")


def is_loopback(address: str) -> bool:
    """True for ``localhost``, 127.0.0.0/8, ``::1`` and Unix sockets, with or without a port.

    Other names are not resolved: what a name means can change after the check, so it counts as reachable.
    """
    return address.startswith(("unix:", "unix-abstract:")) or is_loopback_host(address)


def is_loopback_host(address: str) -> bool:
    """The same for what a client has called us: there, ``unix:50052`` is a machine of that name, and a port."""
    with_port = _WITH_PORT.fullmatch(address)
    host = (with_port["host"] if with_port else address).removeprefix("[").removesuffix("]")
    if host.lower() == "localhost":
        return True
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback
