"""Which tables a flush applies together, which it sets apart, and when it tries those again; without a Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pytest
from tests.attacks.callers import create

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import AddColumn
from sparkport.catalog.statement import ChangeableTable
from sparkport.errors import Conflict, FailedPrecondition, InternalError, ResourceExhausted, SparkportError, Unavailable
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.tables.table import LakeTable
from sparkport.lakehouse.write import journal_room
from sparkport.lakehouse.write.commit_request import CommitRequest, Committed, quoted_names
from sparkport.lakehouse.write.journal_flush import JournalFlush

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"n": pa.array([1], pa.int64())})
SETTINGS = JournalSettings(new_tables=True, seconds=10.0)
NOTE = AddColumn(pa.field("note", pa.string()))
A, B, C, D = (TableName("public", name) for name in "abcd")


class FakeSpark:
    """Stands for Spark and the committer: what is committed is taken out of the journal, and goes nowhere."""

    def __init__(self, lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
        self.committed: list[set[TableName]] = []
        self.tried: list[set[TableName]] = []
        self.bad: dict[TableName, Exception] = {}
        self.says_who = True
        self.gone: Unavailable | None = None
        self.on_commit: Callable[[], None] = lambda: None
        self._pointers = lakehouse.engine.storage.pointers
        monkeypatch.setattr(lakehouse.engine.committer, "commit", self._commit)
        monkeypatch.setattr(JournalFlush, "_new_ids", lambda self, part, made, count: np.arange(count))
        monkeypatch.setattr(lakehouse.spark, "wait_ready", self._wait_ready)

    def _wait_ready(self, timeout: float | None = None) -> None:
        if self.gone is not None:
            raise self.gone

    def _commit(self, request: CommitRequest) -> Committed:
        tables, flush, records = set(request.changes), request.flush, self._pointers.journal
        assert flush is not None
        assert records is not None
        self.tried.append(tables)
        self.on_commit()
        for table in tables & self.bad.keys():
            if self.says_who:
                flush.failed(table, self.bad[table])
            raise self.bad[table]
        self._pointers.commit([], with_journal=flush.part(records, []))
        self.committed.append(tables)
        return Committed({}, 0)


@pytest.fixture
def lakehouse(tmp_path: Path) -> Iterator[Lakehouse]:
    """With four tables, a row of each in its journal."""
    opened = Lakehouse(LakehouseSettings(warehouse=str(tmp_path)), journal=SETTINGS)
    try:
        for name in "abcd":
            create(opened.catalog, ROWS, name=name)
        yield opened
    finally:
        opened.stop()


@pytest.fixture
def spark(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    return FakeSpark(lakehouse, monkeypatch)


def insert(lakehouse: Lakehouse, *tables: TableName, rows: pa.Table = ROWS) -> None:
    """One commit."""
    transactions = lakehouse.engine.transactions
    ctx = CallContext(transaction_id=transactions.begin(CallContext(), auto_commit=False))
    for table in tables:
        schema = lakehouse.catalog.schema(ctx, table.schema)
        assert schema is not None
        found = schema.table(ctx, table.name)
        assert isinstance(found, ChangeableTable)
        found.insert(ctx, rows.to_reader())
    assert ctx.transaction_id is not None
    transactions.commit(ctx.transaction_id)


def table_of(lakehouse: Lakehouse, name: str) -> LakeTable:
    schema = lakehouse.catalog.schema(CallContext(), "public")
    assert schema is not None
    table = schema.table(CallContext(), name)
    assert isinstance(table, LakeTable)
    return table


def waiting(lakehouse: Lakehouse) -> dict[TableName, str | None]:
    return {status.table: status.failure for status in lakehouse.journal.status()}


def test_all_tables_go_in_one_commit_while_nothing_is_wrong(lakehouse: Lakehouse, spark: FakeSpark) -> None:
    assert lakehouse.engine.flush().rows == {A: 1, B: 1, C: 1, D: 1}
    assert spark.committed == [{A, B, C, D}]
    assert lakehouse.engine.flush().rows == {}


@pytest.mark.parametrize("error", [InternalError("lost"), Unavailable("no answer"), Conflict("again"), KeyError("bug")])
@pytest.mark.parametrize("says_who", [True, False])
def test_the_table_that_fails_is_found_out_and_set_apart_whatever_the_error_is(
    lakehouse: Lakehouse, spark: FakeSpark, error: Exception, says_who: bool
) -> None:
    spark.bad, spark.says_who = {B: error}, says_who
    flushed = lakehouse.engine.flush()
    assert flushed.rows == {A: 1, C: 1, D: 1}
    assert (dict(flushed.failures), set(flushed.left)) == ({B: error}, {B})
    told = error.message if isinstance(error, SparkportError) else "internal error; the log has more"
    assert waiting(lakehouse) == {B: told}
    # From now on nobody is held up by it.
    insert(lakehouse, A)
    insert(lakehouse, C)
    spark.tried.clear()
    assert lakehouse.engine.flush(every=False).rows == {A: 1, C: 1}
    assert spark.tried == [{A, C}]
    spark.bad.clear()
    assert lakehouse.engine.flush().rows == {B: 1}
    assert waiting(lakehouse) == {}
    assert lakehouse.engine.storage.apart.all() == []


def test_several_that_fail_are_set_apart_each_with_its_reason(lakehouse: Lakehouse, spark: FakeSpark) -> None:
    spark.bad = {A: InternalError("first"), C: InternalError("second")}
    with pytest.raises(
        FailedPrecondition, match=r"'public.a' could not .*: first; table 'public.c' could not .*: second"
    ):
        lakehouse.journal.flush(30)
    assert waiting(lakehouse) == {A: "first", C: "second"}


def test_a_table_whose_changes_cannot_even_be_read_is_set_apart(
    lakehouse: Lakehouse, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = lakehouse.engine.versions
    at = versions.at
    monkeypatch.setattr(versions, "at", lambda table, place: _raise() if table == D else at(table, place))
    assert lakehouse.engine.flush().rows == {A: 1, B: 1, C: 1}
    assert waiting(lakehouse) == {D: "its metadata is damaged"}


def _raise() -> None:
    raise InternalError("its metadata is damaged")


def test_commits_over_several_tables_tie_them_one_to_the_next(lakehouse: Lakehouse, spark: FakeSpark) -> None:
    insert(lakehouse, A, B)
    insert(lakehouse, B, C)
    spark.bad = {A: InternalError("lost")}
    flushed = lakehouse.engine.flush()
    assert flushed.rows == {D: 1}
    assert set(flushed.left) == {A, B, C}
    assert waiting(lakehouse) == {A: "lost", B: None, C: None}
    assert {item.table: item.waits_for for item in lakehouse.journal.status()} == {A: (), B: (A,), C: (A,)}


def test_of_some_tables_those_tied_to_them_are_applied_and_no_others(lakehouse: Lakehouse, spark: FakeSpark) -> None:
    insert(lakehouse, A, B)
    spark.bad = {C: InternalError("lost")}
    assert lakehouse.engine.flush_of([A], 30)
    assert spark.tried == [{A, B}]
    assert not lakehouse.engine.flush_of([A], 30)
    assert waiting(lakehouse) == {C: None, D: None}


def test_commits_that_came_later_tie_nothing_that_waited_before(lakehouse: Lakehouse, spark: FakeSpark) -> None:
    """A flush is about what was there when it began: each commit of it whole."""
    spark.bad = {C: InternalError("lost")}
    spark.on_commit = lambda: insert(lakehouse, A, C) if len(spark.tried) == 1 else None
    assert lakehouse.engine.flush_of([A], 30)
    assert spark.committed == [{A}]
    assert lakehouse.engine.storage.pointers.cut().journal.pending
    with pytest.raises(FailedPrecondition, match=r"'public.a' could not be published: commits that wait tie it"):
        lakehouse.engine.flush_of([A], 30)


def test_a_table_that_is_set_apart_is_let_alone_for_twice_as_long_each_time(
    lakehouse: Lakehouse, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    spark.bad = {B: InternalError("lost")}
    waits = []
    for _ in range(6):
        spark.tried.clear()
        lakehouse.engine.flush(every=False)
        assert {B} in spark.tried
        (noted,) = lakehouse.engine.storage.apart.all()
        waits.append(noted.retry_at - now)
        spark.tried.clear()
        now = noted.retry_at - 0.5
        lakehouse.engine.flush(every=False)
        assert spark.tried == []
        now = noted.retry_at
    assert waits == pytest.approx([10, 20, 40, 60, 60, 60])
    assert (noted.failures, noted.reason) == (6, "lost")
    now -= 86_400  # the clock is set back
    lakehouse.engine.flush(every=False)
    assert spark.tried == [{B}]


def test_a_flush_that_takes_long_keeps_nobody_waiting_but_those_of_its_tables(
    lakehouse: Lakehouse, spark: FakeSpark
) -> None:
    lakehouse.engine.flush_of([A, B], 30)
    insert(lakehouse, A, B)
    began, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        if A in spark.tried[-1]:
            began.set()
            assert go_on.wait(60)

    spark.on_commit = hold
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(lakehouse.engine.flush_of, [A], 60)
        assert began.wait(60)
        assert lakehouse.engine.flush_of([C], 60)
        tied = pool.submit(lakehouse.engine.flush_of, [B], 60)
        assert lakehouse.engine.flush_of([D], 60)
        assert not tied.done()
        go_on.set()
        assert held.result(60)
        tied.result(60)
    assert spark.committed == [{A, B}, {C}, {D}, {A, B}]
    assert waiting(lakehouse) == {}


def test_a_spark_that_is_gone_is_no_fault_of_a_table(lakehouse: Lakehouse, spark: FakeSpark) -> None:
    def die() -> None:
        spark.gone = Unavailable("Spark is restarting")
        raise Unavailable("Spark is not there")

    spark.on_commit = die
    with pytest.raises(Unavailable, match="Spark is restarting"):
        lakehouse.engine.flush()
    assert waiting(lakehouse) == dict.fromkeys((A, B, C, D))


def test_time_that_is_over_is_no_fault_of_a_table(lakehouse: Lakehouse, spark: FakeSpark) -> None:
    with ExitStack() as patched:
        patch = patched.enter_context(pytest.MonkeyPatch.context())
        moment = time.monotonic

        def late() -> None:
            patch.setattr(time, "monotonic", lambda: moment() + 60)
            raise Unavailable("not in time")

        spark.on_commit = late
        with pytest.raises(Unavailable, match="could not be applied in time"):
            lakehouse.engine.flush(30)
    assert waiting(lakehouse) == dict.fromkeys((A, B, C, D))


def test_one_lost_race_sets_nobody_apart(lakehouse: Lakehouse, spark: FakeSpark) -> None:
    def lose() -> None:
        if len(spark.tried) == 1:
            raise Conflict("another has applied it")

    spark.on_commit = lose
    assert lakehouse.engine.flush().rows == {A: 1, B: 1, C: 1, D: 1}
    assert spark.tried == [{A, B, C, D}] * 2


def test_an_answer_that_is_lost_is_no_failure(lakehouse: Lakehouse, spark: FakeSpark) -> None:
    """What was asked for is done, which another look shows."""
    commit = lakehouse.engine.committer.commit

    def lost(request: CommitRequest) -> NoReturn:
        commit(request)
        raise Unavailable("the answer is lost")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lakehouse.engine.committer, "commit", lost)
        assert lakehouse.engine.flush().failures == {}
    assert spark.committed == [{A, B, C, D}]
    assert waiting(lakehouse) == {}


def test_what_cannot_be_put_aside_of_a_table_that_others_dropped_holds_up_nobody(
    lakehouse: Lakehouse, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lakehouse.store.database.transaction(write=True) as work:
        work.change("DELETE FROM iceberg_tables WHERE table_name = 'a'")
    files = lakehouse.engine.storage.files
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_new", _no_room)
        flushed = lakehouse.engine.flush()
    assert flushed.rows == {B: 1, C: 1, D: 1}
    assert waiting(lakehouse) == {A: "no room left"}
    assert lakehouse.engine.flush().failures == {}
    assert waiting(lakehouse) == {}
    assert list(Path(lakehouse.settings.warehouse_path, ".journal").glob("a-*.parquet"))


def _no_room(*_: object) -> NoReturn:
    raise ResourceExhausted("no room left")


def test_metrics_name_the_tables_that_are_set_apart_and_the_reasons(lakehouse: Lakehouse, spark: FakeSpark) -> None:
    insert(lakehouse, A, B)
    spark.bad = {A: InternalError("a file\nis lost")}
    lakehouse.engine.flush()
    lakehouse.figures.look()
    figures = list(lakehouse.catalog.figures())
    assert [figure.value for figure in figures if figure.name == "journal_tables_set_apart"] == [2]
    assert [figure.labels for figure in figures if figure.name == "journal_table_set_apart"] == [
        {"table": "public.a", "reason": "a file is lost"},
        {"table": "public.b", "reason": "waits for public.a"},
    ]


def test_who_flushes_is_told_of_tables_that_he_may_know_of(lakehouse: Lakehouse, spark: FakeSpark) -> None:
    spark.bad = {A: InternalError("first"), B: InternalError("second"), C: InternalError("third")}
    with pytest.raises(FailedPrecondition) as refused:
        lakehouse.journal.flush(30, sees=lambda schema, name: name == "b")
    assert str(refused.value) == (
        "table 'public.b' could not be published: second; 2 more tables could not be published. What waits is kept"
    )


def test_an_alteration_waits_however_often_another_server_adds_to_the_backlog(
    lakehouse: Lakehouse, spark: FakeSpark
) -> None:
    other = Lakehouse(lakehouse.settings, journal=SETTINGS)
    try:
        spark.on_commit = lambda: insert(other, A) if len(spark.tried) < 12 else None
        table_of(lakehouse, "a").alter(CallContext(), NOTE)
    finally:
        other.stop()
    assert len(spark.committed) == 12
    current = lakehouse.engine.versions.current(A)
    assert current is not None
    assert [field["name"] for field in current.columns.fields] == ["n", "note"]
    assert waiting(lakehouse).keys() == {B, C, D}


def test_a_table_that_others_renamed_is_altered_by_its_new_name(lakehouse: Lakehouse, spark: FakeSpark) -> None:
    with lakehouse.store.database.transaction(write=True) as work:
        work.change("UPDATE iceberg_tables SET table_name = 'e' WHERE table_name = 'a'")
    table_of(lakehouse, "e").alter(CallContext(deadline=time.monotonic() + 60), NOTE)
    assert spark.committed == [{TableName("public", "e")}]
    assert waiting(lakehouse).keys() == {B, C, D}


# How much may wait


def test_what_is_set_apart_has_half_of_the_room_and_takes_none_of_the_rest(
    lakehouse: Lakehouse, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_room, "_LOOK_SECONDS", 0.0)
    lakehouse.engine.flush()
    # It holds three quarters of the limit before anybody knows that it cannot be applied.
    large = pa.table({"n": pa.array(range(100), pa.int64())})
    size = _size_of(lakehouse, A, large)
    limit = 20 * size
    lakehouse.engine.journal.settings = replace(SETTINGS, bytes=size, limit=limit)
    for _ in range(14):
        insert(lakehouse, A, rows=large)
    spark.bad = {A: InternalError("lost")}
    lakehouse.engine.flush()
    with pytest.raises(Unavailable, match=r"'public.a' is set apart, because its changes cannot be published: lost"):
        insert(lakehouse, A, rows=large)
    with pytest.raises(Unavailable, match=r"'public.a' is set apart"):
        insert(lakehouse, A, B, rows=large)
    for _ in range(3):
        taken = _fill(lakehouse, B, large)
        assert 8 <= taken <= 10
        assert lakehouse.engine.flush(every=False).rows == {B: 100 * taken}
    spark.bad.clear()
    lakehouse.engine.flush()
    assert 18 <= _fill(lakehouse, A, large) <= 20


def _size_of(lakehouse: Lakehouse, table: TableName, rows: pa.Table) -> int:
    insert(lakehouse, table, rows=rows)
    (journal,) = lakehouse.engine.storage.pointers.cut().journal.pending
    return journal.size


def _fill(lakehouse: Lakehouse, table: TableName, rows: pa.Table) -> int:
    """How many commits are taken until there is no more room."""
    for taken in range(100):
        try:
            insert(lakehouse, table, rows=rows)
        except Unavailable:
            return taken
    raise AssertionError(f"{quoted_names([table])} is never full")
