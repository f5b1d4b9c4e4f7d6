"""Views of a REST catalog: the reference server has them; others have none, and some say so only when asked."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.lakehouse.crooked_catalog import crooked
from tests.lakehouse.rest_between import Between, between
from tests.lakehouse.test_rest_pointers import Lake
from tests.support.lakehouse import lakehouse

from sparkport.client import Client, connect
from sparkport.errors import AlreadyExists, FailedPrecondition, NotFound, TableNotFound, Unsupported
from sparkport.lakehouse.catalogs.rest import RestPointers
from sparkport.lakehouse.catalogs.rest_client import RestClient
from sparkport.lakehouse.catalogs.rest_views import RestViewRecords
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.query.view_definition import new_view
from sparkport.testing import serving

pytestmark = pytest.mark.tier("thorough")

pytest_plugins = ["tests.support.services"]

COLUMNS = pa.schema([("id", pa.int64())])
OFFERED = {"view-endpoints-supported": "true"}  # what stands between us and the catalog does not list endpoints
ENDPOINTS = {"endpoints": ["GET /v1/{prefix}/namespaces/{namespace}/views"]}


def metadata(schema: str, sql: str = "SELECT id FROM orders") -> dict[str, Any]:
    return new_view(sql, COLUMNS, catalog="lake", schema=schema)


@pytest.fixture
def net(rest_uri: str) -> Iterator[tuple[Between, str]]:
    with between(rest_uri) as made:
        yield made


def test_views_are_made_listed_and_dropped(rest_uri: str, tmp_path: Path) -> None:
    lake = Lake(rest_uri, tmp_path)
    table, view = lake.table("t"), TableName(lake.schema, "v")
    views = lake.pointers.views
    assert views.location(view) is None
    views.create(view, metadata(lake.schema))
    assert views.locations([lake.schema])[view] == views.location(view)
    assert [name for name in lake.pointers.cut().tables if name.schema == lake.schema] == [table]
    with pytest.raises(AlreadyExists):
        views.create(view, metadata(lake.schema, "SELECT 1 AS id"))
    with pytest.raises(AlreadyExists):
        views.create(table, metadata(lake.schema))
    views.drop(view)
    assert list(views.locations([lake.schema])) == []
    with pytest.raises(TableNotFound):
        views.drop(view)


def test_a_schema_with_views_keeps_its_tables_too(rest_uri: str, tmp_path: Path) -> None:
    lake = Lake(rest_uri, tmp_path)
    table, view = lake.table("t"), TableName(lake.schema, "v")
    lake.pointers.views.create(view, metadata(lake.schema))
    with pytest.raises(FailedPrecondition, match="has views"):
        lake.pointers.drop_schema_with_tables(lake.schema)
    assert lake.pointers.location(table) is not None
    lake.pointers.views.drop(view)
    assert list(lake.pointers.drop_schema_with_tables(lake.schema)) == [table]


@pytest.mark.parametrize("way", ["lost", "twice", "proxy"])
def test_changes_whose_answer_is_not_the_first_are_made(way: str, net: tuple[Between, str], tmp_path: Path) -> None:
    between_us, uri = net
    lake = Lake(uri, tmp_path)
    view = TableName(lake.schema, "v")
    views = RestViewRecords(RestClient(uri, OFFERED))
    between_us.plan += [way, way]
    views.create(view, metadata(lake.schema))
    assert views.location(view) is not None
    views.drop(view)
    assert views.location(view) is None
    assert between_us.plan == []


def test_a_listing_loads_no_view_again_for_a_while(net: tuple[Between, str], tmp_path: Path) -> None:
    between_us, uri = net
    lake = Lake(uri, tmp_path)
    now = [0.0]
    records = RestViewRecords(RestClient(uri, OFFERED), clock=lambda: now[0])
    names = [TableName(lake.schema, name) for name in ("a", "b", "c")]
    for name in names:
        records.create(name, metadata(lake.schema))

    def loads() -> int:
        before = len(between_us.looks)
        assert sorted(dict(records.locations([lake.schema]).items())) == names
        return sum("/views/" in look for look in between_us.looks[before:])

    assert [loads(), loads(), loads()] == [3, 0, 0]
    now[0] += 31
    assert loads() == 3
    before = len(between_us.looks)
    records.location(names[0])
    assert len(between_us.looks) == before + 1, "who reads a view gets it as it is now"
    RestViewRecords(RestClient(uri, OFFERED)).drop(names[0])
    assert sorted(records.locations([lake.schema])) == names[1:]


@pytest.mark.parametrize(
    "config", [{"endpoints": ["GET /v1/{prefix}/namespaces"]}, {}, {"defaults": {"view-endpoints-supported": "false"}}]
)
def test_a_catalog_that_does_not_offer_views_is_never_asked_for_them(config: dict[str, Any]) -> None:
    asked: list[str] = []

    def reply(request: BaseHTTPRequestHandler) -> tuple[int, object]:
        asked.append(request.path)
        return 404, {}

    view = TableName("s", "v")
    with crooked(reply, config) as uri:
        views = RestPointers(RestClient(uri, {})).views
        assert (dict(views.locations(["s"])), views.location(view)) == ({}, None)
        with pytest.raises(Unsupported, match="no views"):
            views.create(view, metadata("s"))
        with pytest.raises(TableNotFound):
            views.drop(view)
    assert asked == []


@pytest.mark.parametrize("status", [403, 404, 405, 501])
@pytest.mark.parametrize("config", [ENDPOINTS, {"defaults": OFFERED}])
def test_a_catalog_that_refuses_to_list_views_shows_none(status: int, config: dict[str, Any]) -> None:
    def reply(request: BaseHTTPRequestHandler) -> tuple[int, object]:
        return status, {}

    with crooked(reply, config) as uri:
        views = RestPointers(RestClient(uri, {})).views
        assert dict(views.locations(["s"])) == {}


def test_a_view_that_cannot_be_loaded_does_not_hide_the_others() -> None:
    answers: dict[str, tuple[int, object]] = {
        "/v1/namespaces/s/views": (200, {"identifiers": [{"name": name} for name in ("bad", "good", "lost", "mine")]}),
        "/v1/namespaces/s/views/bad": (500, {}),
        "/v1/namespaces/s/views/good": (200, {"metadata-location": "place"}),
        "/v1/namespaces/s/views/lost": (200, {}),
        "/v1/namespaces/s/views/mine": (403, {}),
    }
    with crooked(lambda request: answers[request.path], ENDPOINTS) as uri:
        views = RestPointers(RestClient(uri, {})).views.locations(["s"])
        assert dict(views.items()) == {TableName("s", "good"): "place"}


# With Spark


@pytest.fixture
def lake(rest_uri: str, tmp_path: Path) -> Iterator[Lakehouse]:
    with lakehouse(tmp_path, catalog_uri=rest_uri) as opened:
        yield opened


def pairs(client: Client, name: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in client.scan(name).read_all().to_pylist())


@pytest.mark.timeout(300)  # the first start of all downloads jars
def test_views_are_read_whoever_has_made_them(lake: Lakehouse) -> None:
    schema = f"views{uuid.uuid4().hex[:8]}"
    rows = pa.table({"id": pa.array([1, 2, 2], pa.int64())})
    with serving(lake.catalog) as server, connect(server.location) as client:
        client.create_schema(schema)
        client.create_table(f"{schema}.orders", rows.schema)
        client.insert(f"{schema}.orders", rows)
        client.call(
            "spark.create_view", f"{schema}.totals", f"SELECT id, count(*) AS n FROM {schema}.orders GROUP BY id"
        )
        assert pairs(client, f"{schema}.totals") == [(1, 1), (2, 2)]
        with lake.engine.storage.spark.session() as session:
            ours = session.sql(f"SELECT * FROM lake.{schema}.totals ORDER BY id").collect()
            assert [tuple(row) for row in ours] == [(1, 1), (2, 2)]
            session.sql(f"CREATE VIEW lake.{schema}.most AS SELECT max(n) AS n FROM lake.{schema}.totals").collect()
            assert pairs(client, f"{schema}.most") == [(2,)]
            session.sql(
                f"CREATE OR REPLACE VIEW lake.{schema}.most AS SELECT min(n) AS n FROM lake.{schema}.totals"
            ).collect()
            assert pairs(client, f"{schema}.MOST") == [(1,)]
        assert client.call_table("spark.sql", f"SELECT n + 1 FROM {schema}.most").read_all()[0].to_pylist() == [2]
        with pytest.raises(FailedPrecondition, match="there already"):
            client.call("spark.create_view", f"{schema}.most", "SELECT 1 AS a")
        with pytest.raises(AlreadyExists):
            client.create_table(f"{schema}.most", rows.schema)
        for view in ("most", "totals"):
            client.call("spark.drop_view", f"{schema}.{view}")
        with pytest.raises(NotFound):
            pairs(client, f"{schema}.most")
        client.drop_table(f"{schema}.orders")
        client.drop_schema(schema)
