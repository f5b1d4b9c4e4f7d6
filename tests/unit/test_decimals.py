"""A number that its type has no room for is refused by name, wherever in a column it is; no other one is."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

from sparkport.catalog.decimals import has_decimals, overlong_decimal
from sparkport.errors import InvalidArgument
from sparkport.handlers.columns import fit_all

pytestmark = pytest.mark.tier("fast")

HUGE = pa.decimal128(38, 0)
LONGEST = 10**38 - 1


def unchecked(*values: int, kind: pa.DataType = HUGE) -> pa.Array:
    """As they come from the wire: Arrow's own constructors would refuse them."""
    data = b"".join(value.to_bytes(16, "little", signed=True) for value in values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])


@pytest.mark.parametrize("value", [LONGEST, -LONGEST, 0, -1, 2**64, -(2**64)])
def test_a_number_of_38_digits_fits(value: int) -> None:
    assert overlong_decimal(unchecked(0, value)) is None


@pytest.mark.parametrize("value", [10**38, -(10**38), 2**127 - 1, -(2**127)])
def test_a_number_of_39_digits_does_not(value: int) -> None:
    assert overlong_decimal(unchecked(0, value, 5)) == (Decimal(value), HUGE)


def test_smaller_decimals_are_held_to_their_own_length() -> None:
    small = pa.decimal128(5, 2)
    assert overlong_decimal(unchecked(99_999, -99_999, kind=small)) is None
    assert overlong_decimal(unchecked(100_000, kind=small)) == (Decimal("1000.00"), small)


NESTED: dict[str, Callable[[pa.Array], pa.Array]] = {
    "list": lambda items: pa.ListArray.from_arrays([0, 1, 2], items),
    "array": lambda items: pa.FixedSizeListArray.from_arrays(items, 1),
    "struct": lambda items: pa.StructArray.from_arrays([items], ["a"]),
    "map": lambda items: pa.MapArray.from_arrays([0, 1, 2], pa.array(["x", "y"]), items),
    "list of structs": lambda items: pa.ListArray.from_arrays(
        [0, 1, 2], pa.StructArray.from_arrays([items, items], ["a", "b"])
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_numbers_are_found_but_not_those_outside_of_a_slice(name: str) -> None:
    column = NESTED[name](unchecked(1, 10**38))
    assert has_decimals(column.type)
    assert overlong_decimal(column) is not None
    assert overlong_decimal(column.slice(0, 1)) is None


def test_what_is_hidden_under_a_null_does_not_count() -> None:
    hidden = pa.StructArray.from_arrays([unchecked(1, 10**38)], ["a"], mask=pa.array([False, True]))
    assert overlong_decimal(hidden) is None


def test_the_refusal_names_the_column_the_limit_and_the_setting_that_helps() -> None:
    schema = pa.schema([("id", pa.int64()), ("amount", HUGE)])
    batch = pa.RecordBatch.from_arrays([pa.array([1]), unchecked(2**127 - 1)], schema=schema)
    with pytest.raises(InvalidArgument) as caught:
        fit_all("t", schema, schema)(batch)
    text = str(caught.value)
    assert "column 'amount'" in text
    assert str(2**127 - 1) in text
    assert "38 digits" in text
    assert "SET arrow_lossless_conversion = true" in text
