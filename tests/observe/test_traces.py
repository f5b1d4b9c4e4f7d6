"""Traces, received as a collector receives them: by OTLP over gRPC and over HTTP."""

from __future__ import annotations

import http.server
import logging
import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from sparkport.catalog.call_record import CallRecord
from sparkport.client import connect
from sparkport.memory import MemoryCatalog
from sparkport.observe.traces import open_traces
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"n": [1, 2, 3]})
Received = queue.Queue[Any]


@contextmanager
def grpc_collector(received: Received) -> Iterator[str]:
    class Servicer(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            received.put(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Servicer(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@contextmanager
def http_collector(received: Received) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            received.put(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT", "PROTOCOL", "TRACES_PROTOCOL"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)


def attributes(span: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


@pytest.mark.parametrize(("protocol", "collector"), [("grpc", grpc_collector), ("http/protobuf", http_collector)])
def test_a_statement_is_a_span_with_its_steps_below(
    protocol: str, collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: Received = queue.Queue()
    with collector(received) as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_INSECURE", "true")
        with serving(MemoryCatalog("lake")) as server, connect(server.location) as client:
            client.create_table("public.t", ROWS.schema)
            client.insert("public.t", pa.table({"n": [4711]}))
        spans, services = [], set()
        while not received.empty():
            for resource in received.get().resource_spans:
                services |= {
                    item.value.string_value for item in resource.resource.attributes if item.key == "service.name"
                }
                spans += [span for scope in resource.scope_spans for span in scope.spans]
    assert services == {"sparkport"}
    insert = next(span for span in spans if span.name.endswith(" insert"))
    told = attributes(insert)
    assert told["db.collection.name"] == "lake.public.t"
    assert told["enduser.id"] == "anonymous"
    assert told["rpc.response.status_code"] == "OK"
    assert len(told["airport.trace_id"]) == len(told["sparkport.statement_id"]) == 36
    assert insert.parent_span_id == b""
    steps = {span.name: span for span in spans if span.parent_span_id == insert.span_id}
    assert {"stage", "commit"} <= set(steps)
    for step in steps.values():
        assert step.trace_id == insert.trace_id
        assert insert.start_time_unix_nano <= step.start_time_unix_nano
        assert step.end_time_unix_nano <= insert.end_time_unix_nano + 1_000_000
    assert "4711" not in str([attributes(span) for span in spans])
    assert len({span.trace_id for span in spans}) == len([span for span in spans if not span.parent_span_id])


def test_a_collector_that_is_not_there_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with serving(MemoryCatalog("lake")) as server, connect(server.location) as client:
        client.create_table("public.t", ROWS.schema)
        for _ in range(50):
            client.insert("public.t", ROWS)
        assert all(call.seconds < 30 for call in server.calls.slow())
        assert client.scan("public.t").read_all().num_rows == 150


def test_a_collector_that_says_nothing_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
        traces = open_traces()
        assert traces is not None
        traces.ended(ended_call())
        ending = threading.Thread(target=traces.stop)
        ending.start()
        ending.join(20)
        assert not ending.is_alive()
        traces.stop()


def ended_call() -> CallRecord:
    record = CallRecord("1", "DoGet", "ipv4:127.0.0.1:1")
    record.code, record.seconds = "OK", 0.1
    return record


def test_without_the_variables_there_are_no_traces() -> None:
    assert open_traces({}) is None
    assert open_traces({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}) is None
    assert open_traces({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}) is None


def test_a_protocol_that_is_not_known_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}
    assert open_traces(asked) is None
    assert "carrier-pigeon" in caplog.text


def test_traces_that_are_asked_for_without_the_extra_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    assert open_traces({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}) is None
    assert "sparkport[traces]" in caplog.text
