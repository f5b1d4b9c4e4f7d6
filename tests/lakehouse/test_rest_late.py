"""Commits to a REST catalog that are late, lost, doubled or refused for no reason: made once, or never again."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.lakehouse.rest_between import Between, between
from tests.lakehouse.test_rest_pointers import Lake

from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.errors import AlreadyExists, TableNotFound, TransactionNotActive, Unavailable
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.pointers import Edit, Moved, OutcomeUnknown
from sparkport.lakehouse.catalogs.rest import RestPointers
from sparkport.lakehouse.catalogs.rest_client import RestClient
from sparkport.lakehouse.catalogs.statement_records import StatementRecords
from sparkport.lakehouse.iceberg.edits import set_properties
from sparkport.lakehouse.names import TableName

pytestmark = pytest.mark.tier("thorough")

pytest_plugins = ["tests.support.services"]

ACTIVE, COMMITTED, ABORTED = TransactionState.ACTIVE, TransactionState.COMMITTED, TransactionState.ABORTED
NO_PAUSES = (0.0,) * 6


@pytest.fixture
def lake(rest_uri: str, tmp_path: Path) -> Lake:
    """The catalog as others see it, to whom nothing happens."""
    return Lake(rest_uri, tmp_path)


@pytest.fixture
def net(rest_uri: str) -> Iterator[tuple[Between, str]]:
    with between(rest_uri) as made:
        yield made


@pytest.fixture
def far(net: tuple[Between, str]) -> Between:
    return net[0]


@pytest.fixture
def pointers(net: tuple[Between, str]) -> RestPointers:
    return RestPointers(RestClient(net[1], {}, timeout=30), pauses=NO_PAUSES)


def filled(lake: Lake, name: str = "t") -> TableName:
    """A table that has a row."""
    table = lake.table(name)
    lake.pointers.commit([lake.publication(table, lake.stage(table))])
    return table


def tags(lake: Lake, table: TableName) -> list[str]:
    return [name for name in lake.load(table)[1]["refs"] if name != "main"]


def log(lake: Lake, table: TableName) -> list[int]:
    return [entry["snapshot-id"] for entry in lake.load(table)[1]["snapshot-log"]]


TABLES: dict[str, Callable[[Lake], list[TableName]]] = {
    "an empty table": lambda lake: [lake.table("t")],
    "a table": lambda lake: [filled(lake)],
    "two tables": lambda lake: [filled(lake, "u"), lake.table("t")],
}


@pytest.fixture(params=list(TABLES))
def tables(lake: Lake, request: pytest.FixtureRequest) -> list[TableName]:
    return TABLES[request.param](lake)


def publications(lake: Lake, tables: Sequence[TableName]) -> list[Edit]:
    return [lake.publication(table, lake.stage(table)) for table in tables]


# The answer is not heard


@pytest.mark.parametrize("what", ["lost", "twice", "proxy"])
@pytest.mark.parametrize("statements", [{}, {"s": 3}], ids=["no id", "with an id"])
def test_a_commit_that_was_made_is_made_once_whatever_became_of_its_answer(
    lake: Lake, far: Between, pointers: RestPointers, tables: list[TableName], what: str, statements: dict[str, int]
) -> None:
    before = [log(lake, table) for table in tables]
    changes = publications(lake, tables)
    far.plan = [what]
    assert pointers.commit(changes, statements) == {table: lake.load(table)[0] for table in tables}
    new = [change.after["refs"]["main"]["snapshot-id"] for change in changes]
    assert [log(lake, table) for table in tables] == [
        [*old, snapshot] for old, snapshot in zip(before, new, strict=True)
    ]
    assert all(tags(lake, table) == [] for table in tables)
    assert [pointers.statement(key, table) for key in statements for table in tables] == [3] * len(statements) * len(
        tables
    )


@pytest.mark.parametrize("statements", [{}, {"s": 3}], ids=["no id", "with an id"])
def test_a_commit_that_comes_late_is_never_made(
    lake: Lake, far: Between, pointers: RestPointers, tables: list[TableName], statements: dict[str, int]
) -> None:
    before = [log(lake, table) for table in tables]
    changes = publications(lake, tables)
    far.plan = ["late"]
    with pytest.raises(Unavailable, match="it was not made, and will not be") as told:
        pointers.commit(changes, statements)
    assert not isinstance(told.value, OutcomeUnknown)
    assert far.deliver() == [409]
    assert [log(lake, table) for table in tables] == before
    again = [lake.publication(change.table, change.after["refs"]["main"]["snapshot-id"]) for change in changes]
    pointers.commit(again, statements)
    assert [len(log(lake, table)) for table in tables] == [len(old) + 1 for old in before]


def test_a_commit_that_comes_before_the_stop_is_made(
    lake: Lake, far: Between, pointers: RestPointers, tables: list[TableName]
) -> None:
    """It is looked for, is not there yet, and is made before the tag is."""
    changes = publications(lake, tables)
    far.plan = ["late", "cut"]
    with pytest.raises(OutcomeUnknown) as told:
        pointers.commit(changes)
    with pytest.raises(Unavailable):
        told.value.settle()
    far.is_cut = False
    assert far.deliver() == [204 if len(tables) > 1 else 200]
    assert told.value.settle()
    assert told.value.settle()
    assert all(tags(lake, table) == [] for table in tables)


@pytest.mark.parametrize("stop", [["lost"], ["late"], ["clash"], ["proxy"], ["late", "clash", "lost"], ["twice"]])
def test_the_stop_itself_may_be_lost_late_or_refused(
    lake: Lake, far: Between, pointers: RestPointers, tables: list[TableName], stop: list[str]
) -> None:
    before = [log(lake, table) for table in tables]
    far.plan = ["late", *stop]
    with pytest.raises(Unavailable, match="will not be"):
        pointers.commit(publications(lake, tables))
    assert set(far.deliver()) == {409}
    assert [log(lake, table) for table in tables] == before
    assert [len(tags(lake, table)) for table in sorted(tables)] == [1, 0][: len(tables)]


def test_a_commit_in_doubt_is_settled_when_the_catalog_is_back(
    lake: Lake, far: Between, pointers: RestPointers, tables: list[TableName]
) -> None:
    before = [log(lake, table) for table in tables]
    far.plan = ["late", "cut"]
    with pytest.raises(OutcomeUnknown) as told:
        pointers.commit(publications(lake, tables))
    far.is_cut = False
    assert told.value.settle() is False
    assert far.deliver() == [409]
    assert [log(lake, table) for table in tables] == before


def test_a_change_of_properties_that_comes_late_is_never_made(lake: Lake, far: Between, pointers: RestPointers) -> None:
    table = filled(lake)
    location, before = lake.load(table)
    far.plan = ["late"]
    with pytest.raises(Unavailable, match="will not be"):
        pointers.commit([Edit(table, before, set_properties(before, {"comment": "late"}, previous=location))])
    assert far.deliver() == [409]
    assert "comment" not in lake.load(table)[1]["properties"]


def test_a_change_of_a_table_without_any_snapshot_may_be_in_doubt(
    lake: Lake, far: Between, pointers: RestPointers
) -> None:
    """There is nothing that a tag could be put on, and it is no snapshot that the change would make visible."""
    table = lake.table("t")
    location, before = lake.load(table)
    far.plan = ["late"]
    with pytest.raises(OutcomeUnknown) as told:
        pointers.commit([Edit(table, before, set_properties(before, {"comment": "late"}, previous=location))])
    far.deliver()
    assert told.value.settle()


# Refused for no reason


def test_a_commit_that_is_refused_for_no_reason_is_tried_again(
    lake: Lake, far: Between, pointers: RestPointers, tables: list[TableName]
) -> None:
    changes = publications(lake, tables)
    far.plan = ["clash"] * 3
    pointers.commit(changes)
    assert far.changes == 4
    assert all(tags(lake, table) == [] for table in tables)


def test_a_commit_that_is_refused_for_no_reason_all_the_time_fails_after_some_pauses(
    lake: Lake, net: tuple[Between, str], tables: list[TableName], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    far, uri = net
    pointers = RestPointers(RestClient(uri, {}, timeout=30), pauses=(1.0, 2.0, 4.0))
    monkeypatch.setattr("sparkport.lakehouse.catalogs.rest_commit.time.sleep", waited.append)
    changes = publications(lake, tables)
    before = [log(lake, table) for table in tables]
    far.plan = ["clash"] * 4
    with pytest.raises(Unavailable, match="refuses the change though the table is as it was"):
        pointers.commit(changes)
    assert [0.5 <= one <= 1.5 for one in (waited[0], waited[1] / 2, waited[2] / 4)] == [True] * 3
    assert [log(lake, table) for table in tables] == before
    assert len(tags(lake, min(tables))) == 1  # one of the tries may still be on its way


# The same statement twice


def test_a_repeat_that_looked_before_the_first_landed_is_not_made(
    lake: Lake, far: Between, pointers: RestPointers
) -> None:
    """Both look and see nothing; both have Spark make a snapshot; the first lands while the repeat is at it."""
    table = filled(lake)
    first, repeat = lake.stage(table), lake.stage(table)
    late = lake.publication(table, repeat)
    pointers.commit([lake.publication(table, first)], {"s": 1})
    with pytest.raises(Moved):
        pointers.commit([late], {"s": 1})
    # It is made anew, on top of the first, as for any other change of the table.
    with pytest.raises(AlreadyExists):
        pointers.commit([lake.publication(table, lake.stage(table))], {"s": 1})
    assert (len(log(lake, table)), lake.main(table)) == (2, first)


def test_the_first_that_lands_after_its_repeat_is_refused(lake: Lake, far: Between, pointers: RestPointers) -> None:
    table = filled(lake)
    first, repeat = (lake.publication(table, lake.stage(table)) for _ in range(2))
    far.plan = ["late", "cut"]
    with pytest.raises(OutcomeUnknown) as told:
        pointers.commit([first], {"s": 1})
    far.is_cut = False
    pointers.commit([repeat], {"s": 1})
    assert far.deliver() == [409]
    assert told.value.settle() is False
    assert (len(log(lake, table)), pointers.statement("s", table)) == (2, 1)


def test_a_repeat_is_known_whichever_of_the_changed_tables_is_asked(lake: Lake, pointers: RestPointers) -> None:
    """Statements on several tables are committed together, and a repeat need not meet the same company."""
    one, two = lake.table("one"), lake.table("two")
    pointers.commit(publications(lake, [one, two]), {"s": 1, "r": 2})
    for table, key in ((one, "s"), (two, "s"), (one, "r"), (two, "r")):
        with pytest.raises(AlreadyExists):
            pointers.commit(publications(lake, [table]), {key: 1, "new": 1})
    assert [pointers.statement("new", table) for table in (one, two)] == [None, None]


# Transactions


class Servers:
    """Two servers with one ledger, and a clock that anybody may move."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.now = 1000.0
        self.x, self.y = (str(uuid.uuid4()) for _ in range(2))
        self.database = open_database(f"sqlite:///{folder}/ledger.db")
        self.ledgers: list[Ledger] = []
        self.pointers: list[RestPointers] = []
        for _ in range(2):
            ledger = Ledger(self.database, "lake", clock=lambda: self.now, resolve=self._settle)
            self.ledgers.append(ledger)
            statements = StatementRecords(self.database, "lake")
            self.pointers.append(
                RestPointers(RestClient(uri, {}), ledger=ledger, statements=statements, pauses=NO_PAUSES)
            )

    def _settle(self, transaction_id: str, tables: Sequence[TableName]) -> bool:
        return self.pointers[1].settle(transaction_id, tables)

    def begin(self, *names: str) -> None:
        for name in names:
            self.ledgers[0].begin(name, owner="anna", isolation=Isolation.SNAPSHOT)

    def states(self, name: str) -> set[TransactionState]:
        found = [ledger.find(name) for ledger in self.ledgers]
        return {recorded.state for recorded in found if recorded is not None}

    def first_dies(self) -> None:
        """As far as the other can see."""
        self.now += 1000
        self.ledgers[1].beat({})


@pytest.fixture
def servers(net: tuple[Between, str], tmp_path: Path) -> Iterator[Servers]:
    made = Servers(net[1], tmp_path)
    with closing(made.database):
        yield made


@pytest.mark.parametrize("moved", [0.0, 1e6, -1e6])
def test_a_transaction_whose_commit_comes_late_is_aborted_whatever_the_clock_says(
    lake: Lake, far: Between, servers: Servers, tables: list[TableName], moved: float
) -> None:
    before = [log(lake, table) for table in tables]
    servers.begin(servers.x)
    changes = publications(lake, tables)
    far.plan = ["late", "cut"]
    with pytest.raises(OutcomeUnknown):
        servers.pointers[0].commit(changes, transactions=[servers.x])
    servers.now += moved
    with pytest.raises(Unavailable):
        servers.ledgers[0].end(servers.x, ABORTED)
    far.is_cut = False
    servers.now -= 2 * moved
    assert servers.ledgers[0].end(servers.x, ABORTED) is ABORTED
    assert far.deliver() == [409]
    assert [log(lake, table) for table in tables] == before
    assert servers.states(servers.x) == {ABORTED}


@pytest.mark.parametrize("moved", [0.0, 1e6, -1e6])
def test_a_transaction_whose_commit_lands_before_anybody_asks_is_committed(
    lake: Lake, far: Between, servers: Servers, tables: list[TableName], moved: float
) -> None:
    servers.begin(servers.x)
    far.plan = ["late", "cut"]
    with pytest.raises(OutcomeUnknown):
        servers.pointers[0].commit(publications(lake, tables), transactions=[servers.x])
    far.is_cut = False
    far.deliver()
    servers.now += moved
    assert servers.ledgers[0].end(servers.x, ABORTED) is COMMITTED
    assert servers.states(servers.x) == {COMMITTED}


def test_a_server_that_only_seemed_dead_cannot_commit_what_another_has_aborted(
    lake: Lake, servers: Servers, tables: list[TableName], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has noted that it commits, and stands still before it sends anything; another settles it meanwhile."""
    servers.begin(servers.x, servers.y)
    changes = publications(lake, tables)
    first = servers.pointers[0]
    post = RestClient.post

    def late(client: RestClient, *path: str, body: dict[str, object]) -> dict[str, object]:
        monkeypatch.undo()
        servers.first_dies()
        found = servers.ledgers[1].find(servers.x)
        assert found is not None
        assert found.state is ABORTED
        return post(client, *path, body=body)

    monkeypatch.setattr(RestClient, "post", late)
    with pytest.raises(TransactionNotActive) as told:
        first.commit(changes, transactions=[servers.x, servers.y])
    assert told.value.transaction_id == servers.x
    assert servers.ledgers[0].end(servers.x, ABORTED) is ABORTED
    # The others of the group go on without it.
    again = [lake.publication(change.table, change.after["refs"]["main"]["snapshot-id"]) for change in changes]
    servers.ledgers[0].beat({})
    first.commit(again, transactions=[servers.y])
    assert (servers.states(servers.x), servers.states(servers.y)) == ({ABORTED}, {COMMITTED})


@pytest.mark.parametrize("what", ["lost", "twice", "proxy"])
def test_a_transaction_that_was_made_is_committed_whatever_became_of_the_answer(
    lake: Lake, far: Between, servers: Servers, tables: list[TableName], what: str
) -> None:
    servers.begin(servers.x)
    far.plan = [what]
    servers.pointers[0].commit(publications(lake, tables), transactions=[servers.x])
    assert servers.states(servers.x) == {COMMITTED}
    assert all(tags(lake, table) == [] for table in tables)


def test_a_transaction_is_found_in_a_table_that_was_renamed_since(lake: Lake, far: Between, servers: Servers) -> None:
    table, other = filled(lake), lake.table("other")
    servers.begin(servers.x)
    far.plan = ["late", "cut"]
    with pytest.raises(OutcomeUnknown):
        servers.pointers[0].commit(publications(lake, [table]), transactions=[servers.x])
    far.is_cut = False
    far.deliver()
    lake.pointers.rename(table, TableName(lake.schema, "renamed"))
    far.forbidden = other[1]
    assert servers.ledgers[0].end(servers.x, ABORTED) is COMMITTED


def test_a_transaction_of_a_table_that_was_dropped_is_aborted(lake: Lake, far: Between, servers: Servers) -> None:
    table = filled(lake)
    servers.begin(servers.x)
    far.plan = ["late", "cut"]
    with pytest.raises(OutcomeUnknown):
        servers.pointers[0].commit(publications(lake, [table]), transactions=[servers.x])
    far.is_cut = False
    lake.pointers.drop(table)
    assert servers.ledgers[0].end(servers.x, ABORTED) is ABORTED
    assert far.deliver() == [404]


# Names


@pytest.mark.parametrize("what", ["lost", "twice", "late"])
def test_changes_of_names_whose_answer_is_lost_are_looked_up(
    lake: Lake, far: Between, pointers: RestPointers, what: str
) -> None:
    new = lake.load(lake.table("other"))[0]
    one, two, schema = TableName(lake.schema, "one"), TableName(lake.schema, "two"), f"{lake.schema}x"
    calls: list[Callable[[], object]] = [
        lambda: pointers.create(one, new),
        lambda: pointers.rename(one, two),
        lambda: pointers.drop(two),
    ]
    if what != "twice":  # of schemas nobody can tell
        calls += [lambda: pointers.create_schema(schema, {}), lambda: pointers.drop_schema(schema)]
    for call in calls:
        far.plan = [what]
        if what == "late":
            with pytest.raises(Unavailable, match="no answer"):
                call()
            far.deliver()
        else:
            call()
    assert schema not in lake.pointers.cut().schemas
    assert [lake.pointers.location(table) for table in (one, two)] == [None, None]


def test_a_replacement_whose_answers_are_lost_leaves_one_table(
    lake: Lake, far: Between, pointers: RestPointers
) -> None:
    table, new = filled(lake), lake.load(lake.table("other"))[0]
    far.plan = ["lost"] * 3
    pointers.replace(table, new)
    assert lake.load(table)[0] == new
    assert sorted(name for schema, name in lake.pointers.cut().tables if schema == lake.schema) == ["other", "t"]


# Others' tables


def test_a_table_that_may_not_be_seen_is_in_nobodys_way(lake: Lake, far: Between, pointers: RestPointers) -> None:
    table, hidden = filled(lake), lake.table("hidden")
    far.forbidden = "hidden"
    far.looks.clear()
    assert pointers.statement("s", table) is None
    pointers.commit(publications(lake, [table]), {"s": 1})
    assert pointers.statement("s", table) == 1
    assert {path.partition("?")[0].rpartition("/")[2] for path in far.looks if "/tables" in path} == {"t"}
    seen = dict(pointers.cut().tables.items())
    assert table in seen
    assert hidden not in seen
    with pytest.raises(Exception, match="not for you"):
        pointers.location(hidden)
    far.forbidden = ""
    with pytest.raises(TableNotFound):
        pointers.drop(TableName(lake.schema, "never"))
