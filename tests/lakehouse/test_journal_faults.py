"""Journalled tables over deaths and lost answers: of a commit all or nothing, of a flush each row once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest
from tests.faults.rig import Rig
from tests.support.spark import shared_spark
from tests.support.tiers import FAST

from sparkport.catalog.statement import Change
from sparkport.errors import SparkportError
from sparkport.lakehouse.faults import Fault

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]

FLUSH_POINTS = (
    "commit.decided",
    "apply.before",
    "apply.between",
    "apply.after",
    "publish.before",
    "metadata.before",
    "metadata.after",
    "pointer.before",
    "pointer.after",
    "publish.after",
)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """New tables are journalled, and flushed when they are asked for."""
    shared_spark().wait_ready(240)
    arguments = ["--journal", "--journal-seconds", "3600"]
    with Rig(tmp_path_factory.mktemp("journal"), spark=shared_spark().url, arguments=arguments) as rig:
        yield rig


def new_table(rig: Rig, name: str) -> str:
    """Rows 0 to 2 in the snapshot; of row 0 a change, of row 1 the end and a row 9 in the journal."""
    table = f"public.{name}"
    rig.client.create_table(table, _rows((0, "")).schema)
    rig.client.insert(table, _rows((0, "n0"), (1, "n1"), (2, "n2")))
    rig.client.flush_journal()
    ids = rig.row_ids(table)
    rig.client.update(table, pa.table({"rowid": [ids[0]], "v": ["changed"]}))
    rig.client.delete(table, [ids[1]])
    rig.client.insert(table, _rows((9, "new")))
    return table


EXPECTED = {0: "changed", 2: "n2", 9: "new"}


@pytest.mark.parametrize(
    ("point", "action", "happens"),
    [
        ("stage.before", "server", False),
        ("stage.after", "server", False),
        ("pointer.before", "server", False),
        pytest.param("pointer.after", "server", True, marks=FAST),
        pytest.param("pointer.before", "lost", False, marks=FAST),
        ("pointer.after", "lost", True),
    ],
)
def test_a_commit_that_is_cut_off_is_there_whole_or_not_at_all(
    rig: Rig, point: str, action: str, happens: bool
) -> None:
    rig.start()
    table = new_table(rig, f"cut_{point.replace('.', '_')}_{action}")
    statement = f"{point}-{action}"
    rig.arm(Fault(point, action))
    with suppress(SparkportError):
        rig.change(table, Change.INSERT, _rows((20, "cut off")), statement=statement)
    if action == "server":
        rig.ended()
    assert not rig.disarm()
    rig.start()
    assert rig.rows(table) == {**EXPECTED, **({20: "cut off"} if happens else {})}
    # The client tries it again: a repeat is known, whatever became of the first.
    assert rig.change(table, Change.INSERT, _rows((20, "cut off")), statement=statement) == 1
    assert rig.rows(table) == {**EXPECTED, 20: "cut off"}
    rig.client.flush_journal()
    assert rig.rows(table) == rig.pyiceberg_rows(table) == {**EXPECTED, 20: "cut off"}


@pytest.mark.parametrize(
    ("point", "action"),
    [
        *(pytest.param(point, "server", marks=[FAST] if point == "publish.before" else []) for point in FLUSH_POINTS),
        *((point, action) for point in FLUSH_POINTS[1:-1:2] for action in ("lost", "error")),
    ],
)
def test_a_flush_that_is_cut_off_loses_nothing_and_doubles_nothing(rig: Rig, point: str, action: str) -> None:
    rig.start()
    table = new_table(rig, f"flush_{point.replace('.', '_')}_{action}")
    rig.arm(Fault(point, action))
    flushing = threading.Thread(target=lambda: _flush(rig))
    flushing.start()
    if action == "server":
        rig.ended()
    flushing.join(120)
    assert not flushing.is_alive()
    assert not rig.disarm(), "the point was not reached"
    rig.start()
    assert rig.rows(table) == EXPECTED
    rig.client.flush_journal()
    assert rig.rows(table) == rig.pyiceberg_rows(table) == EXPECTED
    assert rig.missing() == []


def _flush(rig: Rig) -> None:
    with suppress(SparkportError):
        rig.client.flush_journal()


def _rows(*rows: tuple[int, str]) -> pa.Table:
    return pa.table({"id": pa.array([row[0] for row in rows], pa.int64()), "v": pa.array([row[1] for row in rows])})
