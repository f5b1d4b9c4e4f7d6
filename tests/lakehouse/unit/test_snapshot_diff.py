"""What two snapshots do not share, on tables that Spark has made: compared with all rows of both."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.lakehouse.fixtures import Fixture, materialise, with_equality_deletes

from sparkport.errors import FailedPrecondition, Unsupported, VersionNotFound
from sparkport.lakehouse.iceberg.plan import plan
from sparkport.lakehouse.iceberg.snapshot_diff import Place, compare, lineage_at, only_moved
from sparkport.lakehouse.scan.read import SEQUENCE, Reader

pytestmark = pytest.mark.tier("fast")

Lineage = set[tuple[int, int]]


def all_rows(found: Fixture, reader: Reader, snapshot: int | None) -> Lineage:
    """Ids and last commits of all rows of a snapshot."""
    chosen = plan(found.fs, found.metadata, snapshot)
    if not chosen.files:
        return set()
    with closing(reader.scan(found.metadata, chosen, columns=[], row_id=True, sequence=True)) as stream:
        return {
            pair
            for batch in stream
            for pair in zip(batch.column("rowid").to_pylist(), batch.column(SEQUENCE).to_pylist(), strict=True)
        }


def rows_at(found: Fixture, places: tuple[Place, ...]) -> Lineage:
    return {
        pair
        for place in places
        for ids, commits in lineage_at(found.fs, place)
        for pair in zip(ids.tolist(), commits.tolist(), strict=True)
    }


@pytest.mark.parametrize("name", ["changes", "replaced", "partitioned", "evolved"])
def test_places_hold_just_the_rows_that_only_one_snapshot_has_and_those_that_moved(name: str, tmp_path: Path) -> None:
    found = materialise(name, tmp_path)
    with closing(Reader(found.fs)) as reader:
        snapshots = [None, *(snapshot.id for snapshot in found.metadata.snapshots)]
        everything = {snapshot: all_rows(found, reader, snapshot) for snapshot in snapshots}
    assert len(snapshots) > 2
    for first in snapshots:  # forward, back as a rollback goes, and over several
        for last in snapshots:
            diff = compare(found.fs, *(plan(found.fs, found.metadata, each) for each in (first, last)))
            before, after = rows_at(found, diff.before), rows_at(found, diff.after)
            assert before - after == everything[first] - everything[last]
            assert after - before == everything[last] - everything[first]
            if first == last:
                assert not diff.before
                assert not diff.after


def test_compaction_only_moves_rows(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    for snapshot in found.metadata.snapshots:
        moved = only_moved(found.metadata, snapshot.parent_id, snapshot.id)
        assert moved == (snapshot.operation == "replace")
    assert not only_moved(found.metadata, None, found.metadata.main_snapshot_id)


def test_deletes_by_value_cannot_be_told(tmp_path: Path) -> None:
    found = with_equality_deletes(materialise("positions_v2", tmp_path))
    first, last = found.metadata.snapshots[0].id, found.metadata.main_snapshot_id
    with pytest.raises(Unsupported, match="equality deletes"):
        compare(found.fs, plan(found.fs, found.metadata, first), plan(found.fs, found.metadata, last))


def test_rows_without_ids_cannot_be_told(tmp_path: Path) -> None:
    found = materialise("positions_v2", tmp_path)
    first, last = found.metadata.snapshots[0].id, found.metadata.main_snapshot_id
    with pytest.raises(FailedPrecondition, match="without row ids"):
        compare(found.fs, plan(found.fs, found.metadata, first), plan(found.fs, found.metadata, last))


def test_a_file_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    own = [
        file
        for snapshot in found.metadata.snapshots
        for file in plan(found.fs, found.metadata, snapshot.id).files
        if not file.derives_row_ids
    ]
    for path in found.folder.rglob("*.parquet"):
        path.unlink()
    assert own
    with pytest.raises(VersionNotFound, match="gone"):
        list(lineage_at(found.fs, Place(own[0])))
