"""A table's metadata file, read once and looked at from many places: it never changes, a new one takes its place."""

from __future__ import annotations

import gzip
import json
import secrets
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from sparkport.errors import InternalError, VersionNotFound
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.files import FileSystem

__all__ = ["BRANCH", "IcebergSchema", "MARK", "ROLLED_BACK", "Snapshot", "TableMetadata", "WAP", "load", "parse"]

MARK = "sparkport.mark"
"""What every snapshot has in its summary that we let Spark make."""

BRANCH = "sparkport_"
"""What the names of our branches begin with; the rest is the server's id and a number."""

ROLLED_BACK = "sparkport.rolled-back"
"""In a snapshot's summary, which one it brings back; in a table's properties, the last commit that brought one back."""

WAP = "write.wap.enabled"
"""The property by which Spark makes snapshots of a table aside, if a session asks for it (write-audit-publish)."""

IcebergSchema: TypeAlias = Mapping[str, Any]

_GZIP = b"\x1f\x8b"
_CACHED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a table's rows."""

    id: int
    parent_id: int | None
    sequence_number: int
    timestamp_ms: int
    schema_id: int | None
    manifest_list: str
    summary: Mapping[str, str]
    first_row_id: int | None

    @property
    def operation(self) -> str:
        return self.summary.get("operation", "")

    @property
    def is_ours(self) -> bool:
        """Whether a server of sparkport has made it."""
        return MARK in self.summary


class TableMetadata:
    """A read-only view over the metadata JSON, which keeps the keys that nobody here knows."""

    __slots__ = ("_schemas", "_snapshots", "json", "metadata_location")

    def __init__(self, json: Mapping[str, Any], metadata_location: str = "") -> None:
        """``json`` MUST NOT be changed afterwards: metadata is shared by all who look at the same file."""
        self.json = MappingProxyType(dict(json))
        self.metadata_location = metadata_location
        schemas = json.get("schemas") or [json["schema"]]
        self._schemas: Mapping[int, IcebergSchema] = {schema.get("schema-id", 0): schema for schema in schemas}
        self._snapshots = {entry["snapshot-id"]: entry for entry in json.get("snapshots") or ()}

    @property
    def location(self) -> str:
        """Where the table's files are, as opposed to ``metadata_location``: where this was read from."""
        return str(self.json["location"])

    @property
    def uuid(self) -> str:
        return str(self.json.get("table-uuid", self.location))

    @property
    def format_version(self) -> int:
        return int(self.json.get("format-version", 1))

    @property
    def schemas(self) -> Mapping[int, IcebergSchema]:
        return self._schemas

    @property
    def current_schema(self) -> IcebergSchema:
        return self._schemas[self.json.get("current-schema-id", next(iter(self._schemas)))]

    @property
    def properties(self) -> Mapping[str, str]:
        return self.json.get("properties") or {}

    @property
    def refs(self) -> Mapping[str, Mapping[str, Any]]:
        return self.json.get("refs") or {}

    @property
    def main_snapshot_id(self) -> int | None:
        """The snapshot that readers see, None for a table that never had a row."""
        snapshot_id = (self.refs.get("main") or {}).get("snapshot-id", self.json.get("current-snapshot-id"))
        return None if snapshot_id in (None, -1) else int(snapshot_id)

    @property
    def last_updated_ms(self) -> int:
        return int(self.json.get("last-updated-ms", 0))

    @property
    def snapshot_log(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.json.get("snapshot-log") or ())

    @property
    def metadata_log(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.json.get("metadata-log") or ())

    @property
    def specs(self) -> Mapping[int, tuple[Mapping[str, Any], ...]]:
        """Partition fields by the id of their spec."""
        if specs := self.json.get("partition-specs"):
            return {spec["spec-id"]: tuple(spec["fields"]) for spec in specs}
        return {0: tuple(self.json.get("partition-spec") or ())}

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        return tuple(map(_snapshot, self._snapshots.values()))

    def has_snapshot(self, snapshot_id: int) -> bool:
        return snapshot_id in self._snapshots

    def unused_snapshot_id(self) -> int:
        """For a new snapshot, drawn by lot."""
        while self.has_snapshot(number := secrets.randbits(62) + 1):
            pass
        return number

    def snapshot(self, snapshot_id: int) -> Snapshot:
        entry = self._snapshots.get(snapshot_id)
        if entry is None:
            oldest = min((snap["timestamp-ms"] for snap in self._snapshots.values()), default=None)
            left = "none is left" if oldest is None else f"the oldest one left is of {oldest} ms since 1970"
            raise VersionNotFound(f"snapshot {snapshot_id} not found: {left}")
        return _snapshot(entry)

    def schema_of(self, snapshot_id: int | None) -> IcebergSchema:
        """The schema that a snapshot was written with; what ``main`` shows has the table's schema of today."""
        if snapshot_id is None or snapshot_id == self.main_snapshot_id:
            return self.current_schema
        schema_id = self.snapshot(snapshot_id).schema_id
        return self._schemas.get(schema_id, self.current_schema) if schema_id is not None else self.current_schema

    @property
    def _rolled_back_by(self) -> int:
        """The last commit that has brought old rows back, with the lineage that they had; 0 for none."""
        noted = self.properties.get(ROLLED_BACK, "0")
        return int(noted) if noted.isascii() and noted.isdigit() else 0

    def ancestors(self, snapshot_id: int | None) -> Iterator[Snapshot]:
        """A snapshot and the ones that it came from, newest first, as far back as they are known."""
        while snapshot_id is not None and snapshot_id in self._snapshots:
            snapshot = self.snapshot(snapshot_id)
            yield snapshot
            snapshot_id = snapshot.parent_id

    def descends_from(self, snapshot_id: int | None, sequence_number: int) -> bool:
        """Whether ``main`` came from a snapshot; not if it was rolled back, or set to another line, since.

        Snapshots in between may have expired: then the log of ``main`` shows whether it ever went back.
        """
        if snapshot_id is None:
            return True
        if sequence_number < self._rolled_back_by:
            return False
        oldest: Snapshot | None = None
        for ancestor in self.ancestors(self.main_snapshot_id):
            if ancestor.id == snapshot_id:
                return True
            if ancestor.sequence_number < sequence_number:
                return False
            oldest = ancestor
        if oldest is None or oldest.parent_id is None:
            return False
        moves = [entry["snapshot-id"] for entry in self.snapshot_log]
        after = moves[len(moves) - moves[::-1].index(snapshot_id) :] if snapshot_id in moves else moves
        later = (self._snapshots[move].get("sequence-number", 0) for move in after if move in self._snapshots)
        return all(number >= sequence_number for number in later)


def _snapshot(entry: Mapping[str, Any]) -> Snapshot:
    if "manifest-list" not in entry:
        raise InternalError(f"snapshot {entry['snapshot-id']} has no manifest list: tables of before 2019 are not read")
    return Snapshot(
        id=entry["snapshot-id"],
        parent_id=entry.get("parent-snapshot-id"),
        sequence_number=entry.get("sequence-number", 0),
        timestamp_ms=entry["timestamp-ms"],
        schema_id=entry.get("schema-id"),
        manifest_list=entry["manifest-list"],
        summary=MappingProxyType(dict(entry.get("summary") or {})),
        first_row_id=entry.get("first-row-id"),
    )


_IDS = frozenset({"id", "element-id", "key-id", "value-id"})

_Loaded: TypeAlias = tuple[TableMetadata, int]
_cache: BoundedCache[tuple[FileSystem, str], _Loaded] = BoundedCache(
    _CACHED_BYTES, weigh=lambda loaded: loaded[1], name="metadata"
)


def load(fs: FileSystem, metadata_location: str) -> TableMetadata:
    """The metadata at this address; read once, since what is there never changes."""

    def read() -> _Loaded:
        data = fs.read_bytes(metadata_location)
        return parse(data, metadata_location), len(data) * 4  # parsed JSON takes several times its text

    return _cache.get((fs, metadata_location), read)[0]


def parse(data: bytes, metadata_location: str = "") -> TableMetadata:
    """Metadata from the bytes of its file, gzip-compressed or not."""
    try:
        text = gzip.decompress(data) if data.startswith(_GZIP) else data
        metadata = TableMetadata(json.loads(text), metadata_location)
        _require_numbers(metadata)
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as exc:
        raise InternalError(f"table metadata '{metadata_location}' cannot be read: {exc}") from exc
    return metadata


def _require_numbers(metadata: TableMetadata) -> None:
    """Ids go into SQL as they are: whoever wrote the metadata, they must be numbers."""
    waiting: list[Any] = list(metadata.schemas.values())
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            for key in _IDS & part.keys():
                if type(part[key]) is not int:
                    raise ValueError(f"{key} is {part[key]!r:.50}, not a number")
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    for number in metadata.json.get("snapshots") or ():
        if type(number["snapshot-id"]) is not int:
            raise ValueError("a snapshot's id is not a number")
