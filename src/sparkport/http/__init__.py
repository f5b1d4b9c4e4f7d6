"""A small HTTP server beside Flight, for what browsers, probes and scrapers ask."""

from sparkport.http.callers import bearer_token, peer_of, require_local_name
from sparkport.http.server import HttpServer, Mounts, WsgiApp
from sparkport.http.settings import DEFAULT_HTTP_PORT, HttpSettings
from sparkport.http.tls import TlsFiles

__all__ = [
    "DEFAULT_HTTP_PORT",
    "HttpServer",
    "HttpSettings",
    "Mounts",
    "TlsFiles",
    "WsgiApp",
    "bearer_token",
    "peer_of",
    "require_local_name",
]
