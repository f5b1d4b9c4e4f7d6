"""Data files added to a table by a snapshot of our own: what Spark's fast append would write, without Spark.

A plain table is one whose files need nothing that only Spark knows how to make: no partitions, no sort order, no
encryption, statistics as Iceberg keeps them by default.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.manifest_writer import AddedFile, added_manifest, manifest_list
from sparkport.lakehouse.iceberg.manifests import read_manifest_list
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.totals import Totals, summary_number

__all__ = ["Append", "Compression", "append_files", "compression_of", "data_folder", "is_plain"]

_MERGES, _MERGE_AT = "commit.manifest-merge.enabled", "commit.manifest.min-count-to-merge"

_CODECS = {"zstd": "zstd", "gzip": "gzip", "snappy": "snappy", "uncompressed": "none"}
_LEVELS = {"zstd": 22, "gzip": 9}
_CODEC, _LEVEL = "write.parquet.compression-codec", "write.parquet.compression-level"
_UNKNOWN_TO_US = (
    "encryption.",
    "write.data.path",
    "write.folder-storage.path",
    "write.location-provider.impl",
    "write.metadata.metrics.",
    "write.metadata.path",
    "write.parquet.bloom-filter-",
    "write.parquet.stats-enabled",
)
_NEEDED = ("manifest_path", "manifest_length", "partition_spec_id", "content", "sequence_number", "min_sequence_number")
_COUNTS = tuple(f"{kind}_{what}_count" for what in ("files", "rows") for kind in ("added", "existing", "deleted"))


@dataclass(frozen=True, slots=True)
class Compression:
    codec: str
    level: int | None


@dataclass(frozen=True, slots=True)
class Append:
    """``after`` is the table with the snapshot. ``lists`` are the snapshot's own files by their addresses, in the order
    in which they are to be written: whoever finds one finds by it what may have been written after it."""

    after: dict[str, Any]
    lists: Mapping[str, bytes]


def is_plain(metadata: TableMetadata) -> bool:
    if metadata.format_version not in (2, 3) or metadata.specs.get(int(metadata.json.get("default-spec-id", 0))):
        return False
    order_id = metadata.json.get("default-sort-order-id", 0)
    if any(order["fields"] for order in metadata.json.get("sort-orders") or () if order["order-id"] == order_id):
        return False
    properties = metadata.properties
    return (
        properties.get("write.format.default", "parquet").lower() == "parquet"
        and properties.get("write.object-storage.enabled", "false").lower() != "true"
        and not any(name.startswith(_UNKNOWN_TO_US) for name in properties)
        and compression_of(metadata) is not None
    )


def compression_of(metadata: TableMetadata) -> Compression | None:
    """None for one that is not ours to write."""
    codec = _CODECS.get(metadata.properties.get(_CODEC, "zstd").lower())
    if codec is None:
        return None
    if _LEVEL not in metadata.properties or codec not in _LEVELS:
        return Compression(codec, None)
    level = summary_number(metadata.properties, _LEVEL)
    return Compression(codec, level) if level is not None and 1 <= level <= _LEVELS[codec] else None


def data_folder(metadata: TableMetadata) -> str:
    return f"{metadata.location.rstrip('/')}/data"


def append_files(
    fs: FileSystem, metadata: TableMetadata, added: Sequence[AddedFile], *, notes: Mapping[str, str]
) -> Append | None:
    """A snapshot of a plain table that adds files; None where it has so many manifests that they should be merged.

    Nothing is written. ``notes`` go into the snapshot's summary.
    """
    parent = metadata.main_snapshot_id
    before = [] if parent is None else read_manifest_list(fs, metadata.snapshot(parent).manifest_list)
    if len(before) + 1 >= _most_manifests(metadata) or not all(_is_whole(entry) for entry in before):
        return None
    snapshot_id = metadata.unused_snapshot_id()
    sequence = int(metadata.json["last-sequence-number"]) + 1
    manifest = added_manifest(metadata, snapshot_id, added)
    folder, name = f"{metadata.location.rstrip('/')}/metadata", uuid.uuid4().hex
    manifest_path, list_path = f"{folder}/{name}-m0.avro", f"{folder}/snap-{snapshot_id}-1-{name}.avro"
    listed = _listed(metadata, snapshot_id, sequence, added, path=manifest_path, length=len(manifest))
    entries, next_row_id = _numbered([listed, *before], metadata)
    first_row_id = metadata.json.get("next-row-id", 0) if metadata.format_version >= 3 else None
    about = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": parent,
        "sequence-number": sequence,
        "first-row-id": first_row_id,
    }
    lists = {list_path: manifest_list(metadata.format_version, entries, about=about), manifest_path: manifest}
    now = max(int(time.time() * 1000), metadata.last_updated_ms)
    snapshot: dict[str, Any] = {
        "snapshot-id": snapshot_id,
        "sequence-number": sequence,
        "timestamp-ms": now,
        "manifest-list": list_path,
        "summary": _summary(metadata, added, notes),
        "schema-id": metadata.current_schema.get("schema-id", 0),
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent
    after: dict[str, Any] = {
        **metadata.json,
        "last-updated-ms": now,
        "last-sequence-number": sequence,
        "current-snapshot-id": snapshot_id,
        "refs": {
            **metadata.refs,
            "main": {**metadata.refs.get("main", {"type": "branch"}), "snapshot-id": snapshot_id},
        },
        "snapshot-log": [*metadata.snapshot_log, {"timestamp-ms": now, "snapshot-id": snapshot_id}],
    }
    if first_row_id is not None:
        snapshot |= {"first-row-id": first_row_id, "added-rows": next_row_id - first_row_id}
        after["next-row-id"] = next_row_id
    after["snapshots"] = [*(metadata.json.get("snapshots") or ()), snapshot]
    return Append(after, lists)


def _most_manifests(metadata: TableMetadata) -> float:
    """With so many Iceberg's writers begin to merge them, which is left to Spark."""
    if metadata.properties.get(_MERGES, "true").lower() == "false":
        return math.inf
    told = summary_number(metadata.properties, _MERGE_AT)
    return 100 if told is None else told


def _is_whole(entry: Mapping[str, Any]) -> bool:
    """Lists of tables that once were v1 may lack what later versions demand."""
    return all(entry.get(key) is not None for key in (*_NEEDED, *_COUNTS, "added_snapshot_id"))


def _listed(
    metadata: TableMetadata, snapshot_id: int, sequence: int, added: Sequence[AddedFile], *, path: str, length: int
) -> dict[str, Any]:
    return {
        "manifest_path": path,
        "manifest_length": length,
        "partition_spec_id": int(metadata.json.get("default-spec-id", 0)),
        "content": 0,
        "sequence_number": sequence,
        "min_sequence_number": sequence,
        "added_snapshot_id": snapshot_id,
        **dict.fromkeys(_COUNTS, 0),
        "added_files_count": len(added),
        "added_rows_count": sum(file.rows for file in added),
        "partitions": [],
    }


def _numbered(entries: Sequence[dict[str, Any]], metadata: TableMetadata) -> tuple[list[dict[str, Any]], int]:
    """Row ids for the manifests of data that have none: the new one, and those of a table that was v2 until now."""
    next_row_id = int(metadata.json.get("next-row-id", 0))
    if metadata.format_version < 3:
        return list(entries), next_row_id
    numbered = []
    for entry in entries:
        if entry["content"] == 0 and entry.get("first_row_id") is None:
            numbered.append({**entry, "first_row_id": next_row_id})
            next_row_id += entry["added_rows_count"] + entry["existing_rows_count"]
        else:
            numbered.append(entry)
    return numbered, next_row_id


def _summary(metadata: TableMetadata, added: Sequence[AddedFile], notes: Mapping[str, str]) -> dict[str, str]:
    changes = {
        "data-files": len(added),
        "records": sum(file.rows for file in added),
        "files-size": sum(file.size for file in added),
    }
    kept = ("delete-files", "position-deletes", "equality-deletes")
    parent, totals = metadata.main_snapshot_id, Totals(metadata)
    summed = {}
    for name, change in {**changes, **dict.fromkeys(kept, 0)}.items():
        before = 0 if parent is None else totals.number(parent, f"total-{name}")
        if before is not None:
            summed[f"total-{name}"] = str(before + change)
    return {
        "operation": "append",
        **notes,
        **{f"added-{name}": str(change) for name, change in changes.items()},
        "changed-partition-count": "1",
        **summed,
    }
