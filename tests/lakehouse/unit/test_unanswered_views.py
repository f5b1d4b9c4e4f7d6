"""A view whose row may have been written keeps its metadata; one that a catalog says is there may be ours, or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.lakehouse.crooked_catalog import crooked

from sparkport.errors import AlreadyExists, Unavailable
from sparkport.lakehouse.catalogs.rest_client import RestClient
from sparkport.lakehouse.catalogs.rest_views import RestViewRecords
from sparkport.lakehouse.catalogs.view_records import SqlViewRecords
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.query.view_definition import new_view

pytestmark = pytest.mark.tier("fast")

ENDPOINTS = {"endpoints": ["GET /v1/{prefix}/namespaces/{namespace}/views"]}


class _Duplicate(Exception):
    pass


class _Database:
    """Its transactions end with an error, and nobody knows what became of them."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[Any]:
        class Work:
            def change(self, sql: str, values: list[object]) -> int:
                return 1

        yield Work()
        raise self._error

    def is_duplicate(self, exc: Exception) -> bool:
        return isinstance(exc, _Duplicate)


@pytest.mark.parametrize(("error", "kept"), [(Unavailable("no answer"), 1), (_Duplicate(), 0)])
def test_only_metadata_that_no_row_leads_to_is_removed(error: Exception, kept: int, tmp_path: Path) -> None:
    database: Any = _Database(error)
    records = SqlViewRecords(database, "lake", files=FileSystem(), warehouse=str(tmp_path))
    with pytest.raises((Unavailable, AlreadyExists)):
        records.create(TableName("public", "v"), {"view-uuid": "u"})
    files = list(tmp_path.rglob("*.metadata.json"))
    assert len(files) == kept
    assert all(json.loads(path.read_text())["view-uuid"] == "u" for path in files)


class _Rest:
    """Makes a view or not, and answers with a status in any case; None means that it hangs up."""

    def __init__(self, *, makes: bool, status: int | None, there: object = None) -> None:
        self._makes = makes
        self._status = status
        self.there = there

    def reply(self, request: Any) -> tuple[int, object] | None:
        if request.command == "GET":
            return (404, {}) if self.there is None else (200, {"metadata-location": "place", "metadata": self.there})
        asked = json.loads(request.body)
        if self._makes:  # with an id and times of its own, as Iceberg's reference server does
            version = {**asked["view-version"], "timestamp-ms": 1, "summary": {}}
            self.there = {
                "view-uuid": "its own",
                "current-version-id": version["version-id"],
                "versions": [version],
                "properties": asked["properties"],
            }
        return None if self._status is None else (self._status, {"error": {"type": "AlreadyExistsException"}})


def _new() -> dict[str, Any]:
    return new_view("SELECT 1 AS id", pa.schema([("id", pa.int64())]), catalog="lake", schema="s")


@pytest.mark.parametrize("status", [409, 503, None])
def test_a_view_that_was_made_is_known_again_whatever_the_answer(status: int | None) -> None:
    rest = _Rest(makes=True, status=status)
    with crooked(rest.reply, ENDPOINTS) as uri:
        RestViewRecords(RestClient(uri, {})).create(TableName("s", "v"), _new())
    assert rest.there is not None


@pytest.mark.parametrize(("status", "error"), [(409, AlreadyExists), (503, Unavailable), (None, Unavailable)])
@pytest.mark.parametrize("odd", [False, True])
def test_the_same_view_of_somebody_else_is_not_taken_for_ours(
    status: int | None, error: type[Exception], odd: bool
) -> None:
    rest = _Rest(makes=False, status=status, there=["odd"] if odd else _new())
    with crooked(rest.reply, ENDPOINTS) as uri, pytest.raises(error):
        RestViewRecords(RestClient(uri, {})).create(TableName("s", "v"), _new())
