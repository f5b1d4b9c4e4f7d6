"""The console of a lakehouse: history from real metadata, buttons that have Spark do something, and Spark away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from tests.console.rig import Visitor
from tests.support.lakehouse import lakehouse

from sparkport.app import HttpSettings, lakehouse_actions
from sparkport.client import connect
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer
from sparkport.testing import serving

pytestmark = pytest.mark.tier("thorough")

USERS = "/table?catalog=lake&schema=public&name=users"
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"name{number}" for number in ids]}, schema=COLUMNS)


def wait_until(looked_at: Callable[[], str], words: str) -> str:
    """Until a page says so; the test's own time limit ends it otherwise."""
    while words not in (text := looked_at()):
        pass
    return text


def test_pages_and_buttons_of_a_lakehouse(tmp_path: Path) -> None:
    with (
        lakehouse(tmp_path) as opened,
        serving(opened.catalog, http=HttpSettings(port=0), actions=lakehouse_actions(opened)) as server,
        connect(server.location, catalog="lake") as client,
    ):
        assert server.http_location is not None
        visitor = Visitor(server.http_location)
        client.create_table("public.users", COLUMNS)
        assert "The table has no rows." in visitor.get(f"{USERS}&show=rows").text
        for number in range(1, 4):
            client.insert("public.users", rows(number))
        (row,) = client.scan("public.users").read_all().slice(0, 1).to_pylist()
        assert row["name"] == "name1"
        history = visitor.get(f"{USERS}&show=history").text
        assert history.count(">insert<") == 3
        assert 'class="chart"' in history
        assert "name3" in visitor.get(f"{USERS}&show=rows").text
        assert visitor.press(USERS, "/maintain", catalog="lake", schema="public", name="users").status == 303
        text = wait_until(lambda: visitor.get("/maintenance").text, ">done<")
        assert "3 small files put together, 1 file written for them" in text
        assert ">compaction<" in visitor.get(f"{USERS}&show=history").text
        client.set_journal("public.users", True)
        assert visitor.press("/journal", "/flush").status == 303
        wait_until(lambda: visitor.get("/journal").text, ">done<")
        for path in ("/", "/tables", "/slow"):
            assert visitor.get(path).status == 200


@contextmanager
def without_spark(warehouse: Path) -> Iterator[Visitor]:
    """The console of a lakehouse whose Spark is stopped."""
    settings = LakehouseSettings(warehouse=str(warehouse))
    away = SparkServer(settings)
    away.stop()
    with (
        Lakehouse(settings, spark=away) as alone,
        serving(alone.catalog, http=HttpSettings(port=0), actions=lakehouse_actions(alone)) as server,
    ):
        assert server.http_location is not None
        yield Visitor(server.http_location)


def test_without_spark_everything_can_be_seen_and_maintenance_says_why_it_failed(tmp_path: Path) -> None:
    with (
        lakehouse(tmp_path) as opened,
        serving(opened.catalog) as server,
        connect(server.location, catalog="lake") as client,
    ):
        client.create_table("public.users", COLUMNS)
        client.insert("public.users", rows(1, 2))
        client.insert("public.users", rows(3))
    with without_spark(tmp_path) as visitor:
        assert "Spark stopped" in visitor.get("/").text
        assert "name3" in visitor.get(f"{USERS}&show=rows").text
        assert visitor.get(f"{USERS}&show=history").text.count(">insert<") == 2
        assert visitor.press(USERS, "/maintain", catalog="lake", schema="public", name="users").status == 303
        assert "Spark is stopped" in wait_until(lambda: visitor.get("/maintenance").text, ">failed<")


def test_a_table_whose_metadata_cannot_be_read_spoils_no_other_page(tmp_path: Path) -> None:
    with (
        lakehouse(tmp_path) as opened,
        serving(opened.catalog) as server,
        connect(server.location, catalog="lake") as client,
    ):
        for name in ("users", "gone"):
            client.create_table(f"public.{name}", COLUMNS)
        (location,) = [
            place for table, place in opened.engine.storage.pointers.cut().tables.items() if table.name == "gone"
        ]
    Path(urlsplit(location).path).write_text("{")
    with without_spark(tmp_path) as visitor:
        for path in ("/", "/tables", "/maintenance"):
            answer = visitor.get(path)
            assert answer.status == 200
            assert "users" in answer.text or path == "/"
        answer = visitor.get("/table?catalog=lake&schema=public&name=gone")
        assert answer.status == 500
        assert "cannot be read" in answer.text
        assert str(tmp_path) not in answer.text
