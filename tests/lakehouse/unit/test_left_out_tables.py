"""Tables that cannot be read: listings go on without them, and say which they are."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lakehouse.small import SERVED, small_lake

from sparkport.app import Server, lakehouse_actions
from sparkport.cli.remote import Remote
from sparkport.cli.status import status
from sparkport.errors import InternalError
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.tables import versions as versions_module

pytestmark = pytest.mark.tier("fast")

WHOLE, BROKEN = SERVED[:2]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lakehouse]:
    lake = Lakehouse(small_lake(tmp_path, (WHOLE, BROKEN)))
    location = lake.engine.storage.pointers.location(TableName("public", BROKEN))
    assert location is not None
    Path(location).write_text("{")
    try:
        yield lake
    finally:
        lake.stop()


def test_status_names_a_table_that_cannot_be_read_and_goes_on(lake: Lakehouse) -> None:
    out = io.StringIO()
    with Server(lake.catalog, port=0, actions=lakehouse_actions(lake)) as server:
        assert status(Remote(location=server.location), out) == 0
    lines = out.getvalue().splitlines()
    assert any(line.startswith(f"catalog lake: table public.{BROKEN} cannot be read: ") for line in lines)
    assert any("catalog lake: version" in line for line in lines)
    assert WHOLE not in out.getvalue().replace(BROKEN, "")


def test_a_table_that_is_slow_to_fail_holds_up_one_listing_and_is_listed_when_it_is_mended(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions, cut = lake.engine.versions, lake.engine.storage.pointers.cut()
    broken = TableName("public", BROKEN)
    now = 1_000.0
    asked: list[TableName] = []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now

    def slow(table: TableName, location: str) -> TableVersion:
        nonlocal now
        asked.append(table)
        now += 5.0
        raise InternalError("it cannot be read")

    monkeypatch.setattr(versions_module, "time", Clock)
    monkeypatch.setattr(versions, "at", slow)
    assert versions.listed(broken, cut) is versions.listed(broken, cut) is None
    assert asked == [broken]
    assert versions.left_out() == {broken: "it cannot be read"}
    now += 61.0
    assert versions.listed(broken, cut) is None
    assert asked == [broken, broken]
    monkeypatch.undo()
    whole = TableName("public", WHOLE)
    assert versions.listed(whole, cut) is not None
    assert whole not in versions.left_out()
