"""The HTTP server: WSGI applications by path, and bounds on what slow or hostile clients can take.

It shares the process with Flight, so what it may use is small and fixed: threads, connections, bytes and seconds. A
connection has no thread until it has sent something. Who sends half a request, or takes no answer, loses the connection
soon, and much sooner when others wait; of too many that say nothing the oldest make way for the newest.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from cheroot.server import HTTPConnection, HTTPRequest
from cheroot.wsgi import Gateway_10
from cheroot.wsgi import Server as CherootServer

from sparkport.errors import Unavailable
from sparkport.http.tls import CERTIFICATE_SUBJECT, TlsAdapter, TlsFiles, certificate_subject

__all__ = ["HttpServer", "Mounts", "WsgiApp"]

logger = logging.getLogger(__name__)

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Mounts = Mapping[str, WsgiApp]
"""Applications by the path that they are at: ``/metrics``, or ``/`` for all that no other takes."""

_THREADS: Final = 16
_CONNECTIONS: Final = 128
_HEADER_BYTES: Final = 32 * 1024
_BODY_BYTES: Final = 1 << 20
_READ_SECONDS: Final = 5.0
_CROWDED_READ_SECONDS: Final = 0.5  # while others wait for a thread
_ANSWER_SECONDS: Final = 120.0
_CROWDED_SEND_SECONDS: Final = 5.0
_IDLE_SECONDS: Final = 30
_SHUTDOWN_SECONDS: Final = 2
_STOP_TICK_SECONDS: Final = 0.05  # it looks this often whether it is to stop, and which connections are idle
_TICK_SECONDS: Final = 0.25


class HttpServer:
    """Listens from ``start`` to ``stop``. Port 0 takes a free one; ``port`` has it once it listens."""

    def __init__(self, host: str, port: int, mounts: Mounts, *, tls: TlsFiles | None = None) -> None:
        self.host, self.port = host, port
        self._scheme = "http" if tls is None else "https"
        self._server = _Server((host, port), _dispatch(mounts))
        self._server.ssl_adapter = None if tls is None else TlsAdapter(tls)
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()

    @property
    def location(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self._scheme}://{host}:{self.port}"

    def start(self) -> None:
        try:
            self._server.prepare()
        except OSError as exc:
            raise Unavailable(
                f"cannot listen on {self.host}:{self.port} for HTTP: is another server running there?"
            ) from exc
        self.port = self._server.socket.getsockname()[1]
        for target, name in ((self._server.serve, "sparkport-http"), (self._watch, "sparkport-http-watch")):
            self._threads.append(threading.Thread(target=target, name=name, daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Safe to repeat."""
        if self._threads and not self._stopped.is_set():
            self._stopped.set()
            self._server.cut_off_all()
            self._server.stop()
            for thread in self._threads:
                thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(_TICK_SECONDS):
            self._server.look_around(time.monotonic())


class _Request(HTTPRequest):
    """One whose body says how long it is: cheroot reads chunks' first lines, and lengths below zero, without bound."""

    def respond(self) -> None:
        if self.chunked_read or not self.inheaders.get(b"Content-Length", b"0").isdigit():
            self.close_connection = True  # what follows is no request
            self.simple_response("411 Length Required" if self.chunked_read else "400 Bad Request")
            return
        super().respond()


class _Gateway(Gateway_10):
    """A request with its whole body, which belongs to what has to be read soon."""

    def __init__(self, req: HTTPRequest) -> None:
        req.rfile = io.BytesIO(req.rfile.read())
        super().__init__(req)

    def respond(self) -> None:
        self.req.conn.phase(_ANSWER_SECONDS, crowded=_ANSWER_SECONDS)
        super().respond()

    def write(self, chunk: bytes) -> None:
        """The application has done its part: now it is the client's turn."""
        self.req.conn.phase(_ANSWER_SECONDS, crowded=_CROWDED_SEND_SECONDS)
        super().write(chunk)


class _Connection(HTTPConnection):
    """A client, since when it does what it does, and for how long it may."""

    RequestHandlerClass = _Request
    is_new = True
    is_cut_off = False
    seconds = crowded = math.inf
    since = 0.0

    def __init__(self, server: _Server, sock: socket.socket, makefile: Any) -> None:
        super().__init__(server, sock, makefile)
        self.since = time.monotonic()
        server.open_connections.add(self)

    def phase(self, seconds: float, *, crowded: float) -> None:
        """What it does from now on may take so long, or ``crowded`` while others wait for a thread."""
        self.seconds, self.crowded, self.since = seconds, crowded, time.monotonic()

    def communicate(self) -> bool:
        self.phase(_READ_SECONDS, crowded=_CROWDED_READ_SECONDS)
        try:
            return self._shaken_hands() and bool(super().communicate())  # type: ignore[no-untyped-call]
        finally:
            self.phase(math.inf, crowded=math.inf)

    def _shaken_hands(self) -> bool:
        if not isinstance(self.socket, ssl.SSLSocket) or self.ssl_env:
            return True
        try:
            self.socket.do_handshake()
        except OSError:
            return False
        subject = certificate_subject(self.socket)
        self.ssl_env = {"HTTPS": "on"} if subject is None else {"HTTPS": "on", CERTIFICATE_SUBJECT: subject}
        return True

    def cut_off(self) -> None:
        """Wakes who serves the connection, or waits for it to say something, and then closes it."""
        self.is_cut_off = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self.server.open_connections.discard(self)
        with contextlib.suppress(OSError):
            super().close()


class _Server(CherootServer):
    ConnectionClass = _Connection
    max_request_header_size = _HEADER_BYTES
    max_request_body_size = _BODY_BYTES
    keep_alive_conn_limit = _CONNECTIONS // 2
    expiration_interval = _STOP_TICK_SECONDS
    version = "sparkport"

    def __init__(self, address: tuple[str, int], app: WsgiApp) -> None:
        self._connections: Any  # cheroot's own, made when it begins to listen
        self.open_connections: set[_Connection] = set()
        super().__init__(
            address,
            app,
            numthreads=_THREADS,
            max=_THREADS,
            request_queue_size=_CONNECTIONS,
            timeout=_IDLE_SECONDS,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        self.gateway = _Gateway

    def bind(self, family: int, type: int, proto: int = 0) -> socket.socket:  # noqa: A002 - cheroot's name
        """As cheroot does it, and without a socket that is left open where the port is taken."""
        made: socket.socket = self.prepare_socket(self.bind_addr, family, type, proto, self.nodelay, None)
        try:
            made.bind(self.bind_addr)
        except OSError:
            made.close()
            raise
        self.socket = made
        return made

    def process_conn(self, conn: _Connection) -> None:
        """Called by the one thread that accepts, with a new connection or with one that has sent something."""
        if conn.is_new:
            conn.is_new = False
            if len(self.open_connections) > 2 * _CONNECTIONS:
                conn.close()
                return
            if len(self.open_connections) > _CONNECTIONS:
                self._make_way()
            self._connections.put(conn)  # until it says something
            return
        super().process_conn(conn)

    def look_around(self, now: float) -> None:
        crowded = self.requests.qsize > 0
        for conn in list(self.open_connections):
            if now - conn.since > (conn.crowded if crowded else conn.seconds):
                conn.cut_off()

    def _make_way(self) -> None:
        silent = [conn for conn in list(self.open_connections) if conn.seconds == math.inf and not conn.is_cut_off]
        if len(silent) > 1:
            min(silent, key=lambda conn: conn.since).cut_off()

    def cut_off_all(self) -> None:
        for conn in list(self.open_connections):
            conn.cut_off()

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        logger.log(min(level, logging.WARNING) if not traceback else logging.ERROR, "%r", msg, exc_info=traceback)


def _dispatch(mounts: Mounts) -> WsgiApp:
    """The application with the longest path that the request's begins with. Whatever it answers, HEAD has no body:
    the next answer of the connection would begin with it."""
    paths = sorted(((path.rstrip("/"), app) for path, app in mounts.items()), key=lambda item: -len(item[0]))

    def dispatch(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = _found(environ, paths)(environ, start_response)
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else body

    return dispatch


def _found(environ: dict[str, Any], paths: Iterable[tuple[str, WsgiApp]]) -> WsgiApp:
    path = environ.get("PATH_INFO", "")
    for prefix, app in paths:
        if path == prefix or path.startswith(f"{prefix}/"):
            environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + prefix
            environ["PATH_INFO"] = path[len(prefix) :]
            return app
    return _nowhere


def _nowhere(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
    return [b"not found\n"]
