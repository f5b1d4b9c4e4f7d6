"""Changing schemas and tables: one handler for all alterations, made from a table of decoders.

DuckDB repeats an action after a lost answer, so a change that finds its own work done is a success.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from sparkport.auth.model import Operation, Resource
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import (
    AddColumn,
    AddField,
    AlterableTable,
    Alteration,
    ChangeType,
    DropColumn,
    DropField,
    DropNotNull,
    MutableCatalog,
    MutableSchema,
    OnConflict,
    RenameColumn,
    RenameField,
    SetComment,
    SetDefault,
    SetNotNull,
    TableDefinition,
)
from sparkport.catalog.isolated import shortened
from sparkport.catalog.model import Catalog, Schema
from sparkport.catalog.names import require_name, require_schema_name, require_schema_texts
from sparkport.catalog.repeats import DDL_SECONDS, Recent
from sparkport.catalog.row_ids import data_schema
from sparkport.catalog.table import Table
from sparkport.errors import (
    AlreadyExists,
    ConstraintViolation,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SchemaNotFound,
    TableNotFound,
    Unavailable,
    Unsupported,
)
from sparkport.handlers.builtin import RESERVED_SCHEMAS
from sparkport.handlers.directory import HIDDEN_SCHEMA, Directory, warn_of_hidden_schema
from sparkport.handlers.table_definitions import table_definition
from sparkport.handlers.user_agents import is_duckdb
from sparkport.protocol.contents import flight_info, schema_contents, table_schema
from sparkport.protocol.maps import MapReader, pack
from sparkport.protocol.targets import Kind, Target, decode_schema

__all__ = ["ALTERATIONS", "Ddl"]

_KEPT = (
    Operation.READ,
    Operation.INSERT,
    Operation.UPDATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DROP,
)

_CAST = re.compile(r'CAST\((?:(?P<plain>\w+)|"(?P<quoted>(?:[^"]|"")+)") AS (?P<type>.+)\)', re.IGNORECASE)

Decoder = Callable[[CallContext, MapReader], Alteration]


def _one_field(body: MapReader) -> pa.Field:
    schema = decode_schema(body.raw("column_schema"), what="column_schema")
    if len(schema) != 1:
        raise InvalidArgument(f"column_schema must have one column, not {len(schema)}")
    return schema.field(0)


def _change_type(ctx: CallContext, body: MapReader) -> ChangeType:
    """DuckDB sends a cast also where none was written; any other expression would be new values, not a new type."""
    column, expression = _one_field(body), body.optional_text("expression")
    if expression is not None:
        cast = _CAST.fullmatch(expression)
        of = None if cast is None else (cast["plain"] or cast["quoted"].replace('""', '"'))
        if cast is None or of is None or of.casefold() != column.name.casefold() or not _is_closed(cast["type"]):
            raise Unsupported(
                f"column '{column.name}': a type is changed without USING, not by {shortened(expression)}"
            )
    return ChangeType(column.name, column.type)


def _is_closed(text: str) -> bool:
    """Whether parentheses are closed by what they were opened by, so that all of the text is a type's name."""
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return False
    return depth == 0


def _add_field(ctx: CallContext, body: MapReader) -> AddField:
    path, field = body.texts("column_path"), _one_field(body)
    if is_duckdb(ctx) and path and field.name == path[0]:
        raise Unsupported(
            f"DuckDB's client does not send the name of a field that is added to '{'.'.join(path)}': "
            "add it with the Python client"
        )
    return AddField(path, field, body.flag("if_field_not_exists", default=False))


ALTERATIONS: dict[str, Decoder] = {
    "add_column": lambda ctx, body: AddColumn(_one_field(body), body.flag("if_column_not_exists", default=False)),
    "add_field": _add_field,
    "change_column_type": _change_type,
    "drop_not_null": lambda ctx, body: DropNotNull(body.text("column_name")),
    "remove_column": lambda ctx, body: DropColumn(
        body.text("removed_column"),
        body.flag("if_column_exists", default=False),
        body.flag("cascade", default=False),
    ),
    "remove_field": lambda ctx, body: DropField(
        body.texts("column_path"),
        body.flag("if_column_exists", default=False),
        body.flag("cascade", default=False),
    ),
    "rename_column": lambda ctx, body: RenameColumn(body.text("old_name"), body.text("new_name")),
    "rename_field": lambda ctx, body: RenameField(body.texts("column_path"), body.text("new_name")),
    "set_comment": lambda ctx, body: SetComment(body.optional_text("comment"), body.optional_text("column_name")),
    "set_default": lambda ctx, body: SetDefault(body.text("column_name"), body.optional_text("expression")),
    "set_not_null": lambda ctx, body: SetNotNull(body.text("column_name")),
}


class Ddl:
    def __init__(self, directory: Directory, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._done = _Done(clock)

    def create_schema(self, ctx: CallContext, body: MapReader) -> bytes:
        catalog = self._catalog(ctx, body.text("catalog_name"))
        name = body.text("schema")
        _require_new_schema_name(name)
        if name.casefold() == HIDDEN_SCHEMA and is_duckdb(ctx):
            raise InvalidArgument(f"DuckDB's client cannot see a schema named '{name}': choose another name")
        self._require(ctx, Operation.CREATE, Resource(catalog.name, name))
        comment, tags = body.optional_text("comment"), body.text_map("tags")
        require_schema_texts(comment, tags)
        change = self._done.change(ctx, (catalog.name, name), "create_schema", comment, sorted(tags.items()))
        try:
            with change.tried():
                catalog.create_schema(ctx, name, comment=comment, tags=tags)
        except AlreadyExists:
            if not change.repeated:
                raise
        change.note()
        warn_of_hidden_schema(catalog.name, name)
        return pack(schema_contents([]))

    def drop_schema(self, ctx: CallContext, body: MapReader) -> None:
        catalog = self._catalog(ctx, body.text("catalog_name"))
        name = _exact_name(catalog.schema(ctx, body.text("name")), body.text("name"))
        self._require(ctx, Operation.DROP, Resource(catalog.name, name))
        change = self._done.change(ctx, (catalog.name, name), "drop_schema")
        try:
            with change.tried():
                catalog.drop_schema(ctx, name)
        except SchemaNotFound:
            if not (body.flag("ignore_not_found", default=False) or change.repeated):
                raise
        else:
            change.note()

    def rename_schema(self, ctx: CallContext, body: MapReader) -> None:
        catalog = self._catalog(ctx, body.text("catalog"))
        name = _exact_name(catalog.schema(ctx, body.text("schema")), body.text("schema"))
        new_name = body.text("new_schema_name")
        _require_new_schema_name(new_name)
        self._require(ctx, Operation.DROP, Resource(catalog.name, name))
        self._require(ctx, Operation.CREATE, Resource(catalog.name, new_name))
        if (taken := catalog.schema(ctx, new_name)) is not None:
            self._require(ctx, Operation.DROP, Resource(catalog.name, taken.name))
        renamed = catalog.schema(ctx, name)
        for table in () if renamed is None else renamed.tables(ctx):
            self._require_no_gain(
                ctx, Resource(catalog.name, name, table.name), Resource(catalog.name, new_name, table.name)
            )
        change = self._done.change(ctx, (catalog.name, name), "rename_schema", new_name)
        try:
            with change.tried():
                catalog.rename_schema(ctx, name, new_name)
        except SchemaNotFound:
            if not change.repeated:
                raise
        else:
            change.note()
            warn_of_hidden_schema(catalog.name, new_name)

    def create_table(self, ctx: CallContext, body: MapReader) -> bytes:
        catalog = self._catalog(ctx, body.text("catalog_name"))
        schema = self._schema(ctx, catalog, body.text("schema_name"))
        definition = table_definition(body)
        on_conflict = body.optional_text("on_conflict") or OnConflict.ERROR.value
        if on_conflict not in {item.value for item in OnConflict}:
            raise InvalidArgument(f"body key 'on_conflict' must be error, ignore or replace, not '{on_conflict}'")
        place = (catalog.name, schema.name, definition.name)
        self._require(ctx, Operation.CREATE, Resource(*place))
        self._check_taken(ctx, catalog, schema, definition.name, OnConflict(on_conflict))
        self._directory.require_creatable(ctx, Resource(*place), definition.columns)
        change = self._done.change(
            ctx, place, "create_table", repr(definition), definition.columns.serialize().to_pybytes()
        )
        try:
            with change.tried():
                table = schema.create_table(ctx, definition, OnConflict(on_conflict))
        except AlreadyExists:
            repeated = schema.table(ctx, definition.name) if change.repeated else None
            if repeated is None or not _is_made_by(repeated, definition):
                raise
            table = repeated
        change.note()
        return _info(body.text("catalog_name"), schema, self._directory.as_seen(ctx, catalog, schema, table))

    def drop_table(self, ctx: CallContext, body: MapReader) -> None:
        catalog = self._catalog(ctx, body.text("catalog_name"))
        schema_name, name = body.text("schema_name"), body.text("name")
        change = self._done.change(ctx, (catalog.name, schema_name, name), "drop_table")
        try:
            schema = self._schema(ctx, catalog, schema_name)
            name = schema.table_name(ctx, name) or name
            self._require(ctx, Operation.DROP, Resource(catalog.name, schema.name, name))
            with change.tried():
                schema.drop_table(ctx, name)
        except NotFound:
            if not (body.flag("ignore_not_found", default=False) or change.repeated):
                raise
        else:
            change.note()

    def rename_table(self, ctx: CallContext, body: MapReader) -> bytes | None:
        catalog = self._catalog(ctx, body.text("catalog"))
        schema = self._schema(ctx, catalog, body.text("schema"))
        name = schema.table_name(ctx, body.text("name")) or body.text("name")
        new_name = body.text("new_table_name")
        require_name(new_name, "table")
        self._require(ctx, Operation.ALTER, Resource(catalog.name, schema.name, name))
        self._require(ctx, Operation.CREATE, Resource(catalog.name, schema.name, new_name))
        self._require_no_gain(
            ctx, Resource(catalog.name, schema.name, name), Resource(catalog.name, schema.name, new_name)
        )
        change = self._done.change(ctx, (catalog.name, schema.name, name), "rename_table", new_name)
        try:
            with change.tried():
                table: Table | None = schema.rename_table(ctx, name, new_name)
        except TableNotFound:
            table = schema.table(ctx, new_name) if change.repeated else None
            if table is None and not body.flag("ignore_not_found", default=False):
                raise
        else:
            change.note()
        if table is None:
            return None
        return _info(body.text("catalog"), schema, self._directory.as_seen(ctx, catalog, schema, table))

    def alter(self, action: str) -> Callable[[CallContext, MapReader], bytes | None]:
        """The handler of one kind of alteration."""
        decode = ALTERATIONS[action]

        def run(ctx: CallContext, body: MapReader) -> bytes | None:
            alteration = decode(ctx, body)
            target = Target(body.text("catalog"), body.text("schema"), Kind.TABLE, body.text("name"))
            try:
                resolved = self._directory.table(ctx, target, Operation.ALTER)
            except NotFound:
                if body.flag("ignore_not_found", default=False):
                    return None
                raise
            self._refuse_deferred(ctx, resolved.catalog)
            if not isinstance(resolved.table, AlterableTable):
                raise Unsupported(f"table '{resolved.table.name}' cannot be altered")
            place = (resolved.catalog.name, resolved.schema.name, resolved.table.name)
            change = self._done.change(ctx, place, action, repr(alteration))
            try:
                with change.tried():
                    resolved.table.alter(ctx, alteration)
            except ConstraintViolation:
                raise  # of rows: a change that is done already does not meet any
            except (AlreadyExists, InvalidArgument):
                if not change.repeated:
                    raise
            change.note()
            changed = resolved.schema.table(ctx, resolved.table.name) or resolved.table
            seen = self._directory.as_seen(ctx, resolved.catalog, resolved.schema, changed)
            return _info(body.text("catalog"), resolved.schema, seen)

        return run

    def _catalog(self, ctx: CallContext, name: str) -> MutableCatalog:
        catalog = self._directory.catalog(ctx, name)
        self._refuse_deferred(ctx, catalog)
        if not isinstance(catalog, MutableCatalog):
            raise Unsupported(f"catalog '{catalog.name}' cannot be changed")
        return catalog

    def _schema(self, ctx: CallContext, catalog: Catalog, name: str) -> MutableSchema:
        schema = self._directory.schema(ctx, catalog, name)
        if not isinstance(schema, MutableSchema):
            raise Unsupported(f"schema '{schema.name}' cannot be changed")
        return schema

    def _check_taken(
        self, ctx: CallContext, catalog: Catalog, schema: MutableSchema, name: str, on_conflict: OnConflict
    ) -> None:
        """The right to create a table is no right to an existing one of that name: this asks for those too."""
        taken = schema.table_name(ctx, name)
        if taken is None or on_conflict is OnConflict.ERROR:
            return
        resource = Resource(catalog.name, schema.name, taken)
        if not self._directory.authorizer.allows(ctx.identity, Operation.LIST, resource):
            raise AlreadyExists(f"table '{schema.name}.{name}' already exists")
        if on_conflict is OnConflict.REPLACE:
            self._require(ctx, Operation.DROP, resource)

    def _require_no_gain(self, ctx: CallContext, old: Resource, new: Resource) -> None:
        """Under its new name the caller may do no more with a thing than under the old one, and sees no more of it."""
        if self._directory.authorizer.policy(ctx.identity, old) is not None:
            raise PermissionDenied(f"'{ctx.identity.subject}' sees only a part of '{old}' and may not rename it")
        for operation in _KEPT:
            if self._directory.authorizer.allows(ctx.identity, operation, new):
                self._directory.authorizer.require(ctx.identity, operation, old)

    def _require(self, ctx: CallContext, operation: Operation, resource: Resource) -> None:
        self._directory.require(ctx, operation, resource)

    def _refuse_deferred(self, ctx: CallContext, catalog: Catalog) -> None:
        manager = catalog.transactions
        if ctx.transaction_id is None or manager is None:
            return
        if not manager.auto_commits(ctx.transaction_id):
            raise FailedPrecondition("schemas and tables cannot be changed inside a deferred transaction")


def _require_new_schema_name(name: str) -> None:
    require_schema_name(name)
    if name.casefold() in RESERVED_SCHEMAS:
        raise InvalidArgument(f"schema name '{name}' is reserved")


def _exact_name(schema: Schema | None, asked: str) -> str:
    """Rights are asked on the schema's own name, which may be written otherwise than it was asked for."""
    return asked if schema is None else schema.name


def _is_made_by(table: Table, definition: TableDefinition) -> bool:
    return data_schema(table.schema).equals(definition.columns) and set(table.keys) == set(definition.keys)


def _info(catalog_name: str, schema: Schema, table: Table) -> bytes:
    target = Target(catalog_name, schema.name, Kind.TABLE, table.name)
    return flight_info(table, target, table_schema(table)).encode()


@dataclass(frozen=True, slots=True)
class _Change:
    """One change on its way. ``repeated``: it is the last thing that this session has done there, a moment ago."""

    repeated: bool
    note: Callable[[], None]

    @contextmanager
    def tried(self) -> Iterator[None]:
        """One that ended without an answer may be done: a repeat that finds it so is a success."""
        try:
            yield
        except Unavailable:
            self.note()
            raise


class _Done:
    """The last change of each client session to each schema or table, within a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._last: Recent[tuple[str, ...], bytes] = Recent(DDL_SECONDS, clock)

    def change(self, ctx: CallContext, place: tuple[str, ...], *what: object) -> _Change:
        session, owner = ctx.session, ctx.identity.subject
        if session is None:
            return _Change(False, lambda: None)
        key = (session, *(name.casefold() for name in place))
        told = hashlib.sha256(repr(what).encode()).digest()
        return _Change(self._last.get(key) == told, lambda: self._last.put(key, told, owner))
