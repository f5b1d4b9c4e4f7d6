"""Arrow's values as Python has them, and as texts where it has not."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from sparkport.catalog.functions import Arguments
from sparkport.catalog.plain_values import plain_rows, plain_value, stored_numbers, value_text
from sparkport.errors import InvalidArgument

pytestmark = pytest.mark.tier("fast")

INFINITE = 2**63 - 1


def moment(kind: pa.DataType, number: int) -> pa.Scalar:
    return pa.array([number], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)[0]


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        (pa.timestamp("us"), INFINITE, "infinity"),
        (pa.timestamp("ms"), -INFINITE, "-infinity"),
        (pa.timestamp("ns"), INFINITE, "infinity"),
        (pa.timestamp("ns"), 1, "1970-01-01 00:00:00.000000001"),
        (pa.timestamp("us"), -INFINITE - 1, f"{-INFINITE - 1} us"),
        (pa.timestamp("us"), 0, "1970-01-01 00:00:00"),
        (pa.timestamp("us", "UTC"), INFINITE, "infinity"),
        (pa.date32(), 2**31 - 1, "infinity"),
        (pa.date32(), 3_000_000, "10183-09-21"),
        (pa.date32(), 0, "1970-01-01"),
        (pa.time32("s"), 86_400, "24:00:00"),
        (pa.time64("us"), 1, "00:00:00.000001"),
        (pa.time64("ns"), 1, "00:00:00.000000001"),
        (pa.duration("s"), INFINITE, f"{INFINITE} s"),
    ],
    ids=str,
)
def test_every_moment_has_a_text(kind: pa.DataType, number: int, text: str) -> None:
    assert value_text(moment(kind, number)) == text


@pytest.mark.parametrize("value", [None, 5, "x", b"x", dt.date(2020, 2, 29), dt.time(1), [1], {"a": None}])
def test_what_python_has_is_what_it_is(value: Any) -> None:
    assert plain_value(pa.scalar(value)) == value


def test_rows_have_texts_for_moments_that_python_lacks_also_within_others() -> None:
    far, near = (moment(pa.timestamp("us"), number) for number in (INFINITE, 0))
    items = pa.array([[far, near, None]], pa.list_(pa.timestamp("us")))
    pairs = pa.array([[("k", far)]], pa.map_(pa.string(), pa.timestamp("us")))
    struct = pa.StructArray.from_arrays([pa.array([far]), pa.array([1])], names=["at", "n"])
    coded = pa.array([far]).dictionary_encode()
    batch = pa.RecordBatch.from_arrays([items, pairs, struct, coded], names=["items", "pairs", "struct", "coded"])
    epoch = dt.datetime(1970, 1, 1)
    assert plain_rows(batch) == [
        {
            "items": ["infinity", epoch, None],
            "pairs": [("k", "infinity")],
            "struct": {"at": "infinity", "n": 1},
            "coded": "infinity",
        }
    ]


def test_moments_are_compared_as_the_numbers_that_they_are() -> None:
    for kind in (pa.timestamp("us"), pa.timestamp("s", "UTC"), pa.duration("ns"), pa.time64("us")):
        column = pa.chunked_array([pa.array([5, None], pa.int64()).view(kind)])
        assert stored_numbers(column).to_pylist() == [5, None]
    assert stored_numbers(pa.chunked_array([pa.array(["x"])])).to_pylist() == ["x"]


def test_an_argument_beyond_pythons_years_is_the_callers_mistake() -> None:
    arguments = Arguments({"at": moment(pa.timestamp("us"), INFINITE)})
    with pytest.raises(InvalidArgument, match="argument 'at' is infinity"):
        arguments["at"]
    with pytest.raises(InvalidArgument, match="argument 'at' is infinity"):
        arguments.get("at")
