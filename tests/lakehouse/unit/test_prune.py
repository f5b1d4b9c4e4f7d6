"""A file goes only when no row in it can match: DuckDB is the judge of what matches."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lakehouse.fixtures import materialise

from sparkport.filters.expressions import (
    And,
    Between,
    Column,
    Comparison,
    Expression,
    In,
    IsNotNull,
    IsNull,
    Literal,
    Or,
    SqlType,
)
from sparkport.filters.predicates import col
from sparkport.filters.sql import literal_sql, to_sql, type_sql
from sparkport.lakehouse.iceberg.manifests import ROW_ID_FIELD, DataFile
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.plan import plan
from sparkport.lakehouse.iceberg.prune import by_filter, by_row_ids
from sparkport.lakehouse.iceberg.ranges import Bounds, FileIndex
from sparkport.lakehouse.scan.statistics import bounds_predicate, column_statistics

pytestmark = pytest.mark.tier("fast")

LONG_NUMBERS = [12345678901234567890123456780123456789 + step for step in (-1, 0, 1)]
"""They differ in the last of 38 digits: Python's decimal arithmetic keeps 28."""


def decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


KINDS: dict[str, tuple[str, SqlType, Any]] = {
    "i": ("int", SqlType("INTEGER"), st.integers(-5, 5) | st.sampled_from([2**31 - 1, -(2**31)])),
    "l": ("long", SqlType("BIGINT"), st.integers(-5, 5) | st.sampled_from([2**63 - 1, -(2**63)])),
    "v": ("double", SqlType("DOUBLE"), st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5, -2.5])),
    "r": ("float", SqlType("FLOAT"), st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5, -2.5])),
    "s": ("string", SqlType("VARCHAR"), st.text("aé\U0001f600\uffff", max_size=4)),
    "b": ("boolean", SqlType("BOOLEAN"), st.booleans()),
    "d": ("date", SqlType("DATE"), st.integers(-3, 3) | st.sampled_from([2**31 - 1, -(2**31 - 1)])),
    "t": ("timestamp", SqlType("TIMESTAMP"), st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63 - 1)])),
    "z": ("timestamptz", SqlType("TIMESTAMP WITH TIME ZONE"), st.integers(-3, 3)),
    "x": ("binary", SqlType("BLOB"), st.binary(max_size=3)),
    "n": (
        "decimal(5, 2)",
        SqlType("DECIMAL", width=5, scale=2),
        st.integers(-300, 300).map(lambda cents: decimal(cents, 2)),
    ),
    "w": (
        "decimal(38, 10)",
        SqlType("DECIMAL", width=38, scale=10),
        st.sampled_from([-1, 0, *LONG_NUMBERS, 10**38 - 1, 1 - 10**38]).map(lambda units: decimal(units, 10)),
    ),
    "h": (
        "decimal(38, 0)",
        SqlType("DECIMAL", width=38, scale=0),
        st.sampled_from([-1, 0, *LONG_NUMBERS, 10**38 - 1, 1 - 10**38]).map(Decimal),
    ),
}
FIELDS = [{"id": n, "name": name, "type": KINDS[name][0]} for n, name in enumerate(KINDS, start=1)]
SCHEMA = {"schema-id": 0, "fields": FIELDS}
METADATA = TableMetadata({"location": "/x", "schemas": [SCHEMA]})
Row = dict[str, Any]


def encode(kind: str, value: Any) -> bytes:
    match kind:
        case "int" | "date":
            return struct.pack("<i", value)
        case "long" | "timestamp" | "timestamptz":
            return struct.pack("<q", value)
        case "double":
            return struct.pack("<d", value)
        case "float":
            return struct.pack("<f", value)
        case "string":
            return bytes(value.encode())
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "binary":
            return bytes(value)
        case _:
            sign, digits, _ = value.as_tuple()
            unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
            return unscaled.to_bytes(16, "big", signed=True)


def longer(text: str) -> str | None:
    """The upper bound that Iceberg keeps of a long text: its beginning, counted up by one."""
    for end in range(len(text), 0, -1):
        if (code := ord(text[end - 1]) + 1) < 0x110000 and not 0xD800 <= code < 0xE000:
            return text[: end - 1] + chr(code)
    return None


def as_file(rows: Sequence[Row], cut: int | None, *, counted: bool) -> DataFile:
    """The file that Iceberg would describe for these rows, with texts cut to ``cut`` letters."""
    lower, upper, nulls, nans, counts = {}, {}, {}, {}, {}
    for field in FIELDS:
        number, kind = int(str(field["id"])), str(field["type"])
        values = [row[str(field["name"])] for row in rows]
        known = [
            value for value in values if value is not None and not (isinstance(value, float) and math.isnan(value))
        ]
        counts[number] = len(values)
        nulls[number] = values.count(None)
        if kind in ("float", "double"):
            nans[number] = sum(isinstance(value, float) and math.isnan(value) for value in values)
        if known:
            low, high = min(known), max(known)
            if kind == "string" and cut is not None:
                low, high = low[:cut], longer(high[:cut]) if len(high) > cut else high
            lower[number] = encode(kind, low)
            if high is not None:
                upper[number] = encode(kind, high)
    return DataFile(
        path="f",
        format="parquet",
        record_count=len(rows),
        size=1,
        sequence_number=1,
        file_sequence_number=1,
        first_row_id=0,
        spec_id=0,
        partition=(),
        lower_bounds=lower,
        upper_bounds=upper,
        null_counts=nulls if counted else {},
        nan_counts=nans if counted else {},
        value_counts=counts,
    )


@st.composite
def leaves(draw: st.DrawFn) -> Expression:
    name = draw(st.sampled_from(list(KINDS)))
    _, kind, values = KINDS[name]
    literals = (values | st.none()).map(lambda value: Literal(value, kind))
    column = Column(name, kind)
    comparisons = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]
    match draw(st.integers(0, 5)):
        case 0:
            return IsNull(column)
        case 1:
            return IsNotNull(column)
        case 2:
            return In(column, tuple(draw(st.lists(literals, min_size=1, max_size=3))))
        case 3:
            return Between(column, draw(literals), draw(literals), draw(st.booleans()), draw(st.booleans()))
        case 4:
            return Comparison(draw(st.sampled_from(comparisons)), draw(literals), column)
        case _:
            return Comparison(draw(st.sampled_from(comparisons)), column, draw(literals))


filters = st.recursive(
    leaves(),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(tuple).flatmap(lambda n: st.sampled_from([And(n), Or(n)]))
    ),
    max_leaves=4,
)
row_lists = st.lists(
    st.fixed_dictionaries({name: values | st.none() for name, (_, _, values) in KINDS.items()}), min_size=1, max_size=3
)
DUCKDB = duckdb.connect()


def matches(expr: Expression, rows: Sequence[Row]) -> bool:
    lines = (", ".join(str(literal_sql(row[name], KINDS[name][1])) for name in KINDS) for row in rows)
    values = ", ".join(f"({line})" for line in lines)
    found = DUCKDB.execute(f"SELECT count(*) FROM (VALUES {values}) v({', '.join(KINDS)}) WHERE {to_sql(expr)}")
    return found.fetchall() != [(0,)]


@given(row_lists, filters, st.sampled_from([None, 1, 2]), st.booleans())
def test_no_file_with_a_matching_row_is_dropped(rows: list[Row], expr: Expression, cut: int | None, full: bool) -> None:
    file = as_file(rows, cut, counted=full)
    if matches(expr, rows):
        assert by_filter([file], METADATA, schema=SCHEMA, filter=expr) == [file]


@given(st.lists(row_lists, max_size=6), filters, st.sampled_from([None, 1, 2]), st.booleans(), st.data())
def test_files_are_judged_alone_whatever_is_beside_them(
    lists: list[list[Row]], expr: Expression, cut: int | None, full: bool, data: st.DataObject
) -> None:
    files = [as_file(rows, cut, counted=full) for rows in lists]
    alone = [bool(by_filter([file], METADATA, schema=SCHEMA, filter=expr)) for file in files]
    index = FileIndex(files)
    for _ in range(2):  # the second time from what was decoded before
        found = by_filter(index, METADATA, schema=SCHEMA, filter=expr)
        assert list(map(id, found)) == [id(file) for file, kept in zip(files, alone, strict=True) if kept]
    chosen = data.draw(st.lists(st.sampled_from(range(len(files))), max_size=6) if files else st.just([]))
    part = by_filter(index.part(files[n] for n in chosen), METADATA, schema=SCHEMA, filter=expr)
    assert list(map(id, part)) == [id(files[n]) for n in chosen if alone[n]]


def test_a_part_with_files_from_elsewhere_stands_for_itself() -> None:
    rows = [{**dict.fromkeys(KINDS), "l": 3}], [{**dict.fromkeys(KINDS), "l": 7}]
    ours, theirs = (as_file(found, None, counted=True) for found in rows)
    index = FileIndex([ours])
    assert index.part([ours]).whole is index
    apart = index.part([ours, theirs])
    assert apart.whole is apart
    assert by_filter(apart, METADATA, schema=SCHEMA, filter=(col("l") == 7).expr) == [theirs]


def test_bounds_compare_values_that_no_array_holds() -> None:
    texts = Bounds(["a", None, "a\x00"])
    assert texts.may("<", "a\x00").tolist() == [True, True, False]
    numbers = Bounds([-5, 2**63 - 1])
    assert numbers.may("<", 2**64).tolist() == [True, True]
    assert numbers.may(">", Decimal("0.5")).tolist() == [False, True]
    assert Bounds([2**70, 1]).may(">", 5).tolist() == [True, False]
    assert Bounds([]).may("<", 5).tolist() == []


def kept(predicate: Any, rows: list[Row], **changes: Any) -> bool:
    whole = [{**dict.fromkeys(KINDS), **row} for row in rows]
    file = replace(as_file(whole, None, counted=True), **changes)
    return bool(by_filter([file], METADATA, schema=SCHEMA, filter=getattr(predicate, "expr", predicate)))


def test_files_outside_of_a_range_are_dropped() -> None:
    rows = [{"l": 3, "s": "b", "v": 1.0}, {"l": 7, "s": "d", "v": 2.0}]
    for predicate in (
        col("l") == 2,
        col("l") > 7,
        col("l").between(8, 9),
        col("l").isin([1, 9]),
        col("s") == "a",
        col("s") > "d",
        col("v") > 2.5,
        col("l").is_null(),
        col("i").is_not_null(),
        col("i") == 1,
        (col("l") == 2) | (col("s") == "z"),
        (col("l") == 3) & (col("s") == "z"),
    ):
        assert not kept(predicate, rows), predicate
    for predicate in (col("l") == 5, ~(col("l") == 2), col("nope") == 1, col("s") == 5, col("l") == 2.5):
        assert kept(predicate, rows), predicate


def test_nan_is_greater_than_all_bounds() -> None:
    assert kept(col("v") > 5.0, [{"v": 1.0}, {"v": math.nan}])
    assert kept(col("v") > 5.0, [{"v": 1.0}], nan_counts={})
    assert not kept(col("v") > 5.0, [{"v": 1.0}])
    assert kept(Comparison("<", Column("v"), Literal(math.nan, SqlType("DOUBLE"))), [{"v": math.inf}])


def test_columns_that_are_cast_before_they_are_compared_drop_nothing() -> None:
    text = Comparison("=", Column("l", SqlType("VARCHAR")), Literal("5", SqlType("VARCHAR")))
    rounded = Comparison("=", Column("v", SqlType("FLOAT")), Literal(0.10000000149011612, SqlType("FLOAT")))
    enum = SqlType("ENUM", values=("z", "a"))
    assert kept(text, [{"l": 3}])
    assert kept(rounded, [{"v": 0.1}])
    assert kept(Comparison("<", Column("s", enum), Literal("a", enum)), [{"s": "z"}])


def test_bounds_of_a_narrower_type_still_count() -> None:
    narrow = {2: struct.pack("<i", 3)}
    assert kept(col("l") == 3, [{"l": 3}], lower_bounds=narrow, upper_bounds=narrow)
    assert not kept(col("l") == 4, [{"l": 3}], lower_bounds=narrow, upper_bounds=narrow)


def test_row_ids_lead_to_files() -> None:
    plain = as_file([dict.fromkeys(KINDS)] * 3, None, counted=True)
    fresh = replace(plain, first_row_id=10)
    rewritten = replace(
        plain,
        first_row_id=50,
        lower_bounds={ROW_ID_FIELD: struct.pack("<q", 3)},
        upper_bounds={ROW_ID_FIELD: struct.pack("<q", 5)},
        null_counts={ROW_ID_FIELD: 0},
        value_counts={ROW_ID_FIELD: 3},
    )
    mixed = replace(rewritten, null_counts={ROW_ID_FIELD: 1})
    unknown = replace(fresh, value_counts={})

    def found(*row_ids: int) -> list[DataFile]:
        return by_row_ids([fresh, rewritten, mixed, unknown], np.array(sorted(row_ids), dtype=np.int64))

    assert found(12) == [fresh, mixed, unknown]
    assert found(4) == [rewritten, mixed, unknown]
    assert found(51) == [mixed, unknown]
    assert found(0, 100) == [unknown]
    assert found(0, 12, 100) == [fresh, mixed, unknown]
    assert found() == [unknown]
    by_column = by_filter([fresh, rewritten], METADATA, schema=SCHEMA, filter=(col("rowid") == 4).expr)
    assert by_column == [rewritten]


@pytest.mark.parametrize(("row_id", "files"), [(0, 1), (25, 1), (29, 1), (30, 0)])
def test_one_row_of_a_real_table_is_in_one_file(tmp_path: Path, row_id: int, files: int) -> None:
    found = materialise("changes", tmp_path)
    whole = plan(found.fs, found.metadata, found.metadata.snapshots[2].id)
    assert len(whole.files) == 3
    assert len(by_row_ids(whole.files, np.array([row_id]))) == files


def test_partitions_of_null_hold_no_values(tmp_path: Path) -> None:
    found = materialise("partitioned", tmp_path)
    whole = plan(found.fs, found.metadata, found.metadata.main_snapshot_id)
    schema = found.metadata.current_schema
    named = by_filter(whole.files, found.metadata, schema=schema, filter=(col("name") == "n1").expr)
    nameless = by_filter(whole.files, found.metadata, schema=schema, filter=col("name").is_null().expr)
    assert {file.partition[0] for file in named} == {"n1"}
    assert {file.partition[0] for file in nameless} == {None}
    bare = [replace(file, lower_bounds={}, upper_bounds={}, null_counts={}) for file in whole.files]
    assert len(by_filter(bare, found.metadata, schema=schema, filter=(col("name") == "n1").expr)) == len(named)


def test_every_kind_can_be_written_as_sql() -> None:
    assert None not in [type_sql(kind) for _, kind, _ in KINDS.values()]


@pytest.mark.parametrize("scale", [0, 10, 38])
def test_bounds_of_38_digits_are_exact_to_the_last(scale: int) -> None:
    kind, unscaled = SqlType("DECIMAL", width=38, scale=scale), LONG_NUMBERS[1]
    bound = {1: unscaled.to_bytes(16, "big", signed=True)}
    file = replace(as_file([], None, counted=False), record_count=1, lower_bounds=bound, upper_bounds=bound)
    schema = {"schema-id": 0, "fields": [{"id": 1, "name": "v", "type": f"decimal(38, {scale})"}]}
    for op, step, kept in [("=", 0, True), (">=", 0, True), ("<=", 0, True), ("=", 1, False), (">", 0, False)]:
        wanted = Comparison(op, Column("v", kind), Literal(decimal(unscaled + step, scale), kind))
        assert bool(by_filter([file], METADATA, schema=schema, filter=wanted)) is kept


INFINITE_DAYS, INFINITE_MICROS = 2**31 - 1, 2**63 - 1


@pytest.mark.parametrize(("kind", "infinite"), [("date", INFINITE_DAYS), ("timestamp", INFINITE_MICROS)])
def test_a_range_that_ends_in_infinity_is_no_condition_for_spark(kind: str, infinite: int) -> None:
    """Spark's dates and times end with the year 9999."""
    field = {"id": 1, "name": "v", "type": kind}

    def file(path: str, first: int, *values: int) -> DataFile:
        bounds = [{1: encode(kind, edge(values))} for edge in (min, max)]
        known = as_file([], None, counted=True)
        return replace(
            known,
            path=path,
            record_count=10,
            first_row_id=first,
            lower_bounds=bounds[0],
            upper_bounds=bounds[1],
            null_counts={1: 0},
            value_counts={1: 10},
        )

    files = [file("a", 0, -infinite, 5), file("b", 10, 7, 8), file("c", 20, infinite)]
    wanted = [np.array([row_id], np.int64) for row_id in (0, 10, 20)]
    low, middle, high = (bounds_predicate(files, ids, [field], "t") for ids in wanted)
    assert (low, high) == ("", "")
    assert middle.startswith("t.`v` >= ")
    known = column_statistics(files, field, pa.field("v", pa.date32() if kind == "date" else pa.timestamp("us")))
    assert [known.minimum.value, known.maximum.value] == [-infinite, infinite]


def test_a_file_that_does_not_say_how_many_nulls_it_has_gives_spark_no_condition() -> None:
    field = {"id": 1, "name": "v", "type": "int"}
    files = [
        replace(
            as_file([], None, counted=False),
            path=str(number),
            record_count=10,
            first_row_id=10 * number,
            lower_bounds={1: encode("int", number)},
            upper_bounds={1: encode("int", number)},
        )
        for number in range(2)
    ]
    assert bounds_predicate(files, np.array([0], np.int64), [field], "t") == ""


def test_a_failure_in_pruning_keeps_all_files(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(dict[int, bytes]):
        def get(self, *_: object) -> NoReturn:
            raise OverflowError("date value out of range")

    files = [replace(as_file([], None, counted=True), lower_bounds=Broken(), upper_bounds=Broken())]
    assert by_filter(files, METADATA, schema=SCHEMA, filter=(col("d") == 1).expr) == files
    assert "a filter is not used to read less" in caplog.text
