"""What those who commit together, or wait for each other, have to do with one another's errors. Without a JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.lakehouse.transacting import wait_until

from sparkport.errors import Conflict, InternalError, SparkportError, Unavailable
from sparkport.lakehouse.catalogs.pointers import Edit, OutcomeUnknown
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.iceberg.lineage import Lineage
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.write.applier import Staged
from sparkport.lakehouse.write.change_set import ChangeSet, TablePlan
from sparkport.lakehouse.write.commit_request import CommitRequest, Committed
from sparkport.lakehouse.write.committer import Committer
from sparkport.lakehouse.write.staged import LeftInTheOpen

pytestmark = pytest.mark.tier("fast")

T, U = TableName("public", "t"), TableName("public", "u")


DAMAGED = 13
"""A row in a file that is missing."""


def lineage(ids: Any) -> Lineage:
    if DAMAGED in ids:
        raise Conflict("a file is missing")
    return Lineage(ids, np.zeros(len(ids), np.int64))


class _Version:
    """As much of a table's version as a commit needs: all rows are there, as they were at first."""

    uuid = "uuid"
    snapshot_id = sequence_number = 1
    location = "here"
    journal, revision, is_journalled = None, 0, False
    columns = SimpleNamespace(takes_rows_of=lambda _: True)
    checks = keys = ()
    metadata = SimpleNamespace(descends_from=lambda *_: True)
    rows = SimpleNamespace(
        lineage=lineage, resolve=lambda ids: ids, unknown=lambda ids: ids[:0], untold=lambda ids: ids[:0]
    )

    def __init__(self, table: TableName) -> None:
        self.table = table

    def same_rows_as(self, _: object) -> bool:
        return True


class _Staged(Staged):
    is_in_the_open = False

    def __init__(self, plan: TablePlan) -> None:
        self._plan = plan

    @property
    def table(self) -> TableName:
        return self._plan.table

    def fits(self, plan: TablePlan) -> bool:
        return plan is self._plan

    def edit(self) -> Edit:
        return Edit(self.table, None, {}, "here")

    def published(self) -> None: ...

    def discard(self) -> None: ...

    def take_back(self) -> None: ...


class _Lake:
    """Pointers and applier at once. ``errors`` are what tables' changes meet in Spark, ``unanswered`` what commits do.

    ``commits`` are the tables of each that was made.
    """

    journal = None

    def __init__(self) -> None:
        self.errors: dict[TableName, Exception] = {}
        self.unanswered: list[Exception] = []
        self.plans: list[TablePlan] = []
        self.commits: list[list[TableName]] = []

    def apply(self, plan: TablePlan) -> Staged:
        self.plans.append(plan)
        if plan.table in self.errors:
            raise self.errors[plan.table]
        return _Staged(plan)

    def commit(self, edits: Sequence[Edit], *_: object, **__: object) -> dict[TableName, str]:
        if self.unanswered:
            raise self.unanswered.pop()
        self.commits.append([edit.table for edit in edits])
        return {edit.table: "there" for edit in edits}


@pytest.fixture
def lake() -> _Lake:
    return _Lake()


@pytest.fixture
def committer(lake: _Lake) -> Iterator[Committer]:
    fake = cast("Any", lake)
    made = Committer(pointers=fake, applier=fake, current=cast("Any", _Version))
    yield made
    made.close()


@pytest.fixture
def together(committer: Committer) -> Iterator[Callable[..., list[Future[Committed]]]]:
    """Requests that wait, and are then gathered by one of them."""
    with ThreadPoolExecutor(8) as pool:

        def commit(*requests: CommitRequest) -> list[Future[Committed]]:
            with committer.turn(T):
                outcomes = [pool.submit(committer.commit, request) for request in requests]
                wait_until(lambda: committer.waiting() == len(requests))
            return outcomes

        yield commit


def update(*row_ids: int, column: str = "a", table: TableName = T) -> ChangeSet:
    return ChangeSet(base=cast("Any", _Version(table)), columns=(column,), updated=np.array(row_ids, np.int64))


def request(*changes: ChangeSet) -> CommitRequest:
    return CommitRequest(changes={change.base.table: change for change in changes})


@pytest.mark.parametrize("second", [update(1), update(2, column="b")], ids=["the same row", "another column"])
def test_one_that_waits_for_the_next_commit_has_no_part_in_the_doubt_about_this_one(
    lake: _Lake, together: Callable[..., list[Future[Committed]]], second: ChangeSet
) -> None:
    """Else its own status would say committed as soon as the other's does, and its rows are not there."""
    lake.unanswered = [OutcomeUnknown("no answer", lambda: True)]
    outcomes = together(request(update(1)), request(second))
    assert [type(error) for outcome in outcomes if (error := outcome.exception()) is not None] == [OutcomeUnknown]
    assert lake.commits == [[T]]


def test_what_goes_wrong_after_a_commit_does_not_undo_it(committer: Committer, lake: _Lake) -> None:
    """Else a statement's transaction would say that it is aborted, and its rows are there."""

    def fails() -> None:
        raise Unavailable("too late")

    on_fault("publish.after", fails)
    try:
        committed = committer.commit(request(update(1)))
    finally:
        on_fault("publish.after", None)
    assert committed.locations == {T: "there"}
    assert lake.commits == [[T]]


def test_one_that_spark_was_not_told_of_outlives_it(
    lake: _Lake, together: Callable[..., list[Future[Committed]]]
) -> None:
    lake.errors[T] = Unavailable("Spark died")
    seen = lake.apply

    def dies_once(plan: TablePlan) -> Staged:
        try:
            return seen(plan)
        finally:
            lake.errors.clear()

    lake.apply = dies_once  # type: ignore[method-assign]
    outcomes = together(request(update(1)), request(update(1)))
    assert [type(error) for outcome in outcomes if (error := outcome.exception()) is not None] == [Unavailable]
    assert lake.commits == [[T]]


def test_a_file_that_is_missing_concerns_those_only_whose_rows_are_in_it(
    lake: _Lake, together: Callable[..., list[Future[Committed]]]
) -> None:
    damaged, whole = together(*(request(replace(update(row_id), pinned=False)) for row_id in (DAMAGED, 1)))
    assert isinstance(damaged.exception(), Conflict)
    assert whole.result().rows == 1


@pytest.mark.parametrize("final", [LeftInTheOpen(U, "why"), OutcomeUnknown("no answer", lambda: False)])
def test_nothing_is_tried_again_when_one_table_of_several_forbids_it(
    lake: _Lake, together: Callable[..., list[Future[Committed]]], final: SparkportError
) -> None:
    """Whatever went wrong with the others: its rows may be there."""
    lake.errors = {T: InternalError("Spark failed"), U: final}
    outcomes = together(request(update(1), update(1, table=U)), request(update(2), update(2, table=U)))
    assert [outcome.exception() for outcome in outcomes] == [final, final]
    assert len(lake.plans) == 2


def test_a_statement_that_read_other_tables_is_not_done_by_having_landed(
    lake: _Lake, together: Callable[..., list[Future[Committed]]]
) -> None:
    """Whether these are as they were is only said by the commit."""
    reads = CommitRequest(changes={T: update(1)}, reads={U: cast("Any", _Version(U))})
    (done,) = together(reads)
    assert done.result().rows == 1
    (plain,) = together(request(update(1)))
    assert plain.result().rows == 1
    assert [plan.alone for plan in lake.plans] == [False, True]
