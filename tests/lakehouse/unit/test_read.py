"""Rows of real tables as Spark reads them, and what a scan does beside reading."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from tests.lakehouse.fixtures import NAMES, Fixture, materialise, plain, with_equality_deletes

from sparkport.errors import Cancelled, Conflict, InternalError, InvalidArgument, Unsupported
from sparkport.filters.expressions import Cast, Column, Comparison, Function, Literal, SqlType
from sparkport.filters.predicates import Predicate, col, lit
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.plan import plan, split
from sparkport.lakehouse.scan import direct, query, read
from sparkport.lakehouse.scan.limits import Ways
from sparkport.lakehouse.scan.read import Reader, RowStream

pytestmark = pytest.mark.tier("fast")


def scan(reader: Reader, found: Fixture, snapshot_id: int | None = None, **options: Any) -> RowStream:
    chosen = found.metadata.main_snapshot_id if snapshot_id is None else snapshot_id
    return reader.scan(found.metadata, plan(found.fs, found.metadata, chosen), **options)


def rows(stream: RowStream) -> list[dict[str, Any]]:
    return [row for batch in stream for row in batch.to_pylist()]


def ids(stream: RowStream) -> list[int]:
    return [row["id"] for row in rows(stream)]


def as_spark_told(row: dict[str, Any]) -> dict[str, Any]:
    told = {name: plain(value) for name, value in row.items()}
    if "rowid" in told:
        told["_row_id"] = told.pop("rowid")
    if told.get("m") is not None:  # Arrow's maps are lists of pairs
        told["m"] = dict(told["m"])
    return told


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: int(row["id"]))


@pytest.fixture(params=["arrow", "duckdb", "pages"])
def way(request: pytest.FixtureRequest, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who reads the files that Arrow and DuckDB could both read; DuckDB may leave out pages without wanted rows."""
    if request.param != "arrow":
        monkeypatch.setattr(direct, "is_direct", lambda kind: False)
    if request.param == "pages":
        reader.ways = Ways(large_file_rows=1, few_in_file=0, rows_per_wanted=1)
    return str(request.param)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "replaced"])
def test_every_snapshot_reads_as_spark_reads_it(reader: Reader, tmp_path: Path, name: str, way: str) -> None:
    found = materialise(name, tmp_path)
    lineage = "_row_id" in found.current[0]
    for snapshot in found.metadata.snapshots:
        schema = found.metadata.schemas[snapshot.schema_id or 0]
        stream = scan(reader, found, snapshot.id, schema=schema, row_id=lineage, sequence=lineage)
        assert in_order([as_spark_told(row) for row in rows(stream)]) == in_order(found.snapshots[snapshot.id])
    current = scan(reader, found, row_id=lineage, sequence=lineage)
    assert in_order([as_spark_told(row) for row in rows(current)]) == in_order(found.current)


def test_structs_whose_fields_were_all_replaced_are_still_there(reader: Reader, tmp_path: Path) -> None:
    """Spark reads NULL here, and loses whole lists with it; the rows do have structs, of which no field is left."""
    assert rows(scan(reader, materialise("replaced", tmp_path))) == [
        {"id": 1, "s": {"w": None}, "l": [{"q": None}, None]},
        {"id": 2, "s": None, "l": None},
        {"id": 3, "s": {"w": 3.5}, "l": [{"q": 3}]},
    ]


def test_columns_come_in_the_order_asked_for_with_their_stored_types(reader: Reader, tmp_path: Path, way: str) -> None:
    stream = scan(reader, materialise("changes", tmp_path), columns=["ts", "d", "id"], row_id=True, sequence=True)
    expected = pa.schema(
        [
            ("ts", pa.timestamp("us", "UTC")),
            ("d", pa.decimal128(10, 2)),
            ("id", pa.int64()),
            ("rowid", pa.int64()),
            ("_last_updated_sequence_number", pa.int64()),
        ]
    )
    assert stream.schema == expected
    assert {batch.schema for batch in stream} == {expected}


def test_an_unknown_column_is_refused(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="column 'nope' not found"):
        scan(reader, materialise("changes", tmp_path), columns=["nope"])


def test_rows_can_be_counted_without_columns(reader: Reader, tmp_path: Path, way: str) -> None:
    stream = scan(reader, materialise("changes", tmp_path), columns=[])
    assert sum(batch.num_rows for batch in stream) == 31


def test_an_empty_table_has_a_schema_and_no_rows(reader: Reader, tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    stream = reader.scan(found.metadata, plan(found.fs, found.metadata, None), columns=["id"])
    assert stream.schema == pa.schema([("id", pa.int64())])
    assert list(stream) == []


def test_rows_come_in_the_order_in_which_they_were_written(reader: Reader, tmp_path: Path, way: str) -> None:
    found = materialise("changes", tmp_path)
    snapshot = found.metadata.snapshots[4]
    assert ids(scan(reader, found, snapshot.id))[:-2] == [n for n in range(30) if n not in (2, 3, 5, 12, 13)]


def test_a_scan_can_be_restricted_to_rows_or_leave_rows_out(reader: Reader, tmp_path: Path, way: str) -> None:
    found = materialise("changes", tmp_path)
    every = {row["rowid"]: row["id"] for row in rows(scan(reader, found, row_id=True))}
    chosen = np.array([20, 0, 11, 12, 999_999, 3], dtype=np.int64)
    some = rows(scan(reader, found, row_id=True, row_ids=chosen))
    assert {row["rowid"]: row["id"] for row in some} == {key: every[key] for key in (0, 11, 12, 20)}
    rest = scan(reader, found, columns=["id"], without=chosen)
    assert sorted(ids(rest)) == sorted(every[key] for key in every if key not in chosen)
    assert rest.schema.names == ["id"]
    assert rows(scan(reader, found, row_ids=np.array([], dtype=np.int64))) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != "replaced"])
def test_any_rows_are_found_by_their_ids(reader: Reader, tmp_path: Path, name: str, way: str) -> None:
    found = materialise(name, tmp_path)
    steps = (1, 2, 3) if "_row_id" in found.current[0] else ()  # v2 has no row ids
    for step in steps:
        wanted = np.array([int(row["_row_id"]) for row in found.current][::step])
        stream = scan(reader, found, row_ids=wanted, row_id=True, sequence=True)
        expected = [row for row in found.current if row["_row_id"] in wanted]
        assert in_order([as_spark_told(row) for row in rows(stream)]) == in_order(expected)


def test_parts_of_a_plan_make_up_the_whole(reader: Reader, tmp_path: Path) -> None:
    found = materialise("partitioned", tmp_path)
    whole = plan(found.fs, found.metadata, found.metadata.main_snapshot_id)
    parts = [reader.scan(found.metadata, whole.only(run)) for run in split(whole.files, 3)]
    assert len(parts) == 3
    assert [n for part in parts for n in ids(part)] == ids(reader.scan(found.metadata, whole))


BIGINT, VARCHAR, DOUBLE = SqlType("BIGINT"), SqlType("VARCHAR"), SqlType("DOUBLE")


@pytest.mark.parametrize(
    ("predicate", "kept"),
    [
        (col("id") == 7, [7]),
        (col("id").between(7, 8) | (col("name") == "updated"), [2, 7, 8, 12]),
        (col("d") == lit(1), [1, 40]),
        (col("name").is_null() & (col("id") < 9), [0, 4, 8]),
        (col("nope") == 1, None),
        (Predicate(Comparison("=", Column("id", BIGINT), Literal(7, BIGINT))), [7]),
        (Predicate(Comparison("=", Column("rowid", BIGINT), Literal(7, BIGINT))), [7]),
        (Predicate(Comparison(">", Column("v", DOUBLE), Literal(90.0, DOUBLE))), [2, 12]),
        (Predicate(Comparison("=", Column("name", VARCHAR), Literal("n7", VARCHAR))), [7]),
    ],
)
def test_filters_are_applied_while_reading(
    reader: Reader, tmp_path: Path, predicate: Predicate, kept: list[int] | None, way: str
) -> None:
    found = materialise("changes", tmp_path)
    every = ids(scan(reader, found))
    got = ids(scan(reader, found, filter=predicate.expr))
    assert set(kept or every) <= set(got) <= set(every)
    if kept is not None and "name" not in str(predicate.expr):  # without its type, a NULL there is let through
        assert sorted(got) == kept


def test_a_filter_that_fails_on_a_value_keeps_its_row(reader: Reader, tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    number = Cast(Column("name", VARCHAR), BIGINT)
    got = ids(scan(reader, found, filter=Comparison("=", number, Literal(5, BIGINT))))
    assert sorted(got) == sorted(ids(scan(reader, found)))


def test_renamed_nested_fields_can_be_filtered_by(reader: Reader, tmp_path: Path) -> None:
    found = materialise("nested", tmp_path)
    kind = SqlType("STRUCT", fields=(("z", BIGINT), ("x", VARCHAR)))
    part = Function("struct_extract", (Column("s", kind), Literal("z", VARCHAR)), BIGINT)
    got = ids(scan(reader, found, columns=["id"], filter=Comparison("=", part, Literal(1, BIGINT))))
    assert 1 in got
    assert not {3, 4} & set(got)


def test_columns_that_a_file_does_not_have_read_as_their_default(reader: Reader, tmp_path: Path) -> None:
    found = materialise("evolved", tmp_path)
    added = {
        "long": (7, 7),
        "string": ("it's", "it's"),
        "binary": ("00ff27", b"\x00\xff'"),
        "boolean": (True, True),
        "decimal(9, 2)": ("1.50", Decimal("1.50")),
        "date": ("2020-02-03", dt.date(2020, 2, 3)),
        "timestamptz": ("2020-02-03T04:05:06.000007+00:00", dt.datetime(2020, 2, 3, 4, 5, 6, 7, dt.UTC)),
    }
    fields = [
        {"id": 100 + number, "name": kind, "type": kind, "required": False, "initial-default": default}
        for number, (kind, (default, _)) in enumerate(added.items())
    ]
    got = rows(scan(reader, found, schema={"schema-id": 9, "fields": fields}))
    assert got == [{kind: value for kind, (_, value) in added.items()}] * 5


def test_paths_that_look_like_patterns_are_read(reader: Reader, tmp_path: Path) -> None:
    found = materialise("changes", tmp_path / "a[1]*b? c'd")
    assert len(ids(scan(reader, found))) == 31


def test_files_with_equality_deletes_are_left_to_spark(reader: Reader, tmp_path: Path) -> None:
    found = with_equality_deletes(materialise("positions_v2", tmp_path))
    with pytest.raises(Unsupported, match="Spark"):
        scan(reader, found)


def test_files_that_are_gone_are_a_conflict(reader: Reader, tmp_path: Path, way: str) -> None:
    found = materialise("evolved", tmp_path)
    stream = scan(reader, found)
    for path in (found.folder / "data").glob("*.parquet"):
        path.unlink()
    with pytest.raises(Conflict, match="expired"):
        list(stream)


def test_a_table_in_another_store_is_read_through_fsspec(reader: Reader, tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    whole = plan(found.fs, found.metadata, found.metadata.main_snapshot_id)
    moved = []
    for number, file in enumerate(whole.files):
        path = f"memory://{tmp_path.name}/{number}.parquet"
        found.fs.write_new(path, found.fs.read_bytes(file.path))
        moved.append(replace(file, path=path))
    assert ids(reader.scan(found.metadata, whole.only(moved))) == ids(reader.scan(found.metadata, whole))


def test_a_closed_stream_gives_no_more(reader: Reader, tmp_path: Path) -> None:
    stream = scan(reader, materialise("changes", tmp_path))
    stream.close()
    stream.close()
    with pytest.raises(Cancelled):
        list(stream)


def test_a_stream_is_closed_from_another_thread_in_the_middle(reader: Reader, tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    whole = plan(found.fs, found.metadata, found.metadata.main_snapshot_id)
    stream = reader.scan(found.metadata, whole.only(whole.files * 300))
    iterator = iter(stream)
    next(iterator)
    other = threading.Thread(target=stream.close)
    other.start()
    other.join()
    with pytest.raises(Cancelled):
        list(iterator)
    assert len(ids(scan(reader, found))) == 31


def test_a_scan_that_is_closed_while_its_query_is_set_up_is_cancelled(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object) -> None:
        raise duckdb.InterruptException("INTERRUPT Error: Interrupted!")

    monkeypatch.setattr(direct, "is_direct", lambda kind: False)
    monkeypatch.setattr(FileSystem, "register", interrupted)
    stream = scan(reader, materialise("changes", tmp_path), filter=(col("id") > lit(3)).expr)
    with pytest.raises(Cancelled):
        rows(stream)


def test_many_scans_run_side_by_side(reader: Reader, tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    expected = ids(scan(reader, found))
    results: list[list[int]] = []
    threads = [threading.Thread(target=lambda: results.append(ids(scan(reader, found)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 8


def test_an_instance_that_broke_is_replaced(reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = materialise("changes", tmp_path)
    opened: list[str] = []
    connect = duckdb.connect

    def counted(database: str) -> duckdb.DuckDBPyConnection:
        opened.append(database)
        return connect(database)

    monkeypatch.setattr(duckdb, "connect", counted)
    monkeypatch.setattr(direct, "is_direct", lambda kind: False)
    assert len(ids(scan(reader, found))) == 31

    def broken(*args: object, **options: object) -> str:
        raise duckdb.InternalException("INTERNAL Error: broken")

    with monkeypatch.context() as patched:
        patched.setattr(read, "empty_sql", broken)
        with pytest.raises(InternalError):
            list(scan(reader, found))
    assert len(ids(scan(reader, found))) == 31
    assert len(opened) == 2


def test_a_scan_that_is_read_without_its_filter_is_counted_and_told_once_for_each_cause(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(direct, "is_direct", lambda kind: False)
    made = query.group_sql

    def refused(*given: Any, filtered: bool) -> str:
        return "SELECT nothing" if filtered else made(*given, filtered=filtered)

    monkeypatch.setattr(read, "group_sql", refused)
    found = materialise("changes", tmp_path)
    for _ in range(12):
        assert len(rows(scan(reader, found, filter=(col("id") == 1).expr))) > 1
    assert dict(reader.unfiltered.counts) == {"BinderException": 12}
    told = [record.getMessage() for record in caplog.records if record.name == read.__name__]
    assert [line.partition(":")[0] for line in told] == [
        f"a scan is read without its filter (number {number} for a BinderException)" for number in (1, 10)
    ]
