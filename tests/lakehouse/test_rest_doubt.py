"""Commits in REST catalogs that may have been made: they are neither sent again nor taken for not made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.lakehouse.crooked_catalog import crooked
from tests.lakehouse.test_rest_transactions import ABORTED, CLASH, COMMITTED, Book, Played

from sparkport.catalog.transaction import Isolation
from sparkport.errors import Conflict, TransactionNotActive, Unavailable
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.pointers import Edit, Moved
from sparkport.lakehouse.catalogs.rest import RestPointers
from sparkport.lakehouse.catalogs.rest_client import RestClient
from sparkport.lakehouse.names import TableName

pytestmark = pytest.mark.tier("fast")


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    made = Book(tmp_path)
    with closing(made.database):
        yield made


class Alone(Played):
    """Only one of the tables is changed; ``look`` is what the catalog answers when it is looked at afterwards."""

    def __init__(
        self, answer: tuple[int, object] | None, *made: str, look: tuple[int, object] | None = None, tables: str = "t"
    ) -> None:
        super().__init__(answer, *made)
        self.look, self.tables = look, tables

    def changes(self) -> list[Edit]:
        return [change for change in super().changes() if change.table.name in self.tables]

    def reply(self, request: BaseHTTPRequestHandler) -> tuple[int, object] | None:
        if request.command == "GET" and self.commits and self.look is not None:
            return self.look
        return super().reply(request)


FORBIDDEN = (403, {"error": {"message": "the token has run out", "type": "ForbiddenException"}})


# Sent again


def test_a_commit_in_doubt_is_not_sent_again(book: Book) -> None:
    with pytest.raises(Unavailable):
        Played(None).commit(book.ledger)
    again = Played((200, {}), "t", "u")
    with pytest.raises(TransactionNotActive):
        again.commit(book.ledger)
    with pytest.raises(Unavailable):
        book.ledger.end("x", ABORTED)
    book.made = True
    with pytest.raises(TransactionNotActive):
        again.commit(book.ledger)
    assert again.commits == 0
    assert book.ledger.end("x", ABORTED) is COMMITTED


def test_a_commit_in_doubt_that_was_not_made_is_aborted_when_it_is_tried_again(book: Book) -> None:
    with pytest.raises(Unavailable):
        Played(None).commit(book.ledger)
    book.made = False
    again = Played((200, {}), "t", "u")
    with pytest.raises(TransactionNotActive):
        again.commit(book.ledger)
    assert (again.commits, book.state) == (0, ABORTED)


def test_one_in_doubt_does_not_keep_others_of_its_group_from_going_on(book: Book) -> None:
    book.ledger.begin("y", owner="anna", isolation=Isolation.SNAPSHOT)
    with pytest.raises(Unavailable):
        Played(None).commit(book.ledger)
    with pytest.raises(TransactionNotActive) as failed:
        book.ledger.publishing(["y", "x"], [TableName("a", "t")])
    assert failed.value.transaction_id == "x"
    book.ledger.publishing(["y"], [TableName("a", "t")])
    assert book.ledger.end("y", COMMITTED) is COMMITTED


def test_one_that_was_refused_may_try_again_though_another_of_its_group_has_ended(book: Book) -> None:
    book.ledger.begin("y", owner="anna", isolation=Isolation.SNAPSHOT)
    with pytest.raises(Moved):
        Played(CLASH).commit(book.ledger)
    book.ledger.end("y", ABORTED)
    with pytest.raises(TransactionNotActive) as failed:
        book.ledger.publishing(["x", "y"], [TableName("a", "t")])
    assert failed.value.transaction_id == "y"
    Played((200, {}), "t", "u").commit(book.ledger)
    assert (book.state, book.asked) == (COMMITTED, [])


# Made, and then something fails


def test_a_commit_that_was_made_and_cannot_be_looked_at_is_committed(book: Book) -> None:
    with pytest.raises(Unavailable, match="run out"):  # so that nobody tries its members one by one
        Alone((200, {}), look=FORBIDDEN, tables="tu").commit(book.ledger)
    assert (book.ledger.end("x", ABORTED), book.asked) == (COMMITTED, [])


@pytest.mark.parametrize("look", [FORBIDDEN, (400, {}), (200, {})], ids=["forbidden", "refused", "empty"])
@pytest.mark.parametrize("answer", [None, CLASH, (200, [1])], ids=["lost", "refused", "unreadable"])
@pytest.mark.parametrize("tables", ["t", "tu"])
def test_a_commit_that_cannot_be_looked_at_is_in_doubt(
    book: Book, answer: tuple[int, object] | None, look: tuple[int, object], tables: str
) -> None:
    with pytest.raises(Unavailable):
        Alone(answer, look=look, tables=tables).commit(book.ledger)
    book.made = True
    assert book.ledger.end("x", ABORTED) is COMMITTED


def test_an_answer_that_does_not_say_where_a_table_is_makes_it_looked_up(book: Book) -> None:
    assert Alone((200, {}), "t").commit(book.ledger) == {("a", "t"): "/t/1"}
    assert (book.state, book.asked) == (COMMITTED, [])


# One table, refused


def test_a_refused_commit_of_one_table_is_made_when_the_table_shows_it(book: Book) -> None:
    assert Alone(CLASH, "t").commit(book.ledger) == {("a", "t"): "/t/1"}
    assert (book.state, book.asked) == (COMMITTED, [])


def test_a_refused_commit_of_one_table_has_moved_when_the_table_does_not_show_it(book: Book) -> None:
    with pytest.raises(Moved):
        Alone(CLASH).commit(book.ledger)
    assert (book.ledger.end("x", ABORTED), book.asked) == (ABORTED, [])


def test_a_refused_commit_that_notes_nothing_has_moved() -> None:
    played = Alone(CLASH, look=FORBIDDEN)
    with crooked(played.reply) as uri, pytest.raises(Moved):
        RestPointers(RestClient(uri, {}, timeout=10)).commit(played.changes())


# How long it can be told


def test_a_beat_finds_out_what_became_of_commits_without_an_answer(book: Book) -> None:
    settled = threading.Event()

    def resolve(transaction_id: str, tables: object) -> bool:
        if len(asked) == 3:
            settled.set()
        asked.append(transaction_id)
        if len(asked) == 1:
            raise Unavailable("the catalog is away")
        if transaction_id == "b":
            raise Conflict("its table cannot be read")
        return True

    asked: list[str] = []
    ledger = Ledger(book.database, "other", clock=lambda: book.now, resolve=resolve)
    tables: list[TableName] = [TableName("a", "t")]
    for name in "bc":
        ledger.begin(name, owner="anna", isolation=Isolation.SNAPSHOT)
        ledger.publishing([name], tables)
    ledger.clean(0.0)
    assert asked == []  # they are under way
    ledger.unanswered("bc")
    ledger.start(dict, every=0.01)
    try:
        assert settled.wait(10)
    finally:
        ledger.stop()
    found = ledger.find("c")
    assert found is not None
    assert found.state is COMMITTED
