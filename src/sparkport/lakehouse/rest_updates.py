"""From one state of a table's metadata to the next, in the words of an Iceberg REST catalog: requirements and updates.

A SQL catalog is handed whole metadata files; a REST catalog writes them itself and is told what to change. Both start
from the same two documents, so no caller has to know which kind of catalog it speaks to.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from sparkport.errors import InternalError
from sparkport.lakehouse.numbers import NUMBER
from sparkport.lakehouse.pointers import Edit, TableName

__all__ = ["Json", "STATEMENT", "change_request", "holds", "identifier", "made", "requirements", "still", "updates"]

Json = dict[str, Any]

STATEMENT = "sparkport.statement."
_STATEMENT_SECONDS = 3600.0
_STATEMENTS_KEPT = 200
_TRANSACTION = STATEMENT + "tx:"
_TRANSACTIONS_KEPT = 5_000
"""Of each the newest. A transaction's note is all that tells of a commit without an answer, so others must not soon
push it out."""

_LAST_ADDED = -1
"""Stands for what the same request has added: ids are given out by the catalog."""

_TOLD = {"format-version", "location", "schemas", "current-schema-id", "partition-specs", "default-spec-id"}
_TOLD |= {"sort-orders", "default-sort-order-id", "properties", "refs", "table-uuid"}
_KEPT_BY_CATALOG = {"last-updated-ms", "metadata-log", "snapshot-log", "current-snapshot-id", "last-column-id"}
_KEPT_BY_CATALOG |= {"last-partition-id", "schema", "partition-spec"}


def identifier(table: TableName) -> Json:
    return {"namespace": [table[0]], "name": table[1]}


def change_request(change: Edit, notes: Mapping[str, int]) -> Json:
    """What to ask of the catalog for a change; ``notes`` are the statements to be noted with it."""
    after = _noted(change.after, notes) if notes else change.after
    return {
        "identifier": identifier(change.table),
        # Notes about statements depend on nothing, so they are no part of what must not have changed.
        "requirements": requirements(change.before, change.after),
        "updates": updates(change.before, after),
    }


def still(uuid: str, main: int | None) -> list[Json]:
    """That a table is the same one and has the same rows."""
    found: Json = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": main}
    return [{"type": "assert-table-uuid", "uuid": uuid}, found]


def holds(required: Iterable[Json], now: Mapping[str, Any]) -> bool:
    """Whether a table, by its present metadata, still is the one that was asked for, with the same rows."""
    refs = now.get("refs", {})
    for item in required:
        if item["type"] == "assert-create" or item.get("uuid", now["table-uuid"]) != now["table-uuid"]:
            return False
        if "ref" in item and refs.get(item["ref"], {}).get("snapshot-id") != item["snapshot-id"]:
            return False
    return True


def made(change: Edit, notes: Mapping[str, int], now: Mapping[str, Any]) -> bool:
    """Whether a change is in a table's present metadata, which may have moved on since."""
    after = change.after
    if now["table-uuid"] != after["table-uuid"]:
        return False
    held: Mapping[str, str] = now.get("properties", {})
    if notes:
        return all(STATEMENT + key in held for key in notes)
    main = after.get("refs", {}).get("main", {}).get("snapshot-id")
    published = {entry["snapshot-id"] for entry in now.get("snapshot-log", [])} | {None}
    if main not in published:
        return False
    wanted = next(item for item in after["schemas"] if item["schema-id"] == after["current-schema-id"])
    if all(item["fields"] != wanted["fields"] for item in now["schemas"]):
        return False
    before = {} if change.before is None else change.before.get("properties", {})
    changed = {key: value for key, value in after.get("properties", {}).items() if before.get(key) != value}
    changed.pop(NUMBER, None)  # the next commit counts on
    return all(held.get(key) == value for key, value in changed.items())


def requirements(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[Json]:
    """What must still hold when the change is made: that nobody touched what it was decided on."""
    if before is None:
        return [{"type": "assert-create"}]
    found: list[Json] = [{"type": "assert-table-uuid", "uuid": before["table-uuid"]}]
    refs = _changed_refs(before, after)
    # What a schema is changed to may depend on the rows, as for NOT NULL, and on the notes about its columns.
    other_columns = _differs(before, after, "schemas", "current-schema-id") or _differs(before, after, "properties")
    if _differs(before, after, "schemas", "current-schema-id"):
        refs.add("main")
    for name in sorted(refs):
        snapshot = before.get("refs", {}).get(name, {}).get("snapshot-id")
        found.append({"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": snapshot})
    if other_columns:
        found.append({"type": "assert-current-schema-id", "current-schema-id": before["current-schema-id"]})
        found.append({"type": "assert-last-assigned-field-id", "last-assigned-field-id": before["last-column-id"]})
    if _differs(before, after, "partition-specs", "default-spec-id"):
        found.append({"type": "assert-default-spec-id", "default-spec-id": before["default-spec-id"]})
        partition = before["last-partition-id"]
        found.append({"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": partition})
    if _differs(before, after, "sort-orders", "default-sort-order-id"):
        order = before["default-sort-order-id"]
        found.append({"type": "assert-default-sort-order-id", "default-sort-order-id": order})
    return found


def updates(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[Json]:
    """What leads from one to the other; a difference that cannot be told is a defect, and is never left out."""
    found: list[Json] = []
    if before is None:
        found.append({"action": "assign-uuid", "uuid": after["table-uuid"]})
        before = {"properties": {}, "refs": {}}
    else:
        _require_told(before, after)
    if _differs(before, after, "format-version"):
        found.append({"action": "upgrade-format-version", "format-version": after["format-version"]})
    if _differs(before, after, "location"):
        found.append({"action": "set-location", "location": after["location"]})
    found += _schemas(before, after)
    found += _numbered(before, after, "spec")
    found += _numbered(before, after, "sort-order")
    found += _properties(before.get("properties", {}), after.get("properties", {}))
    found += _refs(before, after)
    return found


def _require_told(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    keys = (before.keys() | after.keys()) - _TOLD - _KEPT_BY_CATALOG
    unknown = sorted(key for key in keys if before.get(key) != after.get(key))
    if unknown or before["table-uuid"] != after["table-uuid"]:
        raise InternalError(f"a REST catalog cannot be told to change {', '.join(unknown) or 'a table into another'}")


def _differs(before: Mapping[str, Any], after: Mapping[str, Any], *keys: str) -> bool:
    return any(before.get(key) != after.get(key) for key in keys)


def _schemas(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Json]:
    known = {schema["schema-id"] for schema in before.get("schemas", [])}
    added = [schema for schema in after["schemas"] if schema["schema-id"] not in known]
    last = after["last-column-id"]
    found: list[Json] = [{"action": "add-schema", "schema": schema, "last-column-id": last} for schema in added]
    current = after["current-schema-id"]
    if before.get("current-schema-id") != current:
        newest = bool(added) and added[-1]["schema-id"] == current
        found.append({"action": "set-current-schema", "schema-id": _LAST_ADDED if newest else current})
    return found


def _numbered(before: Mapping[str, Any], after: Mapping[str, Any], noun: str) -> list[Json]:
    """Partition specs and sort orders, which are told alike."""
    many, number = ("partition-specs", "spec-id") if noun == "spec" else ("sort-orders", "order-id")
    default, told = f"default-{noun}-id", "spec-id" if noun == "spec" else "sort-order-id"
    known = {item[number] for item in before.get(many, [])}
    added = [item for item in after[many] if item[number] not in known]
    found: list[Json] = [{"action": f"add-{noun}", noun: item} for item in added]
    if before.get(default) != after[default]:
        newest = bool(added) and added[-1][number] == after[default]
        found.append({"action": f"set-default-{noun}", told: _LAST_ADDED if newest else after[default]})
    return found


def _properties(before: Mapping[str, str], after: Mapping[str, str]) -> list[Json]:
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    gone = sorted(before.keys() - after.keys())
    found: list[Json] = [{"action": "set-properties", "updates": changed}] if changed else []
    return [*found, {"action": "remove-properties", "removals": gone}] if gone else found


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


def _noted(metadata: Mapping[str, Any], statements: Mapping[str, int]) -> Json:
    """With the statements among the table's properties, one each so that writers do not overwrite each other's."""
    now = time.time()
    properties: dict[str, str] = dict(metadata.get("properties", {}))
    old = sorted(
        ((_noted_at(value), key) for key, value in properties.items() if key.startswith(STATEMENT)), reverse=True
    )
    left = {True: _TRANSACTIONS_KEPT, False: _STATEMENTS_KEPT}
    for noted, key in old:
        of_transaction = key.startswith(_TRANSACTION)
        left[of_transaction] -= 1
        if left[of_transaction] < 0 or noted < now - _STATEMENT_SECONDS:
            del properties[key]
    properties |= {STATEMENT + key: f"{count} {now:.0f}" for key, count in statements.items()}
    return {**metadata, "properties": properties}


def _noted_at(value: str) -> float:
    try:
        return float(value.partition(" ")[2])
    except ValueError:
        return 0.0
