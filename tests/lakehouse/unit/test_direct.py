"""What Arrow reads of a table's files, what it leaves to DuckDB, and that nobody can tell the two apart."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkport.errors import Cancelled
from sparkport.filters.expressions import Column, Comparison, Expression, In, Literal, SqlType
from sparkport.lakehouse.columns.type_table import PRIMITIVES
from sparkport.lakehouse.columns.types import sql_type
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.deletes import deleted_positions
from sparkport.lakehouse.iceberg.manifests import ROW_ID_FIELD, SEQUENCE_FIELD, DataFile, DeleteFile
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.plan import SnapshotPlan
from sparkport.lakehouse.scan import deleted_rows, direct, query, read
from sparkport.lakehouse.scan.direct import arrow_type, read_ahead, removed
from sparkport.lakehouse.scan.read import Reader

pytestmark = pytest.mark.tier("fast")

BIGINT = SqlType("BIGINT")
FIELDS: list[dict[str, Any]] = [
    {"id": 1, "name": "Id", "type": "long", "required": False},
    {"id": 2, "name": "name", "type": "string", "required": False},
]
METADATA = TableMetadata({"location": "/x", "schemas": [{"schema-id": 0, "fields": FIELDS}]})
NAMES = {1: "Id", 2: "name", ROW_ID_FIELD: "_row_id", SEQUENCE_FIELD: "_last_updated_sequence_number"}


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each query of DuckDB was for."""
    found: list[int] = []

    def counted(fs: Any, request: Any, group: Any, **options: Any) -> str:
        found.append(len(group.files))
        return query.group_sql(fs, request, group, **options)

    monkeypatch.setattr(read, "group_sql", counted)
    return found


def write(path: Path, columns: dict[int, pa.Array], *, ids: bool = True, group: int = 1000) -> DataFile:
    marks = [{b"PARQUET:field_id": str(field_id).encode()} if ids else None for field_id in columns]
    fields = [
        pa.field(NAMES[field_id], column.type, metadata=mark)
        for (field_id, column), mark in zip(columns.items(), marks, strict=True)
    ]
    table = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))
    pq.write_table(table, path, store_schema=False, row_group_size=group)
    return DataFile(
        path=str(path),
        format="parquet",
        record_count=table.num_rows,
        size=path.stat().st_size,
        sequence_number=7,
        file_sequence_number=7,
        first_row_id=100,
        spec_id=0,
        partition=(),
        lower_bounds={},
        upper_bounds={},
        null_counts={},
        nan_counts={},
        value_counts={},
    )


def plain(path: Path, start: int = 0, count: int = 10, **options: Any) -> DataFile:
    numbers = pa.array(range(start, start + count), pa.int64())
    return write(path, {1: numbers, 2: numbers.cast(pa.string())}, **options)


def scan(reader: Reader, *files: DataFile, **options: Any) -> list[dict[str, Any]]:
    stream = reader.scan(METADATA, SnapshotPlan(None, 0, 7, files), **options)
    return [row for batch in stream for row in batch.to_pylist()]


def equals(name: str, value: int) -> Expression:
    return Comparison("=", Column(name, BIGINT), Literal(value, BIGINT))


@pytest.mark.parametrize(
    "kind", [*(name for name, known in PRIMITIVES.items() if known.direct), "decimal(9, 2)", "decimal(38, 0)"]
)
def test_types_are_those_in_which_duckdb_hands_out_columns(kind: str) -> None:
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        found = con.sql(f"SELECT CAST(NULL AS {sql_type(kind)}) AS c").to_arrow_table().schema
    assert arrow_type(kind) == found.field("c").type


@pytest.mark.parametrize("kind", ["uuid", "time", "fixed[4]", "variant", {"type": "list", "element": "long"}])
def test_other_types_are_left_to_duckdb(kind: Any) -> None:
    assert arrow_type(kind) is None


def test_plain_files_are_read_without_a_query(reader: Reader, tmp_path: Path, queries: list[int]) -> None:
    files = [plain(tmp_path / "a.parquet"), plain(tmp_path / "b.parquet", 10, group=3)]
    got = scan(reader, *files, row_id=True, sequence=True)
    assert [row["Id"] for row in got] == list(range(20))
    assert [row["rowid"] for row in got] == [*range(100, 110)] * 2
    assert {row["_last_updated_sequence_number"] for row in got} == {7}
    assert scan(reader, *files, columns=["name"], filter=equals("ID", 13)) == [{"name": "13"}]
    assert scan(reader, *files, columns=["Id"], filter=equals("rowid", 103)) == [{"Id": 3}, {"Id": 13}]
    assert scan(reader, *files, columns=[], row_id=True) == [{"rowid": n} for n in [*range(100, 110)] * 2]
    assert not queries


def test_row_ids_of_a_file_come_first_and_its_place_fills_in(
    reader: Reader, tmp_path: Path, queries: list[int]
) -> None:
    columns = {
        1: pa.array([1, 2, 3]),
        ROW_ID_FIELD: pa.array([5, None, 9], pa.int64()),
        SEQUENCE_FIELD: pa.array([None, 2, None], pa.int64()),
    }
    file = write(tmp_path / "a.parquet", columns)
    got = scan(reader, file, columns=["Id"], row_id=True, sequence=True)
    assert [tuple(row.values()) for row in got] == [(1, 5, 7), (2, 101, 2), (3, 9, 7)]
    bare = scan(reader, replace(file, first_row_id=None), columns=["Id"], row_id=True, sequence=True)
    assert [tuple(row.values()) for row in bare] == [(1, 5, None), (2, None, 2), (3, 9, None)]
    assert [row["Id"] for row in scan(reader, file, columns=["Id"], without=np.array([9, 101, 500]))] == [1]
    assert not queries


def test_files_from_the_first_unusual_one_on_are_read_by_duckdb(
    reader: Reader, tmp_path: Path, queries: list[int]
) -> None:
    usual = [plain(tmp_path / f"{n}.parquet", 10 * n) for n in range(3)]
    narrow = pa.array(range(10, 20), pa.int32())
    unusual = {
        "narrower": write(tmp_path / "narrow.parquet", {1: narrow, 2: narrow.cast(pa.string())}),
        "lacking": write(tmp_path / "lacking.parquet", {1: narrow.cast(pa.int64())}),
    }
    for file in unusual.values():
        queries.clear()
        got = scan(reader, usual[0], file, usual[2], row_id=True)
        assert [row["Id"] for row in got] == list(range(30))
        assert [row["rowid"] for row in got] == [*range(100, 110)] * 3
        assert queries == [2]
    queries.clear()
    assert scan(reader, plain(tmp_path / "bare.parquet", ids=False), columns=["Id"]) == [{"Id": None}] * 10
    assert queries == [1]


def test_filters_and_files_that_cost_more_in_arrow_are_left_to_duckdb(
    reader: Reader, tmp_path: Path, queries: list[int]
) -> None:
    file = plain(tmp_path / "a.parquet")
    within = In(Column("Id", BIGINT), (Literal(3, BIGINT), Literal(5, BIGINT)))
    assert [row["Id"] for row in scan(reader, file, filter=within)] == [3, 5]
    assert not queries
    reader.ways = replace(reader.ways, filtered_rows=9)
    assert [row["Id"] for row in scan(reader, file, filter=within)] == [3, 5]
    assert queries == [1]
    many = [file] * (reader.ways.small_files + 1)
    assert len(scan(reader, *many)) == 10 * len(many)
    assert queries == [1, len(many)]
    assert [row["Id"] for row in scan(reader, file, row_ids=np.array([103]))] == [3]
    assert queries == [1, len(many)]


def test_deleted_rows_are_gone_whatever_batch_they_are_in(
    reader: Reader, tmp_path: Path, queries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = np.array([0, 3, 4, 9, 10, 28, 29], dtype=np.int64)
    delete = DeleteFile("/x/dv", 8, len(gone), 0, (), offset=4, length=40)
    file = replace(plain(tmp_path / "a.parquet", count=30, group=7), deletes=(delete,))
    monkeypatch.setattr(direct, "deleted_positions", lambda fs, found: gone)
    monkeypatch.setattr(deleted_rows, "deleted_positions", lambda fs, found: gone)
    expected = [n for n in range(30) if n not in gone]
    for rows in (1, 4, 30):
        monkeypatch.setattr(read, "BATCH_ROWS", rows)
        got = scan(reader, file, row_id=True)
        assert [row["Id"] for row in got] == expected
        assert [row["rowid"] for row in got] == [n + 100 for n in expected]
        assert scan(reader, file, filter=equals("Id", 3)) == []
        assert [row["Id"] for row in scan(reader, file, filter=equals("Id", 5))] == [5]
    assert not queries
    monkeypatch.setattr(direct, "is_direct", lambda kind: False)
    assert [row["Id"] for row in scan(reader, file)] == expected
    assert queries == [1]
    assert deleted_positions(FileSystem(), replace(file, deletes=())).tolist() == []


@given(st.integers(0, 40), st.sets(st.integers(0, 39)), st.booleans())
def test_removing_rows_keeps_all_others_in_order(count: int, gone: set[int], by_mask: bool) -> None:
    places = np.array(sorted(n for n in gone if n < count), dtype=np.int64)
    batch = pa.record_batch({"n": pa.array(range(count), pa.int64()), "s": pa.array([str(n) for n in range(count)])})
    left = removed(batch, places, many=0 if by_mask else 1000)
    expected = [n for n in range(count) if n not in gone]
    assert left.to_pydict() == {"n": expected, "s": [str(n) for n in expected]}


def test_small_batches_are_put_together(
    reader: Reader, tmp_path: Path, queries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "BATCH_ROWS", 8)
    sizes = [3, 3, 1, 5, 20]
    files = [plain(tmp_path / f"{n}.parquet", count=size) for n, size in enumerate(sizes)]
    batches = list(reader.scan(METADATA, SnapshotPlan(None, 0, 7, tuple(files))))
    assert [batch.num_rows for batch in batches] == [6, 6, 8, 8, 4]
    assert not queries


def test_a_scan_that_reads_ahead_can_be_closed_in_the_middle(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "BATCH_ROWS", 8)
    stream = reader.scan(METADATA, SnapshotPlan(None, 0, 7, (plain(tmp_path / "a.parquet", count=100),)))
    iterator = iter(stream)
    assert next(iterator).num_rows == 8
    other = threading.Thread(target=stream.close)
    other.start()
    other.join()
    with pytest.raises(Cancelled):
        next(iterator)


def numbers(count: int, log: list[str]) -> Generator[pa.RecordBatch, None, None]:
    try:
        for number in range(count):
            log.append(threading.current_thread().name)
            yield pa.record_batch({"n": [number]})
    finally:
        log.append("closed")


def test_reading_ahead_changes_nothing_but_the_thread() -> None:
    log: list[str] = []
    with ThreadPoolExecutor(2, thread_name_prefix="other") as pool:
        got = [batch.column(0)[0].as_py() for batch in read_ahead(pool, numbers(5, log))]
    assert got == [0, 1, 2, 3, 4]
    assert log[-1] == "closed"
    assert all(name.startswith("other") for name in log[:-1])


def test_reading_ahead_that_is_given_up_closes_what_it_reads_and_makes_no_more() -> None:
    log: list[str] = []
    with ThreadPoolExecutor(2, thread_name_prefix="other") as pool:
        ahead = read_ahead(pool, numbers(50, log))
        next(ahead)
        ahead.close()
        assert log[-1] == "closed"
        assert len(log) <= 4


def test_an_error_of_the_reader_comes_out_of_reading_ahead() -> None:
    def broken() -> Generator[pa.RecordBatch, None, None]:
        yield pa.record_batch({"n": [1]})
        raise OSError("no more")

    with ThreadPoolExecutor(1) as pool, pytest.raises(OSError, match="no more"):
        list(read_ahead(pool, broken()))


class ShutDown(Executor):
    """A pool that is shut down between a task's arrival and its beginning."""

    def submit(self, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.cancel()
        return future


def test_a_batch_that_a_pool_never_began_is_not_waited_for() -> None:
    ended: list[type[BaseException]] = []

    def read_all() -> None:
        try:
            list(read_ahead(ShutDown(), numbers(5, [])))
        except BaseException as exc:
            ended.append(type(exc))

    thread = threading.Thread(target=read_all, daemon=True)
    thread.start()
    thread.join(10)
    assert ended == [CancelledError]
