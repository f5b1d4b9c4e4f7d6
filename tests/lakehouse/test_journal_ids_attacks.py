"""Attempts to lose, double or mix changes that wait in the journal, where names and ids of their rows change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.lakehouse.small import backed_up, checked, to_new
from tests.lakehouse.transacting import THREE, Tx, by_key, names, people, wait_until
from tests.support.lakehouse import Lake, lakehouse, maintenance_of

from sparkport.catalog import CallContext
from sparkport.catalog.ddl import MutableSchema, SetComment, TableDefinition
from sparkport.catalog.transaction import Isolation
from sparkport.errors import Conflict, Unavailable
from sparkport.lakehouse.journal.net import UNTOLD
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.tables import journal_flusher
from sparkport.lakehouse.tables.table import LakeTable
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings
from sparkport.lakehouse.write.commit_request import CommitRequest, Committed
from sparkport.lakehouse.write.journal_flush import JournalFlush

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

SETTINGS = JournalSettings(new_tables=True, seconds=3_600.0)
_numbers = count()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Its journal is applied when a test asks for it."""
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=SETTINGS) as opened:
        yield Lake(opened)


@pytest.fixture
def table(lake: Lake) -> Handle:
    return create(lake, f"t{next(_numbers)}", THREE)


@pytest.fixture
def twin(lake: Lake, table: Handle) -> Handle:
    """The same metadata file under another name, as Iceberg's register_table gives it."""
    flush(lake)
    return registered(lake, table, f"{table.name}_twin")


def registered(lake: Lake, table: Handle, name: str) -> Handle:
    lake.pointers.create(TableName("public", name), table.current.location)
    return Handle(lake, name)


def flush(lake: Lake) -> int:
    return lake.opened.journal.flush(60).rows


@contextmanager
def elsewhere(lake: Lake) -> Iterator[Lake]:
    """Another server on the same catalog, started now."""
    with lakehouse(lake.warehouse, journal=SETTINGS) as opened:
        yield Lake(opened)


def test_a_schema_is_renamed_with_a_table_and_its_twin_and_the_journal_stays_with_the_table(lake: Lake) -> None:
    """The twin comes first by its name."""
    catalog, versions = lake.opened.catalog, lake.opened.engine.versions
    lake.pointers.create_schema("before", {})
    schema = catalog.schema(NOBODY, "before")
    assert isinstance(schema, MutableSchema)
    schema.create_table(NOBODY, TableDefinition(name="people", columns=THREE.schema))

    def insert(rows: pa.Table) -> None:
        table = schema.table(NOBODY, "people")
        assert isinstance(table, LakeTable)
        table.insert(NOBODY, pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()), None)

    insert(THREE)
    flush(lake)
    version = versions.current(TableName("before", "people"))
    assert version is not None
    lake.pointers.create(TableName("before", "a_twin"), version.location)
    insert(people((7, "mine")))
    catalog.rename_schema(NOBODY, "before", "after")
    renamed, other = (versions.current(TableName("after", name)) for name in ("people", "a_twin"))
    assert renamed is not None
    assert other is not None
    assert renamed.journal is not None
    assert len(renamed.journal.entries) == 1
    assert other.twin == renamed.table
    flush(lake)


def test_a_serializable_transaction_that_reads_a_twin_commits_small_changes(
    lake: Lake, table: Handle, twin: Handle
) -> None:
    ordinary = create(lake, f"t{next(_numbers)}", THREE)
    tx = Tx(lake, Isolation.SERIALIZABLE)
    twin.sparkport(tx.ctx)
    ordinary.insert(people((7, "mine")), tx.ctx)
    tx.commit()
    assert 7 in by_key(ordinary.sparkport())


def _dropped(twin: Handle) -> None:
    main_of(twin.lake).drop_table(NOBODY, twin.name)


def _renamed(twin: Handle) -> None:
    main_of(twin.lake).rename_table(NOBODY, twin.name, f"{twin.name}_renamed")


def _changed(twin: Handle) -> None:
    twin.insert(people((8, "twin's")))


@pytest.mark.parametrize("happens", [_dropped, _renamed, _changed])
def test_what_waits_for_a_table_stays_with_it_while_its_metadata_cannot_be_read(
    lake: Lake, table: Handle, twin: Handle, happens: Callable[[Handle], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are not there for a moment: that says nothing of whose journal it is."""
    table.insert(people((6, "published")))
    flush(lake)
    table.insert(people((7, "waits")))
    location = table.current.location
    with elsewhere(lake) as other:
        read = other.opened.engine.storage.files.read_bytes

        def unreadable(path: str) -> bytes:
            if path == location:
                raise Unavailable("the files cannot be reached")
            return read(path)

        monkeypatch.setattr(other.opened.engine.storage.files, "read_bytes", unreadable)
        with suppress(Unavailable):
            happens(Handle(other, twin.name))
        monkeypatch.undo()
    assert set(by_key(table.sparkport())) == {0, 1, 2, 6, 7}
    flush(lake)
    assert set(by_key(table.sparkport())) == {0, 1, 2, 6, 7}


def test_a_table_that_others_have_renamed_is_dropped_and_restored_with_what_waited(lake: Lake, table: Handle) -> None:
    flush(lake)
    table.insert(people((7, "waits")))
    renamed = Handle(lake, f"{table.name}_renamed")
    table.sql(f"ALTER TABLE {{t}} RENAME TO public.{renamed.name}")
    main_of(lake).drop_table(NOBODY, renamed.name)
    lake.opened.catalog.restore_table(NOBODY, "public", renamed.name)
    assert 7 in by_key(renamed.sparkport())


def test_what_waits_for_a_table_that_others_drop_does_not_change_rows_of_its_twin(
    lake: Lake, table: Handle, twin: Handle
) -> None:
    """Both have a row with one id since they parted."""
    twin.insert(people((8, "twin's")))
    table.insert(people((7, "mine")))
    flush(lake)
    assert twin.ids()[8] == table.ids()[7]
    table.update([table.ids()[7]], names("changed"))
    table.sql("DROP TABLE {t}")
    assert by_key(twin.sparkport())[8] == "twin's"
    flush(lake)
    assert by_key(twin.agreed()) == {0: "n0", 1: "n1", 2: "n2", 8: "twin's"}


def test_a_change_of_a_table_is_not_taken_for_a_flush_of_a_twin_that_others_have_dropped(
    lake: Lake, table: Handle, twin: Handle
) -> None:
    """By their numbers the snapshots of both are the same."""
    table.update([table.ids()[0]], names("in the other"))
    flush(lake)
    table.sql("DROP TABLE {t}")
    tx = Tx(lake)
    ids = {row["id"]: row_id for row_id, row in twin.sparkport(tx.ctx).items()}
    twin.sql("UPDATE {t} SET name = 'first' WHERE id = 0")
    twin.update([ids[0]], names("second"), tx.ctx)
    with pytest.raises(Conflict):
        tx.commit()
    assert by_key(twin.sparkport())[0] == "first"


def test_a_change_of_a_table_is_not_taken_for_a_flush_of_a_twin_that_was_dropped(
    lake: Lake, table: Handle, twin: Handle
) -> None:
    table.update([table.ids()[0]], names("in the other"))
    flush(lake)
    table.sparkport()
    main_of(lake).drop_table(NOBODY, table.name)
    tx = Tx(lake)
    ids = {row["id"]: row_id for row_id, row in twin.sparkport(tx.ctx).items()}
    twin.sql("UPDATE {t} SET name = 'first' WHERE id = 0")
    twin.update([ids[0]], names("second"), tx.ctx)
    with pytest.raises(Conflict):
        tx.commit()
    assert by_key(twin.sparkport())[0] == "first"


def _session(lake: Lake, name: str, isolation: Isolation = Isolation.SNAPSHOT) -> tuple[Tx, CallContext, CallContext]:
    session = CallContext(session_id=name)
    tx = Tx(lake, isolation, who=session)
    return tx, session, CallContext(transaction_id=tx.id, session_id=name)


def test_a_transaction_sees_what_waits_for_a_table_that_its_session_renames(lake: Lake, table: Handle) -> None:
    flush(lake)
    table.insert(people((7, "waits")))
    tx, session, ctx = _session(lake, "renames")
    assert 7 in by_key(table.sparkport(ctx))
    main_of(lake, session).rename_table(session, table.name, f"{table.name}_renamed")
    renamed = Handle(lake, f"{table.name}_renamed")
    assert 7 in by_key(renamed.sparkport(ctx))
    tx.rollback()


def test_a_transaction_does_not_see_the_journal_of_a_twin_that_its_session_drops(
    lake: Lake, table: Handle, twin: Handle
) -> None:
    table.insert(people((7, "mine")))
    tx, session, ctx = _session(lake, "drops")
    assert 7 not in by_key(twin.sparkport(ctx))
    main_of(lake, session).drop_table(session, table.name)
    assert 7 not in by_key(twin.sparkport(ctx))
    tx.rollback()


def test_a_serializable_transaction_goes_on_after_ddl_of_its_session_on_a_table_without_records_of_flushes(
    lake: Lake, table: Handle
) -> None:
    """It was restored. What has been applied is known all the same."""
    flush(lake)
    main_of(lake).drop_table(NOBODY, table.name)
    lake.opened.catalog.restore_table(NOBODY, "public", table.name)
    tx, session, ctx = _session(lake, "alters", Isolation.SERIALIZABLE)
    table.table(session).alter(session, SetComment("altered"))
    table.sparkport(ctx)
    table.insert(people((7, "mine")), ctx)
    tx.commit()
    assert 7 in by_key(table.sparkport())


def test_a_backup_has_both_tables_with_one_uuid_and_the_journal_with_the_first(
    lake: Lake, table: Handle, twin: Handle, tmp_path: Path
) -> None:
    twin.insert(people((8, "twin's")))
    table.insert(people((7, "mine")))
    backed_up(lake.opened.settings, tmp_path / "backup")
    restored = to_new(tmp_path / "backup", tmp_path / "restored")
    with lakehouse(tmp_path / "restored", journal=SETTINGS) as opened:
        again = Lake(opened)
        for _ in range(2):
            assert set(by_key(Handle(again, table.name).sparkport())) == {0, 1, 2, 7}
            assert set(by_key(Handle(again, twin.name).sparkport())) == {0, 1, 2, 8}
            flush(again)
    assert not checked(restored).found


def test_a_large_change_of_new_rows_is_made_while_they_are_published(
    lake: Lake, table: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not all that waits is published at once; the rest is while the change waits for its turn."""
    flush(lake)
    monkeypatch.setattr(journal_flusher, "_MOST_ROWS", 1)
    table.insert(people((6, "first")))
    table.insert(people((7, "second")))
    ids = table.ids()
    engine = lake.opened.engine
    monkeypatch.setattr(engine.journal, "settings", JournalSettings(new_tables=True, seconds=3_600.0, rows=1))
    commit = engine.committer.commit

    def queued(request: CommitRequest) -> Committed:
        if request.flush is None:
            monkeypatch.setattr(engine.committer, "commit", commit)
            flush(lake)
        return commit(request)

    monkeypatch.setattr(engine.committer, "commit", queued)
    table.update([ids[6], ids[7]], names("first", "changed"))
    monkeypatch.undo()
    assert by_key(table.agreed())[7] == "changed"


def test_of_two_large_changes_of_a_new_row_by_both_of_its_ids_one_conflicts(
    lake: Lake, table: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for their turn together, and are committed by one MERGE."""
    flush(lake)
    table.insert(people((6, "first")))
    table.insert(people((7, "second")))
    engine, ready, go = lake.opened.engine, threading.Event(), threading.Event()
    commit, outcomes = engine.committer.commit, list[BaseException | None]()

    def queued(request: CommitRequest) -> Committed:
        if request.flush is None:
            ready.set()
            assert go.wait(60)
        return commit(request)

    def changed(name: str) -> threading.Thread:
        tx = Tx(lake)
        ids = {row["id"]: row_id for row_id, row in table.sparkport(tx.ctx).items()}
        table.update([ids[6], ids[7]], names(name, name), tx.ctx)

        def end() -> None:
            try:
                tx.commit()
                outcomes.append(None)
            except Conflict as exc:
                outcomes.append(exc)

        return threading.Thread(target=end)

    monkeypatch.setattr(engine.journal, "settings", replace(SETTINGS, rows=1))
    monkeypatch.setattr(engine.committer, "commit", queued)
    monkeypatch.setattr(engine, "flush", lambda *args, **how: None)  # as if it had not come to these rows yet
    early = changed("early")
    early.start()
    assert ready.wait(60)
    monkeypatch.undo()
    flush(lake)
    monkeypatch.setattr(engine.journal, "settings", replace(SETTINGS, rows=1))
    late = changed("late")
    with engine.committer.turn(TableName("public", table.name)):
        go.set()
        late.start()
        wait_until(lambda: engine.committer.waiting() == 2)
    early.join()
    late.join()
    assert sorted(outcome is None for outcome in outcomes) == [False, True]
    assert len({by_key(table.agreed())[key] for key in (6, 7)}) == 1


@pytest.mark.parametrize("change", ["delete", "update"])
def test_a_change_of_a_row_whose_new_id_nobody_knows_is_not_taken_for_one_of_a_row_that_is_gone(
    lake: Lake, table: Handle, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Spark has split new rows into several files. A statement has read them before."""
    ids = table.ids()
    monkeypatch.setattr(JournalFlush, "_new_ids", lambda *args: np.full(args[-1], UNTOLD, np.int64))
    flush(lake)
    monkeypatch.undo()
    with pytest.raises(Conflict, match="run the statement again"):
        table.delete([ids[0]]) if change == "delete" else table.update([ids[0]], names("mine"))
    assert by_key(table.sparkport())[0] == "n0"


def test_a_table_that_has_parted_from_one_that_others_drop_is_journalled_without_the_past_of_that(
    lake: Lake, table: Handle, twin: Handle
) -> None:
    """Another server has both in mind."""
    with elsewhere(lake) as other:
        table.insert(people((7, "mine")))
        old = table.ids()[7]
        twin.insert(people((8, "twin's")))
        flush(lake)
        assert Handle(other, table.name).ids()[7] == Handle(other, twin.name).ids()[8]
        table.sql("DROP TABLE {t}")
        twin.insert(people((9, "waits")))
        assert twin.current.journal is not None
        assert len(twin.current.journal.entries) == 1
        there = Handle(other, twin.name)
        assert set(by_key(there.sparkport())) == {0, 1, 2, 8, 9}
        assert there.delete([old]).affected_rows == 0
        flush(lake)
    assert set(by_key(twin.agreed())) == {0, 1, 2, 8, 9}
    assert not checked(lake.opened.settings).found


def test_maintenance_of_a_table_leaves_the_files_of_its_twin(lake: Lake, table: Handle, twin: Handle) -> None:
    for number in range(7, 9):
        table.insert(people((number, "more")))
        flush(lake)
    settings = MaintenanceSettings(small_files=2, retention_seconds=0.0, grace_seconds=0.0)
    maintenance = maintenance_of(lake.opened, settings, later=3_600.0)
    maintenance.run(TableName("public", table.name), ("compact", "expire"))
    with elsewhere(lake) as other:
        assert set(by_key(Handle(other, twin.name).sparkport())) == {0, 1, 2}
    assert not checked(lake.opened.settings).found
