"""Rows that were new in the journal: they are found by the ids that they had there, or it is said that they are not.

Spark gives them other ids when they are published. Nothing that waits may need a record of that which is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.lakehouse.small import backed_up, checked, to_new
from tests.lakehouse.transacting import THREE, Tx, at_point, by_key, names, people
from tests.support.lakehouse import Lake, lakehouse

from sparkport.catalog import CallContext
from sparkport.catalog.ddl import AddColumn, SetComment
from sparkport.errors import Conflict, FailedPrecondition, InternalError
from sparkport.lakehouse.catalogs.journal_records import JournalRecords
from sparkport.lakehouse.catalogs.journal_state import Entry
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.journal.net import FIRST_ID, RowChange, entry_body
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.names import TableName

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

SETTINGS = JournalSettings(new_tables=True, seconds=3_600.0)
CHANGED = {0: "changed", 2: "n2"}
_numbers = count()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Its journal is applied when a test asks for it."""
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=SETTINGS) as opened:
        yield Lake(opened)


@pytest.fixture
def table(lake: Lake) -> Handle:
    return create(lake, f"t{next(_numbers)}", THREE)


def flush(lake: Lake) -> int:
    return lake.opened.journal.flush(60).rows


def records_of(lake: Lake) -> JournalRecords:
    records = lake.pointers.journal
    assert records is not None
    return records


@contextmanager
def elsewhere(lake: Lake) -> Iterator[Lake]:
    """Another server on the same catalog, started now."""
    with lakehouse(lake.warehouse, journal=SETTINGS) as opened:
        yield Lake(opened)


@contextmanager
def later(lake: Lake, seconds: float) -> Iterator[None]:
    records = records_of(lake)
    records.clock = lambda: time.time() + seconds
    try:
        yield
    finally:
        records.clock = time.time


def changed_while_it_is_flushed(lake: Lake, table: Handle) -> None:
    """Row 0 is updated and row 1 deleted, by the ids of the journal, while Spark publishes them under others."""
    ids = table.ids()
    assert min(ids.values()) >= FIRST_ID

    def change() -> None:
        table.update([ids[0]], names("changed"))
        table.delete([ids[1]])

    with at_point("publish.before", change):
        flush(lake)
    assert by_key(table.sparkport()) == CHANGED


def forget_flushes(lake: Lake) -> None:
    """As if an hour had gone by, whoever looks."""
    with records_of(lake).changing() as work:
        work.change("UPDATE sparkport_journal_flushes SET flushed_at = flushed_at - 7200", [])


# What waits


@pytest.mark.tier("fast")
def test_changes_of_rows_that_are_published_meanwhile_hold_when_the_flush_is_long_ago(
    lake: Lake, table: Handle
) -> None:
    changed_while_it_is_flushed(lake, table)
    forget_flushes(lake)
    with elsewhere(lake) as other:
        assert by_key(Handle(other, table.name).sparkport()) == CHANGED
    assert not checked(lake.opened.settings).found
    with later(lake, 7_200.0):
        other_table = create(lake, f"t{next(_numbers)}", THREE)
        flush(lake)
    assert by_key(table.agreed()) == CHANGED
    assert by_key(other_table.agreed()) == by_key(dict(enumerate(THREE.to_pylist())))


def test_a_backup_that_is_restored_the_next_day_has_all_that_was_acknowledged(
    lake: Lake, table: Handle, tmp_path: Path
) -> None:
    changed_while_it_is_flushed(lake, table)
    backed_up(lake.opened.settings, tmp_path / "backup")
    restored = to_new(tmp_path / "backup", tmp_path / "restored")
    with closing(open_database(restored.database_uri)) as database, database.transaction(write=True) as work:
        work.change("UPDATE sparkport_journal_flushes SET flushed_at = flushed_at - 86400", [])
    with lakehouse(tmp_path / "restored", journal=SETTINGS) as opened:
        again = Lake(opened)
        with later(again, 86_400.0):
            assert by_key(Handle(again, table.name).sparkport()) == CHANGED
            create(again, "another", THREE)
            flush(again)
            assert by_key(Handle(again, table.name).agreed(pyiceberg=False)) == CHANGED
    assert not checked(restored).found


def test_rows_are_moved_once_more_by_the_next_flush(lake: Lake, table: Handle) -> None:
    """New rows and changes of them come at each of three flushes, and what came before is forgotten each time."""
    expected = by_key(table.sparkport())
    for number in range(3, 6):

        def change(number: int = number) -> None:
            ids = table.ids()
            table.insert(people((number, "new")))
            table.update([ids[number - 1], table.ids()[number]], names(f"u{number - 1}", f"u{number}"))

        expected |= {number - 1: f"u{number - 1}", number: f"u{number}"}
        with at_point("publish.before", change):
            flush(lake)
        forget_flushes(lake)
        assert by_key(table.sparkport()) == expected
    flush(lake)
    assert by_key(table.agreed()) == expected


def test_an_entry_about_a_row_that_nobody_knows_stops_the_flush_and_the_reads_of_its_table_and_is_found(
    lake: Lake, table: Handle
) -> None:
    """As an older sparkport may have left it: nothing is dropped, nothing is shown twice."""
    flush(lake)
    healthy = create(lake, f"t{next(_numbers)}", THREE)
    version, records = table.current, records_of(lake)
    body = entry_body(np.array([FIRST_ID + (1 << 40)]), np.array([RowChange.DELETED], np.int8), [], [])
    with records.changing() as work:
        view, revision = records.advance(work)
        entry = Entry(revision, version.sequence_number, 1, time.time(), body)
        records.append(work, view.by_uuid[version.uuid], entry)
    with pytest.raises(InternalError, match="cannot be found"):
        table.sparkport()
    found = [finding for finding in checked(lake.opened.settings).found if "cannot be found" in finding.problem]
    assert len(found) == 1
    with pytest.raises(FailedPrecondition, match="cannot be found"):
        flush(lake)
    assert by_key(healthy.agreed()) == by_key(dict(enumerate(THREE.to_pylist())))
    with records.changing() as work:
        _, revision = records.advance(work)
        records.remove(work, [version.uuid], revision)
    flush(lake)


# Transactions


def _by_the_clock(lake: Lake, table: Handle) -> None:
    forget_flushes(lake)
    with later(lake, 7_200.0):
        table.insert(people((9, "later")))
        flush(lake)


def _by_the_room(lake: Lake, table: Handle) -> None:
    records = records_of(lake)
    room, records.remember_bytes = records.remember_bytes, 4_000
    try:
        table.insert(people(*((number, "later") for number in range(1_000, 1_400))))
        flush(lake)
        table.sparkport()
    finally:
        records.remember_bytes = room


@pytest.mark.parametrize("forget", [_by_the_clock, _by_the_room])
@pytest.mark.parametrize("change", ["delete", "update"])
def test_a_transaction_that_is_older_than_the_memory_of_its_rows_conflicts(
    lake: Lake, table: Handle, forget: Callable[[Lake, Handle], None], change: str
) -> None:
    """It must not say that a row is gone, and committed, because it does not find it."""
    tx = Tx(lake)
    ids = {row["id"]: row_id for row_id, row in table.sparkport(tx.ctx).items()}
    flush(lake)
    forget(lake, table)
    if change == "delete":
        assert table.delete([ids[0]], tx.ctx).affected_rows == 1
    else:
        table.update([ids[0]], names("mine"), tx.ctx)
    with pytest.raises(Conflict, match="run it again"):
        tx.commit()
    assert by_key(table.sparkport())[0] == "n0"


def test_a_transaction_that_deletes_a_row_that_came_and_went_in_the_journal_commits(lake: Lake, table: Handle) -> None:
    tx = Tx(lake)
    ids = {row["id"]: row_id for row_id, row in table.sparkport(tx.ctx).items()}
    table.delete([table.ids()[0]])
    flush(lake)
    table.delete([ids[0]], tx.ctx)
    tx.commit()
    assert set(by_key(table.agreed())) == {1, 2}


@pytest.mark.tier("fast")
def test_an_update_is_not_lost_after_a_flush_whose_entries_came_to_nothing(lake: Lake, table: Handle) -> None:
    """A transaction goes on after DDL of its own session: it has seen what was flushed before that, and no more."""
    flush(lake)
    session = CallContext(session_id="one")
    tx = Tx(lake, who=session)
    ctx = CallContext(transaction_id=tx.id, session_id="one")
    main_of(lake, session)
    table.table(session).alter(session, AddColumn(pa.field("more", pa.string())))
    ids = table.ids()
    table.update([ids[0]], names("by another"))
    flush(lake)
    table.insert(people((7, "for a moment")).append_column("more", pa.array(["x"])))
    table.delete([table.ids()[7]])
    assert flush(lake) == 0
    table.update([ids[0]], names("mine"), ctx)
    with pytest.raises(Conflict):
        tx.commit()
    assert by_key(table.agreed(pyiceberg=False))[0] == "by another"


# Two names for one uuid


@pytest.fixture
def twin(lake: Lake, table: Handle) -> Handle:
    """The same metadata file under another name, as Iceberg's register_table gives it."""
    flush(lake)
    name = TableName("public", f"{table.name}_twin")
    lake.pointers.create(name, table.current.location)
    return Handle(lake, name.name)


@pytest.mark.tier("fast")
def test_the_journal_of_a_table_is_not_shown_in_another_with_the_same_uuid(
    lake: Lake, table: Handle, twin: Handle
) -> None:
    table.insert(people((7, "mine alone")))
    assert 7 in by_key(table.sparkport())
    assert 7 not in by_key(twin.sparkport())
    tx = Tx(lake)
    assert 7 in by_key(table.sparkport(tx.ctx))
    assert 7 not in by_key(twin.sparkport(tx.ctx))
    flush(lake)
    assert 7 in by_key(table.agreed())
    assert 7 not in by_key(twin.agreed())


def test_changes_of_both_tables_with_one_uuid_stay_apart(lake: Lake, table: Handle, twin: Handle) -> None:
    table.insert(people((7, "mine")))
    twin.insert(people((8, "twin's")))
    twin.update([twin.ids()[0]], names("twin's"))
    twin.alter(SetComment("the other one"))
    table.delete([table.ids()[1]])
    assert set(by_key(table.sparkport())) == {0, 2, 7}
    assert set(by_key(twin.sparkport())) == {0, 1, 2, 8}
    flush(lake)
    assert by_key(table.agreed()) == {0: "n0", 2: "n2", 7: "mine"}
    assert by_key(twin.agreed()) == {0: "twin's", 1: "n1", 2: "n2", 8: "twin's"}
    assert not checked(lake.opened.settings).found


def test_a_table_with_the_uuid_of_another_is_dropped_and_renamed_without_its_journal(
    lake: Lake, table: Handle, twin: Handle
) -> None:
    table.insert(people((7, "mine")))
    main_of(lake).rename_table(NOBODY, twin.name, f"{twin.name}_renamed")
    assert 7 in by_key(table.sparkport())
    main_of(lake).drop_table(NOBODY, f"{twin.name}_renamed")
    assert 7 in by_key(table.sparkport())
    flush(lake)
    assert 7 in by_key(table.agreed())


def test_the_journal_follows_a_table_that_others_rename_at_once(lake: Lake, table: Handle) -> None:
    flush(lake)
    table.insert(people((7, "waits")))
    table.sql(f"ALTER TABLE {{t}} RENAME TO public.{table.name}_renamed")
    renamed = Handle(lake, f"{table.name}_renamed")
    assert 7 in by_key(renamed.sparkport())
    renamed.alter(SetComment("the journal has not heard of the name yet"))
    renamed.insert(people((8, "waits too")))
    flush(lake)
    assert 7 in by_key(renamed.agreed())


def test_the_first_of_two_at_once_has_the_journal_of_their_uuid(
    lake: Lake, table: Handle, twin: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are decided before the journal knows of either."""
    uuid, records = twin.current.uuid, records_of(lake)
    with records.changing() as work:
        _, revision = records.advance(work)
        records.remove(work, [uuid], revision)
    commit = lake.pointers.commit
    with elsewhere(lake) as other:

        def late(*args: Any, **how: Any) -> Any:
            monkeypatch.undo()
            Handle(other, table.name).insert(people((7, "first")))
            return commit(*args, **how)

        monkeypatch.setattr(lake.pointers, "commit", late)
        twin.insert(people((8, "second")))
    assert records.newest.by_uuid[uuid].table.name == table.name
    assert set(by_key(table.sparkport())) == {0, 1, 2, 7}
    assert set(by_key(twin.sparkport())) == {0, 1, 2, 8}
