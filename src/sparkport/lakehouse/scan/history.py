"""Versions of a table's past, by the numbers of ``AT (VERSION => n)``, see ``version_numbers.py``, or by time.

As long as the table's log of metadata has the metadata of a version, that describes it; for older ones the newest
metadata knows rows and columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from sparkport.catalog.scan import AsOf, AsOfUnit
from sparkport.catalog.versions import not_a_version
from sparkport.errors import InvalidArgument, NotFound, VersionNotFound
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.version_numbers import number_of, versions
from sparkport.lakehouse.scan.version import TableVersion

__all__ = ["TAGGED_SCHEMAS", "tagged_schemas", "version_at"]

TAGGED_SCHEMAS = "sparkport.tagged-schemas"
"""The property that says which schema a tag's version has, where its snapshot was written with another one."""


def tagged_schemas(metadata: TableMetadata) -> dict[str, int]:
    """By the names of tags."""
    try:
        noted = json.loads(metadata.properties.get(TAGGED_SCHEMAS, "{}"))
    except ValueError:
        return {}
    return {str(name): schema for name, schema in noted.items() if isinstance(schema, int)} if noted else {}


def version_at(newest: TableVersion, moment: AsOf) -> TableVersion:
    """The version at a point in the table's history."""
    history = _History(newest)
    return history.at_time(moment.value) if moment.unit is AsOfUnit.TIMESTAMP else history.at_number(moment.value)


class _History:
    def __init__(self, newest: TableVersion) -> None:
        self._newest = newest
        self._metadata = newest.metadata

    def at_number(self, text: str) -> TableVersion:
        try:
            number = int(text)
        except ValueError:
            return self._at_ref(text)
        published = {entry["snapshot-id"] for entry in self._metadata.snapshot_log}
        published |= {ref["snapshot-id"] for ref in self._metadata.refs.values()}
        if number in published:
            try:
                snapshot = self._metadata.snapshot(number)
            except NotFound as exc:
                raise VersionNotFound(f"table '{self._newest.table.name}': snapshot {number} has expired") from exc
            return self._moment(number, snapshot.schema_id)
        left: list[int] = []
        for version in self._history():
            version_number = number_of(version.metadata)
            if version_number is not None and self._keeps(version.snapshot_id):
                if version_number == number:
                    return version
                left.append(version_number)
        for known in versions(self._metadata):
            if self._keeps(known.snapshot_id, known.schema_id):
                if known.number == number:
                    return self._moment(known.snapshot_id, known.schema_id)
                left.append(known.number)
        oldest = (
            f"the oldest is {min(left)}" if left else "others have expired its numbers, so name a snapshot or a time"
        )
        raise VersionNotFound(f"table '{self._newest.table.name}' has no version {number}; {oldest}")

    def _at_ref(self, name: str) -> TableVersion:
        """A tag has the columns of its time; a branch, as Iceberg reads it, those of the table."""
        ref = self._metadata.refs.get(name)
        if ref is None or name.startswith("sparkport_"):
            raise not_a_version(self._newest.table.name, name)
        if ref.get("type") != "tag":
            return self._moment(ref["snapshot-id"], None)
        own = self._metadata.snapshot(ref["snapshot-id"]).schema_id
        schema_id = tagged_schemas(self._metadata).get(name, own)
        return self._moment(ref["snapshot-id"], schema_id if schema_id in self._metadata.schemas else own)

    def at_time(self, text: str) -> TableVersion:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as exc:
            raise InvalidArgument(f"'{text}' is not a timestamp") from exc
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        limit = moment.timestamp() * 1000
        oldest = self._metadata.last_updated_ms
        for version in self._history():
            kept = self._keeps(version.snapshot_id)
            if version.metadata.last_updated_ms <= limit:
                if kept:
                    return version
                break
            oldest = min(oldest, version.metadata.last_updated_ms) if kept else oldest
        else:
            for time, snapshot_id, schema_id in self._moments():
                kept = self._keeps(snapshot_id, schema_id)
                if time <= limit:
                    if kept:
                        return self._moment(snapshot_id, schema_id)
                    break
                oldest = min(oldest, time) if kept else oldest
        when = datetime.fromtimestamp(oldest / 1000, UTC).isoformat()
        raise VersionNotFound(f"table '{self._newest.table.name}' has no version at {text}; the oldest is of {when}")

    def _moment(self, snapshot_id: int | None, schema_id: int | None) -> TableVersion:
        return replace(self._newest, snapshot=(snapshot_id,), schema_id=schema_id)

    def _moments(self) -> Iterator[tuple[int, int | None, int | None]]:
        """Commits by their times, newest first, as far back as the newest metadata knows of them."""
        passed = None
        for known in versions(self._metadata):
            if known.timestamp_ms is not None:
                passed = known.timestamp_ms
                yield known.timestamp_ms, known.snapshot_id, known.schema_id
        for move in reversed(self._metadata.snapshot_log):
            if passed is None or move["timestamp-ms"] < passed:
                kept = self._keeps(move["snapshot-id"])
                schema_id = self._metadata.snapshot(move["snapshot-id"]).schema_id if kept else None
                yield move["timestamp-ms"], move["snapshot-id"], schema_id

    def _keeps(self, snapshot_id: int | None, schema_id: int | None = None) -> bool:
        """Whether rows and columns of a version have not been cleaned away."""
        there = snapshot_id is None or self._metadata.has_snapshot(snapshot_id)
        return there and (schema_id is None or schema_id in self._metadata.schemas)

    def _history(self) -> Iterator[TableVersion]:
        """This version and those before it, as far as their metadata is still there; their rows may have expired."""
        yield self._newest
        for entry in reversed(self._metadata.metadata_log):
            try:
                yield self._newest.loader.load(self._newest.table, entry["metadata-file"])
            except NotFound:
                return
