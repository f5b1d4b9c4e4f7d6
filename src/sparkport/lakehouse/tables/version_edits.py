"""Changes of a table that are about its versions: going back to one, and names for them. One new metadata file each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import AsOf
from sparkport.catalog.versions import TableTag, open_transactions_refusal, require_tag_name
from sparkport.errors import AlreadyExists, Conflict, FailedPrecondition, InvalidArgument, NotFound
from sparkport.lakehouse.iceberg.edits import Json, drop_refs, set_properties, set_ref
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.version_numbers import number_of, versions
from sparkport.lakehouse.scan.history import TAGGED_SCHEMAS, tagged_schemas, version_at
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.tables.engine import LakeEngine
from sparkport.lakehouse.tables.rollback import rolled_back

__all__ = ["VersionEdits", "tags_of"]

_OWN = "sparkport_"


class VersionEdits:
    """Of the table that a version is of, whatever it is by now."""

    def __init__(self, engine: LakeEngine, version: TableVersion) -> None:
        self._engine = engine
        self._table = version.table
        self._uuid = version.uuid

    def rollback(self, ctx: CallContext, at: AsOf) -> int | None:
        def change(current: TableVersion) -> Json | None:
            self._require_unused()
            target, author = version_at(current, at), ctx.identity.subject
            if target.snapshot_id is not None and target.schema_id is None:
                # A branch is read in the columns of the table; its rows are those of its own.
                target = replace(target, schema_id=current.metadata.snapshot(target.snapshot_id).schema_id)
            return rolled_back(self._engine.storage.files, current, target=target, author=author)

        return number_of(self._changed(ctx, change).metadata)

    def tag(self, ctx: CallContext, name: str, at: AsOf) -> None:
        self._name(ctx, name, at, kind="tag")

    def untag(self, ctx: CallContext, name: str) -> None:
        self._unname(ctx, name, kind="tag")

    def branch(self, ctx: CallContext, name: str, at: AsOf) -> None:
        self._name(ctx, name, at, kind="branch")

    def drop_branch(self, ctx: CallContext, name: str) -> None:
        if name == "main":
            raise InvalidArgument("'main' is the table itself: DROP TABLE drops it")
        self._unname(ctx, name, kind="branch")

    def _name(self, ctx: CallContext, name: str, at: AsOf, *, kind: str) -> None:
        require_tag_name(name, kind)

        def change(current: TableVersion) -> Json | None:
            metadata, version = current.metadata, version_at(current, at)
            snapshot_id, schema_id = version.snapshot_id, int(version.schema.get("schema-id", 0))
            if snapshot_id is None:
                raise FailedPrecondition(f"table '{self._table.name}' had no rows in that version: it has no snapshot")
            known = metadata.refs.get(name)
            if known is not None:
                known_kind = known.get("type", "branch")
                same_columns = kind == "branch" or _schema(metadata, name) == schema_id
                if known_kind == kind and known["snapshot-id"] == snapshot_id and same_columns:
                    return None
                raise AlreadyExists(f"table '{self._table.name}' has a {known_kind} '{name}' already")
            ref = {"snapshot-id": snapshot_id, "type": kind}
            after = set_ref(metadata.json, name, ref, previous=metadata.metadata_location)
            if kind == "tag" and schema_id != metadata.snapshot(snapshot_id).schema_id:
                notes = json.dumps({**tagged_schemas(metadata), name: schema_id})
                after["properties"] = {**after.get("properties", {}), TAGGED_SCHEMAS: notes}
            return after

        self._changed(ctx, change)

    def _unname(self, ctx: CallContext, name: str, *, kind: str) -> None:
        def change(current: TableVersion) -> Json:
            metadata = current.metadata
            known = metadata.refs.get(name)
            if known is None or known.get("type", "branch") != kind or name.startswith(_OWN):
                raise NotFound(f"table '{self._table.name}' has no {kind} '{name}'")
            notes = {tag: schema for tag, schema in tagged_schemas(metadata).items() if tag != name}
            noted = {TAGGED_SCHEMAS: json.dumps(notes) if notes else None}
            return drop_refs(set_properties(metadata.json, noted, previous=metadata.metadata_location), [name])

        self._changed(ctx, change)

    def _changed(self, ctx: CallContext, change: Callable[[TableVersion], Json | None]) -> TableVersion:
        """The table afterwards. What the journal holds of it is published before."""

        def of_this_table(current: TableVersion) -> Json | None:
            if current.uuid != self._uuid:
                raise Conflict(f"'{self._table}' is another table by now; run the statement again")
            return change(current)

        return self._engine.alter(ctx, self._table, of_this_table, published=True)

    def _require_unused(self) -> None:
        """An open transaction would go on with rows that are no longer there, and find that out when it commits."""
        transactions = self._engine.transactions
        transactions.expire()
        here = [item for item in transactions.everyone() if not item.auto_commit]
        used = sum(self._table in item.state.read or item.state.change(self._table) is not None for item in here)
        used += sum(str(self._table) in item.changed_tables for item in self._engine.open_elsewhere())
        if used:
            raise open_transactions_refusal(self._table.name, used)


def tags_of(metadata: TableMetadata) -> list[TableTag]:
    """All but the server's own, by name."""
    numbers: dict[int | None, list[tuple[int, int]]] = {}
    for version in versions(metadata):
        numbers.setdefault(version.snapshot_id, []).append((version.schema_id, version.number))
    tags = []
    for name, ref in sorted(metadata.refs.items()):
        if name == "main" or name.startswith(_OWN):
            continue
        known = numbers.get(ref["snapshot-id"], [])
        schema_id = _schema(metadata, name)
        same = [number for schema, number in known if schema == schema_id] or [number for _, number in known]
        number, is_branch = min(same, default=None), ref.get("type", "branch") == "branch"
        tags.append(TableTag(name=name, version=number, snapshot=int(ref["snapshot-id"]), is_branch=is_branch))
    return tags


def _schema(metadata: TableMetadata, name: str) -> int | None:
    snapshot_id = metadata.refs[name]["snapshot-id"]
    own = metadata.snapshot(snapshot_id).schema_id if metadata.has_snapshot(snapshot_id) else None
    return tagged_schemas(metadata).get(name, own)
