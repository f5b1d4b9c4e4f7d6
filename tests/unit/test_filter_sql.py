from __future__ import annotations

import math
import uuid
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from sparkport.filters.expressions import (
    And,
    Between,
    Case,
    Cast,
    Column,
    Comparison,
    Expression,
    Function,
    ILike,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    NotIn,
    Or,
    SqlType,
    Unsupported,
)
from sparkport.filters.predicates import col, lit
from sparkport.filters.sql import is_supported, literal_sql, quote_identifier, to_sql, type_sql

pytestmark = pytest.mark.tier("fast")

INTEGER, VARCHAR, BOOLEAN, ZONED = (
    SqlType("INTEGER"),
    SqlType("VARCHAR"),
    SqlType("BOOLEAN"),
    SqlType("TIMESTAMP WITH TIME ZONE"),
)
STRUCT = SqlType("STRUCT", fields=(("a", INTEGER), ('odd "name"', VARCHAR)))
LIST = SqlType("LIST", fields=(("", INTEGER),))
MAP = SqlType("MAP", fields=(("key", VARCHAR), ("value", INTEGER)))
HOSTILE = ["'; DROP TABLE t; --", '"', "' OR 1=1 --", "\\'", "$$", "a\0b", "{'a'}", "/* */", "é\n\r\t"]


def run(sql: str) -> tuple[Any, ...]:
    with duckdb.connect() as connection:
        rows = connection.execute(f"SELECT {sql}").fetchall()
    return tuple(rows[0])


@pytest.mark.parametrize(
    ("value", "sql_type", "shown"),
    [
        (True, BOOLEAN, "true"),
        (-(2**31), INTEGER, "-2147483648"),
        (-(2**63), SqlType("BIGINT"), "-9223372036854775808"),
        (2**64 - 1, SqlType("UBIGINT"), "18446744073709551615"),
        (-(2**127), SqlType("HUGEINT"), "-170141183460469231731687303715884105728"),
        (2**128 - 1, SqlType("UHUGEINT"), "340282366920938463463374607431768211455"),
        (0.1, SqlType("DOUBLE"), "0.1"),
        (0.10000000149011612, SqlType("FLOAT"), "0.1"),
        (math.nan, SqlType("DOUBLE"), "nan"),
        (-math.inf, SqlType("FLOAT"), "-inf"),
        (Decimal("-0.05"), SqlType("DECIMAL", width=10, scale=2), "-0.05"),
        (Decimal("1E+3"), SqlType("DECIMAL", width=10, scale=2), "1000.00"),
        (Decimal("9" * 38), SqlType("DECIMAL", width=38, scale=0), "9" * 38),
        ("it's", VARCHAR, "it's"),
        ("{}", SqlType("JSON"), "{}"),
        (b"\xff\x00'", SqlType("BLOB"), "\\xFF\\x00\\x27"),
        (uuid.UUID(int=5), SqlType("UUID"), "00000000-0000-0000-0000-000000000005"),
        ("y'", SqlType("ENUM", values=("x", "y'")), "y'"),
        (18262, SqlType("DATE"), "2020-01-01"),
        (2**31 - 1, SqlType("DATE"), "infinity"),
        (-719893, SqlType("DATE"), "0002-01-01 (BC)"),
        (86_400_000_000, SqlType("TIME"), "24:00:00"),
        (1, SqlType("TIME_NS"), "00:00:00.000000001"),
        (-1, SqlType("TIMESTAMP"), "1969-12-31 23:59:59.999999"),
        (-(2**63) + 1, SqlType("TIMESTAMP"), "-infinity"),
        (1577836800, SqlType("TIMESTAMP_S"), "2020-01-01 00:00:00"),
        (1577836800001, SqlType("TIMESTAMP_MS"), "2020-01-01 00:00:00.001"),
        (1577836800000000001, SqlType("TIMESTAMP_NS"), "2020-01-01 00:00:00.000000001"),
        ((1, -2, 3), SqlType("INTERVAL"), "1 month -2 days 00:00:00.000003"),
        ((1, None), LIST, "[1, NULL]"),
        ((), LIST, "[]"),
        ((1, 2), SqlType("ARRAY", size=2, fields=(("", INTEGER),)), "[1, 2]"),
        ((1, "x"), STRUCT, "{'a': 1, 'odd \"name\"': x}"),
        ((("k", 1),), MAP, "{k=1}"),
        (None, STRUCT, None),
        (None, SqlType("DECIMAL", width=4, scale=1), None),
    ],
)
def test_a_literal_has_exactly_its_type_and_value(value: Any, sql_type: SqlType, shown: str | None) -> None:
    sql = literal_sql(value, sql_type)
    assert sql is not None
    as_text, found, wanted = run(f"CAST({sql} AS VARCHAR), typeof({sql}), typeof(CAST(NULL AS {type_sql(sql_type)}))")
    assert (as_text, found) == (shown, wanted)


def test_an_instant_does_not_depend_on_the_time_zone() -> None:
    sql = literal_sql(1577836800000000, ZONED)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'Asia/Tokyo'")
        assert connection.execute(f"SELECT epoch_us({sql}), typeof({sql})").fetchall() == [
            (1577836800000000, "TIMESTAMP WITH TIME ZONE")
        ]


@pytest.mark.parametrize(
    ("value", "sql_type"),
    [
        (2**31, INTEGER),
        (-1, SqlType("UTINYINT")),
        (True, INTEGER),
        (1, BOOLEAN),
        ("1", INTEGER),
        (10**400, SqlType("DOUBLE")),
        (Decimal("1.005"), SqlType("DECIMAL", width=10, scale=2)),
        (Decimal("100"), SqlType("DECIMAL", width=4, scale=2)),
        (Decimal("NaN"), SqlType("DECIMAL", width=4, scale=2)),
        (Decimal("1"), SqlType("DECIMAL", width=99, scale=2)),
        ("\ud800", VARCHAR),
        ("z", SqlType("ENUM", values=("x",))),
        (-1, SqlType("TIME")),
        (2**63, SqlType("TIMESTAMP")),
        (2**62, SqlType("TIMESTAMP_S")),
        (2**31, SqlType("DATE")),
        ((1, 2), SqlType("INTERVAL")),
        ((1,), STRUCT),
        ((1,), SqlType("ARRAY", size=2, fields=(("", INTEGER),))),
        (("x",), LIST),
        ("x", SqlType("VARCHAR); DROP TABLE t; --")),
        (1, SqlType("UNKNOWN GEOMETRY")),
    ],
)
def test_a_literal_that_does_not_fit_its_type_is_not_written(value: Any, sql_type: SqlType) -> None:
    assert literal_sql(value, sql_type) is None
    assert to_sql(Comparison("=", Column("x", sql_type), Literal(value, sql_type))) == "TRUE"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    assert run(str(literal_sql(text, VARCHAR))) == (text,)
    if "\0" not in text:
        condition = to_sql((col(text) == text).expr)
        source = f"(SELECT {literal_sql(text, VARCHAR)} AS {quote_identifier(text)})"
        assert run(f"{condition} FROM {source}") == (True,)


@pytest.mark.parametrize(
    "name", ["read_csv", "getenv", "current_setting", "random", "repeat", "query", "lower(x) OR read_text", "nextval"]
)
def test_functions_that_are_not_listed_are_never_written(name: str) -> None:
    call = Function(name, (Column("s", VARCHAR),), VARCHAR)
    known = Comparison("=", Column("s", VARCHAR), lit("a"))
    assert to_sql(And((Comparison("=", call, lit("a")), known))) == to_sql(known)
    assert to_sql(Or((Comparison("=", call, lit("a")), known))) == "TRUE"
    assert to_sql(Not(Comparison("=", call, lit("a")))) == "TRUE"


@pytest.mark.parametrize(
    "expr",
    [
        Cast(Column("z", ZONED), SqlType("DATE")),
        Cast(Column("z", SqlType("TIMESTAMP")), ZONED),
        Function("date_trunc", (lit("day"), Column("z", ZONED)), ZONED),
        Function("/", (Column("i", INTEGER), Column("i", INTEGER)), SqlType("DOUBLE")),
        Cast(Column("f", SqlType("DOUBLE")), VARCHAR),
        Cast(Column("s", VARCHAR), INTEGER, try_cast=True),
        Cast(Column("j", SqlType("JSON")), INTEGER),
        Comparison("=", Column("i", INTEGER), Literal(1, SqlType("BIGINT"))),
        Comparison("= 1 OR TRUE OR 1 =", Column("i", INTEGER), Literal(1, INTEGER)),
        In(Column("i", INTEGER), ()),
        And(()),
        Unsupported("x"),
        Column("a\0b"),
    ],
)
def test_what_may_mean_something_else_to_the_sender_is_not_supported(expr: Expression) -> None:
    assert not is_supported(expr)


def test_every_kind_of_node_is_written_and_runs() -> None:
    i, s = Column("i", INTEGER), Column("s", VARCHAR)
    one, x = Literal(1, INTEGER), lit("x%")
    parts: list[Expression] = [
        Comparison("IS NOT DISTINCT FROM", i, one),
        Between(i, one, Literal(3, INTEGER), lower_inclusive=True, upper_inclusive=False),
        In(i, (one, Literal(None, INTEGER))),
        NotIn(i, (Literal(2, INTEGER),)),
        Like(s, x),
        Like(s, lit("xy!%"), lit("!")),
        ILike(s, lit("X%")),
        Not(IsNull(i)),
        Comparison("=", Function("-", (i,), INTEGER), Literal(-1, INTEGER)),
        Comparison("=", Function("coalesce", (i, one), INTEGER), one),
        Comparison("=", Function("left", (s, Literal(1, SqlType("BIGINT"))), VARCHAR), lit("x")),
        Comparison("=", Case(((Comparison(">", i, one), lit("big")),), lit("small"), VARCHAR), lit("small")),
        Comparison("=", Cast(i, VARCHAR), lit("1")),
        Comparison("=", Function("struct_extract", (Column("st", STRUCT), lit("a")), INTEGER), one),
        Comparison(">=", s, lit(b"xy")),
    ]
    source = "(SELECT 1 AS i, 'xy%' AS s, {'a': 1, 'odd \"name\"': 'v'} AS st)"
    for part in parts:
        assert to_sql(part) != "TRUE"
        assert run(f"{to_sql(part)} FROM {source}") == (True,), part
    assert run(f"{to_sql(And(tuple(parts)))} FROM {source}") == (True,)


def test_text_is_compared_with_bytes_as_it_is() -> None:
    text = Comparison("=", Column("s", VARCHAR), lit(b"\\x41"))
    assert run(f"{to_sql(text)} FROM (SELECT '\\x41' AS s)") == (True,)


def test_columns_can_be_spelled_by_the_caller() -> None:
    sql = to_sql((col("a") > 1).expr, column=lambda ref: f"t.{quote_identifier(ref.name.upper())}")
    assert sql == "(t.\"A\" > CAST('1' AS BIGINT))"
