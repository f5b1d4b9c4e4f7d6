"""The forms of a column: what is kept, what is refused, and that values go there and back unchanged."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lakehouse.type_samples import SAMPLES, Sample, StoredColumn, recorded, same, stored_column

from sparkport.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unsupported
from sparkport.lakehouse.columns.storage import from_stored, to_stored
from sparkport.lakehouse.columns.type_table import RULES, parquet_name, reference_page
from sparkport.lakehouse.columns.types import (
    declared_field,
    pushable,
    remember,
    spark_type,
    sql_type,
    stored_type,
)

pytestmark = pytest.mark.tier("fast")

PAGE = Path(__file__).parents[3] / "docs" / "types.md"
RECORDED = [*recorded("types"), *recorded("types_lossless")]
EVERY = [pytest.param(sample, id=sample.label) for sample in [*SAMPLES, *RECORDED]]
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module")
def db() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def _ids() -> Callable[[], int]:
    return itertools.count(1).__next__


def _planned(kind: pa.DataType, **options: Any) -> StoredColumn:
    return stored_column(pa.field("v", kind, **options), _ids())


def _there_and_back(column: pa.Array) -> pa.Array:
    planned = _planned(column.type)
    declared = declared_field(planned.iceberg, planned.remembered)
    return from_stored(to_stored(column, declared, planned.iceberg), declared, planned.iceberg)


def _expected(sample: Sample) -> pa.Array:
    """The client sends an enum as text."""
    column = sample.column
    return column if column.type == sample.field.type else column.cast(sample.field.type)


def _found_ids(part: Any) -> list[int]:
    if isinstance(part, list):
        return [number for item in part for number in _found_ids(item)]
    if not isinstance(part, dict):
        return []
    own = [value for key, value in part.items() if key in ("id", "element-id", "key-id", "value-id")]
    return own + [number for value in part.values() for number in _found_ids(value)]


@pytest.mark.parametrize("sample", EVERY)
def test_a_column_is_declared_as_it_was_created(sample: Sample) -> None:
    planned = stored_column(sample.field, _ids())
    assert declared_field(planned.iceberg, planned.remembered).equals(sample.field, check_metadata=True)


@pytest.mark.parametrize("sample", EVERY)
def test_values_come_back_as_they_were_sent(sample: Sample) -> None:
    planned = stored_column(sample.field, _ids())
    stored = to_stored(sample.column, sample.field, planned.iceberg)
    stored.validate(full=True)
    assert stored.type == stored_type(planned.iceberg["type"])
    back = from_stored(stored, sample.field, planned.iceberg)
    assert same(back, _expected(sample))


@pytest.mark.parametrize("sample", EVERY)
def test_a_column_without_rows_keeps_its_type(sample: Sample) -> None:
    planned = stored_column(sample.field, _ids())
    stored = to_stored(sample.column[:0], sample.field, planned.iceberg)
    back = from_stored(stored, sample.field, planned.iceberg)
    assert back.type == sample.field.type
    assert len(back) == 0


@pytest.mark.parametrize("sample", EVERY)
def test_every_part_of_a_column_has_an_id_of_its_own(sample: Sample) -> None:
    ids = _ids()
    found = _found_ids(stored_column(sample.field, ids).iceberg)
    assert sorted(found) == list(range(1, ids()))
    assert found[0] == 1


@pytest.mark.parametrize("sample", EVERY)
def test_stored_columns_pass_through_parquet_and_duckdb(
    sample: Sample, tmp_path: Path, db: duckdb.DuckDBPyConnection
) -> None:
    planned = stored_column(sample.field, _ids())
    stored = to_stored(sample.column, sample.field, planned.iceberg)
    pq.write_table(pa.table({"v": stored}), tmp_path / "rows.parquet")
    read = db.sql(f"SELECT v FROM '{tmp_path}/rows.parquet'").to_arrow_table().column("v").combine_chunks()
    back = from_stored(read, sample.field, planned.iceberg)
    assert same(back, _expected(sample))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.null(), "no values"),
        (pa.decimal256(39, 0), "38 digits"),
        (pa.decimal128(5, -2), "38 digits"),
        (pa.decimal128(3, 5), "38 digits"),
        (pa.binary(0), "no bytes"),
        (pa.struct([]), "at least one field"),
        (pa.struct([("", pa.int8())]), "need names"),
        (pa.struct([("a", pa.int8()), ("A", pa.int8())]), "same name"),
        (pa.struct([("a.b", pa.int8()), ("a_x2Eb", pa.int8())]), "same name"),
        (pa.list_(pa.struct([("a", pa.null())])), "no values"),
        (pa.map_(pa.map_(pa.int8(), pa.int8()), pa.int8()), "cannot hold a map"),
        (pa.map_(pa.struct([("m", pa.map_(pa.int8(), pa.int8()))]), pa.int8()), "cannot hold a map"),
        (pa.dictionary(pa.int8(), pa.list_(pa.int8())), "plain values"),
        (pa.run_end_encoded(pa.int32(), pa.string()), "nothing in it keeps"),
        (pa.sparse_union([pa.field("a", pa.int8()), pa.field("A", pa.int8())]), "same name"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused_by_name_and_type(kind: pa.DataType, words: str) -> None:
    with pytest.raises(Unsupported, match=words) as caught:
        stored_column(pa.field("sad", kind), _ids())
    assert "'sad'" in caught.value.message
    assert str(kind) in caught.value.message


def test_a_comment_is_the_doc_of_iceberg_and_is_kept_only_there() -> None:
    planned = _planned(pa.int64(), metadata={"comment": "how many"})
    assert planned.iceberg["doc"] == "how many"
    assert planned.remembered is None
    changed = {**planned.iceberg, "doc": "how few"}
    assert declared_field(changed, None).metadata == {b"comment": b"how few"}


def test_a_default_is_not_remembered_with_the_type() -> None:
    assert _planned(pa.int64(), metadata={"default": "7"}).remembered is None


def test_not_null_is_required_and_follows_the_schema() -> None:
    planned = _planned(pa.int8(), nullable=False)
    assert planned.iceberg["required"] is True
    assert not declared_field(planned.iceberg, planned.remembered).nullable
    assert declared_field({**planned.iceberg, "required": False}, planned.remembered).nullable


def test_a_renamed_column_keeps_its_type() -> None:
    planned = _planned(pa.uint8())
    assert declared_field({**planned.iceberg, "name": "w"}, planned.remembered) == pa.field("w", pa.uint8())


def test_a_type_that_was_changed_elsewhere_wins_over_the_remembered_one() -> None:
    planned = _planned(pa.uint8(), metadata={"note": "small"})
    found = declared_field({**planned.iceberg, "type": "long"}, planned.remembered)
    assert found.equals(pa.field("v", pa.int64(), metadata={"note": "small"}), check_metadata=True)


def test_fields_of_a_struct_that_were_changed_elsewhere_leave_the_others_as_they_were() -> None:
    planned = _planned(pa.struct([("a", pa.uint8()), ("b", pa.uint8()), ("c", pa.uint8())]))
    a, b, _ = planned.iceberg["type"]["fields"]
    d = {"id": 9, "name": "d", "required": False, "type": "string"}
    evolved = {"type": "struct", "fields": [{**b, "type": "long"}, a, d]}
    found = declared_field({**planned.iceberg, "type": evolved}, planned.remembered)
    assert found.type == pa.struct([("b", pa.int64()), ("a", pa.uint8()), ("d", pa.string())])


@pytest.mark.parametrize("text", ["", "%%%", "AAAA"])
def test_a_broken_memory_leaves_the_iceberg_type(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert declared_field(_planned(pa.int32()).iceberg, text) == pa.field("v", pa.int32())
    assert "cannot be read" in caplog.text


def test_an_altered_column_is_remembered_anew() -> None:
    planned = _planned(pa.int8())
    wider = pa.field("v", pa.int16())
    assert declared_field(planned.iceberg, remember(wider, planned.iceberg)) == wider
    assert remember(pa.field("v", pa.int32()), planned.iceberg) is None


@pytest.mark.parametrize(
    ("iceberg", "kind", "spark", "duck"),
    [
        ("boolean", pa.bool_(), "boolean", "BOOLEAN"),
        ("time", pa.time64("us"), None, "TIME"),
        ("timestamp", pa.timestamp("us"), "timestamp_ntz", "TIMESTAMP"),
        ("timestamptz", pa.timestamp("us", "UTC"), "timestamp", "TIMESTAMPTZ"),
        ("timestamp_ns", pa.timestamp("ns"), None, "TIMESTAMP_NS"),
        ("timestamptz_ns", pa.timestamp("ns", "UTC"), None, "TIMESTAMPTZ_NS"),
        ("uuid", pa.uuid(), "string", "UUID"),
        ("fixed[7]", pa.binary(7), "binary", "BLOB"),
        ("decimal(9,2)", pa.decimal128(9, 2), "decimal(9,2)", "DECIMAL(9,2)"),
        ("decimal(9, 2)", pa.decimal128(9, 2), "decimal(9,2)", "DECIMAL(9,2)"),
        ("geometry", pa.binary(), None, "BLOB"),
        ("geography(EPSG:4326, karney)", pa.binary(), None, "BLOB"),
        ("unknown", pa.null(), "void", "INTEGER"),
    ],
)
def test_tables_made_elsewhere_can_be_read(iceberg: str, kind: pa.DataType, spark: str | None, duck: str) -> None:
    assert declared_field({"id": 1, "name": "v", "required": False, "type": iceberg}, None).type == kind
    assert sql_type(iceberg) == duck
    if spark is not None:
        assert spark_type(iceberg) == spark
    else:
        with pytest.raises(Unsupported, match="Spark cannot write"):
            spark_type(iceberg)


def test_geometry_made_elsewhere_is_wkb_with_its_reference_system() -> None:
    def metadata(kind: str) -> dict[bytes, bytes]:
        found = declared_field({"id": 1, "name": "g", "required": False, "type": kind}, None).metadata
        return dict(found)

    assert metadata("geometry")[b"ARROW:extension:name"] == b"geoarrow.wkb"
    assert metadata("geometry")[b"ARROW:extension:metadata"] == b'{"crs": "OGC:CRS84"}'
    assert metadata("geometry(srid:5070)")[b"ARROW:extension:metadata"] == b'{"crs": "srid:5070"}'
    about = metadata("geography(EPSG:4326, karney)")[b"ARROW:extension:metadata"]
    assert about == b'{"crs": "EPSG:4326", "edges": "karney"}'


@pytest.mark.parametrize("kind", ["variant", "not_yet_known", {"type": "list_of_the_future"}])
def test_a_type_that_cannot_be_read_is_unsupported_and_names_the_column(kind: Any) -> None:
    with pytest.raises(Unsupported, match="'v'"):
        declared_field({"id": 1, "name": "v", "required": False, "type": kind}, None)
    for ask in (stored_type, spark_type, sql_type):
        with pytest.raises(Unsupported):
            ask(kind)


def test_an_unknown_column_is_all_null() -> None:
    field = {"id": 1, "name": "v", "required": False, "type": "unknown"}
    read = pa.array([None, None], pa.int32())
    assert from_stored(read, declared_field(field, None), field).equals(pa.nulls(2))


def test_names_of_nested_fields_are_quoted_for_spark_and_for_duckdb() -> None:
    planned = _planned(pa.struct([("a`b", pa.int32()), ('q"', pa.list_(pa.map_(pa.string(), pa.float64())))]))
    kind = planned.iceberg["type"]
    assert spark_type(kind) == 'struct<`a``b`: int, `q"`: array<map<string, double>>>'
    assert sql_type(kind) == 'STRUCT("a`b" INTEGER, "q""" MAP(VARCHAR, DOUBLE)[])'


@pytest.mark.parametrize(
    ("name", "in_file"),
    [
        ("ok_1", "ok_1"),
        ("a.b", "a_x2Eb"),
        ("1st", "_1st"),
        ("ü", "ü"),
        ("x\n", "x_xA"),
        ("🦆", "_xD83E_xDD86"),
        ("", ""),
    ],
)
def test_names_in_files_are_those_of_iceberg(name: str, in_file: str) -> None:
    assert parquet_name(name) == in_file


@pytest.mark.parametrize("unit", ["s", "ms"])
@given(number=INT64)
def test_a_coarse_timestamp_is_stored_exactly_or_refused(unit: str, number: int) -> None:
    column = pa.array([number], pa.int64()).view(pa.timestamp(unit))
    infinite = abs(number) == 2**63 - 1
    fits = -(2**63) <= number * {"s": 10**6, "ms": 10**3}[unit] < 2**63
    if infinite or fits:
        assert same(_there_and_back(column), column)
    else:
        with pytest.raises(InvalidArgument, match="'v'"):
            _there_and_back(column)


@given(number=INT64 | st.integers(-(2**31), 2**31 - 1).map(lambda days: days * 86_400_000))
def test_a_date64_is_stored_exactly_or_refused(number: int) -> None:
    column = pa.array([number], pa.int64()).view(pa.date64())
    days, rest = divmod(number, 86_400_000)
    if rest == 0 and -(2**31) <= days < 2**31:
        assert same(_there_and_back(column), column)
    else:
        with pytest.raises(InvalidArgument, match="'v'"):
            _there_and_back(column)


@given(st.lists(st.none() | st.uuids().map(lambda value: value.bytes), max_size=20), st.integers(0, 3))
def test_uuids_pass_through_text_unchanged(values: list[bytes | None], skipped: int) -> None:
    column = pa.uuid().wrap_array(pa.array(values, pa.binary(16)))[skipped:]
    assert same(_there_and_back(column), column)


def test_uuids_are_stored_as_the_text_that_everybody_writes() -> None:
    column = pa.uuid().wrap_array(pa.array([bytes.fromhex("5e0c1b9a6f3b4a349d0e6f0d3c1f2a11"), None], pa.binary(16)))
    stored = to_stored(column, pa.field("v", pa.uuid()), _planned(pa.uuid()).iceberg)
    assert stored.to_pylist() == ["5e0c1b9a-6f3b-4a34-9d0e-6f0d3c1f2a11", None]


def test_the_end_of_a_day_is_a_time_for_duckdb() -> None:
    column = pa.array([86_400_000_000], pa.int64()).view(pa.time64("us"))
    assert _there_and_back(column).view(pa.int64()).to_pylist() == [86_400_000_000]


def test_a_union_that_is_null_as_a_whole_is_a_null_of_its_first_member() -> None:
    kind = pa.sparse_union([pa.field("n", pa.int32()), pa.field("s", pa.string())])
    planned = _planned(kind)
    read = pa.nulls(2, stored_type(planned.iceberg["type"]))
    assert from_stored(read, pa.field("v", kind), planned.iceberg).to_pylist() == [None, None]


def test_a_union_may_have_a_member_named_like_the_tag() -> None:
    kind = pa.sparse_union([pa.field("union_tag", pa.int32())])
    names = [field["name"] for field in _planned(kind).iceberg["type"]["fields"]]
    assert names == ["union_tag_", "union_tag"]


def test_what_another_writer_put_there_and_does_not_fit_is_told() -> None:
    planned = _planned(pa.int8())
    with pytest.raises(FailedPrecondition, match="'v'"):
        from_stored(pa.array([300], pa.int32()), pa.field("v", pa.int8()), planned.iceberg)


def test_more_values_than_a_dictionary_can_count_ask_for_fewer_rows() -> None:
    field = pa.field("v", pa.dictionary(pa.uint8(), pa.string()))
    read = pa.array([str(number) for number in range(257)])
    with pytest.raises(ResourceExhausted, match="257"):
        from_stored(read, field, stored_column(field, _ids()).iceberg)
    assert len(from_stored(read[:256], field, stored_column(field, _ids()).iceberg)) == 256


# DuckDB does not know these, or not all of their values, so no filter of its own can be about them.
NOT_FOR_DUCKDB = (pa.float16(), pa.decimal256(38, 0), pa.timestamp("s", "UTC"))

PUSHABLE = [
    pytest.param(sample, id=sample.label)
    for sample in SAMPLES
    if pushable(stored_column(sample.field, _ids()).iceberg, sample.field)
    and sample.field.type not in NOT_FOR_DUCKDB
    and not pa.types.is_nested(sample.field.type)
]


@pytest.mark.parametrize("sample", PUSHABLE)
def test_what_can_be_pushed_down_compares_in_duckdb_as_the_declared_column(
    sample: Sample, tmp_path: Path, db: duckdb.DuckDBPyConnection
) -> None:
    planned = stored_column(sample.field, _ids())
    declared = pa.table({"v": sample.values, "i": range(len(sample.values))})
    stored = to_stored(sample.values, sample.field, planned.iceberg)
    in_file = sample.values if sample.field.type == pa.uuid() else stored  # as Iceberg's writers have it
    pq.write_table(pa.table({"v": in_file, "i": range(len(stored))}), tmp_path / "rows.parquet")
    db.register("declared", declared)
    db.execute("CREATE OR REPLACE TABLE d AS FROM declared")
    db.execute(f"CREATE OR REPLACE VIEW s AS FROM '{tmp_path}/rows.parquet'")
    for operator in ("=", "<", ">="):
        pairs = f"SELECT l.i, r.i FROM {{}} l, d r WHERE l.v {operator} r.v ORDER BY ALL"
        assert db.sql(pairs.format("s")).fetchall() == db.sql(pairs.format("d")).fetchall()
        for at in range(len(declared)):
            constant = f"SELECT i FROM {{}} WHERE v {operator} (SELECT v FROM d WHERE i = {at}) ORDER BY i"
            assert db.sql(constant.format("s")).fetchall() == db.sql(constant.format("d")).fetchall()


@pytest.mark.parametrize(
    "kind",
    [
        pa.time64("us"),
        pa.timestamp("ns"),
        pa.duration("s"),
        pa.month_day_nano_interval(),
        pa.opaque(pa.binary(16), "hugeint", "DuckDB"),
        pa.list_(pa.int32(), 3),
        pa.list_(pa.time64("us")),
        pa.struct([("a", pa.int32()), ("b", pa.timestamp("ns"))]),
        pa.struct([("a.b", pa.int32())]),
        pa.map_(pa.string(), pa.time64("us")),
        pa.sparse_union([pa.field("n", pa.int32())]),
    ],
    ids=str,
)
def test_what_compares_otherwise_is_not_pushed_down(kind: pa.DataType) -> None:
    assert not pushable(_planned(kind).iceberg, pa.field("v", kind))


def test_time_made_elsewhere_is_pushed_down_because_it_is_stored_as_time() -> None:
    field = {"id": 1, "name": "v", "required": False, "type": "time"}
    assert pushable(field, declared_field(field, None))


def test_a_column_whose_metadata_makes_it_another_type_is_not_pushed_down() -> None:
    field = pa.field("v", pa.binary(), metadata={"ARROW:extension:name": "geoarrow.wkb"})
    assert not pushable(stored_column(field, _ids()).iceberg, field)


@pytest.mark.parametrize("rule", RULES, ids=[rule.arrow for rule in RULES])
def test_each_rule_is_the_one_for_its_example(rule: Any) -> None:
    assert next(found for found in RULES if found.matches(rule.example)) is rule


def test_the_reference_page_is_the_one_that_is_printed() -> None:
    assert PAGE.read_text() == reference_page()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array([1], pa.int8()), pa.array([1], pa.int16())),
        (pa.array([[None]], pa.list_(pa.int8())), pa.array([[]], pa.list_(pa.int8()))),
        (pa.array([{"a": None}], pa.struct([("a", pa.int8())])), pa.array([None], pa.struct([("a", pa.int8())]))),
    ],
)
def test_the_comparison_of_these_tests_sees_small_differences(one: pa.Array, other: pa.Array) -> None:
    assert same(one, one)
    assert not same(one, other)
