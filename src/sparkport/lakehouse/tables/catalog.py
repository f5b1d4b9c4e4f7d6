"""The lakehouse as a catalog: durable tables on Iceberg, listed from the catalog's database and metadata files."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from sparkport.catalog.constraints import require_checks
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableSchema, OnConflict, TableDefinition, check_new_names
from sparkport.catalog.defaults import require_default
from sparkport.catalog.dropped import DroppedTable, RestoringCatalog
from sparkport.catalog.figures import Figure
from sparkport.catalog.model import CatalogVersion, Schema, find_by_name
from sparkport.catalog.names import require_name, require_schema_name, require_schema_texts
from sparkport.catalog.readiness import Readiness
from sparkport.catalog.spark_sql import SparkSql
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
from sparkport.lakehouse.columns.keys import UNIQUE, identifier_fields, unique_property
from sparkport.lakehouse.iceberg.edits import new_table
from sparkport.lakehouse.iceberg.metadata import WAP
from sparkport.lakehouse.iceberg.metadata_files import write_metadata
from sparkport.lakehouse.iceberg.row_groups import row_group_properties
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import JOURNAL
from sparkport.lakehouse.tables.engine import LakeEngine
from sparkport.lakehouse.tables.restore import dropped_tables, note_dropped, restore
from sparkport.lakehouse.tables.table import LakeTable
from sparkport.lakehouse.warehouse import new_folder

__all__ = ["LakehouseCatalog", "LakehouseSchema", "Watch"]

logger = logging.getLogger(__name__)

_TABLE_PROPERTIES = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
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
        cut = self._engine.views.cut(ctx)
        for table in [name for name in cut.tables if name.schema == self.name]:
            version = self._engine.versions.listed(table, cut)
            if version is not None:
                yield LakeTable(version, self._engine)
        views, spark_sql = self._catalog.spark_views, self._catalog.spark_sql
        if views is not None and spark_sql is not None:
            yield from views.listed(spark_sql, self.name)

    def _view(self, name: str) -> Table | None:
        views, spark_sql = self._catalog.spark_views, self._catalog.spark_sql
        return None if views is None or spark_sql is None else views.find(spark_sql, self.name, name)

    def table(self, ctx: CallContext, name: str) -> Table | None:
        version = self._engine.views.version(ctx, TableName(self.name, name))
        if version is None:
            exact = self.table_name(ctx, name)
            version = None if exact is None else self._engine.views.version(ctx, TableName(self.name, exact))
        return self._view(name) if version is None else LakeTable(version, self._engine)

    def table_name(self, ctx: CallContext, name: str) -> str | None:
        tables = self._engine.views.cut(ctx).tables
        if (self.name, name) in tables:
            return name
        match = find_by_name((_Name(table) for schema, table in tables if schema == self.name), name)
        return None if match is None else match.name

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
        if self._engine.storage.pointers.shadows is None:
            properties[WAP] = "true"
        if self._engine.journal.takes_columns(columns.declared.names):
            properties[JOURNAL] = "true"
        if definition.checks:
            properties[CHECKS] = json.dumps(list(definition.checks))
        if unique := unique_property(definition.keys, columns):
            properties[UNIQUE] = unique
        if definition.comment:
            properties["comment"] = definition.comment
        name = TableName(self.name, existing or definition.name)
        folder = f"{self._catalog.warehouse}/{new_folder(self.name, definition.name)}"
        metadata = new_table(
            folder,
            columns.fields,
            last_column_id=columns.last_id,
            properties=properties,
            identifier_fields=identifier_fields(definition.keys, columns),
        )
        location = write_metadata(self._engine.storage.files, metadata, None)
        with self._engine.dropping(ctx, [] if existing is None else [name]):
            old = self._point(name, location, replaces=existing is not None)
        if old is not None:
            note_dropped(self._engine, ctx, name, old)
        self._engine.storage.files.published([location])
        self._engine.views.session_ddl.note(ctx, name, old, location)
        return LakeTable(self._engine.versions.at(name, location), self._engine)

    def _point(self, name: TableName, location: str, *, replaces: bool) -> str | None:
        """Make or replace a table; where the metadata of the old one was.

        The new metadata is removed only if the catalog has refused it: a commit whose answer was lost may lead there.
        """
        pointers = self._engine.storage.pointers
        try:
            if replaces:
                return pointers.replace(name, location)
            pointers.create(name, location)
        except (AlreadyExists, Conflict, NotFound):
            self._engine.storage.files.delete(location)
            raise
        except Unavailable:
            if pointers.location(name) != location:
                raise
            logger.info("table '%s.%s' has been made, though the answer was lost", *name)
        return None

    def drop_table(self, ctx: CallContext, name: str) -> None:
        """One whose metadata is gone can be dropped, too."""
        exact = self.table_name(CallContext(), name)
        if exact is None:
            raise TableNotFound(self.name, name)
        with self._engine.dropping(ctx, [TableName(self.name, exact)]):
            location = self._engine.storage.pointers.drop(TableName(self.name, exact))
        note_dropped(self._engine, ctx, TableName(self.name, exact), location)
        self._engine.dropped(ctx, TableName(self.name, exact), location)

    def _require(self, name: str) -> Table:
        version = self._engine.versions.current(TableName(self.name, name))
        if version is None:
            raise TableNotFound(self.name, name)
        return LakeTable(version, self._engine)

    def rename_table(self, ctx: CallContext, name: str, new_name: str) -> Table:
        require_name(new_name, "table")
        exact = self.table_name(CallContext(), name)
        if exact is None:
            raise TableNotFound(self.name, name)
        taken = self.table_name(CallContext(), new_name)
        if taken is not None and taken != exact:
            raise AlreadyExists(f"table '{self.name}.{taken}' already exists")
        self._engine.storage.pointers.rename(TableName(self.name, exact), TableName(self.name, new_name))
        renamed = self._engine.versions.current(TableName(self.name, new_name))
        if renamed is None:
            raise TableNotFound(self.name, new_name)
        self._engine.dropped(ctx, TableName(self.name, exact), renamed.location)
        noted = self._engine.views.session_ddl
        noted.note(ctx, renamed.table, None, renamed.location)
        noted.note_journal(ctx, renamed.table, location=renamed.location, journal=renamed.journal)
        return LakeTable(renamed, self._engine)


class Watch(Protocol):
    """Who knows how the lakehouse is."""

    def current(self) -> Iterable[Figure]: ...

    def readiness(self) -> Readiness: ...


class SparkViews(Protocol):
    """Who knows the views that Spark runs."""

    def locations(self, schemas: Collection[str]) -> Mapping[TableName, str]: ...

    def listed(self, spark_sql: SparkSql, schema: str) -> Iterable[Table]: ...

    def find(self, spark_sql: SparkSql, schema: str, name: str) -> Table | None: ...


class LakehouseCatalog(RestoringCatalog):
    keeps_history = True

    def __init__(self, engine: LakeEngine, *, warehouse: str, default_schema: str = "public") -> None:
        self.name = engine.storage.catalog_name
        self.engine = engine
        self.warehouse = warehouse
        self.default_schema = default_schema
        self.transactions = engine.transactions
        self.scratch_folder = engine.storage.staging.folder
        self.watch: Watch | None = None
        self.spark_views: SparkViews | None = None
        if default_schema not in engine.storage.pointers.cut().schemas:
            engine.storage.pointers.create_schema(default_schema, {})

    def schemas(self, ctx: CallContext) -> Iterable[Schema]:
        schemas = self.engine.views.cut(ctx).schemas
        return [LakehouseSchema(name, properties, self) for name, properties in schemas.items() if "." not in name]

    def version(self, ctx: CallContext) -> CatalogVersion:
        """A hash of all that the listing shows: commits of rows leave it as it is."""
        cut = self.engine.storage.pointers.cut()
        digest = hashlib.sha256(
            repr([(name, sorted(properties.items())) for name, properties in cut.schemas.items()]).encode()
        )
        for table in cut.tables:
            version = self.engine.versions.listed(table, cut)
            digest.update(repr((tuple(table), None if version is None else version.fingerprint)).encode())
        views = {} if self.spark_views is None else self.spark_views.locations(set(cut.schemas))
        digest.update(repr(sorted(views.items())).encode())
        return CatalogVersion(int.from_bytes(digest.digest()[:7], "big"))

    def figures(self) -> Iterable[Figure]:
        return [*super().figures(), *(() if self.watch is None else self.watch.current())]

    def readiness(self) -> Readiness:
        return Readiness() if self.watch is None else self.watch.readiness()

    def committed_statement(self, statement: str, *, schema: str, table: str) -> int | None:
        return self.engine.storage.pointers.statement(statement, TableName(schema or self.default_schema, table))

    def dropped_tables(self, ctx: CallContext) -> Sequence[DroppedTable]:
        return dropped_tables(self.engine)

    def restore_table(self, ctx: CallContext, schema: str, name: str) -> None:
        found = self.schema(CallContext(), schema)
        if found is None:
            raise SchemaNotFound(schema)
        restore(self.engine, ctx, TableName(found.name, name))

    def create_schema(
        self, ctx: CallContext, name: str, *, comment: str | None = None, tags: Mapping[str, str] | None = None
    ) -> Schema:
        require_schema_name(name)
        require_schema_texts(comment, tags)
        properties = tag_properties(tags or {})
        if comment:
            properties["comment"] = comment
        if find_by_name((_Name(schema) for schema in self.engine.storage.pointers.cut().schemas), name) is not None:
            raise AlreadyExists(f"schema '{name}' already exists")
        self.engine.storage.pointers.create_schema(name, properties)
        self.engine.views.session_ddl.note_schema(ctx, name, properties)
        return LakehouseSchema(name, properties, self)

    def drop_schema(self, ctx: CallContext, name: str) -> None:
        cut = self.engine.storage.pointers.cut()
        existing = find_by_name((_Name(schema) for schema in cut.schemas), name)
        if existing is None:
            raise SchemaNotFound(name)
        with self.engine.dropping(ctx, [table for table in cut.tables if table.schema == existing.name]):
            dropped = self.engine.storage.pointers.drop_schema_with_tables(existing.name)
        for table, location in dropped.items():
            note_dropped(self.engine, ctx, table, location)
            self.engine.dropped(ctx, table, location)
        self.engine.views.session_ddl.note_schema(ctx, existing.name, None)

    def rename_schema(self, ctx: CallContext, name: str, new_name: str) -> Schema:
        """Tables stay where they are: only the catalog's database changes."""
        require_schema_name(new_name)
        cut = self.engine.storage.pointers.cut()
        existing = find_by_name((_Name(schema) for schema in cut.schemas), name)
        if existing is None:
            raise SchemaNotFound(name)
        if existing.name == self.default_schema:
            raise FailedPrecondition(
                f"schema '{existing.name}' is the default one: serve it with another --schema first"
            )
        if any(other.startswith(f"{existing.name}.") for other in cut.schemas):
            raise FailedPrecondition(f"schema '{existing.name}' has schemas within it: it keeps its name")
        if new_name == existing.name:
            return LakehouseSchema(new_name, cut.schemas[new_name], self)
        taken = find_by_name((_Name(schema) for schema in cut.schemas if schema != existing.name), new_name)
        if taken is not None:
            new_name = taken.name
        renamed = self.engine.storage.pointers.rename_schema(existing.name, new_name)
        now, noted = self.engine.storage.pointers.cut(), self.engine.views.session_ddl
        waiting = {(part.table, now.tables.get(part.table)): part for part in now.journal.pending}
        for table, location in renamed.items():
            self.engine.dropped(ctx, TableName(existing.name, table), location)
            after = TableName(new_name, table)
            noted.note(ctx, after, None, location)
            noted.note_journal(ctx, after, location=location, journal=waiting.get((after, location)))
        self.engine.views.session_ddl.note_schema(ctx, existing.name, None)
        self.engine.views.session_ddl.note_schema(ctx, new_name, cut.schemas[existing.name])
        return LakehouseSchema(new_name, cut.schemas[existing.name], self)
