"""Row groups are told apart by their statistics: a lookup opens those that may hold its rows, and loses none."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lakehouse.unit.kept import KEPT_BYTES, kept

from sparkport.errors import Conflict
from sparkport.filters.expressions import Between, Column, Comparison, Expression, In, IsNull, Literal, SqlType
from sparkport.lakehouse.iceberg import prune, row_groups
from sparkport.lakehouse.iceberg.manifests import ROW_ID_FIELD, SEQUENCE_FIELD, DataFile, DeleteFile
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.plan import SnapshotPlan
from sparkport.lakehouse.iceberg.row_groups import OPEN_COST, ROW_GROUP_BYTES, footer_of, row_group_properties
from sparkport.lakehouse.scan import deleted_rows, direct, read
from sparkport.lakehouse.scan.kept_columns import kept_batches, weight
from sparkport.lakehouse.scan.limits import Ways
from sparkport.lakehouse.scan.read import Reader
from sparkport.lakehouse.scan.statistics import bounds_predicate
from sparkport.protocol.frames import StreamWriter

pytestmark = pytest.mark.tier("fast")

BIGINT = SqlType("BIGINT")
TYPES: dict[int, tuple[str, Any, pa.DataType]] = {
    1: ("id", "long", pa.int64()),
    2: ("name", "string", pa.string()),
    3: ("ratio", "double", pa.float64()),
    4: ("price", "decimal(9, 2)", pa.decimal128(9, 2)),
    5: ("day", "date", pa.date32()),
    6: ("at", "timestamp", pa.timestamp("us")),
    ROW_ID_FIELD: ("_row_id", "long", pa.int64()),
    SEQUENCE_FIELD: ("_last_updated_sequence_number", "long", pa.int64()),
}
FIELDS = [
    {"id": number, "name": name, "type": kind, "required": False}
    for number, (name, kind, _) in TYPES.items()
    if number < 100
]
METADATA = TableMetadata({"location": "/x", "schemas": [{"schema-id": 0, "fields": FIELDS}]})


def written(path: Path, columns: dict[int, list[Any]], *, group: int, **changes: Any) -> DataFile:
    fields, arrays = [], []
    for number, values in columns.items():
        name, _, kind = TYPES[number]
        fields.append(pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()}))
        arrays.append(pa.array(values, kind))
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    pq.write_table(table, path, store_schema=False, row_group_size=group)
    known: dict[str, Any] = {
        "path": str(path),
        "format": "parquet",
        "record_count": table.num_rows,
        "size": path.stat().st_size,
        "sequence_number": 7,
        "file_sequence_number": 7,
        "first_row_id": 100,
        "spec_id": 0,
        "partition": (),
        "lower_bounds": {},
        "upper_bounds": {},
        "null_counts": {},
        "nan_counts": {},
        "value_counts": {},
    }
    return DataFile(**{**known, **changes})


def numbers(path: Path, count: int = 100, *, group: int = 10, **changes: Any) -> DataFile:
    return written(path, {1: list(range(count)), 2: [f"n{n}" for n in range(count)]}, group=group, **changes)


@pytest.fixture
def rows_read(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were decoded, chunk by chunk; every file counts as large."""
    reader.ways = replace(reader.ways, small_file_rows=0)
    found: list[int] = []

    def counted(*given: Any, **named: Any) -> Iterator[pa.RecordBatch]:
        for batch in kept_batches(*given, **named):
            found.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(direct, "kept_batches", counted)
    return found


def scan(reader: Reader, *files: DataFile, **options: Any) -> list[dict[str, Any]]:
    stream = reader.scan(METADATA, SnapshotPlan(None, 0, 7, files), **options)
    return [row for batch in stream for row in batch.to_pylist()]


def compared(op: str, name: str, value: Any, kind: SqlType = BIGINT) -> Expression:
    return Comparison(op, Column(name, kind), Literal(value, kind))


def test_a_filter_to_skip_by_leaves_out_row_groups_and_no_rows(
    reader: Reader, tmp_path: Path, rows_read: list[int]
) -> None:
    """However many rows there are, Arrow reads them: no filter is applied."""
    reader.ways = replace(reader.ways, filtered_rows=9)
    file = numbers(tmp_path / "a.parquet")
    options: dict[str, Any] = {"columns": ["id"], "row_id": True, "filter": compared(">", "id", 85)}
    expected = [{"id": n, "rowid": n + 100} for n in range(80, 100)]
    assert scan(reader, file, **options, skips_only=True) == expected
    assert sum(rows_read) == 20
    without = np.array([180, 199])
    assert scan(reader, file, **options, skips_only=True, without=without) == expected[1:-1]
    rows_read.clear()
    assert scan(reader, file, **options) == expected[6:]
    assert not rows_read


@pytest.mark.parametrize("rewritten", [False, True])
def test_few_rows_here_and_there_are_left_to_duckdb_which_skips_pages(
    reader: Reader, tmp_path: Path, rows_read: list[int], rewritten: bool
) -> None:
    """Arrow would decode every row group for them."""
    reader.ways = replace(reader.ways, large_file_rows=1_000, rows_per_wanted=100)
    count = 1_000
    columns: dict[int, list[Any]] = {1: list(range(count)), 2: [f"n{n}" for n in range(count)]}
    known: dict[str, Any] = {"value_counts": {1: count, 2: count}}
    if rewritten:
        columns[ROW_ID_FIELD] = [100 + (n * 7) % count for n in range(count)]  # compaction may sort them otherwise
        bounds = {"lower_bounds": {ROW_ID_FIELD: pack("<q", 100)}, "upper_bounds": {ROW_ID_FIELD: pack("<q", 1_099)}}
        known = {"value_counts": {1: count, 2: count, ROW_ID_FIELD: count}, "null_counts": {ROW_ID_FIELD: 0}, **bounds}
    file = written(tmp_path / "a.parquet", columns, group=200, **known)
    wanted = np.array([3, 100, 299, 300, 777, 1_099, 5_000])
    ids = columns.get(ROW_ID_FIELD, [100 + n for n in range(count)])
    expected = [{"name": f"n{n}", "rowid": ids[n]} for n in range(count) if ids[n] in wanted]
    assert len(expected) == 5
    assert scan(reader, file, columns=["name"], row_id=True, row_ids=wanted) == expected
    assert rows_read == []
    neighbours = np.arange(300, 303)
    assert [row["rowid"] for row in scan(reader, file, columns=["name"], row_id=True, row_ids=neighbours)] == sorted(
        neighbours, key=ids.index
    )
    assert rows_read != []


@pytest.mark.parametrize("counted", [True, False])
def test_pages_are_not_skipped_by_what_a_manifest_says_and_the_file_does_not(
    reader: Reader, tmp_path: Path, counted: bool
) -> None:
    """One that does not count row ids which are there, or counts some that are not."""
    reader.ways = Ways(large_file_rows=10, few_in_file=0, rows_per_wanted=1)
    columns: dict[int, list[Any]] = {1: list(range(20))}
    counts = {1: 20}
    if counted:
        counts[ROW_ID_FIELD] = 20
    else:
        columns[ROW_ID_FIELD] = list(reversed(range(100, 120)))
    low, high = ({ROW_ID_FIELD: pack("<q", bound)} for bound in (100, 119))
    known = {"value_counts": counts, "null_counts": {ROW_ID_FIELD: 0}, "lower_bounds": low, "upper_bounds": high}
    file = written(tmp_path / "a.parquet", columns, group=5, **known)
    found = scan(reader, file, columns=["id"], row_id=True, row_ids=np.array([103, 117]))
    assert [row["rowid"] for row in found] == ([103, 117] if counted else [117, 103])


def test_columns_of_a_small_read_are_kept_for_the_next(
    reader: Reader, tmp_path: Path, rows_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[int, list[str]]] = []
    whole = pq.ParquetFile.read_row_group

    def noted(source: pq.ParquetFile, group: int, columns: list[str], **options: Any) -> pa.Table:
        decoded.append((group, columns))
        return whole(source, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    file = written(
        tmp_path / "a.parquet", {1: list(range(40)), 2: ["x", "y"] * 20, 3: [n / 2 for n in range(40)]}, group=10
    )
    wanted = compared("=", "id", 15)
    assert scan(reader, file, columns=["id", "name"], filter=wanted, row_id=True) == [
        {"id": 15, "name": "y", "rowid": 115}
    ]
    assert decoded == [(1, ["id", "name"])]
    by_id = np.array([115, 118])
    for _ in range(2):
        assert scan(reader, file, columns=["id", "ratio"], row_ids=by_id) == [
            {"id": 15, "ratio": 7.5},
            {"id": 18, "ratio": 9.0},
        ]
    assert decoded == [(1, ["id", "name"]), (1, ["ratio"])]
    every = scan(reader, file, columns=["id", "name", "ratio"])
    assert every == [{"id": n, "name": "xy"[n % 2], "ratio": n / 2} for n in range(40)]
    assert scan(reader, file, columns=["id", "name", "ratio"]) == every
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(Conflict):
        scan(reader, file, columns=["id"])


def test_no_byte_of_a_row_that_is_left_out_leaves_with_a_part_of_its_row_group(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow pads what it writes with what follows in memory."""
    monkeypatch.setattr(read, "BATCH_ROWS", 11)
    texts = [f"open {n:03}" for n in range(11)] + [f"secret {n:03}" for n in range(8)]
    file = written(tmp_path / "a.parquet", {2: texts}, group=100)
    for _ in range(2):
        chosen = np.arange(100, 111)
        stream = reader.scan(METADATA, SnapshotPlan(None, 0, 7, (file,)), columns=["name"], row_ids=chosen)
        batches = list(stream)
        writer = StreamWriter(batches[0].schema)
        sent = b"".join(message for batch in batches for message in writer.batch_messages(batch))
        assert b"open 010" in sent
        assert b"secret" not in sent


def test_a_column_that_comes_in_several_arrays_is_read_as_before(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Arrow gives it where it is over 2 GB."""
    whole = pq.ParquetFile.read_row_group

    def in_parts(source: pq.ParquetFile, group: int, **options: Any) -> pa.Table:
        table = whole(source, group, **options)
        return pa.concat_tables([table.slice(0, 3), table.slice(3)])

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", in_parts)
    before = kept("entries")
    file = numbers(tmp_path / "a.parquet")
    assert [row["id"] for row in scan(reader, file, columns=["id"])] == list(range(100))
    assert kept("entries") == before


def test_columns_of_a_few_bytes_count_with_what_keeping_them_takes(reader: Reader, tmp_path: Path) -> None:
    before, full = kept("entries"), kept("fill_ratio")
    assert len(scan(reader, numbers(tmp_path / "a.parquet"), columns=["id"])) == 100
    assert kept("entries") == before + 10
    assert (kept("fill_ratio") - full) * KEPT_BYTES > 10 * 1_000


def test_a_column_that_is_large_is_not_kept() -> None:
    """It would push out many others: an eighth of what is kept is the most."""
    assert weight(pa.array(["x" * (KEPT_BYTES // 9)])) < KEPT_BYTES // 8
    assert weight(pa.array(["x" * (KEPT_BYTES // 8)])) > KEPT_BYTES


def test_a_lookup_decodes_the_row_groups_that_may_hold_it(reader: Reader, tmp_path: Path, rows_read: list[int]) -> None:
    file = numbers(tmp_path / "a.parquet")
    assert scan(reader, file, columns=["name"], filter=compared("=", "id", 37), row_id=True) == [
        {"name": "n37", "rowid": 137}
    ]
    assert sum(rows_read) == 10
    rows_read.clear()
    assert scan(reader, file, columns=["id"], filter=compared("=", "rowid", 155)) == [{"id": 55}]
    assert sum(rows_read) == 10
    rows_read.clear()
    ends = In(Column("id", BIGINT), (Literal(3, BIGINT), Literal(98, BIGINT)))
    assert scan(reader, file, columns=["id"], filter=ends, row_id=True) == [
        {"id": 3, "rowid": 103},
        {"id": 98, "rowid": 198},
    ]
    assert sum(rows_read) == 20
    rows_read.clear()
    assert scan(reader, file, columns=["id"], filter=compared("=", "id", 500)) == []
    assert rows_read == []


def test_a_filter_that_leaves_many_rows_is_left_to_duckdb(reader: Reader, tmp_path: Path, rows_read: list[int]) -> None:
    reader.ways = replace(reader.ways, filtered_rows=25)
    file = numbers(tmp_path / "a.parquet")
    few, many = compared("<", "id", 20), compared("<", "id", 21)
    assert len(scan(reader, file, columns=["id"], filter=few)) == 20
    assert sum(rows_read) == 20
    rows_read.clear()
    assert len(scan(reader, file, columns=["id"], filter=many)) == 21
    assert rows_read == []


def test_rows_are_found_by_their_ids_in_the_groups_that_may_hold_them(
    reader: Reader, tmp_path: Path, rows_read: list[int]
) -> None:
    plain = numbers(tmp_path / "plain.parquet")
    wanted = np.array([-5, 107, 155, 156, 900], np.int64)
    assert [row["id"] for row in scan(reader, plain, columns=["id"], row_ids=wanted)] == [7, 55, 56]
    assert sum(rows_read) == 20
    rows_read.clear()
    own = [1000 + n for n in range(50)] + [None] * 50
    commits = [3] * 100
    mixed = written(
        tmp_path / "own.parquet", {1: list(range(100)), ROW_ID_FIELD: own, SEQUENCE_FIELD: commits}, group=10
    )
    found = scan(reader, mixed, columns=["id"], row_ids=np.array([107, 155, 1012]), row_id=True, sequence=True)
    assert found == [
        {"id": 12, "rowid": 1012, "_last_updated_sequence_number": 3},
        {"id": 55, "rowid": 155, "_last_updated_sequence_number": 3},
    ]
    assert sum(rows_read) == 10 + 50  # of groups in which all ids are null the statistics tell nothing


def test_deleted_rows_stay_gone_in_row_groups_in_the_middle(
    reader: Reader, tmp_path: Path, rows_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = np.array([3, 54, 56], np.int64)
    for module in (deleted_rows, direct):
        monkeypatch.setattr(module, "deleted_positions", lambda fs, file: gone)
    delete = DeleteFile("/x/dv", 8, 3, 0, (), offset=4, length=40)
    file = numbers(tmp_path / "a.parquet", deletes=(delete,))
    within = Between(Column("id", BIGINT), Literal(53, BIGINT), Literal(57, BIGINT))
    assert [row["id"] for row in scan(reader, file, columns=["id"], filter=within)] == [53, 55, 57]
    assert sum(rows_read) == 10


ANY = {
    "id": (BIGINT, st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)),
    "name": (SqlType("VARCHAR"), st.text(max_size=3)),
    "ratio": (SqlType("DOUBLE"), st.floats(width=64) | st.sampled_from([0.0, -0.0, 1.0])),
    "price": (SqlType("DECIMAL", width=9, scale=2), st.decimals(-99, 99, places=2)),
    "day": (SqlType("DATE"), st.integers(-5, 5)),
    "at": (SqlType("TIMESTAMP"), st.integers(-5, 5)),
}


def stored(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "day":
        return dt.date(1970, 1, 1) + dt.timedelta(days=value)
    if name == "at":
        return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value)
    return Decimal(value) if name == "price" else value


@st.composite
def lookups(draw: st.DrawFn) -> tuple[str, list[Any], Expression]:
    name = draw(st.sampled_from(sorted(ANY)))
    kind, values = ANY[name]
    column = draw(st.lists(st.none() | values, min_size=1, max_size=12))
    wanted = draw(st.sampled_from([value for value in column if value is not None] or [draw(values)]) | values)
    if draw(st.booleans()) and draw(st.booleans()):
        return name, column, IsNull(Column(name, kind))
    op = draw(st.sampled_from(["=", "<", "<=", ">", ">=", "<>", "IS NOT DISTINCT FROM"]))
    return name, column, compared(op, name, wanted, kind)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lookups())
def test_no_row_is_lost_by_statistics_of_row_groups(
    reader: Reader, tmp_path: Path, lookup: tuple[str, list[Any], Expression]
) -> None:
    name, values, condition = lookup
    number = next(number for number, (found, _, _) in TYPES.items() if found == name)
    path = tmp_path / f"{uuid.uuid4().hex}.parquet"
    file = written(path, {number: [stored(name, value) for value in values]}, group=2)
    footer = row_groups.read_footer(str(path))
    groups = footer.row_groups(file, [number])
    kept = prune.by_filter(groups, METADATA, schema={"fields": FIELDS}, filter=condition)
    places = [group.first_row_id for group in kept]
    everything = scan(reader, file, columns=[name], filter=condition, row_id=True)
    for row in everything:
        assert (row["rowid"] - 100) // 2 * 2 + 100 in places, (values, condition)


def test_changes_of_few_rows_are_told_to_spark_by_ranges_of_row_groups(tmp_path: Path) -> None:
    file = numbers(tmp_path / "a.parquet", value_counts={1: 100, 2: 100})
    assert bounds_predicate([file], np.array([137, 141]), FIELDS, "t") == "t.`id` >= 30L AND t.`id` <= 49L"
    assert bounds_predicate([file], np.array([100, 199]), FIELDS, "t") == ""
    elsewhere = numbers(tmp_path / "b.parquet", first_row_id=500, value_counts={1: 100, 2: 100})
    assert bounds_predicate([file, elsewhere], np.array([137]), FIELDS, "t") == "t.`id` >= 30L AND t.`id` <= 39L"


def test_a_row_group_with_a_null_gives_no_range(tmp_path: Path) -> None:
    values: list[int | None] = list(range(100))
    values[37] = None
    file = written(tmp_path / "a.parquet", {1: values}, group=10, value_counts={1: 100})
    assert bounds_predicate([file], np.array([135]), FIELDS, "t") == ""
    assert bounds_predicate([file], np.array([145]), FIELDS, "t") == "t.`id` >= 40L AND t.`id` <= 49L"


def test_footers_that_cannot_be_read_leave_files_whole(tmp_path: Path) -> None:
    broken = numbers(tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
    assert footer_of(broken) is None
    assert bounds_predicate([broken], np.array([137]), FIELDS, "t") == ""


def test_row_groups_grow_with_the_columns_and_stay_as_somebody_set_them() -> None:
    sizes = [row_group_properties({}, columns)[ROW_GROUP_BYTES] for columns in (1, 10, 10_000)]
    assert sizes == [str(576 << 10), str(1920 << 10), str(12 << 20)]
    assert row_group_properties({}, 1)[OPEN_COST] == str(256 << 10)
    assert row_group_properties({OPEN_COST: "7"}, 1)[OPEN_COST] == "7"
    assert row_group_properties({ROW_GROUP_BYTES: "134217728"}, 10) == {}
