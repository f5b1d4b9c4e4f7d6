"""The journal by actions, the command and the Python client: what is asked of it, and who may ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from tests.attacks.callers import TOKENS, create, rules

from sparkport.app import Server, lakehouse_actions
from sparkport.catalog.context import CallContext
from sparkport.catalog.journal import Sees
from sparkport.cli.main import main
from sparkport.cli.serve import journal_settings
from sparkport.client import Client, connect
from sparkport.config import Settings
from sparkport.errors import InvalidArgument, NotFound, PermissionDenied, Unavailable
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.upkeep.catalog_journal import CatalogJournal
from sparkport.lakehouse.upkeep.journal_control import FlushReport, JournalControl, TableStatus
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

NO_ROWS = pa.schema([("n", pa.int64())]).empty_table()


class FakeControl(JournalControl):
    """Remembers what it was asked to do."""

    failure: str | None = None
    foreign_changes = (0, 0)

    def __init__(self) -> None:
        self.journalled: dict[TableName, bool] = {}
        self.transactions: list[str | None] = []
        self.waiting: list[TableStatus] = []
        self.unavailable: str | None = None

    def set(self, ctx: CallContext, table: TableName, on: bool) -> None:
        self.journalled[table] = on
        self.transactions.append(ctx.transaction_id)

    def flush(self, timeout: float | None = None, *, sees: Sees = lambda schema, name: True) -> FlushReport:
        if self.unavailable is not None:
            raise Unavailable(self.unavailable)
        flushed, self.waiting = self.waiting, []
        return FlushReport(tables=len(flushed), rows=sum(item.rows for item in flushed), seconds=0.25)

    def status(self) -> list[TableStatus]:
        return self.waiting

    def set_apart(self, table: str, failure: str | None = None, waits_for: str | None = None) -> None:
        names = () if waits_for is None else (TableName(*waits_for.split(".")),)
        apart = TableStatus(
            table=TableName(*table.split(".")),
            entries=1,
            rows=1,
            bytes=100,
            oldest=None,
            failure=failure,
            waits_for=names,
        )
        self.waiting.append(apart)

    def wait_for(self, schema: str, name: str, *, entries: int, rows: int, seconds: float) -> None:
        oldest = datetime.now(UTC) - timedelta(seconds=seconds)
        table = TableName(schema, name)
        self.waiting.append(TableStatus(table=table, entries=entries, rows=rows, bytes=1_000, oldest=oldest))


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
def server(tmp_path: Path, control: FakeControl) -> Iterator[Server]:
    """A lakehouse whose Spark is never started, with tables that are empty."""
    lakehouse = Lakehouse(LakehouseSettings(warehouse=str(tmp_path)))
    real = lakehouse.journal
    try:
        lakehouse.journal = control
        lakehouse.catalog.journal = CatalogJournal(control)
        for schema, table in (("public", "seen"), ("hidden", "secret")):
            create(lakehouse.catalog, NO_ROWS, schema=schema, name=table)
        authorizer = rules(
            {"subjects": "reader", "operations": ["action", "alter"], "resources": "lake.*.set_table"},
            {"subjects": "other", "operations": "action", "resources": ["lake.*.set_table", "lake.*.flush_journal"]},
            {"subjects": "other", "operations": "action", "resources": "lake.*.journal_status"},
            {"subjects": "other", "operations": "alter", "resources": "lake.public.seen"},
        )
        actions = lakehouse_actions(lakehouse)
        with serving(lakehouse.catalog, authenticator=TOKENS, authorizer=authorizer, actions=actions) as running:
            yield running
    finally:
        lakehouse.journal = real
        lakehouse.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.location, token="admin-token") as connected:
        yield connected


def command(server: Server, *arguments: str, who: str = "admin") -> int:
    location = [server.location] if arguments[0] == "status" else ["--location", server.location]
    return main([*arguments, *location], {"SPARKPORT_TOKEN": f"{who}-token"})


# Settings


def test_the_defaults_are_written_down_twice_and_are_the_same() -> None:
    assert journal_settings(Settings()) == JournalSettings()


def test_every_setting_arrives() -> None:
    settings = Settings(journal=True, journal_rows=5, journal_bytes=2048, journal_seconds=0.5, journal_limit=4096)
    assert journal_settings(settings) == JournalSettings(new_tables=True, rows=5, bytes=2048, seconds=0.5, limit=4096)


def test_a_limit_below_one_change_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="journal_limit is below journal_bytes"):
        journal_settings(Settings(journal_limit=2**20))


# Switching


def test_the_command_switches_the_journal_of_a_table(
    server: Server, control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    table = TableName("public", "seen")
    assert command(server, "table", "set", "Public.SEEN", "journal=on") == 0
    assert control.journalled == {table: True}
    assert "public.seen is journalled" in capsys.readouterr().out
    assert command(server, "table", "set", "lake.public.seen", "journal=OFF") == 0
    assert control.journalled == {table: False}
    assert "public.seen is not journalled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("colour=red", "only journal=on and journal=off"),
        ("journal", "journal is on or off"),
        ("journal=", "journal is on or off"),
        ("journal=maybe", "journal is on or off"),
    ],
)
def test_what_cannot_be_set_is_refused_before_the_server_is_asked(
    capsys: pytest.CaptureFixture[str], setting: str, words: str
) -> None:
    assert main(["table", "set", "seen", setting, "--location", "grpc://127.0.0.1:1"], {}) == 2
    assert words in capsys.readouterr().err


def test_a_table_of_another_catalog_is_not_taken_for_one_of_this(
    server: Server, control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(server, "table", "set", "sea.public.seen", "journal=on") == 1
    assert "catalog 'sea' is not 'lake'" in capsys.readouterr().err
    assert control.journalled == {}


def test_the_client_switches_the_journal_of_a_table(client: Client, control: FakeControl) -> None:
    client.set_journal("public.seen", True)
    assert control.journalled == {TableName("public", "seen"): True}
    client.set_journal(("lake", "public", "seen"), False)
    assert control.journalled == {TableName("public", "seen"): False}
    assert control.transactions == [None, None]


@pytest.mark.parametrize(
    "body", [{}, {"journal": True}, {"table_name": "seen"}, {"table_name": "seen", "journal": "on"}, {"journal": 1}]
)
def test_a_wrong_body_is_refused(client: Client, control: FakeControl, body: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        client.action("set_table", json.dumps(body).encode())
    assert control.journalled == {}


def test_a_table_that_is_not_there_is_named(client: Client) -> None:
    with pytest.raises(NotFound, match=r"'public\.none' not found"):
        client.set_journal("none", True)


def test_switching_needs_the_right_to_alter_the_table(server: Server, control: FakeControl) -> None:
    with connect(server.location, token="other-token") as other:
        other.set_journal("public.seen", True)
        with pytest.raises(NotFound):
            other.set_journal("hidden.secret", True)
    with connect(server.location, token="reader-token") as reader, pytest.raises(PermissionDenied, match="alter"):
        reader.set_journal("public.seen", True)
    assert control.journalled == {TableName("public", "seen"): True}


# Flushing


def test_the_command_flushes_and_says_what_it_was(
    server: Server, control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    control.wait_for("public", "seen", entries=2, rows=1_200, seconds=1)
    control.wait_for("hidden", "secret", entries=1, rows=1, seconds=1)
    assert command(server, "flush") == 0
    assert capsys.readouterr().out == "1,201 rows of 2 tables published in 0.2 s\n"
    assert command(server, "flush") == 0
    assert capsys.readouterr().out == "there was nothing to flush\n"


def test_the_client_flushes_and_is_told_what_it_was(client: Client, control: FakeControl) -> None:
    control.wait_for("public", "seen", entries=2, rows=5, seconds=1)
    flushed = client.flush_journal()
    assert (flushed.tables, flushed.rows, flushed.seconds) == (1, 5, 0.25)


def test_a_flush_that_fails_says_why(
    client: Client, server: Server, control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    control.unavailable = "Spark is starting"
    with pytest.raises(Unavailable, match="Spark is starting"):
        client.flush_journal()
    assert command(server, "flush") == 1
    assert "Spark is starting" in capsys.readouterr().err


def test_flushing_needs_a_right_of_its_own(server: Server, control: FakeControl) -> None:
    with connect(server.location, token="reader-token") as reader, pytest.raises(PermissionDenied):
        reader.flush_journal()
    with connect(server.location, token="other-token") as other:
        assert other.flush_journal().rows == 0


# Status


def test_status_tells_what_waits(server: Server, control: FakeControl, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(server, "status") == 0
    assert "journal of lake: nothing waits\n" in capsys.readouterr().out
    control.wait_for("public", "seen", entries=2, rows=1_200, seconds=100)
    control.wait_for("hidden", "secret", entries=1, rows=1, seconds=1)
    control.failure = "Spark is\nstarting"
    control.foreign_changes = (3, 1)
    assert command(server, "status") == 0
    out = capsys.readouterr().out
    assert "journal of lake: 1,201 rows of 2 tables to be published (3 entries, 2,000 bytes), the oldest for 10" in out
    assert "journal of lake: the last flush failed: Spark is starting\n" in out
    assert "journal of lake: others had changed 3 rows and deleted 1 row past it\n" in out


@pytest.mark.parametrize(("who", "words"), [("reader", "the journal is not shown"), ("nobody", "is serving")])
def test_status_is_there_for_those_who_may_not_see_the_journal(
    server: Server, control: FakeControl, capsys: pytest.CaptureFixture[str], who: str, words: str
) -> None:
    control.wait_for("hidden", "secret", entries=1, rows=1, seconds=1)
    assert command(server, "status", who=who) == 0
    out = capsys.readouterr().out
    assert words in out
    assert "journal of lake" not in out


def test_status_names_the_tables_that_cannot_be_published_and_the_reasons(
    server: Server, control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    control.set_apart("hidden.secret", "a file\nis lost")
    control.set_apart("public.seen", waits_for="hidden.secret")
    assert command(server, "status") == 0
    out = capsys.readouterr().out
    assert "journal of lake: table hidden.secret is set apart: a file is lost\n" in out
    tie = "table public.seen is set apart: commits that wait tie it to {}, which could not be published\n"
    assert tie.format("'hidden.secret'") in out
    # Whoever may ask, and not know of every table, is told of those that he may know of.
    assert command(server, "status", who="other") == 0
    out = capsys.readouterr().out
    assert tie.format("a table that is not shown") in out
    assert "journal of lake: 1 table set apart that you may not know of\n" in out
    assert "secret" not in out
    assert "lost" not in out


def test_duckdb_sees_why_a_table_cannot_be_published(client: Client, server: Server, control: FakeControl) -> None:
    control.set_apart("public.seen", "a file is lost")
    control.wait_for("hidden", "secret", entries=1, rows=1, seconds=1)
    rows = client.scan("tx.journal").read_all().to_pylist()
    assert [(row["table_name"], row["failure"]) for row in rows] == [("seen", "a file is lost"), ("secret", None)]


def test_duckdb_sees_the_same_journal(client: Client, control: FakeControl) -> None:
    control.wait_for("public", "seen", entries=2, rows=5, seconds=1)
    (row,) = client.scan("tx.journal").read_all().to_pylist()
    assert (row["schema_name"], row["table_name"], row["rows"]) == ("public", "seen", 5)
    assert client.call("tx.set_journal", "seen", True).to_pylist() == [True]
    assert control.journalled == {TableName("public", "seen"): True}
    assert client.call("tx.flush", rows=1).to_pylist() == [5]
