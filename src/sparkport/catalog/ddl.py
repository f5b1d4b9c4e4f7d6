"""Changing what there is: the abilities of catalogs, schemas and tables that can, and the changes as plain values.

A change is a frozen value, so that it can be printed, compared, tested without an engine and sent again safely. The
names in it are valid: a change with a name that nothing can have cannot be made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.model import Catalog, Schema
from sparkport.catalog.names import require_comment, require_field, require_field_names, require_name, require_tags
from sparkport.catalog.row_ids import ROW_ID, ROW_ID_MARK
from sparkport.catalog.table import Key, Table
from sparkport.errors import InvalidArgument, Unsupported

__all__ = [
    "AddColumn",
    "AddField",
    "AlterableTable",
    "Alteration",
    "ChangeType",
    "DropColumn",
    "DropField",
    "DropNotNull",
    "MERGE_COLUMNS",
    "MutableCatalog",
    "MutableSchema",
    "OnConflict",
    "RESERVED_COLUMNS",
    "RenameColumn",
    "RenameField",
    "SetComment",
    "SetDefault",
    "SetNotNull",
    "TableDefinition",
    "check_new_names",
]

RESERVED_COLUMNS = frozenset(
    {ROW_ID, "_row_id", "_file", "_pos", "_spec_id", "_partition", "_deleted", "_last_updated_sequence_number"}
)
MERGE_COLUMNS = frozenset({"__row_operation", "__row_from_source", "__row_from_target", "__row_id"})
"""What Spark calls columns of its own in a MERGE: a table that has one can be read, and its rows cannot be changed."""


class OnConflict(Enum):
    """What CREATE TABLE does when the name is taken."""

    ERROR = "error"
    IGNORE = "ignore"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """A new table. NOT NULL is the field's nullability; a default is field metadata; ``checks`` are SQL conditions."""

    name: str
    columns: pa.Schema
    checks: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()
    comment: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_name(self.name, "table")
        require_comment(self.comment)
        require_tags(self.tags)
        for column in self.columns:
            require_field(column, "column")


@dataclass(frozen=True, slots=True)
class AddColumn:
    column: pa.Field
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        require_field(self.column, "column")


@dataclass(frozen=True, slots=True)
class DropColumn:
    """With ``cascade``, what depends on the column goes with it; without, it is a reason to refuse."""

    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    name: str
    new_name: str

    def __post_init__(self) -> None:
        require_name(self.new_name, "column")


@dataclass(frozen=True, slots=True)
class ChangeType:
    name: str
    type: pa.DataType

    def __post_init__(self) -> None:
        require_field_names(self.type)


@dataclass(frozen=True, slots=True)
class SetDefault:
    """``expression`` of None takes the default away."""

    name: str
    expression: str | None


@dataclass(frozen=True, slots=True)
class SetNotNull:
    name: str


@dataclass(frozen=True, slots=True)
class DropNotNull:
    name: str


@dataclass(frozen=True, slots=True)
class AddField:
    """A field inside a struct; ``path`` leads to the struct, beginning with the column."""

    path: tuple[str, ...]
    field: pa.Field
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        require_field(self.field, "field")


@dataclass(frozen=True, slots=True)
class DropField:
    path: tuple[str, ...]
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class RenameField:
    path: tuple[str, ...]
    new_name: str

    def __post_init__(self) -> None:
        require_name(self.new_name, "field")


@dataclass(frozen=True, slots=True)
class SetComment:
    """Of the table, or of one of its columns."""

    comment: str | None
    column: str | None = None

    def __post_init__(self) -> None:
        require_comment(self.comment)


Alteration: TypeAlias = (
    AddColumn
    | AddField
    | ChangeType
    | DropColumn
    | DropField
    | DropNotNull
    | RenameColumn
    | RenameField
    | SetComment
    | SetDefault
    | SetNotNull
)


class AlterableTable(Table):
    @abstractmethod
    def alter(self, ctx: CallContext, alteration: Alteration) -> None:
        """Change the table; old versions MUST still read as they were. A change that cannot be made is Unsupported."""


class MutableSchema(Schema):
    def table_name(self, ctx: CallContext, name: str) -> str | None:
        """The name under which a table is there, which may be spelled otherwise; the table need not be readable."""
        table = self.table(ctx, name)
        return None if table is None else table.name

    @abstractmethod
    def create_table(
        self, ctx: CallContext, definition: TableDefinition, on_conflict: OnConflict = OnConflict.ERROR
    ) -> Table:
        """Make a table, or give back the one that is there when told to ignore it."""

    @abstractmethod
    def drop_table(self, ctx: CallContext, name: str) -> None:
        """MUST raise TableNotFound where there is none."""

    @abstractmethod
    def rename_table(self, ctx: CallContext, name: str, new_name: str) -> Table: ...


class MutableCatalog(Catalog):
    @abstractmethod
    def create_schema(
        self, ctx: CallContext, name: str, *, comment: str | None = None, tags: Mapping[str, str] | None = None
    ) -> Schema:
        """MUST raise AlreadyExists where there is one."""

    @abstractmethod
    def drop_schema(self, ctx: CallContext, name: str) -> None:
        """With all that is in it. MUST raise SchemaNotFound where there is none."""

    def rename_schema(self, ctx: CallContext, name: str, new_name: str) -> Schema:
        """With all that is in it, at one instant. Override it where that can be done.

        MUST raise SchemaNotFound where there is none, and AlreadyExists where the new name is that of a schema with
        something in it; one that is empty makes way.
        """
        raise Unsupported(f"catalog '{self.name}' cannot rename schemas")


def check_new_names(columns: pa.Schema) -> None:
    """Columns that a table must not have: none at all, reserved names, one name twice, a row id of the client's."""
    if not len(columns):
        raise InvalidArgument("a table needs at least one column")
    seen: set[str] = set()
    for column in columns:
        name = column.name
        if (column.metadata or {}).get(ROW_ID_MARK):
            raise InvalidArgument(f"column '{name}' is marked as row id: tables have row ids of their own")
        if name.casefold() in RESERVED_COLUMNS | MERGE_COLUMNS:
            raise InvalidArgument(f"column name '{name}' is reserved")
        if name.casefold() in seen:
            raise InvalidArgument(f"column '{name}' is given twice")
        seen.add(name.casefold())
