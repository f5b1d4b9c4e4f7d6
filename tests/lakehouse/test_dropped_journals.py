"""Tables that are dropped while the journal still holds changes of them: restored, they have all of these."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.lakehouse.handles import NOBODY, create, main_of
from tests.lakehouse.transacting import FIVE, at_point, by_key, people
from tests.support.lakehouse import Lake, lakehouse

from sparkport.errors import SparkportError
from sparkport.lakehouse.journal.settings import JournalSettings

pytestmark = pytest.mark.tier("thorough")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    never = JournalSettings(new_tables=True, seconds=3600.0)
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=never) as opened:
        yield Lake(opened)


def test_what_is_acknowledged_while_a_table_is_dropped_is_there_when_it_is_restored(lake: Lake) -> None:
    table = create(lake, "dropped", FIVE)
    answers: list[object] = []

    def write() -> None:
        try:
            answers.append(table.insert(people((9, "acknowledged"))).affected_rows)
        except SparkportError as exc:
            answers.append(exc)

    writer = threading.Thread(target=write)

    def start() -> None:
        writer.start()
        writer.join(1)  # it may come through or wait; both are right

    with at_point("apply.after", start):
        main_of(lake).drop_table(NOBODY, table.name)
    writer.join(60)
    lake.opened.catalog.restore_table(NOBODY, "public", table.name)
    assert (9 in by_key(table.sparkport())) == (answers == [1])
    assert len(by_key(table.sparkport())) >= 5


def test_a_table_is_dropped_though_what_waits_cannot_be_applied(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(lake, "unapplied", FIVE)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(lake.opened.engine.storage.staging, "new", full)
        main_of(lake).drop_table(NOBODY, table.name)
    assert main_of(lake).table(NOBODY, table.name) is None
