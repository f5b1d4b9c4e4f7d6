"""A table's columns in both tongues: the Arrow fields that clients see, and the Iceberg fields that the files have.

What Iceberg cannot say about a column is kept in a property of the table, by the column's field id, so that a rename
does not lose it and a second server reads it too.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkport.catalog.ddl import (
    RESERVED_COLUMNS,
    AddColumn,
    AddField,
    Alteration,
    ChangeType,
    DropColumn,
    DropField,
    DropNotNull,
    RenameColumn,
    RenameField,
    SetComment,
    SetDefault,
    SetNotNull,
)
from sparkport.catalog.defaults import DEFAULT_MARK, default_of
from sparkport.catalog.evolve import evolve_schema, find_column
from sparkport.errors import InvalidArgument, Unsupported
from sparkport.lakehouse.types import declared_field, plan_column, remember

__all__ = ["CHECKS", "COLUMNS", "Columns", "Json", "new_columns", "read_columns"]

Json = dict[str, Any]

COLUMNS = "sparkport.columns"
CHECKS = "sparkport.checks"

_PROMOTIONS = {("int", "long"), ("float", "double")}


@dataclass(frozen=True, slots=True)
class Columns:
    """``declared`` and ``fields`` go side by side; ``last_id`` is the highest field id ever given out."""

    declared: pa.Schema
    fields: tuple[Json, ...]
    last_id: int

    def properties(self) -> dict[str, str | None]:
        """What has to be kept beside the Iceberg schema."""
        notes: dict[str, Json] = {}
        for column, field in zip(self.declared, self.fields, strict=True):
            note: Json = {}
            remembered = remember(column, field)
            if remembered is not None:
                note["arrow"] = remembered
            default = default_of(column)
            if default is not None:
                note["default"] = default
            if note:
                notes[str(field["id"])] = note
        return {COLUMNS: json.dumps(notes, sort_keys=True) if notes else None}

    def field(self, name: str) -> Json:
        return self.fields[find_column(self.declared, name)]

    def altered(self, change: Alteration) -> Columns:
        """The columns after a change; the very same object when there is nothing to do."""
        declared = evolve_schema(self.declared, change)
        if declared is self.declared:
            return self
        ids = _Ids(self.last_id)
        fields = [copy.deepcopy(field) for field in self.fields]
        _alter(fields, change, self.declared, declared, ids)
        return Columns(declared, tuple(fields), ids.last)


def new_columns(declared: pa.Schema) -> Columns:
    """Columns of a new table. Raises Unsupported, naming column and type, for what cannot be kept."""
    ids = _Ids(0)
    fields = [plan_column(column, ids).iceberg for column in declared]
    return Columns(declared, tuple(fields), ids.last)


def read_columns(schema: Json, properties: Mapping[str, str], last_id: int) -> Columns:
    """The columns of any table, ours or not."""
    notes = _notes(properties)
    declared = []
    for field in schema["fields"]:
        note = notes.get(str(field["id"]), {})
        if field["name"].casefold() in RESERVED_COLUMNS:
            raise Unsupported(f"column '{field['name']}' has a name that is reserved: rename it with Spark")
        column = declared_field(field, note.get("arrow"))
        if note.get("default"):
            column = column.with_metadata({**(column.metadata or {}), DEFAULT_MARK: note["default"].encode()})
        declared.append(column)
    return Columns(pa.schema(declared), tuple(schema["fields"]), last_id)


def _notes(properties: Mapping[str, str]) -> dict[str, Json]:
    try:
        notes = json.loads(properties.get(COLUMNS) or "{}")
    except ValueError:
        return {}
    return notes if isinstance(notes, dict) else {}


class _Ids:
    def __init__(self, last: int) -> None:
        self.last = last

    def __call__(self) -> int:
        self.last += 1
        return self.last


def _alter(fields: list[Json], change: Alteration, old: pa.Schema, new: pa.Schema, ids: Callable[[], int]) -> None:
    match change:
        case AddColumn(column):
            if not column.nullable:
                raise Unsupported(f"column '{column.name}': a new column cannot be NOT NULL; add it, then set it")
            fields.append(plan_column(column, ids).iceberg)
        case DropColumn(name):
            del fields[find_column(old, name)]
        case RenameColumn(name, new_name):
            fields[find_column(old, name)]["name"] = new_name
        case ChangeType(name, kind):
            index = find_column(old, name)
            fields[index]["type"] = _promoted(name, fields[index]["type"], new.field(index), kind)
        case SetNotNull(name):
            fields[find_column(old, name)]["required"] = True
        case DropNotNull(name):
            fields[find_column(old, name)]["required"] = False
        case SetDefault():
            pass
        case SetComment(comment, column_name):
            if column_name is not None:
                _set_doc(fields[find_column(old, column_name)], comment)
        case AddField() | DropField() | RenameField():
            index = find_column(old, change.path[0])
            _alter_struct(fields[index]["type"], change, change.path[1:], ids)


def _promoted(name: str, old: Any, column: pa.Field, kind: pa.DataType) -> Any:
    wanted = plan_column(column, _Ids(0)).iceberg["type"]
    if wanted == old or (old, wanted) in _PROMOTIONS:
        return wanted
    if isinstance(old, str) and isinstance(wanted, str) and old.startswith("decimal") and wanted.startswith("decimal"):
        return wanted
    raise Unsupported(f"column '{name}' is kept as {old}, which cannot become {wanted} ({kind})")


def _alter_struct(
    kind: Any, change: AddField | DropField | RenameField, path: tuple[str, ...], ids: Callable[[], int]
) -> None:
    if not isinstance(kind, dict) or kind.get("type") != "struct":
        raise Unsupported(f"column '{change.path[0]}' is not kept as a struct: its fields cannot be changed")
    inner: list[Json] = kind["fields"]
    if isinstance(change, AddField) and not path:
        inner.append(plan_column(change.field, ids).iceberg)
        return
    found = [index for index, field in enumerate(inner) if field["name"].casefold() == path[0].casefold()]
    if len(found) != 1:
        raise InvalidArgument(f"field '{path[0]}' does not exist")
    if len(path) > 1 or isinstance(change, AddField):
        _alter_struct(inner[found[0]]["type"], change, path[1:], ids)
    elif isinstance(change, RenameField):
        inner[found[0]]["name"] = change.new_name
    else:
        del inner[found[0]]


def _set_doc(field: Json, comment: str | None) -> None:
    field.pop("doc", None)
    if comment is not None:
        field["doc"] = comment
