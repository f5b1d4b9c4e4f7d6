"""What Spark's own side refuses in a query whose text was let through: shown with a lexer that lets all through."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from tests.support.lakehouse import lakehouse

from sparkport.catalog.context import CallContext
from sparkport.client import Client, connect
from sparkport.errors import FailedPrecondition, InvalidArgument, NotFound
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.query import queries, views
from sparkport.lakehouse.query.places import Place
from sparkport.lakehouse.query.private_catalog import PrivateCatalog
from sparkport.lakehouse.query.text import QueryText
from sparkport.lakehouse.query.words import FUNCTIONS
from sparkport.lakehouse.spark.sessions import Work
from sparkport.testing import serving

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    with lakehouse(tmp_path_factory.mktemp("warehouse")) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(lake: Lakehouse) -> Iterator[Client]:
    with serving(lake.catalog) as server, connect(server.location) as opened:
        orders = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})
        opened.create_table("public.orders", orders.schema)
        opened.insert("public.orders", orders)
        yield opened


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lexer that sees nothing wrong in any text."""
    monkeypatch.setattr(queries, "as_query", lambda text, arguments=None: QueryText(text, is_ordered=False))
    words = lambda text: frozenset(re.findall(r"\w+", text.casefold()))  # noqa: E731
    monkeypatch.setattr(queries, "names_in", words)
    monkeypatch.setattr(views, "names_in", words)


PROGRAMS = {
    "glued": "FROM VALUES (1) AS v(a) MAP 1e-5USING 'touch {mark}; echo 1' AS (x)",
    "plain": "SELECT TRANSFORM(id) USING 'touch {mark}; cat' AS (x) FROM public.orders",
    "reduce": "FROM public.orders REDUCE id USING 'touch {mark}' AS (x)",
    "in a subquery": "SELECT (SELECT max(x) FROM (SELECT TRANSFORM(1) USING 'touch {mark}; cat' AS (x)))",
    "in a table expression": "WITH t AS (SELECT TRANSFORM(1) USING 'touch {mark}; cat' AS (x)) SELECT * FROM t",
    "in a time": "SELECT * FROM public.orders TIMESTAMP AS OF (SELECT TRANSFORM(1) USING 'touch {mark}; date' AS (x))",
    "in a condition": "SELECT 1 a WHERE EXISTS (SELECT TRANSFORM(1) USING 'touch {mark}; cat' AS (x))",
    "beside a table": "SELECT * FROM public.orders, LATERAL (SELECT TRANSFORM(id) USING 'touch {mark}' AS (x))",
}


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_plan_with_a_program_is_run(name: str, client: Client, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(InvalidArgument, match="cannot be used in queries here"):
        client.call_table("spark.sql", PROGRAMS[name].format(mark=mark)).read_all()
    assert not mark.exists()


REFUSED = {
    "SELECT java_method('java.lang.System', 'getenv', 'HOME')": "function 'java_method'",
    "SELECT reflect('java.lang.System', 'getenv', 'HOME')": "function 'reflect'",
    "SELECT try_reflect('java.lang.System', 'getenv', 'HOME')": "function 'try_reflect'",
    "SELECT IDENTIFIER('ref' || 'lect')('a', 'b')": "identifier",
    "SELECT system.builtin.version()": "function 'system.builtin.version'",
    "SELECT * FROM VALUES (xpath_string('<a/>', 'a')) AS t(a)": "function 'xpath_string'",
    "SELECT from_xml('<a/>', 'a INT')": "function 'from_xml'",
    "SELECT transform(array(1), x -> input_file_name())": "function 'input_file_name'",
    "SELECT 1 a WHERE EXISTS (SELECT input_file_block_start())": "function 'input_file_block_start'",
    "SELECT * FROM python_worker_logs()": "function 'python_worker_logs'",
    "SELECT lake.system.iceberg_version()": "function 'lake.system.iceberg_version'",
    "SELECT lake.system.bucket(4, 3)": "function 'lake.system.bucket'",
    "SELECT * FROM public.orders TIMESTAMP AS OF (SELECT current_timestamp())": "a subquery in AS OF",
    "SELECT * FROM public.orders.files": "metadata table",
    "SELECT * FROM public.orders.snapshots": "metadata table",
    "SELECT * FROM public.orders.all_manifests": "metadata table",
    "SELECT * FROM public.orders.changes": "cannot be used",
    "SELECT _file FROM public.orders": "column '_file'",
    "SELECT concat(_file, '') FROM public.orders": "column '_file'",
    "SELECT (SELECT _file FROM public.orders LIMIT 1)": "column '_file'",
    "SELECT count(DISTINCT _file) FROM public.orders": "column '_file'",
    "SELECT * FROM (SELECT _file FROM public.orders) UNION ALL SELECT 'a'": "column '_file'",
    "SELECT a.id FROM public.orders a JOIN public.orders b ON a._file = b._file": "column '_file'",
    "SELECT id FROM public.orders ORDER BY _file": "column '_file'",
}


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize(("query", "why"), REFUSED.items())
def test_what_calls_code_or_tells_of_files_is_refused(query: str, why: str, client: Client) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(why)):
        client.call_table("spark.sql", query).read_all()


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("query", ["SELECT * FROM csv.`/etc/passwd`", "SELECT * FROM text.`file:///etc/passwd`"])
def test_files_are_no_tables(query: str, client: Client) -> None:
    with pytest.raises((InvalidArgument, NotFound)):
        client.call_table("spark.sql", query).read_all()


@pytest.mark.usefixtures("blind")
def test_a_view_that_runs_a_program_is_neither_made_nor_read(client: Client, lake: Lakehouse, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = PROGRAMS["glued"].format(mark=mark)
    with pytest.raises(InvalidArgument, match="ScriptTransformation"):
        client.call("spark.create_view", "public.harmful", program)
    with lake.engine.storage.spark.session() as session:
        session.sql(f"CREATE VIEW lake.public.harmful AS {program}").collect()
    with pytest.raises(InvalidArgument, match="ScriptTransformation"):
        client.scan("public.harmful").read_all()
    assert not mark.exists()


STATEMENTS = (
    "SET spark.sparkport.guard.catalogs=",
    "RESET",
    "ADD JAR '/x.jar'",
    "CREATE TEMPORARY VIEW v AS SELECT 1",
    "CREATE TEMPORARY FUNCTION f AS 'a.B'",
    "DECLARE x INT",
    "EXECUTE IMMEDIATE 'DROP TABLE lake.public.orders'",
    "BEGIN DROP TABLE lake.public.orders; END",
    "CALL lake.system.rollback_to_snapshot('public.orders', 1)",
    "INSERT INTO lake.public.orders VALUES (4L, 'd')",
    "DROP TABLE lake.public.orders",
    "USE spark_catalog",
    "EXPLAIN SELECT 1",
    "SHOW TABLES",
)


@contextmanager
def guarded(lake: Lakehouse, folder: Path) -> Iterator[Any]:
    """A session as queries have it."""
    catalog = PrivateCatalog(folder, lake.settings, default_schema="public")
    sessions = lake.spark.sessions(catalog.session_conf(), 1)
    with sessions.session() as session:
        yield session
    sessions.close()


def test_a_session_for_queries_takes_no_statement_and_writes_nothing_elsewhere(lake: Lakehouse, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException, PySparkException

    rows, elsewhere = tmp_path / "rows", tmp_path / "below" / "rows"
    with guarded(lake, tmp_path) as session:
        for statement in STATEMENTS:
            with pytest.raises(PySparkException, match=r"cannot be used in queries here|NullPointer"):
                session.sql(statement).collect()
        session.sql("SELECT 1 AS a").write.parquet(str(rows))
        refused = pytest.raises(AnalysisException, match="cannot be used in queries here")
        with refused:
            session.sql("SELECT 1 AS a").write.parquet(str(elsewhere))
        with refused:
            session.sql("SELECT 1 AS a").write.json(str(tmp_path / "json"))
        with refused:
            session.read.text("/etc/hostname").schema  # noqa: B018
    assert rows.exists()
    assert not elsewhere.exists()


def test_every_function_that_is_let_through_can_be_used(lake: Lakehouse, tmp_path: Path) -> None:
    """By Spark's own examples: a slice of them."""
    from pyspark.errors import AnalysisException

    looked = 0
    with lake.spark.session() as plain, guarded(lake, tmp_path) as session:
        known = {row[0] for row in plain.sql("SHOW SYSTEM FUNCTIONS").collect()}
        for name in sorted(FUNCTIONS & known)[::6]:  # the grammar has others by itself
            rows = plain.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect()
            text = "\n".join(row[0] for row in rows)
            for example in re.findall(r"> (SELECT.*?);\n", text, re.DOTALL)[:1]:
                try:
                    plain.sql(example).schema  # noqa: B018
                except AnalysisException:  # of a type that is not there yet, for instance
                    continue
                assert session.sql(f"SELECT * FROM ({example}\n)").schema is not None
                looked += 1
    assert looked > 40


def test_queries_that_only_query_are_let_through(client: Client) -> None:
    for query in (
        "SELECT _row_id + 0, _pos + 0 FROM orders WHERE id BETWEEN 1 AND 2 AND (name LIKE 'a%') IS NOT UNKNOWN",
        "FROM orders |> WHERE id > 0 |> AGGREGATE count(*) AS c GROUP BY name |> ORDER BY c",
        "WITH RECURSIVE r(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
        "SELECT * FROM (SELECT 1 a, 2 b) UNPIVOT (x FOR y IN (a, b))",
        "SELECT sum(id) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM orders TABLESAMPLE (5 ROWS)",
        "SELECT * FROM orders TIMESTAMP AS OF '2099-01-01' JOIN explode(array(1, 2)) AS e(id) USING (id)",
    ):
        assert client.call_table("spark.sql", query).read_all().num_columns > 0


def test_no_query_is_run_on_a_spark_that_does_not_check_it() -> None:
    class Unchecked:
        def sql(self, text: str) -> Any:
            return pa.table({})

    class Sessions:
        def session(self, **_: object) -> AbstractContextManager[Unchecked]:
            return nullcontext(Unchecked())

    place = Place(cast("Any", None), cast("Any", Sessions()), frozenset())
    with (
        pytest.raises(FailedPrecondition, match="does not check what queries do"),
        place.session(CallContext(), Work("query", ())),
    ):
        pass
