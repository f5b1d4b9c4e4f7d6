"""The answer to a commit lost, late, or given twice, by the network or by the catalog's database: who asks is told
the truth, and rows are there once or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create
from tests.lakehouse.transacting import FIVE, at_point, names, people
from tests.support.fault_proxy import FaultProxy
from tests.support.lakehouse import Lake

from sparkport.app import Server
from sparkport.catalog import CallContext, DMLResult
from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.client import Client, connect
from sparkport.client import transaction as client_transaction
from sparkport.client.errors import OutcomeUnknown
from sparkport.client.transaction import Transaction
from sparkport.errors import Conflict, FailedPrecondition, Unavailable
from sparkport.lakehouse.faults import POINTS, on_fault
from sparkport.testing import serving

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

COMMITTED, ABORTED = TransactionState.COMMITTED, TransactionState.ABORTED

_PATIENCE = 200.0
_HASTE = 1.0
_numbers = count()

START = [(key, f"n{key}") for key in range(5)]
CHANGED = sorted([(0, "changed"), *START[1:], (10, "new")])


@pytest.fixture(scope="module")
def server(lake: Lake) -> Iterator[Server]:
    create(lake, "warm", FIVE)  # Spark is there before anybody waits for an answer
    with serving(lake.opened.catalog) as running:
        yield running


@pytest.fixture
def near(server: Server) -> Iterator[Client]:
    """A client that nothing happens to."""
    with connect(server.location, timeout=_PATIENCE) as client:
        yield client


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.location) as opened:
        yield opened


@pytest.fixture
def far(proxy: FaultProxy) -> Iterator[Client]:
    with connect(proxy.location, timeout=_PATIENCE) as client:
        yield client


@pytest.fixture(params=[1, 2], ids=["one table", "two tables"])
def tables(request: pytest.FixtureRequest, lake: Lake) -> list[Handle]:
    return [create(lake, f"lost{next(_numbers)}", FIVE) for _ in range(request.param)]


@pytest.fixture
def table(lake: Lake) -> Handle:
    return create(lake, f"lost{next(_numbers)}", FIVE)


def begun(client: Client, tables: list[Handle]) -> Transaction:
    """A transaction that adds a row to each table and changes another."""
    tx = client.transaction()
    for table in tables:
        tx.insert(f"public.{table.name}", people((10, "new")))
        tx.update(f"public.{table.name}", names("changed"), row_ids=[table.ids()[0]])
    return tx


def seen_by(client: Client, tx: Transaction) -> Transaction:
    """The same transaction in the hands of another client, or of the same one that has forgotten how it ended."""
    return client.resume_transaction(tx.id)


def wait_until(tx: Transaction, state: TransactionState) -> None:
    while tx.status() is not state:
        pass


def check(lake: Lake, tables: list[Handle], expected: list[tuple[int, str]]) -> None:
    """Each row once, for all who read, and nothing that was only needed on the way."""
    for table in tables:
        assert sorted((row["id"], row["name"]) for row in table.agreed().values()) == expected
        assert set(table.current.metadata.refs) == {"main"}
    folder = lake.opened.engine.storage.staging.folder
    assert not [*folder.glob("*.parquet"), *folder.glob("tx-*")]


def check_committed(lake: Lake, near: Client, tx: Transaction, tables: list[Handle]) -> None:
    """All ways to ask give the same answer, and asking changes nothing."""
    again = seen_by(near, tx)
    assert again.status() is COMMITTED
    again.commit()
    with pytest.raises(FailedPrecondition, match="committed"):
        seen_by(near, tx).rollback()
    assert again.status() is COMMITTED
    check(lake, tables, CHANGED)


def check_aborted(lake: Lake, near: Client, tx: Transaction, tables: list[Handle]) -> None:
    assert seen_by(near, tx).status() is ABORTED
    with pytest.raises(FailedPrecondition, match="aborted"):
        seen_by(near, tx).commit()
    seen_by(near, tx).rollback()
    check(lake, tables, START)


# The network


@pytest.mark.parametrize("point", ["commit.decided", "apply.between", "pointer.after", "publish.after"])
def test_the_connection_ends_while_the_server_commits(
    lake: Lake, near: Client, far: Client, proxy: FaultProxy, table: Handle, point: str
) -> None:
    """The client sends the commit again while the first is still running."""
    tx = begun(far, [table])
    with at_point(point, proxy.cut):
        tx.commit()
    check_committed(lake, near, tx, [table])


@pytest.mark.tier("fast")
def test_the_connection_ends_before_the_answer(
    lake: Lake, near: Client, far: Client, proxy: FaultProxy, tables: list[Handle]
) -> None:
    tx = begun(far, tables)
    proxy.hold()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(tx.commit)
        wait_until(seen_by(near, tx), COMMITTED)
        proxy.cut()
        done.result(_PATIENCE)
    assert tx.status() is COMMITTED
    check_committed(lake, near, tx, tables)


def test_an_answer_that_comes_too_late(
    lake: Lake, near: Client, proxy: FaultProxy, tables: list[Handle], monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = begun(near, tables)
    pauses: list[int] = []

    def pause(attempt: int) -> None:
        pauses.append(attempt)
        wait_until(seen_by(near, tx), COMMITTED)
        proxy.release()

    monkeypatch.setattr(client_transaction, "pause", pause)
    with connect(proxy.location, timeout=_HASTE) as hasty:
        hurried = seen_by(hasty, tx)
        hurried.status()
        proxy.hold()
        hurried.commit()
    assert pauses
    check_committed(lake, near, tx, tables)


def test_an_answer_that_never_comes_is_an_unknown_outcome_until_somebody_asks(
    lake: Lake, near: Client, proxy: FaultProxy, table: Handle
) -> None:
    tx = begun(near, [table])
    with connect(proxy.location, timeout=_HASTE) as hasty:
        hurried = seen_by(hasty, tx)
        hurried.status()
        proxy.hold()
        with pytest.raises(OutcomeUnknown):
            hurried.commit()
        wait_until(seen_by(near, tx), COMMITTED)
    with connect(proxy.location, timeout=_PATIENCE) as patient:
        proxy.cut()
        with pytest.raises(FailedPrecondition, match="committed"):
            seen_by(patient, tx).rollback()
    check_committed(lake, near, tx, [table])


def test_a_refusal_that_is_lost_is_a_conflict_when_it_is_asked_for_again(
    lake: Lake, near: Client, far: Client, proxy: FaultProxy, table: Handle
) -> None:
    tx = begun(far, [table])
    table.update([table.ids()[0]], names("first"))
    proxy.hold()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(tx.commit)
        wait_until(seen_by(near, tx), ABORTED)
        proxy.cut()
        with pytest.raises(Conflict, match="aborted"):
            done.result(_PATIENCE)
    table.update([table.ids()[0]], names("n0"))
    check_aborted(lake, near, tx, [table])


def test_the_answer_to_a_rollback_is_lost(
    lake: Lake, near: Client, far: Client, proxy: FaultProxy, table: Handle
) -> None:
    tx = begun(far, [table])
    proxy.hold()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(tx.rollback)
        wait_until(seen_by(near, tx), ABORTED)
        proxy.cut()
        done.result(_PATIENCE)
    check_aborted(lake, near, tx, [table])


def test_the_answer_to_a_statement_is_lost(
    lake: Lake, near: Client, far: Client, proxy: FaultProxy, table: Handle
) -> None:
    """It is in the transaction's file by then, and is sent again."""
    tx = far.transaction()
    with at_point("defer.after", proxy.cut):
        tx.insert(f"public.{table.name}", people((10, "new")))
    tx.update(f"public.{table.name}", names("changed"), row_ids=[table.ids()[0]])
    tx.commit()
    check_committed(lake, near, tx, [table])


def test_a_commit_that_is_sent_twice_at_once_is_made_once(
    lake: Lake, near: Client, far: Client, tables: list[Handle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second, and a rollback besides, come while the first is in the middle of it."""
    tx = begun(near, tables)
    arrived = threading.Barrier(3)
    manager = lake.opened.engine.transactions
    commit, rollback = manager.commit, manager.rollback
    first = threading.Event()

    def noted_commit(transaction_id: str) -> None:
        if first.is_set():
            arrived.wait(_PATIENCE)
        first.set()
        commit(transaction_id)

    def noted_rollback(transaction_id: str) -> None:
        arrived.wait(_PATIENCE)
        rollback(transaction_id)

    monkeypatch.setattr(manager, "commit", noted_commit)
    monkeypatch.setattr(manager, "rollback", noted_rollback)
    with ThreadPoolExecutor(2) as pool:
        others = []

        def send_again() -> None:
            others.append(pool.submit(seen_by(far, tx).commit))
            others.append(pool.submit(seen_by(far, tx).rollback))
            arrived.wait(_PATIENCE)

        with at_point("publish.before", send_again):
            tx.commit()
        assert others[0].result(_PATIENCE) is None
        with pytest.raises(FailedPrecondition, match="committed"):
            others[1].result(_PATIENCE)
    monkeypatch.undo()
    check_committed(lake, near, tx, tables)


# The catalog's database


def _no_answer() -> None:
    raise Unavailable("the database gives no answer")


@dataclass
class Silent:
    """A ledger that gives no answer when it is first asked how a transaction ends."""

    end: Callable[[str, TransactionState], TransactionState]
    asked: int = 0

    def __call__(self, transaction_id: str, state: TransactionState) -> TransactionState:
        self.asked += 1
        if self.asked == 1:
            _no_answer()
        return self.end(transaction_id, state)


@pytest.fixture
def silent(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Silent:
    """Neither does the catalog say what became of the commit."""
    ledger = lake.opened.engine.storage.ledger
    found = Silent(ledger.end)
    monkeypatch.setattr(ledger, "end", found)
    on_fault("settle.before", _no_answer)
    return found


@pytest.mark.tier("fast")
def test_a_database_that_commits_and_does_not_say_so(lake: Lake, near: Client, tables: list[Handle]) -> None:
    tx = begun(near, tables)
    with at_point("pointer.after", _no_answer):
        tx.commit()
    check_committed(lake, near, tx, tables)


def test_a_database_that_fails_to_commit(lake: Lake, near: Client, tables: list[Handle]) -> None:
    tx = begun(near, tables)
    with at_point("pointer.before", _no_answer), pytest.raises(Conflict, match="aborted"):
        tx.commit()
    check_aborted(lake, near, tx, tables)
    begun(near, tables).commit()
    check(lake, tables, CHANGED)


def _insert(tx: Transaction, table: Handle) -> None:
    tx.insert(f"public.{table.name}", people((10, "new")))


def _update(tx: Transaction, table: Handle) -> None:
    tx.update(f"public.{table.name}", names("changed"), row_ids=[table.ids()[0]])


def _delete(tx: Transaction, table: Handle) -> None:
    tx.delete(f"public.{table.name}", pa.array([table.ids()[0]], pa.int64()))


IN_DOUBT = {
    "insert": (_insert, [*START, (10, "new")]),
    "update": (_update, [(0, "changed"), *START[1:]]),
    "delete": (_delete, START[1:]),
}


@pytest.mark.parametrize("change", list(IN_DOUBT))
@pytest.mark.parametrize("point", ["pointer.after", "pointer.before"])
def test_a_commit_in_doubt_is_found_to_be_made_or_is_made(
    lake: Lake, near: Client, table: Handle, silent: Silent, point: str, change: str
) -> None:
    """Neither the commit nor the question what became of it is answered; the client asks again."""
    do, expected = IN_DOUBT[change]
    tx = near.transaction()
    do(tx, table)
    with at_point(point, _no_answer):
        tx.commit()
    assert silent.asked
    assert seen_by(near, tx).status() is COMMITTED
    seen_by(near, tx).commit()
    with pytest.raises(FailedPrecondition, match="committed"):
        seen_by(near, tx).rollback()
    check(lake, [table], expected)


@pytest.mark.parametrize(("point", "made"), [("pointer.after", True), ("pointer.before", False)])
def test_a_commit_in_doubt_that_is_rolled_back_says_whether_it_was_made(
    lake: Lake, near: Client, table: Handle, silent: Silent, point: str, made: bool
) -> None:
    tx = near.transaction()
    _insert(tx, table)
    manager = lake.opened.engine.transactions
    with at_point(point, _no_answer), pytest.raises(Unavailable, match="not known yet"):
        manager.commit(tx.id)
    assert silent.asked
    again = seen_by(near, tx)
    if made:
        with pytest.raises(FailedPrecondition, match="committed"):
            again.rollback()
    else:
        again.rollback()
    assert seen_by(near, tx).status() is (COMMITTED if made else ABORTED)
    check(lake, [table], [*START, (10, "new")] if made else START)


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    for point in POINTS:
        on_fault(point, None)


# In auto-commit


def _insert_alone(table: Handle, ctx: CallContext) -> DMLResult:
    return table.insert(people((10, "new")), ctx)


def _update_alone(table: Handle, ctx: CallContext) -> DMLResult:
    return table.update([table.ids()[0]], names("changed"), ctx)


def _delete_alone(table: Handle, ctx: CallContext) -> DMLResult:
    return table.delete([table.ids()[0]], ctx)


AUTO = {"insert": _insert_alone, "update": _update_alone, "delete": _delete_alone}
ISOLATIONS = list(Isolation)


def pinned(lake: Lake, isolation: Isolation) -> CallContext:
    return CallContext(transaction_id=lake.opened.engine.transactions.begin(NOBODY, isolation=isolation))


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("change", list(AUTO))
def test_a_statement_whose_commit_the_database_does_not_confirm_is_found_to_be_made(
    lake: Lake, table: Handle, change: str, isolation: Isolation
) -> None:
    do, expected = AUTO[change], sorted(IN_DOUBT[change][1])
    with at_point("pointer.after", _no_answer):
        assert do(table, pinned(lake, isolation)).affected_rows == 1
    check(lake, [table], expected)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("change", list(AUTO))
def test_a_statement_that_the_database_does_not_commit_has_changed_nothing(
    lake: Lake, near: Client, table: Handle, change: str, isolation: Isolation
) -> None:
    do = AUTO[change]
    with at_point("pointer.before", _no_answer), pytest.raises(Unavailable, match="no answer"):
        do(table, pinned(lake, isolation))
    check(lake, [table], START)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(("point", "state"), [("pointer.after", COMMITTED), ("pointer.before", ABORTED)])
@pytest.mark.parametrize("change", list(AUTO))
def test_the_status_tells_what_became_of_a_statement_in_doubt(
    lake: Lake, near: Client, table: Handle, change: str, point: str, state: TransactionState, isolation: Isolation
) -> None:
    do, expected = AUTO[change], sorted(IN_DOUBT[change][1])
    ctx = pinned(lake, isolation)
    assert ctx.transaction_id is not None
    manager = lake.opened.engine.transactions
    on_fault("settle.before", _no_answer)
    with at_point(point, _no_answer), pytest.raises(Unavailable, match="not known yet"):
        do(table, ctx)
    manager.failed(ctx.transaction_id)  # as the server does after an error
    with pytest.raises(Unavailable, match="ask for its status"):
        manager.status(ctx.transaction_id)
    with pytest.raises(Unavailable, match="not known yet"):
        _insert_alone(table, ctx)
    on_fault("settle.before", None)
    assert manager.status(ctx.transaction_id) is state
    with pytest.raises(FailedPrecondition, match=state.value):
        _insert_alone(table, ctx)
    check(lake, [table], expected if state is COMMITTED else START)


@pytest.mark.parametrize("point", ["pointer.after", "pointer.before"])
def test_a_repeat_of_a_statement_in_doubt_is_made_once(lake: Lake, near: Client, table: Handle, point: str) -> None:
    """The client repeats it under the same id, and the catalog still does not say what became of the first."""
    on_fault("settle.before", _no_answer)
    with at_point(point, _no_answer):
        near.insert(f"public.{table.name}", people((10, "new")))
    on_fault("settle.before", None)
    check(lake, [table], [*START, (10, "new")])
