"""Attempts to lose, double or mix changes that wait in the journal, where names and ids of their rows change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest
from tests.lakehouse.handles import Handle, create
from tests.lakehouse.small import checked
from tests.lakehouse.transacting import THREE, by_key, names, people
from tests.support.lakehouse import Lake, lakehouse, maintenance_of

from sparkport.errors import Conflict
from sparkport.lakehouse.journal.net import UNTOLD
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.tables import journal_flusher
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings
from sparkport.lakehouse.write.commit_group import CommitRequest, Committed
from sparkport.lakehouse.write.journal_flush import JournalFlush

pytestmark = pytest.mark.timeout(300)

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
