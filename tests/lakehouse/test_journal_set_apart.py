"""A table whose journal Spark cannot apply is set apart, with those tied to it; all others go on without it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, version
from tests.lakehouse.poison import POISONS, lost_file
from tests.lakehouse.transacting import FIVE, Tx, by_key, names, people
from tests.support.lakehouse import Lake, lakehouse

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import AddColumn
from sparkport.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.tables import journal_flusher

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(600)]

_numbers = count()
SETTINGS = JournalSettings(new_tables=True, seconds=3_600.0)
NOTE = AddColumn(pa.field("note", pa.string()))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Its journal is applied when a test asks for it."""
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=SETTINGS) as opened:
        yield Lake(opened)


@pytest.fixture(scope="module")
def other(lake: Lake) -> Iterator[Lake]:
    """Another server on the same catalog."""
    with lakehouse(lake.warehouse, journal=SETTINGS) as opened:
        yield Lake(opened)


def new_name() -> str:
    return f"t{next(_numbers)}"


def waiting(lake: Lake) -> dict[str, str | None]:
    """Why the tables wait that wait, by name: the reason, or the table that they are tied to."""
    found = lake.opened.journal.status()
    return {item.table.name: item.failure or "".join(map(str, item.waits_for)) or None for item in found}


def flush(lake: Lake) -> None:
    lake.opened.journal.flush(60)


def both(lake: Lake, first: Handle, second: Handle, rows: pa.Table) -> None:
    """One commit that changes two tables."""
    tx = Tx(lake)
    first.insert(rows, tx.ctx)
    second.insert(rows, tx.ctx)
    tx.commit()


@pytest.mark.tier("fast")
@pytest.mark.parametrize("kind", POISONS)
def test_a_table_whose_flush_fails_is_set_apart_and_all_others_go_on(lake: Lake, other: Lake, kind: str) -> None:
    flushed, altered, loaded = (create(lake, new_name(), FIVE) for _ in range(3))
    poisoned = POISONS[kind](lake, new_name())
    bad = poisoned.table
    # The other server has nothing of the table in memory.
    with pytest.raises(FailedPrecondition, match=f"'public.{bad.name}' could not be published"):
        other.opened.journal.flush(60)
    assert by_key(flushed.agreed()) == by_key(altered.agreed()) == by_key(loaded.agreed())
    for server in (lake, other):
        assert waiting(server).keys() == {bad.name}
        assert waiting(server)[bad.name]

    altered.insert(people((10, "small")))
    altered.alter(NOTE)
    loaded.insert(people((10, "small")))
    loaded.insert(people(*((number, "large") for number in range(100, 20_100))))
    flushed.insert(people((10, "small")))
    # The first server could: it knows the metadata that is lost, and Spark changes a copy of that.
    with pytest.raises(FailedPrecondition, match=bad.name):
        other.opened.journal.flush(60)
    assert len(altered.agreed()) == len(flushed.agreed()) == 6
    assert len(loaded.agreed()) == 20_006

    poisoned.mend()
    flush(lake)
    assert by_key(bad.agreed()) == poisoned.rows
    assert waiting(lake) == waiting(other) == {}


def test_what_a_table_is_that_was_set_apart_is_asked_of_itself_alone(lake: Lake) -> None:
    poisoned, fine = lost_file(lake, new_name()), create(lake, new_name(), FIVE)
    try:
        with pytest.raises(FailedPrecondition, match=poisoned.table.name):
            poisoned.table.alter(NOTE)
        assert waiting(lake)[fine.name] is None
        fine.alter(NOTE)
        assert fine.name not in waiting(lake)
        poisoned.table.insert(people((11, "still taken")))
    finally:
        poisoned.mend()
    flush(lake)
    assert by_key(poisoned.table.agreed()) == {**poisoned.rows, 11: "still taken"}


def test_tables_that_waiting_commits_tie_to_it_are_set_apart_with_it(lake: Lake) -> None:
    tied, further, fine = (create(lake, new_name(), FIVE) for _ in range(3))
    flush(lake)
    poisoned = lost_file(lake, new_name())
    both(lake, poisoned.table, tied, people((20, "both")))
    both(lake, tied, further, people((21, "next")))
    fine.insert(people((22, "free")))
    try:
        with pytest.raises(FailedPrecondition, match=poisoned.table.name):
            flush(lake)
        assert 22 in by_key(fine.agreed())
        # Whole transactions, or nothing of them, for who reads without the journal.
        assert by_key(tied.spark()) == by_key(further.spark()) == {n: f"n{n}" for n in range(5)}
        assert waiting(lake).keys() == {poisoned.table.name, tied.name, further.name}
        assert all(waiting(lake)[table.name] == f"public.{poisoned.table.name}" for table in (tied, further))
        with pytest.raises(FailedPrecondition, match=tied.name) as refused:
            tied.alter(NOTE)
        assert poisoned.table.name not in str(refused.value)  # who alters one need not know of the other
    finally:
        poisoned.mend()
    flush(lake)
    assert {20, 21} <= by_key(tied.agreed()).keys()
    assert by_key(further.agreed())[21] == "next"
    assert by_key(poisoned.table.agreed()) == {**poisoned.rows, 20: "both"}


def test_a_table_that_others_drop_holds_up_nobody_who_is_tied_to_it(lake: Lake) -> None:
    dropped, tied = create(lake, new_name(), FIVE), create(lake, new_name(), FIVE)
    both(lake, dropped, tied, people((20, "both")))
    dropped.sql("DROP TABLE {t}")
    tied.alter(NOTE)
    assert waiting(lake) == {}
    assert by_key(tied.agreed())[20] == "both"
    assert list((lake.warehouse / ".journal").glob(f"{dropped.name}-*.parquet"))


def test_a_table_that_is_dropped_while_it_is_set_apart_frees_those_tied_to_it(lake: Lake) -> None:
    poisoned, tied = lost_file(lake, new_name()), create(lake, new_name(), FIVE)
    both(lake, poisoned.table, tied, people((20, "both")))
    with pytest.raises(FailedPrecondition):
        flush(lake)
    schema = lake.opened.catalog.schema(NOBODY, "public")
    schema.drop_table(NOBODY, poisoned.table.name)  # type: ignore[union-attr]
    flush(lake)
    assert by_key(tied.agreed())[20] == "both"
    assert waiting(lake) == {}


def test_a_journal_that_is_filled_by_a_table_that_is_set_apart_takes_changes_of_others(lake: Lake, other: Lake) -> None:
    limit = 40_000
    poisoned, fine = lost_file(lake, new_name()), create(lake, new_name(), FIVE)
    with pytest.raises(FailedPrecondition):
        flush(lake)
    servers = (lake, other)
    for server in servers:  # the second has not tried to flush, and knows it all the same
        server.opened.engine.journal.settings = replace(SETTINGS, bytes=5_000, limit=limit)
    try:
        bad, taken = Handle(other, poisoned.table.name), 0
        with pytest.raises(Unavailable, match=rf"'public.{bad.name}'.*set apart.*changing '{bad.name}'"):  # noqa: PT012
            for taken in range(100):
                bad.insert(people((100 + taken, "x" * 1_000)))
        assert 5 < taken < 30
        for number in range(60):  # more than the limit, over time
            (fine if number % 2 else Handle(other, fine.name)).insert(people((1_000 + number, "x" * 1_000)))
            if number % 10 == 9:
                lake.opened.engine.flush_of([TableName("public", fine.name)], 60)
        assert len(fine.agreed()) == 65
    finally:
        for server in servers:
            server.opened.engine.journal.settings = SETTINGS
        poisoned.mend()
    flush(lake)
    assert len(poisoned.table.agreed()) == len(poisoned.rows) + taken


# A backlog of many flushes


@pytest.fixture
def one_row_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush applies one commit."""
    monkeypatch.setattr(journal_flusher, "_MOST_ROWS", 1)


def backlog(lake: Lake, rows: int = 10) -> Handle:
    table = create(lake, new_name(), FIVE)
    flush(lake)
    for number in range(rows):
        table.insert(people((100 + number, "waits")))
    return table


def test_a_column_is_added_however_many_flushes_the_backlog_takes(lake: Lake, one_row_at_a_time: None) -> None:
    table = backlog(lake)
    table.alter(NOTE)
    assert len(table.agreed()) == 15


def test_a_rollback_is_done_however_many_flushes_the_backlog_takes(lake: Lake, one_row_at_a_time: None) -> None:
    table = backlog(lake)
    before = table.number
    table.table().rollback(NOBODY, version(before))
    assert len(table.agreed()) == 5


def test_the_journal_is_switched_off_however_many_flushes_the_backlog_takes(
    lake: Lake, one_row_at_a_time: None
) -> None:
    table = backlog(lake)
    lake.opened.journal.set(NOBODY, TableName("public", table.name), False)
    assert len(table.agreed()) == 15


def test_an_alteration_waits_for_a_backlog_no_longer_than_its_statement_may(
    lake: Lake, one_row_at_a_time: None
) -> None:
    table = backlog(lake)
    table.update([table.ids()[100]], names("changed"))
    with pytest.raises((Unavailable, DeadlineExceeded)):
        table.table().alter(CallContext(deadline=time.monotonic() - 1), NOTE)
    assert len(table.sparkport()) == 15
    flush(lake)
