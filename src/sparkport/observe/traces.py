"""Traces by OpenTelemetry: a span for each call, and one below it for each of its steps.

They are sent where the usual variables say (``OTEL_EXPORTER_OTLP_ENDPOINT`` and its kin), by a thread of its own that
drops what it cannot send: no call waits for a collector. Without these variables, or without the extra ``traces``,
there are none. The provider is the server's own: one that a user has set up in the same process is left alone.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sparkport.catalog.call_record import CallRecord
from sparkport.observe.call_log import fields

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["Traces", "open_traces"]

logger = logging.getLogger(__name__)

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_STOP_SECONDS: Final = 3.0
_NAMES: Final = {
    "id": "sparkport.call_id",
    "rpc": "rpc.method",
    "action": "sparkport.action",
    "code": "rpc.response.status_code",
    "user": "enduser.id",
    "peer": "network.peer.address",
    "operation": "db.operation.name",
    "table": "db.collection.name",
    "rows_in": "sparkport.rows_in",
    "rows_out": "sparkport.rows_out",
    "changed": "sparkport.changed_rows",
    "bytes_in": "sparkport.bytes_in",
    "bytes_out": "sparkport.bytes_out",
    "statement": "sparkport.statement_id",
    "transaction": "sparkport.transaction_id",
    "trace": "airport.trace_id",
    "error_id": "sparkport.error_id",
}


def open_traces(environ: Mapping[str, str] = os.environ) -> Traces | None:
    """None where no traces are asked for. A process that asks and lacks the extra is told so."""
    asked = any(environ.get(name) for name in _ENDPOINTS) or environ.get("OTEL_TRACES_EXPORTER") == "otlp"
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if not asked or off:
        return None
    try:
        return Traces(_provider(environ))
    except ImportError:
        logger.warning("traces are asked for, and the extra is not there: pip install 'sparkport[traces]'")
    except Exception as exc:  # what a variable holds that OpenTelemetry does not understand must not stop the server
        logger.warning("traces cannot be sent: %s", exc)
    return None


def _provider(environ: Mapping[str, str]) -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = "OTEL_SERVICE_NAME" in environ or "service.name" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": "sparkport"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter(environ)))
    return provider


def _exporter(environ: Mapping[str, str]) -> Any:
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), "grpc")
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter()
    if protocol != "grpc":
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL is '{protocol}': grpc and http/protobuf are known")
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

    return GrpcExporter()


class Traces:
    """Told of every call that ends."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace

        self._provider = provider
        self._tracer = provider.get_tracer("sparkport")
        self._trace = trace
        self._ending: threading.Thread | None = None

    def ended(self, record: CallRecord) -> None:
        trace = self._trace
        began = int(record.started * 1e9)
        name = f"{record.rpc} {record.action}" if record.action else record.rpc
        attributes: dict[str, Any] = {_NAMES[key]: value for key, value in fields(record).items() if key in _NAMES}
        attributes["rpc.system"] = "grpc"
        # No context of whoever runs the server: a call begins a trace.
        span = self._tracer.start_span(
            name,
            context=trace.set_span_in_context(trace.INVALID_SPAN),
            kind=trace.SpanKind.SERVER,
            attributes=attributes,
            start_time=began,
        )
        if record.code != "OK":
            span.set_status(trace.StatusCode.ERROR, record.code)
        if span.is_recording():
            below = trace.set_span_in_context(span)
            for part in record.steps:
                start = began + int(part.started * 1e9)
                step = self._tracer.start_span(part.name, context=below, start_time=start)
                if part.times > 1:
                    step.set_attribute("sparkport.times", part.times)
                step.end(start + int(part.seconds * 1e9))
        span.end(began + int(record.elapsed() * 1e9))

    def stop(self) -> None:
        """Sends what is left, for a few seconds at most, whatever the collector does. Safe to repeat."""
        if self._ending is None:
            self._ending = threading.Thread(target=self._provider.shutdown, name="sparkport-traces", daemon=True)
            self._ending.start()
            self._ending.join(_STOP_SECONDS)
