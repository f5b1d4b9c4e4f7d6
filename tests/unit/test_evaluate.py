from __future__ import annotations

import datetime as dt
import math
import uuid
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from sparkport.filters.evaluate import RowFilter
from sparkport.filters.expressions import (
    And,
    Cast,
    Column,
    Comparison,
    Expression,
    Function,
    Literal,
    Not,
    Or,
    SqlType,
    Unsupported,
)
from sparkport.filters.predicates import Predicate, col, lit
from sparkport.filters.sandbox import SANDBOX
from sparkport.protocol.filters import dump_filters, parse_filters

pytestmark = pytest.mark.tier("fast")

VARCHAR, INTEGER = SqlType("VARCHAR"), SqlType("INTEGER")


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def kept(expr: Expression | Predicate, rows: pa.RecordBatch) -> list[int]:
    """The positions of the rows that are kept."""
    row_filter = RowFilter(expr.expr if isinstance(expr, Predicate) else expr, rows.schema)
    mask = row_filter.mask(rows)
    return [n for n in range(rows.num_rows) if mask is None or mask[n].as_py()]


def test_rows_are_filtered_and_all_columns_come_through_untouched() -> None:
    rows = batch(
        a=pa.array([1, 2, 3], pa.int16()),
        half=pa.array([1.0, 2.0, 3.0], pa.float16()),
        huge=pa.array([Decimal(1), Decimal(2), Decimal(3)], pa.decimal256(70, 0)),
        kind=pa.array(["x", "y", "x"]).dictionary_encode(),
    )
    found = RowFilter((col("a") >= 2).expr, rows.schema).apply(rows)
    assert found.equals(rows.slice(1))
    assert found.schema == rows.schema


def test_rows_for_which_the_filter_is_null_are_not_kept() -> None:
    assert kept(col("a") > 1, batch(a=[1, None, 2])) == [2]
    assert kept(~(col("a") > 1), batch(a=[1, None, 2])) == [0]


def test_a_filter_that_keeps_everything_returns_the_batch_itself() -> None:
    rows = batch(a=[1, 2])
    assert RowFilter((col("a") > 0).expr, rows.schema).apply(rows) is rows
    assert RowFilter(Unsupported("x"), rows.schema).apply(rows) is rows


def test_an_empty_batch_stays_empty() -> None:
    rows = batch(a=pa.array([], pa.int64()))
    assert RowFilter((col("a") > 0).expr, rows.schema).apply(rows).num_rows == 0


def test_names_are_matched_without_regard_to_case_and_only_if_there_is_one() -> None:
    assert kept(col("NAME") == "x", batch(Name=["x", "y"])) == [0]
    assert kept(col("a") == 1, batch(a=[1, 2], A=[2, 1])) == [0, 1]
    assert kept(col('we"ird; --') == 1, batch(**{'we"ird; --': [1, 2]})) == [0]


def test_a_missing_column_costs_only_its_own_conjunct() -> None:
    rows = batch(a=[1, 2])
    assert kept((col("gone") == 1) & (col("a") == 1), rows) == [0]
    assert kept((col("gone") == 1) | (col("a") == 1), rows) == [0, 1]
    assert kept(~((col("gone") == 1) & (col("a") == 1)), rows) == [0, 1]


def test_rowid_is_the_column_marked_as_such() -> None:
    schema = pa.schema([pa.field("_id", pa.int64(), metadata={"is_rowid": "1"}), pa.field("a", pa.int64())])
    rows = pa.RecordBatch.from_arrays([pa.array([7, 8]), pa.array([1, 2])], schema=schema)
    assert kept(col("rowid") == 8, rows) == [1]


def test_a_value_that_cannot_be_cast_costs_only_its_conjunct_and_only_in_its_batch() -> None:
    number = Comparison("=", Cast(Column("s", VARCHAR), INTEGER), Literal(1, INTEGER))
    expr = And((number, Comparison("<>", Column("s", VARCHAR), lit("2"))))
    bad, good = batch(s=["1", "2", "x"]), batch(s=["1", "2", "3"])
    row_filter = RowFilter(expr, bad.schema)
    assert row_filter.apply(bad).column("s").to_pylist() == ["1", "x"]
    assert row_filter.apply(good).column("s").to_pylist() == ["1"]
    assert kept(number, bad) == [0, 1, 2]


@pytest.mark.parametrize(
    ("array", "value", "positions"),
    [
        (pa.array([math.nan, math.inf, 1.0]), math.inf, [0]),
        (pa.array([math.nan, math.inf, 1.0]), 1.0, [0, 1]),
        (pa.array(["a", "B", "é"]), "a", [2]),
        (pa.array([b"\x00", b"\xff", b"\\xFF"]), b"\\", [1, 2]),
        (pa.array(["a", "b", "c"]).dictionary_encode(), "a", [1, 2]),
        (pa.array(["a", "b", "c"], pa.string_view()), "a", [1, 2]),
        (pa.array(["a", "b", "c"], pa.large_string()), "a", [1, 2]),
        (pa.array([Decimal("1.10"), Decimal("1.11"), None], pa.decimal128(5, 2)), Decimal("1.1"), [1]),
        (
            pa.array([0, 3_600_000_000, 1], pa.timestamp("us", "Asia/Tokyo")),
            dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
            [1, 2],
        ),
        (pa.array([0, 1, 2], pa.timestamp("s")), dt.datetime(1970, 1, 1), [1, 2]),
        (pa.array([0, 86_400_000, 0], pa.date64()), dt.date(1970, 1, 1), [1]),
        (pa.array([uuid.UUID(int=n).bytes for n in (1, 2, 2**127)], pa.uuid()), uuid.UUID(int=1), [1, 2]),
        (pa.array([dt.timedelta(days=n) for n in (29, 30, 31)]), dt.timedelta(days=30), [2]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]), "a", [2]),
    ],
)
def test_each_arrow_type_is_compared_as_duckdb_does(array: Any, value: Any, positions: list[int]) -> None:
    assert kept(col("c") > value, batch(c=array)) == positions


def test_extension_types_are_compared_as_what_they_mean() -> None:
    json_column = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', "2"]))
    as_json = Comparison("=", Column("j", SqlType("JSON")), Literal("2", SqlType("JSON")))
    assert kept(as_json, batch(j=json_column)) == [1]
    opaque = pa.opaque(pa.binary(16), "hugeint", "DuckDB")
    storage = pa.array([n.to_bytes(16, "little") for n in (5, 2**100)], pa.binary(16))
    big = Comparison(">", Column("h", SqlType("HUGEINT")), Literal(2**99, SqlType("HUGEINT")))
    assert kept(big, batch(h=pa.ExtensionArray.from_storage(opaque, storage))) == [1]


@pytest.mark.parametrize(
    ("array", "literal", "positions"),
    [
        (pa.array([str(uuid.UUID(int=n)).upper() for n in (10, 11)]), Literal(uuid.UUID(int=10), SqlType("UUID")), [0]),
        (pa.array(["b", "a"]), Literal("a", SqlType("ENUM", values=("a", "b"))), [1]),
        (pa.array([1, 2], pa.int16()), Literal(2, INTEGER), [1]),
        (pa.array([255, 2], pa.uint8()), Literal(255, INTEGER), [0]),
        (pa.array([1, 2], pa.timestamp("s")), Literal(2_000_000, SqlType("TIMESTAMP")), [1]),
        (
            pa.array([Decimal("1.5"), Decimal("2.5")], pa.decimal128(3, 1)),
            Literal(Decimal("2.5"), SqlType("DECIMAL", 10, 2)),
            [1],
        ),
        # Not exact, or not possible: nothing is filtered.
        (pa.array(["b", "not one of them"]), Literal("a", SqlType("ENUM", values=("a", "b"))), [0, 1]),
        (pa.array([1, 2], pa.int64()), Literal(2, INTEGER), [0, 1]),
        (pa.array([2**40, 1], pa.uint64()), Literal(2, SqlType("BIGINT")), [0, 1]),
        (pa.array(["1", "2"]), Literal(2, INTEGER), [0, 1]),
        (pa.array([1.5, 2.5]), Literal(2, INTEGER), [0, 1]),
        (pa.array([1, 2], pa.timestamp("ns", "UTC")), Literal(0, SqlType("TIMESTAMP WITH TIME ZONE")), [0, 1]),
        (pa.array([1.0, 2.0], pa.float16()), Literal(1.0, SqlType("FLOAT")), [0, 1]),
    ],
)
def test_a_column_is_compared_in_the_senders_type_or_not_at_all(
    array: Any, literal: Literal, positions: list[int]
) -> None:
    assert kept(Comparison("=", Column("c", literal.type), literal), batch(c=array)) == positions


def test_struct_fields_are_found_without_regard_to_case() -> None:
    rows = batch(st=[{"Abc": 1}, {"Abc": 2}])
    struct = SqlType("STRUCT", fields=(("Abc", SqlType("BIGINT")),))
    field = Function("struct_extract", (Column("st", struct), lit("aBC")), SqlType("BIGINT"))
    assert kept(Comparison("=", field, lit(2)), rows) == [1]


def test_a_function_that_gives_another_type_here_is_not_used() -> None:
    call = Function("length", (Column("s", VARCHAR),), INTEGER)
    assert kept(Comparison("=", call, Literal(1, INTEGER)), batch(s=["a", "bb"])) == [0, 1]


def test_a_constant_filter_needs_no_column() -> None:
    rows = batch(a=[1, 2])
    assert kept(Literal(False, SqlType("BOOLEAN")), rows) == []
    assert kept(Literal(None, SqlType("BOOLEAN")), rows) == []
    assert kept(Literal(True, SqlType("BOOLEAN")), rows) == [0, 1]


def test_a_batch_of_another_schema_is_filtered_by_its_own() -> None:
    row_filter = RowFilter((col("a") == 2).expr, pa.schema([("a", pa.int64())]))
    assert row_filter.apply(batch(b=["x", "y"], a=pa.array([1, 2], pa.int8()))).column("b").to_pylist() == ["y"]


def test_a_filter_nested_without_end_is_not_applied() -> None:
    expr: Expression = Comparison("=", Column("a"), lit(1))
    for _ in range(5_000):
        expr = Or((And((expr,)),))
    assert kept(expr, batch(a=[1, 2])) == [0, 1]
    for _ in range(5_000):
        expr = Not(expr)
    assert kept(expr, batch(a=[1, 2])) == [0, 1]


def test_many_threads_can_share_one_filter() -> None:
    row_filter = RowFilter((col("a") < 500).expr, pa.schema([("a", pa.int64())]))
    batches = [batch(a=list(range(start, start + 1000))) for start in range(0, 800, 50)]
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda rows: row_filter.apply(rows).num_rows, batches))
    assert counts == [max(0, 500 - start) for start in range(0, 800, 50)]


def test_an_internal_error_of_duckdb_costs_one_batch_and_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = batch(a=["one", "two"])
    row_filter = RowFilter(col("a").like("o%").expr, rows.schema)
    assert row_filter.apply(rows).num_rows == 1
    SANDBOX.run(lambda db: db.execute("CREATE TABLE ruined (a INTEGER)"))
    run = SANDBOX.run

    def fail(db: duckdb.DuckDBPyConnection) -> None:
        raise duckdb.InternalException("INTERNAL Error: made up")

    with monkeypatch.context() as patched:
        patched.setattr(SANDBOX, "run", lambda work: run(fail))
        assert row_filter.apply(rows).num_rows == 2
    assert row_filter.apply(rows).num_rows == 1
    with pytest.raises(duckdb.CatalogException):
        SANDBOX.run(lambda db: db.execute("FROM ruined"))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('/etc/hostname')",
        "SELECT * FROM read_text('/etc/hostname')",
        "COPY (SELECT 1) TO 'made-by-a-filter.csv'",
        "ATTACH 'made-by-a-filter.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET TimeZone = 'Asia/Tokyo'",
        "SELECT * FROM rows_of_python",
    ],
)
def test_the_sandbox_reaches_nothing_outside(query: str) -> None:
    rows_of_python = pa.table({"a": [1]})
    assert rows_of_python.num_rows == 1
    with pytest.raises(duckdb.Error):
        SANDBOX.run(lambda db: db.execute(query).fetchall())


def test_the_sandbox_computes_in_utc() -> None:
    assert SANDBOX.run(lambda db: db.execute("SELECT current_setting('TimeZone')").fetchall()) == [("UTC",)]


@pytest.mark.parametrize(
    "predicate",
    [
        col("i") == 2,
        col("i") > 1.5,
        col("i").isin([1, 3]),
        col("p") >= Decimal("1.5"),
        col("p") < 1.5,
        col("s").like("a%"),
        ~col("s").ilike("A_"),
        col("s").between("ab", "b"),
        (col("i") == 1) | col("s").is_null(),
        col("d") > dt.date(2020, 1, 1),
        col("t") <= dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        col("i") == col("j"),
    ],
)
def test_a_filter_means_the_same_after_the_way_over_the_wire(predicate: Predicate) -> None:
    instants = [dt.datetime(2020, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]
    rows = batch(
        i=pa.array([1, 2, None], pa.int32()),
        j=pa.array([1, 3, None], pa.int32()),
        p=pa.array([Decimal("1.50"), Decimal("1.49"), None], pa.decimal128(10, 2)),
        s=["ab", "b", None],
        d=[dt.date(2020, 1, 1), dt.date(2020, 1, 2), None],
        t=pa.array(instants, pa.timestamp("us", "UTC")),
    )
    sent = parse_filters(dump_filters(predicate.expr, rows.schema))
    assert sent is not None
    assert kept(sent, rows) == kept(predicate, rows)
    assert 0 < len(kept(sent, rows)) < 3
