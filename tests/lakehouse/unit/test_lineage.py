"""Rows by their ids: which are there, and which commit changed them last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg import lineage
from sparkport.lakehouse.iceberg.lineage import (
    NO_IDS,
    Ids,
    Lineage,
    ascending,
    changed_since,
    derived,
    from_batch,
    ids_of,
    places_of,
    positions_in,
)
from sparkport.lakehouse.iceberg.manifests import ROW_ID_FIELD, SEQUENCE_FIELD, DataFile, DeleteFile

pytestmark = pytest.mark.tier("fast")


def ids(*numbers: int) -> Ids:
    return np.array(numbers, np.int64)


def file(first: int | None, count: int, *, commit: int = 7, **changes: Any) -> DataFile:
    known: dict[str, Any] = {
        "path": f"/x/{first}.parquet",
        "format": "parquet",
        "record_count": count,
        "size": 1,
        "sequence_number": commit,
        "file_sequence_number": commit,
        "first_row_id": first,
        "spec_id": 0,
        "partition": (),
        "lower_bounds": {},
        "upper_bounds": {},
        "null_counts": {},
        "nan_counts": {},
        "value_counts": {1: count},
    }
    return DataFile(**{**known, **changes})


@given(st.sets(st.integers(-5, 20)), st.lists(st.integers(-6, 21)))
def test_positions_are_those_of_a_list(present: set[int], wanted: list[int]) -> None:
    listed = sorted(present)
    expected = [listed.index(number) if number in present else -1 for number in wanted]
    assert positions_in(ids(*listed), ids(*wanted)).tolist() == expected


SOME = st.lists(st.one_of(st.none(), st.integers(-3, 30)), max_size=40)


@given(rows=st.one_of(SOME, SOME.map(lambda listed: sorted({row for row in listed if row is not None}))), wanted=SOME)
def test_places_are_those_of_every_row_with_a_wanted_id(rows: list[int | None], wanted: list[int | None]) -> None:
    """In whatever order rows are, and also where one id is there twice."""
    sought = {number for number in wanted if number is not None and number >= 0}
    found = places_of(ids(*sorted(sought)), ids_of(pa.array(rows, pa.int64())))
    assert found.tolist() == [place for place, row in enumerate(rows) if row in sought]


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 9)), st.sets(st.integers(0, 20)), st.integers(0, 9))
def test_changed_rows_and_gone_ones_are_those_of_a_dictionary(
    present: dict[int, int], wanted: set[int], limit: int
) -> None:
    there = Lineage.from_parts([(ids(row_id), ids(commit)) for row_id, commit in present.items()])
    changed, gone = changed_since(ids(*sorted(wanted)), there, limit)
    assert changed.tolist() == sorted(row for row in wanted if present.get(row, -1) > limit)
    assert gone.tolist() == sorted(wanted - present.keys())


def test_rows_of_plain_files_are_found_without_opening_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "deleted_positions", lambda fs, found: ids(1, 3))
    delete = DeleteFile("/x/dv", 8, 2, 0, (), offset=4, length=40)
    files = [file(100, 10, commit=7), file(110, 5, commit=9, deletes=(delete,))]
    found, rest = derived(FileSystem(), files, ids(-1, 99, 100, 109, 110, 111, 112, 113, 114, 115))
    assert rest == []
    present = Lineage.from_parts(found)
    assert present.ids.tolist() == [100, 109, 110, 112, 114]
    assert present.commits.tolist() == [7, 7, 9, 9, 9]


@pytest.mark.parametrize(
    "changes",
    [
        {"value_counts": {1: 10, ROW_ID_FIELD: 10}},
        {"value_counts": {1: 10, SEQUENCE_FIELD: 10}},
        {"value_counts": {}},
        {"value_counts": dict.fromkeys(range(100), 10)},
        {"first_row_id": None},
        {"deletes": (DeleteFile("/x/eq", 8, 2, 0, (), equality=True),)},
    ],
)
def test_files_that_may_hold_ids_of_their_own_are_left_to_be_read(changes: dict[str, Any]) -> None:
    doubtful = file(**{"first": 100, "count": 10, **changes}) if "first_row_id" not in changes else file(None, 10)
    assert derived(FileSystem(), [doubtful], ids(100, 101)) == ([], [doubtful])


def test_rows_come_together_by_their_ids() -> None:
    present = Lineage.from_parts([(ids(5, 7), ids(1, 1)), (ids(2, 6), ids(3, 4))])
    assert present.ids.tolist() == [2, 5, 6, 7]
    assert present.commits.tolist() == [3, 1, 4, 1]
    assert Lineage.from_parts([]).has(ids(1, 2)).tolist() == [False, False]
    assert Lineage.from_parts([]).ids.tolist() == NO_IDS.tolist()


def test_rows_without_an_id_are_left_out() -> None:
    found, commits = from_batch(pa.array([4, None, 6], pa.int64()), pa.array([1, 2, None], pa.int64()))
    assert found.tolist() == [4, 6]
    assert commits.tolist() == [1, 0]


@given(st.lists(st.lists(st.integers(-5, 9))))
def test_ids_of_several_parts_come_together_in_order(parts: list[list[int]]) -> None:
    assert ascending(*(ids(*part) for part in parts)).tolist() == sorted({number for part in parts for number in part})
