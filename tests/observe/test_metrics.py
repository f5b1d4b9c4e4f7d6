"""What Prometheus is told, and that clients cannot make it grow."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.flight as pf
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.robustness.rig import catalog

from sparkport.app import HttpSettings, ObserveSettings, Server
from sparkport.catalog.call_record import CallRecord, Step
from sparkport.catalog.figures import Distribution, Figure
from sparkport.cli.logs import JsonFormatter, TextFormatter
from sparkport.client import connect
from sparkport.errors import Conflict, SparkportError
from sparkport.filters.predicates import col
from sparkport.memory import MemoryCatalog
from sparkport.observe.call_log import LOGGER, CallLog
from sparkport.observe.metrics import Metrics
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"n": [1, 2, 3]})
FREE = HttpSettings(port=0)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(MemoryCatalog("lake"), http=FREE) as running:
        yield running


def scraped(server: Server, token: str | None = None) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    asked = urllib.request.Request(f"{server.http_location}/metrics", headers=headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {(item.name, frozenset(item.labels.items())): item.value for family in families for item in family.samples}


def value(server: Server, name: str, **labels: str) -> float:
    return scraped(server)[name, frozenset(labels.items())]


def test_calls_rows_and_bytes_are_counted(server: Server) -> None:
    with connect(server.location) as client:
        client.create_table("public.t", ROWS.schema)
        client.insert("public.t", ROWS)
        client.scan("public.t").read_all()
    found = scraped(server)

    def one(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert one("sparkport_calls_total", rpc="DoAction", action="create_table", code="OK") == 1
    assert one("sparkport_call_seconds_count", rpc="DoGet", action="") == 1
    assert one("sparkport_rows_out_total", rpc="DoGet") == 3
    assert one("sparkport_bytes_out_total", rpc="DoGet") > 24
    assert one("sparkport_statements_total", operation="insert", code="OK") == 1
    assert one("sparkport_changed_rows_total", operation="insert") == 3
    assert one("sparkport_step_seconds_count", step="stage") == 1
    assert one("sparkport_step_seconds_count", step="commit") == 1
    assert one("sparkport_calls_running") == 0
    assert one("sparkport_held_bytes") == 0
    assert one("sparkport_held_bytes_limit") > 0
    assert one("sparkport_ready", part="writes") == 1
    assert one("process_resident_memory_bytes") > 0


def test_transactions_are_counted_by_how_they_ended(server: Server) -> None:
    with connect(server.location) as client:
        client.create_table("public.t", ROWS.schema)
        with client.transaction() as one:
            one.insert("public.t", ROWS)
        two = client.transaction()
        two.__enter__()
        assert value(server, "sparkport_transactions_open", catalog="lake") == 1
        two.rollback()
    assert value(server, "sparkport_transactions_open", catalog="lake") == 0
    assert value(server, "sparkport_transactions_begun_total", catalog="lake") == 2
    assert value(server, "sparkport_transactions_committed_total", catalog="lake") == 1
    assert value(server, "sparkport_transactions_aborted_total", catalog="lake", reason="rolled back") == 1


def test_a_conflict_is_counted_and_is_the_reason_of_an_aborted_transaction(server: Server) -> None:
    with connect(server.location) as client:
        client.create_table("public.t", ROWS.schema)
        client.insert("public.t", ROWS)
        ids = client.scan("public.t", row_id=True).read_all()["rowid"].to_pylist()
        rows = pa.table({"n": [7, 8, 9]})
        slow = client.transaction()
        slow.__enter__()
        slow.update("public.t", rows, row_ids=ids)
        client.update("public.t", rows, row_ids=ids)
        with pytest.raises(Conflict):
            slow.commit()
    assert value(server, "sparkport_conflicts_total") >= 1
    assert value(server, "sparkport_transactions_aborted_total", catalog="lake", reason="conflict") == 1


def test_what_clients_call_things_makes_no_new_series(server: Server) -> None:
    with pf.connect(server.location) as client:

        def nonsense(number: int) -> None:
            with pytest.raises(pa.ArrowException):
                list(client.do_action(pf.Action(f"nonsense{number}", b"{}")))
            options = pf.FlightCallOptions(headers=[(b"airport-operation", f"odd{number}".encode())])
            with pytest.raises(pa.ArrowException):  # while it is opened, or when it is read
                client.do_exchange(pf.FlightDescriptor.for_path("a", f"t{number}"), options)[1].read_all()
            with pytest.raises(pa.ArrowException):
                client.get_schema(pf.FlightDescriptor.for_path("public", f"t{number}"))

        nonsense(0)
        before = set(scraped(server))
        for number in range(1, 20):
            nonsense(number)
        after = scraped(server)
    assert set(after) == before
    assert not any("nonsense" in str(key) or "odd" in str(key) for key in after)
    assert (
        after["sparkport_calls_total", frozenset({("rpc", "DoAction"), ("action", "other"), ("code", "UNIMPLEMENTED")})]
        == 20
    )


def test_refused_calls_are_counted() -> None:
    from sparkport.auth import Secret, StaticTokens

    with serving(catalog(), authenticator=StaticTokens({Secret("t"): "a"}), http=FREE) as server:
        with pytest.raises(SparkportError), connect(server.location, token="wrong") as client:
            client.scan("public.numbers").read_all()
        labels = frozenset({("code", "UNAUTHENTICATED")})
        assert scraped(server, "t")["sparkport_refused_total", labels] >= 1


def test_servers_in_one_process_count_for_themselves() -> None:
    with serving(catalog(), http=FREE) as one, serving(catalog(), http=FREE) as other:
        with connect(one.location) as client:
            client.scan("public.numbers").read_all()
        assert value(one, "sparkport_rows_out_total", rpc="DoGet") == 3
        assert ("sparkport_rows_out_total", frozenset({("rpc", "DoGet")})) not in scraped(other)


def test_a_catalog_whose_figures_fail_hides_no_others(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryCatalog):
        def figures(self) -> Iterable[Figure]:
            raise RuntimeError("no luck")

    with serving(Broken("broken"), MemoryCatalog("lake"), http=FREE) as server:
        assert value(server, "sparkport_calls_running") == 0
        assert value(server, "sparkport_transactions_open", catalog="lake") == 0
    assert "the figures of catalog 'broken' cannot be had" in caplog.text


def test_figures_that_do_not_fit_are_left_out_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(MemoryCatalog):
        def figures(self) -> Iterable[Figure]:
            yield Figure("no name", "has a blank", 1)
            yield Figure("mine", "a gauge", 1, {"part": "a"})
            yield Figure("mine", "has other labels", 1, {"other": "b"})
            yield Figure("mine", "is of another kind", Distribution((1,)), {"part": "c"})
            yield Figure("mine", "a gauge", 2, {"part": "d"})

    with serving(Odd("odd"), http=FREE) as server:
        assert value(server, "sparkport_mine", catalog="odd", part="a") == 1
        assert value(server, "sparkport_mine", catalog="odd", part="d") == 2
    assert caplog.text.count("cannot be told") >= 3


def test_a_distribution_is_told_as_a_histogram() -> None:
    sizes = Distribution((1, 2, 4))
    for size in (1, 1, 3, 9):
        sizes.add(size)
    metrics = Metrics([lambda: [({"catalog": "x"}, Figure("group", "sizes", sizes))]])
    sample = metrics.registry.get_sample_value
    assert sample("sparkport_group_bucket", {"catalog": "x", "le": "1.0"}) == 2
    assert sample("sparkport_group_bucket", {"catalog": "x", "le": "4.0"}) == 3
    assert sample("sparkport_group_count", {"catalog": "x"}) == 4
    assert sample("sparkport_group_sum", {"catalog": "x"}) == 14


def test_steps_of_a_users_own_table_are_one_series() -> None:
    metrics = Metrics()
    record = CallRecord("1", "DoGet")
    record.steps = [Step(f"mine{number}", 0, 1) for number in range(50)]
    metrics.ended(record)
    assert metrics.registry.get_sample_value("sparkport_step_seconds_count", {"step": "other"}) == 50


# One line per call


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == LOGGER]


def test_every_call_has_one_line(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    with connect(server.location) as client:
        client.create_table("public.t", ROWS.schema)
        caplog.clear()
        client.insert("public.t", ROWS)
    (line,) = lines(caplog)
    text = line.getMessage()
    for part in ("action=insert", "user=anonymous", "table=lake.public.t", "rows_in=3", "changed=3", "code=OK", "ms="):
        assert part in text
    entry = json.loads(JsonFormatter().format(line))
    assert entry["call"]["table"] == "lake.public.t"
    assert entry["call"]["rows_in"] == 3


def test_a_slow_call_is_a_warning_with_its_steps(caplog: pytest.LogCaptureFixture) -> None:
    observe = ObserveSettings(slow_seconds=1e-9)
    with serving(MemoryCatalog("lake"), observe=observe) as server, connect(server.location) as client:
        client.create_table("public.t", ROWS.schema)
        client.insert("public.t", ROWS)
    line = next(line for line in lines(caplog) if "action=insert" in line.getMessage())
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith("slow call ")
    assert "stage@" in line.getMessage()
    assert "commit@" in line.getMessage()


def test_an_internal_error_has_the_id_that_the_client_was_told(caplog: pytest.LogCaptureFixture) -> None:
    from sparkport.catalog import CallContext, CatalogBuilder, ScanRequest

    def scan(ctx: CallContext, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        raise RuntimeError("row 4711 is odd")

    caplog.set_level(logging.INFO, LOGGER)
    own = CatalogBuilder("own").schema("public").scan_table("t", ROWS.schema, scan).build()
    with serving(own) as server, connect(server.location) as client, pytest.raises(SparkportError) as failure:
        client.scan("public.t").read_all()
    line = next(line for line in lines(caplog) if "rpc=DoGet" in line.getMessage())
    error_id = line.getMessage().rpartition("error_id=")[2]
    assert len(error_id) == 12
    assert error_id in str(failure.value)
    assert "4711" not in line.getMessage()


def test_nobody_forges_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    log = CallLog(lambda record: False)
    record = CallRecord("1", "DoGet", "ipv4:1.2.3.4:5")
    record.code = "OK"
    record.table = 'a" user=root\n2026-01-01 INFO x: call user=root\u2028\x1b[31m' + "b" * 10_000
    record.statement_id = "s" * 5_000
    log.ended(record)
    (line,) = lines(caplog)
    text = line.getMessage()
    assert "\n" not in text
    assert "\x1b" not in text
    assert "\u2028" not in text
    assert len(text) < 1_500
    assert "\n" not in JsonFormatter().format(line)


def test_no_text_in_the_log_looks_like_another_line() -> None:
    record = logging.makeLogRecord(
        {"msg": "user 'a\n2026-01-01 INFO x: all is well\r\x1b[2J\u2028'", "levelname": "INFO"}
    )
    lines = TextFormatter().format(record).split("\n")
    assert len(lines) == 2
    assert lines[1] == "    2026-01-01 INFO x: all is well\\r\\x1b[2J\\u2028'"


def test_no_token_and_no_row_is_in_a_line_or_a_metric(caplog: pytest.LogCaptureFixture) -> None:
    from sparkport.auth import Secret, StaticTokens

    caplog.set_level(logging.DEBUG)
    tokens = StaticTokens({Secret("t0psecret"): "alice"})
    with serving(MemoryCatalog("lake"), authenticator=tokens, http=FREE) as server:
        with connect(server.location, token="t0psecret") as client:
            client.create_table("public.t", pa.schema([("name", pa.string())]))
            client.insert("public.t", pa.table({"name": ["h1dden-row"]}))
            client.scan("public.t", filter=col("name") == "h1dden-literal").read_all()
        with pytest.raises(SparkportError), connect(server.location, token="wr0ng-token") as client:
            client.scan("public.t").read_all()
        told = caplog.text + "".join(JsonFormatter().format(line) for line in caplog.records)
        told += str(scraped(server, "t0psecret")) + str(server.calls.slow())
    for secret in ("t0psecret", "h1dden", "wr0ng"):
        assert secret not in told
