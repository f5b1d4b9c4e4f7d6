"""Dates and times that Python's calendar does not have: DuckDB's infinities, far years, the end of a day."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.conformance.engines import Ability, EngineUnderTest, Ground

from sparkport.catalog import ROW_ID, ScanRequest, StatisticsTable
from sparkport.catalog.ddl import MutableSchema, TableDefinition
from sparkport.catalog.keys import new_keys
from sparkport.errors import DuplicateKey
from sparkport.filters.evaluate import RowFilter
from sparkport.filters.expressions import Column, Comparison, Literal
from sparkport.filters.types import arrow_sql_type
from sparkport.protocol.statistics import encode_statistics

pytestmark = [pytest.mark.tier("fast"), pytest.mark.needs(Ability.UPDATE_AND_DELETE, Ability.DDL)]

_INFINITE = 2**63 - 1
MOMENTS = {
    "timestamp": (pa.timestamp("us"), [_INFINITE, -_INFINITE, 864 * 10**15, 0], "infinity"),
    "timestamp_s": (pa.timestamp("s"), [_INFINITE, -_INFINITE, 10**12, 0], "infinity"),
    "timestamp_ns": (pa.timestamp("ns"), [_INFINITE, -_INFINITE, 1, 0], "infinity"),
    "timestamptz": (pa.timestamp("us", "UTC"), [_INFINITE, -_INFINITE, 864 * 10**15, 0], "infinity"),
    "date": (pa.date32(), [2**31 - 1, -(2**31) + 1, 3_000_000, 0], "infinity"),
    "time": (pa.time64("us"), [86_400_000_000, 86_399_999_999, 1, 0], "24:00:00"),
}


def column(kind: pa.DataType, numbers: list[int]) -> pa.Array:
    return pa.array(numbers, pa.int32() if kind == pa.date32() else pa.int64()).view(kind)


def rows(kind: pa.DataType, numbers: list[int], *, first: int = 0) -> pa.Table:
    return pa.table([pa.array(range(first, first + len(numbers)), pa.int64()), column(kind, numbers)], ["id", "at"])


def made(engine: EngineUnderTest, kind: pa.DataType) -> Ground:
    ground = engine.make({})
    schema = ground.catalog.schema(ground.ctx, "public")
    assert isinstance(schema, MutableSchema)
    keys, columns = new_keys(pa.schema([("id", pa.int64()), ("at", kind)]), unique=[["at"]])
    schema.create_table(ground.ctx, TableDefinition(name="t", columns=columns, keys=keys))
    return ground


def numbers(ground: Ground) -> list[int]:
    found = ground.read(ScanRequest(columns=("id", "at"))).sort_by("id").column("at")
    return [int(number) for chunk in found.chunks for number in np.array(chunk.view(_number(chunk.type)))]


def _number(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


@pytest.mark.tier("fast")
@pytest.mark.parametrize("name", MOMENTS)
def test_a_key_holds_for_moments_beyond_pythons_years(engine: EngineUnderTest, name: str) -> None:
    kind, values, text = MOMENTS[name]
    ground = made(engine, kind)
    assert ground.insert(rows(kind, values[:2])) == 2
    assert ground.insert(rows(kind, values[2:], first=2)) == 2
    for number in values:
        with pytest.raises(DuplicateKey, match=r"duplicate key \(at = "):
            ground.insert(rows(kind, [number], first=9))
    with pytest.raises(DuplicateKey, match=rf"duplicate key \(at = {text}\)"):
        ground.insert(rows(kind, [values[0]], first=9))
    with pytest.raises(DuplicateKey, match=rf"duplicate key \(at = {text}\)"):
        ground.insert(rows(kind, [values[0], values[0]], first=9))
    assert numbers(ground) == values


@pytest.mark.parametrize("name", MOMENTS)
def test_rows_get_and_lose_such_moments(engine: EngineUnderTest, name: str) -> None:
    kind, values, _ = MOMENTS[name]
    ground = made(engine, kind)
    ground.insert(rows(kind, values[1:]))
    ids = {row["id"]: row[ROW_ID] for row in ground.read(ScanRequest(columns=("id", ROW_ID))).to_pylist()}
    new = pa.table([column(kind, [values[0]])], ["at"])
    assert ground.update([ids[0]], new) == 1
    with pytest.raises(DuplicateKey):
        ground.update([ids[1]], new)
    assert ground.delete([ids[0]]) == 1
    assert ground.update([ids[1]], new) == 1
    assert numbers(ground) == [values[0], values[3]]


@pytest.mark.parametrize("name", MOMENTS)
def test_filters_and_statistics_know_such_moments(engine: EngineUnderTest, name: str) -> None:
    kind, values, _ = MOMENTS[name]
    ground = made(engine, kind)
    ground.insert(rows(kind, values))
    sql_type = arrow_sql_type(kind)
    assert sql_type is not None
    for place, number in enumerate(values):
        condition = Comparison("=", Column("at", sql_type), Literal(number, sql_type))
        found = ground.read(ScanRequest(columns=("id", "at"), filter=condition))
        kept = RowFilter(condition, found.schema).mask(found.combine_chunks().to_batches()[0])
        ids = found.column("id").to_pylist() if kept is None else found.filter(kept).column("id").to_pylist()
        assert ids == [place]
    table = ground.table()
    assert isinstance(table, StatisticsTable)
    known = table.column_statistics(ground.ctx, "at")
    assert encode_statistics(kind, known)
    if known is not None and known.minimum is not None and known.maximum is not None:
        assert known.minimum.value <= min(values)
        assert known.maximum.value >= max(values)
