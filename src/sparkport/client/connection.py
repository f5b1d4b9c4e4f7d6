"""The gRPC channel and what goes with every call on it: headers, deadline, errors in our own words.

All that the client does comes down to the few methods here. A connection MAY be used from several threads at once;
``with_headers`` makes another one on the same channel, for calls that belong together.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import grpc.experimental

from sparkport.auth.secret import Secret
from sparkport.client.backoff import pause
from sparkport.client.errors import translated
from sparkport.client.locations import Location
from sparkport.errors import FailedPrecondition, InternalError, InvalidArgument, Unavailable
from sparkport.protocol import flight

__all__ = ["Connection", "Outbox", "open_channel"]

logger = logging.getLogger(__name__)

_USER_AGENT = "sparkport-python"
_OUTBOX_MESSAGES = 2  # of a few megabytes at most, and one more is with gRPC


def open_channel(location: Location, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """Connects with the first call, not here."""
    options: list[tuple[str, int]] = [
        # Answers are read by the thread that waits for them; gRPC would start one of its own for each call.
        (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Clients of one process would otherwise share a connection, and one's failed attempts delay the other's.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if location.local:
        options.append(("grpc.enable_http_proxy", 0))
    if credentials is None:
        return grpc.insecure_channel(location.target, options=options)
    return grpc.secure_channel(location.target, credentials, options=options)


class Outbox:
    """The sending half of an exchange: gRPC takes from it in a thread of its own, the caller puts in."""

    def __init__(self, *, room: int = _OUTBOX_MESSAGES) -> None:
        self._changed = threading.Condition()
        self._messages: deque[bytes] = deque()
        self._room = room
        self._ended = False

    def put(self, message: bytes) -> None:
        with self._changed:
            if not self._ended:
                self._messages.append(message)
                self._changed.notify_all()

    def put_when_room(self, message: bytes) -> bool:
        """Waits while there are too many. False, at once, when nobody will take the message any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._messages) < self._room)
            self.put(message)
            return not self._ended

    def close(self) -> None:
        """End of input. This or ``drop`` MUST be called in the end, or gRPC's thread waits for ever."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def drop(self) -> None:
        """The call is over: forget what was not sent. From any thread. Safe to repeat."""
        with self._changed:
            self._ended = True
            self._messages.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._ended)
            if not self._messages:
                raise StopIteration
            self._changed.notify_all()
            return self._messages.popleft()


class Connection:
    def __init__(
        self,
        location: Location,
        channel: grpc.Channel,
        *,
        token: Secret | None = None,
        catalog: str = "",
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if token is not None and not _is_header(token.reveal()):
            # gRPC would refuse it too, with a message that quotes it.
            raise InvalidArgument("the token must be plain ASCII text")
        self._location = location
        self._channel = channel
        self._token = token
        self._timeout = timeout
        self._headers = dict(headers or {"airport-client-session-id": uuid.uuid4().hex})
        self.catalog = catalog

    @property
    def location(self) -> str:
        return self._location.text

    def with_headers(self, headers: Mapping[str, str]) -> Connection:
        """The same channel; calls carry these headers too."""
        return Connection(
            self._location,
            self._channel,
            token=self._token,
            catalog=self.catalog,
            timeout=self._timeout,
            headers={**self._headers, **headers},
        )

    def close(self) -> None:
        """End the channel with all that runs on it, for every connection that shares it. Safe to repeat."""
        self._channel.close()

    def action(self, name: str, body: bytes = b"", *, repeatable: bool = False) -> list[bytes]:
        """All results. A ``repeatable`` action is tried a second time when the server could not be reached."""
        try:
            return self._action(name, body)
        except Unavailable as exc:
            if not repeatable:
                raise
            logger.debug("action '%s' is tried again: %s", name, exc.message)
        pause(3)  # a connection that was cut is found out a moment later
        return self._action(name, body)

    def single_action(self, name: str, body: bytes) -> bytes:
        """An action that only asks, and has one result."""
        results = self.action(name, body, repeatable=True)
        if len(results) != 1:
            raise InternalError(f"the server sent {len(results)} results of action '{name}', expected one")
        return results[0]

    def list_actions(self) -> list[flight.ActionType]:
        with translated(self.location):
            return [flight.ActionType.decode(message) for message in self._start("ListActions", b"")]

    def do_get(self, ticket: bytes) -> Any:
        """The running call: an iterator over messages that can be cancelled. It raises gRPC's own errors."""
        return self._start("DoGet", flight.Ticket(ticket).encode(), {"airport-trace-id": str(uuid.uuid4())})

    def do_exchange(self, outbox: Outbox, headers: Mapping[str, str]) -> Any:
        """Like ``do_get``; what is put into ``outbox`` goes to the server."""
        method: Any = self._channel.stream_stream(_path("DoExchange"))
        return self._invoke(method, outbox, {"airport-trace-id": str(uuid.uuid4()), **headers})

    def _action(self, name: str, body: bytes) -> list[bytes]:
        request = flight.Action(name, body).encode()
        with translated(self.location, what=f"answer to action '{name}'"):
            messages = self._start("DoAction", request, {"airport-action-name": name})
            return [flight.Result.decode(message).body for message in messages]

    def _start(self, method: str, request: bytes, headers: Mapping[str, str] | None = None) -> Any:
        return self._invoke(self._channel.unary_stream(_path(method)), request, headers or {})

    def _invoke(self, call: Any, request: Any, headers: Mapping[str, str]) -> Any:
        try:
            return call(request, timeout=self._timeout, metadata=self._metadata(headers))
        except ValueError as exc:  # how gRPC says that the channel is closed
            raise FailedPrecondition(f"the client of {self.location} is closed") from exc

    def _metadata(self, headers: Mapping[str, str]) -> list[tuple[str, str]]:
        everything = {
            "airport-user-agent": _USER_AGENT,
            "airport-catalog": self.catalog,
            **self._headers,
            **headers,
        }
        # Names that a header cannot hold are in the message's body too; gRPC would refuse the whole call.
        metadata = [(key, value) for key, value in everything.items() if value and _is_header(value)]
        if self._token is not None:
            metadata.append(("authorization", f"Bearer {self._token.reveal()}"))
        return metadata


def _path(method: str) -> str:
    return f"/{flight.SERVICE_NAME}/{method}"


def _is_header(value: str) -> bool:
    return value.isascii() and value.isprintable()
