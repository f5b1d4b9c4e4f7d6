"""Keys as plain values: which can be had, what an alteration makes of them, and which rows share one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sparkport.catalog.ddl import ChangeType, DropColumn, DropNotNull, RenameColumn
from sparkport.catalog.evolve import evolve_schema
from sparkport.catalog.key_values import KeyValues, duplicate_key
from sparkport.catalog.keys import Key, keys_after, new_keys, primary_key
from sparkport.errors import Code, DuplicateKey, InvalidArgument

pytestmark = pytest.mark.tier("fast")

COLUMNS = pa.schema([("id", pa.int32()), ("a", pa.int64()), ("b", pa.string()), ("f", pa.float32())])
ID, AB = Key(("id",), True), Key(("a", "b"))


def test_columns_of_a_primary_key_take_no_null_and_others_do() -> None:
    keys, columns = new_keys(COLUMNS, primary=[["ID"]], unique=[["a", "B"]])
    assert keys == (ID, AB)
    assert [column.nullable for column in columns] == [False, True, True, True]
    assert primary_key(keys) == ID
    assert primary_key([AB]) is None


def test_the_same_key_twice_is_one_and_the_primary_one_counts() -> None:
    keys, _ = new_keys(COLUMNS, primary=[["a", "b"]], unique=[["b", "a"], ["id"], ["id"]])
    assert [str(key) for key in keys] == ["PRIMARY KEY (a, b)", "UNIQUE (id)"]


@pytest.mark.parametrize(
    ("primary", "unique", "message"),
    [
        ([["id"], ["a"]], [], "at most one PRIMARY KEY"),
        ([["x"]], [], "column 'x' does not exist"),
        ([], [["f"]], "column 'f' cannot be part of a key: values of type float do not compare"),
        ([], [["a", "a"]], r"UNIQUE \(a, a\) has a column twice"),
        ([], [[]], "a key needs at least one column"),
    ],
)
def test_what_cannot_be_a_key_is_refused(primary: list[list[str]], unique: list[list[str]], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        new_keys(COLUMNS, primary=primary, unique=unique)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int32()),
        pa.struct([("x", pa.int32())]),
        pa.map_(pa.string(), pa.int32()),
        pa.month_day_nano_interval(),
        pa.duration("us"),
        pa.json_(),
        pa.float64(),
    ],
    ids=str,
)
def test_types_that_do_not_compare(kind: pa.DataType) -> None:
    with pytest.raises(InvalidArgument, match="do not compare"):
        new_keys(pa.schema([("k", kind)]), unique=[["k"]])


def test_what_alterations_make_of_keys() -> None:
    keys, columns = new_keys(COLUMNS, primary=[["id"]], unique=[["a", "b"]])

    def after(change: RenameColumn | DropColumn | ChangeType | DropNotNull) -> tuple[Key, ...]:
        return keys_after(change, keys, columns, evolve_schema(columns, change))

    assert after(RenameColumn("B", "c")) == (ID, Key(("a", "c")))
    assert after(DropColumn("f")) == keys
    assert after(DropColumn("a", cascade=True)) == (ID,)
    assert after(ChangeType("id", pa.int64())) == keys
    assert after(DropNotNull("a")) == keys
    with pytest.raises(InvalidArgument, match=r"column 'id' is part of PRIMARY KEY \(id\): DROP … CASCADE"):
        after(DropColumn("id"))
    with pytest.raises(InvalidArgument, match="takes no NULL"):
        after(DropNotNull("ID"))


def test_values_that_are_there_twice() -> None:
    assert KeyValues([pa.array([1, 2, None, None])]).repeated() is None
    repeated = KeyValues([pa.array([1, 1, 2]), pa.array(["x", "y", "x"])]).repeated()
    assert repeated is None
    twice = KeyValues([pa.array([1, 1, 1]), pa.array(["x", "y", "x"])]).repeated()
    assert twice is not None
    assert [value.to_pylist() for value in twice] == [[1], ["x"]]


def test_rows_are_found_by_all_values_of_a_key() -> None:
    values = KeyValues.joined(
        [KeyValues([pa.array([1]), pa.array(["x"])]), KeyValues([pa.array([2]), pa.array(["y"])])]
    )
    there = [pa.array([1, 1, 2, 2, None]), pa.array(["x", "y", "x", "y", "x"])]
    places = values.places_in(there)
    assert places is not None
    assert sorted(places.to_pylist()) == [0, 3]
    assert values.places_in([pa.array([1]), pa.array(["y"])]) is None
    assert KeyValues([pa.array([None], pa.int64())]).places_in([pa.array([None, 1], pa.int64())]) is None


def test_the_error_names_the_key_and_its_values() -> None:
    error = duplicate_key("t", AB, [pa.scalar(1), pa.scalar("x" * 200)])
    assert error.code is Code.ALREADY_EXISTS
    assert DuplicateKey.duckdb_exception == "ConstraintException"
    assert error.message.startswith("table 't': duplicate key (a = 1, b = 'xxx")
    assert error.message.endswith("xx…) violates UNIQUE (a, b)")
    assert len(error.message) < 200


@pytest.mark.parametrize("kind", [pa.decimal32(5, 2), pa.decimal64(15, 2), pa.decimal256(60, 2)], ids=str)
def test_decimals_of_any_width_are_compared(kind: pa.DataType) -> None:
    values = [pa.array([text], pa.string()).cast(pa.decimal128(5, 2)).cast(kind) for text in ("1.10", "1.1", "1.11")]
    assert KeyValues([pa.chunked_array(values[:2])]).repeated() is not None
    places = KeyValues(values[:1]).places_in([pa.chunked_array(values[1:])])
    assert places is not None
    assert places.to_pylist() == [0]


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.int8(), pa.uint64(), pa.uint16()], ids=str)
@pytest.mark.parametrize("wanted", [1, 300, 30_000])
def test_keys_are_found_among_many_numbers(kind: pa.DataType, wanted: int) -> None:
    limits = np.iinfo(kind.to_pandas_dtype())
    chance = np.random.default_rng(5)
    rows = chance.integers(limits.min, limits.max, 40_000, kind.to_pandas_dtype(), endpoint=True)
    rows[:2] = limits.min, limits.max
    own = np.concatenate([chance.permutation(rows)[: wanted // 2], rows[:2], rows[wanted:] // 2])[:wanted]
    columns = [pa.chunked_array([rows[:15_000], rows[15_000:]], kind)]
    expected = np.flatnonzero(np.isin(rows, own))
    places = KeyValues([pa.array(own, kind)]).places_in(columns)
    assert places is not None
    assert places.to_pylist() == expected.tolist()


def test_among_many_numbers_there_may_be_none() -> None:
    even = pa.array(np.arange(-50_000, 50_000) * 2)
    assert KeyValues([pa.array([7, 2_000_001, -1])]).places_in([even]) is None
    assert KeyValues([pa.array(np.arange(20_000) * 2 + 1)]).places_in([even]) is None


def test_a_null_among_many_numbers_is_no_key() -> None:
    rows = pa.array([None, *range(20_000)], pa.int64())
    places = KeyValues([pa.array([0, 19_999])]).places_in([rows])
    assert places is not None
    assert places.to_pylist() == [1, 20_000]
