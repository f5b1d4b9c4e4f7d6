"""A view that somebody has damaged, or a catalog lists in odd words, hides nothing but itself."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.lakehouse.crooked_catalog import crooked

from sparkport.errors import FailedPrecondition, InternalError, Unavailable
from sparkport.lakehouse.backup.rewriting import Rewriting
from sparkport.lakehouse.catalogs.rest import RestPointers
from sparkport.lakehouse.catalogs.rest_client import RestClient
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.query.view_definition import ViewDefinition, new_view
from sparkport.lakehouse.query.views import LakeViews

pytestmark = pytest.mark.tier("fast")

ENDPOINTS = {"endpoints": ["GET /v1/{prefix}/namespaces/{namespace}/views"]}
NOTHING: Any = None  # Spark is not asked

METADATA = new_view("SELECT id FROM t", pa.schema([("id", pa.int64())]), catalog="lake", schema="s")
PACKED = gzip.compress(b'{"format-version": 1}' * 100, mtime=0)
DAMAGED = PACKED[:12] + b"\xff\xff\xff" + PACKED[15:]
DEEP = b"[" * 200_000


@contextmanager
def views_of(entries: list[object], loads: dict[str, object], tmp_path: Path) -> Iterator[LakeViews]:
    """Those of a schema with a good view among others."""
    good = tmp_path / "good.json"
    good.write_text(json.dumps(METADATA))
    answers = {"good": {"metadata-location": str(good)}, **loads}

    def reply(request: BaseHTTPRequestHandler) -> tuple[int, object]:
        if request.path.endswith("/views"):
            return 200, {"identifiers": entries}
        name = request.path.rpartition("/")[2]
        return (200, answers[name]) if name in answers else (404, {})

    with crooked(reply, ENDPOINTS) as uri:
        yield LakeViews(RestPointers(RestClient(uri, {})).views, FileSystem(), catalog="lake")


@pytest.mark.parametrize("data", [DAMAGED, PACKED[:-12], DEEP, b"{}", b"\xff"], ids=range(5))
def test_metadata_that_cannot_be_read_is_said_to_be_so(data: bytes) -> None:
    with pytest.raises(InternalError, match=r"metadata of view 's\.v' cannot be read"):
        ViewDefinition.parse(data, "s.v")
    with pytest.raises(InternalError, match="'v' cannot be rewritten"):
        Rewriting(NOTHING, {}).metadata(data, "v")


def test_a_comment_that_is_no_text_is_none() -> None:
    odd = {**METADATA, "properties": {"comment": 5}}
    assert ViewDefinition.parse(json.dumps(odd).encode(), "s.v").comment is None


@pytest.mark.parametrize("data", [DAMAGED, DEEP], ids=["gzip", "deep"])
def test_a_view_with_damaged_metadata_does_not_hide_the_others(data: bytes, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(data)
    loads: dict[str, object] = {"bad": {"metadata-location": str(bad)}}
    with views_of([{"name": "bad"}, {"name": "good"}], loads, tmp_path) as views:
        assert [table.name for table in views.listed(NOTHING, "s")] == ["good"]


@pytest.mark.parametrize(
    "answer",
    [DEEP, *({"metadata-location": place} for place in ("/a\0b", "/a\ud800b", "", 5, {"a": 1}, None))],
    ids=range(7),
)
def test_a_view_at_an_odd_place_does_not_hide_the_others(answer: object, tmp_path: Path) -> None:
    with views_of([{"name": "bad"}, {"name": "good"}], {"bad": answer}, tmp_path) as views:
        assert [table.name for table in views.listed(NOTHING, "s")] == ["good"]
        assert list(dict(views.locations(["s"]).items()).values()).count(str(tmp_path / "good.json")) == 1


@pytest.mark.parametrize("odd", ["bad", 5, None, {}, {"name": 5}, {"name": None}, {"name": ""}, {"name": "\ud800"}])
def test_an_entry_of_a_list_without_a_name_is_left_out(odd: object, tmp_path: Path) -> None:
    with views_of([odd, {"name": "good"}], {}, tmp_path) as views:
        assert list(views.locations(["s"])) == [TableName("s", "good")]


@pytest.mark.parametrize("odd", ["bad", 5, None, {}, {"name": 5}, {"name": "\ud800"}])
def test_odd_entries_hide_no_tables_and_schemas(odd: object) -> None:
    def reply(request: BaseHTTPRequestHandler) -> tuple[int, object]:
        if request.path.endswith("/namespaces"):
            return 200, {"namespaces": [["s"], odd, [odd], [], ["s", "within"]]}
        return 200, {"identifiers": [odd, {"name": "t"}]}

    with crooked(reply) as uri:
        cut = RestPointers(RestClient(uri, {})).cut()
    assert {TableName("s", "t")} <= set(cut.tables)
    assert all(isinstance(table.name, str) for table in cut.tables)


@pytest.mark.parametrize("listed", [5, "names", {"name": "v"}])
def test_a_list_that_is_none_is_an_error_of_ours(listed: object) -> None:
    with (
        crooked(lambda request: (200, {"identifiers": listed}), ENDPOINTS) as uri,
        pytest.raises(InternalError, match="something else than a list"),
    ):
        list(RestClient(uri, {}).pages("identifiers", "namespaces", "s", "views"))


@pytest.mark.parametrize("config", [{"defaults": None, "overrides": None}, {"defaults": {}, "overrides": {"a": "b"}}])
def test_a_table_without_a_place_is_an_error_of_the_catalog(config: dict[str, Any]) -> None:
    with (
        crooked(lambda request: (200, {"metadata": {}, "metadata-location": ""}), config) as uri,
        pytest.raises(Unavailable, match=r"where the metadata of table 's\.t' is"),
    ):
        RestPointers(RestClient(uri, {})).location(TableName("s", "t"))


@pytest.mark.parametrize(
    "config",
    [
        {"defaults": 5},
        {"overrides": ["a"]},
        {"defaults": "x"},
        {"overrides": {"prefix": ["a"]}},
        {"endpoints": 5},
        {"endpoints": [["a"]]},
        {"endpoints": "POST x"},
    ],
)
def test_a_configuration_that_is_none_is_refused(config: dict[str, Any]) -> None:
    with crooked(lambda request: (200, {}), config) as uri, pytest.raises(FailedPrecondition, match="usable Iceberg"):
        RestClient(uri, {}).get("namespaces")


def test_numbers_in_a_configuration_are_taken_as_texts() -> None:
    asked: list[str] = []

    def reply(request: BaseHTTPRequestHandler) -> tuple[int, object]:
        asked.append(request.path)
        return 200, {}

    with crooked(reply, {"overrides": {"prefix": 5, "scope": None}}) as uri:
        RestClient(uri, {}).get("namespaces")
    assert asked == ["/v1/5/namespaces"]


def test_an_answer_that_is_too_deep_is_none() -> None:
    with crooked(lambda request: (200, DEEP)) as uri, pytest.raises(Unavailable):
        RestClient(uri, {}).get("namespaces")


@pytest.mark.parametrize("tokens", [["a", "a"], ["a", "b", "a"], [5, 5], [{"a": 1}, {"a": 1}]])
def test_a_list_that_leads_back_to_a_page_ends(tokens: list[object]) -> None:
    asked: list[str] = []

    def reply(request: BaseHTTPRequestHandler) -> tuple[int, object]:
        asked.append(request.path)
        if len(asked) > 10:
            return 200, {}
        return 200, {"identifiers": [], "next-page-token": tokens[(len(asked) - 1) % len(tokens)]}

    with crooked(reply, ENDPOINTS) as uri, pytest.raises(Unavailable, match="same page again"):
        list(RestClient(uri, {}).pages("identifiers", "namespaces", "s", "views"))
    assert len(asked) == len(tokens)


def test_all_pages_of_a_list_are_followed() -> None:
    def reply(request: BaseHTTPRequestHandler) -> tuple[int, object]:
        _, _, token = request.path.partition("pageToken=")
        page = int(token or 0)
        return 200, {"identifiers": [page], "next-page-token": str(page + 1) if page < 3 else ""}

    with crooked(reply, ENDPOINTS) as uri:
        assert list(RestClient(uri, {}).pages("identifiers", "namespaces", "s", "views")) == [0, 1, 2, 3]
