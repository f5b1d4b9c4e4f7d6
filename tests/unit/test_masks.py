"""Arrow keeps the rows that DuckDB would keep, or says that it does not understand the filter."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkport.filters.expressions import (
    And,
    Between,
    Column,
    Comparison,
    Expression,
    In,
    IsNotNull,
    IsNull,
    Literal,
    Not,
    Or,
    SqlType,
)
from sparkport.filters.masks import COMPARED, compile_mask
from sparkport.filters.sql import to_sql

pytestmark = pytest.mark.tier("fast")

BIGINT, VARCHAR = SqlType("BIGINT"), SqlType("VARCHAR")
KINDS: dict[str, tuple[pa.DataType, SqlType, Any]] = {
    "i": (pa.int32(), SqlType("INTEGER"), st.integers(-3, 3) | st.sampled_from([2**31 - 1, -(2**31)])),
    "l": (pa.int64(), BIGINT, st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63)])),
    "s": (pa.string(), VARCHAR, st.text("aA\x00é\U0001f600\uffff", max_size=3)),
    "d": (pa.date32(), SqlType("DATE"), st.integers(-3, 3) | st.sampled_from([2**31 - 1, -(2**31 - 1)])),
    "t": (pa.timestamp("us"), SqlType("TIMESTAMP"), st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63 - 1)])),
    "z": (pa.timestamp("us", "UTC"), SqlType("TIMESTAMP WITH TIME ZONE"), st.integers(-3, 3)),
}
TYPES = {name: kind for name, (kind, _, _) in KINDS.items()}
DUCKDB = duckdb.connect()
DUCKDB.execute("SET GLOBAL TimeZone = 'UTC'")


@st.composite
def leaves(draw: st.DrawFn) -> Expression:
    name = draw(st.sampled_from(sorted(KINDS)))
    _, kind, values = KINDS[name]
    column, literal = Column(name, kind), values.map(lambda value: Literal(value, kind))
    comparison = st.builds(Comparison, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), st.just(column), literal)
    flipped = comparison.map(lambda found: Comparison(found.op, found.right, found.left))
    among = st.lists(literal, min_size=1, max_size=3).map(lambda found: In(column, tuple(found)))
    between = st.builds(Between, st.just(column), literal, literal, st.booleans(), st.booleans())
    null = st.sampled_from([IsNull(column), IsNotNull(column)])
    chosen: st.SearchStrategy[Any] = comparison | flipped | among | between | null
    found: Expression = draw(chosen)
    return found


filters = st.recursive(
    leaves(),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(
        lambda nodes: And(tuple(nodes)) if len(nodes) % 2 else Or(tuple(nodes))
    ),
    max_leaves=6,
)
rows = st.lists(st.fixed_dictionaries({name: st.none() | kind[2] for name, kind in KINDS.items()}), max_size=6)


def columns(found: list[dict[str, Any]]) -> dict[str, pa.Array]:
    return {name: pa.array([row[name] for row in found], COMPARED[kind]).view(kind) for name, kind in TYPES.items()}


@given(rows, filters)
def test_the_rows_that_are_kept_are_those_that_duckdb_keeps(found: list[dict[str, Any]], expr: Expression) -> None:
    mask = compile_mask(expr, TYPES)
    assert mask is not None
    table = pa.table(columns(found))
    DUCKDB.register("found", table)
    expected = DUCKDB.execute(f"SELECT ({to_sql(expr)}) IS TRUE FROM found").fetchall()
    assert mask(columns(found)).fill_null(False).to_pylist() == [keep for (keep,) in expected]


@pytest.mark.parametrize(
    "expr",
    [
        Comparison("=", Column("l"), Literal("1", VARCHAR)),
        Comparison("=", Column("l", VARCHAR), Literal("1", VARCHAR)),
        Comparison("=", Column("l", BIGINT), Literal(None, BIGINT)),
        Comparison("=", Column("i", SqlType("INTEGER")), Literal(2**40, BIGINT)),
        Comparison("IS DISTINCT FROM", Column("l", BIGINT), Literal(1, BIGINT)),
        Comparison("=", Column("s", SqlType("JSON")), Literal("{}", SqlType("JSON"))),
        Comparison("=", Column("nope", BIGINT), Literal(1, BIGINT)),
        Comparison("=", Column("l", BIGINT), Column("i", SqlType("INTEGER"))),
        In(Column("l", BIGINT), (Literal(1, BIGINT), Literal(None, BIGINT))),
        In(Column("l", BIGINT), (Literal(1, BIGINT), Column("l", BIGINT))),
        Not(IsNull(Column("l", BIGINT))),
        And((IsNull(Column("l", BIGINT)), IsNull(Column("nope", BIGINT)))),
        Or((IsNull(Column("l", BIGINT)), IsNull(Column("nope", BIGINT)))),
        And(()),
    ],
    ids=str,
)
def test_what_is_not_understood_is_left_to_duckdb(expr: Expression) -> None:
    assert compile_mask(expr, TYPES) is None


def test_a_column_without_a_type_is_compared_as_what_it_is() -> None:
    mask = compile_mask(Comparison(">", Column("L"), Literal(1, SqlType("INTEGER"))), TYPES)
    assert mask is not None
    assert mask({"l": pa.array([0, 1, 2, None], pa.int64())}).to_pylist() == [False, False, True, None]
