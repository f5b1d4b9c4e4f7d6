"""Journalled tables: small changes are committed without Spark, seen at once, and applied by a flush."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from tests.lakehouse.handles import NOBODY, Handle, create
from tests.lakehouse.transacting import FIVE, Tx, by_key, names, people
from tests.support.lakehouse import Lake, lakehouse

from sparkport.catalog import DMLOptions, ScanRequest, as_scan
from sparkport.errors import Conflict
from sparkport.filters.predicates import col
from sparkport.lakehouse.journal.net import FIRST_ID
from sparkport.lakehouse.journal.settings import JournalSettings

pytestmark = pytest.mark.tier("fast")

_numbers = count()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Its journal is applied when a test asks for it."""
    settings = JournalSettings(new_tables=True, seconds=3_600.0)
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=settings) as opened:
        yield Lake(opened)


@pytest.fixture
def table(lake: Lake) -> Handle:
    return create(lake, f"t{next(_numbers)}", FIVE)


def flush(lake: Lake) -> int:
    return lake.opened.journal.flush(60).rows


def test_what_is_committed_is_seen_at_once_and_by_spark_after_a_flush(lake: Lake, table: Handle) -> None:
    assert by_key(table.sparkport()) == {n: f"n{n}" for n in range(5)}
    assert all(row_id >= FIRST_ID for row_id in table.sparkport())
    assert table.spark() == {}
    assert table.table().row_count(NOBODY) == 5
    assert flush(lake) >= 5
    assert by_key(table.agreed()) == {n: f"n{n}" for n in range(5)}
    assert all(row_id < FIRST_ID for row_id in table.sparkport())


def test_rows_are_changed_in_the_journal_and_on_top_of_the_snapshot(lake: Lake, table: Handle) -> None:
    flush(lake)
    ids = table.ids()
    table.update([ids[1]], names("changed"))
    table.delete([ids[2]])
    table.insert(people((5, "new")))
    new = table.ids()[5]
    table.update([new], names("newer"))
    expected = {0: "n0", 1: "changed", 3: "n3", 4: "n4", 5: "newer"}
    assert by_key(table.sparkport()) == expected
    assert table.table().row_count(NOBODY) == 5
    assert by_key(table.spark()) == {n: f"n{n}" for n in range(5)}
    flush(lake)
    assert by_key(table.agreed()) == expected
    assert table.ids()[1] == ids[1]


def test_ids_that_were_read_before_a_flush_are_good_after_it(lake: Lake, table: Handle) -> None:
    before = table.ids()
    flush(lake)
    assert table.update([before[3]], names("by the old id")).affected_rows == 1
    assert table.delete([before[4]]).affected_rows == 1
    assert by_key(table.sparkport()) == {0: "n0", 1: "n1", 2: "n2", 3: "by the old id"}
    flush(lake)
    assert by_key(table.agreed()) == {0: "n0", 1: "n1", 2: "n2", 3: "by the old id"}


def test_returning_tells_the_ids_of_new_rows(lake: Lake, table: Handle) -> None:
    options = DMLOptions(returning=True, returning_columns=("id", "rowid"))
    result = table.insert(people((7, "seven"), (8, "eight")), options=options)
    assert result.returning_data is not None
    told = [row for batch in result.returning_data for row in batch.to_pylist()]
    assert {row["id"]: row["rowid"] for row in told} == {key: table.ids()[key] for key in (7, 8)}


def test_a_filter_leaves_out_rows_of_the_journal(lake: Lake, table: Handle) -> None:
    """By a column that is asked for, and by one that is not."""
    for condition, expected in ((col("id") == 3, ["n3"]), (col("name") == "n4", ["n4"]), (col("id") > 2, ["n3", "n4"])):
        for columns in (("name",), ("id", "name"), None):
            request = ScanRequest(columns=columns, filter=condition.expr)
            scan = as_scan(table.table().scan(NOBODY, request))
            rows = [row for batch in scan for row in batch.to_pylist()]
            scan.close()
            assert [row["name"] for row in rows] == expected
            assert columns is None or set(rows[0]) == set(columns)


def test_rows_that_were_read_before_are_not_kept_over_a_strangers_delete(lake: Lake, table: Handle) -> None:
    flush(lake)
    table.update([table.ids()[0]], names("changed"))
    table.insert(people((9, "new")))
    assert by_key(table.sparkport())[0] == "changed"
    table.sql("DELETE FROM {t} WHERE id = 0")
    rows = by_key(table.sparkport())
    assert (0 in rows, rows[9]) == (False, "new")


def test_ids_that_were_told_are_good_for_an_insert_that_is_large(lake: Lake, table: Handle) -> None:
    many = people(*((100 + number, "many") for number in range(JournalSettings().rows + 100)))
    options = DMLOptions(returning=True, returning_columns=("id", "rowid"))
    result = table.insert(many, options=options)
    assert result.returning_data is not None
    told = {row["id"]: row["rowid"] for batch in result.returning_data for row in batch.to_pylist()}
    assert table.update([told[5_000]], names("by its id")).affected_rows == 1
    flush(lake)
    assert table.delete([told[6_000]]).affected_rows == 1
    rows = by_key(table.sparkport())
    assert (rows[5_000], 6_000 in rows, len(rows)) == ("by its id", False, 5 + many.num_rows - 1)


def test_a_transaction_sees_its_snapshot_over_a_flush_and_commits_without_a_false_conflict(
    lake: Lake, table: Handle
) -> None:
    other = create(lake, f"t{next(_numbers)}", FIVE)
    tx = Tx(lake)
    ids = {row["id"]: row_id for row_id, row in table.sparkport(tx.ctx).items()}
    table.update([table.ids()[0]], names("by others"))
    flush(lake)
    assert by_key(table.sparkport(tx.ctx)) == {n: f"n{n}" for n in range(5)}
    table.update([ids[1]], names("mine"), tx.ctx)
    other.insert(people((9, "mine")), tx.ctx)
    tx.commit()
    assert by_key(table.sparkport()) == {0: "by others", 1: "mine", 2: "n2", 3: "n3", 4: "n4"}
    assert by_key(other.sparkport())[9] == "mine"
    flush(lake)
    assert by_key(table.agreed())[1] == "mine"
    other.agreed()


def test_the_first_committer_wins_whether_it_was_flushed_or_not(lake: Lake, table: Handle) -> None:
    for flushed in (False, True):
        tx = Tx(lake)
        ids = {row["id"]: row_id for row_id, row in table.sparkport(tx.ctx).items()}
        table.update([table.ids()[0]], names("first"))
        if flushed:
            flush(lake)
        table.update([ids[0]], names("second"), tx.ctx)
        with pytest.raises(Conflict, match="1 row changed by another transaction"):
            tx.commit()
    assert by_key(table.sparkport())[0] == "first"
