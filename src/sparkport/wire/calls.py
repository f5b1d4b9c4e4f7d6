"""From a gRPC call to a ``CallContext``: headers, deadline, cancellation, and who asks, before a body is read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import grpc

from sparkport.auth.secret import Secret
from sparkport.catalog.call_record import CallRecord
from sparkport.catalog.context import CallContext, Cancellation, entered
from sparkport.errors import InvalidArgument, Unauthenticated
from sparkport.wire.gate import FIRST_MESSAGE, MESSAGE, Call, Gate
from sparkport.wire.tls import peer_of

__all__ = ["Requests", "open_call"]

_TRANSACTION_HEADERS = ("x-transaction-id", "airport-transaction-id")
_STATEMENT_HEADERS = ("x-statement-id", "airport-trace-id")
_SECRET_HEADERS = frozenset({"authorization", "cookie"})


@contextmanager
def open_call(
    context: grpc.ServicerContext, gate: Gate, record: CallRecord | None = None
) -> Iterator[tuple[CallContext, Call]]:
    """A call from its first moment to its last. Unauthenticated is raised first of all, before a body is read."""
    ctx = _read_call(context, gate, record or CallRecord())
    with gate.admitted(ctx.identity, context.cancel) as call:
        ctx.account = call
        if not context.add_callback(lambda: _cancel(ctx.cancellation)):
            ctx.cancellation.set()
        try:
            with entered(ctx):
                yield ctx, call
        finally:
            ctx.cancellation.set()


class Requests:
    """A call's messages. gRPC reads each when it is asked for, so that nothing comes in before the gate has opened."""

    def __init__(self, messages: Iterator[bytes], call: Call, record: CallRecord) -> None:
        self._messages = messages
        self._record = record
        self._call = self.account = call
        self._next = FIRST_MESSAGE

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        call = self._call
        call.release()
        call.wait_for(self._next)
        try:
            message = next(self._messages)
        finally:
            call.go_on()
        self._next = MESSAGE
        self._record.bytes_in += len(message)
        call.hold(len(message))
        return message

    def only(self) -> bytes:
        """The one message of a call that has one."""
        with self._call.reading():
            message = next(self, None)
            if message is None:
                raise InvalidArgument("the call came without its message")
            self._call.hold(2 * len(message))  # its parts are copies, and so are theirs
        return message


def _cancel(cancellation: Cancellation) -> None:
    """gRPC reports the end of every call, whatever ended it, on the one thread that serves all connections: what is
    to be done about a caller that has gone, however long it takes, is done on another."""
    if not cancellation.is_set:
        threading.Thread(target=cancellation.set, name="sparkport-cancel", daemon=True).start()


def _read_call(context: grpc.ServicerContext, gate: Gate, record: CallRecord) -> CallContext:
    headers: dict[str, str] = {}
    token: Secret | None = None
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            if token is not None:  # whoever stands before the server may have looked at the other one
                raise Unauthenticated("there are two authorization headers")
            token = _bearer(value)
        elif isinstance(value, str) and key not in _SECRET_HEADERS:
            headers[key] = value
    record.trace_id = headers.get(_STATEMENT_HEADERS[1]) or None
    record.statement_id = headers.get(_STATEMENT_HEADERS[0]) or record.trace_id
    identity = gate.authenticate(token, peer_of(context))
    record.user = identity.subject
    record.catalog = headers.get("airport-catalog", "")
    record.transaction_id = _one_of(headers, _TRANSACTION_HEADERS)
    remaining = context.time_remaining()
    return CallContext(
        identity=identity,
        catalog=record.catalog,
        transaction_id=record.transaction_id,
        statement_id=record.statement_id,
        session_id=headers.get("airport-client-session-id"),
        deadline=None if remaining is None or remaining > 1e9 else time.monotonic() + remaining,
        headers=headers,
        record=record,
    )


def _bearer(value: str | bytes) -> Secret | None:
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    scheme, _, token = text.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("the authorization header must be 'Bearer TOKEN'")
    return Secret(token.strip())


def _one_of(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    values = {headers[name] for name in names if headers.get(name)}
    if len(values) > 1:
        raise InvalidArgument(f"the headers {' and '.join(names)} differ")
    return values.pop() if values else None
