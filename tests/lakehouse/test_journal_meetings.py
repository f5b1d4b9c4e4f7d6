"""What happens while a flush is under way, or a commit meets a flush: each pair, at named points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.lakehouse.transacting import FIVE, Tx, at_point, by_key, names, people
from tests.support.lakehouse import Lake, lakehouse

from sparkport.catalog.ddl import AddColumn, TableDefinition
from sparkport.catalog.transaction import Isolation
from sparkport.errors import Conflict
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.names import TableName

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

_numbers = count()
_ROWS = 50

Contents = dict[int, str | None]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """What changes more than 50 rows goes through Spark."""
    settings = JournalSettings(new_tables=True, seconds=3_600.0, rows=_ROWS)
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=settings) as opened:
        yield Lake(opened)


@pytest.fixture
def table(lake: Lake) -> Handle:
    """Of five rows that are in the snapshot one is changed in the journal, one is deleted, and a new one is there."""
    table = create(lake, f"t{next(_numbers)}", FIVE)
    flush(lake)
    ids = table.ids()
    table.update([ids[0]], names("journal"))
    table.delete([ids[1]])
    table.insert(people((10, "journal")))
    return table


START: Contents = {0: "journal", 2: "n2", 3: "n3", 4: "n4", 10: "journal"}


def flush(lake: Lake) -> int:
    return lake.opened.journal.flush(120).rows


def _update(key: int) -> Callable[[Handle], object]:
    return lambda table: table.update([table.ids()[key]], names("other"))


def _delete(key: int) -> Callable[[Handle], object]:
    return lambda table: table.delete([table.ids()[key]])


def _large_insert(table: Handle) -> None:
    table.insert(people(*((100 + number, "large") for number in range(_ROWS + 1))))


def _large_update(table: Handle) -> None:
    """Most of the ids that it names are of no row."""
    ids = table.ids()
    rows = [ids[0], ids[10], *range(10**6, 10**6 + _ROWS)]
    table.update(rows, names(*["large"] * len(rows)))


def _compact(table: Handle) -> None:
    table.lake.opened.maintenance.run(TableName("public", table.name), ["compact"])


def _add_column(table: Handle) -> None:
    table.alter(AddColumn(pa.field("more", pa.int64())))


def _foreign_insert(table: Handle) -> None:
    table.sql("INSERT INTO {t} VALUES (20, 'Spark')")


def _foreign_update(table: Handle) -> None:
    table.sql("UPDATE {t} SET name = 'Spark' WHERE id IN (0, 2)")


def _foreign_delete(table: Handle) -> None:
    table.sql("DELETE FROM {t} WHERE id = 0")


def _foreign_column(table: Handle) -> None:
    table.sql("ALTER TABLE {t} ADD COLUMN more BIGINT")


LARGE = {100 + number: "large" for number in range(_ROWS + 1)}

MEETINGS: dict[str, tuple[Callable[[Handle], object], Contents]] = {
    "insert": (lambda table: table.insert(people((20, "other"))), {**START, 20: "other"}),
    "update of a changed row": (_update(0), {**START, 0: "other"}),
    "update of a new row": (_update(10), {**START, 10: "other"}),
    "update of another row": (_update(2), {**START, 2: "other"}),
    "delete of a changed row": (_delete(0), {key: START[key] for key in START if key != 0}),
    "delete of a new row": (_delete(10), {key: START[key] for key in START if key != 10}),
    "large insert": (_large_insert, {**START, **LARGE}),
    "large update": (_large_update, {**START, 0: "large", 10: "large"}),
    "compaction": (_compact, START),
    "schema change": (_add_column, START),
    "insert by Spark": (_foreign_insert, {**START, 20: "Spark"}),
    "update by Spark": (_foreign_update, {**START, 2: "Spark"}),  # of row 0 what was committed here stays
    "delete by Spark": (_foreign_delete, {key: START[key] for key in START if key != 0}),
    "schema change by Spark": (_foreign_column, START),
}

POINTS = ("commit.decided", "apply.before", "apply.between", "apply.after", "publish.before", "metadata.after")


@pytest.mark.parametrize(
    ("name", "point"), [(name, POINTS[number % len(POINTS)]) for number, name in enumerate(MEETINGS)]
)
def test_what_others_do_while_a_flush_is_under_way_is_there_as_well(
    lake: Lake, table: Handle, name: str, point: str
) -> None:
    other, expected = MEETINGS[name]
    waits = "large" in name or name in ("schema change", "compaction")
    done: list[Future[object]] = []
    with ThreadPoolExecutor(1) as pool:

        def meet() -> None:
            """What needs the table's turn gets it after the flush; all else happens now."""
            done.append(pool.submit(other, table))
            if not waits:
                done[0].result(60)

        with at_point(point, meet):
            flush(lake)
        done[0].result(120)
    assert by_key(table.sparkport()) == expected
    flush(lake)
    assert by_key(table.agreed(pyiceberg=False)) == expected


@pytest.mark.parametrize("name", MEETINGS)
def test_a_transaction_that_was_pinned_before_sees_its_snapshot_and_commits_beside_a_flush(
    lake: Lake, table: Handle, name: str
) -> None:
    other, expected = MEETINGS[name]
    if name == "update by Spark":  # of rows that are no longer in the journal
        expected = {**expected, 0: "Spark"}
    tx = Tx(lake)
    ids = {row["id"]: row_id for row_id, row in table.sparkport(tx.ctx).items()}
    flush(lake)
    other(table)
    flush(lake)
    assert by_key(table.sparkport(tx.ctx)) == START
    table.update([ids[3]], names("mine"), tx.ctx)
    table.insert(people((30, "mine")), tx.ctx)
    if "schema change" in name:
        with pytest.raises(Conflict, match="altered"):
            tx.commit()
        return
    tx.commit()
    assert by_key(table.sparkport()) == {**expected, 3: "mine", 30: "mine"}
    flush(lake)
    assert by_key(table.agreed(pyiceberg=False)) == {**expected, 3: "mine", 30: "mine"}


@pytest.mark.parametrize("key", [0, 10])
@pytest.mark.parametrize("change", ["update", "delete"])
@pytest.mark.parametrize("size", ["small", "large"])
def test_rows_that_a_transaction_saw_in_the_journal_are_changed_after_their_flush(
    lake: Lake, table: Handle, key: int, change: str, size: str
) -> None:
    """It saw them changed: the flush, which gives them newer numbers, is no conflict."""
    tx = Tx(lake)
    ids = {row["id"]: row_id for row_id, row in table.sparkport(tx.ctx).items()}
    flush(lake)
    if change == "update":
        table.update([ids[key]], names("mine"), tx.ctx)
        expected = {**START, key: "mine"}
    else:
        table.delete([ids[key]], tx.ctx)
        expected = {other: START[other] for other in START if other != key}
    if size == "large":
        table.insert(people(*LARGE.items()), tx.ctx)
        expected |= LARGE
    tx.commit()
    assert by_key(table.sparkport()) == expected
    flush(lake)
    assert by_key(table.agreed(pyiceberg=False)) == expected


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("key", [0, 10])
def test_the_first_committer_wins_by_either_way(lake: Lake, table: Handle, key: int, flushed: bool, size: str) -> None:
    tx = Tx(lake)
    ids = {row["id"]: row_id for row_id, row in table.sparkport(tx.ctx).items()}
    _update(key)(table)
    if flushed:
        flush(lake)
    table.update([ids[key]], names("mine"), tx.ctx)
    if size == "large":
        table.insert(people(*LARGE.items()), tx.ctx)
    with pytest.raises(Conflict, match="1 row changed by another transaction"):
        tx.commit()
    assert by_key(table.sparkport()) == {**START, key: "other"}


def test_serializable_takes_a_flush_for_no_change_and_a_commit_for_one(lake: Lake, table: Handle) -> None:
    for changes in (False, True):
        tx = Tx(lake, Isolation.SERIALIZABLE)
        table.sparkport(tx.ctx)
        if changes:
            table.insert(people((40, "other")))
        flush(lake)
        table.insert(people((41 + changes, "mine")), tx.ctx)
        if changes:
            with pytest.raises(Conflict, match="was read by this transaction"):
                tx.commit()
        else:
            tx.commit()
    assert by_key(table.sparkport()) == {**START, 40: "other", 41: "mine"}


def test_a_table_that_is_dropped_takes_its_entries_with_it_and_a_renamed_one_keeps_them(
    lake: Lake, table: Handle
) -> None:
    main_of(lake).rename_table(NOBODY, table.name, f"{table.name}_renamed")
    renamed = Handle(lake, f"{table.name}_renamed")
    assert by_key(renamed.sparkport()) == START
    main_of(lake).create_table(NOBODY, TableDefinition(name=table.name, columns=FIVE.schema))
    assert table.sparkport() == {}
    flush(lake)
    assert by_key(renamed.agreed()) == START
    renamed.insert(people((11, "journal")))
    main_of(lake).drop_table(NOBODY, renamed.name)
    assert flush(lake) == 0
    assert lake.opened.journal.status() == []
