"""What may be said in a query that Spark runs: one query, and nothing that reads or runs anything but tables."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from decimal import Decimal

import pyarrow as pa
import pytest

from sparkport.errors import InvalidArgument
from sparkport.lakehouse.query.arguments import arguments_of
from sparkport.lakehouse.query.text import as_query, names_in

pytestmark = pytest.mark.tier("fast")

QUERIES = [
    "SELECT 1",
    "  select * from public.orders;",
    "FROM public.orders SELECT id",
    "TABLE public.orders",
    "VALUES (1, 'a'), (2, 'b')",
    "(SELECT 1) UNION ALL (SELECT 2)",
    "WITH t AS (SELECT id FROM orders), u AS (SELECT 1) SELECT * FROM t JOIN u USING (id)",
    "WITH t(a, b) AS (SELECT 1, 2) SELECT a FROM t",
    "SELECT * FROM (SELECT 1) t(a)",
    "SELECT * FROM range(3) AS t(a)",
    "SELECT /*+ BROADCAST(o), REPARTITION(3) */ * FROM orders o",
    "SELECT count(*) FILTER (WHERE a > 1) OVER (PARTITION BY b ORDER BY c) FROM t",
    "SELECT transform(array(1, 2), x -> x + 1), CAST(a AS DECIMAL(10, 2)), a::int, m:path FROM t",
    "SELECT * FROM t PIVOT (sum(a) FOR b IN (1, 2))",
    "SELECT a FROM t LATERAL VIEW explode(b) u AS c",
    "SELECT a FROM t GROUP BY GROUPING SETS ((a), ())",
    "SELECT * FROM orders VERSION AS OF 3",
    "SELECT `insert`, `delete` FROM t",
    "SELECT 'reflect(1); DROP TABLE x', \"it's\", r'\\', 'a\\'b', 'c''d', X'00' FROM t",
    "SELECT 1e5, 1.5e-3D, .5, 10L, 1.5BD",
    "FROM t |> WHERE a > 1 |> SELECT a",
]

REFUSED = {
    "": "is empty",
    "-- nothing": "is empty",
    "DROP TABLE public.orders": "only queries",
    "CREATE TEMPORARY FUNCTION f AS 'a.B' USING JAR '/x.jar'": "only queries",
    "INSERT INTO t VALUES (1)": "only queries",
    "SET a = 1": "only queries",
    "CACHE TABLE t": "only queries",
    "CALL lake.system.rollback_to_snapshot('t', 1)": "only queries",
    "EXPLAIN SELECT 1": "only queries",
    "DESCRIBE t": "only queries",
    "SHOW TABLES": "only queries",
    "USE other": "only queries",
    "BEGIN SELECT 1; END": "only queries",
    "EXECUTE IMMEDIATE 'DROP TABLE t'": "only queries",
    "DECLARE x = 1": "only queries",
    "ADD JAR '/x.jar'": "only queries",
    "LIST FILES": "only queries",
    "MAP a USING 'cat' FROM t": "only queries",
    "WITH t AS (SELECT 1) INSERT INTO u SELECT 1": "INSERT",
    "WITH t AS (SELECT 1) DELETE FROM u": "DELETE",
    "WITH t AS (SELECT 1) UPDATE u SET a = 1": "UPDATE",
    "WITH t AS (SELECT 1) MERGE INTO u USING t ON true WHEN MATCHED THEN UPDATE SET *": "MERGE",
    "FROM t INSERT INTO u SELECT a INSERT INTO v SELECT b": "INSERT",
    "FROM t INSERT OVERWRITE DIRECTORY '/x' SELECT a": "INSERT",
    "SELECT 1; DROP TABLE t": "only one query",
    "SELECT 1) ; DROP TABLE t --": "closes a bracket",
    "SELECT 1) UNION SELECT * FROM (SELECT 2": "closes a bracket",
    "SELECT (1": "opens a bracket",
    "SELECT reflect('java.lang.System', 'exit', 1)": "function 'reflect'",
    "SELECT java_method('a', 'b')": "function 'java_method'",
    "SELECT try_reflect('a', 'b')": "function 'try_reflect'",
    "SELECT ReFlEcT /* */ ('a', 'b')": "function 'ReFlEcT'",
    "SELECT `reflect`('a', 'b')": "function 'reflect'",
    "SELECT system.builtin.reflect('a', 'b')": "with a schema",
    "SELECT /*+ BROADCAST(t) */ reflect('a', 'b')": "function 'reflect'",
    "SELECT 'a\\'' , reflect('b', 'c')": "function 'reflect'",
    "SELECT r'\\', reflect('b', 'c') -- '": "function 'reflect'",
    "SELECT '' -- ' \n , reflect('b', 'c')": "function 'reflect'",
    "SELECT 1e+5reflect('b')": "a number touches a word",
    "FROM VALUES (1) AS v(a) MAP 1e-5USING 'ls' AS (x)": "a number touches a word",
    "FROM VALUES (1) AS v(a) MAP 1.USING 'ls' AS (x)": "a number touches a word",
    "FROM VALUES (1) AS v(a) MAP 1.5USING 'ls' AS (x)": "a number touches a word",
    "FROM VALUES (1) AS v(a) MAP .5USING 'ls' AS (x)": "a number touches a word",
    "FROM VALUES (1) AS v(a) MAP 1BDUSING 'ls' AS (x)": "a number touches a word",
    "FROM VALUES (1) AS v(a) MAP 1LUSING 'ls' AS (x)": "a number touches a word",
    "SELECT * FROM 2020_sales": "a number touches a word",
    "SELECT _file FROM t": "_file",
    "SELECT t.`_FILE` FROM t": "_file",
    "SELECT 1\u00a0AS a": "cannot be read at",
    "SELECT re\u017fult FROM t": "cannot be read at",
    "SELECT IDENTIFIER('ref' || 'lect')('a', 'b')": "IDENTIFIER",
    "SELECT * FROM IDENTIFIER('public.' || 'hidden')": "IDENTIFIER",
    "SELECT ai_query('model', 'text')": "function 'ai_query'",
    "SELECT * FROM read_files('/etc')": "function 'read_files'",
    "SELECT from_protobuf(a, 'm', '/etc/passwd') FROM t": "function 'from_protobuf'",
    "SELECT input_file_name() FROM t": "function 'input_file_name'",
    "SELECT TRANSFORM(a) USING 'cat' FROM t": "programs are not run",
    "SELECT TRANSFORM(a) USING :program FROM t": "programs are not run",
    'FROM t MAP a USING "cat"': "programs are not run",
    "SELECT TRANSFORM(a) ROW FORMAT SERDE 'a.B' USING 'cat' FROM t": "SERDE",
    "SELECT * FROM t WITH ('path' = '/etc')": "options",
    "SELECT from_xml(a, 'b int', map('rowValidationXSDPath', 'http://x/')) FROM t": "function 'from_xml'",
    "SELECT schema_of_xml('<a/>', map('rowValidationXSDPath', '/etc/x'))": "function 'schema_of_xml'",
    "SELECT xpath('<!DOCTYPE a SYSTEM \"http://x/\"><a/>', 'a')": "function 'xpath'",
    "SELECT xpath_string(a, 'b') FROM t": "function 'xpath_string'",
    "SELECT * FROM parquet.`/etc/x`": "files cannot be read",
    "SELECT * FROM parquet.file:///etc/x": "files cannot be read",
    "SELECT * FROM s3://bucket/x": "files cannot be read",
    "SELECT * FROM `text` . `file:///etc/passwd`": "files cannot be read",
    "SELECT * FROM binaryFile.`/etc/passwd`": "files cannot be read",
    "SELECT * FROM iceberg.`/w/t`": "files cannot be read",
    "SELECT * FROM delta.`/w/t`": "files cannot be read",
    "SELECT * FROM global_temp.v": "other sessions",
    "SELECT * FROM `Global_Temp`.v": "other sessions",
    "SELECT $$a$$": "cannot be read at",
    "SELECT ${env:HOME}": "cannot be read at",
    "SELECT 'a": "cannot be read at",
    "SELECT `a": "cannot be read at",
    "SELECT {fn now()}": "cannot be read at",
    "SELECT 1 /* a": "a comment does not end",
    "SELECT 1 /* a /* b */ , reflect('x') */": "a comment does not end",
    "SELECT /*+ BROADCAST(t)": "a hint does not end",
    "SELECT 1 */": "has not begun",
    "SELECT 1 -- a \\\n , 2": "backslash",
    "SELECT \x00": "cannot be read at",
}


@pytest.mark.parametrize("text", QUERIES)
def test_queries_are_let_through(text: str) -> None:
    assert as_query(text).sql == text.strip().removesuffix(";")


@pytest.mark.parametrize(("text", "why"), REFUSED.items())
def test_what_is_no_query_or_could_do_more_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why.replace("(", r"\(").replace("$", r"\$")):
        as_query(text)


@pytest.mark.parametrize("piece", ["1", "1.", "1e1.", "1e", ".1", "r'a", "/*a*/", "?", "/", "`", "\\"])
def test_a_long_text_is_read_in_the_time_of_its_length(piece: str) -> None:
    began = time.monotonic()
    with contextlib.suppress(InvalidArgument):
        as_query("SELECT " + piece * 50_000)
    assert time.monotonic() - began < 5


def test_comments_do_not_reach_spark() -> None:
    assert as_query("SELECT 1 -- '\n, /* \" */ 2").sql == "SELECT 1 \n\n,   2"


def test_names_are_found_whatever_their_case_and_quotes() -> None:
    assert {"orders", "users", "odd `name`"} <= names_in("SELECT * FROM Public.ORDERS, users, `Odd ``Name```")


def test_order_is_kept_where_the_query_has_one() -> None:
    assert as_query("SELECT a FROM t ORDER BY a").is_ordered
    assert not as_query("SELECT row_number() OVER (ORDER BY a) FROM t").is_ordered


def test_arguments_become_literals_that_nothing_can_break_out_of() -> None:
    arguments = arguments_of(pa.scalar(["x' OR 1=1 --", None], pa.list_(pa.string())))
    text = as_query("SELECT ? , '?', ?", arguments)
    assert text.sql == f"SELECT CAST(X'{b'x'.hex()}27204f5220313d31202d2d' AS STRING) , '?', CAST(NULL AS STRING)"


def test_named_arguments_take_the_places_of_their_markers_alone() -> None:
    given = pa.scalar({"a": 1, "b": Decimal("1.50")}, pa.struct([("a", pa.int32()), ("b", pa.decimal128(5, 2))]))
    text = as_query("SELECT :A, ':a', m:a, :b FROM t", arguments_of(given))
    assert text.sql == "SELECT CAST('1' AS INT), ':a', m:a, CAST('1.50' AS DECIMAL(5, 2)) FROM t"


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        (
            pa.scalar([[1, 2]], pa.list_(pa.list_(pa.int8()))),
            "CAST(array(CAST('1' AS TINYINT), CAST('2' AS TINYINT)) AS ARRAY<TINYINT>)",
        ),
        (pa.scalar([True], pa.list_(pa.bool_())), "CAST(true AS BOOLEAN)"),
        (pa.scalar([float("inf")], pa.list_(pa.float64())), "CAST('Infinity' AS DOUBLE)"),
        (pa.scalar([dt.date(2026, 1, 2)], pa.list_(pa.date32())), "CAST('2026-01-02' AS DATE)"),
        (
            pa.scalar([dt.datetime(2026, 1, 2, 3)], pa.list_(pa.timestamp("us"))),
            "CAST('2026-01-02T03:00:00' AS TIMESTAMP_NTZ)",
        ),
        (pa.scalar([b"\x01"], pa.list_(pa.binary())), "CAST(X'01' AS BINARY)"),
    ],
)
def test_arguments_keep_their_types(value: pa.Scalar, literal: str) -> None:
    assert as_query("SELECT ?", arguments_of(value)).sql == f"SELECT {literal}"


def _list_of(text: bytes) -> pa.Scalar:
    """A list of one text, whatever its bytes are."""
    texts = pa.Array.from_buffers(pa.string(), 1, pa.array([text]).buffers())
    return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), texts)[0]


@pytest.mark.parametrize(
    ("text", "value", "why"),
    [
        ("SELECT ?", pa.scalar([1, 2]), "1 markers"),
        ("SELECT 1", pa.scalar([1]), "0 markers"),
        ("SELECT ?", None, "1 markers"),
        ("SELECT 1", pa.scalar(7), "must be a list"),
        ("SELECT ?", pa.scalar("[1]"), "without a name"),
        ("SELECT :a", pa.scalar([(1, 2)], pa.map_(pa.int32(), pa.int32())), "must be texts"),
        ("SELECT :a", pa.scalar([("a", 2), ("A", 3)], pa.map_(pa.string(), pa.int32())), "the same name"),
        ("SELECT ?", pa.scalar([dt.time(1)], pa.list_(pa.time64("us"))), "cannot be sent"),
        ("SELECT ?", pa.scalar([2**62], pa.list_(pa.timestamp("us"))), "out of range"),
        ("SELECT ?", pa.scalar([2**30], pa.list_(pa.int32())).cast(pa.list_(pa.date32())), "out of range"),
        ("SELECT ?", _list_of(b"\xff"), "a text that is none"),
        ("SELECT ?", pa.scalar(["a" * 8_000_000]), "characters with its arguments"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(text: str, value: pa.Scalar | None, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        as_query(text, arguments_of(value))
