"""What Spark has written in the open is found by its mark and taken back, and nothing else with it. Without a JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from tests.lakehouse.transacting import wait_until

from sparkport.errors import InternalError, Unavailable
from sparkport.lakehouse.catalogs.database import SqliteDatabase
from sparkport.lakehouse.catalogs.pointers import Edit, Moved, OutcomeUnknown, Pointers
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.edits import move_main, new_table
from sparkport.lakehouse.iceberg.lineage import Lineage
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.metadata_files import write_metadata
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.spark.staging import StagedRows, Staging
from sparkport.lakehouse.write import wap_applier
from sparkport.lakehouse.write.change_set import ChangeSet, TablePlan
from sparkport.lakehouse.write.commit_request import CommitRequest, Committed
from sparkport.lakehouse.write.committer import Committer
from sparkport.lakehouse.write.merge_sql import UPDATED_COUNT
from sparkport.lakehouse.write.staged import (
    LeftInTheOpen,
    allow_staging,
    can_stage,
    current_metadata,
    in_the_open,
    take_back,
)
from sparkport.lakehouse.write.wap_applier import StagedSnapshot, WapApplier

pytestmark = pytest.mark.tier("fast")

T = TableName("public", "t")
OURS, THEIRS = "our-mark", "their-mark"


@pytest.fixture
def files() -> FileSystem:
    return FileSystem()


@pytest.fixture
def pointers(tmp_path: Path, files: FileSystem) -> Iterator[SqlPointers]:
    database = SqliteDatabase(tmp_path / "catalog.db")
    yield SqlPointers(database, "lake", files, settle_seconds=0.1)
    database.close()
    for point in ("pointer.before", "pointer.after", "settle.before"):
        on_fault(point, None)


def snapshot(number: int, mark: str | None) -> dict[str, Any]:
    counts = {"added-records": "1", UPDATED_COUNT: "1"}
    summary = {"operation": "append"} | counts | ({} if mark is None else {"sparkport.mark": mark})
    made = {"snapshot-id": number, "sequence-number": number, "timestamp-ms": number, "manifest-list": "m"}
    return made | {"summary": summary} | ({} if number == 1 else {"parent-snapshot-id": number - 1})


def put(
    pointers: SqlPointers,
    files: FileSystem,
    folder: Path,
    *marks: str | None,
    expired: tuple[int, ...] = (),
    properties: dict[str, str] | None = None,
) -> TableMetadata:
    """A table whose snapshots 1, 2, … stand on one another, each with its mark."""
    json: dict[str, Any] = new_table(str(folder / "t"), [], last_column_id=0, properties=properties or {})
    json["snapshots"] = [snapshot(number, mark) for number, mark in enumerate(marks, 1)]
    first = write_metadata(files, json, None)
    json = move_main(json, len(marks), previous=first)
    json["snapshots"] = [item for item in json["snapshots"] if item["snapshot-id"] not in expired]
    pointers.create(T, write_metadata(files, json, first))
    return current_metadata(pointers, files, T)


def main(pointers: SqlPointers, files: FileSystem) -> int | None:
    return current_metadata(pointers, files, T).main_snapshot_id


def no_answer() -> None:
    raise Unavailable("the database gives no answer")


@pytest.mark.parametrize(
    ("marks", "base", "left"),
    [
        ((None, OURS), 1, 1),
        ((None, OURS, OURS), 1, 1),
        ((None, THEIRS, OURS), 1, 2),
        ((OURS,), None, None),
        ((OURS,), 99, None),
    ],
    ids=["one", "two", "on another's", "the first", "in another table"],
)
def test_main_goes_back_to_where_it_was(
    pointers: SqlPointers, files: FileSystem, tmp_path: Path, marks: tuple[str, ...], base: int | None, left: int | None
) -> None:
    put(pointers, files, tmp_path, *marks)
    assert take_back(pointers, files, T, OURS, base)
    assert main(pointers, files) == left
    assert not take_back(pointers, files, T, OURS, base)


@pytest.mark.parametrize(
    ("marks", "expired", "why"),
    [
        ((None, OURS, THEIRS), (), "built upon"),
        ((None, OURS, THEIRS, OURS), (), "built upon"),
        ((None, OURS), (1,), "expired"),
    ],
    ids=["others after", "others between", "nothing before"],
)
def test_what_others_did_is_not_taken_back_and_main_is_always_on_a_snapshot(
    pointers: SqlPointers,
    files: FileSystem,
    tmp_path: Path,
    marks: tuple[str, ...],
    expired: tuple[int, ...],
    why: str,
) -> None:
    put(pointers, files, tmp_path, *marks, expired=expired)
    with pytest.raises(LeftInTheOpen, match=why):
        take_back(pointers, files, T, OURS, 1)
    assert main(pointers, files) == len(marks)


@pytest.mark.parametrize("point", ["pointer.before", "pointer.after"])
def test_while_the_catalog_is_silent_it_is_not_known_and_settled_it_was_not_made(
    pointers: SqlPointers, files: FileSystem, tmp_path: Path, point: str
) -> None:
    """That the rows were taken back does not mean that the statement was committed."""
    put(pointers, files, tmp_path, None, OURS)
    on_fault(point, no_answer)
    on_fault("settle.before", no_answer)
    with pytest.raises(OutcomeUnknown) as raised:
        take_back(pointers, files, T, OURS, 1)
    on_fault(point, None)
    on_fault("settle.before", None)
    assert raised.value.settle() is False
    assert main(pointers, files) == 1


def test_that_a_property_was_set_says_nothing_of_the_statement(
    pointers: SqlPointers, files: FileSystem, tmp_path: Path
) -> None:
    """Else the status of its transaction would say committed, and no row is there."""
    found = put(pointers, files, tmp_path, None)
    on_fault("pointer.after", no_answer)
    on_fault("settle.before", no_answer)
    with pytest.raises(Unavailable) as raised:
        allow_staging(pointers, T, found)
    assert not isinstance(raised.value, OutcomeUnknown)


# A single statement that landed there


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Staging]:
    with closing(Staging(str(tmp_path / "staging"))) as made:
        yield made


def one_row(staging: Staging) -> StagedRows:
    rows = staging.new(pa.schema([pa.field("id", pa.int64())]))
    rows.append(pa.record_batch({"id": pa.array([1], pa.int64())}))
    rows.finish()
    return rows


def stand_on(pointers: Pointers, files: FileSystem, mark: str | None) -> None:
    """One more snapshot on ``main``, and the table's property is gone."""
    metadata = current_metadata(pointers, files, T)
    number = len(metadata.json["snapshots"]) + 1
    added = {**snapshot(number, mark), "parent-snapshot-id": metadata.main_snapshot_id}
    json = {**metadata.json, "snapshots": [*metadata.json["snapshots"], added]}
    moved = move_main(json, number, previous=metadata.metadata_location)
    moved["properties"] = {}
    pointers.commit([Edit(T, metadata.json, moved, metadata.metadata_location)])


class OpenSpark(WapApplier):
    """Spark as it writes when the table's property is gone: on ``main``."""

    def __init__(self, pointers: SqlPointers, files: FileSystem, staging: Staging, *, fails: bool = False) -> None:
        super().__init__(catalog="lake", pointers=pointers, files=files, spark=cast("Any", None), staging=staging)
        self._fails = fails

    def _run(self, staged: StagedSnapshot) -> None:
        stand_on(self._pointers, self._files, staged.mark)
        if self._fails:
            raise Unavailable("Spark died")


@pytest.fixture(params=[False, True], ids=["answers", "dies"])
def insert(
    request: pytest.FixtureRequest,
    pointers: SqlPointers,
    files: FileSystem,
    tmp_path: Path,
    staging: Staging,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[], Committed]]:
    monkeypatch.setattr(wap_applier, "sync_snapshot", lambda *_: None)
    put(pointers, files, tmp_path, None, properties={"write.wap.enabled": "true"})
    applier = OpenSpark(pointers, files, staging, fails=request.param)
    committer = Committer(pointers=pointers, applier=applier, current=lambda _: version(pointers, files))
    change = ChangeSet(base=version(pointers, files), inserts=one_row(staging), pinned=False)
    yield lambda: committer.commit(CommitRequest(changes={T: change}, statement="statement"))
    committer.close()


def version(pointers: SqlPointers, files: FileSystem) -> Any:
    metadata = current_metadata(pointers, files, T)
    columns = SimpleNamespace(takes_rows_of=lambda _: True, fields=[])
    return SimpleNamespace(
        checks=(),
        keys=(),
        table=T,
        uuid=metadata.uuid,
        metadata=metadata,
        columns=columns,
        location=metadata.metadata_location,
        snapshot_id=metadata.main_snapshot_id,
        sequence_number=metadata.main_snapshot_id or 0,
        journal=None,
        is_journalled=False,
        revision=0,
        rows=SimpleNamespace(
            lineage=lambda ids: Lineage(ids, np.full(len(ids), metadata.main_snapshot_id or 0)),
            resolve=lambda ids: ids,
        ),
    )


def test_it_counts_as_committed_and_is_noted(
    insert: Callable[[], Committed], pointers: SqlPointers, files: FileSystem
) -> None:
    committed = insert()
    assert committed.rows == pointers.statement("statement") == 1
    assert committed.locations == {T: pointers.location(T)}
    assert main(pointers, files) == 2
    assert can_stage(current_metadata(pointers, files, T))


def test_it_is_taken_back_if_it_was_committed_elsewhere(
    insert: Callable[[], Committed], pointers: SqlPointers, files: FileSystem
) -> None:
    pointers.commit([], {"statement": 7})
    assert insert().rows == 7
    assert main(pointers, files) == 1


def test_it_is_done_though_the_database_takes_no_note(
    insert: Callable[[], Committed], pointers: SqlPointers, files: FileSystem
) -> None:
    commits = iter([None, no_answer])  # what Spark does is committed

    def second_fails() -> None:
        if (act := next(commits, None)) is not None:
            act()

    on_fault("pointer.before", second_fails)
    assert insert().rows == 1
    assert pointers.statement("statement") is None
    assert main(pointers, files) == 2


def test_it_is_taken_back_before_it_is_made_again(
    insert: Callable[[], Committed], pointers: SqlPointers, files: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its rows would be there twice."""
    commit = pointers.commit
    left = [Moved(T)] * 8

    def often_moved(changes: Any, statements: Any = None, **rest: Any) -> dict[TableName, str]:
        if statements and left:
            raise left.pop()
        return commit(changes, statements, **rest)

    monkeypatch.setattr(pointers, "commit", often_moved)
    assert insert().rows == 1
    assert not left
    metadata = current_metadata(pointers, files, T)
    assert [found.id for found in metadata.ancestors(metadata.main_snapshot_id)] == [3, 1]


@pytest.mark.parametrize("built_upon", [False, True], ids=["alone", "built upon"])
def test_rows_that_it_has_changed_itself_are_no_conflict(
    pointers: SqlPointers,
    files: FileSystem,
    tmp_path: Path,
    staging: Staging,
    monkeypatch: pytest.MonkeyPatch,
    built_upon: bool,
) -> None:
    """A conflict would say that nothing has happened, while its rows are there if they cannot be taken back."""
    monkeypatch.setattr(wap_applier, "sync_snapshot", lambda *_: None)
    put(pointers, files, tmp_path, None, properties={"write.wap.enabled": "true"})
    commit, left = pointers.commit, [Moved(T)] * 8

    def often_moved(changes: Any, statements: Any = None, **rest: Any) -> dict[TableName, str]:
        if statements and left:
            raise left.pop()
        return commit(changes, statements, **rest)

    applier = OpenSpark(pointers, files, staging)
    take_back = applier.take_back

    def too_late(staged: StagedSnapshot) -> None:
        stand_on(pointers, files, THEIRS)
        take_back(staged)

    committer = Committer(pointers=pointers, applier=applier, current=lambda _: version(pointers, files))
    updated = np.array([1], np.int64)
    change = ChangeSet(base=version(pointers, files), changes=one_row(staging), columns=("id",), updated=updated)
    monkeypatch.setattr(pointers, "commit", often_moved)
    if built_upon:
        monkeypatch.setattr(applier, "take_back", too_late)
        with pytest.raises(LeftInTheOpen, match="built upon"):
            committer.commit(CommitRequest(changes={T: change}, statement="statement"))
    else:
        assert committer.commit(CommitRequest(changes={T: change}, statement="statement")).rows == 1
        assert main(pointers, files) == 3
    committer.close()


@pytest.mark.parametrize("summary", [{"sparkport.mark": OURS, "wap.id": OURS}, {"published-wap-id": OURS}])
def test_what_others_have_published_of_ours_is_found_too(
    pointers: SqlPointers, files: FileSystem, tmp_path: Path, summary: dict[str, str]
) -> None:
    """Else the statement would be made once more."""
    found = dict(put(pointers, files, tmp_path, None, None).json)
    found["snapshots"] = [found["snapshots"][0], {**found["snapshots"][1], "summary": summary}]
    assert [snapshot.id for snapshot in in_the_open(TableMetadata(found), OURS, 1)] == [2]


# Several at once


@pytest.mark.parametrize(("error", "tries"), [(LeftInTheOpen(T, "why"), 1), (InternalError("one of them"), 3)])
def test_a_group_whose_rows_are_in_the_table_is_not_tried_again(
    pointers: SqlPointers, files: FileSystem, tmp_path: Path, staging: Staging, error: Exception, tries: int
) -> None:
    tried: list[int] = []

    class Failing(OpenSpark):
        def apply(self, plan: TablePlan) -> StagedSnapshot | None:
            tried.append(len(plan.change_sets))
            raise error

    put(pointers, files, tmp_path, None)
    seen = version(pointers, files)
    committer = Committer(pointers=pointers, applier=Failing(pointers, files, staging), current=lambda _: seen)
    request = CommitRequest(changes={T: ChangeSet(base=seen, inserts=one_row(staging), pinned=False)})
    with ThreadPoolExecutor(2) as pool:
        with committer.turn(T):
            outcomes = [pool.submit(committer.commit, request) for _ in range(2)]
            wait_until(lambda: committer.waiting() == 2)
        assert [outcome.exception() for outcome in outcomes] == [error, error]
    assert tried == [2, 1, 1][:tries]
    committer.close()
