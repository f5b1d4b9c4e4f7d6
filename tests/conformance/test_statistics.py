"""Statistics may say little, but what they say must hold for every row: DuckDB leaves rows out because of them."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.engines import Ability, EngineUnderTest, Ground
from tests.conformance.rows import NUMBERS, TYPES

from sparkport.catalog import ColumnStatistics, StatisticsTable

pytestmark = pytest.mark.needs(Ability.STATISTICS)


def statistics(ground: Ground, column: str) -> ColumnStatistics:
    table = ground.table()
    assert isinstance(table, StatisticsTable)
    return table.column_statistics(ground.ctx, column) or ColumnStatistics()


def hold(known: ColumnStatistics, column: pa.ChunkedArray) -> bool:
    values = [value for value in column.to_pylist() if value is not None]
    nulls = len(column) - len(values)
    return all(
        (
            known.minimum is None or all(known.minimum <= value for value in values),
            known.maximum is None or all(value <= known.maximum for value in values),
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
    assert (known.minimum, known.maximum) == (0, 4999)


def test_nan_is_never_above_the_maximum(engine: EngineUnderTest) -> None:
    """DuckDB sorts NaN above everything: a maximum next to a NaN would hide rows."""
    rows = pa.table({"x": [1.0, math.nan, 2.0]})
    known = statistics(engine.make({"t": rows}), "x")
    assert known.maximum is None or math.isnan(known.maximum)


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
    assert pc.min(both["id"]).as_py() == statistics(ground, "id").minimum
