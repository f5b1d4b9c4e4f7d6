"""The Flight RPCs on gRPC: bytes to values, a handler's call, values to bytes. No decision is taken here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

import grpc

from sparkport.auth.model import Authenticator
from sparkport.catalog.context import CallContext
from sparkport.errors import Unsupported
from sparkport.handlers.service import Handlers
from sparkport.protocol import flight
from sparkport.protocol.streams import BatchMessage, MetadataMessage, Outgoing, SchemaMessage
from sparkport.wire.calls import open_call
from sparkport.wire.frames import StreamWriter, metadata_message
from sparkport.wire.incoming import StreamReader
from sparkport.wire.status import abort

__all__ = ["FlightService"]

logger = logging.getLogger(__name__)

R = TypeVar("R")


class FlightService(grpc.GenericRpcHandler):
    """One instance serves all calls; every call has a thread of its own until it ends."""

    def __init__(
        self,
        handlers: Handlers,
        authenticator: Authenticator | None = None,
        *,
        max_batch_bytes: int,
        max_message_bytes: int,
    ) -> None:
        self._handlers = handlers
        self._authenticator = authenticator
        self._max_batch_bytes = max_batch_bytes
        self._max_message_bytes = max_message_bytes
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        exchange = grpc.stream_stream_rpc_method_handler
        self._methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Handshake": exchange(self._streaming(self._handshake)),
            "ListFlights": stream(self._streaming(self._list_flights)),
            "GetFlightInfo": unary(self._single(self._get_flight_info)),
            "PollFlightInfo": unary(self._single(self._poll_flight_info)),
            "GetSchema": unary(self._single(self._get_schema)),
            "DoGet": stream(self._streaming(self._do_get)),
            "DoPut": exchange(self._streaming(self._do_put)),
            "DoExchange": exchange(self._streaming(self._do_exchange)),
            "DoAction": stream(self._streaming(self._do_action)),
            "ListActions": stream(self._streaming(self._list_actions)),
        }

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        service, _, method = details.method.lstrip("/").partition("/")
        return self._methods.get(method) if service == flight.SERVICE_NAME else None

    # The frame around every method

    def _single(self, method: Callable[[CallContext, bytes], bytes]) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def call(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                with open_call(context, self._authenticator) as ctx:
                    return method(ctx, request)
            except BaseException as exc:  # gRPC leaves a call without an answer that ends with a SystemExit
                abort(context, exc)

        return call

    def _streaming(
        self, method: Callable[[CallContext, R], Iterator[bytes]]
    ) -> Callable[[R, grpc.ServicerContext], Iterator[bytes]]:
        def call(request: R, context: grpc.ServicerContext) -> Iterator[bytes]:
            try:
                with open_call(context, self._authenticator) as ctx, _closing(method(ctx, request)) as out:
                    yield from out
            except GeneratorExit:  # the caller has gone
                raise
            except BaseException as exc:
                abort(context, exc)

        return call

    # The methods

    def _handshake(self, ctx: CallContext, messages: Iterator[bytes]) -> Iterator[bytes]:
        for message in messages:
            yield flight.Handshake.decode(message).encode()

    def _list_flights(self, ctx: CallContext, request: bytes) -> Iterator[bytes]:
        flight.Criteria.decode(request)
        for info in self._handlers.list_flights(ctx):
            yield info.encode()

    def _get_flight_info(self, ctx: CallContext, request: bytes) -> bytes:
        return self._handlers.get_flight_info(ctx, flight.FlightDescriptor.decode(request)).encode()

    def _poll_flight_info(self, ctx: CallContext, request: bytes) -> bytes:
        raise Unsupported("PollFlightInfo is not implemented: use GetFlightInfo")

    def _get_schema(self, ctx: CallContext, request: bytes) -> bytes:
        return flight.SchemaResult(self._handlers.get_schema(ctx, flight.FlightDescriptor.decode(request))).encode()

    def _do_get(self, ctx: CallContext, request: bytes) -> Iterator[bytes]:
        return self._framed(self._handlers.do_get(ctx, flight.Ticket.decode(request).ticket), self._max_batch_bytes)

    def _do_put(self, ctx: CallContext, messages: Iterator[bytes]) -> Iterator[bytes]:
        for metadata in self._handlers.do_put(ctx, StreamReader(_whole(messages))):
            yield flight.PutResult(metadata).encode()

    def _do_exchange(self, ctx: CallContext, messages: Iterator[bytes]) -> Iterator[bytes]:
        # In lock-step the client reads one message for each it writes: an answer must not be sliced.
        return self._framed(self._handlers.do_exchange(ctx, StreamReader(_whole(messages))), self._max_message_bytes)

    def _do_action(self, ctx: CallContext, request: bytes) -> Iterator[bytes]:
        action = flight.Action.decode(request)
        for body in self._handlers.do_action(ctx, action.type, action.body):
            yield flight.Result(body).encode()

    def _list_actions(self, ctx: CallContext, request: bytes) -> Iterator[bytes]:
        for action in self._handlers.list_actions(ctx):
            yield action.encode()

    def _framed(self, messages: Iterator[Outgoing], slice_bytes: int) -> Iterator[bytes]:
        writer: StreamWriter | None = None
        with _closing(messages) as out:
            for message in out:
                if isinstance(message, BatchMessage) and writer is not None:
                    yield from writer.batch_messages(message.batch, message.metadata)
                elif isinstance(message, SchemaMessage):
                    writer = StreamWriter(
                        message.schema,
                        max_message_bytes=slice_bytes,
                        hard_limit_bytes=self._max_message_bytes,
                    )
                    yield writer.schema_message()
                elif isinstance(message, MetadataMessage):
                    yield metadata_message(message.metadata)


def _whole(messages: Iterator[bytes]) -> Iterator[bytes]:
    """The messages of an upload, up to an end that the client has meant.

    gRPC tells of a client that has gone in two steps: the stream ends, then the call is cancelled. Taken at its word,
    the first would commit half a statement. Asking once more is answered after both, with an error if it was one.
    """
    yield from messages
    next(messages, None)


def _closing(iterator: Iterator[R]) -> closing[Iterator[R]]:  # type: ignore[type-var]
    """Close a generator at once when its consumer goes, not when it is collected."""
    return closing(iterator)  # type: ignore[type-var]
