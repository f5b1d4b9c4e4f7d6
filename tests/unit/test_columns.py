"""Fitting what a client sends to a table's columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparkport.errors import ConstraintViolation, InvalidArgument, SchemaMismatch
from sparkport.handlers.columns import fit_all, fit_some

pytestmark = pytest.mark.tier("fast")

TABLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("kind", pa.int32(), metadata={"default": "40 + 2"}),
    ]
)


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_a_batch_that_fits_is_passed_on_as_it_is() -> None:
    rows = pa.RecordBatch.from_pylist([{"id": 1, "name": "a", "kind": 2}], TABLE)
    assert fit_all("t", TABLE, TABLE)(rows) is rows


def test_a_batch_that_fits_is_checked_for_nulls_all_the_same() -> None:
    loose = pa.schema([column.with_nullable(True).remove_metadata() for column in TABLE])
    rows = pa.RecordBatch.from_pylist([{"id": None}], loose)
    with pytest.raises(ConstraintViolation, match=r"NOT NULL constraint failed: t\.id"):
        fit_all("t", loose, TABLE)(rows)


def test_order_is_free_and_the_tables_order_comes_out() -> None:
    rows = batch(kind=pa.array([1], pa.int32()), name=pa.array(["a"]), id=pa.array([7]))
    fitted = fit_all("t", rows.schema, TABLE)(rows)
    assert fitted.schema.names == ["id", "name", "kind"]
    assert fitted.to_pylist() == [{"id": 7, "name": "a", "kind": 1}]


def test_names_match_exactly_first_and_without_case_then() -> None:
    target = pa.schema([("a", pa.int64()), ("B", pa.int64())])
    rows = batch(b=pa.array([2]), A=pa.array([1]))
    assert fit_all("t", rows.schema, target)(rows).to_pylist() == [{"a": 1, "B": 2}]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (["id", "id", "name"], "schema mismatch: a column is given twice"),
        (["ID", "Id", "name"], "schema mismatch: column 'id' is ambiguous"),
        (["id", "name", "other"], "schema mismatch: column 'kind' is missing; column 'other' is not in the table"),
        (["id", "name", "kind", "other"], "column mismatch: table has 3 columns, input has 4"),
        (["id"], "column mismatch: table has 3 columns, input has 1"),
        ([], "column mismatch: table has 3 columns, input has 0"),
    ],
)
def test_what_does_not_match_is_told(source: list[str], message: str) -> None:
    schema = pa.schema([pa.field(name, pa.int64()) for name in source])
    with pytest.raises(SchemaMismatch) as failure:
        fit_all("t", schema, TABLE, defaults=False)
    assert failure.value.message == message


def test_every_type_that_differs_is_told() -> None:
    schema = pa.schema([("id", pa.string()), ("name", pa.int64()), ("kind", pa.int32())])
    with pytest.raises(SchemaMismatch) as failure:
        fit_all("t", schema, TABLE)
    assert failure.value.message == (
        "schema mismatch: column 'id' is int64, input has string; column 'name' is string, input has int64"
    )


def test_a_default_fills_a_missing_column() -> None:
    rows = batch(id=pa.array([1, 2]), name=pa.array(["a", None]))
    fitted = fit_all("t", rows.schema, TABLE)(rows)
    assert fitted.column("kind").to_pylist() == [42, 42]
    assert fitted.schema.equals(TABLE)


def test_a_default_is_worked_out_for_each_row() -> None:
    target = pa.schema([("id", pa.int64()), pa.field("r", pa.float64(), metadata={"default": "random()"})])
    rows = batch(id=pa.array(list(range(50))))
    assert len(set(fit_all("t", rows.schema, target)(rows).column("r").to_pylist())) == 50


@pytest.mark.parametrize("expression", ["'text'", "nonsense", "1; SELECT 2", "read_text('/etc/hostname')"])
def test_a_default_that_cannot_be_used_is_told(expression: str) -> None:
    target = pa.schema([("id", pa.int64()), pa.field("n", pa.int32(), metadata={"default": expression})])
    rows = batch(id=pa.array([1]))
    with pytest.raises(InvalidArgument, match="column 'n': its default"):
        fit_all("t", rows.schema, target)(rows)


def test_an_update_takes_the_columns_it_changes_in_the_tables_order() -> None:
    rows = batch(kind=pa.array([1], pa.int16()), ID=pa.array([5]))
    fit = fit_some("t", rows.schema, TABLE)
    assert fit.target.names == ["id", "kind"]
    assert fit(rows).to_pylist() == [{"id": 5, "kind": 1}]
    assert fit(rows).schema.field("kind").type == pa.int32()


def test_an_update_fills_no_defaults() -> None:
    assert fit_some("t", pa.schema([("name", pa.string())]), TABLE).target.names == ["name"]


def test_an_update_of_unknown_columns_is_told() -> None:
    with pytest.raises(SchemaMismatch, match="schema mismatch: column 'x' is not in the table"):
        fit_some("t", pa.schema([("x", pa.int64())]), TABLE)


def test_a_value_that_cannot_be_converted_names_its_column() -> None:
    target = pa.schema([("t", pa.timestamp("ns"))])
    rows = batch(t=pa.array([2**60], pa.timestamp("s")))
    with pytest.raises(InvalidArgument, match="column 't': "):
        fit_all("t", rows.schema, target)(rows)


def test_a_null_among_a_dictionarys_values_is_a_null() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    target = pa.schema([pa.field("v", kind, nullable=False)])
    unused = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["a", None]))
    used = pa.DictionaryArray.from_arrays(pa.array([1], pa.int8()), pa.array(["a", None]))
    fit = fit_all("t", pa.schema([("v", kind)]), target)
    assert fit(batch(v=unused)).num_rows == 1
    with pytest.raises(ConstraintViolation, match=r"t\.v"):
        fit(batch(v=used))
