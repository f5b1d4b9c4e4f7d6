"""What meets the end of a transaction, or waits for another's: without a JVM, since changes are only deferred."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, create
from tests.lakehouse.transacting import wait_until
from tests.support.lakehouse import Lake

from sparkport.catalog import CallContext, ScanRequest
from sparkport.catalog.context import entered
from sparkport.catalog.statement import Change, StatementRequest
from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.errors import ResourceExhausted, SparkportError, TransactionNotActive, Unavailable
from sparkport.lakehouse.catalogs.pointers import OutcomeUnknown
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer
from sparkport.lakehouse.write.committer import Committer
from sparkport.transactions.manager import InDoubt, Transaction, TransactionSettings

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})
INSERT = StatementRequest(change=Change.INSERT, columns=ROWS.schema)


@contextmanager
def opened(folder: Path, clock: Callable[[], float] = time.time) -> Iterator[Lake]:
    settings = LakehouseSettings(warehouse=str(folder), sessions=2)
    lakehouse = Lakehouse(settings, spark=SparkServer(settings), clock=clock)
    try:
        yield Lake(lakehouse)
    finally:
        lakehouse.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with opened(tmp_path) as lake:
        yield lake


def begin(lake: Lake, isolation: Isolation = Isolation.SNAPSHOT, *, auto_commit: bool = False) -> CallContext:
    manager = lake.opened.engine.transactions
    return CallContext(transaction_id=manager.begin(NOBODY, auto_commit=auto_commit, isolation=isolation))


def ended_meanwhile(
    lake: Lake, ctx: CallContext, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> object:
    """What comes of work that has found its transaction and then waits while that is rolled back."""
    manager = lake.opened.engine.transactions
    entered, go = threading.Event(), threading.Event()
    enter = manager.enter

    def slow(transaction_id: str) -> Transaction[object]:
        found = enter(transaction_id)
        entered.set()
        assert go.wait(30)
        return found  # type: ignore[return-value]

    monkeypatch.setattr(manager, "enter", slow)
    came: list[object] = []

    def run() -> None:
        try:
            came.append(work())
        except SparkportError as exc:
            came.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    assert entered.wait(30)
    manager.rollback(ctx.transaction_id or "")
    go.set()
    thread.join()
    return came[0]


def test_a_statement_that_begins_while_its_transaction_ends_leaves_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(lake, "t", ROWS.slice(0, 0))
    ctx = begin(lake)
    found = table.table(ctx)
    came = ended_meanwhile(lake, ctx, lambda: found.open_statement(ctx, INSERT), monkeypatch)
    assert isinstance(came, TransactionNotActive)
    assert not list(lake.opened.engine.storage.staging.folder.glob("tx-*"))


def test_a_scan_that_begins_while_its_transaction_ends_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(lake, "t", ROWS.slice(0, 0))
    ctx = begin(lake)
    table.insert(ROWS, ctx)
    assert len(table.sparkport(ctx)) == 2
    found = table.table(ctx)
    came = ended_meanwhile(lake, ctx, lambda: list(found.scan(ctx, ScanRequest())), monkeypatch)
    assert isinstance(came, TransactionNotActive)


def test_a_statement_under_way_does_not_join_a_commit_in_doubt(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(lake, "t", ROWS.slice(0, 0))
    ctx = begin(lake)
    table.insert(ROWS, ctx)
    statement = table.table(ctx).open_statement(ctx, INSERT)
    statement.push(ROWS.to_batches()[0], None)

    def lost(transaction: Transaction[object]) -> None:
        raise InDoubt(transaction.id)

    monkeypatch.setattr(lake.opened.engine, "publish", lost)
    with pytest.raises(InDoubt):
        lake.opened.engine.transactions.commit(ctx.transaction_id or "")
    with pytest.raises(InDoubt):
        statement.finish()


@pytest.mark.parametrize("deadline", [None, 3600.0])
@pytest.mark.parametrize("auto_commit", [True, False])
def test_who_changes_rows_waits_for_spark_as_long_as_the_deadline_allows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, auto_commit: bool, deadline: float | None
) -> None:
    """The first start of all downloads jars, which may take half an hour."""
    table = create(lake, "t", ROWS)
    ctx = replace(begin(lake, auto_commit=auto_commit), deadline=None if deadline is None else monotonic() + deadline)
    waited: list[float | None] = []

    def not_ready(timeout: float | None) -> None:
        waited.append(timeout)
        raise Unavailable("Spark is not ready yet")

    def write() -> None:
        table.delete([0], ctx)
        lake.opened.engine.transactions.commit(ctx.transaction_id or "")

    monkeypatch.setattr(lake.opened.engine.storage.spark, "wait_ready", not_ready)
    with entered(ctx), pytest.raises(Unavailable, match="not ready"):
        write()
    (longest,) = waited
    assert longest is None if deadline is None else longest is not None and longest > deadline - 60


def test_statistics_say_nothing_under_serializable(lake: Lake) -> None:
    table = create(lake, "t", ROWS.slice(0, 0))
    careful, plain = begin(lake, Isolation.SERIALIZABLE), begin(lake)
    assert table.table(plain).column_statistics(plain, "id") is not None
    assert table.table(careful).column_statistics(careful, "id") is None
    assert table.table(careful).row_count(careful) is None


def test_an_end_that_could_not_be_noted_is_noted_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    with opened(tmp_path, clock=lambda: now[0]) as lake:
        engine, ctx = lake.opened.engine, begin(lake)
        with monkeypatch.context() as broken:
            broken.setattr(engine, "abort", lambda transaction: TransactionState.ABORTED)
            engine.transactions.rollback(ctx.transaction_id or "")
        now[0] += TransactionSettings().remember_seconds  # and it is forgotten
        assert engine.transactions.status(ctx.transaction_id or "") is TransactionState.ABORTED


def test_one_that_waits_for_two_tables_is_not_passed_over_by_later_ones() -> None:
    committer = Committer(pointers=None, applier=None, current=None)  # type: ignore[arg-type]
    a, b, c = (TableName("public", name) for name in "abc")
    order: list[str] = []

    def go(name: str, *tables: TableName) -> None:
        with committer.turn(*tables):
            order.append(name)

    with ThreadPoolExecutor(3) as pool:
        with committer.turn(a):
            both = pool.submit(go, "both", a, b)
            wait_until(lambda: committer.waiting() == 1)
            later = pool.submit(go, "later", b)
            wait_until(lambda: committer.waiting() == 2)
            pool.submit(go, "beside", c).result(10)
            assert order == ["beside"]
        both.result(10)
        later.result(10)
    assert order == ["beside", "both", "later"]
    committer.close()


@pytest.mark.parametrize("made", [True, False])
def test_a_commit_does_not_make_a_statement_in_doubt_committed(lake: Lake, made: bool) -> None:
    """It may come while the statement still waits for the catalog's answer."""
    manager = lake.opened.engine.transactions
    ctx = begin(lake, auto_commit=True)
    transaction = manager.enter(ctx.transaction_id or "")
    transaction.in_doubt, transaction.state.unknown = True, OutcomeUnknown("no answer", lambda: made)
    manager.leave(transaction)
    if made:
        manager.commit(transaction.id)
    else:
        with pytest.raises(TransactionNotActive):
            manager.commit(transaction.id)
    assert manager.status(transaction.id) is (TransactionState.COMMITTED if made else TransactionState.ABORTED)


def test_one_that_cannot_be_settled_is_in_nobodys_way(lake: Lake) -> None:
    def full() -> bool:
        raise ResourceExhausted("the disk of the catalog's database is full")

    manager = lake.opened.engine.transactions
    ctx = begin(lake, auto_commit=True)
    transaction = manager.enter(ctx.transaction_id or "")
    transaction.in_doubt, transaction.state.unknown = True, OutcomeUnknown("no answer", full)
    manager.leave(transaction)
    transaction.last_used = 0.0
    begin(lake, auto_commit=True)
    with pytest.raises(InDoubt):
        manager.status(transaction.id)
