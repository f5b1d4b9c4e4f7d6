"""New rows are written as data files, as many as it takes, and can be read again as they were given."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lakehouse.type_samples import SAMPLES, Sample, same

from sparkport.lakehouse.columns.columns import Columns, new_columns
from sparkport.lakehouse.columns.file_schema import file_schema
from sparkport.lakehouse.columns.storage import to_stored
from sparkport.lakehouse.columns.types import stored_type
from sparkport.lakehouse.iceberg.appends import Compression
from sparkport.lakehouse.iceberg.file_metrics import leaves_of
from sparkport.lakehouse.spark.staging import Staging
from sparkport.lakehouse.write.change_set import new_rows_schema
from sparkport.lakehouse.write.new_rows import FileForm, NewRows

pytestmark = pytest.mark.tier("fast")


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Staging]:
    with closing(Staging(str(tmp_path / "staging"))) as made:
        yield made


def form_of(columns: Columns, file_bytes: int = 1 << 30) -> FileForm:
    schema = file_schema(columns.fields)
    assert schema is not None
    return FileForm(schema, columns.fields, leaves_of(columns.fields), Compression("zstd", None), file_bytes)


def rows_for(staging: Staging, columns: Columns, **form: Any) -> NewRows:
    types = [stored_type(field["type"]) for field in columns.fields]
    schema = new_rows_schema((field["name"] for field in columns.fields), types)
    return NewRows(staging.new_path(), schema, form_of(columns, **form))


def batch_of(rows: NewRows, *columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), schema=rows.schema)


WRITTEN = [sample for sample in SAMPLES if sample.label != "struct of a required field"]


@pytest.mark.parametrize("sample", WRITTEN, ids=lambda sample: sample.label)
def test_values_of_every_type_come_back_from_the_file(staging: Staging, sample: Sample) -> None:
    columns = new_columns(pa.schema([sample.field]))
    rows = rows_for(staging, columns)
    stored = to_stored(sample.column, sample.field, columns.fields[0])
    rows.append(batch_of(rows, stored))
    rows.finish()
    found = pa.Table.from_batches(rows.batches(), rows.schema)
    assert same(found.column(0).combine_chunks(), stored)
    rows.discard()


def numbers(count: int) -> tuple[Columns, pa.Array]:
    return new_columns(pa.schema([("x", pa.float64())])), pa.array([float(number) for number in range(count)])


def test_a_file_that_is_large_enough_is_followed_by_another(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NewRows, "group_rows", 1_000)
    columns, values = numbers(10_000)
    rows = rows_for(staging, columns, file_bytes=1)
    for start in range(0, 10_000, 500):
        rows.append(batch_of(rows, values[start : start + 500]))
    files = rows.files
    assert [file.rows for file in files] == [1_000] * 10
    assert [file.path.stat().st_size for file in files] == [file.size for file in files]
    assert pa.Table.from_batches(rows.batches()).column("x").combine_chunks().equals(values)
    rows.discard()
    assert not list(staging.folder.glob("*.parquet"))


def test_nan_is_counted_and_in_no_bounds(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NewRows, "group_rows", 2)
    columns = new_columns(pa.schema([("x", pa.float64())]))
    rows = rows_for(staging, columns)
    nan = float("nan")
    rows.append(batch_of(rows, pa.array([nan, nan, 3.0, nan, None, 1.0, None, None])))
    (file,) = rows.files
    field_id = columns.fields[0]["id"]
    assert file.metrics.nan_counts == {field_id: 3}
    assert file.metrics.null_counts == {field_id: 3}
    assert file.metrics.value_counts == {field_id: 8}
    assert file.metrics.lower_bounds == {field_id: struct.pack("<d", 1.0)}
    assert file.metrics.upper_bounds == {field_id: struct.pack("<d", 3.0)}


def test_columns_that_are_not_given_are_null_in_the_file(staging: Staging) -> None:
    columns = new_columns(pa.schema([("a", pa.int32()), ("b", pa.list_(pa.string())), ("c", pa.string())]))
    rows = NewRows(staging.new_path(), new_rows_schema(["c"], [pa.string()]), form_of(columns))
    rows.append(pa.RecordBatch.from_pydict({"c": ["x", "y"]}))
    (file,) = rows.files
    assert pq.read_table(file.path).to_pylist() == [{"a": None, "b": None, "c": "x"}, {"a": None, "b": None, "c": "y"}]


def test_what_cannot_be_written_is_told_and_leaves_nothing(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NewRows, "group_rows", 2)
    columns = new_columns(pa.schema([pa.field("x", pa.float64(), nullable=False)]))
    rows = rows_for(staging, columns)
    rows.append(batch_of(rows, pa.array([1.0, None])))
    with pytest.raises(pa.ArrowInvalid, match="non-nullable"):
        rows.finish()
    rows.discard()
    assert not list(staging.folder.glob("*.parquet"))


def test_values_that_are_all_different_get_no_dictionary(staging: Staging) -> None:
    columns = new_columns(pa.schema([("few", pa.int64()), ("many", pa.int64())]))
    rows = rows_for(staging, columns)
    rows.append(batch_of(rows, pa.array([number % 3 for number in range(5_000)]), pa.array(range(5_000))))
    (file,) = rows.files
    group = pq.read_metadata(file.path).row_group(0)
    assert [group.column(at).has_dictionary_page for at in (0, 1)] == [True, False]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_values_too_long_for_a_footer_are_in_the_bounds(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    monkeypatch.setattr(NewRows, "group_rows", 2)
    columns = new_columns(pa.schema([("x", kind)]))
    rows = rows_for(staging, columns)
    values = [b"c", b"d", b"b" * 5_000, None, b"y", b"z" * 5_000, None, None]
    rows.append(batch_of(rows, pa.array(values, pa.binary()).cast(kind)))
    (file,) = rows.files
    field_id = columns.fields[0]["id"]
    assert file.metrics.lower_bounds == {field_id: b"b" * 16}
    assert file.metrics.upper_bounds == {field_id: b"z" * 15 + b"{"}


def test_long_values_of_a_struct_are_in_its_bounds(staging: Staging) -> None:
    columns = new_columns(pa.schema([("s", pa.struct([("a", pa.int32()), ("x", pa.string())]))]))
    rows = rows_for(staging, columns)
    rows.append(batch_of(rows, pa.array([{"a": 1, "x": "é" * 3_000}, None, {"a": 2, "x": "a"}], rows.schema.types[0])))
    (file,) = rows.files
    number, text = (field["id"] for field in columns.fields[0]["type"]["fields"])
    assert file.metrics.lower_bounds == {number: struct.pack("<i", 1), text: b"a"}
    assert file.metrics.upper_bounds == {number: struct.pack("<i", 2), text: ("é" * 15 + "ê").encode()}


def test_bytes_that_are_no_text_are_kept_and_bound_nothing(staging: Staging) -> None:
    columns = new_columns(pa.schema([("x", pa.string())]))
    rows = rows_for(staging, columns)
    given = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff\xfe"]).buffers())
    rows.append(batch_of(rows, given))
    (file,) = rows.files
    assert file.metrics.lower_bounds == {columns.fields[0]["id"]: b"a"}
    assert not file.metrics.upper_bounds
    assert pq.read_table(file.path).column(0).cast(pa.binary()).to_pylist() == [b"a", b"\xff\xfe"]


def test_of_a_wide_table_a_structs_own_values_are_described_before_those_inside_of_them() -> None:
    inner = pa.struct([(f"f{at}", pa.int32()) for at in range(60)])
    columns = new_columns(pa.schema([("a", inner), ("l", pa.list_(pa.int32())), ("b", inner), ("c", pa.int64())]))
    leaves = leaves_of(columns.fields)
    names = [f"a{at}" for at in range(60)] + ["l"] + [f"b{at}" for at in range(60)] + ["c"]
    assert len(leaves) == len(names)
    left_out = [name for name, leaf in zip(names, leaves, strict=True) if not leaf.is_described]
    assert left_out == [f"b{at}" for at in range(38, 60)]


def test_what_is_required_inside_of_a_struct_is_left_to_spark() -> None:
    kind = pa.struct([pa.field("a", pa.int8(), nullable=False)])
    assert file_schema(new_columns(pa.schema([("s", kind)])).fields) is None
    assert file_schema(new_columns(pa.schema([("l", pa.list_(pa.field("l", kind)))])).fields) is None


def test_names_that_are_one_in_a_file_are_left_to_spark() -> None:
    columns = new_columns(pa.schema([("a.b", pa.int32()), ("a_x2Eb", pa.int32())]))
    assert file_schema(columns.fields) is None


def test_small_batches_are_joined_while_they_wait(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NewRows, "loose_batches", 10)
    columns, values = numbers(1_005)
    rows = rows_for(staging, columns)
    for at in range(1_005):
        rows.append(batch_of(rows, values[at : at + 1]))
    assert len(list(rows.batches())) == 105
    assert pa.Table.from_batches(rows.batches()).column("x").combine_chunks().equals(values)
    (file,) = rows.files
    assert pq.read_table(file.path).column("x").combine_chunks().equals(values)
