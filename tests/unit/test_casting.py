"""Which types are taken for which: what is taken loses nothing, for any value."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkport.catalog.casting import converter

pytestmark = pytest.mark.tier("fast")

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view()]
ANY = [*INTEGERS, *TEXTS, *BYTES, pa.float32(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.null()]


def bounds(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_signed_integer(kind):
        return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    return 0, 2**kind.bit_width - 1


def converted(values: list[Any], source: pa.DataType, target: pa.DataType) -> list[Any]:
    convert = converter(source, target)
    assert convert is not None
    result = convert(pa.array(values, source))
    assert result.type == target
    result.validate(full=True)
    found: list[Any] = result.to_pylist()
    return found


@pytest.mark.parametrize("kind", ANY, ids=str)
def test_a_type_is_taken_for_itself_untouched(kind: pa.DataType) -> None:
    convert = converter(kind, kind)
    column = pa.nulls(2, kind)
    assert convert is not None
    assert convert(column) is column


@pytest.mark.parametrize("source", INTEGERS, ids=str)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_an_integer_is_taken_where_all_its_values_fit(source: pa.DataType, target: pa.DataType) -> None:
    (low, high), (least, most) = bounds(source), bounds(target)
    fits = least <= low and high <= most
    assert (converter(source, target) is not None) is fits
    if fits:
        assert converted([low, None, high], source, target) == [low, None, high]


@pytest.mark.parametrize("kinds", [TEXTS, BYTES], ids=["text", "bytes"])
def test_layouts_of_text_and_of_bytes_are_all_the_same(kinds: list[pa.DataType]) -> None:
    value: Any = "aé\0" if kinds is TEXTS else b"\xff\0"
    for source in kinds:
        for target in kinds:
            assert converted([value, None, value * 0], source, target) == [value, None, value * 0]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.string(), pa.binary()),
        (pa.binary(), pa.string()),
        (pa.string(), pa.int64()),
        (pa.int64(), pa.string()),
        (pa.int32(), pa.float64()),
        (pa.float64(), pa.float32()),
        (pa.bool_(), pa.int8()),
        (pa.timestamp("us"), pa.date32()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.time64("us"), pa.time32("ms")),
        (pa.decimal128(10, 2), pa.decimal128(10, 3)),
        (pa.decimal128(10, 2), pa.decimal128(9, 2)),
        (pa.binary(4), pa.binary(5)),
        (pa.list_(pa.int64()), pa.list_(pa.int32())),
        (pa.list_(pa.int64()), pa.list_(pa.int64(), 2)),
        (pa.list_(pa.int64(), 2), pa.list_(pa.int64(), 3)),
        (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())])),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32())),
        (pa.list_(pa.int64()), pa.int64()),
        (pa.dictionary(pa.int8(), pa.int64()), pa.int32()),
        (pa.string(), pa.dictionary(pa.int8(), pa.int64())),
        (pa.uuid(), pa.int64()),
        (pa.json_(pa.string()), pa.uuid()),
    ],
    ids=str,
)
def test_what_could_lose_or_invent_something_is_not_taken(source: pa.DataType, target: pa.DataType) -> None:
    assert converter(source, target) is None


@pytest.mark.parametrize(
    ("source", "target", "values"),
    [
        (pa.list_(pa.int32()), pa.large_list(pa.int64()), [[1, None], None, []]),
        (pa.list_(pa.field("l", pa.string())), pa.list_(pa.field("item", pa.string())), [["a"], None]),
        (pa.list_(pa.int64(), 2), pa.list_(pa.int64()), [[1, 2], None]),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]), [{"a": 1}, None]),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), [[("k", 1)], None]),
        (pa.dictionary(pa.int8(), pa.string()), pa.large_string(), ["a", None, "a"]),
        (pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.string()), ["a", None]),
        (pa.string(), pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"]),
        (pa.decimal128(5, 1), pa.decimal256(40, 3), [Decimal("1.5"), None]),
        (pa.null(), pa.struct([("a", pa.int64())]), [None, None]),
        (pa.binary(3), pa.binary(), [b"abc", None]),
    ],
    ids=str,
)
def test_nested_types_are_taken_where_their_parts_are(source: pa.DataType, target: pa.DataType, values: Any) -> None:
    assert converted(values, source, target) == values


def test_extension_types_and_what_they_stand_for() -> None:
    key = UUID("550e8400-e29b-41d4-a716-446655440000")
    assert converted([str(key), None], pa.string(), pa.uuid()) == [key, None]
    text = converter(pa.uuid(), pa.string())
    assert text is not None
    stored = pa.uuid().wrap_array(pa.array([key.bytes, None], pa.binary(16)))
    assert text(stored).to_pylist() == [str(key), None]
    assert converted(["{}", None], pa.string(), pa.json_(pa.string())) == ["{}", None]
    plain = converter(pa.json_(pa.string()), pa.string())
    assert plain is not None
    assert plain(pa.json_(pa.string()).wrap_array(pa.array(["{}", None]))).to_pylist() == ["{}", None]
    assert converted([True, None, False], pa.bool_(), pa.bool8()) == [True, None, False]
    back = converter(pa.bool8(), pa.bool_())
    assert back is not None
    assert back(pa.bool8().wrap_array(pa.array([2, None, 0], pa.int8()))).to_pylist() == [True, None, False]


def test_text_that_is_no_uuid_is_an_arrow_error() -> None:
    convert = converter(pa.string(), pa.uuid())
    assert convert is not None
    with pytest.raises(pa.ArrowInvalid, match="not a UUID"):
        convert(pa.array(["nonsense"]))


@given(st.lists(st.one_of(st.none(), st.floats(width=32, allow_nan=False))))
def test_a_float_widens_to_the_same_number(values: list[float | None]) -> None:
    assert converted(values, pa.float32(), pa.float64()) == values


@given(st.lists(st.one_of(st.none(), st.integers(-(2**40), 2**40))), st.sampled_from(["ms", "us"]))
def test_a_timestamp_widens_to_the_same_moment(values: list[int | None], unit: str) -> None:
    source, target = pa.timestamp("s"), pa.timestamp(unit)
    convert = converter(source, target)
    assert convert is not None
    column = pa.array(values, pa.int64()).cast(source)
    assert convert(column).cast(source).equals(column)
