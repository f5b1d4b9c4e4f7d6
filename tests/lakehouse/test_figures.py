"""What a lakehouse tells about itself: readiness, figures, and the steps of its statements."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.lakehouse import Lake, lakehouse
from tests.support.spark import shared_spark

from sparkport.app import ObserveSettings
from sparkport.catalog.figures import Distribution, Figure
from sparkport.client import connect
from sparkport.errors import Unavailable
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.testing import serving

pytestmark = pytest.mark.tier("thorough")

ROWS = pa.table({"n": [1, 2, 3]})


def told(figures: Iterable[Figure]) -> dict[tuple[str, str], float]:
    """By the name and the value of the one label that it has, if any."""
    return {
        (figure.name, [*figure.labels.values(), ""][0]): figure.value
        for figure in figures
        if not isinstance(figure.value, Distribution)
    }


@pytest.mark.tier("fast")
def test_tables_commits_and_spark_are_told_of(lake: Lake) -> None:
    opened = lake.opened
    shared_spark().wait_ready(300)
    observe = ObserveSettings(slow_seconds=1e-9)
    with serving(opened.catalog, observe=observe) as server, connect(server.location) as client:
        client.create_table("public.counted", ROWS.schema)
        client.create_table("public.idle", ROWS.schema)
        for _ in range(3):
            client.insert("public.counted", ROWS)
        ids = client.scan("public.counted", row_id=True).read_all()["rowid"].to_pylist()
        client.delete("public.counted", ids[:2])
        steps = [part.name for call in server.calls.slow() if call.action == "insert" for part in call.steps]
    assert {"stage", "wait", "apply", "publish", "commit"} <= set(steps)
    opened.figures.look()
    found = told(opened.catalog.figures())
    assert found["table_files", "public.counted"] == 3
    assert found["table_small_files", "public.counted"] == 3
    assert found["table_delete_files", "public.counted"] >= 1
    assert found["table_snapshots", "public.counted"] >= 4
    assert found["table_rows", "public.counted"] == 9
    assert found["table_bytes", "public.counted"] > 0
    assert found["table_files", "public.idle"] == 0
    assert ("table_small_files", "public.idle") not in found
    assert ("table_maintained_timestamp_seconds", "public.counted") not in found
    assert found["spark_state", "ready"] == 1
    assert found["commits_waiting", ""] == 0
    assert found["journal_entries", ""] == 0
    assert found["cache_misses", "plans"] > 0
    sizes = next(figure.value for figure in opened.catalog.figures() if figure.name == "commit_group_size")
    assert isinstance(sizes, Distribution)
    assert sizes.buckets()[0][-1][1] >= 4
    opened.maintenance.run(TableName("public", "counted"), ["compact"])
    opened.figures.look()
    found = told(opened.catalog.figures())
    assert found["table_maintained_timestamp_seconds", "public.counted"] > 1_700_000_000
    assert opened.catalog.readiness().writes


def test_a_dropped_table_is_told_of_no_more(lake: Lake) -> None:
    with serving(lake.opened.catalog) as server, connect(server.location) as client:
        client.create_table("public.gone", ROWS.schema)
        lake.opened.figures.look()
        assert ("table_files", "public.gone") in told(lake.opened.catalog.figures())
        client.drop_table("public.gone")
        lake.opened.figures.look()
        assert ("table_files", "public.gone") not in told(lake.opened.catalog.figures())


def test_what_the_journal_holds_is_told(tmp_path: Path) -> None:
    settings = JournalSettings(new_tables=True, seconds=3_600)
    with lakehouse(tmp_path, journal=settings) as opened:
        with serving(opened.catalog) as server, connect(server.location) as client:
            client.create_table("public.quick", ROWS.schema)
            client.insert("public.quick", ROWS)
        opened.figures.look()
        found = told(opened.catalog.figures())
        assert found["journal_entries", ""] == 1
        assert found["journal_rows", ""] == 3
        assert found["journal_bytes", ""] > 0
        assert found["journal_lag_seconds", ""] >= 0


def test_a_lakehouse_without_spark_can_be_read_and_not_written(tmp_path: Path) -> None:
    opened = Lakehouse(LakehouseSettings(warehouse=str(tmp_path), spark="sc://127.0.0.1:1"))
    try:
        opened.figures.look()
        ready = opened.catalog.readiness()
        assert (ready.reads, ready.writes) == (True, False)
        assert ready.why == "Spark is starting"
    finally:
        opened.stop()


def test_a_catalog_that_does_not_answer_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Lakehouse(LakehouseSettings(warehouse=str(tmp_path), spark="sc://127.0.0.1:1"))

    def unreachable() -> None:
        raise Unavailable("the database at postgresql://secret@host is away")

    try:
        monkeypatch.setattr(opened.engine.storage.pointers, "cut", unreachable)
        opened.figures.look()
        ready = opened.catalog.readiness()
        assert (ready.reads, ready.writes, ready.why) == (False, False, "the catalog does not answer")
        monkeypatch.undo()
        opened.figures.look()
        assert opened.catalog.readiness().reads
    finally:
        opened.stop()


def test_only_so_many_tables_are_told_of(tmp_path: Path) -> None:
    opened = Lakehouse(LakehouseSettings(warehouse=str(tmp_path), spark="sc://127.0.0.1:1"))
    try:
        with serving(opened.catalog) as server, connect(server.location) as client:
            for number in range(4):
                client.create_table(f"public.t{number}", ROWS.schema)
        opened.figures.most_tables = 2
        opened.figures.look()
        assert told(opened.catalog.figures())["tables_told", ""] == 2
    finally:
        opened.stop()
