"""The Flight RPCs on gRPC: bytes to values, a handler's call, values to bytes. No decision is taken here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NoReturn, TypeVar

import grpc
import pyarrow as pa

from sparkport.catalog.call_record import CallRecord
from sparkport.catalog.context import CallContext
from sparkport.errors import Cancelled, Unsupported
from sparkport.handlers.service import Handlers
from sparkport.observe.calls import Calls
from sparkport.protocol import flight
from sparkport.protocol.frames import StreamWriter, metadata_message
from sparkport.protocol.incoming import StreamReader
from sparkport.protocol.streams import BatchMessage, MetadataMessage, Outgoing, SchemaMessage
from sparkport.wire.calls import Requests, open_call
from sparkport.wire.gate import READER, Gate
from sparkport.wire.status import abort_with, translate
from sparkport.wire.turns import BULK_BYTES, Turn, Turns

__all__ = ["FlightService"]

R = TypeVar("R")


class FlightService(grpc.GenericRpcHandler):
    """One instance serves all calls; every call has a thread of its own until it ends.

    To gRPC all methods take a stream: it would read the message of any other before it hands the call over, and so
    before anybody knows who is calling.
    """

    def __init__(self, handlers: Handlers, gate: Gate, calls: Calls | None = None) -> None:
        self._handlers = handlers
        self._calls = calls or Calls()
        self._gate = gate
        self._turns = Turns()
        self._max_batch_bytes = gate.limits.max_batch_bytes
        self._max_message_bytes = gate.limits.max_message_bytes
        single, stream = self._single, self._streaming
        self._methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Handshake": stream("Handshake", self._handshake),
            "ListFlights": stream("ListFlights", self._list_flights),
            "GetFlightInfo": single("GetFlightInfo", self._get_flight_info),
            "PollFlightInfo": single("PollFlightInfo", self._poll_flight_info),
            "GetSchema": single("GetSchema", self._get_schema),
            "DoGet": stream("DoGet", self._do_get),
            "DoPut": stream("DoPut", self._do_put),
            "DoExchange": stream("DoExchange", self._do_exchange),
            "DoAction": stream("DoAction", self._do_action),
            "ListActions": stream("ListActions", self._list_actions),
        }

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        service, _, method = details.method.lstrip("/").partition("/")
        return self._methods.get(method) if service == flight.SERVICE_NAME else None

    # The frame around every method

    def _single(self, rpc: str, method: Callable[[CallContext, bytes], bytes]) -> grpc.RpcMethodHandler[bytes, bytes]:
        def call(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            record = self._calls.begin(rpc, context.peer(), context.cancel)
            try:
                with open_call(context, self._gate, record) as (ctx, entry):
                    answer = method(ctx, Requests(messages, entry, record).only())
                record.bytes_out = len(answer)
            except BaseException as exc:  # gRPC leaves a call without an answer that ends with a SystemExit
                self._fail(context, record, exc)
            self._calls.end(record)
            return answer

        return grpc.stream_unary_rpc_method_handler(call)

    def _streaming(
        self, rpc: str, method: Callable[[CallContext, Requests], Iterator[bytes]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        largest = self._max_batch_bytes

        def call(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            record = self._calls.begin(rpc, context.peer(), context.cancel)
            turn = Turn(self._turns)
            try:
                with (
                    open_call(context, self._gate, record) as (ctx, entry),
                    _closing(method(ctx, Requests(messages, entry, record))) as out,
                ):
                    while (message := next(out, None)) is not None:
                        size = len(message)
                        record.bytes_out += size
                        # gRPC has a copy of its own until the client has read it.
                        if size > largest:
                            entry.send(2 * size)
                        entry.wait_for(READER)
                        yield message
                        entry.go_on()
                        entry.release()
                        turn.end()
                        if rpc == "DoGet" and record.bytes_out > BULK_BYTES:
                            turn.begin()
            except GeneratorExit:  # the caller has gone
                self._calls.end(record, Cancelled("the call was cancelled"))
                raise
            except BaseException as exc:
                self._fail(context, record, exc)
            finally:
                turn.end()
            self._calls.end(record)

        return grpc.stream_stream_rpc_method_handler(call)

    def _fail(self, context: grpc.ServicerContext, record: CallRecord, exc: BaseException) -> NoReturn:
        error = translate(exc)
        self._calls.end(record, error)
        abort_with(context, error)

    # The methods

    def _handshake(self, ctx: CallContext, messages: Requests) -> Iterator[bytes]:
        for message in messages:
            yield flight.Handshake.decode(message).encode()

    def _list_flights(self, ctx: CallContext, messages: Requests) -> Iterator[bytes]:
        flight.Criteria.decode(messages.only())
        for info in self._handlers.list_flights(ctx):
            yield info.encode()

    def _get_flight_info(self, ctx: CallContext, request: bytes) -> bytes:
        return self._handlers.get_flight_info(ctx, flight.FlightDescriptor.decode(request)).encode()

    def _poll_flight_info(self, ctx: CallContext, request: bytes) -> bytes:
        raise Unsupported("PollFlightInfo is not implemented: use GetFlightInfo")

    def _get_schema(self, ctx: CallContext, request: bytes) -> bytes:
        return flight.SchemaResult(self._handlers.get_schema(ctx, flight.FlightDescriptor.decode(request))).encode()

    def _do_get(self, ctx: CallContext, messages: Requests) -> Iterator[bytes]:
        ticket = flight.Ticket.decode(messages.only()).ticket
        return self._framed(ctx.record, self._handlers.do_get(ctx, ticket), self._gate.slice_bytes)

    def _do_put(self, ctx: CallContext, messages: Requests) -> Iterator[bytes]:
        for metadata in self._handlers.do_put(ctx, self._reader(ctx.record, messages)):
            yield flight.PutResult(metadata).encode()

    def _do_exchange(self, ctx: CallContext, messages: Requests) -> Iterator[bytes]:
        # In lock-step the client reads one message for each it writes: an answer must not be sliced.
        answers = self._handlers.do_exchange(ctx, self._reader(ctx.record, messages))
        return self._framed(ctx.record, answers, self._max_message_bytes)

    def _do_action(self, ctx: CallContext, messages: Requests) -> Iterator[bytes]:
        action = flight.Action.decode(messages.only())
        for body in self._handlers.do_action(ctx, action.type, action.body):
            yield flight.Result(body).encode()

    def _list_actions(self, ctx: CallContext, messages: Requests) -> Iterator[bytes]:
        messages.only()
        for action in self._handlers.list_actions(ctx):
            yield action.encode()

    def _reader(self, record: CallRecord, messages: Requests) -> StreamReader:
        return _CountedRows(_whole(messages), record, max_batch_bytes=self._max_message_bytes, account=messages.account)

    def _framed(self, record: CallRecord, messages: Iterator[Outgoing], slice_bytes: int) -> Iterator[bytes]:
        writer: StreamWriter | None = None
        with _closing(messages) as out:
            for message in out:
                if isinstance(message, BatchMessage) and writer is not None:
                    record.rows_out += message.batch.num_rows
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


class _CountedRows(StreamReader):
    def __init__(self, messages: Iterator[bytes], record: CallRecord, **limits: Any) -> None:
        super().__init__(messages, **limits)
        self._record = record

    def __next__(self) -> pa.RecordBatch:
        batch = super().__next__()
        self._record.rows_in += batch.num_rows
        return batch


def _whole(messages: Iterator[bytes]) -> Iterator[bytes]:
    """The messages of an upload, up to an end that the client has meant.

    gRPC reports a client that has gone in two steps: the stream ends, then the call is cancelled. Taken at its word,
    the first would commit half a statement. A second question is answered after both steps, with an error if there was
    one.
    """
    yield from messages
    next(messages, None)


def _closing(iterator: Iterator[R]) -> closing[Iterator[R]]:  # type: ignore[type-var]
    """Close a generator at once when its consumer goes, not when it is collected."""
    return closing(iterator)  # type: ignore[type-var]
