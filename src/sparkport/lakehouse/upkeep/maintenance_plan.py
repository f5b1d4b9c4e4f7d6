"""What maintenance a table needs, by its metadata alone: pure functions, no Spark and no clock.

A snapshot's age counts from the moment it was no longer the table, not from when it was made: a reader that began
just before the first commit in weeks has as much time as any other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sparkport.lakehouse.files import FileInfo
from sparkport.lakehouse.iceberg.metadata import Snapshot, TableMetadata
from sparkport.lakehouse.iceberg.plan import DataFile

__all__ = [
    "Compaction",
    "MaintenanceSettings",
    "compaction",
    "expirable",
    "forgotten_metadata",
    "keeps_row_ids",
    "settings_for",
]

_DAY = 24 * 60 * 60.0
_MAX_AGE = "history.expire.max-snapshot-age-ms"
_MIN_SNAPSHOTS = "history.expire.min-snapshots-to-keep"

# Numbered and unique. Other tools' names, such as v3.metadata.json, are not ours to judge.
_METADATA_FILE = re.compile(r"(\d+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:\.gz)?\.metadata\.json(?:\.gz)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """Limits of maintenance; ages in seconds.

    Snapshots stay for ``retention_seconds``; beyond ``max_snapshots`` only for ``grace_seconds``, because every commit
    writes the list of them all. A file under ``small_file_bytes`` is small, and ``small_files`` of them in a partition
    are put together, as one run may rewrite ``max_bytes`` at most. The folder of a dropped table goes after
    ``dropped_seconds``, and stays for ever where that is 0.
    """

    small_file_bytes: int = 32 << 20
    target_file_bytes: int = 128 << 20
    small_files: int = 24
    deleted_ratio: float = 0.3
    max_bytes: int = 256 << 20
    max_manifests: int = 100
    retention_seconds: float = 5 * _DAY
    min_snapshots: int = 1
    max_snapshots: int = 500
    grace_seconds: float = 10 * 60.0
    staged_seconds: float = 60 * 60.0
    metadata_seconds: float = 60 * 60.0
    orphan_seconds: float = 3 * _DAY
    dropped_seconds: float = 0.0
    interval_seconds: float = 60.0


def keeps_row_ids(iceberg: str) -> bool:
    """Whether the procedure ``rewrite_manifests`` of this version of Iceberg does (apache/iceberg#16699)."""
    release = re.match(r"(\d+)\.(\d+)", iceberg)
    return release is not None and (int(release[1]), int(release[2])) >= (1, 12)


def settings_for(settings: MaintenanceSettings, properties: Mapping[str, str]) -> MaintenanceSettings:
    """With what the table itself says about its history, in Iceberg's own properties."""
    age, least = properties.get(_MAX_AGE, ""), properties.get(_MIN_SNAPSHOTS, "")
    if age.isdigit():
        settings = replace(settings, retention_seconds=int(age) / 1000)
    if least.isdigit():
        settings = replace(settings, min_snapshots=int(least))
    return settings


# Files


@dataclass(frozen=True, slots=True)
class Compaction:
    """Files worth rewriting: how many there are, and how many of them one run takes."""

    files: int
    bytes: int
    most_files: int


def compaction(files: Sequence[DataFile], settings: MaintenanceSettings) -> Compaction | None:
    """None where nothing is worth it: too few small files, and no file that is mostly deleted rows."""
    small: dict[tuple[int, tuple[Any, ...]], list[DataFile]] = defaultdict(list)
    chosen: list[DataFile] = []
    for file in files:
        if _mostly_deleted(file, settings.deleted_ratio):
            chosen.append(file)
        elif file.size < settings.small_file_bytes:
            small[file.spec_id, file.partition].append(file)
    for group in small.values():
        if len(group) >= settings.small_files:
            chosen += group
    if not chosen:
        return None
    size = sum(file.size for file in chosen)
    fitting = len(chosen) * settings.max_bytes // max(size, 1)
    return Compaction(len(chosen), size, most_files=max(2, fitting))


def _mostly_deleted(file: DataFile, ratio: float) -> bool:
    return file.equality_deletes or (file.record_count > 0 and file.deleted_rows / file.record_count >= ratio)


# Snapshots


def expirable(
    metadata: TableMetadata, settings: MaintenanceSettings, *, now: float, needed: Collection[int]
) -> list[int]:
    """Snapshots that may go, oldest first. ``needed`` are those that somebody reads; refs need theirs in any case."""
    kept = {int(ref["snapshot-id"]) for ref in metadata.refs.values()} | set(needed)
    if metadata.main_snapshot_id is not None:
        kept.add(metadata.main_snapshot_id)
    left = _left_main(metadata)
    newest_first = sorted(left, key=lambda snapshot_id: left[snapshot_id], reverse=True)
    ranks = {snapshot_id: rank for rank, snapshot_id in enumerate(newest_first, start=1)}
    on_refs = {ancestor.id for head in kept for ancestor in metadata.ancestors(head)}
    chosen: list[Snapshot] = []
    for snapshot in metadata.snapshots:
        if snapshot.id in kept:
            continue
        if snapshot.id in left:
            age, rank = now - left[snapshot.id], ranks[snapshot.id]
            many = rank >= settings.max_snapshots and age > settings.grace_seconds
            expired = rank >= settings.min_snapshots and (many or age > settings.retention_seconds)
        else:
            staged = "wap.id" in snapshot.summary and snapshot.id not in on_refs
            limit = settings.staged_seconds if staged else settings.retention_seconds
            expired = now - snapshot.timestamp_ms / 1000 > limit
        if expired:
            chosen.append(snapshot)
    return [snapshot.id for snapshot in sorted(chosen, key=lambda snapshot: snapshot.timestamp_ms)]


def _left_main(metadata: TableMetadata) -> dict[int, float]:
    """When each snapshot that was the table ceased to be it."""
    log = metadata.snapshot_log
    ends = [entry["timestamp-ms"] / 1000 for entry in log[1:]]
    return {int(entry["snapshot-id"]): end for entry, end in zip(log, ends, strict=False)}


# Metadata files


def forgotten_metadata(
    files: Iterable[FileInfo], metadata: TableMetadata, *, before: float, needed: Collection[str]
) -> list[str]:
    """Metadata files that the table's own log no longer names and that were replaced ``before`` a time.

    One of a shadow may be written long after the number that it has was the newest.
    """
    logged = {entry["metadata-file"] for entry in metadata.metadata_log} | {metadata.metadata_location, *needed}
    names = {_name(path) for path in logged}
    numbered = [(number, info) for info in files if (number := _number(info.path)) is not None]
    current = _number(metadata.metadata_location)
    if current is None:
        return []
    numbered.sort(key=lambda pair: pair[0])
    paths: list[str] = []
    for (number, info), (_, after) in pairwise(numbered):
        replaced = after.modified
        if number >= current or _name(info.path) in names or info.modified is None or replaced is None:
            continue
        if max(info.modified, replaced) < before:
            paths.append(info.path)
    return paths


def _number(path: str) -> int | None:
    match = _METADATA_FILE.fullmatch(_name(path))
    return None if match is None else int(match.group(1))


def _name(path: str) -> str:
    """The same file may be written as a plain path and as an address; names have a unique part of their own."""
    return path.rpartition("/")[2]
