"""What a snapshot has brought is synced before it is published, with the folders on the way; our own files too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.lakehouse.fixtures import materialise

from sparkport.errors import NotFound
from sparkport.lakehouse.files import FileSystem, sync
from sparkport.lakehouse.iceberg.durable import new_files, sync_snapshot
from sparkport.lakehouse.iceberg.plan import plan

pytestmark = pytest.mark.tier("fast")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """All that has been synced, in order."""
    found: list[Path] = []

    def fsync(descriptor: int) -> None:
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_each_snapshot_brings_files_that_its_parent_has_not(tmp_path: Path) -> None:
    table = materialise("changes", tmp_path)
    seen: set[str] = set()
    for snapshot in sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number):
        brought = list(new_files(table.fs, snapshot))
        assert brought[0] == snapshot.manifest_list
        assert all(Path(path).exists() for path in brought)
        assert not seen & set(brought)
        seen |= set(brought)
        files = plan(table.fs, table.metadata, snapshot.id).files
        assert {file.path for file in files} | {delete.path for file in files for delete in file.deletes} <= seen


def test_a_snapshots_files_and_all_folders_up_to_the_tables_are_synced(tmp_path: Path, synced: list[Path]) -> None:
    table = materialise("partitioned", tmp_path)
    snapshot = table.metadata.snapshots[0]
    checksum = Path(snapshot.manifest_list).with_name(f".{Path(snapshot.manifest_list).name}.crc")
    checksum.write_bytes(b"crc")
    sync_snapshot(table.fs, table.metadata.location, snapshot)
    brought = [Path(path) for path in new_files(table.fs, snapshot)]
    assert {*brought, checksum} <= set(synced)
    folders = {parent for path in brought for parent in path.parents if parent.is_relative_to(table.folder)}
    assert set(synced) == {*brought, checksum, *folders}
    assert min(synced.index(folder) for folder in folders) > max(synced.index(path) for path in brought)


def test_our_own_files_are_synced_with_their_folder_and_the_folders_that_are_new(
    tmp_path: Path, synced: list[Path]
) -> None:
    FileSystem().write_new(str(tmp_path / "a" / "b" / "file"), b"x")
    assert synced[:2] == [tmp_path, tmp_path / "a"]
    assert synced[2].name.startswith(".file.")
    assert synced[3:] == [tmp_path / "a" / "b"]


def test_a_file_that_is_gone_is_told_and_one_in_a_store_is_not_touched(tmp_path: Path, synced: list[Path]) -> None:
    with pytest.raises(NotFound):
        sync([str(tmp_path / "gone")])
    sync(["s3://bucket/file"])
    assert synced == []
