"""The numbers of a table's versions, counted in its metadata.

0 is the table as it was made; every commit that moved ``main`` or changed the schema counts one. The moves of ``main``
are in Iceberg's snapshot log. The changes of the schema are nowhere: they are noted in a property of the table, next to
the number that was reached. So any version whose snapshot is kept can be found in the newest metadata alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkport.lakehouse.metadata import TableMetadata

__all__ = ["NUMBER", "Version", "number_of", "numbered", "versions"]

NUMBER = "sparkport.version"

_CHANGES_KEPT = 200


@dataclass(frozen=True, slots=True)
class Version:
    """What a number stands for. ``timestamp_ms`` is when it was committed, None where nobody knows."""

    number: int
    snapshot_id: int | None
    schema_id: int
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class _Change:
    """A commit that changed the schema."""

    number: int
    schema: int
    time: int


@dataclass(frozen=True, slots=True)
class _Count:
    """``changes`` are all changes of the schema after the version ``since``, whose schema was ``base``."""

    number: int
    changes: tuple[_Change, ...]
    since: int
    base: int | None


def number_of(metadata: TableMetadata) -> int:
    """How many commits have moved ``main`` or changed the schema since the table was made."""
    return _count(metadata.json).number


def numbered(metadata: dict[str, Any]) -> dict[str, Any]:
    """The same metadata with its number written down, for whoever counts on from here."""
    count = _count(metadata)
    kept, since, base = count.changes[-_CHANGES_KEPT:], count.since, count.base
    if len(kept) < len(count.changes):
        since, base = count.changes[-_CHANGES_KEPT - 1].number, count.changes[-_CHANGES_KEPT - 1].schema
    note = {
        "number": count.number,
        "main": metadata.get("refs", {}).get("main", {}).get("snapshot-id"),
        "schema": metadata["current-schema-id"],
        "since": since,
        "base": base,
        "changes": [[change.number, change.schema, change.time] for change in kept],
    }
    return {**metadata, "properties": {**metadata.get("properties", {}), NUMBER: json.dumps(note)}}


def versions(metadata: TableMetadata) -> Iterator[Version]:
    """All versions that this metadata knows, newest first; their snapshots may have expired."""
    count = _count(metadata.json)
    changes = {change.number: change for change in count.changes}
    log = list(metadata.snapshot_log)
    for number in range(count.number, count.since - 1, -1):
        change = changes.get(number)
        moved = log[-1] if log else None
        if change is None and moved is None and number > 0:
            return  # the log was cut off here
        if number == 0 and log:
            return  # somebody else has counted otherwise
        schema = next((found.schema for found in reversed(count.changes) if found.number <= number), count.base)
        snapshot = None if moved is None else int(moved["snapshot-id"])
        if schema is None:
            schema = _schema_of(metadata.json, snapshot)
        time = None
        if change is not None:
            time = change.time
        elif moved is not None and number > count.since:  # of the first one it is not known what was committed
            time = int(moved["timestamp-ms"])
        earlier = sum(found.number <= number for found in count.changes)
        if moved is not None or (count.since == 0 and earlier == number):  # else the log is too short to tell the rows
            yield Version(number, snapshot, schema, time)
        if change is None and log:
            log.pop()


def _count(metadata: Mapping[str, Any]) -> _Count:
    note = _note(metadata)
    number, schema = int(note.get("number", 0)), note.get("schema", 0)
    changes = tuple(_Change(*found) for found in note.get("changes", ()))
    log = metadata.get("snapshot-log") or []
    main = note.get("main")
    recent = log if main is None else log[_last(log, main) + 1 :]
    current = metadata.get("current-schema-id", 0)
    since, base = note.get("since", number), note.get("base", schema if note or (current == 0 and not log) else None)
    if _same_rows(metadata, current, schema):
        return _Count(number + len(recent), changes, since, base)
    # Snapshots tell the schema that they were made with: the change was before the first one that has the new schema.
    before = next((i for i, move in enumerate(recent) if _schema_of(metadata, move["snapshot-id"]) == current), None)
    time = metadata.get("last-updated-ms", 0) if before is None else recent[before]["timestamp-ms"]
    change = _Change(number + (len(recent) if before is None else before) + 1, current, time)
    return _Count(number + len(recent) + 1, (*changes, change), since, base)


def _note(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        note = json.loads((metadata.get("properties") or {}).get(NUMBER) or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def _last(log: list[Mapping[str, Any]], snapshot_id: int) -> int:
    """Where a snapshot was put on ``main`` last; before all of the log, if that is so long ago."""
    return max((index for index, found in enumerate(log) if found["snapshot-id"] == snapshot_id), default=-1)


def _schema_of(metadata: Mapping[str, Any], snapshot_id: int | None) -> int:
    snapshots = metadata.get("snapshots") or ()
    found: Mapping[str, Any] = next((item for item in snapshots if item["snapshot-id"] == snapshot_id), {})
    return int(found.get("schema-id", metadata.get("current-schema-id", 0)))


def _same_rows(metadata: Mapping[str, Any], one: int, other: int) -> bool:
    """Whether two schemas differ in nothing that rows show: what later rows will have by default is no version."""
    if one == other:
        return True
    fields = {item.get("schema-id", 0): item["fields"] for item in metadata.get("schemas") or ()}
    shown = [
        [{key: value for key, value in field.items() if key != "write-default"} for field in fields[number]]
        for number in (one, other)
        if number in fields
    ]
    return len(shown) == 2 and shown[0] == shown[1]
