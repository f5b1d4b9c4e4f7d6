"""What a table's metadata tells of its past, whoever has written it."""

from __future__ import annotations

from typing import Any

import pytest

from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.snapshots import history_of

pytestmark = pytest.mark.tier("fast")


def snapshot(number: int, operation: str, **summary: object) -> dict[str, Any]:
    named = {key.replace("_", "-"): str(value) for key, value in summary.items()}
    return {
        "snapshot-id": number,
        "timestamp-ms": number * 1000,
        "manifest-list": f"m{number}",
        "summary": {"operation": operation, **named},
    }


def metadata(*snapshots: dict[str, Any], log: list[int], main: int | None = None, **more: Any) -> TableMetadata:
    return TableMetadata(
        {
            "format-version": 3,
            "location": "/t",
            "schemas": [{"schema-id": 0, "fields": []}],
            "current-schema-id": 0,
            "snapshots": list(snapshots),
            "snapshot-log": [{"snapshot-id": number, "timestamp-ms": 5_000 + number} for number in log],
            "current-snapshot-id": log[-1] if main is None and log else (-1 if main is None else main),
            **more,
        }
    )


def test_a_table_without_snapshots_has_an_empty_history() -> None:
    history = history_of(metadata(log=[]))
    assert (history.snapshots, history.kept, history.current, history.format) == ((), 0, None, "Iceberg v3")


def test_rows_are_those_that_are_not_deleted() -> None:
    first = snapshot(1, "append", total_records=10, added_records=10, total_data_files=1, total_files_size=500)
    second = snapshot(
        2,
        "overwrite",
        total_records=12,
        added_records=2,
        total_position_deletes=3,
        added_position_deletes=3,
        total_data_files=2,
        total_delete_files=1,
        total_files_size=700,
    )
    history = history_of(metadata(first, second, log=[1, 2]))
    assert [(item.rows, item.bytes, item.files, item.delete_files) for item in history.snapshots] == [
        (10, 500, 1, None),
        (9, 700, 2, 1),
    ]
    assert [(item.added_rows, item.removed_rows) for item in history.snapshots] == [(10, 0), (2, 3)]
    assert history.current is not None
    assert history.current.committed.timestamp() == 5.002


def test_a_compaction_changes_no_rows() -> None:
    moved = snapshot(1, "replace", total_records=10, added_records=10, deleted_records=10)
    (item,) = history_of(metadata(moved, log=[1])).snapshots
    assert (item.rows, item.added_rows, item.removed_rows) == (10, None, None)


def test_snapshots_that_were_never_the_table_are_counted_and_not_shown() -> None:
    history = history_of(metadata(snapshot(1, "append"), snapshot(9, "append"), log=[1]))
    assert ([item.id for item in history.snapshots], history.kept) == ([1], 2)


def test_the_table_of_a_log_that_was_cut_off_is_shown() -> None:
    history = history_of(metadata(snapshot(3, "append", total_records=4), log=[], main=3))
    assert [(item.id, item.rows) for item in history.snapshots] == [(3, 4)]


def test_deletes_by_value_and_nonsense_leave_the_number_of_rows_open() -> None:
    by_value = snapshot(1, "delete", total_records=10, total_equality_deletes=1)
    nonsense = snapshot(2, "append", total_records="<script>", total_files_size="-5", total_data_files="9" * 40)
    one, other = history_of(metadata(by_value, nonsense, log=[1, 2])).snapshots
    assert (one.rows, other.rows, other.bytes, other.files) == (None, None, None, None)


def test_of_very_many_snapshots_lists_get_a_few_and_the_newest() -> None:
    many = [snapshot(n, "replace" if n == 300 else "append", total_records=n) for n in range(1, 501)]
    table = metadata(*many, log=list(range(1, 501)))
    few, all_of_them = history_of(table, 40), history_of(table)
    assert len(all_of_them.snapshots) == few.kept == 500
    assert len(few.snapshots) <= 41
    assert (few.snapshots[0].id, few.snapshots[-1].id, few.current) == (1, 500, few.snapshots[-1])
    assert few.compacted == all_of_them.compacted == all_of_them.snapshots[299].committed
