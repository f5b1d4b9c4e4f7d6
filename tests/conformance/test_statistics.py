"""Statistics may say little, but what they say must hold for every row: DuckDB leaves rows out because of them."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.engines import Ability, EngineUnderTest, Ground
from tests.conformance.rows import NUMBERS, TYPES

from sparkport.catalog import ColumnStatistics, StatisticsTable
from sparkport.protocol.statistics import encode_statistics

pytestmark = [pytest.mark.tier("fast"), pytest.mark.needs(Ability.STATISTICS)]


def statistics(ground: Ground, column: str) -> ColumnStatistics:
    table = ground.table()
    assert isinstance(table, StatisticsTable)
    return table.column_statistics(ground.ctx, column) or ColumnStatistics()


def python(bound: Any) -> Any:
    return bound.as_py() if isinstance(bound, pa.Scalar) else bound


def hold(known: ColumnStatistics, column: pa.ChunkedArray) -> bool:
    values = [value for value in column.to_pylist() if value is not None]
    nulls = len(column) - len(values)
    minimum, maximum = python(known.minimum), python(known.maximum)
    return all(
        (
            minimum is None or all(minimum <= value for value in values),
            maximum is None or all(value <= maximum for value in values),
            not (known.has_null is False and nulls),
            not (known.has_not_null is False and values),
            known.max_string_length is None or all(len(text.encode()) <= known.max_string_length for text in values),
            not (known.contains_unicode is False and any(not text.isascii() for text in values)),
        )
    )


@pytest.mark.parametrize("column", TYPES.column_names)
def test_bounds_hold_for_every_type(engine: EngineUnderTest, column: str) -> None:
    ground = engine.make({"t": TYPES})
    assert hold(statistics(ground, column), TYPES[column])


@pytest.mark.parametrize("column", NUMBERS.column_names)
def test_bounds_hold_over_several_batches(engine: EngineUnderTest, column: str) -> None:
    ground = engine.make({"t": NUMBERS})
    assert hold(statistics(ground, column), NUMBERS[column])


def test_a_number_column_has_bounds(engine: EngineUnderTest) -> None:
    known = statistics(engine.make({"t": NUMBERS}), "id")
    assert (python(known.minimum), python(known.maximum)) == (0, 4999)


def test_nan_is_never_above_the_maximum(engine: EngineUnderTest) -> None:
    """DuckDB sorts NaN above everything: a maximum next to a NaN would hide rows."""
    rows = pa.table({"x": [1.0, math.nan, 2.0]})
    known = statistics(engine.make({"t": rows}), "x")
    assert known.maximum is None or math.isnan(python(known.maximum))


def test_an_empty_table_promises_nothing_false(engine: EngineUnderTest) -> None:
    known = statistics(engine.make({"t": NUMBERS.slice(0, 0)}), "id")
    assert (known.minimum, known.maximum) == (None, None)


def test_a_column_of_nulls_says_so_or_nothing(engine: EngineUnderTest) -> None:
    rows = pa.table({"x": pa.nulls(3, pa.int64())})
    known = statistics(engine.make({"t": rows}), "x")
    assert known.has_null is not False
    assert known.minimum is None


@pytest.mark.needs(Ability.INSERT)
def test_bounds_hold_after_an_insert(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS})
    more = pa.table({"id": [-5, 9999], "name": ["Ærø", None], "price": [1e9, None]}, schema=NUMBERS.schema)
    ground.insert(more)
    both = pa.concat_tables([NUMBERS, more])
    assert all(hold(statistics(ground, column), both[column]) for column in both.column_names)
    assert pc.min(both["id"]).as_py() == python(statistics(ground, "id").minimum)


# What Python's dates and times cannot hold: infinities, years beyond 9999, nanoseconds, 24 o'clock.
EDGES = pa.table(
    {
        name: pa.array([low, None, high], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
        for name, kind, low, high in [
            ("date", pa.date32(), 1 - 2**31, 2**31 - 1),
            ("seconds", pa.timestamp("s"), 1 - 2**63, 2**63 - 1),
            ("millis", pa.timestamp("ms"), -(10**15), 2**63 - 1),
            ("micros", pa.timestamp("us"), 1 - 2**63, 10**18),
            ("zoned", pa.timestamp("us", "UTC"), 1 - 2**63, 2**63 - 1),
            ("nanos", pa.timestamp("ns"), -1, 2**63 - 2),
            ("time", pa.time64("us"), 0, 86_400_000_000),
            ("fine_time", pa.time64("ns"), 1, 86_399_999_999_999),
        ]
    }
)


@pytest.mark.parametrize("column", EDGES.column_names)
def test_bounds_are_exact_where_python_has_no_such_value(engine: EngineUnderTest, column: str) -> None:
    kind = EDGES.schema.field(column).type
    encoded = encode_statistics(kind, statistics(engine.make({"t": EDGES.select([column])}), column))
    row = pa.ipc.open_stream(encoded).read_all()
    units = pa.int32() if kind.bit_width == 32 else pa.int64()
    low, _, high = EDGES.column(column).combine_chunks().view(units).to_pylist()
    assert [row.column(name).combine_chunks().view(units)[0].as_py() for name in ("min", "max")] == [low, high]


@pytest.mark.parametrize("kind", [pa.float16(), pa.decimal32(5, 2), pa.decimal64(9, 0)], ids=str)
def test_a_type_that_has_no_bounds_has_statistics_all_the_same(engine: EngineUnderTest, kind: pa.DataType) -> None:
    known = statistics(engine.make({"t": pa.table({"v": pa.array([1, None], pa.int8()).cast(kind)})}), "v")
    assert (known.has_null, known.has_not_null) == (True, True)
    assert python(known.minimum) in (None, 1)
