"""Backups while transactions, flushes, DDL and maintenance go on: each is of one instant, and stays whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.lakehouse.backups import QUIET, backup_of, problems, restored
from tests.lakehouse.handles import NOBODY, Handle, create
from tests.lakehouse.transacting import FIVE, Tx, people
from tests.support.lakehouse import Lake, lakehouse, maintenance_of

from sparkport.catalog.ddl import AddColumn
from sparkport.errors import Conflict
from sparkport.lakehouse.iceberg.metadata import load
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

EAGER = MaintenanceSettings(retention_seconds=0, grace_seconds=0, metadata_seconds=0, small_files=2)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=JournalSettings(seconds=0.3)) as opened:
        yield Lake(opened)


@contextmanager
def going_on(*works: Callable[[int], None]) -> Iterator[None]:
    """Each again and again, in a thread of its own, until the block ends. None of them may fail."""
    ending = threading.Event()
    failed: list[BaseException] = []

    def repeat(work: Callable[[int], None]) -> None:
        number = 0
        while not ending.is_set():
            number += 1
            try:
                work(number)
            except Conflict:
                continue
            except BaseException as exc:
                failed.append(exc)
                return

    threads = [threading.Thread(target=repeat, args=(work,), name=f"work-{work}") for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    assert failed == []


def numbers(table: Handle) -> set[int]:
    return {row["id"] for row in table.sparkport().values()}


def test_what_is_committed_together_is_backed_up_together(lake: Lake, tmp_path: Path) -> None:
    pairs = {"left": True, "right": True, "plain_left": False, "plain_right": False}
    tables = {name: create(lake, name, FIVE) for name in pairs}
    for name, journalled in pairs.items():
        if journalled:
            lake.opened.journal.set(NOBODY, tables[name].current.table, True)
    maintenance = maintenance_of(lake.opened, EAGER, later=10)

    def both(*names: str) -> Callable[[int], None]:
        def work(number: int) -> None:
            tx = Tx(lake)
            for name in names:
                tables[name].insert(people((number + 100, f"{number}")), tx.ctx)
            tx.commit()

        return work

    def maintain(number: int) -> None:
        for name in pairs:
            maintenance.run(TableName("public", name))

    with going_on(both("left", "right"), both("plain_left", "plain_right"), maintain):
        made = []
        for _ in range(4):
            made.append(backup_of(lake, tmp_path / "backups"))
            assert problems(lake.opened.settings) == []
    assert [report.number for report in made] == [1, 2, 3, 4]
    seen: list[dict[str, set[int]]] = []
    for report in made:
        warehouse = tmp_path / f"new{report.number}"
        settings = restored(tmp_path / "backups", warehouse, report.number)
        assert problems(settings) == []
        with lakehouse(warehouse, journal=QUIET) as opened:
            new = Lake(opened)
            rows = {name: numbers(Handle(new, name)) for name in pairs}
            assert rows["left"] == rows["right"]
            assert rows["plain_left"] == rows["plain_right"]
            opened.journal.flush(60)
            for name in pairs:
                assert {row["id"] for row in Handle(new, name).agreed().values()} == rows[name]
        seen.append(rows)
    for name in pairs:
        assert seen[0][name] <= seen[1][name] <= seen[2][name] <= seen[3][name] <= numbers(tables[name])
    assert seen[0]["left"] < seen[3]["left"]


def test_tables_that_come_and_go_meanwhile_do_no_harm(lake: Lake, tmp_path: Path) -> None:
    def ddl(number: int) -> None:
        table = create(lake, f"short{number}", FIVE)
        table.alter(AddColumn(pa.field("more", pa.int32())))
        table.delete([table.ids()[1]])
        with lake.spark() as spark:
            spark.sql(f"ALTER TABLE lake.public.short{number} RENAME TO public.renamed{number}").collect()
            spark.sql(f"CREATE OR REPLACE TABLE lake.public.again USING iceberg AS SELECT {number} AS id").collect()
            spark.sql(f"DROP TABLE lake.public.renamed{number} PURGE").collect()

    with going_on(ddl):
        made = [backup_of(lake, tmp_path / "backups") for _ in range(6)]
        assert [problems(lake.opened.settings) for _ in range(6)] == [[]] * 6
    assert [report.number for report in made] == list(range(1, 7))
    for report in made[::2]:
        assert problems(restored(tmp_path / "backups", tmp_path / f"new{report.number}", report.number)) == []
    assert problems(lake.opened.settings) == []


def test_versions_stay_while_they_are_copied_and_go_afterwards(lake: Lake, tmp_path: Path) -> None:
    table = create(lake, "versions", FIVE)
    for number in range(3):
        table.insert(people((number + 10, "more")))
    maintenance = maintenance_of(lake.opened, EAGER, later=100)
    name = TableName("public", "versions")
    reports: list[dict[str, Any]] = []
    once = threading.Lock()

    def tell(what: str, done: int, total: int) -> None:
        if what == "copying files" and once.acquire(blocking=False):
            reports.append(maintenance.run(name, ["expire", "metadata"]).as_dict())

    backup_of(lake, tmp_path / "backups", tell=tell)
    assert len(reports) == 1
    assert "expired_snapshots" not in reports[0]
    new = restored(tmp_path / "backups", tmp_path / "new")
    assert problems(new) == []
    assert maintenance.run(name, ["expire"]).as_dict()["expired_snapshots"] >= 3
    location = lake.pointers.location(name)
    assert location is not None
    assert len(load(lake.opened.engine.storage.files, location).snapshots) == 1


def test_a_purge_of_another_tool_makes_it_begin_again(lake: Lake, tmp_path: Path) -> None:
    table = create(lake, "purged", FIVE)
    kept = create(lake, "kept", FIVE).agreed()
    once = threading.Lock()

    def tell(what: str, done: int, total: int) -> None:
        if what == "reading metadata of tables" and done == total - 1 and once.acquire(blocking=False):
            table.sql("DROP TABLE {t} PURGE")

    backup_of(lake, tmp_path / "backups", tell=tell)
    restored(tmp_path / "backups", tmp_path / "new")
    with lakehouse(tmp_path / "new", journal=QUIET) as opened:
        new = Lake(opened)
        assert Handle(new, "kept").agreed() == kept
        assert TableName("public", "purged") not in new.pointers.cut().tables


def test_what_all_these_have_left_is_well(lake: Lake) -> None:
    assert problems(lake.opened.settings) == []
