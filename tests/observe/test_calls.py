"""The register of calls: what runs, what was slow, with their steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.robustness.rig import catalog

from sparkport.app import ObserveSettings
from sparkport.catalog import CallContext, CatalogBuilder, ScanRequest
from sparkport.catalog.call_record import CallRecord
from sparkport.catalog.context import entered
from sparkport.catalog.steps import step
from sparkport.client import connect
from sparkport.errors import Conflict, SparkportError
from sparkport.memory import MemoryCatalog
from sparkport.observe.calls import Calls
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"n": [1, 2, 3]})
ALL_SLOW = ObserveSettings(slow_seconds=1e-9)


def wait_for(condition: Callable[[], bool]) -> None:
    """A client learns of the end of its call before the server has noted it."""
    ticking, until = threading.Event(), time.monotonic() + 30
    while not condition() and time.monotonic() < until:
        ticking.wait(0.01)


def test_a_call_that_runs_is_listed_and_can_be_ended() -> None:
    begun, ended = threading.Event(), threading.Event()

    def scan(ctx: CallContext, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        forget = ctx.cancellation.add_callback(ended.set)
        begun.set()
        with step("thinking"):
            ended.wait(30)
        forget()
        ctx.check()
        yield pa.record_batch({"n": [1]})

    slow = CatalogBuilder("own").schema("public").scan_table("slow", ROWS.schema, scan).build()
    with serving(slow, observe=ALL_SLOW) as server, connect(server.location) as client:
        failures: list[BaseException] = []

        def read() -> None:
            try:
                client.scan("public.slow").read_all()
            except SparkportError as exc:
                failures.append(exc)

        reading = threading.Thread(target=read)
        reading.start()
        assert begun.wait(30)
        (running,) = [call for call in server.calls.running() if call.rpc == "DoGet"]
        assert (running.user, running.operation, running.catalog, running.table) == (
            "anonymous",
            "read",
            "own",
            "public.slow",
        )
        assert (running.code, running.doing) == ("", "thinking")
        assert running.seconds >= 0
        assert server.calls.cancel(running.id)
        reading.join(30)
        assert failures
        wait_for(lambda: not server.calls.running())
        assert server.calls.running() == []
        (done,) = [call for call in server.calls.slow() if call.rpc == "DoGet"]
        assert (done.id, done.code) == (running.id, "CANCELLED")
        assert [part.name for part in done.steps] == ["thinking", "read"]
        assert not server.calls.cancel(running.id)


def test_a_client_that_goes_in_the_middle_of_its_rows_leaves_no_call_behind() -> None:
    rows = [pa.record_batch({"n": list(range(10_000))})] * 200

    def scan(ctx: CallContext, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        yield from rows

    own = CatalogBuilder("own").schema("public").scan_table("many", ROWS.schema, scan).build()
    with serving(own, observe=ALL_SLOW) as server, pf.connect(server.location) as client:
        info = client.get_flight_info(pf.FlightDescriptor.for_path("public", "many"))
        reader = client.do_get(info.endpoints[0].ticket)
        reader.read_chunk()
        reader.cancel()
        wait_for(lambda: not server.calls.running())
        (done,) = [call for call in server.calls.slow() if call.rpc == "DoGet"]
        assert done.code == "CANCELLED"
        assert 0 < done.rows_out < 2_000_000


def test_rows_bytes_and_what_a_call_did_are_counted() -> None:
    with serving(MemoryCatalog("lake"), observe=ALL_SLOW) as server, connect(server.location) as client:
        client.create_table("public.t", ROWS.schema)
        client.insert("public.t", ROWS)
        client.scan("public.t").read_all()
        calls = {(call.rpc, call.action): call for call in server.calls.slow()}
        put = next(call for (rpc, _), call in calls.items() if rpc in ("DoPut", "DoExchange"))
        assert (put.action, put.operation, put.table) == ("insert", "insert", "public.t")
        assert (put.rows_in, put.changed_rows, put.code) == (3, 3, "OK")
        assert put.bytes_in > 24
        assert put.bytes_out > 0
        get = calls["DoGet", ""]
        assert (get.rows_out, get.rows_in, get.operation) == (3, 0, "read")
        assert calls["DoAction", "create_table"].operation == "create"


def test_names_of_actions_that_do_not_exist_are_not_noted() -> None:
    with serving(catalog(), observe=ALL_SLOW) as server, pf.connect(server.location) as client:
        with pytest.raises(pa.ArrowNotImplementedError):
            list(client.do_action(pf.Action("nonsense" * 100, b"{}")))
        (call,) = server.calls.slow()
        assert (call.rpc, call.action, call.code) == ("DoAction", "", "UNIMPLEMENTED")


def test_only_the_last_slow_calls_are_kept_the_newest_first() -> None:
    calls = Calls(slow_seconds=1e-9)
    for number in range(500):
        calls.end(calls.begin(f"rpc{number}", "peer"))
    assert len(calls.slow()) == 200
    assert calls.slow()[0].rpc == "rpc499"


def test_no_call_is_slow_when_none_should_be() -> None:
    calls = Calls(slow_seconds=0)
    calls.end(calls.begin("rpc", "peer"))
    assert calls.slow() == []


def test_a_call_ends_once_and_a_listener_that_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    class Broken:
        def ended(self, record: CallRecord) -> None:
            raise RuntimeError("no luck")

    class Listening:
        def ended(self, record: CallRecord) -> None:
            seen.append(record.code)

    calls = Calls([Broken(), Listening()])
    record = calls.begin("rpc", "peer")
    calls.end(record, Conflict("x"))
    calls.end(record)
    assert seen == ["ABORTED"]
    assert "noting a call failed" in caplog.text


def test_steps_outside_of_a_call_are_nobodys() -> None:
    with step("apply"):
        pass


def test_steps_are_nested_and_many_of_a_kind_are_added_up() -> None:
    ctx = CallContext()
    with entered(ctx):
        with pytest.raises(RuntimeError), step("apply"), step("merge"):
            raise RuntimeError(ctx.record.doing)
        for _ in range(1_000):
            with step("push"):
                pass
    assert [part.name for part in ctx.record.steps[:2]] == ["merge", "apply"]
    assert len(ctx.record.steps) == 64
    assert sum(part.times for part in ctx.record.steps if part.name == "push") == 1_000
    assert ctx.record.doing == ""
