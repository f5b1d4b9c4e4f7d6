"""The journal in the schema ``tx``: what plain SQL can do with it, and what a caller is told of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.attacks.callers import TOKENS, create, rules

from sparkport.app import Server
from sparkport.auth import Authorizer
from sparkport.catalog.context import CallContext
from sparkport.catalog.journal import Journal, JournalledTable
from sparkport.client import Client, connect
from sparkport.errors import InvalidArgument, NotFound, PermissionDenied, Unavailable
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"n": pa.array([1], pa.int64())})
OLDEST = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)


class FakeJournal(Journal):
    """Remembers what it was asked to do."""

    def __init__(self) -> None:
        self.journalled: dict[tuple[str, str], bool] = {}
        self.transactions: list[str | None] = []
        self.flushes = 0
        self.failure: Exception | None = None

    def set_journal(self, ctx: CallContext, schema_name: str, table_name: str, *, on: bool) -> None:
        self.journalled[schema_name, table_name] = on
        self.transactions.append(ctx.transaction_id)

    def flush(self, ctx: CallContext) -> int:
        self.flushes += 1
        if self.failure is not None:
            raise self.failure
        return 7

    def waiting(self) -> Sequence[JournalledTable]:
        return [
            JournalledTable(schema_name=schema, table_name=table, entries=2, rows=3, bytes=400, oldest=OLDEST)
            for schema, table in (("public", "seen"), ("hidden", "secret"))
        ]


@pytest.fixture
def journal() -> FakeJournal:
    return FakeJournal()


@pytest.fixture
def catalog(journal: FakeJournal) -> MemoryCatalog:
    catalog = MemoryCatalog("lake")
    for schema, table in (("public", "seen"), ("hidden", "secret"), ("public", "odd.name")):
        create(catalog, ROWS, schema=schema, name=table)
    catalog.journal = journal
    return catalog


def rights() -> Authorizer:
    return rules(
        {"subjects": "reader", "operations": "read", "resources": "lake.tx.journal"},
        {"subjects": "other", "operations": "call", "resources": "lake.tx"},
        {"subjects": "other", "operations": "alter", "resources": "lake.public.seen"},
    )


@pytest.fixture
def server(catalog: MemoryCatalog) -> Iterator[Server]:
    with serving(catalog, authenticator=TOKENS, authorizer=rights()) as running:
        yield running


def client(server: Server, name: str) -> Client:
    return connect(server.location, token=f"{name}-token", catalog="lake")


@pytest.fixture
def admin(server: Server) -> Iterator[Client]:
    with client(server, "admin") as connected:
        yield connected


def test_a_table_is_journalled_and_no_more(admin: Client, journal: FakeJournal) -> None:
    assert admin.call("tx.set_journal", "public.seen", True).to_pylist() == [True]
    assert journal.journalled == {("public", "seen"): True}
    assert admin.call("tx.set_journal", "public.seen", False).to_pylist() == [False]
    assert journal.journalled == {("public", "seen"): False}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("seen", ("public", "seen")),
        ("PUBLIC.Seen", ("public", "seen")),
        ("Lake.public.seen", ("public", "seen")),
        ('hidden."secret"', ("hidden", "secret")),
        ('public."odd.name"', ("public", "odd.name")),
    ],
)
def test_a_table_is_named_as_in_sql(admin: Client, journal: FakeJournal, written: str, meant: tuple[str, str]) -> None:
    admin.call("tx.set_journal", written, True)
    assert journal.journalled == {meant: True}


@pytest.mark.parametrize("name", ["sea.public.seen", "lake.a.b.c", "public.", '"seen', ""])
def test_what_is_no_name_of_a_table_is_refused(admin: Client, journal: FakeJournal, name: str) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        admin.call("tx.set_journal", name, True)
    assert journal.journalled == {}


@pytest.mark.parametrize("arguments", [(None, True), ("public.seen", None)])
def test_null_is_refused(admin: Client, journal: FakeJournal, arguments: tuple[object, object]) -> None:
    columns = [pa.array([arguments[0]], pa.string()), pa.array([arguments[1]], pa.bool_())]
    with pytest.raises(InvalidArgument, match="not NULL"):
        admin.call("tx.set_journal", *columns)
    assert journal.journalled == {}


def test_a_table_that_is_not_there_is_not_journalled(admin: Client, journal: FakeJournal) -> None:
    with pytest.raises(NotFound, match=r"'public\.none' not found"):
        admin.call("tx.set_journal", "public.none", True)
    assert journal.journalled == {}


def test_several_tables_are_switched_by_one_statement(admin: Client, journal: FakeJournal) -> None:
    admin.call("tx.set_journal", ["seen", "hidden.secret"], [True, False])
    assert journal.journalled == {("public", "seen"): True, ("hidden", "secret"): False}


def test_switching_is_no_part_of_the_transaction_around_it(admin: Client, journal: FakeJournal) -> None:
    with admin.transaction() as transaction:
        transaction.call("tx.set_journal", "public.seen", True)
    assert journal.transactions == [None]


def test_a_flush_answers_with_the_rows_and_runs_once_for_a_batch(admin: Client, journal: FakeJournal) -> None:
    assert admin.call("tx.flush", rows=3).to_pylist() == [7, 7, 7]
    assert journal.flushes == 1


def test_a_flush_that_fails_says_why(admin: Client, journal: FakeJournal) -> None:
    journal.failure = Unavailable("Spark is starting")
    with pytest.raises(Unavailable, match="Spark is starting"):
        admin.call("tx.flush", rows=1)


def test_the_table_shows_what_waits(admin: Client) -> None:
    rows = admin.scan("tx.journal").read_all().to_pylist()
    assert rows[0] == {
        "schema_name": "public",
        "table_name": "seen",
        "entries": 2,
        "rows": 3,
        "bytes": 400,
        "oldest": OLDEST,
        "failure": None,
    }
    assert [row["table_name"] for row in rows] == ["seen", "secret"]


def test_a_caller_is_told_of_no_table_that_is_hidden_from_it(server: Server) -> None:
    with client(server, "reader") as reader:
        assert [row["table_name"] for row in reader.scan("tx.journal").read_all().to_pylist()] == ["seen"]


def test_who_may_not_read_the_table_is_refused(server: Server) -> None:
    with client(server, "other") as other, pytest.raises(PermissionDenied):
        other.scan("tx.journal").read_all()


def test_switching_needs_the_right_to_alter_the_table(server: Server, journal: FakeJournal) -> None:
    with client(server, "other") as other:
        other.call("tx.set_journal", "public.seen", True)
        assert journal.journalled == {("public", "seen"): True}
        with pytest.raises(PermissionDenied, match="may not alter"):
            other.call("tx.set_journal", 'public."odd.name"', True)
        with pytest.raises(NotFound) as hidden:
            other.call("tx.set_journal", "hidden.secret", True)
        with pytest.raises(NotFound) as missing:
            other.call("tx.set_journal", "absent.secret", True)
        assert hidden.value.message == missing.value.message.replace("absent", "hidden")
    assert journal.journalled == {("public", "seen"): True}


@pytest.mark.parametrize("call", [("tx.set_journal", "public.seen", True), ("tx.flush",)])
def test_a_reader_may_call_neither(server: Server, journal: FakeJournal, call: tuple[str, ...]) -> None:
    with client(server, "reader") as reader, pytest.raises((PermissionDenied, NotFound)):
        reader.call(*call, rows=1 if len(call) == 1 else None)
    assert (journal.journalled, journal.flushes) == ({}, 0)


def test_without_a_journal_there_is_nothing_of_it() -> None:
    with serving(MemoryCatalog("lake")) as server, connect(server.location) as plain:
        assert [table.name for table in plain.tables("tx")] == ["transactions"]
        assert {function.name for function in plain.functions("tx")} == {"begin", "commit", "rollback", "status"}
