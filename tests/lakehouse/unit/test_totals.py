"""Totals of snapshots that were committed on a branch which did not go on from those before it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.lakehouse.unit.test_snapshots import metadata, snapshot

from sparkport.lakehouse.iceberg.commits import commits_of
from sparkport.lakehouse.iceberg.metadata import BRANCH, MARK, ROLLED_BACK, TableMetadata
from sparkport.lakehouse.iceberg.snapshots import history_of
from sparkport.lakehouse.iceberg.totals import Totals

pytestmark = pytest.mark.tier("fast")

ZERO = {"total_equality_deletes": 0, "total_delete_files": 0}


def on(parent: int, made: dict[str, Any], mark: str = "", **summary: str) -> dict[str, Any]:
    marked = {MARK: mark} if mark else {}
    return {
        **made,
        "parent-snapshot-id": parent,
        "sequence-number": made["snapshot-id"],
        "summary": {**made["summary"], **marked, **summary},
    }


def first(**totals: int) -> dict[str, Any]:
    told = {"added_records": 10, "total_records": 10, "total_position_deletes": 0, "total_files_size": 500, **totals}
    return {**snapshot(1, "append", **ZERO, **told), "sequence-number": 1}


def upsert(after: int, records: int, gone: int, size: int) -> list[dict[str, Any]]:
    """A row is changed and two are new, by two snapshots; the arguments are the totals that they go on from."""
    changed = snapshot(
        after + 1,
        "overwrite",
        **ZERO,
        added_records=1,
        added_position_deletes=1,
        added_files_size=20,
        total_records=records + 1,
        total_position_deletes=gone + 1,
        total_files_size=size + 20,
    )
    new = snapshot(
        after + 2,
        "append",
        **ZERO,
        added_records=2,
        added_files_size=30,
        total_records=records + 3,
        total_position_deletes=gone + 1,
        total_files_size=size + 50,
    )
    mark = f"{BRANCH}{after}"
    return [on(after, changed, mark), on(after + 1, new, mark)]


def told(table: TableMetadata) -> list[tuple[str, int | None, int | None]]:
    return [(item.operation, item.rows, item.bytes) for item in history_of(table).snapshots]


def test_a_commit_of_two_snapshots_is_told_as_one() -> None:
    table = metadata(first(), *upsert(1, 10, 0, 500), log=[1, 3])
    _, item = history_of(table).snapshots
    assert (item.operation, item.added_rows, item.removed_rows, item.rows) == ("overwrite", 3, 1, 12)
    commit = commits_of(table)[-1]
    assert (commit.operation, commit.rows) == ("overwrite", 12)


def test_totals_that_began_at_nothing_are_counted_from_those_before() -> None:
    deleted = snapshot(
        4, "delete", **ZERO, added_position_deletes=5, total_records=3, total_position_deletes=6, total_files_size=50
    )
    table = metadata(first(), *upsert(1, 0, 0, 0), on(3, deleted), log=[1, 3, 4])
    assert told(table) == [("append", 10, 500), ("overwrite", 12, 550), ("delete", 7, 550)]
    assert [commit.rows for commit in commits_of(table)] == [None, 10, 12, 7]


def test_a_second_beginning_counts_on_from_what_was_counted() -> None:
    table = metadata(first(), *upsert(1, 0, 0, 0), *upsert(3, 0, 0, 0), *upsert(5, 3, 1, 50), log=[1, 3, 5, 7])
    assert told(table)[1:] == [("overwrite", 12, 550), ("overwrite", 14, 600), ("overwrite", 16, 650)]


def test_totals_that_iceberg_left_out_as_they_were_below_zero_are_counted() -> None:
    rewritten = snapshot(2, "overwrite", **ZERO, added_records=9, deleted_records=10, total_position_deletes=0)
    new = snapshot(3, "append", **ZERO, added_records=2, total_position_deletes=0)
    mark = f"{BRANCH}1"
    table = metadata(first(), on(1, rewritten, mark), on(2, new, mark), log=[1, 3])
    assert [item.rows for item in history_of(table).snapshots] == [10, 11]


def test_totals_that_somebody_has_counted_by_other_means_hold() -> None:
    counted = snapshot(4, "overwrite", **ZERO, total_records=12, total_position_deletes=1, total_files_size=300)
    more = snapshot(
        5, "append", **ZERO, added_records=1, total_records=13, total_position_deletes=1, total_files_size=300
    )
    table = metadata(first(), *upsert(1, 0, 0, 0), on(3, counted), on(4, more), log=[1, 3, 4, 5])
    assert told(table)[2:] == [("overwrite", 11, 300), ("append", 12, 300)]


def test_a_snapshot_that_brings_another_back_has_its_totals() -> None:
    begun = upsert(1, 0, 0, 0)
    same = {key.replace("-", "_"): value for key, value in begun[1]["summary"].items() if key.startswith("total-")}
    back = on(3, snapshot(4, "overwrite", **same), **{ROLLED_BACK: "3"})
    table = metadata(first(), *begun, back, log=[1, 3, 4])
    assert Totals(table).rows(4) == 12
    assert Totals(table).summary(3)["total-records"] == "13"


def test_nothing_is_counted_where_what_was_before_is_gone() -> None:
    table = metadata(*upsert(1, 10, 0, 500), log=[3])
    assert told(table) == [("overwrite", 12, 550)]
    deleted = snapshot(4, "delete", **ZERO, added_position_deletes=5, total_records=3, total_position_deletes=6)
    assert Totals(metadata(on(3, deleted), log=[4])).rows(4) is None
