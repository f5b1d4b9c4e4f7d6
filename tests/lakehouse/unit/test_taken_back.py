"""What Spark has written in the open is found by its mark and taken back, and nothing else with it. Without a JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkport.errors import AlreadyExists, InternalError, Unavailable
from sparkport.lakehouse.catalogs.database import SqliteDatabase
from sparkport.lakehouse.catalogs.pointers import OutcomeUnknown
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.edits import move_main, new_table
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.metadata_files import write_metadata
from sparkport.lakehouse.write import writer as writer_module
from sparkport.lakehouse.write.staged import LeftInTheOpen, allow_staging, current_metadata, in_the_open, take_back
from sparkport.lakehouse.write.writer import TableWriter

T = ("public", "t")
OURS, THEIRS = "our-mark", "their-mark"


@pytest.fixture
def files() -> FileSystem:
    return FileSystem()


@pytest.fixture
def pointers(tmp_path: Path, files: FileSystem) -> Iterator[SqlPointers]:
    database = SqliteDatabase(tmp_path / "catalog.db")
    yield SqlPointers(database, "lake", files)
    database.close()
    for point in ("pointer.before", "pointer.after", "settle.before"):
        on_fault(point, None)


def put(
    pointers: SqlPointers, files: FileSystem, folder: Path, *marks: str | None, expired: tuple[int, ...] = ()
) -> TableMetadata:
    """A table whose snapshots 1, 2, … stand on one another, each with its mark."""
    json: dict[str, Any] = new_table(str(folder / "t"), [], last_column_id=0, properties={})
    json["snapshots"] = [
        {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": number,
            "manifest-list": "m",
            "summary": {"operation": "append", "added-records": "1"}
            | ({} if mark is None else {"sparkport.mark": mark}),
        }
        | ({} if number == 1 else {"parent-snapshot-id": number - 1})
        for number, mark in enumerate(marks, 1)
    ]
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
    pointers: SqlPointers, files: FileSystem, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the rows were taken back does not mean that the statement was committed."""
    monkeypatch.setattr("sparkport.lakehouse.catalogs.sql_pointers._SETTLE_SECONDS", 0.1)
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
    pointers: SqlPointers, files: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the status of its transaction would say committed, and no row is there."""
    monkeypatch.setattr("sparkport.lakehouse.catalogs.sql_pointers._SETTLE_SECONDS", 0.1)
    found = put(pointers, files, tmp_path, None)
    on_fault("pointer.after", no_answer)
    on_fault("settle.before", no_answer)
    with pytest.raises(Unavailable) as raised:
        allow_staging(pointers, T, found)
    assert not isinstance(raised.value, OutcomeUnknown)


# A single statement that landed there


@pytest.fixture
def landed(
    pointers: SqlPointers, files: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Any]:
    found = put(pointers, files, tmp_path, None, OURS)
    monkeypatch.setattr(writer_module, "sync_snapshot", lambda *_: None)
    spark: Any = None
    writer = TableWriter(T, catalog="lake", pointers=pointers, files=files, spark=spark)
    before = TableMetadata({**found.json, "refs": {"main": {"type": "branch", "snapshot-id": 1}}})
    attempt = writer_module._Attempt(before, {"added-records": 1}, {"statement": 1}, OURS)
    return lambda: writer._landed(found, attempt)


def test_it_counts_as_committed_and_is_noted(
    landed: Callable[[], Any], pointers: SqlPointers, files: FileSystem
) -> None:
    assert landed().statements == {"statement": 1}
    assert pointers.statement("statement") == 1
    assert main(pointers, files) == 2


def test_it_is_taken_back_if_it_was_committed_elsewhere(
    landed: Callable[[], Any], pointers: SqlPointers, files: FileSystem
) -> None:
    pointers.commit([], {"statement": 1})
    with pytest.raises(AlreadyExists):
        landed()
    assert main(pointers, files) == 1


def test_it_is_done_though_the_database_takes_no_note(
    landed: Callable[[], Any], pointers: SqlPointers, files: FileSystem
) -> None:
    on_fault("pointer.before", no_answer)
    assert landed().statements == {"statement": 1}
    assert main(pointers, files) == 2


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
    pointers: SqlPointers, files: FileSystem, monkeypatch: pytest.MonkeyPatch, error: Exception, tries: int
) -> None:
    spark: Any = None
    writer = TableWriter(T, catalog="lake", pointers=pointers, files=files, spark=spark)
    tried: list[int] = []

    def append(inserts: list[Any]) -> None:
        tried.append(len(inserts))
        raise error

    monkeypatch.setattr(writer, "_append", append)
    group = [writer_module._Insert(Path("p"), "s", None, 1, lambda: None, lambda: None) for _ in range(2)]
    writer._append_all(group)
    assert len(tried) == tries
    assert all(insert.error is error and insert.done.is_set() for insert in group)
