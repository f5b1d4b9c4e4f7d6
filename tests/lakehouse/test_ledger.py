"""What the database remembers of transactions: one outcome each, whoever dies, seems dead or gets no answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.errors import AlreadyExists, InternalError, TransactionNotActive, TransactionNotFound, Unavailable
from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.ledger import Ledger, Recorded
from sparkport.lakehouse.catalogs.ledger_rows import ALL_SINCE, ENDED, OPEN, UNKNOWN
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.pointers import Move
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.names import TableName

pytestmark = pytest.mark.tier("fast")

pytest_plugins = ["tests.support.services"]

ACTIVE, COMMITTED, ABORTED = TransactionState.ACTIVE, TransactionState.COMMITTED, TransactionState.ABORTED
A: TableName = TableName("public", "a")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Commits:
    """A catalog that is asked what became of a commit."""

    def __init__(self, *made: str) -> None:
        self.made = set(made)
        self.asked: list[tuple[str, tuple[TableName, ...]]] = []

    def __call__(self, transaction_id: str, tables: Sequence[TableName]) -> bool:
        self.asked.append((transaction_id, tuple(tables)))
        return transaction_id in self.made


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    sqlite = request.param == "sqlite"
    uri = f"sqlite:///{tmp_path}/catalog.db" if sqlite else request.getfixturevalue("postgres_uri")
    with closing(open_database(uri)) as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(database: Database, clock: Clock) -> Ledger:
    return Ledger(database, "lake", server="one", clock=clock)


@pytest.fixture
def other(database: Database, clock: Clock, ledger: Ledger) -> Ledger:
    return Ledger(database, "lake", server="two", clock=clock)


def begin(ledger: Ledger, transaction_id: str) -> None:
    ledger.begin(transaction_id, owner="anna", isolation=Isolation.SNAPSHOT)


def found(ledger: Ledger, transaction_id: str) -> Recorded:
    recorded = ledger.find(transaction_id)
    assert recorded is not None
    return recorded


def state(ledger: Ledger, transaction_id: str) -> TransactionState:
    return found(ledger, transaction_id).state


def die(clock: Clock, *living: Ledger) -> None:
    """Time in which only some say that they are alive."""
    clock.now += 61
    for ledger in living:
        ledger.beat({})


# The life of a transaction


def test_a_transaction_is_remembered_as_it_was_begun(ledger: Ledger, other: Ledger, clock: Clock) -> None:
    ledger.begin("t", owner="änna's", isolation=Isolation.SERIALIZABLE)
    here, there = found(ledger, "t"), found(other, "t")
    assert (here.state, here.owner, here.isolation, here.tables) == (ACTIVE, "änna's", Isolation.SERIALIZABLE, ())
    assert (here.server, here.begun.timestamp()) == ("one", clock.now)
    assert [(item.here, item.alive, item.state) for item in (here, there)] == [
        (True, True, ACTIVE),
        (False, True, ACTIVE),
    ]
    assert ledger.find("never") is None


def test_an_id_is_begun_once(ledger: Ledger, other: Ledger) -> None:
    begin(ledger, "t")
    with pytest.raises(AlreadyExists):
        begin(other, "t")
    assert found(other, "t").server == "one"


@pytest.mark.parametrize("first", [COMMITTED, ABORTED])
def test_the_first_outcome_holds(ledger: Ledger, first: TransactionState) -> None:
    begin(ledger, "t")
    for asked in (first, first, COMMITTED, ABORTED):
        assert ledger.end("t", asked) is first
    assert state(ledger, "t") is first


def test_the_end_of_a_transaction_that_never_was_is_only_taken_for_an_abort(ledger: Ledger) -> None:
    assert ledger.end("never", ABORTED) is ABORTED
    with pytest.raises(TransactionNotFound):
        ledger.end("never", COMMITTED)
    with pytest.raises(InternalError):
        ledger.end("never", ACTIVE)


def test_catalogs_in_one_database_do_not_see_each_others_transactions(database: Database, ledger: Ledger) -> None:
    begin(ledger, "t")
    elsewhere = Ledger(database, "other", server="one")  # which aborts what a server of this name left
    assert elsewhere.find("t") is None
    begin(elsewhere, "t")
    elsewhere.end("t", COMMITTED)
    assert state(ledger, "t") is ACTIVE


def test_several_servers_can_open_the_ledger_at_once(database: Database) -> None:
    start = threading.Barrier(6)

    def run(number: int) -> str:
        start.wait(timeout=30)
        ledger = Ledger(database, "lake")
        begin(ledger, f"t{number}")
        return ledger.server

    with ThreadPoolExecutor(6) as pool:
        servers = [future.result(timeout=60) for future in [pool.submit(run, number) for number in range(6)]]
    assert len(set(servers)) == 6
    assert len(Ledger(database, "lake").open_elsewhere()) == 6


# The dead and the living


def test_a_transaction_of_a_dead_server_is_aborted_for_good(ledger: Ledger, other: Ledger, clock: Clock) -> None:
    begin(ledger, "t")
    die(clock, other)
    recorded = found(other, "t")
    assert (recorded.state, recorded.alive) == (ABORTED, False)
    ledger.beat({})
    assert state(ledger, "t") is state(other, "t") is ABORTED
    assert ledger.end("t", COMMITTED) is ABORTED


def test_a_server_that_beats_stays_alive(ledger: Ledger, other: Ledger, clock: Clock) -> None:
    begin(ledger, "t")
    for _ in range(4):
        clock.now += 40
        ledger.beat({})
        other.beat({})
        assert state(other, "t") is ACTIVE


def test_a_server_sees_its_own_transactions_as_alive_whatever_others_see(ledger: Ledger, clock: Clock) -> None:
    begin(ledger, "t")
    die(clock)
    assert (found(ledger, "t").state, found(ledger, "t").alive) == (ACTIVE, True)


def test_what_a_server_left_is_aborted_when_it_is_started_again(database: Database, ledger: Ledger) -> None:
    begin(ledger, "lost")
    begin(ledger, "kept")
    ledger.end("kept", COMMITTED)
    again = Ledger(database, "lake", server="one")
    assert (state(again, "lost"), state(again, "kept")) == (ABORTED, COMMITTED)


def test_a_server_that_stops_says_so(database: Database, ledger: Ledger, other: Ledger) -> None:
    begin(ledger, "t")
    ledger.beat({"uuid": [1]})
    for _ in range(2):
        ledger.stop()
    with database.transaction() as work:
        assert work.query("SELECT server FROM sparkport_servers") == [("two",)]
        assert work.query("SELECT state FROM sparkport_transactions") == [("aborted",)]
    assert (other.needed_elsewhere("uuid"), other.open_elsewhere()) == (set(), [])


def test_a_server_whose_row_was_removed_goes_on(database: Database, ledger: Ledger, other: Ledger) -> None:
    begin(ledger, "lost")
    with database.transaction(write=True) as work:
        work.change("DELETE FROM sparkport_servers WHERE server = 'one'")
    assert state(other, "lost") is ABORTED
    ledger.beat({})
    begin(ledger, "next")
    assert state(other, "next") is ACTIVE


def test_servers_tell_which_snapshots_they_need(ledger: Ledger, other: Ledger, clock: Clock) -> None:
    ledger.beat({"a": {3, 1 << 62}, "b": [5], "none": []})
    other.beat({"a": [9]})
    assert other.needed_elsewhere("a") == {3, 1 << 62}
    assert other.needed_elsewhere("none") == set()
    assert ledger.needed_elsewhere("a") == {9}
    ledger.beat({"b": [6]})
    assert (other.needed_elsewhere("a"), other.needed_elsewhere("b")) == (set(), {6})
    assert other.oldest_report_elsewhere() == clock.now
    ledger.beat({"b": [6], ALL_SINCE: [int(clock.now) - 100]})  # what it needs besides is not known
    assert (other.needed_elsewhere("a"), other.needed_elsewhere("b")) == ({UNKNOWN}, {UNKNOWN, 6})
    assert other.oldest_report_elsewhere() == clock.now - 100
    die(clock, other)
    assert (other.needed_elsewhere("b"), other.oldest_report_elsewhere()) == (set(), None)


def test_open_transactions_of_live_servers_are_listed(ledger: Ledger, other: Ledger, clock: Clock) -> None:
    for name in ("first", "second", "ended"):
        begin(ledger, name)
        clock.now += 1
    begin(other, "own")
    ledger.end("ended", COMMITTED)
    listed = other.open_elsewhere()
    assert [(item.id, item.owner, item.isolation) for item in listed] == [
        ("first", "anna", Isolation.SNAPSHOT),
        ("second", "anna", Isolation.SNAPSHOT),
    ]
    die(clock, other)
    assert other.open_elsewhere() == []


def test_what_ended_long_ago_is_forgotten(database: Database, ledger: Ledger, other: Ledger, clock: Clock) -> None:
    for name in ("old", "new", "open", "own"):
        begin(other if name == "own" else ledger, name)
    ledger.end("old", COMMITTED)
    clock.now += 10
    ledger.end("new", COMMITTED)
    assert other.clean(before=clock.now) == 1
    assert ledger.find("old") is None
    assert (state(ledger, "new"), state(ledger, "open")) == (COMMITTED, ACTIVE)
    die(clock, other)
    assert other.clean(before=0) == 0
    assert (state(ledger, "open"), state(other, "own")) == (ABORTED, ACTIVE)
    clock.now += 3600
    other.beat({})
    assert other.clean(before=clock.now) == 2
    with database.transaction() as work:
        assert work.query("SELECT server FROM sparkport_servers") == [("two",)]
        assert work.query("SELECT id FROM sparkport_transactions") == [("own",)]


# The beat


class _Failing(Database):
    """A database that can be switched off."""

    def __init__(self, real: Database) -> None:
        self._real = real
        self.off = False

    def transaction(self, *, write: bool = False) -> Any:
        return self._broken() if self.off else self._real.transaction(write=write)

    @contextmanager
    def _broken(self) -> Iterator[Any]:
        raise Unavailable("switched off")
        yield

    def is_duplicate(self, exc: Exception) -> bool:
        return self._real.is_duplicate(exc)

    def close(self) -> None:
        self._real.close()


def test_the_beat_survives_an_outage_and_tells_of_it_once(
    database: Database, other: Ledger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    switch, beats = _Failing(database), threading.Semaphore(0)
    ledger = Ledger(switch, "lake", clock=clock)

    def needs() -> dict[str, list[int]]:
        beats.release()
        return {"uuid": [7]}

    def wait(count: int) -> None:
        assert all(beats.acquire(timeout=30) for _ in range(count))

    with caplog.at_level(logging.INFO, logger="sparkport.lakehouse.catalogs.ledger"):
        ledger.start(needs, every=0.001)
        with pytest.raises(InternalError):
            ledger.start(needs)
        wait(3)
        assert other.needed_elsewhere("uuid") == {7}
        switch.off = True
        while not caplog.records:
            wait(1)
        switch.off = False
        while len(caplog.records) < 2:
            wait(1)
        ledger.stop()
    told = [record.message for record in caplog.records]
    assert len([text for text in told if "cannot say" in text]) == 1
    assert len([text for text in told if "can say again" in text]) == 1
    assert other.needed_elsewhere("uuid") == set()


def test_a_server_can_stop_while_its_database_is_gone(
    database: Database, other: Ledger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    switch = _Failing(database)
    ledger = Ledger(switch, "lake", clock=clock)
    begin(ledger, "t")
    switch.off = True
    ledger.stop()
    assert "not noted" in caplog.text
    assert state(other, "t") is ACTIVE
    die(clock, other)
    assert state(other, "t") is ABORTED


# Commits together with the tables of a SQL catalog


@pytest.fixture
def pointers(database: Database, ledger: Ledger) -> Iterator[SqlPointers]:
    made = SqlPointers(database, "lake", ledger=ledger)
    made.create_schema("public", {})
    made.create(A, "0")
    yield made
    on_fault("pointer.before", None)


def test_transactions_are_committed_with_the_tables(pointers: SqlPointers, ledger: Ledger, other: Ledger) -> None:
    for name in ("t", "u", "v"):
        begin(ledger, name)
    pointers.swap([Move(A, "0", "1")], {"s": 1}, transactions=["u", "t"])
    assert [state(other, name) for name in "tuv"] == [COMMITTED, COMMITTED, ACTIVE]
    pointers.swap([], transactions=["v"])
    assert state(other, "v") is COMMITTED


def test_nothing_is_committed_when_one_transaction_is_not_active(pointers: SqlPointers, ledger: Ledger) -> None:
    begin(ledger, "t")
    begin(ledger, "u")
    ledger.end("u", ABORTED)
    for name, said in (("u", "aborted"), ("never", "aborted")):
        with pytest.raises(TransactionNotActive, match=f"'{name}'.*{said}"):
            pointers.swap([Move(A, "0", "1")], {"s": 1}, transactions=["t", name])
    assert (pointers.location(A), pointers.statement("s"), state(ledger, "t")) == ("0", None, ACTIVE)
    pointers.swap([Move(A, "0", "1")], transactions=["t"])
    with pytest.raises(TransactionNotActive, match="committed"):
        pointers.swap([Move(A, "1", "2")], transactions=["t"])
    assert pointers.location(A) == "1"


def test_a_server_that_only_seemed_dead_cannot_commit(
    pointers: SqlPointers, ledger: Ledger, other: Ledger, clock: Clock
) -> None:
    begin(ledger, "t")
    die(clock, other)
    assert state(other, "t") is ABORTED
    with pytest.raises(TransactionNotActive, match="aborted"):
        pointers.swap([Move(A, "0", "1")], transactions=["t"])
    assert pointers.location(A) == "0"


@pytest.mark.parametrize("ask", ["find", "end", "clean"])
def test_who_asks_during_a_commit_waits_for_it(
    pointers: SqlPointers, ledger: Ledger, other: Ledger, clock: Clock, ask: str
) -> None:
    begin(ledger, "t")
    die(clock, other)

    def look() -> TransactionState:
        if ask == "clean":
            other.clean(before=0)
        return other.end("t", ABORTED) if ask == "end" else state(other, "t")

    with ThreadPoolExecutor(1) as pool:
        asked: list[Any] = []
        on_fault("pointer.before", lambda: asked.append(pool.submit(look)))
        pointers.swap([Move(A, "0", "1")], transactions=["t"])
        assert asked[0].result(timeout=60) is COMMITTED
    assert pointers.location(A) == "1"


def test_each_transaction_has_one_outcome_whoever_is_first(
    pointers: SqlPointers, ledger: Ledger, other: Ledger, clock: Clock
) -> None:
    names = [f"t{number}" for number in range(40)]
    for name in names:
        begin(ledger, name)
    die(clock, other)
    start = threading.Barrier(3)

    def commit(chosen: Sequence[str]) -> None:
        start.wait(timeout=30)
        for name in chosen:
            try:
                pointers.swap([], {name: 1}, transactions=[name])
            except TransactionNotActive:
                continue

    def abort() -> dict[str, TransactionState]:
        start.wait(timeout=30)
        return {name: state(other, name) for name in reversed(names)}

    with ThreadPoolExecutor(3) as pool:
        seen = pool.submit(abort)
        commits = [pool.submit(commit, part) for part in (names[::2], names[1::2])]
        for future in commits:
            future.result(timeout=60)
        outcomes = seen.result(timeout=60)
    for name in names:
        assert state(ledger, name) is outcomes[name]
        assert (pointers.statement(name) is not None) == (outcomes[name] is COMMITTED)


def test_groups_that_share_transactions_do_not_wait_for_ever(pointers: SqlPointers, ledger: Ledger) -> None:
    names = [f"t{number}" for number in range(20)]
    for name in names:
        begin(ledger, name)
    start = threading.Barrier(2)

    def commit(order: Sequence[str]) -> bool:
        start.wait(timeout=30)
        try:
            pointers.swap([], transactions=order)
        except TransactionNotActive:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(commit, names), pool.submit(commit, names[::-1])]
        assert sorted(future.result(timeout=60) for future in done) == [False, True]
    assert {state(ledger, name) for name in names} == {COMMITTED}


# Commits that a catalog makes elsewhere


@pytest.mark.parametrize("made", [True, False])
def test_a_commit_of_a_dead_server_is_looked_up(database: Database, clock: Clock, made: bool) -> None:
    commits = Commits("t") if made else Commits()
    dead = Ledger(database, "lake", clock=clock, resolve=commits)
    living = Ledger(database, "lake", clock=clock, resolve=commits)
    begin(dead, "t")
    dead.publishing(["t"], [TableName("public", "b"), A])
    assert state(living, "t") is ACTIVE
    assert commits.asked == []
    die(clock, living)
    assert state(living, "t") is (COMMITTED if made else ABORTED)
    assert commits.asked == [("t", (A, ("public", "b")))]
    assert state(living, "t") is (COMMITTED if made else ABORTED)
    assert dead.end("t", COMMITTED) is (COMMITTED if made else ABORTED)
    assert len(commits.asked) == 1


def test_a_commit_under_way_is_not_looked_up_by_its_own_server(database: Database, clock: Clock) -> None:
    commits = Commits()
    ledger = Ledger(database, "lake", clock=clock, resolve=commits)
    begin(ledger, "t")
    for _ in range(2):  # once more after a table had moved
        ledger.publishing(["t"], [A])
        clock.now += 100
        assert (state(ledger, "t"), found(ledger, "t").tables) == (ACTIVE, (A,))
    assert commits.asked == []
    assert ledger.end("t", COMMITTED) is COMMITTED


@pytest.mark.parametrize("moved", [0.0, 1e6, -1e6])
def test_what_became_of_a_commit_without_an_answer_is_the_catalogs_to_say_whatever_the_clock_says(
    database: Database, clock: Clock, moved: float
) -> None:
    commits = Commits("late")
    ledger = Ledger(database, "lake", clock=clock, resolve=commits)
    for name in ("late", "lost"):
        begin(ledger, name)
    ledger.publishing(["late", "lost"], [A])
    clock.now += moved
    assert (state(ledger, "late"), state(ledger, "lost"), commits.asked) == (ACTIVE, ACTIVE, [])
    ledger.unanswered(["late", "lost"])
    assert (state(ledger, "late"), state(ledger, "lost")) == (COMMITTED, ABORTED)
    assert (ledger.ended(["late", "lost", "never"]), ledger.ended([])) == ({"late", "lost"}, set())
    with pytest.raises(TransactionNotActive, match="aborted"):
        ledger.publishing(["lost"], [A])


def test_a_restarted_server_looks_up_what_it_was_publishing(database: Database, clock: Clock) -> None:
    commits = Commits("made")
    ledger = Ledger(database, "lake", server="one", clock=clock, resolve=commits)
    for name in ("made", "lost", "open"):
        begin(ledger, name)
    ledger.publishing(["made"], [A])
    ledger.publishing(["lost"], [A])
    again = Ledger(database, "lake", server="one", clock=clock, resolve=commits)
    assert [state(again, name) for name in ("made", "lost", "open")] == [COMMITTED, ABORTED, ABORTED]


def test_a_catalog_that_cannot_be_asked_leaves_the_outcome_open(
    database: Database, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def away(transaction_id: str, tables: Sequence[TableName]) -> bool:
        raise Unavailable("the catalog is away")

    ledger = Ledger(database, "lake", clock=clock, resolve=away)
    begin(ledger, "t")
    ledger.publishing(["t"], [A])
    ledger.unanswered(["t"])
    clock.now += 100
    with pytest.raises(Unavailable):
        ledger.find("t")
    assert ledger.clean(before=clock.now) == 0
    assert "not known yet" in caplog.text
    back = Ledger(database, "lake", server=ledger.server, clock=clock, resolve=Commits("t"))
    assert state(back, "t") is COMMITTED


def test_a_ledger_that_cannot_ask_the_catalog_notes_no_commits(ledger: Ledger) -> None:
    begin(ledger, "t")
    with pytest.raises(InternalError):
        ledger.publishing(["t"], [A])
    assert state(ledger, "t") is ACTIVE


INDEXES = ("sparkport_transactions_by_state", "sparkport_statements_by_time")


def test_databases_of_before_get_indexes_on_times_and_states(database: Database) -> None:
    for _ in range(2):  # made, and made again by those who come next
        ledger = Ledger(database, "lake", server="one")
        SqlPointers(database, "lake", ledger=ledger)
        with database.transaction(write=True) as work:
            assert all(work.has_index(name) for name in INDEXES)
            for name in INDEXES:
                work.change(f"DROP INDEX {name}")
            assert not any(work.has_index(name) for name in INDEXES)


def test_all_that_is_looked_for_by_time_or_state_uses_an_index(tmp_path: Path) -> None:
    with closing(open_database(f"sqlite:///{tmp_path}/catalog.db")) as database:
        SqlPointers(database, "lake", ledger=Ledger(database, "lake", server="one"))
        for sql, index in (
            (f"DELETE FROM sparkport_transactions WHERE catalog_name = '' AND {ENDED} AND ended < 1", INDEXES[0]),
            (f"SELECT id FROM sparkport_transactions t WHERE catalog_name = '' AND {OPEN}", INDEXES[0]),
            ("DELETE FROM sparkport_statements WHERE catalog_name = '' AND committed_at < 1", INDEXES[1]),
        ):
            with database.transaction() as work:
                plan = str(work.query(f"EXPLAIN QUERY PLAN {sql}"))
            assert f"USING INDEX {index}" in plan or f"USING COVERING INDEX {index}" in plan
