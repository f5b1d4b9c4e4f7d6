"""Which numbers a file has in a column is known exactly, or it is said not to be known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkport.lakehouse.iceberg.file_numbers import are_in_files
from sparkport.lakehouse.iceberg.manifests import DataFile

pytestmark = pytest.mark.tier("fast")

NUMBERS = st.one_of(st.integers(-100, 100), st.integers(-(2**63), 2**63 - 1))


def written(place: Path, values: list[int | None], kind: pa.DataType | None = None, **changes: Any) -> DataFile:
    kind = kind or pa.int64()
    column = pa.field("id", kind, metadata={b"PARQUET:field_id": b"1"})
    pq.write_table(pa.table([pa.array(values, kind)], schema=pa.schema([column])), place, row_group_size=50)
    width = 4 if kind == pa.int32() else 8
    there = [value for value in values if value is not None]
    bounds = [value.to_bytes(width, "little", signed=True) for value in (min(there), max(there))] if there else []
    known: dict[str, Any] = {
        "path": str(place),
        "format": "parquet",
        "record_count": len(values),
        "size": place.stat().st_size,
        "sequence_number": 1,
        "file_sequence_number": 1,
        "first_row_id": 0,
        "spec_id": 0,
        "partition": (),
        "lower_bounds": {1: bounds[0]} if bounds else {},
        "upper_bounds": {1: bounds[1]} if bounds else {},
        "null_counts": {},
        "nan_counts": {},
        "value_counts": {},
    }
    return DataFile(**{**known, **changes})


@given(files=st.lists(st.lists(NUMBERS, min_size=1, max_size=60), max_size=3), asked=st.sets(NUMBERS, max_size=60))
@settings(max_examples=60)
def test_numbers_are_found_where_they_are(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], asked: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    made = [written(folder / f"{number}.parquet", list(values)) for number, values in enumerate(files)]
    there = {number for values in files for number in values}
    some = np.array(sorted(asked | set(list(there)[:20])), np.int64)
    for _ in range(2):  # the second time from memory
        found = are_in_files(made, 1, some)
        assert found is not None
        assert found.tolist() == [int(number) in there for number in some]


def test_nulls_and_narrow_numbers(tmp_path: Path) -> None:
    narrow = written(tmp_path / "a.parquet", [3, None, -7], pa.int32())
    asked = np.array([-8, -7, 0, 3, 2**40])
    found = are_in_files([narrow], 1, asked)
    assert found is not None
    assert found.tolist() == [False, True, False, True, False]


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    asked = np.array([1, 2])
    good = written(tmp_path / "a.parquet", [1, 2, 3])
    assert are_in_files([good], 1, asked) is not None
    others = {
        "no bounds": written(tmp_path / "b.parquet", [1, 2], lower_bounds={}),
        "bounds that lie": written(tmp_path / "c.parquet", [1, 900], upper_bounds={1: (5).to_bytes(8, "little")}),
        "bounds upside down": written(tmp_path / "j.parquet", [1, 2], lower_bounds={1: (9).to_bytes(8, "little")}),
        "only null": written(tmp_path / "d.parquet", [None]),
        "gone": written(tmp_path / "e.parquet", [1, 2], path=str(tmp_path / "nothing.parquet")),
        "elsewhere": written(tmp_path / "f.parquet", [1, 2], path="s3://bucket/f.parquet"),
        "another format": written(tmp_path / "g.parquet", [1, 2], format="avro"),
    }
    for name, file in others.items():
        assert are_in_files([good, file], 1, asked) is None, name
    texts = tmp_path / "h.parquet"
    column = pa.field("id", pa.string(), metadata={b"PARQUET:field_id": b"1"})
    file = written(texts, [1, 2])
    pq.write_table(pa.table([pa.array(["1", "2"])], schema=pa.schema([column])), texts)
    assert are_in_files([file], 1, asked) is None
    assert are_in_files([good], 2, asked) is None
    assert are_in_files([good, written(tmp_path / "i.parquet", [7, 10**15])], 1, asked, most_bytes=1) is None


def test_a_file_that_was_gone_for_a_moment_is_read_again(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", [1, 2, 3])
    (tmp_path / "a.parquet").rename(tmp_path / "elsewhere")
    assert are_in_files([file], 1, np.array([2])) is None
    (tmp_path / "elsewhere").rename(tmp_path / "a.parquet")
    found = are_in_files([file], 1, np.array([2]))
    assert found is not None
    assert found.tolist() == [True]


def test_a_narrow_look_is_left_to_the_row_groups_until_the_file_is_known(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", [number * 1_000 for number in range(500)])
    narrow, wide = np.array([5_000, 6_001]), np.array([5_000, 6_001, 499_000])
    assert are_in_files([file], 1, narrow, few_rows=100) is None
    found = are_in_files([file], 1, wide, few_rows=100)
    assert found is not None
    assert found.tolist() == [True, False, True]
    found = are_in_files([file], 1, narrow, few_rows=100)
    assert found is not None
    assert found.tolist() == [True, False]
