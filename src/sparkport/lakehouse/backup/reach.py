"""Every file that a table's metadata leads to: all that has to be there for the table and its old versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.manifests import read_records
from sparkport.lakehouse.iceberg.metadata import TableMetadata, parse

__all__ = ["Kind", "Reached", "kind_of", "reach", "statistics_of"]

_DELETED = 2


class Kind(Enum):
    """What a file is. The values are words for people, and are in the lists of backups."""

    METADATA = "metadata"
    OLD_METADATA = "old metadata"
    VIEW = "view"
    MANIFEST_LIST = "manifest list"
    MANIFEST = "manifest"
    DATA = "data"
    POSITION_DELETES = "position deletes"
    EQUALITY_DELETES = "equality deletes"
    DELETION_VECTORS = "deletion vectors"
    STATISTICS = "statistics"


@dataclass(frozen=True, slots=True)
class Reached:
    """A file by the address that it is named by. ``optional`` ones may be gone: old metadata, in the table's log."""

    address: str
    kind: Kind
    optional: bool = False


def reach(fs: FileSystem, location: str, known: set[str]) -> Iterator[Reached]:
    """The files of the table whose metadata is at ``location``, the metadata first.

    Those whose addresses are ``known`` are left out, and what is new is added to them. Raises NotFound where metadata
    or a manifest is gone.
    """
    metadata = parse(fs.read_bytes(location), location)
    found = [
        Reached(location, Kind.METADATA),
        *(Reached(entry["metadata-file"], Kind.OLD_METADATA, optional=True) for entry in metadata.metadata_log),
        *(Reached(address, Kind.STATISTICS) for address, _ in statistics_of(metadata)),
    ]
    yield from _new(found, known)
    for snapshot in metadata.snapshots:
        if snapshot.manifest_list in known:
            continue
        yield from _new([Reached(snapshot.manifest_list, Kind.MANIFEST_LIST)], known)
        for listed in read_records(fs, snapshot.manifest_list):
            if listed["manifest_path"] not in known:
                yield from _new([Reached(listed["manifest_path"], Kind.MANIFEST)], known)
                yield from _new(_files(fs, listed["manifest_path"]), known)


def _new(found: Iterator[Reached] | list[Reached], known: set[str]) -> Iterator[Reached]:
    for reached in found:
        if reached.address not in known:
            known.add(reached.address)
            yield reached


def _files(fs: FileSystem, manifest: str) -> Iterator[Reached]:
    for record in read_records(fs, manifest):
        if record["status"] != _DELETED:
            yield Reached(record["data_file"]["file_path"], kind_of(record["data_file"]))


def kind_of(file: dict[str, Any]) -> Kind:
    """By a manifest's record of the file."""
    content = file.get("content") or 0
    if content == 0:
        return Kind.DATA
    if content == 2:
        return Kind.EQUALITY_DELETES
    is_puffin = str(file["file_format"]).lower() == "puffin"
    return Kind.DELETION_VECTORS if is_puffin else Kind.POSITION_DELETES


def statistics_of(metadata: TableMetadata) -> Iterator[tuple[str, int]]:
    """The addresses and sizes of its files of statistics."""
    for key in ("statistics", "partition-statistics"):
        for entry in metadata.json.get(key) or ():
            yield entry["statistics-path"], int(entry["file-size-in-bytes"])
