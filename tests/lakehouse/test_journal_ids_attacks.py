"""Attempts to lose, double or mix changes that wait in the journal, where names and ids of their rows change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from tests.lakehouse.handles import Handle, create
from tests.lakehouse.small import checked
from tests.lakehouse.transacting import THREE, by_key, people
from tests.support.lakehouse import Lake, lakehouse, maintenance_of

from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings

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
