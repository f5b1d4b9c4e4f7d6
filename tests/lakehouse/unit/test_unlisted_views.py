"""A REST catalog that does not list its views now, or never, still has tables."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.lakehouse.crooked_catalog import crooked

from sparkport.catalog.context import CallContext
from sparkport.catalog.spark_sql import SparkQuery
from sparkport.errors import SparkportError, Unavailable
from sparkport.lakehouse.catalogs.rest import RestPointers
from sparkport.lakehouse.catalogs.rest_client import RestClient
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.query.queries import SparkQueries
from sparkport.lakehouse.query.view_definition import new_view
from sparkport.lakehouse.query.views import LakeViews
from sparkport.lakehouse.settings import LakehouseSettings

pytestmark = pytest.mark.tier("fast")

ENDPOINTS = {"endpoints": ["GET /v1/{prefix}/namespaces/{namespace}/views"]}
NOTHING: Any = None  # Spark is not asked
COLUMNS = pa.schema([("id", pa.int64())])
ORDERS = TableName("s", "orders")
GOOD = TableName("fine", "good")

REFUSALS = [400, 409, 422]
FAILURES = [500, 502, 503, 429, None]  # None: it hangs up


class Catalog:
    """Answers for the views of schema ``s`` with a status, and has a good view in another schema."""

    def __init__(self, status: int | None, metadata: Path) -> None:
        self.status = status
        self.changes: list[str] = []
        self._metadata = metadata
        metadata.write_text(json.dumps(new_view("SELECT id FROM orders", COLUMNS, catalog="lake", schema="fine")))

    def reply(self, request: BaseHTTPRequestHandler) -> tuple[int, object] | None:
        if request.command != "GET":
            self.changes.append(request.path)
        match request.path.partition("?")[0].split("/")[3:]:
            case ["s", "views", *_]:
                return None if self.status is None else (self.status, {"error": {"message": "not now"}})
            case ["fine", "views"]:
                return 200, {"identifiers": [{"name": "good"}]}
            case ["fine", "views", "good"]:
                return 200, {"metadata-location": str(self._metadata)}
            case []:
                return 200, {"namespaces": [["s"]]}
            case ["s", "tables"]:
                return 200, {"identifiers": [{"name": "orders"}]}
            case ["s", "tables", "orders"]:
                return 200, {"metadata-location": "place"}
        return 404, {}


@contextlib.contextmanager
def opened(status: int | None, tmp_path: Path) -> Iterator[tuple[Catalog, RestPointers, LakeViews]]:
    catalog = Catalog(status, tmp_path / "good.json")
    with crooked(catalog.reply, ENDPOINTS) as uri:
        pointers = RestPointers(RestClient(uri, {}))
        yield catalog, pointers, LakeViews(pointers.views, FileSystem(), catalog="lake")


@pytest.mark.parametrize("status", [*REFUSALS, *FAILURES])
def test_listings_go_on_without_views_that_are_not_listed(
    status: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(status, tmp_path) as (_, _, views), caplog.at_level(logging.WARNING):
        assert list(views.listed(NOTHING, "s")) == []
        assert "views of schema 's'" in caplog.text
        assert list(views.locations(["fine", "s"])) == [GOOD], "those of other schemas are shown"
        assert [table.name for table in views.listed(NOTHING, "fine")] == ["good"]


@pytest.mark.parametrize("status", [*REFUSALS, *FAILURES])
def test_queries_over_tables_do_not_depend_on_the_list_of_views(
    status: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def analysed(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(columns=COLUMNS)

    with opened(status, tmp_path) as (_, pointers, views):
        storage = SimpleNamespace(staging=SimpleNamespace(folder=tmp_path), pointers=pointers)
        engine: Any = SimpleNamespace(storage=storage, flush_of=lambda *_, **__: True)
        settings = LakehouseSettings(warehouse=str(tmp_path))
        queries = SparkQueries(engine, NOTHING, NOTHING, settings=settings, default_schema="s", views=views)
        monkeypatch.setattr(queries, "_opened", analysed)
        monkeypatch.setattr(queries, "places", SimpleNamespace(take=lambda ctx: contextlib.nullcontext()))
        named = queries.named(CallContext(), "SELECT id FROM orders")
        assert named == [ORDERS]
        query = SparkQuery(text="SELECT id FROM orders", arguments=None, owner="ann", tables=frozenset(named))
        assert queries.columns(CallContext(), query) == COLUMNS


@pytest.mark.parametrize("status", REFUSALS)
def test_a_schema_whose_views_are_never_listed_has_none(status: int, tmp_path: Path) -> None:
    with opened(status, tmp_path) as (_, _, views):
        assert views.find(NOTHING, "s", "v") is None
        assert views.usable({TableName("s", "v")}) == {}


@pytest.mark.parametrize("status", FAILURES)
def test_who_reads_a_view_is_told_that_it_cannot_be_looked_up_now(status: int | None, tmp_path: Path) -> None:
    with opened(status, tmp_path) as (_, _, views):
        with pytest.raises(Unavailable):
            views.find(NOTHING, "s", "v")
        with pytest.raises(Unavailable):
            views.usable({TableName("s", "v")})


@pytest.mark.parametrize("status", FAILURES)
def test_no_table_is_dropped_with_a_schema_whose_views_are_not_known(status: int | None, tmp_path: Path) -> None:
    with opened(status, tmp_path) as (catalog, pointers, _):
        with pytest.raises(Unavailable):
            pointers.drop_schema_with_tables("s")
        assert catalog.changes == []


@pytest.mark.parametrize(("status", "expected"), [(400, None), (404, None), (500, Unavailable), (503, Unavailable)])
def test_a_listed_view_that_cannot_be_loaded(
    status: int, expected: type[SparkportError] | None, tmp_path: Path
) -> None:
    def reply(request: BaseHTTPRequestHandler) -> tuple[int, object]:
        return (200, {"identifiers": [{"name": "v"}]}) if request.path.endswith("/views") else (status, {})

    view = TableName("s", "v")
    with crooked(reply, ENDPOINTS) as uri:
        views = LakeViews(RestPointers(RestClient(uri, {})).views, FileSystem(), catalog="lake")
        assert list(views.listed(NOTHING, "s")) == []
        if expected is None:
            assert views.find(NOTHING, "s", "v") is None
            assert views.named_by(frozenset({"v"}), lambda names: set(), schemas=["s"]) == {view}
            assert views.usable({view}) == {}
        else:
            with pytest.raises(expected):
                views.find(NOTHING, "s", "v")
