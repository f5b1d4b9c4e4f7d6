"""The gRPC server: ports, threads, limits, health and reflection, and an orderly end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc
from grpc_health.v1 import health_pb2

from sparkport.errors import Unavailable
from sparkport.wire.gate import AUTHENTICATING_CALLS, RESERVED_CALLS, Gate
from sparkport.wire.health_and_reflection import Health, Reflection
from sparkport.wire.limits import Limits
from sparkport.wire.service import FlightService

__all__ = ["GrpcServer"]

_QUEUED_CALLS: Final = 1_024
"""Calls that gRPC has handed over and no thread has looked at."""
_HANDSHAKE_SECONDS: Final = 20


class GrpcServer:
    """Listens from ``start`` to ``stop``."""

    def __init__(
        self,
        service: FlightService,
        gate: Gate,
        *,
        host: str,
        port: int,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        limits = gate.limits
        # The gate lets no more in than have a thread, and those who are before it have a few more.
        threads = limits.max_concurrent_calls + RESERVED_CALLS + AUTHENTICATING_CALLS
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sparkport-call")
        self._gate = gate
        self._health = Health(gate)
        handlers: list[grpc.GenericRpcHandler] = [service, self._health]
        if limits.reflection:
            handlers.append(Reflection(gate))
        self._server = grpc.server(
            self._pool,
            handlers=handlers,
            maximum_concurrent_rpcs=threads + _QUEUED_CALLS,
            options=_options(limits),
        )
        self.host = host
        self.port = self._bind(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", credentials)
        self._stopped = threading.Event()

    def _bind(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        try:
            if credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, credentials)
        except RuntimeError as exc:
            raise Unavailable(f"cannot listen on {address}: is another server running there?") from exc

    def start(self) -> None:
        self._gate.start()
        self._server.start()
        self._health.set(health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace: float | None) -> None:
        """Take no more calls, let running ones end within ``grace`` seconds, then cancel what is left."""
        self._health.set(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._server.stop(grace).wait()
        self._gate.stop()
        for pool in (self._pool, self._health.pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self._stopped.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until ``stop`` has finished; False when ``timeout`` came first."""
        return self._stopped.wait(timeout)


_LOOKAHEAD_BYTES = 1 << 20


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # How much comes in before it is asked for: by itself gRPC lets a quick client send megabytes in every call.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_SECONDS * 1000),
        # Two servers on one port would share its clients without a word.
        ("grpc.so_reuseport", 0),
        # A client that has gone without closing is found by these pings, and its calls end.
        ("grpc.keepalive_time_ms", int(limits.keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.keepalive_timeout_seconds * 1000)),
        # A keepalive ping keeps to the timeout of pings, which is a minute unless it is set, and not to its own.
        ("grpc.http2.ping_timeout_ms", int(limits.keepalive_timeout_seconds * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
