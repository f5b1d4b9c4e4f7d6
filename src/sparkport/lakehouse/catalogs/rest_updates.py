"""From one state of a table's metadata to the next, in the words of an Iceberg REST catalog: requirements and updates.

A SQL catalog is handed whole metadata files; a REST catalog writes them itself and gets a list of changes. Both start
from the same two documents, so no caller has to know which kind of catalog it speaks to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sparkport.errors import InternalError
from sparkport.lakehouse.catalogs.pointers import Edit
from sparkport.lakehouse.catalogs.rest_notes import noted, statement_count
from sparkport.lakehouse.iceberg.version_numbers import NUMBER
from sparkport.lakehouse.names import TableName

__all__ = [
    "Json",
    "change_request",
    "identifier",
    "is_visible",
    "main_of",
    "meets",
    "publishes",
    "requirements",
    "same_rows",
    "updates",
]

Json = dict[str, Any]

_LAST_ADDED = -1
"""Stands for what the same request has added: ids are given out by the catalog."""

_TOLD = {"format-version", "location", "schemas", "current-schema-id", "partition-specs", "default-spec-id"}
_TOLD |= {"sort-orders", "default-sort-order-id", "properties", "refs", "table-uuid", "snapshots"}
_KEPT_BY_CATALOG = {
    "last-sequence-number",
    "last-updated-ms",
    "metadata-log",
    "snapshot-log",
    "current-snapshot-id",
    "last-column-id",
}
_KEPT_BY_CATALOG |= {"last-partition-id", "last-sequence-number", "schema", "partition-spec"}


def identifier(table: TableName) -> Json:
    return {"namespace": [table.schema], "name": table.name}


def change_request(change: Edit, notes: Mapping[str, int], *, forget: Collection[str] = ()) -> Json:
    """What to ask of the catalog for a change; ``notes`` are the statements to be noted with it.

    ``forget`` are old ones, whose notes go.
    """
    after = noted(change.after, notes, without=forget) if notes else change.after
    # Which old notes a table has is no part of what must not have changed.
    required = requirements(change.before, change.after)
    if notes and change.before is not None:
        # Another commit of the same statement moves ``main``: so it cannot come in between and not be noticed.
        unmoved = same_rows(change.before["table-uuid"], main_of(change.before))
        required += [item for item in unmoved if item not in required]
    return {
        "identifier": identifier(change.table),
        "requirements": required,
        "updates": updates(change.before, after),
    }


def main_of(metadata: Mapping[str, Any]) -> int | None:
    """The snapshot that readers see."""
    snapshot_id: int | None = (metadata.get("refs") or {}).get("main", {}).get("snapshot-id")
    return snapshot_id


def publishes(change: Edit) -> bool:
    """Whether a change makes a snapshot visible that is its own and nobody else's, and never was visible before."""
    main = main_of(change.after)
    return change.before is not None and main is not None and not _was_published(main, change.before)


def same_rows(uuid: str, main: int | None) -> list[Json]:
    """Requirements: the table is the same one and has the same rows."""
    same_snapshot: Json = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": main}
    return [{"type": "assert-table-uuid", "uuid": uuid}, same_snapshot]


_ASSERTED = {
    "uuid": "table-uuid",
    "current-schema-id": "current-schema-id",
    "last-assigned-field-id": "last-column-id",
    "default-spec-id": "default-spec-id",
    "last-assigned-partition-id": "last-partition-id",
    "default-sort-order-id": "default-sort-order-id",
}
"""What requirements are about, and where that is in a table's metadata."""


def meets(required: Iterable[Json], now: Mapping[str, Any]) -> bool:
    """Whether a table, by its present metadata, still is as a commit requires it to be."""
    refs = now.get("refs", {})
    for item in required:
        if item["type"] == "assert-create":
            return False
        if "ref" in item and refs.get(item["ref"], {}).get("snapshot-id") != item["snapshot-id"]:
            return False
        if any(item[key] != now[place] for key, place in _ASSERTED.items() if key in item):
            return False
    return True


def is_visible(
    change: Edit, transactions: Collection[str], statements: Collection[str], now: Mapping[str, Any]
) -> bool:
    """Whether a change is in a table's present metadata, which may have moved on since.

    ``transactions`` and ``statements`` are the keys that it notes. A repeat of the same statement notes the same, so
    only the snapshot shows whether it was published.
    """
    after = change.after
    if now["table-uuid"] != after["table-uuid"]:
        return False
    if transactions:
        return all(statement_count(now, key) is not None for key in transactions)
    if publishes(change):
        return _was_published(main_of(after), now)
    if change.before is not None and main_of(change.before) != main_of(after):
        return main_of(now) == main_of(after)
    if statements:
        return all(statement_count(now, key) is not None for key in statements)
    wanted = next(item for item in after["schemas"] if item["schema-id"] == after["current-schema-id"])
    if all(_rows_and_keys(item) != _rows_and_keys(wanted) for item in now["schemas"]):
        return False
    held = now.get("properties", {})
    before = {} if change.before is None else change.before.get("properties", {})
    changed = {key: value for key, value in after.get("properties", {}).items() if before.get(key) != value}
    changed.pop(NUMBER, None)  # the next commit counts on
    return all(held.get(key) == value for key, value in changed.items())


def _was_published(snapshot: int | None, metadata: Mapping[str, Any]) -> bool:
    """Whether readers see or saw a snapshot. If it has expired since, the next one shows it."""
    logged = {entry["snapshot-id"] for entry in metadata.get("snapshot-log", ())}
    parents = {item.get("parent-snapshot-id") for item in metadata.get("snapshots", ())}
    return snapshot in {main_of(metadata), *logged, *parents}


def requirements(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[Json]:
    """Requirements of a change: nobody has touched what it was decided on."""
    if before is None:
        return [{"type": "assert-create"}]
    required: list[Json] = [{"type": "assert-table-uuid", "uuid": before["table-uuid"]}]
    refs = _changed_refs(before, after)
    # What a schema is changed to may depend on the rows, as for NOT NULL, and on the notes about its columns.
    other_columns = _differs(before, after, "schemas", "current-schema-id") or _differs(before, after, "properties")
    if _differs(before, after, "schemas", "current-schema-id"):
        refs.add("main")
    for name in sorted(refs):
        snapshot = before.get("refs", {}).get(name, {}).get("snapshot-id")
        required.append({"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": snapshot})
    if other_columns:
        required.append({"type": "assert-current-schema-id", "current-schema-id": before["current-schema-id"]})
        required.append({"type": "assert-last-assigned-field-id", "last-assigned-field-id": before["last-column-id"]})
    if _differs(before, after, "partition-specs", "default-spec-id"):
        required.append({"type": "assert-default-spec-id", "default-spec-id": before["default-spec-id"]})
        partition = before["last-partition-id"]
        required.append({"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": partition})
    if _differs(before, after, "sort-orders", "default-sort-order-id"):
        order = before["default-sort-order-id"]
        required.append({"type": "assert-default-sort-order-id", "default-sort-order-id": order})
    return required


def updates(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[Json]:
    """The changes from one to the other. A difference that has no change is a defect, and is never left out."""
    changes: list[Json] = []
    if before is None:
        changes.append({"action": "assign-uuid", "uuid": after["table-uuid"]})
        before = {"properties": {}, "refs": {}}
    else:
        _require_told(before, after)
    if _differs(before, after, "format-version"):
        changes.append({"action": "upgrade-format-version", "format-version": after["format-version"]})
    if _differs(before, after, "location"):
        changes.append({"action": "set-location", "location": after["location"]})
    changes += _schemas(before, after)
    changes += _numbered(before, after, "spec")
    changes += _numbered(before, after, "sort-order")
    changes += _properties(before.get("properties", {}), after.get("properties", {}))
    changes += _snapshots(before, after)
    changes += _refs(before, after)
    return changes


def _require_told(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    keys = (before.keys() | after.keys()) - _TOLD - _KEPT_BY_CATALOG
    unknown = sorted(key for key in keys if before.get(key) != after.get(key))
    if _snapshot_ids(before) - _snapshot_ids(after):
        unknown.append("snapshots that are there")
    if unknown or before["table-uuid"] != after["table-uuid"]:
        raise InternalError(f"a REST catalog cannot change {', '.join(unknown) or 'a table into another'}")


def _differs(before: Mapping[str, Any], after: Mapping[str, Any], *keys: str) -> bool:
    return any(before.get(key) != after.get(key) for key in keys)


def _rows_and_keys(schema: Mapping[str, Any]) -> tuple[Any, list[int]]:
    return schema["fields"], sorted(schema.get("identifier-field-ids") or ())


def _schemas(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Json]:
    known = {schema["schema-id"] for schema in before.get("schemas", [])}
    added = [schema for schema in after["schemas"] if schema["schema-id"] not in known]
    last = after["last-column-id"]
    changes: list[Json] = [{"action": "add-schema", "schema": schema, "last-column-id": last} for schema in added]
    current = after["current-schema-id"]
    if before.get("current-schema-id") != current:
        newest = bool(added) and added[-1]["schema-id"] == current
        changes.append({"action": "set-current-schema", "schema-id": _LAST_ADDED if newest else current})
    return changes


def _numbered(before: Mapping[str, Any], after: Mapping[str, Any], noun: str) -> list[Json]:
    """Partition specs and sort orders, which have changes of the same form."""
    many, number = ("partition-specs", "spec-id") if noun == "spec" else ("sort-orders", "order-id")
    default, told = f"default-{noun}-id", "spec-id" if noun == "spec" else "sort-order-id"
    known = {item[number] for item in before.get(many, [])}
    added = [item for item in after[many] if item[number] not in known]
    changes: list[Json] = [{"action": f"add-{noun}", noun: item} for item in added]
    if before.get(default) != after[default]:
        newest = bool(added) and added[-1][number] == after[default]
        changes.append({"action": f"set-default-{noun}", told: _LAST_ADDED if newest else after[default]})
    return changes


def _properties(before: Mapping[str, str], after: Mapping[str, str]) -> list[Json]:
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    gone = sorted(before.keys() - after.keys())
    changes: list[Json] = [{"action": "set-properties", "updates": changed}] if changed else []
    return [*changes, {"action": "remove-properties", "removals": gone}] if gone else changes


def _snapshots(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Json]:
    known = _snapshot_ids(before)
    added = [snapshot for snapshot in after.get("snapshots") or () if snapshot["snapshot-id"] not in known]
    return [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in added]


def _snapshot_ids(metadata: Mapping[str, Any]) -> set[int]:
    return {snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or ()}


def _changed_refs(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    old, new = before.get("refs", {}), after.get("refs", {})
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def _refs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Json]:
    refs = after.get("refs", {})
    return [
        {"action": "set-snapshot-ref", "ref-name": name, **refs[name]}
        if name in refs
        else {"action": "remove-snapshot-ref", "ref-name": name}
        for name in sorted(_changed_refs(before, after))
    ]
