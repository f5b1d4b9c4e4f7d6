"""CHECK over two columns with others about: what they change between the decision and the commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from tests.lakehouse.handles import Handle, create
from tests.lakehouse.transacting import at_point
from tests.support.lakehouse import Lake, lakehouse

from sparkport.errors import Conflict, ConstraintViolation
from sparkport.lakehouse.journal.settings import JournalSettings

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

PAIRS = pa.table({"id": [1, 2, 3], "low": [1, 1, 1], "high": [10, 10, 10]})
JOURNAL = JournalSettings(new_tables=True, seconds=3_600.0, rows=3)


@pytest.fixture(params=["spark", "journal"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Handle, Handle]]:
    """A table at two servers of one catalog; of a journalled one small changes wait for Spark."""
    journal = JOURNAL if request.param == "journal" else None
    with ExitStack() as stack:
        here, there = (Lake(stack.enter_context(lakehouse(tmp_path, journal=journal))) for _ in range(2))
        table = create(here, "t", PAIRS, checks=("low < high",))
        here.opened.journal.flush(60)
        yield table, Handle(there, "t")


def column(**values: list[int]) -> pa.Table:
    return pa.table({name: pa.array(numbers, pa.int64()) for name, numbers in values.items()})


def rows(table: Handle) -> dict[int, tuple[int, int]]:
    return {row["id"]: (row["low"], row["high"]) for row in table.sparkport().values()}


@pytest.mark.tier("fast")
@pytest.mark.parametrize(
    ("high", "comes_out"), [(3, {1: (1, 3), 2: (1, 10), 3: (1, 10)}), (8, {1: (5, 8), 2: (5, 10), 3: (5, 10)})]
)
def test_what_another_server_commits_before_the_pointer_moves_is_checked_too(
    pair: tuple[Handle, Handle], high: int, comes_out: dict[int, tuple[int, int]]
) -> None:
    """Of the journalled table too Spark makes this change, and the other's goes into the journal meanwhile."""
    here, there = pair
    here.lake.opened.engine.journal.settings = JournalSettings(new_tables=True, seconds=3_600.0, rows=1)
    ids = here.ids()
    with at_point("publish.before", lambda: there.update([there.ids()[1]], column(high=[high]))):
        if high == 8:
            here.update([ids[1], ids[2], ids[3]], column(low=[5, 5, 5]))
        else:
            with pytest.raises(ConstraintViolation, match="low < high"):
                here.update([ids[1], ids[2], ids[3]], column(low=[5, 5, 5]))
    assert rows(here) == rows(there) == comes_out


def test_what_plain_spark_changes_meanwhile_is_checked_with_what_is_sent(pair: tuple[Handle, Handle]) -> None:
    here, _ = pair
    with (
        at_point("stage.after", lambda: here.sql("UPDATE {t} SET high = 3 WHERE id = 1")),
        pytest.raises(ConstraintViolation, match="low < high"),
    ):
        here.update([here.ids()[1]], column(low=[5]))
    assert rows(here)[1] == (1, 3)


def test_a_check_that_comes_while_a_statement_runs_is_a_conflict(pair: tuple[Handle, Handle]) -> None:
    """Its rows were held against other conditions."""
    here, _ = pair
    checks = "ALTER TABLE {t} SET TBLPROPERTIES ('sparkport.checks' = '[\"low < high\", \"low > 0\"]')"
    with at_point("stage.after", lambda: here.sql(checks)), pytest.raises(Conflict, match="has been altered"):
        here.insert(column(id=[4], low=[-1], high=[1]))
    assert rows(here).keys() == {1, 2, 3}
