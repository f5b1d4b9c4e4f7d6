"""A shadow's metadata: a table as Spark sees it when it is told to change it.

Spark gets a copy of the table's metadata with nothing of the past in it but the newest snapshot. What it writes lies
beside the table's own files, and the table does not move. Only the new snapshots are ever published. Their row ids and
sequence numbers go on from those of the copy, so that the table MUST still be what was copied then.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from sparkport.errors import SparkportError
from sparkport.lakehouse.files import FileSystem, local_path
from sparkport.lakehouse.iceberg.durable import new_files
from sparkport.lakehouse.iceberg.metadata import WAP, Snapshot, TableMetadata, load
from sparkport.lakehouse.iceberg.metadata_files import next_location
from sparkport.lakehouse.warehouse import true_path

__all__ = ["began", "is_shadow", "metadata_files", "new_snapshots", "remove_shadow", "write_seed"]

_SHADOW = "sparkport.shadow"
"""The property that a shadow is known by; its value is the snapshot that it began with."""

_NONE = "none"

_LEFT_OUT = frozenset({WAP, "write.metadata.previous-versions-max"})
_CHANGED = {
    "write.metadata.delete-after-commit.enabled": "false",  # what it would delete may be the table's
    "gc.enabled": "false",  # whoever comes upon a shadow must not expire or purge anything by it
}


def write_seed(files: FileSystem, metadata: TableMetadata, appended: Mapping[str, Any] | None = None) -> str:
    """Write what a shadow of the table begins with; where it is.

    ``appended`` is the table's metadata with a snapshot that is not published either, and that the shadow goes on from.
    """
    location = next_location(metadata.location, metadata.metadata_location)
    base = metadata.main_snapshot_id
    seed = _seed(metadata if appended is None else TableMetadata(appended), base)
    files.write_new(location, json.dumps(seed).encode())
    return location


def _seed(metadata: TableMetadata, base: int | None) -> dict[str, Any]:
    main = metadata.main_snapshot_id
    kept = {key: value for key, value in metadata.properties.items() if key not in _LEFT_OUT}
    log = [entry for entry in metadata.snapshot_log if entry["snapshot-id"] == main]
    return {
        **metadata.json,
        "last-updated-ms": max(int(time.time() * 1000), metadata.last_updated_ms),
        "properties": {**kept, **_CHANGED, _SHADOW: _NONE if base is None else str(base)},
        "refs": {name: ref for name, ref in metadata.refs.items() if name == "main"},
        "snapshots": [item for item in metadata.json.get("snapshots") or () if item["snapshot-id"] in (base, main)],
        "snapshot-log": log[-1:],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }


def is_shadow(metadata: TableMetadata) -> bool:
    return _SHADOW in metadata.properties


def new_snapshots(shadow: TableMetadata) -> list[Snapshot]:
    """What Spark has made, oldest first."""
    base = shadow.properties.get(_SHADOW)
    return [snapshot for snapshot in shadow.snapshots if str(snapshot.id) != base]


def began(shadow: TableMetadata) -> float:
    """When it was made, in seconds since the epoch: no file of its own is older."""
    first = shadow.metadata_log[0]["timestamp-ms"] if shadow.metadata_log else shadow.last_updated_ms
    return float(first) / 1000


def metadata_files(shadow: TableMetadata) -> list[str]:
    """The metadata files that are a shadow's, which nobody needs when it is gone."""
    return [*(str(entry["metadata-file"]) for entry in shadow.metadata_log), shadow.metadata_location]


def remove_shadow(files: FileSystem, location: str, *, unpublished: bool) -> None:
    """Remove the metadata of a shadow, and if it is ``unpublished`` all that was written for its snapshots.

    Nothing but what is in the table's folder, and nothing at all by metadata that is no shadow's. Never raises.
    """
    with contextlib.suppress(SparkportError):
        shadow = load(files, location)
        if not is_shadow(shadow):
            return
        folder = true_path(shadow.location)
        paths = [*_new_files(files, shadow), *metadata_files(shadow)] if unpublished else metadata_files(shadow)
        for path in paths:
            if (true_path(path) or "").startswith(f"{folder}/"):
                _delete(files, path)


def _new_files(files: FileSystem, shadow: TableMetadata) -> list[str]:
    """Rows before the lists of them. Which files of a v1 table are new cannot be told: maintenance finds them."""
    paths: list[str] = []
    for snapshot in new_snapshots(shadow) if shadow.format_version > 1 else ():
        with contextlib.suppress(SparkportError):  # what was listed and never written
            paths.extend(new_files(files, snapshot))
    return paths[::-1]


def _delete(files: FileSystem, path: str) -> None:
    with contextlib.suppress(SparkportError):
        files.delete(path)
        if local_path(path) is not None:  # Hadoop's checksums, beside files on a local disk
            folder, _, name = path.rpartition("/")
            files.delete(f"{folder}/.{name}.crc")
