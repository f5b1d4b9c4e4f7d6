"""Queries in Spark's SQL: what they give, whom they give it to, and what is left when they end."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.lakehouse import lakehouse

from sparkport.auth import Rule, RuleAuthorizer, Secret, StaticTokens
from sparkport.auth.operations import Operation
from sparkport.client import Client, connect
from sparkport.errors import InvalidArgument, NotFound, PermissionDenied, SparkportError, Unavailable
from sparkport.filters.rule_expressions import parse_rule
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.spark.sessions import Work
from sparkport.testing import serving

pytestmark = pytest.mark.tier("thorough")

pytest_plugins = ["tests.support.services"]

TOKENS = {Secret(f"{name}-token"): name for name in ("ada", "bob", "eve")}
EVERYTHING = frozenset(Operation)
RULES = (
    Rule(("ada",), EVERYTHING, ("lake",)),
    Rule(("bob",), frozenset({Operation.READ}), ("lake.public.orders",)),
    Rule(("bob",), frozenset({Operation.READ}), ("lake.public.people",), rows=parse_rule("id = 1")),
    Rule(("bob",), frozenset({Operation.CALL, Operation.SPARK_SQL, Operation.READ}), ("lake.spark",)),
    Rule(("eve",), EVERYTHING - {Operation.SPARK_SQL}, ("lake",)),
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    journal = JournalSettings(new_tables=True)
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=journal) as opened:
        yield opened


@pytest.fixture(scope="module")
def location(lake: Lakehouse) -> Iterator[str]:
    tokens = StaticTokens(TOKENS)
    with serving(lake.catalog, authenticator=tokens, authorizer=RuleAuthorizer(RULES)) as server:
        with connect(server.location, token="ada-token") as client:
            orders = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})
            for name in ("orders", "people", "hidden"):
                client.create_table(f"public.{name}", orders.schema)
                client.insert(f"public.{name}", orders)
        yield server.location


@pytest.fixture
def ada(location: str) -> Iterator[Client]:
    with connect(location, token="ada-token") as client:
        yield client


@pytest.fixture
def bob(location: str) -> Iterator[Client]:
    with connect(location, token="bob-token") as client:
        yield client


def rows(client: Client, query: str, **named: object) -> list[tuple[object, ...]]:
    table = client.call_table("spark.sql", query, **named).read_all()
    return [tuple(row.values()) for row in table.to_pylist()]


def staged(lake: Lakehouse) -> list[Path]:
    return list(lake.engine.storage.staging.folder.glob("query-*/*"))


@pytest.mark.tier("fast")
def test_a_query_joins_tables_by_every_name_they_have(ada: Client, lake: Lakehouse) -> None:
    query = (
        "WITH t AS (SELECT id FROM lake.public.orders) "
        "SELECT o.id, p.name FROM public.orders o JOIN people p USING (id) JOIN t USING (id) ORDER BY o.id DESC"
    )
    assert rows(ada, query) == [(3, "c"), (2, "b"), (1, "a")]
    assert staged(lake) == []


@pytest.mark.tier("fast")
def test_committed_rows_are_seen_though_the_journal_still_holds_them(ada: Client) -> None:
    ada.create_table("public.fresh", pa.schema([("id", pa.int64())]))
    for number in range(3):
        ada.insert("public.fresh", pa.table({"id": pa.array([number], pa.int64())}))
        assert rows(ada, "SELECT count(*) FROM fresh") == [(number + 1,)]


def test_values_and_names_come_back_as_they_are(ada: Client) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    query = """SELECT 1Y a, 2L A, CAST(1.5 AS DECIMAL(5, 2)), DATE'0001-01-02', TIMESTAMP'2026-01-02 03:04:05.000006Z',
        TIMESTAMP_NTZ'9999-12-31 23:59:59', array(1, NULL), map('k', 2.5D), named_struct('x', X'00', 'y', 'é') s"""
    table = ada.call_table("spark.sql", query).read_all()
    assert table.schema.names[:2] == ["a", "A_1"]
    assert list(table.to_pylist()[0].values()) == [
        1,
        2,
        Decimal("1.50"),
        dt.date(1, 1, 2),
        moment,
        dt.datetime(9999, 12, 31, 23, 59, 59),
        [1, None],
        [("k", 2.5)],
        {"x": b"\0", "y": "é"},
    ]


def test_arguments_reach_spark_in_their_types(ada: Client) -> None:
    tricky = "x' OR '1'='1"
    assert rows(ada, "SELECT count(*) FROM orders WHERE name = ?", args=[tricky]) == [(0,)]
    given = ada.call_table("spark.sql", "SELECT ? + ?", args=pa.scalar([1, 2], pa.list_(pa.int32()))).read_all()
    assert given.column(0).to_pylist() == [3]
    assert rows(ada, "SELECT :a, typeof(:b), :b", args={"a": tricky, "b": 7}) == [(tricky, "bigint", 7)]
    assert rows(ada, "SELECT id FROM orders WHERE id IN (?, ?) ORDER BY id", args=[1, 3]) == [(1,), (3,)]


def test_a_large_result_is_streamed_and_leaves_nothing(ada: Client, lake: Lakehouse) -> None:
    count = total = 0
    with ada.call_table("spark.sql", "SELECT id, repeat('x', 50) s FROM range(0, 1000000, 1, 8)") as result:
        for batch in result:
            count += batch.num_rows
            total += sum(batch.column("id").to_pylist())
    assert (count, total) == (1_000_000, 499_999_500_000)
    assert staged(lake) == []


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT nix FROM orders", "UNRESOLVED_COLUMN"),
        ("SELECT 1 +", "PARSE_SYNTAX_ERROR"),
        ("SELECT 1/(id - 2) FROM orders", "DIVIDE_BY_ZERO"),
        ("SELECT if(id = 900000, raise_error('half way'), id) FROM range(0, 1000000, 1, 10)", "half way"),
        ("SELECT * FROM orders VERSION AS OF 7", "Cannot find snapshot"),
        ("SELECT :a", "UNBOUND_SQL_PARAMETER"),
        ("ORDER BY 1", "only queries"),
    ],
)
def test_a_query_that_fails_says_why_in_one_line(ada: Client, lake: Lakehouse, query: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as failed:
        rows(ada, query)
    assert "\n" not in str(failed.value)
    assert "org.apache" not in str(failed.value)
    assert staged(lake) == []


def test_types_that_cannot_be_sent_are_named(ada: Client) -> None:
    with pytest.raises(SparkportError, match="'x' is of type void: cast it"):
        rows(ada, "SELECT NULL x")


@pytest.mark.tier("fast")
def test_only_tables_that_the_caller_may_read_exist_for_a_query(bob: Client) -> None:
    assert rows(bob, "SELECT max(id) FROM public.orders") == [(3,)]
    for query in (
        "SELECT * FROM public.hidden",
        "SELECT * FROM lake.public.hidden",
        "SELECT * FROM `lake`.`public`.`hidden`.files",
        "SELECT * FROM public.hidden.snapshots",
        "SELECT (SELECT max(id) FROM hidden) FROM orders",
        "SELECT 1 WHERE EXISTS (SELECT 1 FROM hidden)",
        "WITH orders AS (SELECT * FROM hidden) SELECT * FROM orders",
        "SELECT * FROM nobodys.public.hidden",
        "SELECT * FROM spark_catalog.public.hidden",
        "SELECT * FROM spark_catalog.default.x",
        "SELECT * FROM `/tmp/x`",
        "SELECT * FROM lake.`/tmp/x`",
        "SELECT * FROM json.nix",
    ):
        with pytest.raises((NotFound, InvalidArgument)):
            rows(bob, query)


def test_a_table_of_which_the_caller_sees_a_part_is_refused(bob: Client) -> None:
    for source in ("people", "public.people.files", "lake.public.people"):
        query = f"SELECT * FROM {source}"
        with pytest.raises(PermissionDenied, match="sees only a part"):
            rows(bob, query)
    assert rows(bob, "SELECT max(people) FROM (SELECT id AS people FROM orders)") == [(3,)]


def test_who_has_all_rights_but_this_one_runs_no_query(location: str) -> None:
    with connect(location, token="eve-token") as eve:
        for call in ("spark.sql", "spark.explain"):
            with pytest.raises(PermissionDenied, match="may not spark_sql"):
                eve.call_table(call, "SELECT 1").read_all()


def test_what_spark_is_set_up_with_is_not_told(ada: Client, lake: Lakehouse) -> None:
    assert rows(ada, "SELECT '${spark.sql.catalog.lake.uri}', '${env:HOME}'") == [
        ("${spark.sql.catalog.lake.uri}", "${env:HOME}")
    ]


@pytest.mark.tier("fast")
def test_nothing_can_be_changed(ada: Client) -> None:
    for query in ("DROP TABLE public.orders", "WITH t AS (SELECT 1) INSERT INTO orders SELECT 1, 'x'"):
        with pytest.raises(InvalidArgument):
            rows(ada, query)
    assert rows(ada, "SELECT count(*) FROM orders") == [(3,)]


@pytest.mark.tier("fast")
def test_a_plan_is_shown_without_running_anything(ada: Client, bob: Client) -> None:
    (plan,) = ada.call_table("spark.explain", "SELECT name, count(*) FROM orders GROUP BY name").read_all()["plan"]
    assert "HashAggregate" in plan.as_py()
    with pytest.raises(NotFound):
        bob.call_table("spark.explain", "SELECT * FROM hidden").read_all()


ENDLESS = "SELECT count(hash(id)) FROM range(0, 15000000000)"
"""For half a minute or so: should Spark ever go on with it after all, the tests that follow do not wait for ever."""


def wait_for_job(client: Client) -> dict[str, Any]:
    waited = threading.Event()
    for _ in range(600):
        found = [row for row in client.scan("spark.jobs").read_all().to_pylist() if row["purpose"] == "query"]
        if found:
            return dict(found[0])
        waited.wait(0.1)
    pytest.fail("the query does not run")


def test_a_query_is_listed_while_it_runs_and_cancelled_by_its_owner(ada: Client, bob: Client, location: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with connect(location, token="bob-token") as client:
                rows(client, ENDLESS)
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    job = wait_for_job(bob)
    assert (job["owner"], job["query"], job["tables"]) == ("bob", ENDLESS, [])
    seen = wait_for_job(ada)
    assert (seen["id"], seen["query"]) == (job["id"], None)
    with pytest.raises(NotFound):
        bob.call("spark.cancel", "nix")
    bob.call("spark.cancel", job["id"])
    thread.join(60)
    with pytest.raises(Unavailable, match="ended by 'bob'"):
        raise failures[0]


def test_a_query_whose_caller_goes_is_cancelled(ada: Client, lake: Lakehouse) -> None:
    result = ada.call_table("spark.sql", ENDLESS)
    reader = threading.Thread(target=lambda: [None for _ in _quietly(result)])
    reader.start()
    wait_for_job(ada)
    result.close()
    reader.join(60)
    waited = threading.Event()
    for _ in range(600):
        jobs = lake.catalog.jobs
        if jobs is not None and not jobs.running():
            break
        waited.wait(0.1)
    else:
        pytest.fail("the query still runs")
    assert list(lake.engine.storage.staging.folder.glob("query-*/")) == []


def test_nothing_runs_on_that_was_cancelled_while_spark_still_prepared_it(lake: Lakehouse, tmp_path: Path) -> None:
    """Spark itself goes on with it, on all cores: a thread that makes ready the next stage starts it regardless."""
    sessions, work = lake.spark.sessions({}, 2), Work("query", ())
    sums = ", ".join(f"sum(hash(id + {number}))" for number in range(150))

    def write() -> None:
        with sessions.session(work=work) as session:
            frame = session.sql(f"SELECT {sums} FROM range(0, 10000000000, 1, 8) GROUP BY id % 3")
            frame.schema  # noqa: B018 - analysed before
            threading.Timer(0.5, sessions.end_work, [work, "cancelled"]).start()
            frame.toDF(*(f"c{number}" for number in range(150))).write.parquet(str(tmp_path / "rows"))

    with pytest.raises(Unavailable, match="cancelled"):
        write()
    threading.Event().wait(3)  # for Spark to come so far
    with sessions.session() as session:
        assert session.sql("SELECT count(hash(id)) FROM range(0, 1000000, 1, 4)").collect()[0][0] == 1_000_000
    sessions.close()


def _quietly(result: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from result
    except SparkportError:
        return


@pytest.mark.parametrize("fixture", ["postgres_uri", "rest_uri"])
def test_queries_run_whatever_the_catalog_is_kept_in(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    uri: str = request.getfixturevalue(fixture)
    rows_of = pa.table({"id": pa.array([1, 2], pa.int64())})
    with (
        lakehouse(tmp_path, catalog_uri=uri) as opened,
        serving(opened.catalog) as server,
        connect(server.location) as client,
    ):
        client.create_table("public.queried", rows_of.schema)
        client.insert("public.queried", rows_of)
        assert rows(client, "SELECT sum(id) FROM public.queried WHERE id < ?", args=[9]) == [(3,)]
        with pytest.raises(NotFound):
            rows(client, "SELECT * FROM public.nobody")
        client.drop_table("public.queried")
