"""Transactions through the Python client, and what it makes of answers that are lost on the way."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.support.fault_proxy import FaultProxy

from sparkport.app import Server
from sparkport.catalog.builder import CatalogBuilder
from sparkport.catalog.context import CallContext
from sparkport.catalog.statement import Statement
from sparkport.catalog.transaction import TransactionState
from sparkport.client import Client, OutcomeUnknown, Transaction, col, connect
from sparkport.errors import (
    Conflict,
    ConstraintViolation,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    SparkportError,
    Unavailable,
    Unsupported,
)
from sparkport.memory import MemoryCatalog, MemoryTable
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

USERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
ANN, BOB = {"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}
TWO = pa.Table.from_pylist([ANN, BOB], USERS)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def __call__(self) -> dt.datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalog(clock: Clock) -> MemoryCatalog:
    catalog = MemoryCatalog(clock=clock)
    catalog.create_table("public.users", USERS)
    catalog.create_table("public.orders", USERS)
    return catalog


@pytest.fixture
def server(catalog: MemoryCatalog) -> Iterator[Server]:
    with serving(catalog) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.location) as client:
        yield client


def names(session: Client | Transaction, table: str = "public.users") -> list[str]:
    found: list[str] = session.scan(table).read_all().column("name").to_pylist()
    return found


def rename(session: Client | Transaction, old: str, new: str) -> int:
    found = session.scan("public.users", columns=[], filter=col("name") == old, row_id=True).read_all()
    return session.update("public.users", found.append_column("name", [[new] * found.num_rows])).count


def within(client: Client, *steps: Callable[[Transaction], object]) -> None:
    """The steps in the block of one transaction."""
    with client.transaction() as tx:
        for step in steps:
            step(tx)


def fail(tx: Transaction) -> None:
    raise ZeroDivisionError("mine")


def insert_two(tx: Transaction) -> None:
    tx.insert("public.users", TWO)


# One transaction


def test_changes_in_two_tables_are_seen_by_others_at_one_instant(client: Client) -> None:
    with client.transaction() as tx:
        assert tx.insert("public.users", TWO).count == 2
        assert tx.insert("public.orders", [ANN], returning=True).count == 1
        assert rename(tx, "ann", "anna") == 1
        assert sorted(names(tx)) == ["anna", "bob"]
        assert names(tx, "public.orders") == ["ann"]
        assert names(client) == names(client, "public.orders") == []
        assert tx.status() is TransactionState.ACTIVE
    assert sorted(names(client)) == ["anna", "bob"]
    assert names(client, "public.orders") == ["ann"]
    assert tx.status() is TransactionState.COMMITTED


def test_an_exception_in_the_block_rolls_back_and_is_raised_as_it_is(client: Client) -> None:
    begun: list[Transaction] = []
    with pytest.raises(ZeroDivisionError, match="mine"):
        within(client, begun.append, insert_two, fail)
    assert begun[0].status() is TransactionState.ABORTED
    assert names(client) == []


def test_the_exception_is_raised_as_it_is_when_the_server_is_gone_too(catalog: MemoryCatalog) -> None:
    with (
        serving(catalog) as server,
        connect(server.location) as client,
        pytest.raises(ZeroDivisionError, match="mine"),
    ):
        within(client, insert_two, lambda tx: server.stop(grace=0), fail)


def test_a_transaction_may_be_ended_by_hand_once(client: Client) -> None:
    with client.transaction() as tx:
        tx.insert("public.users", [ANN])
        tx.commit()
        tx.commit()
        assert names(client) == ["ann"]
        with pytest.raises(FailedPrecondition, match=r"is not active \(state: committed\)"):
            tx.insert("public.users", [BOB])
        with pytest.raises(FailedPrecondition, match=r"is not active \(state: committed\)"):
            tx.rollback()
    with client.transaction() as tx:
        tx.insert("public.users", [BOB])
        tx.rollback()
        tx.rollback()
        for change in (tx.commit, lambda: tx.delete("public.users", [0])):
            with pytest.raises(FailedPrecondition, match=rf"transaction '{tx.id}' is not active \(state: aborted\)"):
                change()
    assert names(client) == ["ann"]


def test_a_statement_that_failed_aborts_the_transaction_even_if_its_error_is_caught(client: Client) -> None:
    begun: list[Transaction] = []

    def caught(tx: Transaction) -> None:
        with pytest.raises(ConstraintViolation):
            tx.insert("public.users", [{"id": None, "name": "x"}])

    with pytest.raises(FailedPrecondition, match="aborted by an earlier failure in it: NOT NULL"):
        within(client, begun.append, insert_two, caught)
    assert begun[0].status() is TransactionState.ABORTED
    assert names(client) == []


def test_rows_that_fail_at_the_client_abort_the_transaction_too(client: Client) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield TWO.to_batches()[0]
        raise ZeroDivisionError

    def caught(tx: Transaction) -> None:
        with pytest.raises(ZeroDivisionError):
            tx.insert("public.users", failing())

    with pytest.raises(FailedPrecondition, match="earlier failure"):
        within(client, insert_two, caught)
    assert names(client) == []


def test_a_failed_read_aborts_nothing(client: Client) -> None:
    with client.transaction() as tx:
        tx.insert("public.users", [ANN])
        with pytest.raises(NotFound):
            tx.scan("public.nobody")
    assert names(client) == ["ann"]


def test_an_idle_transaction_expires(client: Client, clock: Clock) -> None:
    def wait(tx: Transaction) -> None:
        clock.now += dt.timedelta(minutes=16)
        assert tx.status() is TransactionState.ABORTED

    with pytest.raises(FailedPrecondition, match=r"is not active \(state: aborted\)"):
        within(client, insert_two, wait)
    assert names(client) == []


def test_a_transaction_names_its_catalog_where_there_are_several(catalog: MemoryCatalog) -> None:
    with serving(MemoryCatalog("other"), catalog) as server, connect(server.location, catalog="lake") as client:
        with client.transaction() as tx:
            tx.insert("public.users", TWO)
        assert tx.status() is TransactionState.COMMITTED
        assert names(client) == ["ann", "bob"]


def test_a_server_without_transactions_is_told_as_unsupported() -> None:
    with (
        serving(CatalogBuilder().schema("public").table("users", TWO).build()) as server,
        connect(server.location) as client,
        pytest.raises(Unsupported, match="transaction manager not configured"),
    ):
        client.transaction()


def test_only_known_isolations_and_attempts_are_taken(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="snapshot or serializable, not 'dirty'"):
        client.transaction(isolation="dirty")
    with pytest.raises(InvalidArgument, match="at least 1"):
        client.run_transaction(lambda tx: None, attempts=0)


# Conflicts


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_only_a_serializable_transaction_minds_changes_to_what_it_has_read(client: Client, isolation: str) -> None:
    def run() -> None:
        with client.transaction(isolation=isolation) as tx:
            names(tx, "public.orders")
            tx.insert("public.users", [ANN])
            client.insert("public.orders", [BOB])

    if isolation == "serializable":
        with pytest.raises(Conflict):
            run()
    else:
        run()
    assert names(client) == ([] if isolation == "serializable" else ["ann"])


def test_a_function_is_run_again_from_its_start_after_a_conflict(client: Client) -> None:
    client.insert("public.users", TWO)
    seen: list[list[str]] = []

    def change(tx: Transaction) -> str:
        seen.append(sorted(names(tx)))
        if len(seen) < 3:
            rename(client, seen[-1][0], f"a{len(seen)}")
        rename(tx, seen[-1][0], "mine")
        return tx.id

    last = client.run_transaction(change)
    assert seen == [["ann", "bob"], ["a1", "bob"], ["a2", "bob"]]
    assert isinstance(last, str)
    assert sorted(names(client)) == ["bob", "mine"]


def test_the_last_conflict_is_raised_after_so_many_attempts(client: Client) -> None:
    runs: list[str] = []

    def change(tx: Transaction) -> None:
        runs.append(tx.id)
        raise Conflict(f"number {len(runs)}")

    with pytest.raises(Conflict, match="number 3"):
        client.run_transaction(change, attempts=3)
    assert len(set(runs)) == 3


def test_other_errors_end_a_function_at_once(client: Client) -> None:
    runs: list[str] = []

    def change(tx: Transaction) -> None:
        runs.append(tx.id)
        tx.insert("public.users", TWO)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.run_transaction(change)
    assert len(runs) == 1
    assert names(client) == []


def test_many_threads_lose_no_change_of_one_row(client: Client) -> None:
    client.insert("public.users", [{"id": 0, "name": "counter"}])

    def add(tx: Transaction) -> None:
        row = tx.scan("public.users", row_id=True).read_all().to_pylist()[0]
        tx.update("public.users", [{"rowid": row["rowid"], "id": row["id"] + 1}])

    threads = [
        threading.Thread(target=lambda: client.run_transaction(add, attempts=50, isolation="serializable"))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert client.scan("public.users", columns=["id"]).read_all().to_pydict() == {"id": [6]}


# Answers that are lost: of statements


class Losing:
    """Does as told when a statement is done, before the answer is on its way."""

    def __init__(self) -> None:
        self.before: Any = lambda: None
        self.after: Any = lambda: None
        self.statements = 0

    def opened(self, statement: Statement) -> Statement:
        self.statements += 1
        finish = statement.finish

        def finishing() -> int:
            self.before()
            count = finish()
            after, self.after = self.after, lambda: None
            after()
            return count

        statement.finish = finishing  # type: ignore[method-assign]
        return statement


@pytest.fixture
def losing(catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch) -> Losing:
    told, plain = Losing(), MemoryTable.open_statement

    def open_statement(table: MemoryTable, ctx: CallContext, request: Any) -> Statement:
        statement = plain(table, ctx, request)
        return told.opened(statement) if table.name == "losing" else statement

    monkeypatch.setattr(MemoryTable, "open_statement", open_statement)
    catalog.create_table("public.losing", USERS)
    return told


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.location) as proxy:
        yield proxy


def held_rows(client: Client) -> int:
    return int(client.scan("public.losing").read_all().num_rows)


@pytest.mark.parametrize("rows", [TWO, [ANN, BOB], TWO.to_batches(max_chunksize=1), TWO.to_pandas()], ids=str)
def test_a_lost_answer_is_asked_for_again_and_nothing_is_done_twice(
    client: Client, losing: Losing, proxy: FaultProxy, rows: Any
) -> None:
    losing.after = proxy.cut
    with connect(proxy.location) as through:
        assert through.insert("public.losing", rows).count == 2
    assert losing.statements == 1
    assert held_rows(client) == 2


def test_a_statement_that_still_runs_when_it_is_sent_again_is_waited_for(
    client: Client, losing: Losing, proxy: FaultProxy
) -> None:
    again = threading.Event()

    def cut_and_hold() -> None:
        proxy.cut()
        threading.Timer(0.3, again.set).start()
        again.wait(30)

    losing.after = cut_and_hold
    with connect(proxy.location) as through:
        assert through.insert("public.losing", TWO).count == 2
    assert losing.statements == 1
    assert held_rows(client) == 2


@pytest.mark.parametrize("returning", [False, True])
def test_an_answer_that_cannot_be_asked_for_again_leaves_the_outcome_unknown(
    client: Client, losing: Losing, proxy: FaultProxy, returning: bool
) -> None:
    losing.after = proxy.cut
    rows = TWO if returning else TWO.to_reader()
    with connect(proxy.location) as through, pytest.raises(OutcomeUnknown, match="INSERT of 'losing' has happened"):
        through.insert("public.losing", rows, returning=returning)
    assert held_rows(client) == 2


def test_the_outcome_is_unknown_when_the_server_is_gone_for_good(
    client: Client, losing: Losing, proxy: FaultProxy
) -> None:
    losing.after = proxy.refuse
    with connect(proxy.location) as through, pytest.raises(OutcomeUnknown, match="cannot reach a server"):
        through.insert("public.losing", TWO)
    assert held_rows(client) == 2


def test_a_connection_lost_in_the_middle_of_a_stream_is_unavailable_and_changes_nothing(
    client: Client, losing: Losing, proxy: FaultProxy
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield TWO.to_batches()[0]
        proxy.cut()
        while True:
            yield TWO.to_batches()[0]

    with connect(proxy.location) as through, pytest.raises(Unavailable):
        through.insert("public.losing", batches())
    assert held_rows(client) == 0


def test_a_server_that_says_it_is_unavailable_is_asked_once_more(client: Client, losing: Losing) -> None:
    failures = [Unavailable("come back later")]

    def fail() -> None:
        if failures:
            raise failures.pop()

    losing.before = fail
    assert client.insert("public.losing", TWO).count == 2
    assert losing.statements == 2
    assert held_rows(client) == 2


def test_a_deadline_that_passes_before_the_answer_leaves_the_outcome_unknown(
    client: Client, server: Server, losing: Losing
) -> None:
    release = threading.Event()
    losing.after = lambda: release.wait(30)
    with connect(server.location, timeout=0.5) as hasty, pytest.raises(OutcomeUnknown) as caught:
        hasty.insert("public.losing", TWO)
    release.set()
    assert isinstance(caught.value, SparkportError)
    assert not isinstance(caught.value, Unavailable)


# Answers that are lost: of commits


class Commits:
    """Stands between a catalog and the end of its transactions."""

    def __init__(self, commit: Callable[[str], None]) -> None:
        self._commit = commit
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.asked = 0

    def __call__(self, transaction_id: str) -> None:
        self.asked += 1
        before, self.before = self.before, lambda: None
        before()
        self._commit(transaction_id)
        after, self.after = self.after, lambda: None
        after()


@pytest.fixture
def commits(catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch) -> Commits:
    commits = Commits(catalog.transactions.commit)
    monkeypatch.setattr(catalog.transactions, "commit", commits)
    return commits


def test_a_commit_whose_answer_is_lost_is_asked_about(client: Client, commits: Commits, proxy: FaultProxy) -> None:
    commits.after = proxy.cut
    with connect(proxy.location) as through, through.transaction() as tx:
        tx.insert("public.users", TWO)
    assert commits.asked == 2
    assert names(client) == ["ann", "bob"]


def test_a_commit_that_the_server_has_refused_is_a_conflict_also_when_the_answer_is_lost(
    client: Client, commits: Commits, proxy: FaultProxy
) -> None:
    client.insert("public.users", TWO)
    runs: list[str] = []

    def change(tx: Transaction) -> None:
        runs.append(tx.id)
        rename(tx, "bob", f"run {len(runs)}")
        if len(runs) == 1:
            rename(client, "bob", "bobby")
            rename(client, "bobby", "bob")
            commits.before = proxy.cut

    with connect(proxy.location) as through:
        through.run_transaction(change)
    assert len(runs) == 2
    assert sorted(names(client)) == ["ann", "run 2"]


def test_a_commit_that_nobody_can_be_asked_about_has_an_unknown_outcome(
    client: Client, commits: Commits, proxy: FaultProxy
) -> None:
    commits.after = proxy.refuse
    begun: list[str] = []
    with (
        connect(proxy.location) as through,
        pytest.raises(OutcomeUnknown, match=r"not known whether transaction '.*' is committed"),
    ):
        within(through, lambda tx: begun.append(tx.id), insert_two)
    assert client.resume_transaction(begun[0]).status() is TransactionState.COMMITTED
    assert names(client) == ["ann", "bob"]


def test_another_client_goes_on_with_a_transaction_by_its_id(server: Server, client: Client) -> None:
    tx = client.transaction()
    tx.insert("public.users", [ANN])
    with connect(server.location) as other:
        resumed = other.resume_transaction(tx.id)
        resumed.insert("public.users", [BOB])
        assert (names(resumed), names(client)) == (["ann", "bob"], [])
        resumed.commit()
    assert names(client) == ["ann", "bob"]
    with connect(server.location) as other, pytest.raises(NotFound):
        other.resume_transaction("nobody's").status()


def test_a_commit_that_never_got_to_the_server_is_unavailable(
    client: Client, commits: Commits, proxy: FaultProxy
) -> None:
    def lose(tx: Transaction) -> None:
        proxy.refuse()
        with pytest.raises(Unavailable):
            tx.version()

    with connect(proxy.location) as through, pytest.raises(Unavailable, match="cannot reach a server"):
        within(through, insert_two, lose)
    assert commits.asked == 0
    assert names(client) == []


def test_a_statement_in_a_transaction_whose_answer_is_lost_is_done_once(
    client: Client, losing: Losing, proxy: FaultProxy
) -> None:
    with connect(proxy.location) as through:
        try:
            with through.transaction() as tx:
                losing.after = proxy.cut
                assert tx.insert("public.losing", TWO).count == 2
        except (Conflict, FailedPrecondition, Unavailable):
            # The server has noticed the lost connection before the statement was over: all of it is undone.
            assert held_rows(client) == 0
        else:
            assert held_rows(client) == 2
    assert losing.statements == 1
