"""Files that Spark has written, made to survive a loss of power before the catalog says that they are there.

Hadoop's local file system leaves what it has written to the operating system. The catalog's database does not: after a
power cut it could name a snapshot whose files are empty.
"""

from __future__ import annotations

from sparkport.lakehouse.files import FileSystem, local_path, sync
from sparkport.lakehouse.iceberg.manifests import DataFile, read_manifest, read_manifest_list
from sparkport.lakehouse.iceberg.metadata import Snapshot

__all__ = ["new_files", "sync_snapshot"]


def new_files(fs: FileSystem, snapshot: Snapshot) -> list[str]:
    """All that a snapshot has and its parent has not: rows, deletes, and the lists of them."""
    paths = [snapshot.manifest_list]
    for listed in read_manifest_list(fs, snapshot.manifest_list):
        if listed["added_snapshot_id"] != snapshot.id:
            continue
        paths.append(listed["manifest_path"])
        for file in read_manifest(fs, listed):
            # A manifest that takes the place of others also names files that have been there before.
            written = file.file_sequence_number if isinstance(file, DataFile) else file.sequence_number
            if written == listed["sequence_number"]:
                paths.append(file.path)
    return list(dict.fromkeys(paths))


def sync_snapshot(fs: FileSystem, location: str, snapshot: Snapshot) -> None:
    """Call it before ``main`` moves to the snapshot. ``location`` is the table's folder. On a store: nothing to do."""
    if local_path(snapshot.manifest_list) is not None:
        sync(new_files(fs, snapshot), below=location)
