"""Views: queries of Spark's that are listed as tables, and read by the rights of who reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.lakehouse import lakehouse

from sparkport.auth import Rule, RuleAuthorizer, Secret, StaticTokens
from sparkport.auth.operations import Operation
from sparkport.client import Client, connect
from sparkport.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SparkportError,
)
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.testing import serving

pytestmark = pytest.mark.tier("thorough")

EVERYTHING = frozenset(Operation)
RULES = (
    Rule(("ada",), EVERYTHING, ("lake",)),
    Rule(("bob",), frozenset({Operation.READ}), ("lake.public.orders", "lake.public.totals", "lake.public.leak")),
    Rule(("bob",), frozenset({Operation.CALL, Operation.SPARK_SQL}), ("lake.spark",)),
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    with lakehouse(tmp_path_factory.mktemp("warehouse")) as opened:
        yield opened


@pytest.fixture(scope="module")
def location(lake: Lakehouse) -> Iterator[str]:
    tokens = StaticTokens({Secret("ada-token"): "ada", Secret("bob-token"): "bob"})
    with serving(lake.catalog, authenticator=tokens, authorizer=RuleAuthorizer(RULES)) as server:
        with connect(server.location, token="ada-token") as client:
            rows = pa.table({"id": pa.array([1, 2, 2], pa.int64()), "name": ["a", "b", "c"]})
            for name in ("orders", "hidden"):
                client.create_table(f"public.{name}", rows.schema)
                client.insert(f"public.{name}", rows)
            client.call("spark.create_view", "public.totals", "SELECT id, count(*) AS n FROM orders GROUP BY id")
            client.call("spark.create_view", "lake.public.leak", "SELECT id FROM public.hidden")
        yield server.location


@pytest.fixture
def ada(location: str) -> Iterator[Client]:
    with connect(location, token="ada-token") as client:
        yield client


@pytest.fixture
def bob(location: str) -> Iterator[Client]:
    with connect(location, token="bob-token") as client:
        yield client


def pairs(client: Client, name: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in client.scan(name).read_all().to_pylist())


def test_a_view_is_listed_with_its_columns_and_read(ada: Client, bob: Client) -> None:
    assert ada.describe("public.totals").schema == pa.schema([("id", pa.int64()), ("n", pa.int64())])
    assert pairs(ada, "public.totals") == pairs(bob, "public.totals") == [(1, 1), (2, 2)]
    assert ada.scan("public.totals", columns=["n"]).read_all().schema.names == ["n"]


def test_a_view_cannot_be_changed(ada: Client) -> None:
    with pytest.raises(SparkportError):
        ada.insert("public.totals", pa.table({"id": pa.array([3], pa.int64()), "n": pa.array([3], pa.int64())}))
    with pytest.raises(NotFound):
        ada.drop_table("public.totals")
    assert pairs(ada, "public.totals") == [(1, 1), (2, 2)]


def test_who_may_not_read_what_a_view_reads_cannot_read_the_view(ada: Client, bob: Client) -> None:
    assert len(pairs(ada, "public.leak")) == 3
    with pytest.raises(PermissionDenied, match="not there, or not for you"):
        pairs(bob, "public.leak")
    with pytest.raises(NotFound):
        bob.call_table("spark.sql", "SELECT * FROM leak").read_all()
    assert bob.call_table("spark.sql", "SELECT sum(n) FROM totals").read_all().to_pylist() == [{"sum(n)": 3}]


def test_views_that_spark_has_made_are_read_and_ours_are_read_by_spark(ada: Client, lake: Lakehouse) -> None:
    with lake.engine.storage.spark.session() as session:
        session.sql("CREATE VIEW lake.public.nested AS SELECT max(n) AS most FROM lake.public.totals").collect()
        assert [tuple(row) for row in session.sql("SELECT * FROM lake.public.totals ORDER BY id").collect()] == [
            (1, 1),
            (2, 2),
        ]
        session.sql(
            "CREATE VIEW lake.public.script AS SELECT reflect('java.lang.System', 'getProperty', 'user.home') AS h"
        ).collect()
    assert pairs(ada, "public.nested") == [(2,)]
    with pytest.raises(InvalidArgument, match="function 'reflect'"):
        pairs(ada, "public.script")
    with pytest.raises(NotFound):
        ada.call_table("spark.sql", "SELECT * FROM public.script").read_all()


def test_a_view_is_made_and_dropped_by_who_may(ada: Client, bob: Client) -> None:
    with pytest.raises(PermissionDenied):
        bob.call("spark.create_view", "public.other", "SELECT 1 AS a")
    with pytest.raises(PermissionDenied):
        bob.call("spark.drop_view", "public.totals")
    with pytest.raises(FailedPrecondition, match="there already"):
        ada.call("spark.create_view", "public.orders", "SELECT 1 AS a")
    with pytest.raises(InvalidArgument, match="only queries"):
        ada.call("spark.create_view", "public.other", "DROP TABLE public.orders")
    with pytest.raises(InvalidArgument, match="is a table"):
        ada.call("spark.drop_view", "public.orders")
    ada.call("spark.create_view", "other", "SELECT 1 AS a")
    assert pairs(ada, "public.other") == [(1,)]
    ada.call("spark.drop_view", "public.other")
    with pytest.raises(NotFound):
        ada.scan("public.other").read_all()


def test_a_view_whose_table_has_changed_says_so(ada: Client, tmp_path: Path) -> None:
    ada.create_table("public.shifting", pa.schema([("a", pa.int32()), ("b", pa.int32())]))
    ada.call("spark.create_view", "public.shifted", "SELECT * FROM shifting")
    ada.drop_column("public.shifting", "b")
    with pytest.raises(SparkportError):
        pairs(ada, "public.shifted")
