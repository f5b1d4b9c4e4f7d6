"""The journal between servers, over its limits, and with tables that others drop or rename."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.lakehouse.handles import Handle, create
from tests.lakehouse.transacting import FIVE, Tx, by_key, names, people, wait_until
from tests.support.lakehouse import Lake, die, lakehouse
from tests.support.spark import shared_spark

from sparkport.errors import Conflict, FailedPrecondition, InternalError, Unavailable
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings

pytest_plugins = ["tests.support.services"]
pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

_numbers = count()
BY_HAND = JournalSettings(new_tables=True, seconds=3_600.0)


def server(folder: Path, uri: str | None, journal: JournalSettings = BY_HAND) -> Lakehouse:
    settings = LakehouseSettings(warehouse=str(folder / "warehouse"), catalog_uri=uri, sessions=2)
    return Lakehouse(settings, spark=shared_spark(), journal=journal)


@pytest.fixture
def pair(uri: str, tmp_path: Path) -> Iterator[tuple[Lake, Lake]]:
    with ExitStack() as stack:
        yield tuple(Lake(stack.enter_context(server(tmp_path, uri))) for _ in range(2))  # type: ignore[misc]


def test_two_servers_share_the_journal(pair: tuple[Lake, Lake]) -> None:
    one, two = pair
    here = create(one, "t", FIVE)
    there = Handle(two, "t")
    assert by_key(there.sparkport()) == {n: f"n{n}" for n in range(5)}
    ids = there.ids()
    there.update([ids[0]], names("there"))
    assert by_key(here.sparkport())[0] == "there"

    # A transaction of one server is open over a flush by the other, and then changes a row that was new.
    tx = Tx(one)
    assert by_key(here.sparkport(tx.ctx))[0] == "there"
    assert two.opened.journal.flush(60).rows == 5
    here.update([ids[1]], names("here"), tx.ctx)
    there.insert(people((9, "there")))
    tx.commit()
    assert by_key(there.sparkport()) == {0: "there", 1: "here", 2: "n2", 3: "n3", 4: "n4", 9: "there"}

    # Of two that change one row at two servers the first wins.
    loser = Tx(two)
    there.update([there.ids()[2]], names("loser"), loser.ctx)
    here.update([here.ids()[2]], names("winner"))
    with pytest.raises(Conflict, match="1 row changed by another transaction"):
        loser.commit()
    assert one.opened.journal.flush(60).rows > 0
    assert by_key(there.agreed(pyiceberg=False))[2] == "winner"


def test_both_commit_and_both_flush_at_once_and_each_row_is_there_once(pair: tuple[Lake, Lake]) -> None:
    create(pair[0], "t", FIVE)
    handles = [Handle(lake, "t") for lake in pair]
    over = threading.Event()

    def flush(lake: Lake) -> None:
        while not over.is_set():
            lake.opened.journal.flush(60)

    def insert(number: int) -> None:
        for each in range(20):
            handles[number % 2].insert(people((100 + number * 20 + each, "new")))

    with ThreadPoolExecutor(6) as pool:
        flushing = [pool.submit(flush, lake) for lake in pair]
        for done in [pool.submit(insert, number) for number in range(4)]:
            done.result(120)
        over.set()
        for each in flushing:
            each.result(120)
    pair[0].opened.journal.flush(60)
    for handle in handles:
        assert sorted(by_key(handle.agreed(pyiceberg=False))) == [*range(5), *range(100, 180)]


def test_what_a_dead_server_left_is_taken_up_by_the_next(uri: str, tmp_path: Path) -> None:
    with server(tmp_path, uri) as dead:
        table = create(Lake(dead), "t", FIVE)
        table.insert(people((9, "left")))
        die(dead.engine.storage.staging)
        dead.journal.stop = lambda: None  # type: ignore[method-assign]  # as one that is killed does not
    fast = replace(BY_HAND, seconds=0.1)
    with server(tmp_path, uri, fast) as opened:
        lake = Lake(opened)
        assert by_key(Handle(lake, "t").sparkport())[9] == "left"
        waiting = threading.Event()
        for _ in range(600):
            if not opened.journal.status():
                break
            waiting.wait(0.1)
        assert by_key(Handle(lake, "t").agreed(pyiceberg=False))[9] == "left"


# One server


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lakehouse(
        tmp_path_factory.mktemp("lake") / "warehouse", journal=replace(BY_HAND, bytes=10_000, limit=20_000)
    ) as opened:
        yield Lake(opened)


@pytest.fixture
def table(lake: Lake) -> Handle:
    table = create(lake, f"t{next(_numbers)}", FIVE)
    lake.opened.journal.flush(60)
    return table


def test_a_journal_that_is_full_refuses_changes_and_says_why(lake: Lake, table: Handle) -> None:
    lake.opened.journal.failure = "Spark is gone, for a test"
    taken = 0

    def fill() -> None:
        nonlocal taken
        for taken in range(100):
            table.insert(people((100 + taken, "x" * 1_000)))

    full = threading.Event()

    def hold() -> None:  # the flush that is due by then would make room
        full.wait(60)

    on_fault("apply.before", hold)
    try:
        with pytest.raises(Unavailable, match=r"the journal holds .* of 20,000: Spark is gone, for a test"):
            fill()
    finally:
        full.set()
        on_fault("apply.before", None)
    assert 5 < taken < 20
    assert len(table.sparkport()) == 5 + taken
    lake.opened.journal.flush(60)
    table.insert(people((99, "again")))
    assert len(table.sparkport()) == 6 + taken
    lake.opened.journal.flush(60)


def test_a_flush_that_fails_for_long_and_then_works(tmp_path: Path) -> None:
    """Nothing is lost, changes go on meanwhile, and everybody can see why."""
    tries: list[int] = []
    works = threading.Event()

    def fail() -> None:
        tries.append(1)
        if not works.is_set():
            raise InternalError("Spark fails, for a test")

    with lakehouse(tmp_path, journal=replace(BY_HAND, seconds=0.02)) as opened:
        on_fault("apply.before", fail)
        try:
            table = create(Lake(opened), "t", FIVE)
            for number in range(30):
                table.insert(people((100 + number, "meanwhile")))
            wait_until(lambda: len(tries) > 5)
            assert [status.failure for status in opened.journal.status()] == ["Spark fails, for a test"]
            assert len(table.sparkport()) == 35
            works.set()
            wait_until(lambda: not opened.journal.status())
        finally:
            on_fault("apply.before", None)
        assert len(table.agreed(pyiceberg=False)) == 35


def test_who_changes_rows_of_his_own_is_never_refused_beside_flushes(tmp_path: Path) -> None:
    """As without a journal: whatever a flush does to the rows is no change."""
    with lakehouse(tmp_path, journal=replace(BY_HAND, seconds=0.02)) as opened:
        lake = Lake(opened)
        tables = [create(lake, f"t{number}", people(*((key, "n") for key in range(8)))) for number in range(2)]

        def change(key: int) -> None:
            for step in range(12):
                tx = Tx(lake)
                for table in tables:
                    ids = {row["id"]: row_id for row_id, row in table.sparkport(tx.ctx).items()}
                    table.update([ids[key]], names(f"{key}-{step}"), tx.ctx)
                tx.commit()

        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(change, key) for key in range(8)]:
                done.result(200)
        opened.journal.flush(60)
        for table in tables:
            assert by_key(table.agreed(pyiceberg=False)) == {key: f"{key}-11" for key in range(8)}


def test_a_table_that_others_drop_leaves_its_rows_aside(
    lake: Lake, table: Handle, caplog: pytest.LogCaptureFixture
) -> None:
    table.update([table.ids()[0]], names("lost"))
    table.insert(people((9, "lost too")))
    table.sql("DROP TABLE {t}")
    lake.opened.journal.flush(60)
    (place,) = [record.args[1] for record in caplog.records if "was dropped by others" in record.getMessage()]  # type: ignore[index]
    rows = pq.read_table(place).to_pylist()
    assert [(row["change"], row["id"], row["name"]) for row in rows] == [
        ("updated", 0, "lost"),
        ("inserted", 9, "lost too"),
    ]
    assert lake.opened.journal.status() == []


def test_a_table_that_others_rename_keeps_its_entries(lake: Lake, table: Handle) -> None:
    table.insert(people((9, "kept")))
    table.sql(f"ALTER TABLE {{t}} RENAME TO public.{table.name}_renamed")
    renamed = Handle(lake, f"{table.name}_renamed")
    assert by_key(renamed.sparkport())[9] == "kept"
    lake.opened.journal.flush(60)
    assert by_key(renamed.agreed())[9] == "kept"


def test_rows_that_others_have_changed_meanwhile_are_counted(
    lake: Lake, table: Handle, caplog: pytest.LogCaptureFixture
) -> None:
    ids, flusher = table.ids(), lake.opened.engine.flusher
    before = flusher.overwritten, flusher.deleted
    table.update([ids[0], ids[1], ids[2]], names("ours", "ours", "ours"))
    table.sql("UPDATE {t} SET name = 'Spark' WHERE id IN (0, 3)", "DELETE FROM {t} WHERE id = 1")
    lake.opened.journal.flush(60)
    assert by_key(table.agreed()) == {0: "ours", 2: "ours", 3: "Spark", 4: "n4"}
    assert (flusher.overwritten - before[0], flusher.deleted - before[1]) == (1, 1)
    assert "1 rows that others had changed" in caplog.text


def test_a_journal_of_a_newer_sparkport_is_not_read_as_ours(lake: Lake, table: Handle) -> None:
    table.insert(people((9, "newer")))
    with sqlite3.connect(lake.warehouse / "catalog.db") as database:
        database.execute("UPDATE sparkport_journal_entries SET format = 2")
    with pytest.raises(FailedPrecondition, match="written by a newer sparkport"):
        server(lake.warehouse.parent, None)
    with sqlite3.connect(lake.warehouse / "catalog.db") as database:
        database.execute("UPDATE sparkport_journal_entries SET format = 1")
    lake.opened.journal.flush(60)
