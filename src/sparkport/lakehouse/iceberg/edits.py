"""Iceberg table metadata as it is after a change: pure functions from one JSON document to the next.

Every key that is not ours to change is carried over, known or not, so that a newer writer's metadata survives us.
"""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sparkport.lakehouse.iceberg.metadata import WAP
from sparkport.lakehouse.iceberg.version_numbers import numbered_next

__all__ = [
    "Json",
    "add_on_main",
    "add_shadow",
    "clear_main",
    "drop_refs",
    "evolve_schema",
    "move_main",
    "new_table",
    "set_properties",
    "set_ref",
]

Json = dict[str, Any]

_LOG_ENTRIES = 100


def _now() -> int:
    return int(time.time() * 1000)


def new_table(
    location: str,
    fields: Sequence[Json],
    *,
    last_column_id: int,
    properties: Mapping[str, str],
    partition_fields: Sequence[Json] = (),
    sort_fields: Sequence[Json] = (),
    identifier_fields: Sequence[int] = (),
) -> Json:
    """A format v3 table without a snapshot."""
    specs = [{"spec-id": 0, "fields": list(partition_fields)}]
    orders: list[Json] = [{"order-id": 0, "fields": []}]
    if sort_fields:
        orders.append({"order-id": 1, "fields": list(sort_fields)})
    return {
        "format-version": 3,
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": _now(),
        "last-column-id": last_column_id,
        "current-schema-id": 0,
        "schemas": [_schema(0, fields, identifier_fields)],
        "default-spec-id": 0,
        "partition-specs": specs,
        "last-partition-id": max([field["field-id"] for field in partition_fields], default=999),
        "default-sort-order-id": 1 if sort_fields else 0,
        "sort-orders": orders,
        "properties": dict(properties),
        "next-row-id": 0,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }


def move_main(metadata: Mapping[str, Any], snapshot_id: int, *, previous: str) -> Json:
    """``main`` on another snapshot that is in the metadata already; ``previous`` is where this metadata stands."""
    after = _changed(metadata, previous)
    _set_main(after, snapshot_id)
    return numbered_next(metadata, after)


def add_on_main(metadata: Mapping[str, Any], snapshot: Mapping[str, Any], *, previous: str) -> Json:
    """A new snapshot, and ``main`` on it."""
    after = _changed(metadata, previous)
    # The clock may stand behind that of the snapshot before it.
    added = {**snapshot, "timestamp-ms": after["last-updated-ms"]}
    after["snapshots"] = [*after.get("snapshots", []), added]
    after["last-sequence-number"] = snapshot["sequence-number"]
    _set_main(after, snapshot["snapshot-id"])
    return numbered_next(metadata, after)


def add_shadow(
    metadata: Mapping[str, Any], shadow: Mapping[str, Any], snapshot_ids: Sequence[int], *, previous: str
) -> Json:
    """The new snapshots of a shadow, and ``main`` on the last: one commit, however many they are.

    The shadow MUST have begun with this ``main``, sequence number and next row id. Earlier versions let Spark stage
    snapshots in the table itself; the property that said so goes.
    """
    after = _changed(metadata, previous)
    added = [item for item in shadow["snapshots"] if item["snapshot-id"] in snapshot_ids]
    after["snapshots"] = [*(after.get("snapshots") or ()), *added]
    after |= {key: shadow[key] for key in ("last-sequence-number", "next-row-id") if key in shadow}
    _merge(after, {WAP: None})
    _set_main(after, snapshot_ids[-1])
    return numbered_next(metadata, after)


def set_ref(metadata: Mapping[str, Any], name: str, ref: Mapping[str, Any], *, previous: str) -> Json:
    """With a branch or tag."""
    after = _changed(metadata, previous)
    after["refs"] = {**after.get("refs", {}), name: dict(ref)}
    return after


def _set_main(metadata: Json, snapshot_id: int) -> None:
    main = dict(metadata.get("refs", {}).get("main", {"type": "branch"}))
    main["snapshot-id"] = snapshot_id
    metadata["refs"] = {**metadata.get("refs", {}), "main": main}
    metadata["current-snapshot-id"] = snapshot_id
    entry = {"timestamp-ms": metadata["last-updated-ms"], "snapshot-id": snapshot_id}
    metadata["snapshot-log"] = [*metadata.get("snapshot-log", []), entry]


def clear_main(metadata: Mapping[str, Any], *, previous: str) -> Json:
    """The table as it was before it had any rows; its log of ``main`` goes with it, as the format asks for."""
    after = drop_refs(metadata, ["main"], previous=previous)
    after.pop("current-snapshot-id", None)
    after["snapshot-log"] = []
    return numbered_next(metadata, after)


def drop_refs(metadata: Mapping[str, Any], names: Collection[str], *, previous: str | None = None) -> Json:
    """Without some branches or tags; ``previous`` as above, None for metadata that has been changed already."""
    after = dict(metadata) if previous is None else _changed(metadata, previous)
    after["refs"] = {ref: target for ref, target in after.get("refs", {}).items() if ref not in names}
    return after


def evolve_schema(
    metadata: Mapping[str, Any],
    fields: Sequence[Json],
    *,
    last_column_id: int,
    properties: Mapping[str, str | None] | None = None,
    identifier_fields: Sequence[int] = (),
    previous: str,
) -> Json:
    """Another current schema; an equal one that is there already is taken up again, as the format asks for."""
    after = _changed(metadata, previous)
    identified = set(identifier_fields)
    known = next(
        (
            item
            for item in after["schemas"]
            if item["fields"] == list(fields) and set(item.get("identifier-field-ids") or ()) == identified
        ),
        None,
    )
    if known is None:
        number = max(item["schema-id"] for item in after["schemas"]) + 1
        known = _schema(number, fields, identifier_fields)
        after["schemas"] = [*after["schemas"], known]
    after["current-schema-id"] = known["schema-id"]
    after["last-column-id"] = max(last_column_id, after["last-column-id"])
    _merge(after, properties or {})
    # No log has changes of the schema, and catalogs that write metadata themselves do not count them.
    return numbered_next(metadata, after)


def set_properties(metadata: Mapping[str, Any], properties: Mapping[str, str | None], *, previous: str) -> Json:
    """A value of None takes a property away."""
    after = _changed(metadata, previous)
    _merge(after, properties)
    return after


def _schema(number: int, fields: Sequence[Json], identifier_fields: Sequence[int]) -> Json:
    schema = {"type": "struct", "schema-id": number, "fields": list(fields)}
    return {**schema, "identifier-field-ids": list(identifier_fields)} if identifier_fields else schema


def _merge(metadata: Json, properties: Mapping[str, str | None]) -> None:
    merged: dict[str, str | None] = {**metadata.get("properties", {}), **properties}
    metadata["properties"] = {key: value for key, value in merged.items() if value is not None}


def _changed(metadata: Mapping[str, Any], previous: str) -> Json:
    after = copy.copy(dict(metadata))
    entry = {"timestamp-ms": metadata["last-updated-ms"], "metadata-file": previous}
    kept = int(metadata.get("properties", {}).get("write.metadata.previous-versions-max", _LOG_ENTRIES))
    after["metadata-log"] = [*metadata.get("metadata-log", []), entry][-max(kept, 1) :]
    after["last-updated-ms"] = max(_now(), metadata["last-updated-ms"])
    return after
