from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparkport.errors import InvalidArgument
from sparkport.filters.expressions import (
    And,
    Between,
    Cast,
    Column,
    Comparison,
    Expression,
    Function,
    In,
    IsNotNull,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    SqlType,
    Unsupported,
    conjuncts,
    referenced_columns,
    simplify,
)
from sparkport.filters.predicates import Predicate, col, lit
from sparkport.protocol.filters import dump_filters, parse_filters

pytestmark = pytest.mark.tier("fast")

BIGINT, VARCHAR = SqlType("BIGINT"), SqlType("VARCHAR")
NOT_KNOWN: dict[str, Any] = {"expression_class": "BOUND_WINDOW", "type": "WINDOW_RANK"}


def sql_type(name: str, **info: Any) -> dict[str, Any]:
    return {"id": name, "type_info": {"alias": "", **info} if info else None}


def ref(index: int = 0, kind: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    binding = {"table_index": 0, "column_index": index}
    kind = kind or sql_type("BIGINT")
    # The alias is only what the query called it; the binding decides.
    return {"expression_class": "BOUND_COLUMN_REF", "alias": "zz", "return_type": kind, "binding": binding, **more}


def constant(value: Any, kind: dict[str, Any] | None = None) -> dict[str, Any]:
    held = {"type": kind or sql_type("BIGINT"), "is_null": value is None, "value": value}
    return {"expression_class": "BOUND_CONSTANT", "type": "VALUE_CONSTANT", "value": held}


def compare(left: dict[str, Any], right: dict[str, Any], kind: str = "COMPARE_EQUAL") -> dict[str, Any]:
    return {"expression_class": "BOUND_COMPARISON", "type": kind, "left": left, "right": right}


def both(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"expression_class": "BOUND_CONJUNCTION", "type": "CONJUNCTION_AND", "children": list(parts)}


def either(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"expression_class": "BOUND_CONJUNCTION", "type": "CONJUNCTION_OR", "children": list(parts)}


def operator(kind: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"expression_class": "BOUND_OPERATOR", "type": kind, "children": list(parts)}


def parse(*filters: Any, names: tuple[str, ...] = ("a", "b")) -> Expression | None:
    return parse_filters(json.dumps({"filters": list(filters), "column_binding_names_by_index": list(names)}))


A_IS_1 = compare(ref(0), constant(1))
B_IS_2 = compare(ref(1), constant(2))
EXPECTED_A = Comparison("=", Column("a", BIGINT), Literal(1, BIGINT))
EXPECTED_B = Comparison("=", Column("b", BIGINT), Literal(2, BIGINT))


def test_the_recorded_form_of_a_filter_is_read() -> None:
    # The shape of a call of the real client: DuckDB 1.5, WHERE name LIKE 'h%' OR name IN ('cup', 'map').
    text = (
        '{"filters":[{"expression_class":"BOUND_CONJUNCTION","type":"CONJUNCTION_OR","alias":"","query_location":96,'
        '"children":[{"expression_class":"BOUND_FUNCTION","type":"BOUND_FUNCTION","alias":"","query_location":'
        '18446744073709551615,"return_type":{"id":"BOOLEAN","type_info":null},"children":[{"expression_class":'
        '"BOUND_COLUMN_REF","type":"BOUND_COLUMN_REF","alias":"name","query_location":81,"return_type":{"id":"VARCHAR",'
        '"type_info":null},"binding":{"table_index":0,"column_index":2},"depth":0},{"expression_class":"BOUND_CONSTANT",'
        '"type":"VALUE_CONSTANT","alias":"","query_location":18446744073709551615,"value":{"type":{"id":"VARCHAR",'
        '"type_info":null},"is_null":false,"value":"h"}}],"name":"prefix","arguments":[{"id":"VARCHAR","type_info":null},'
        '{"id":"VARCHAR","type_info":null}],"original_arguments":[],"catalog_name":"","schema_name":"","has_serialize":'
        'false,"is_operator":false},{"expression_class":"BOUND_OPERATOR","type":"COMPARE_IN","alias":"","query_location":'
        '104,"return_type":{"id":"BOOLEAN","type_info":null},"children":[{"expression_class":"BOUND_COLUMN_REF","type":'
        '"BOUND_COLUMN_REF","alias":"name","query_location":99,"return_type":{"id":"VARCHAR","type_info":null},"binding":'
        '{"table_index":0,"column_index":2},"depth":0},{"expression_class":"BOUND_CONSTANT","type":"VALUE_CONSTANT",'
        '"alias":"","query_location":18446744073709551615,"value":{"type":{"id":"VARCHAR","type_info":null},"is_null":'
        'false,"value":"cup"}}]}]}],"column_binding_names_by_index":["id","price","name","added","rowid"]}'
    )
    name = Column("name", VARCHAR)
    prefix = Function("prefix", (name, Literal("h", VARCHAR)), SqlType("BOOLEAN"))
    assert parse_filters(text) == Or((prefix, In(name, (Literal("cup", VARCHAR),))))


def test_no_text_and_no_filters_mean_no_filter() -> None:
    assert parse_filters("") is None
    assert parse_filters(b"") is None
    assert parse_filters("{}") is None
    assert parse() is None


def test_several_filters_must_all_hold() -> None:
    assert parse(A_IS_1, B_IS_2) == And((EXPECTED_A, EXPECTED_B))


def test_the_binding_decides_the_column_and_not_the_alias() -> None:
    found = parse(B_IS_2)
    assert found is not None
    assert referenced_columns(found) == {"b"}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (NOT_KNOWN, None),
        (both(A_IS_1, NOT_KNOWN), EXPECTED_A),
        (either(A_IS_1, NOT_KNOWN), None),
        (either(A_IS_1, both(B_IS_2, NOT_KNOWN)), Or((EXPECTED_A, EXPECTED_B))),
        (both(A_IS_1, either(B_IS_2, NOT_KNOWN)), EXPECTED_A),
        (operator("OPERATOR_NOT", both(A_IS_1, NOT_KNOWN)), None),
        (operator("OPERATOR_NOT", either(A_IS_1, NOT_KNOWN)), None),
        (operator("OPERATOR_IS_NULL", both(A_IS_1, NOT_KNOWN)), None),
        (compare(both(A_IS_1, NOT_KNOWN), constant(True, sql_type("BOOLEAN"))), None),
        (operator("OPERATOR_TRY", A_IS_1), None),
        (ref(0, depth=1), None),
        (compare(ref(0), constant(1), "COMPARE_SOMEHOW"), None),
    ],
)
def test_what_is_not_understood_is_dropped_where_no_row_is_lost(sent: Any, kept: Expression | None) -> None:
    assert parse(sent) == kept


@pytest.mark.parametrize(
    ("kind", "sent", "value"),
    [
        (sql_type("HUGEINT"), {"upper": -1, "lower": 2**64 - 5}, -5),
        (sql_type("UHUGEINT"), {"upper": 2**64 - 1, "lower": 2**64 - 1}, 2**128 - 1),
        (sql_type("DECIMAL", width=10, scale=2), -150, Decimal("-1.50")),
        (sql_type("DECIMAL", width=30, scale=3), {"upper": -1, "lower": 2**64 - 1500}, Decimal("-1.500")),
        (sql_type("INTERVAL"), {"months": 1, "days": -2, "micros": 3}, (1, -2, 3)),
        (sql_type("UUID"), {"upper": -(2**63), "lower": 1}, uuid.UUID(int=1)),
        (sql_type("BLOB"), "\\xFF\\x00a", b"\xff\x00a"),
        (sql_type("BLOB"), {"base64": "/wA="}, b"\xff\x00"),
        (sql_type("ENUM", values=["x", "y"]), 1, "y"),
        (sql_type("LIST", child_type=sql_type("BIGINT")), {"children": [{"value": 1}, {"is_null": True}]}, (1, None)),
        (sql_type("VARCHAR"), "\0é", "\0é"),
        (sql_type("BIGINT"), None, None),
    ],
)
def test_constants_are_read_exactly(kind: dict[str, Any], sent: Any, value: Any) -> None:
    found = parse(compare(ref(0, kind), constant(sent, kind)))
    assert isinstance(found, Comparison)
    assert isinstance(found.right, Literal)
    assert found.right.value == value
    assert type(found.right.value) is type(value)


@pytest.mark.parametrize("sent", [True, "five", {"upper": 1}, {"upper": 2**63, "lower": 0}, [1], 1.5])
def test_a_constant_in_a_form_of_its_own_is_dropped(sent: Any) -> None:
    kind = sql_type("HUGEINT")
    assert parse(compare(ref(0, kind), constant(sent, kind))) is None


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ("NaN", math.nan),
        ("NAN", math.nan),
        ("nan", math.nan),
        ("-inf", -math.inf),
    ],
)
def test_bare_infinity_and_nan_are_read_but_text_is_left_alone(word: str, value: float) -> None:
    kind = sql_type("DOUBLE")
    named = json.dumps(
        {"filters": [compare(ref(0, kind), constant(7.5, kind))], "column_binding_names_by_index": ["x"]}
    )
    found = parse_filters(named.replace("7.5", word).replace('"x"', '"a, nan \\" inf"'))
    assert isinstance(found, Comparison)
    assert isinstance(found.right, Literal)
    assert repr(found.right.value) == repr(value)
    assert referenced_columns(found) == {'a, nan " inf'}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "5",
        b"\xff\xfe",
        '{"filters": 5}',
        '{"filters": [5]}',
        '{"filters": [{}]}',
        '{"filters": [], "column_binding_names_by_index": [1]}',
        '{"filters": [], "column_binding_names_by_index": "a"}',
        '{"filters": [{"expression_class": "BOUND_CONJUNCTION", "type": "CONJUNCTION_AND"}]}',
        json.dumps({"filters": [ref(2)], "column_binding_names_by_index": ["a", "b"]}),
        json.dumps({"filters": [ref(-1)], "column_binding_names_by_index": ["a"]}),
        json.dumps({"filters": [compare(ref(0), {})], "column_binding_names_by_index": ["a"]}),
        json.dumps({"filters": [ref(0, {"id": 5})], "column_binding_names_by_index": ["a"]}),
        '{"filters": [' + "9" * 5000 + "]}",
    ],
)
def test_what_has_not_the_right_shape_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidArgument, match="json_filters"):
        parse_filters(text)


def test_depth_and_size_are_bounded_and_cost_only_the_filter() -> None:
    nested = A_IS_1
    for _ in range(150):
        nested = operator("OPERATOR_NOT", nested)
    assert parse(nested, B_IS_2) == EXPECTED_B
    assert parse_filters('{"filters": ' + "[" * 100_000 + "]" * 100_000 + "}") is None
    assert parse_filters(json.dumps({"filters": [A_IS_1]}), max_bytes=50) is None


def test_a_function_of_a_user_is_not_taken_for_duckdbs() -> None:
    call: dict[str, Any] = {"expression_class": "BOUND_FUNCTION", "type": "BOUND_FUNCTION", "children": [ref(0)]}
    call |= {"return_type": sql_type("BOOLEAN")}
    assert parse({**call, "name": "lower", "catalog_name": "", "schema_name": "mine"}) is None
    assert parse({**call, "qname": {"path": ["mine", "public", "lower"]}}) is None
    assert parse({**call, "qname": {"path": ["system", "main", "lower"]}}) is not None


def test_simplify_keeps_nothing_of_an_empty_or() -> None:
    assert simplify(Or(()), lambda _: True) is None
    assert simplify(And((Unsupported("x"),)), lambda node: not isinstance(node, Unsupported)) is None


def test_the_builder_makes_hashable_trees() -> None:
    built = ((col("a") == 1) & col("b").is_null()) | ~(col("s").like("x%"))
    expected = Or(
        (
            And((Comparison("=", Column("a"), lit(1)), IsNull(Column("b")))),
            Not(Like(Column("s"), lit("x%"))),
        )
    )
    assert built == Predicate(expected)
    assert len({built.expr, expected}) == 1
    assert str(built.expr) == '((("a" = BIGINT 1) AND ("b" IS NULL)) OR (NOT ("s" LIKE VARCHAR \'x%\')))'
    assert conjuncts(((col("a") > 1) & (col("b") < 2) & col("c").is_not_null()).expr)[2] == IsNotNull(Column("c"))
    with pytest.raises(TypeError, match="parentheses"):
        bool(col("a") == 1)
    with pytest.raises(TypeError, match="no SQL literal"):
        col("a").isin([object()])


SCHEMA = pa.schema(
    [
        ("Id", pa.int32()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(30, 3)),
        ("at", pa.timestamp("us", "UTC")),
        ("ms", pa.timestamp("ms")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("key", pa.uuid()),
        ("ratio", pa.float32()),
        ("nested", pa.list_(pa.int32())),
    ]
)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (col("id") == 5, Comparison("=", Column("Id", SqlType("INTEGER")), Literal(5, SqlType("INTEGER")))),
        (col("id") > 2.5, Comparison(">", Cast(Column("Id", SqlType("INTEGER")), SqlType("DOUBLE")), lit(2.5))),
        (
            col("price").between(1, Decimal("2.5")),
            Between(
                Column("price", SqlType("DECIMAL", 10, 2)),
                Literal(Decimal("1.00"), SqlType("DECIMAL", 10, 2)),
                Literal(Decimal("2.50"), SqlType("DECIMAL", 10, 2)),
            ),
        ),
        (
            col("wide") < Decimal("-12345678901234567890.125"),
            Comparison(
                "<",
                Column("wide", SqlType("DECIMAL", 30, 3)),
                Literal(Decimal("-12345678901234567890.125"), SqlType("DECIMAL", 30, 3)),
            ),
        ),
        (col("name").like("a%"), Like(Column("name", VARCHAR), lit("a%"))),
        (~(col("name").isin(["x", "y"])), Not(In(Column("name", VARCHAR), (lit("x"), lit("y"))))),
        (
            col("at") >= dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
            Comparison(
                ">=", Column("at", SqlType("TIMESTAMP WITH TIME ZONE")), lit(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
            ),
        ),
        (
            col("ms") < dt.date(2020, 1, 1),
            Comparison("<", Column("ms", SqlType("TIMESTAMP_MS")), Literal(1577836800000, SqlType("TIMESTAMP_MS"))),
        ),
        (col("day") == dt.date(2020, 1, 1), Comparison("=", Column("day", SqlType("DATE")), lit(dt.date(2020, 1, 1)))),
        (col("raw") == b"a\\\x00\xff'", Comparison("=", Column("raw", SqlType("BLOB")), lit(b"a\\\x00\xff'"))),
        (col("key") == uuid.UUID(int=7), Comparison("=", Column("key", SqlType("UUID")), lit(uuid.UUID(int=7)))),
        (
            col("ratio") > 0.5,
            Comparison(">", Column("ratio", SqlType("FLOAT")), Literal(0.5, SqlType("FLOAT"))),
        ),
        (col("nested").is_null(), None),
        (col("id") == "text", None),
        ((col("id") == "text") & col("name").is_not_null(), IsNotNull(Column("name", VARCHAR))),
        ((col("id") == "text") | col("name").is_not_null(), None),
    ],
)
def test_filters_of_the_python_client_are_read_back_the_same(predicate: Predicate, expected: Expression | None) -> None:
    assert parse_filters(dump_filters(predicate.expr, SCHEMA)) == expected


def test_the_python_client_refuses_a_column_that_is_not_there() -> None:
    with pytest.raises(InvalidArgument, match="column 'nope' not found"):
        dump_filters((col("nope") == 1).expr, SCHEMA)
    twice = pa.schema([("a", pa.int32()), ("A", pa.int32())])
    with pytest.raises(InvalidArgument, match="column 'a' is ambiguous"):
        dump_filters((col("a") == 1).expr, twice)
    assert json.loads(dump_filters(None, SCHEMA)) == {"filters": [], "column_binding_names_by_index": []}
