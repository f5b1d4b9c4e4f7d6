"""The audit: what is in it, that nothing happens without it, and that nobody can write into it but the server."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.support.open_files import open_files

from sparkport.app import HttpSettings, ObserveSettings, Server
from sparkport.auth import Secret, StaticTokens
from sparkport.client import Client, connect
from sparkport.errors import (
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    SparkportError,
    Unauthenticated,
    Unavailable,
)
from sparkport.filters.predicates import col
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"n": [1, 2, 3]})
TOKENS = StaticTokens({Secret("alice-t0ken"): "alice", Secret("bob-t0ken"): "bob", Secret("eve-t0ken"): "eve"})


def entries(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def wait_for(condition: Callable[[], bool]) -> None:
    ticking, until = threading.Event(), time.monotonic() + 30
    while not condition() and time.monotonic() < until:
        ticking.wait(0.02)
    assert condition()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def server(file: Path) -> Iterator[Server]:
    observe = ObserveSettings(audit=file)
    with serving(MemoryCatalog("lake"), authenticator=TOKENS, observe=observe, http=HttpSettings(port=0)) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.location, token="alice-t0ken") as opened:
        opened.create_table("public.t", ROWS.schema)
        yield opened


def test_reads_and_changes_are_there_with_who_what_and_how_many(client: Client, file: Path) -> None:
    before = len(entries(file))
    client.insert("public.t", ROWS)
    begin, end = entries(file)[before:]
    assert (begin["event"], begin["user"], begin["operation"], begin["object"]) == (
        "begin",
        "alice",
        "insert",
        "lake.public.t",
    )
    assert begin["peer"].startswith("ipv4:127.0.0.1:")
    assert begin["call"] == end["call"]
    assert (end["event"], end["code"], end["changed"], end["rows_in"]) == ("end", "OK", 3, 3)
    assert end["statement"]
    client.scan("public.t").read_all()
    wait_for(lambda: entries(file)[-1]["event"] == "end")
    begin, end = entries(file)[before + 2 :]
    assert (begin["operation"], end["rows_out"], end["code"]) == ("read", 3, "OK")


def test_the_line_is_there_before_the_answer(client: Client, file: Path, server: Server) -> None:
    for _ in range(20):
        client.insert("public.t", ROWS)
        assert entries(file)[-1]["event"] == "end"
        assert entries(file)[-1]["operation"] == "insert"


def test_creating_dropping_and_ending_transactions_is_there(client: Client, file: Path) -> None:
    with client.transaction() as transaction:
        transaction.insert("public.t", ROWS)
    client.drop_table("public.t")
    wait_for(lambda: entries(file)[-1]["event"] == "end")
    found = [(entry["operation"], entry.get("action")) for entry in entries(file) if entry["event"] == "end"]
    assert ("create", "create_table") in found
    assert ("transaction", "commit_transaction") in found
    assert ("drop", "drop_table") in found
    inserted = next(entry for entry in entries(file) if entry["operation"] == "insert")
    committed = next(entry for entry in entries(file) if entry.get("action") == "commit_transaction")
    assert inserted["transaction"]
    assert committed["user"] == "alice"


def test_a_wrong_token_is_refused_and_noted_without_the_token(server: Server, file: Path) -> None:
    with pytest.raises(Unauthenticated), connect(server.location, token="wr0ng-t0ken") as client:
        client.scan("public.t").read_all()
    wait_for(lambda: bool(entries(file)))
    entry = entries(file)[-1]
    assert (entry["event"], entry["code"]) == ("refused", "UNAUTHENTICATED")
    assert "user" not in entry
    assert "t0ken" not in file.read_text()


def test_what_rules_refuse_is_noted_also_where_the_caller_is_told_that_it_is_not_there(file: Path) -> None:
    from sparkport.auth.identity import Identity
    from sparkport.auth.model import Authorizer, Operation, Resource

    class Rules(Authorizer):
        def allows(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
            if identity.subject == "alice":
                return True
            return operation is Operation.LIST and (identity.subject == "bob" or resource.name != "t")

    observe = ObserveSettings(audit=file)
    with serving(MemoryCatalog("lake"), authenticator=TOKENS, authorizer=Rules(), observe=observe) as server:
        with connect(server.location, token="alice-t0ken") as client:
            client.create_table("public.t", ROWS.schema)
        with pytest.raises(PermissionDenied), connect(server.location, token="bob-t0ken") as client:
            client.insert("public.t", ROWS)
        with pytest.raises(NotFound), connect(server.location, token="eve-t0ken") as client:
            client.insert("public.t", ROWS)
    refused = {entry["user"]: entry for entry in entries(file) if entry["event"] == "refused"}
    assert refused["bob"]["code"] == "PERMISSION_DENIED"
    assert refused["bob"]["object"] == "lake.public.t"
    assert refused["eve"]["code"] == "NOT_FOUND"
    assert refused["eve"]["object"] == "lake.public.t"


def test_what_is_not_there_is_not_refused(client: Client, file: Path) -> None:
    before = len(entries(file))
    with pytest.raises(SparkportError):
        client.scan("public.t", as_of_version=99)
    with pytest.raises(NotFound):
        client.scan("public.nothing")
    assert [entry for entry in entries(file)[before:] if entry["event"] == "refused"] == []


def test_a_change_that_fails_says_so(client: Client, file: Path) -> None:
    with pytest.raises(SparkportError):
        client.update("public.t", pa.table({"x": [1]}), row_ids=[1])
    wait_for(lambda: entries(file)[-1]["event"] == "end")
    assert entries(file)[-1]["code"] == "INVALID_ARGUMENT"
    assert "changed" not in entries(file)[-1]


def test_no_row_and_no_literal_is_in_it(client: Client, file: Path) -> None:
    client.create_table("public.names", pa.schema([("name", pa.string())]))
    client.insert("public.names", pa.table({"name": ["h1dden-row"]}))
    client.scan("public.names", filter=col("name") == "h1dden-literal").read_all()
    assert "h1dden" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


# A file that cannot be written


def test_a_full_disk_stops_reads_and_changes_and_room_lets_them_go_on(tmp_path: Path) -> None:
    real, path = tmp_path / "real.jsonl", tmp_path / "audit.jsonl"
    path.symlink_to(real)
    real.touch()
    settings = {"observe": ObserveSettings(audit=path), "http": HttpSettings(port=0)}
    with serving(MemoryCatalog("lake"), **settings) as server, connect(server.location) as client:  # type: ignore[arg-type]
        client.create_table("public.t", ROWS.schema)
        client.insert("public.t", ROWS)
        fill(path)
        for call in (lambda: client.insert("public.t", ROWS), lambda: client.scan("public.t").read_all()):
            with pytest.raises(Unavailable, match=r"the audit file cannot be written \(No space left on device\)"):
                call()
        with pytest.raises(urllib.error.HTTPError) as not_ready:
            urllib.request.urlopen(f"{server.http_location}/readyz", timeout=10)
        with not_ready.value as answer:
            assert json.loads(answer.read())["why"] == "the audit file cannot be written"
        swap(path, real)
        wait_for(lambda: server.readiness().writes)
        assert client.scan("public.t").read_all().num_rows == 3
        client.insert("public.t", ROWS)
    events = [entry["event"] for entry in entries(real)]
    assert "resumed" in events
    assert events[-1] == "end"


def fill(path: Path) -> None:
    """Put a device in the file's place on which no write succeeds."""
    swap(path, Path("/dev/full"))
    wait_for(lambda: Path("/dev/full") in {path for _, path in open_files()})


def swap(path: Path, target: Path) -> None:
    fresh = path.with_suffix(".new")
    fresh.symlink_to(target)
    fresh.replace(path)


def test_a_change_that_was_made_when_the_disk_ran_full_is_told_as_made_and_noted_later(
    client: Client, server: Server, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = os.write, threading.Event()

    def write(descriptor: int, data: bytes) -> int:
        if full.is_set() and b'"event": "end"' in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr("sparkport.observe.audit.os.write", write)
    full.set()
    assert client.insert("public.t", ROWS).count == 3
    with pytest.raises(Unavailable):
        client.insert("public.t", ROWS)
    full.clear()
    wait_for(lambda: server.readiness().writes)
    ended = [entry for entry in entries(file) if entry["event"] == "end" and entry["operation"] == "insert"]
    assert [entry["code"] for entry in ended] == ["OK"]
    assert client.scan("public.t").read_all().num_rows == 3


def test_a_line_that_is_half_written_is_completed_and_no_other_comes_in_between(
    client: Client, server: Server, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, state = os.write, {"halves": 1, "full": False}

    def write(descriptor: int, data: bytes) -> int:
        if b'"insert"' in data and state["halves"]:
            state["halves"], state["full"] = 0, True
            return real(descriptor, data[: len(data) // 2])
        if state["full"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr("sparkport.observe.audit.os.write", write)
    with pytest.raises(Unavailable):
        client.insert("public.t", ROWS)
    assert not file.read_text().endswith("\n")
    state["full"] = False
    wait_for(lambda: server.readiness().writes)
    client.insert("public.t", ROWS)
    found = [entry for entry in entries(file) if entry.get("operation") == "insert"]
    assert [(entry["event"], entry.get("code")) for entry in found] == [
        ("begin", None),
        ("end", "UNAVAILABLE"),
        ("begin", None),
        ("end", "OK"),
    ]


def test_what_a_killed_server_left_half_is_closed_with_a_line_of_its_own(file: Path) -> None:
    file.write_text('{"event": "end"}\n{"event": "be')
    observe = ObserveSettings(audit=file)
    with serving(MemoryCatalog("lake"), observe=observe) as server, connect(server.location) as client:
        client.create_table("public.t", ROWS.schema)
    lines = file.read_text().splitlines()
    assert lines[1] == '{"event": "be'
    assert json.loads(lines[2])["event"] == "begin"


def test_a_file_that_is_moved_away_is_opened_anew_and_no_line_is_lost(
    client: Client, file: Path, server: Server
) -> None:
    old = file.with_suffix(".1")
    before = len(entries(file))
    file.rename(old)
    made = 0
    while not file.exists():
        client.insert("public.t", ROWS)
        made += 1
    client.insert("public.t", ROWS)
    wait_for(lambda: entries(file) != [])
    found = [*entries(old)[before:], *entries(file)]
    assert [entry["event"] for entry in found].count("end") == made + 1


def test_a_place_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"the audit file .* cannot be written: No such file or directory"):
        Server(MemoryCatalog("lake"), port=0, observe=ObserveSettings(audit=tmp_path / "none" / "audit.jsonl")).start()


def inserting(client: Client, times: int) -> None:
    for _ in range(times):
        client.insert("public.t", ROWS)


def test_a_pipe_that_nobody_reads_from_stops_calls_and_keeps_none_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "audit.pipe"
    os.mkfifo(pipe)
    observe = ObserveSettings(audit=pipe)
    with serving(MemoryCatalog("lake"), observe=observe) as server, connect(server.location) as client:
        client.create_table("public.t", ROWS.schema)
        with pytest.raises(Unavailable, match="the audit file cannot be written"):
            inserting(client, 1_000)


def test_a_table_s_columns_are_asked_for_without_a_line(client: Client, file: Path, server: Server) -> None:
    before = len(entries(file))
    options = pf.FlightCallOptions(headers=[(b"authorization", b"Bearer alice-t0ken")])
    with pf.connect(server.location) as stock:
        stock.get_schema(pf.FlightDescriptor.for_path("public", "t"), options)
        stock.get_flight_info(pf.FlightDescriptor.for_path("public", "t"), options)
    assert len(entries(file)) == before


def test_many_callers_write_whole_lines(server: Server, file: Path) -> None:
    with connect(server.location, token="alice-t0ken") as first:
        first.create_table("public.t", ROWS.schema)

    def work() -> None:
        with connect(server.location, token="bob-t0ken") as client:
            for _ in range(20):
                client.insert("public.t", ROWS)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [entry for entry in entries(file) if entry.get("operation") == "insert"]
    begun = {entry["call"] for entry in found if entry["event"] == "begin"}
    assert len(begun) == 160
    assert begun == {entry["call"] for entry in found if entry["event"] == "end"}


def test_a_statement_that_is_sent_again_is_not_noted_as_another_change(file: Path) -> None:
    observe = ObserveSettings(audit=file)
    headers = [(b"x-statement-id", b"7c0f1f3e"), (b"airport-operation", b"insert")]
    with serving(MemoryCatalog("lake"), observe=observe) as server, pf.connect(server.location) as stock:
        with connect(server.location) as client:
            client.create_table("public.t", ROWS.schema)
        for _ in range(2):
            options = pf.FlightCallOptions(headers=headers)
            body = json.dumps({"operation": "insert", "schema_name": "public", "table_name": "t"}).encode()
            writer, reader = stock.do_put(pf.FlightDescriptor.for_command(body), ROWS.schema, options)
            writer.write_table(ROWS)
            writer.done_writing()
            assert reader.read() is not None
            writer.close()
    changed = [entry["changed"] for entry in entries(file) if "changed" in entry]
    assert changed == [3]
