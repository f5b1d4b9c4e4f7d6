"""Commits of several tables and of transactions in REST catalogs that fail, lose answers or keep no promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.lakehouse.crooked_catalog import crooked

from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.errors import InternalError, TransactionNotActive, Unavailable, Unsupported
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.pointers import Edit, Moved, OutcomeUnknown
from sparkport.lakehouse.catalogs.rest import RestPointers
from sparkport.lakehouse.catalogs.rest_client import RestClient
from sparkport.lakehouse.iceberg.edits import new_table, set_properties
from sparkport.lakehouse.names import TableName

pytestmark = pytest.mark.tier("thorough")

FIELDS = [{"id": 1, "name": "x", "type": "long", "required": False}]

ACTIVE, COMMITTED, ABORTED = TransactionState.ACTIVE, TransactionState.COMMITTED, TransactionState.ABORTED


class Played:
    """Two tables of a catalog that answers the commit of both as told, after making as much of it as told."""

    def __init__(self, answer: tuple[int, object] | None, *made: str) -> None:
        self.answer, self.made = answer, made
        self.before = {name: new_table(f"/{name}", FIELDS, last_column_id=1, properties={}) for name in "tu"}
        self.commits = 0

    def changes(self) -> list[Edit]:
        return [
            Edit(TableName("a", name), found, set_properties(found, {"comment": "new"}, previous=f"/{name}/0"))
            for name, found in self.before.items()
        ]

    def reply(self, request: BaseHTTPRequestHandler) -> tuple[int, object] | None:
        if request.command == "POST":
            self.commits += 1
            return self.answer
        name = request.path.partition("?")[0].rpartition("/")[2]
        metadata = self.before[name]
        if self.commits and name in self.made:
            metadata = {**metadata, "properties": {"sparkport.statement.tx:x": "0 1"}}
        elif self.commits and self.answer == CLASH:
            metadata = {**metadata, "last-column-id": 2}  # somebody has added a column, and taken it away
        return 200, {"metadata-location": f"/{name}/1", "metadata": metadata}

    def commit(self, ledger: Ledger | None = None) -> dict[TableName, str]:
        with crooked(self.reply) as uri:
            pointers = RestPointers(RestClient(uri, {}, timeout=10), ledger=ledger, pauses=(0.0,))
            return pointers.commit(self.changes(), transactions=["x"])


CLASH = (409, {"error": {"message": "moved", "type": "CommitFailedException"}})


@pytest.mark.parametrize("status", [404, 405, 406, 501])
def test_a_catalog_that_cannot_commit_tables_together_is_told_of(status: int) -> None:
    played = Played((status, {"error": {"message": "no such route"}}))
    with pytest.raises(Unsupported, match="several tables at once"):
        played.commit()
    assert played.commits == 1


def test_a_catalog_that_does_not_list_the_commit_of_several_tables_is_not_asked() -> None:
    played = Played((200, {}))
    with crooked(played.reply, {"endpoints": ["GET /v1/{prefix}/namespaces"]}) as uri:
        pointers = RestPointers(RestClient(uri, {}))
        with pytest.raises(Unsupported, match="several tables at once"):
            pointers.commit(played.changes())
    assert played.commits == 0


@pytest.mark.parametrize("answer", [None, (500, {}), CLASH], ids=["lost", "failed", "sent twice"])
def test_a_commit_of_several_tables_is_made_when_all_of_them_show_it(answer: tuple[int, object] | None) -> None:
    assert Played(answer, "t", "u").commit() == {("a", "t"): "/t/1", ("a", "u"): "/u/1"}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(None, OutcomeUnknown), ((500, {}), OutcomeUnknown), ((503, {}), OutcomeUnknown), (CLASH, Moved)],
)
def test_a_commit_of_several_tables_is_not_made_when_none_of_them_shows_it(
    answer: tuple[int, object] | None, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        Played(answer).commit()


@pytest.mark.parametrize("answer", [None, CLASH])
def test_a_catalog_that_makes_a_part_of_a_commit_is_found_out(answer: tuple[int, object] | None) -> None:
    with pytest.raises(InternalError, match=r"'a\.u' changed, 'a\.t' did not"):
        Played(answer, "u").commit()


# What the ledger says of it


class Book:
    """A ledger with one transaction, and the time and the tables that it looks at."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.made: bool | None = None
        self.asked: list[Sequence[TableName]] = []
        self.database = open_database(f"sqlite:///{folder}/transactions.db")
        self.ledger = Ledger(self.database, "lake", clock=lambda: self.now, resolve=self.resolve)
        self.ledger.begin("x", owner="anna", isolation=Isolation.SNAPSHOT)

    def resolve(self, transaction_id: str, tables: Sequence[TableName]) -> bool:
        self.asked.append(tables)
        if self.made is None:
            raise Unavailable("the catalog is away")
        return self.made

    @property
    def state(self) -> TransactionState:
        found = self.ledger.find("x")
        assert found is not None
        return found.state


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    made = Book(tmp_path)
    with closing(made.database):
        yield made


@pytest.mark.parametrize("answer", [(200, {}), None, CLASH], ids=["answered", "lost", "sent twice"])
def test_a_commit_that_was_made_is_in_the_ledger(book: Book, answer: tuple[int, object] | None) -> None:
    Played(answer, "t", "u").commit(book.ledger)
    assert (book.state, book.asked) == (COMMITTED, [])


def test_a_transaction_that_has_moved_tables_before_it_may_try_again_or_end(book: Book) -> None:
    for _ in range(2):
        with pytest.raises(Moved):
            Played(CLASH).commit(book.ledger)
        assert book.state is ACTIVE
    assert book.ledger.end("x", ABORTED) is ABORTED
    assert book.asked == []
    played = Played((200, {}), "t", "u")
    with pytest.raises(TransactionNotActive):
        played.commit(book.ledger)
    assert played.commits == 0


def test_a_catalog_that_was_never_reached_leaves_no_doubt(book: Book) -> None:
    for answer, kind in (((429, {}), Unavailable), ((501, {}), Unsupported)):
        with pytest.raises(kind):
            Played(answer).commit(book.ledger)
    assert (book.ledger.end("x", ABORTED), book.asked) == (ABORTED, [])


@pytest.mark.parametrize("made", [True, False])
def test_a_commit_without_an_answer_ends_when_it_is_known_how(book: Book, made: bool) -> None:
    with pytest.raises(Unavailable):
        Played(None).commit(book.ledger)
    for now in (book.now, book.now + 1e6, 0.0):  # whatever the clock says
        book.now = now
        with pytest.raises(Unavailable, match="away"):
            book.ledger.end("x", ABORTED)
    book.made = made
    assert book.ledger.end("x", ABORTED) is book.state is (COMMITTED if made else ABORTED)
    assert set(map(tuple, book.asked)) == {(("a", "t"), ("a", "u"))}


def test_a_commit_is_made_even_if_the_ledger_cannot_be_told(
    book: Book, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(transaction_id: str, state: TransactionState) -> TransactionState:
        raise Unavailable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(book.ledger, "end", away)
        assert len(Played((200, {}), "t", "u").commit(book.ledger)) == 2
    assert "not noted yet" in caplog.text
    book.made = True
    assert book.state is COMMITTED
