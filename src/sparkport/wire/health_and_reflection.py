"""What tools ask of any gRPC server: is it well (no token needed), and what does it speak (a token needed).

A health check waits for nobody: it has threads of its own, and when clients hold all of them with calls that they do
not go on with, the oldest of those calls makes way for the newest.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from sparkport.errors import ResourceExhausted
from sparkport.protocol import flight
from sparkport.wire.calls import open_call
from sparkport.wire.gate import FIRST_MESSAGE, MESSAGE, READER, Call, Gate
from sparkport.wire.status import abort

__all__ = ["Health", "Reflection"]

_THREADS: Final = 8
_WATCHERS: Final = 64


class Health(grpc.GenericRpcHandler):
    """The standard health service."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="sparkport-health")
        self._servicer = health.HealthServicer(experimental_non_blocking=True, experimental_thread_pool=self.pool)
        self._lock = threading.Lock()
        self._waiting: dict[Call, None] = {}
        self._watchers = 0
        messages: dict[str, Any] = {
            "request_deserializer": health_pb2.HealthCheckRequest.FromString,
            "response_serializer": health_pb2.HealthCheckResponse.SerializeToString,
        }

        def check(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            return self._servicer.Check(self._request(requests, context), context)

        def watch(requests: Iterator[Any], context: grpc.ServicerContext, send: Any) -> None:
            request = self._request(requests, context)
            self._enter(context)
            self._servicer.Watch(request, context, send)

        check.experimental_thread_pool = self.pool  # type: ignore[attr-defined]
        watch.experimental_thread_pool = self.pool  # type: ignore[attr-defined]
        watch.experimental_non_blocking = True  # type: ignore[attr-defined]
        self._methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            f"/{health.SERVICE_NAME}/Check": grpc.stream_unary_rpc_method_handler(check, **messages),
            f"/{health.SERVICE_NAME}/Watch": grpc.stream_stream_rpc_method_handler(watch, **messages),
        }

    def set(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", flight.SERVICE_NAME):
            self._servicer.set(name, status)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._methods.get(details.method)

    def _request(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        with self._gate.watched(context.cancel) as call:
            with self._lock:
                self._waiting[call] = None
                # One thread is always free for the next call.
                oldest = next(iter(self._waiting)) if len(self._waiting) >= _THREADS else None
                if oldest is not None:
                    del self._waiting[oldest]
            if oldest is not None:
                oldest.cancel()
            call.wait_for(FIRST_MESSAGE)
            try:
                return next(requests)
            except StopIteration:
                return health_pb2.HealthCheckRequest()
            finally:
                with self._lock:
                    self._waiting.pop(call, None)

    def _enter(self, context: grpc.ServicerContext) -> None:
        with self._lock:
            if self._watchers >= _WATCHERS:
                abort(context, ResourceExhausted(f"{_WATCHERS} clients watch already"))
            self._watchers += 1
        if not context.add_callback(self._leave):
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._watchers -= 1


class Reflection(grpc.GenericRpcHandler):
    """The standard reflection service, for those whom the gate lets in."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        names = (flight.SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._servicer = reflection.ReflectionServicer(names)
        self._method = grpc.stream_stream_rpc_method_handler(
            self._call,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._method if details.method == f"/{reflection.SERVICE_NAME}/ServerReflectionInfo" else None

    def _call(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            with open_call(context, self._gate) as (_, call):
                for answer in self._servicer.ServerReflectionInfo(_read(requests, call), context):
                    call.wait_for(READER)
                    yield answer
                    call.go_on()
        except GeneratorExit:
            raise
        except BaseException as exc:
            abort(context, exc)


def _read(requests: Iterator[Any], call: Call) -> Iterator[Any]:
    what = FIRST_MESSAGE
    while True:
        call.wait_for(what)
        try:
            request = next(requests)
        except StopIteration:
            return
        finally:
            call.go_on()
        what = MESSAGE
        yield request
