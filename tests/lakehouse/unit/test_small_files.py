"""Small files whose row ids are kept: they say of each row just what reading the file says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lakehouse.unit.test_lineage import file, ids

from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.manifests import ROW_ID_FIELD, SEQUENCE_FIELD, DataFile, DeleteFile
from sparkport.lakehouse.iceberg.small_files import holding, small_file

pytestmark = pytest.mark.tier("fast")

FILES = FileSystem()


def written(folder: Path, first: int | None = 100, *, name: str = "a", **columns: list[int | None]) -> DataFile:
    """A file with these columns; of a table that says of its columns only that there are some."""
    numbers = {"x": 1, "_row_id": ROW_ID_FIELD, "_last_updated_sequence_number": SEQUENCE_FIELD}
    known = {"row_id": "_row_id", "commit": "_last_updated_sequence_number", "x": "x"}
    arrays = {known[column]: pa.array(values, pa.int64()) for column, values in columns.items()}
    fields = [pa.field(c, pa.int64(), metadata={"PARQUET:field_id": str(numbers[c])}) for c in arrays]
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table(list(arrays.values()), schema=pa.schema(fields)), path)
    counts = {numbers[column]: len(next(iter(columns.values()))) for column in arrays}
    made: dict[str, Any] = {"path": str(path), "size": path.stat().st_size, "value_counts": counts}
    return file(first, len(next(iter(columns.values()))), **made)


def found(data: DataFile, *wanted: int) -> list[tuple[int, int]]:
    small = small_file(FILES, data)
    assert small is not None
    rows, commits = small.find(FILES, data, ids(*wanted))
    return list(zip(rows.tolist(), commits.tolist(), strict=True))


def test_rows_are_found_by_the_ids_that_the_file_holds(tmp_path: Path) -> None:
    data = written(tmp_path, x=[1, 2, 3], row_id=[9, 3, 5], commit=[2, 4, 6])
    assert found(data, 3, 4, 9, 100) == [(3, 4), (9, 2)]


def test_what_the_file_does_not_say_follows_from_the_place(tmp_path: Path) -> None:
    data = written(tmp_path, x=[1, 2, 3], row_id=[9, None, 5], commit=[None, 4, None])
    assert found(data, 5, 9, 100, 101, 102) == [(5, 7), (9, 7), (101, 4)]


def test_without_a_first_id_only_written_ones_are_ids(tmp_path: Path) -> None:
    data = written(tmp_path, None, x=[1, 2, 3], row_id=[9, None, 5], commit=[None, 4, 6])
    assert found(data, 0, 1, 2, 5, 9) == [(5, 6), (9, 0)]


def test_deleted_rows_are_not_found(tmp_path: Path) -> None:
    data = written(tmp_path, x=[1, 2, 3], row_id=[9, 3, 5], commit=[2, 4, 6])
    gone = pa.table({"file_path": [data.path] * 2, "pos": pa.array([0, 2], pa.int64())})
    pq.write_table(gone, tmp_path / "gone.parquet")
    delete = DeleteFile(str(tmp_path / "gone.parquet"), 8, 2, 0, ())
    assert found(replace(data, deletes=(delete,)), 3, 5, 9) == [(3, 4)]


def test_a_file_without_ids_of_its_own_is_left_to_others(tmp_path: Path) -> None:
    assert small_file(FILES, written(tmp_path, x=[1, 2])) is None


def test_a_row_that_is_there_twice_is_left_to_the_reader(tmp_path: Path) -> None:
    assert small_file(FILES, written(tmp_path, x=[1, 2], row_id=[4, 4], commit=[1, 2])) is None


def test_a_file_that_is_not_there_or_is_not_what_the_manifest_says_is_left_to_the_reader(tmp_path: Path) -> None:
    data = written(tmp_path, x=[1, 2], row_id=[4, 5], commit=[1, 2])
    shorter = written(tmp_path, name="b", x=[1], row_id=[4], commit=[1])
    shorter = replace(shorter, record_count=2)
    Path(data.path).unlink()
    assert (small_file(FILES, data), small_file(FILES, shorter)) == (None, None)


def test_only_files_with_one_of_the_rows_are_left(tmp_path: Path) -> None:
    files = [written(tmp_path, name=f"f{n}", x=[1, 2], row_id=[n, 100 + n], commit=[1, 1]) for n in range(5)]
    derived = written(tmp_path, name="derived", x=[1, 2])
    assert holding(FILES, [*files, derived], ids(3, 101)) == [files[1], files[3], derived]
    assert holding(FILES, files, ids()) == []
