"""Expressions that strangers wrote: what is taken, what is refused, and that nothing they do outlasts them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from sparkport.auth.identity import Identity
from sparkport.catalog import isolated
from sparkport.catalog.constraints import check_rows, require_checks
from sparkport.catalog.context import CallContext, entered
from sparkport.catalog.isolated import ExpressionRefused, Processes, failing_conditions, stabilities, values_of
from sparkport.errors import Cancelled, ConstraintViolation, DeadlineExceeded, InvalidArgument, ResourceExhausted
from sparkport.filters.isolated_worker import Evaluator, open_instance, untouchable

pytestmark = pytest.mark.tier("fast")

ROWS = pa.RecordBatch.from_pydict(
    {"a": pa.array([1, 2], pa.int64()), "s": ["x", "y"], "l": [[1], [2, 3]], "p": [{"q": 1}, {"q": 2}]}
)
ENDLESS = (
    "list_sum(list_transform(range(1000), lambda a1: list_sum(list_transform(range(1000), lambda b1: "
    "list_sum(list_transform(range(1000), lambda c1: list_sum(list_transform(range(1000), lambda d1: a1 * b1 + c1))"
    "))))))"
)

TAKEN = [
    *("5", "-5 + 2 * 3", "'now()'", "NULL", "true", "1e10", "X'aa'", "$$ab'c$$", "E'\\n'", "(((1)))", "1 -- one"),
    *("DATE '2020-01-01' + INTERVAL 1 DAY", "INTERVAL '1' DAY", "to_days(3)", "make_date(2020, 1, 1)"),
    *(
        "[1, 2]",
        "{'a': 1}",
        "MAP {'a': 1}",
        "(1, 2)",
        "row(1, 2)",
        "list_value(1)",
        "'{}'::JSON",
        "CAST('7' AS INTEGER)",
    ),
    *("now()", "NOW()", "current_timestamp", "CURRENT_DATE + 1", "localtimestamp", "get_current_timestamp()"),
    *("random()", "uuid()", "gen_random_uuid()::VARCHAR", "md5('x')", "main.abs(-1)", "system.main.abs(-1)"),
    *("list_transform([1], lambda x: x + 1)", "[x + 1 for x in [1, 2] if x > 1]", "list_sum([1, 2])", "[1, 2][1]"),
    *("CASE WHEN true THEN 1 ELSE 2 END", "coalesce(NULL, 1)", "try(1 / 0)", "nullif(1, 1)", "if(true, 1, 2)"),
    *("'some' || 'body'", "'{\"a\": 1}'::JSON ->> 'a'", "split_part('a-b', '-', 1)", "1::DECIMAL(10, 2)"),
]
CONDITIONS = [
    *("a > 0", "(a > 0)", "((a > 0) AND (length(s) < 10))", "a BETWEEN 0 AND 10", "a IN (1, 2)", "NOT (a = 5)"),
    *("s LIKE 'x%' OR s ILIKE 'Y'", "regexp_matches(s, '^[a-z]$')", "s SIMILAR TO '[xy]'", "s COLLATE NOCASE = s"),
    *(
        "len(l) < 3",
        "list_contains(l, 1) OR l[1] = 2",
        "p.q > 0",
        "p['q'] > 0",
        "a IS NOT NULL",
        "a IS DISTINCT FROM 7",
    ),
    *("a::VARCHAR <> ''", "CAST(a AS DOUBLE) < 1e9", "list_bool_and(list_transform(l, lambda e: e > 0))", "true"),
]
REFUSED = {
    "statements": "'a') AS value; CREATE TABLE left_behind (i INTEGER); SELECT ('b'",
    "a macro": "'a') AS value; CREATE MACRO length(x) AS 0; SELECT ('b'",
    "another statement": "1; SELECT 2",
    "an end": "1;",
    "closed parentheses": "true)::BOOLEAN), true), coalesce(bool_and((true",
    "opened and closed": "1) + (2",
    "a window clause": "1) WINDOW w AS (",
    "FROM in parentheses": "1) FROM (SELECT 1",
    "FROM": "1 FROM range(3)",
    "a set operation": "1) UNION ALL SELECT (2",
    "the rest commented out": "1) --",
    "the rest in a comment": "1 /*",
    "a line's end": "1\n)\n--",
    "a subquery": "(SELECT 1)",
    "a subquery in a lambda": "list_transform([1], lambda x: (SELECT x))",
    "a subquery in a list": "[x for x in (SELECT [1])]",
    "EXISTS": "EXISTS (SELECT 1)",
    "IN a query": "1 IN (SELECT 1)",
    "ANY": "1 = ANY (SELECT 1)",
    "a table": "FROM duckdb_settings()",
    "values": "VALUES (1)",
    "WITH": "(WITH q AS (SELECT 1) SELECT * FROM q)",
    "a window": "row_number() OVER ()",
    "an aggregate": "sum(1)",
    "an aggregate with a filter": "list_sum([1]) FILTER (WHERE true)",
    "a star": "*",
    "COLUMNS": "COLUMNS('.*')",
    "unpacked columns": "coalesce(*COLUMNS(*))",
    "a parameter": "$1",
    "a named parameter": "$name",
    "a question mark": "?",
    "a position": "#1",
    "several": "1, 2",
    "an alias": "1 AS b",
    "DISTINCT": "DISTINCT 1",
    "DEFAULT": "DEFAULT",
    "nothing": "",
    "blanks": " \n ",
    "a comment": "-- 1",
    "half a text": "'",
    "half a name": '"',
    "half a dollar quote": "$x$ 1",
    "a variable": "getvariable('x')",
    "a setting": "current_setting('threads')",
    "the environment": "getenv('HOME')",
    "a file": "read_text('/etc/passwd')",
    "a query in text": "query('SELECT 1')",
    "a sequence": "nextval('s')",
    "sleep": "sleep_ms(100000)",
    "another sleep": "pg_sleep(1)",
    "the log": "write_log('x')",
    "a seed": "setseed(0.5)",
    "a parser": "json_serialize_sql('SELECT 1')",
    "unnest": "unnest([1])",
    "a type of nobody": "1::nobodys",
    "a type of a schema": "1::foo.bar",
    "a function of a schema": "foo.abs(1)",
    "a function of nobody": "nobodys(1)",
    "NUL": "1 \0 2",
    "another script's quotes": "\u2019x\u2019",
    "too long": "1" + " " * 20_000 + "+ 1",
    "a megabyte": "'" + "x" * 1_000_000 + "'",
    "deep": "(" * 10_000 + "1" + ")" * 10_000,
    "deep calls": "abs(" * 2_000 + "1" + ")" * 2_000,
    "a long chain": "1" + "+1" * 9_000,
}
GREEDY = {
    "text": "length(repeat('x', 1000000000))",
    "text that grows": "length(replace(replace(repeat('a', 10000), 'a', repeat('b', 1000)), 'b', repeat('c', 1000)))",
    "padding": "length(lpad('x', 2000000000, 'x'))",
    "format": "length(printf('%2000000000d', 1))",
    "a list": "len(range(1000000000))",
    "a longer list": "len(range(1000000000000))",
}


@pytest.fixture
def two_seconds() -> Iterator[None]:
    isolated.limit_seconds(2)
    yield
    isolated.limit_seconds(isolated.DEFAULT_SECONDS)


@pytest.mark.parametrize("expression", TAKEN)
def test_an_expression_that_only_computes_is_taken(expression: str) -> None:
    assert len(values_of(expression, 2)) == 2
    stabilities(expression)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_on_columns_is_taken(condition: str) -> None:
    assert failing_conditions([condition], ROWS) == [False]


@pytest.mark.parametrize("expression", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_more_than_an_expression_is_refused(expression: str) -> None:
    with pytest.raises(ExpressionRefused):
        values_of(expression, 1)
    with pytest.raises(ExpressionRefused):
        failing_conditions(["true", expression], ROWS)


@pytest.mark.parametrize("expression", ["a", "current_user", "range", '"no column"', "lambda_parameter"])
def test_a_default_has_no_columns(expression: str) -> None:
    with pytest.raises(ExpressionRefused, match="there is no column"):
        values_of(expression, 1)


def test_a_broken_condition_says_why() -> None:
    with pytest.raises(InvalidArgument, match=r"CHECK \(SELECT true\) cannot be evaluated: subquery is not allowed"):
        require_checks(["(SELECT true)"], ROWS.schema)
    with pytest.raises(ConstraintViolation, match=r"table t cannot be evaluated: the function nextval"):
        check_rows("t", ["nextval('s') > 0"], ROWS)


@pytest.mark.parametrize("expression", GREEDY.values(), ids=GREEDY.keys())
def test_what_needs_too_much_memory_fails_alone(two_seconds: None, expression: str) -> None:
    with pytest.raises((ExpressionRefused, ResourceExhausted)):
        values_of(expression, 1)
    assert values_of("1", 1).to_pylist() == [1]


def test_what_never_ends_is_ended(two_seconds: None) -> None:
    with pytest.raises(ResourceExhausted, match="computed for 2 seconds without an end"):
        values_of(ENDLESS, 1)
    with pytest.raises(ResourceExhausted, match="without an end"):
        check_rows("t", [f"{ENDLESS} > a"], ROWS)
    assert values_of("1", 1).to_pylist() == [1]


def test_what_never_ends_ends_when_its_caller_goes() -> None:
    processes, call = Processes(), CallContext()
    processes.seconds = 600
    timer = threading.Timer(0.5, call.cancellation.set)
    timer.start()
    with entered(call), pytest.raises(Cancelled):
        processes.run("values", [ENDLESS], rows=1)
    assert not processes.running
    processes.close()


def test_the_deadline_of_a_call_holds_for_its_expressions() -> None:
    processes = Processes()
    processes.seconds = 600
    with entered(CallContext(deadline=time.monotonic() + 1)), pytest.raises(DeadlineExceeded):
        processes.run("values", [ENDLESS], rows=1)
    assert not processes.running
    processes.close()


def test_one_caller_leaves_processes_to_others() -> None:
    processes = Processes(most=3, most_of_one=2)
    processes.seconds = 600
    calls = [CallContext(identity=Identity("greedy")) for _ in range(4)]

    def compute(call: CallContext) -> None:
        with entered(call), pytest.raises(Cancelled):
            processes.run("values", [ENDLESS], rows=1)

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(compute, call) for call in calls]
        while processes.running < 2:
            threading.Event().wait(0.01)
        with entered(CallContext(identity=Identity("modest"))):
            _, values = processes.run("values", ["40 + 2"], rows=1)
        assert values == pa.table({"value": pa.array([42], pa.int32())})
        assert processes.running == 2
        for call in calls:
            call.cancellation.set()
        for future in running:
            future.result(isolated.DEFAULT_SECONDS * 6)
    processes.close()


def children() -> set[str]:
    """The processes that this thread has started."""
    return set(Path("/proc/thread-self/children").read_text().split())


def test_a_process_knows_nothing_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKPORT_TOKENS", "alice=secret")
    processes, before = Processes(), children()
    processes.run("values", ["1"], rows=1)
    (process,) = children() - before
    folder = Path("/proc") / process
    assert b"secret" not in (folder / "environ").read_bytes()
    opened = {os.readlink(entry) for entry in (folder / "fd").iterdir()}
    assert all(name.startswith("pipe:") or name == "/dev/null" for name in opened), opened
    processes.close()
    assert not folder.exists()


def test_a_process_that_somebody_has_ended_is_replaced() -> None:
    processes, before = Processes(), children()
    processes.run("values", ["1"], rows=1)
    (process,) = children() - before
    os.kill(int(process), signal.SIGKILL)
    os.waitid(os.P_PID, int(process), os.WEXITED | os.WNOWAIT)
    answer, values = processes.run("values", ["2"], rows=1)
    assert (answer, values) == ({}, pa.table({"value": pa.array([2], pa.int32())}))
    processes.close()


def test_nothing_outlasts_an_expression() -> None:
    instance = open_instance()
    evaluator = Evaluator(instance)
    for statement in (
        "CREATE MACRO length(x) AS 0",
        "CREATE TABLE t (i INTEGER)",
        "CREATE TEMP MACRO bool_and(x) AS 1",
    ):
        with suppress(duckdb.Error), untouchable(instance) as db:
            db.execute(statement)
    answer, _ = evaluator.answer({"what": "failing", "expressions": ["length(s) = 0"]}, pa.Table.from_batches([ROWS]))
    assert answer == {"failing": [True]}
