"""The lakehouse as a catalog: durable tables on Iceberg, listed from the catalog's database and metadata files."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping

from sparkport.catalog.constraints import require_checks
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableCatalog, MutableSchema, OnConflict, TableDefinition, check_new_names
from sparkport.catalog.defaults import require_default
from sparkport.catalog.model import CatalogVersion, Schema, find_by_name
from sparkport.catalog.names import require_name, require_schema_name, require_schema_texts
from sparkport.catalog.table import Table
from sparkport.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    NotFound,
    SchemaNotFound,
    TableNotFound,
    Unavailable,
)
from sparkport.lakehouse.columns.columns import CHECKS, new_columns, tag_properties, tags_in
from sparkport.lakehouse.iceberg.edits import new_table
from sparkport.lakehouse.iceberg.metadata_files import write_metadata
from sparkport.lakehouse.iceberg.row_groups import row_group_properties
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.places import new_folder
from sparkport.lakehouse.tables.engine import LakeEngine
from sparkport.lakehouse.tables.table import LakeTable

__all__ = ["LakehouseCatalog", "LakehouseSchema"]

logger = logging.getLogger(__name__)

_TABLE_PROPERTIES = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    "write.wap.enabled": "true",
    "write.parquet.compression-codec": "zstd",
}


class _Name:
    """A name to look up by."""

    def __init__(self, name: str) -> None:
        self.name = name


class LakehouseSchema(MutableSchema):
    def __init__(self, name: str, properties: Mapping[str, str], catalog: LakehouseCatalog) -> None:
        self.name = name
        self.comment = properties.get("comment")
        self.tags = tags_in(properties)
        self.is_default = name == catalog.default_schema
        self._catalog = catalog
        self._engine = catalog.engine

    def tables(self, ctx: CallContext) -> Iterable[Table]:
        # Only this schema's are looked up: where the others are costs a REST catalog a call for each.
        tables = self._engine.cut(ctx).tables
        for table in [name for name in tables if name[0] == self.name]:
            version = self._engine.listed(table, tables)
            if version is not None:
                yield LakeTable(version, self._engine)

    def table(self, ctx: CallContext, name: str) -> Table | None:
        version = self._engine.version_for(ctx, (self.name, name))
        if version is None:
            found = self.table_name(ctx, name)
            version = None if found is None else self._engine.version_for(ctx, (self.name, found))
        return None if version is None else LakeTable(version, self._engine)

    def table_name(self, ctx: CallContext, name: str) -> str | None:
        tables = self._engine.cut(ctx).tables
        if (self.name, name) in tables:
            return name
        found = find_by_name((_Name(table) for schema, table in tables if schema == self.name), name)
        return None if found is None else found.name

    def create_table(
        self, ctx: CallContext, definition: TableDefinition, on_conflict: OnConflict = OnConflict.ERROR
    ) -> Table:
        existing = self.table_name(CallContext(), definition.name)
        if existing is not None:
            if on_conflict is OnConflict.IGNORE:
                return self._require(existing)
            if on_conflict is OnConflict.ERROR:
                raise AlreadyExists(f"table '{self.name}.{existing}' already exists")
        check_new_names(definition.columns)
        for column in definition.columns:
            require_default(column)
        require_checks(definition.checks, definition.columns)
        columns = new_columns(definition.columns)
        properties = {
            **_TABLE_PROPERTIES,
            **row_group_properties({}, len(columns.fields)),
            **{key: value for key, value in columns.properties().items() if value},
            **tag_properties(definition.tags),
        }
        if definition.checks:
            properties[CHECKS] = json.dumps(list(definition.checks))
        if definition.comment:
            properties["comment"] = definition.comment
        name: TableName = (self.name, existing or definition.name)
        folder = f"{self._catalog.warehouse}/{new_folder(self.name, definition.name)}"
        metadata = new_table(folder, columns.fields, last_column_id=columns.last_id, properties=properties)
        location = write_metadata(self._engine.files, metadata, None)
        old = self._point(name, location, replaces=existing is not None)
        self._engine.files.published([location])
        self._engine.own.note(ctx, name, old, location)
        return LakeTable(self._engine.version(name, location), self._engine)

    def _point(self, name: TableName, location: str, *, replaces: bool) -> str | None:
        """Make or replace a table; where the metadata of the old one was.

        The new metadata is removed only if the catalog has refused it: a commit whose answer was lost may lead there.
        """
        pointers = self._engine.pointers
        try:
            if replaces:
                return pointers.replace(name, location)
            pointers.create(name, location)
        except (AlreadyExists, Conflict, NotFound):
            self._engine.files.delete(location)
            raise
        except Unavailable:
            if pointers.location(name) != location:
                raise
            logger.info("table '%s.%s' has been made, though the answer was lost", *name)
        return None

    def drop_table(self, ctx: CallContext, name: str) -> None:
        """Of a table whose metadata is gone too: nothing of it is read."""
        found = self.table_name(CallContext(), name)
        if found is None:
            raise TableNotFound(self.name, name)
        location = self._engine.pointers.drop((self.name, found))
        self._engine.dropped(ctx, (self.name, found), location)

    def _require(self, name: str) -> Table:
        version = self._engine.current((self.name, name))
        if version is None:
            raise TableNotFound(self.name, name)
        return LakeTable(version, self._engine)

    def rename_table(self, ctx: CallContext, name: str, new_name: str) -> Table:
        require_name(new_name, "table")
        found = self.table_name(CallContext(), name)
        if found is None:
            raise TableNotFound(self.name, name)
        taken = self.table_name(CallContext(), new_name)
        if taken is not None and taken != found:
            raise AlreadyExists(f"table '{self.name}.{taken}' already exists")
        self._engine.pointers.rename((self.name, found), (self.name, new_name))
        renamed = self._engine.current((self.name, new_name))
        if renamed is None:
            raise TableNotFound(self.name, new_name)
        self._engine.dropped(ctx, (self.name, found), renamed.location)
        self._engine.own.note(ctx, renamed.name, None, renamed.location)
        return LakeTable(renamed, self._engine)


class LakehouseCatalog(MutableCatalog):
    def __init__(self, engine: LakeEngine, *, warehouse: str, default_schema: str = "public") -> None:
        self.name = engine.catalog_name
        self.engine = engine
        self.warehouse = warehouse
        self.default_schema = default_schema
        self.transactions = engine.transactions
        if default_schema not in engine.pointers.cut().schemas:
            engine.pointers.create_schema(default_schema, {})

    def schemas(self, ctx: CallContext) -> Iterable[Schema]:
        schemas = self.engine.cut(ctx).schemas
        return [LakehouseSchema(name, properties, self) for name, properties in schemas.items() if "." not in name]

    def version(self, ctx: CallContext) -> CatalogVersion:
        """A hash of all that the listing shows: commits of rows leave it as it is."""
        cut = self.engine.pointers.cut()
        digest = hashlib.sha256(repr([(name, sorted(found.items())) for name, found in cut.schemas.items()]).encode())
        for table in cut.tables:
            version = self.engine.listed(table, cut.tables)
            digest.update(repr((table, None if version is None else version.fingerprint)).encode())
        return CatalogVersion(int.from_bytes(digest.digest()[:7], "big"))

    def committed_statement(self, statement: str, *, schema: str, table: str) -> int | None:
        return self.engine.pointers.statement(statement, (schema or self.default_schema, table))

    def create_schema(
        self, ctx: CallContext, name: str, *, comment: str | None = None, tags: Mapping[str, str] | None = None
    ) -> Schema:
        require_schema_name(name)
        require_schema_texts(comment, tags)
        properties = tag_properties(tags or {})
        if comment:
            properties["comment"] = comment
        if find_by_name((_Name(found) for found in self.engine.pointers.cut().schemas), name) is not None:
            raise AlreadyExists(f"schema '{name}' already exists")
        self.engine.pointers.create_schema(name, properties)
        self.engine.own.note_schema(ctx, name, properties)
        return LakehouseSchema(name, properties, self)

    def drop_schema(self, ctx: CallContext, name: str) -> None:
        cut = self.engine.pointers.cut()
        found = find_by_name((_Name(schema) for schema in cut.schemas), name)
        if found is None:
            raise SchemaNotFound(name)
        for table, location in self.engine.pointers.drop_schema_with_tables(found.name).items():
            self.engine.dropped(ctx, table, location)
        self.engine.own.note_schema(ctx, found.name, None)

    def rename_schema(self, ctx: CallContext, name: str, new_name: str) -> Schema:
        """Tables stay where they are: only the catalog's database changes."""
        require_schema_name(new_name)
        cut = self.engine.pointers.cut()
        found = find_by_name((_Name(schema) for schema in cut.schemas), name)
        if found is None:
            raise SchemaNotFound(name)
        if found.name == self.default_schema:
            raise FailedPrecondition(f"schema '{found.name}' is the default one: serve it with another --schema first")
        if any(other.startswith(f"{found.name}.") for other in cut.schemas):
            raise FailedPrecondition(f"schema '{found.name}' has schemas within it: it keeps its name")
        if new_name == found.name:
            return LakehouseSchema(new_name, cut.schemas[new_name], self)
        taken = find_by_name((_Name(schema) for schema in cut.schemas if schema != found.name), new_name)
        if taken is not None:
            new_name = taken.name
        for table, location in self.engine.pointers.rename_schema(found.name, new_name).items():
            self.engine.dropped(ctx, (found.name, table), location)
            self.engine.own.note(ctx, (new_name, table), None, location)
        self.engine.own.note_schema(ctx, found.name, None)
        self.engine.own.note_schema(ctx, new_name, cut.schemas[found.name])
        return LakehouseSchema(new_name, cut.schemas[found.name], self)
