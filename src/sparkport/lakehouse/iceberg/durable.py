"""Files that Spark has written, made to survive a loss of power before the catalog says that they are there.

Hadoop's local file system leaves what it has written to the operating system. The catalog's database does not: after a
power cut it could name a snapshot whose files are empty.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkport.lakehouse.files import FileSystem, local_path, sync
from sparkport.lakehouse.iceberg.manifests import DataFile, read_manifest, read_manifest_list
from sparkport.lakehouse.iceberg.metadata import Snapshot

__all__ = ["new_files", "sync_snapshot"]


def new_files(fs: FileSystem, snapshot: Snapshot) -> Iterator[str]:
    """All that a snapshot has and its parent has not: the lists first, then rows and deletes; some come twice."""
    yield snapshot.manifest_list
    for listed in read_manifest_list(fs, snapshot.manifest_list):
        if listed["added_snapshot_id"] != snapshot.id:
            continue
        yield listed["manifest_path"]
        for file in read_manifest(fs, listed):
            # A manifest that takes the place of others also names files that have been there before.
            written = file.file_sequence_number if isinstance(file, DataFile) else file.sequence_number
            if written == listed["sequence_number"]:
                yield file.path


def sync_snapshot(fs: FileSystem, location: str, snapshot: Snapshot) -> None:
    """Call it before ``main`` moves to the snapshot. ``location`` is the table's folder. On a store: nothing to do."""
    if local_path(snapshot.manifest_list) is not None:
        sync(dict.fromkeys(new_files(fs, snapshot)), below=location)
