"""HTTP/2 by hand: a client that stops wherever it likes, which no library lets one do."""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType

from sparkport.protocol.flight import SERVICE_NAME

__all__ = ["HandMade"]

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_HEADERS = 4
_FIRST_WINDOW = 65_535


class HandMade:
    """One connection. Streams are numbered 1, 3, 5, …"""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0))
        self._inbox = b""
        self._window = _FIRST_WINDOW
        self._windows: dict[int, int] = {}
        self._first_window = _FIRST_WINDOW
        self._next = 1
        self.ended: set[int] = set()
        self.gone = False

    def __enter__(self) -> HandMade:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()

    def headers(self, method: str, *more: tuple[str, str], end: bool = True) -> int:
        """Begin a call; without ``end`` its headers never end."""
        stream, self._next = self._next, self._next + 2
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method if "/" in method else f"/{SERVICE_NAME}/{method}"),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *more,
        ]
        self.socket.sendall(_frame(_HEADERS, _END_HEADERS if end else 0, stream, b"".join(map(_field, fields))))
        self._windows[stream] = self._first_window
        return stream

    def announce(self, stream: int, size: int) -> None:
        """The prefix of a message that is so long."""
        self._windows[stream] -= 5
        self._window -= 5
        self.socket.sendall(_frame(_DATA, 0, stream, struct.pack(">BI", 0, size)))

    def send(self, stream: int, size: int) -> int:
        """As much of a message as the server takes now; how much that was."""
        self.listen()
        size = min(size, self._window, self._windows.get(stream, 0), 16_384)
        if size <= 0 or stream in self.ended or self.gone:
            return 0
        self._window -= size
        self._windows[stream] -= size
        try:
            self.socket.sendall(_frame(_DATA, 0, stream, b"x" * size))
        except OSError:
            self.gone = True
        return size

    def listen(self, seconds: float = 0.0) -> None:
        """Take in what the server has said."""
        until = time.monotonic() + seconds
        while not self.gone:
            self.socket.settimeout(max(0.0, until - time.monotonic()))
            try:
                data = self.socket.recv(1 << 20)
            except (TimeoutError, BlockingIOError):
                break
            except OSError:
                data = b""
            self.gone = not data
            self._inbox += data
            self._read()
        self.socket.settimeout(10)

    def _read(self) -> None:
        while len(self._inbox) >= 9:
            length = int.from_bytes(self._inbox[:3], "big")
            kind, flags = self._inbox[3], self._inbox[4]
            stream = int.from_bytes(self._inbox[5:9], "big") & 0x7FFFFFFF
            if len(self._inbox) < 9 + length:
                return
            body, self._inbox = self._inbox[9 : 9 + length], self._inbox[9 + length :]
            if kind == _WINDOW_UPDATE:
                more = int.from_bytes(body, "big")
                if stream:
                    self._windows[stream] = self._windows.get(stream, 0) + more
                else:
                    self._window += more
            elif kind == _SETTINGS and not flags & 1:
                self._settings(body)
            elif kind == _PING and not flags & 1:
                self.socket.sendall(_frame(_PING, 1, 0, body))
            elif kind == _RESET or (kind == _HEADERS and flags & 1):
                self.ended.add(stream)

    def _settings(self, body: bytes) -> None:
        for number, value in struct.iter_unpack(">HI", body):
            if number == 4:
                for stream in self._windows:
                    self._windows[stream] += value - self._first_window
                self._first_window = value
        self.socket.sendall(_frame(_SETTINGS, 1, 0))


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def _field(pair: tuple[str, str]) -> bytes:
    """A header without compression, which is in no table."""
    return b"\x00" + b"".join(_length(len(part)) + part.encode() for part in pair)


def _length(number: int) -> bytes:
    if number < 127:
        return bytes([number])
    rest = number - 127
    encoded = b"\x7f"
    while rest >= 128:
        encoded += bytes([rest % 128 + 128])
        rest //= 128
    return encoded + bytes([rest])
