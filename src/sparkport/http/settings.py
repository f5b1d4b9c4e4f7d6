"""Where the HTTP port is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_HTTP_PORT", "HttpSettings"]

DEFAULT_HTTP_PORT = 50052


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Port 0 takes a free one. Where the port is taken, a server that does not ``require`` it goes on without."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_HTTP_PORT
    require: bool = True
