"""What it costs everybody else that somebody has made a view."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pytest

from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.query import views
from sparkport.lakehouse.query.text import names_in
from sparkport.lakehouse.query.view_definition import new_view
from sparkport.lakehouse.query.views import LakeViews

pytestmark = pytest.mark.tier("fast")

VIEW = TableName("public", "id")


class _Records:
    def locations(self, schemas: Collection[str]) -> dict[TableName, str]:
        return {VIEW: "place"}

    shown = locations

    def location(self, view: TableName) -> str | None:
        return "place"


class _Files:
    def read_bytes(self, location: str) -> bytes:
        columns = pa.schema([("a", pa.int64())])
        return json.dumps(new_view("SELECT a FROM orders", columns, catalog="", schema="")).encode()


def test_the_query_of_a_view_is_read_once_however_often_its_name_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def counted(text: str) -> frozenset[str]:
        texts.append(text)
        return names_in(text)

    monkeypatch.setattr(views, "names_in", counted)
    records: Any = _Records()
    files: Any = _Files()
    lake = LakeViews(records, files, catalog="lake")
    orders = TableName("public", "orders")
    for _ in range(3):
        found = lake.named_by(
            frozenset({"id"}), lambda names: {orders} if "orders" in names else set(), schemas={"public"}
        )
        assert found == {VIEW, orders}
        assert lake.usable(found) == {VIEW: "place"}
    assert texts == ["SELECT a FROM orders"]
