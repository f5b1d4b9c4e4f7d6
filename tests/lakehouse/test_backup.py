"""Backups: a whole lakehouse made anew elsewhere is the same for everybody who reads it, versions and journal too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from tests.lakehouse.backups import QUIET, backup_of, everything, fill, old_versions, problems, restored
from tests.lakehouse.handles import Handle
from tests.lakehouse.transacting import by_key, people
from tests.support.lakehouse import Lake, lakehouse

pytestmark = pytest.mark.tier("thorough")


@dataclass(frozen=True, slots=True)
class Source:
    lake: Lake
    beside: Path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    beside = tmp_path_factory.mktemp("beside")
    with lakehouse(tmp_path_factory.mktemp("warehouse"), journal=QUIET) as opened:
        lake = Lake(opened)
        fill(lake, beside)
        yield Source(lake, beside)


@contextmanager
def gone(folder: Path) -> Iterator[None]:
    """Nobody finds it there meanwhile."""
    away = folder.rename(folder.with_name(f"{folder.name}-away"))
    try:
        yield
    finally:
        away.rename(folder)


def test_a_restored_lakehouse_is_the_same_for_spark_pyiceberg_and_sparkport(source: Source, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    made = backup_of(source.lake, target)
    assert made.number == 1
    assert made.tables == 7
    before, versions = everything(source.lake), old_versions(source.lake)
    changed = Handle(source.lake, "changed").agreed()
    waiting = Handle(source.lake, "journalled").sparkport()
    settings = restored(target, tmp_path / "elsewhere" / "new one")
    with (
        gone(source.lake.warehouse),
        gone(source.beside),
        gone(target),
        lakehouse(tmp_path / "elsewhere" / "new one", journal=QUIET) as opened,
    ):
        assert problems(settings) == []
        lake = Lake(opened)
        assert everything(lake) == before
        assert old_versions(lake) == versions
        assert Handle(lake, "changed").agreed() == changed
        journalled = Handle(lake, "journalled")
        assert journalled.sparkport() == waiting
        assert by_key(waiting) == {0: "n0", 1: "waits", 3: "n3", 4: "n4", 7: "waits too"}
        assert opened.journal.flush(60).rows == 3
        assert by_key(journalled.agreed()) == by_key(waiting)
        assert sorted(row["id"] for row in Handle(lake, "second").pyiceberg()) == [1, 3, 4]
        Handle(lake, "changed").insert(people((10, "goes on")).append_column("more", pa.array([1], pa.int32())))
        Handle(lake, "second").sql("DELETE FROM {t} WHERE id = 1")
        assert problems(settings) == []
    assert everything(source.lake) == before
