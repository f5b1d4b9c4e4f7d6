"""``sparkport serve`` as those see it who watch it: its HTTP port, its log and its audit."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.command import failure, run, serve
from tests.support.ports import free_port

from sparkport.client import connect

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"n": [1, 2, 3]})


def test_the_port_the_log_and_the_audit_are_there_from_the_start_to_the_end(tmp_path: Path) -> None:
    port, audit = free_port(), tmp_path / "audit.jsonl"
    watched = ["--http-port", str(port), "--audit", str(audit), "--log-format", "json", "--slow-seconds", "1000"]
    with serve(*watched) as server:
        with connect(server.location) as client:
            client.create_table("public.t", ROWS.schema)
            client.insert("public.t", ROWS)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
            assert json.loads(answer.read())["ready"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert b'sparkport_changed_rows_total{operation="insert"} 3.0' in answer.read()
    lines = [json.loads(line) for line in server.rest_of_log()]
    (insert,) = [line["call"] for line in lines if line.get("call", {}).get("action") == "insert"]
    assert (insert["table"], insert["changed"], insert["code"]) == ("lake.public.t", 3, "OK")
    events = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [event["event"] for event in events if event["operation"] == "insert"] == ["begin", "end"]


def test_a_port_that_is_taken_is_an_error_where_it_was_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = failure(run("serve", "--port", "0", "--http-port", str(port), "--log-level", "error"), 1)
    assert f"cannot listen on 127.0.0.1:{port} for HTTP" in message


def test_beyond_loopback_the_port_needs_what_flight_needs() -> None:
    message = failure(run("serve", "--port", "0", "--http-host", "0.0.0.0", "--http-port", "1"), 2)
    assert "refusing to listen on '0.0.0.0' without TLS and authentication" in message


def test_an_audit_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    message = failure(run("serve", "--port", "0", "--audit", str(tmp_path)), 2)
    assert "cannot be written: Is a directory" in message


def test_a_server_without_the_port_says_nothing_of_it() -> None:
    with serve("--http-port", "0") as server:
        pass
    assert "http" not in "".join([server.ready, server.hint, *server.rest_of_log()])
