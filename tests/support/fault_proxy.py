"""A network that fails between a client and a server: what is said is held back, or lost with the connection.

It knows nothing of gRPC or of any other protocol. Unless it swallows everything, what the client says goes through, so
a request has been heard when its answer is lost.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from urllib.parse import urlsplit

__all__ = ["FaultProxy"]

_CHUNK = 65_536


class FaultProxy:
    """Passes everything on until it is told otherwise, from any thread."""

    def __init__(self, location: str) -> None:
        """``location`` is the server's, such as ``grpc://127.0.0.1:50051``."""
        target = urlsplit(location)
        self._target = (target.hostname or "127.0.0.1", target.port or 0)
        self._changed = threading.Condition()
        self._held = False
        self._swallowing = False
        self._lines: list[_Line] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.location = f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"
        """Where clients connect to."""
        self._start(self._accept)

    def hold(self) -> None:
        """From now on keep what the server says."""
        with self._changed:
            self._held = True

    def swallow(self) -> None:
        """From now on nothing gets through in either direction, not even that a connection has ended."""
        with self._changed:
            self._held = self._swallowing = True

    def release(self) -> None:
        """Pass on what was kept."""
        with self._changed:
            self._held = self._swallowing = False
            self._changed.notify_all()

    def cut(self) -> None:
        """End all connections; what was kept is lost. Those made afterwards are sound."""
        with self._changed:
            lines, self._lines = self._lines, []
            self._held = self._swallowing = False
            for line in lines:
                line.cut()
            self._changed.notify_all()

    def refuse(self) -> None:
        """End all connections, and take none any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits for a connection, as closing does not
        self._listener.close()
        self.cut()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.refuse()
        for thread in self._threads:
            thread.join(30)
        self.cut()

    def _start(self, work: object, *args: object) -> None:
        assert callable(work)
        thread = threading.Thread(target=work, args=args, name="fault-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            line = _Line(client, server)
            with self._changed:
                self._lines.append(line)
            self._start(self._requests, line)
            self._start(self._answers, line)

    def _requests(self, line: _Line) -> None:
        for data in line.heard(line.client):
            self._wait(line, lambda: self._swallowing)
            line.say(line.server, data)
        self._wait(line, lambda: self._swallowing)
        line.end()

    def _answers(self, line: _Line) -> None:
        for data in line.heard(line.server):
            self._wait(line, lambda: self._held)
            line.say(line.client, data)
        self._wait(line, lambda: self._swallowing)
        line.end()

    def _wait(self, line: _Line, blocked: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: line.is_cut or not blocked())


class _Line:
    """A client's connection and the one to the server that belongs to it. They end together."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.is_cut = False
        self._readers = 2
        self._lock = threading.Lock()

    def heard(self, source: socket.socket) -> Iterator[bytes]:
        try:
            while not self.is_cut and (data := source.recv(_CHUNK)):
                yield data
        except OSError:
            pass

    def end(self) -> None:
        """One of the two who listen is done."""
        self.cut()
        self._close()

    def say(self, target: socket.socket, data: bytes) -> None:
        if not self.is_cut:
            with contextlib.suppress(OSError):
                target.sendall(data)

    def cut(self) -> None:
        """Wakes those who listen; each socket is closed when nobody does any more."""
        self.is_cut = True
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        with self._lock:
            self._readers -= 1
            if not self._readers:
                self.client.close()
                self.server.close()
