"""The gRPC server: ports, threads, limits, health and reflection, and an orderly end."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from sparkport.errors import Unavailable
from sparkport.protocol import flight
from sparkport.wire.service import FlightService

__all__ = ["GrpcServer", "Limits"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what clients can make the server hold. ``max_batch_bytes`` is what larger batches are sliced to."""

    threads: int = 256
    max_concurrent_calls: int = 256
    max_message_bytes: int = 256 * 1024 * 1024
    max_batch_bytes: int = 8 * 1024 * 1024
    keepalive_seconds: float = 30.0
    keepalive_timeout_seconds: float = 20.0


class GrpcServer:
    """Listens from ``start`` to ``stop``."""

    def __init__(
        self,
        service: FlightService,
        *,
        host: str,
        port: int,
        limits: Limits,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="sparkport-call")
        self._server = grpc.server(
            self._pool,
            handlers=[service],
            maximum_concurrent_rpcs=limits.max_concurrent_calls,
            options=_options(limits),
        )
        self._health = health.HealthServicer(experimental_non_blocking=True, experimental_thread_pool=self._pool)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (flight.SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
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
        self._server.start()
        self._set_health(health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace: float | None) -> None:
        """Take no more calls, let running ones end within ``grace`` seconds, then cancel what is left."""
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._server.stop(grace).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._stopped.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until ``stop`` has finished; False when ``timeout`` came first."""
        return self._stopped.wait(timeout)

    def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", flight.SERVICE_NAME):
            self._health.set(name, status)


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Two servers on one port would share its clients without a word.
        ("grpc.so_reuseport", 0),
        # A client that has gone without closing is found by these pings, and its calls end.
        ("grpc.keepalive_time_ms", int(limits.keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.keepalive_timeout_seconds * 1000)),
        # A keepalive ping keeps to the timeout of pings, which is a minute unless it is told, and not to its own.
        ("grpc.http2.ping_timeout_ms", int(limits.keepalive_timeout_seconds * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
