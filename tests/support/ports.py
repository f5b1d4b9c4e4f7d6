"""Ports for servers that have to be told one."""

from __future__ import annotations

import socket

__all__ = ["free_port"]


def free_port() -> int:
    """One on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
