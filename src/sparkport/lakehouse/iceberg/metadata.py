"""A table's metadata file, read once and looked at from many places: it never changes, a new one takes its place."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from sparkport.errors import InternalError, VersionNotFound
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.files import FileSystem

__all__ = ["IcebergSchema", "Snapshot", "TableMetadata", "load", "parse"]

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


class TableMetadata:
    """A read-only view over the metadata JSON, which keeps the keys that nobody here knows."""

    __slots__ = ("_schemas", "_snapshots", "json", "metadata_location")

    def __init__(self, json: Mapping[str, Any], metadata_location: str = "") -> None:
        """``json`` MUST NOT be changed afterwards: metadata is shared by all who look at the same file."""
        self.json = MappingProxyType(dict(json))
        self.metadata_location = metadata_location
        schemas = json.get("schemas") or [json["schema"]]
        self._schemas: Mapping[int, IcebergSchema] = {schema.get("schema-id", 0): schema for schema in schemas}
        self._snapshots = {found["snapshot-id"]: found for found in json.get("snapshots") or ()}

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
        found = (self.refs.get("main") or {}).get("snapshot-id", self.json.get("current-snapshot-id"))
        return None if found in (None, -1) else int(found)

    @property
    def last_sequence_number(self) -> int:
        return int(self.json.get("last-sequence-number", 0))

    @property
    def last_updated_ms(self) -> int:
        return int(self.json.get("last-updated-ms", 0))

    @property
    def next_row_id(self) -> int:
        return int(self.json.get("next-row-id") or 0)

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

    def snapshot(self, snapshot_id: int) -> Snapshot:
        found = self._snapshots.get(snapshot_id)
        if found is None:
            oldest = min((snap["timestamp-ms"] for snap in self._snapshots.values()), default=None)
            left = "none is left" if oldest is None else f"the oldest one left is of {oldest} ms since 1970"
            raise VersionNotFound(f"snapshot {snapshot_id} not found: {left}")
        return _snapshot(found)

    def schema_of(self, snapshot_id: int | None) -> IcebergSchema:
        """The schema that a snapshot was written with; what ``main`` shows has the table's schema of today."""
        if snapshot_id is None or snapshot_id == self.main_snapshot_id:
            return self.current_schema
        schema_id = self.snapshot(snapshot_id).schema_id
        return self._schemas.get(schema_id, self.current_schema) if schema_id is not None else self.current_schema

    def ancestors(self, snapshot_id: int | None) -> Iterator[Snapshot]:
        """A snapshot and the ones that it came from, newest first, as far back as they are known."""
        while snapshot_id is not None and snapshot_id in self._snapshots:
            found = self.snapshot(snapshot_id)
            yield found
            snapshot_id = found.parent_id

    def descends_from(self, snapshot_id: int | None, sequence_number: int) -> bool:
        """Whether ``main`` came from a snapshot; not if it was rolled back, or set to another line, since.

        Snapshots in between may have expired: then the log of ``main`` tells whether it ever went back.
        """
        if snapshot_id is None:
            return True
        oldest: Snapshot | None = None
        for found in self.ancestors(self.main_snapshot_id):
            if found.id == snapshot_id:
                return True
            if found.sequence_number < sequence_number:
                return False
            oldest = found
        if oldest is None or oldest.parent_id is None:
            return False
        moves = [entry["snapshot-id"] for entry in self.snapshot_log]
        after = moves[len(moves) - moves[::-1].index(snapshot_id) :] if snapshot_id in moves else moves
        later = (self._snapshots[move].get("sequence-number", 0) for move in after if move in self._snapshots)
        return all(number >= sequence_number for number in later)


def _snapshot(found: Mapping[str, Any]) -> Snapshot:
    if "manifest-list" not in found:
        raise InternalError(f"snapshot {found['snapshot-id']} has no manifest list: tables of before 2019 are not read")
    return Snapshot(
        id=found["snapshot-id"],
        parent_id=found.get("parent-snapshot-id"),
        sequence_number=found.get("sequence-number", 0),
        timestamp_ms=found["timestamp-ms"],
        schema_id=found.get("schema-id"),
        manifest_list=found["manifest-list"],
        summary=MappingProxyType(dict(found.get("summary") or {})),
        first_row_id=found.get("first-row-id"),
    )


_IDS = frozenset({"id", "element-id", "key-id", "value-id"})

_Loaded: TypeAlias = tuple[TableMetadata, int]
_cache: BoundedCache[tuple[FileSystem, str], _Loaded] = BoundedCache(_CACHED_BYTES, weigh=lambda loaded: loaded[1])


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
        found = TableMetadata(json.loads(text), metadata_location)
        _require_numbers(found)
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise InternalError(f"table metadata '{metadata_location}' cannot be read: {exc}") from exc
    return found


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
