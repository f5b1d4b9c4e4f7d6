"""A table's columns in both forms: the Arrow fields that clients see, and the Iceberg fields that the files have.

What Iceberg cannot say about a column is kept in a property of the table, by the column's field id, so that a rename
does not lose it and a second server reads it too.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from sparkport.lakehouse.columns.defaults import INITIAL, WRITE, initial_default, promoted, write_default
from sparkport.lakehouse.columns.shapes import default_sql
from sparkport.lakehouse.columns.storage import from_stored
from sparkport.lakehouse.columns.types import declared_field, plan_column, remember

__all__ = [
    "CHECKS",
    "COLUMNS",
    "Columns",
    "Json",
    "essence",
    "field_names",
    "new_columns",
    "read_columns",
    "tag_properties",
    "tags_in",
]

Json = dict[str, Any]

COLUMNS = "sparkport.columns"
CHECKS = "sparkport.checks"
_TAG = "tag."

_DROPPED_KEPT = 200
_PROMOTIONS = {("int", "long"), ("float", "double")}


@dataclass(frozen=True, slots=True)
class Columns:
    """``declared`` and ``fields`` go side by side; ``last_id`` is the highest field id ever given out.

    ``dropped`` are the notes about columns of the past, which old versions are read with. ``has_rows``: whether there
    may be rows without a column that is added; ``keeps_defaults``: whether the table's format has a place for those.
    """

    declared: pa.Schema
    fields: tuple[Json, ...]
    last_id: int
    dropped: Mapping[str, Json]
    has_rows: bool = False
    keeps_defaults: bool = True

    def properties(self) -> dict[str, str | None]:
        """What has to be kept beside the Iceberg schema."""
        notes: dict[str, Json] = dict(list(self.dropped.items())[-_DROPPED_KEPT:])
        for column, kept in zip(self.declared, self.fields, strict=True):
            note: Json = {}
            remembered = remember(column, kept)
            if remembered is not None:
                note["arrow"] = remembered
            default = default_of(column)
            if default is not None:
                note["default"] = default
            if note:
                notes[str(kept["id"])] = note
        return {COLUMNS: json.dumps(notes, sort_keys=True) if notes else None}

    def field(self, name: str) -> Json:
        return self.fields[find_column(self.declared, name)]

    def altered(self, change: Alteration) -> Columns:
        """The columns after a change; the very same object when there is nothing to do."""
        declared = evolve_schema(self.declared, change)
        if declared is self.declared:
            return self
        ids = _Ids(self.last_id)
        fields = copy.deepcopy(list(self.fields))
        _alter(fields, change, self, declared, ids)
        return replace(self, declared=declared, fields=tuple(fields), last_id=ids.last, dropped=self._left_by(change))

    def as_declared(self, batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Stored columns of these names, and whatever columns follow them, as clients know their types."""
        declared = [self.declared.field(name) for name in names]
        fields = [self.field(name) for name in names]
        schema: pa.Schema | None = None
        for batch in batches:
            columns = [from_stored(*each) for each in zip(batch.columns, declared, fields, strict=False)]
            if schema is None:
                schema = pa.schema([*declared, *list(batch.schema)[len(columns) :]])
            if not schema.names:
                yield batch
                continue
            yield pa.RecordBatch.from_arrays([*columns, *batch.columns[len(columns) :]], schema=schema)

    def takes_rows_of(self, other: Columns) -> bool:
        """Whether rows that were fitted to other columns fit into these: comments and defaults do not matter."""
        return essence(self.fields) == essence(other.fields)

    def _left_by(self, change: Alteration) -> Mapping[str, Json]:
        if not isinstance(change, DropColumn):
            return self.dropped
        index = find_column(self.declared, change.name)
        remembered = remember(self.declared.field(index), self.fields[index])
        note = {} if remembered is None else {str(self.fields[index]["id"]): {"arrow": remembered}}
        return {**self.dropped, **note}


def new_columns(declared: pa.Schema) -> Columns:
    """Columns of a new table. Raises Unsupported, naming column and type, for what cannot be kept."""
    ids = _Ids(0)
    fields = [plan_column(column, ids) for column in declared]
    for column, planned in zip(declared, fields, strict=True):
        _set(planned, WRITE, write_default(column, planned))
    return Columns(declared, tuple(fields), ids.last, {})


def read_columns(
    schema: Json, properties: Mapping[str, str], last_id: int, *, has_rows: bool = True, keeps_defaults: bool = True
) -> Columns:
    """The columns of any table, ours or not."""
    notes = _notes(properties)
    declared = []
    for field in schema["fields"]:
        note = notes.pop(str(field["id"]), {})
        if field["name"].casefold() in RESERVED_COLUMNS:
            raise Unsupported(f"column '{field['name']}' has a name that is reserved: rename it with Spark")
        column = declared_field(field, note.get("arrow"))
        default = note.get("default") or _foreign_default(field)
        if isinstance(default, str):
            column = column.with_metadata({**(column.metadata or {}), DEFAULT_MARK: default.encode()})
        declared.append(column)
    return Columns(
        pa.schema(declared),
        tuple(schema["fields"]),
        last_id,
        notes,
        has_rows=has_rows,
        keeps_defaults=keeps_defaults,
    )


def _foreign_default(field: Json) -> str | None:
    """The default of a column that somebody else has given one."""
    try:
        return None if field.get(WRITE) is None else default_sql({**field, INITIAL: field[WRITE]}, field["name"])
    except Unsupported:
        return None


def tag_properties(tags: Mapping[str, str]) -> dict[str, str]:
    """The properties of a table or a schema that tags are kept in."""
    return {_TAG + key: value for key, value in tags.items()}


def tags_in(properties: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(_TAG): value for key, value in sorted(properties.items()) if key.startswith(_TAG)}


def field_names(fields: Iterable[Any], *above: str) -> dict[int, str]:
    """The names of columns and of the fields inside them, by their ids."""
    names: dict[int, str] = {}
    for field in fields:
        path = (*above, str(field["name"]))
        names[field["id"]] = ".".join(path)
        names |= _names_inside(field["type"], path)
    return names


def _names_inside(iceberg_type: Any, path: tuple[str, ...]) -> dict[int, str]:
    if not isinstance(iceberg_type, dict):
        return {}
    if iceberg_type["type"] == "struct":
        return field_names(iceberg_type["fields"], *path)
    parts = ("element",) if iceberg_type["type"] == "list" else ("key", "value")
    return field_names(
        [{"id": iceberg_type[f"{part}-id"], "name": part, "type": iceberg_type[part]} for part in parts],
        *path,
    )


def essence(fields: Iterable[Any]) -> list[Any]:
    """Fields without comments and defaults: what rows have to fit, and what all writers spell alike."""
    return [_bare(field) for field in fields]


def _bare(part: Any) -> Any:
    if isinstance(part, list):
        return essence(part)
    if not isinstance(part, dict):
        return part
    return {key: _bare(value) for key, value in part.items() if key not in ("doc", INITIAL, WRITE)}


def _notes(properties: Mapping[str, str]) -> dict[str, Json]:
    try:
        notes = json.loads(properties.get(COLUMNS) or "{}")
    except (ValueError, RecursionError):
        return {}
    return {key: note for key, note in notes.items() if isinstance(note, dict)} if isinstance(notes, dict) else {}


class _Ids:
    def __init__(self, last: int) -> None:
        self.last = last

    def __call__(self) -> int:
        self.last += 1
        return self.last


def _alter(fields: list[Json], change: Alteration, before: Columns, new: pa.Schema, ids: Callable[[], int]) -> None:
    old = before.declared
    match change:
        case AddColumn(column):
            fields.append(_added(column, before, ids))
            if fields[-1]["required"] and fields[-1].get(INITIAL) is None:
                raise Unsupported(
                    f"column '{column.name}': a new column without a default cannot be NOT NULL; add it, then set it"
                )
        case DropColumn(name):
            del fields[find_column(old, name)]
        case RenameColumn(name, new_name):
            fields[find_column(old, name)]["name"] = new_name
        case ChangeType(name, new_type):
            index = find_column(old, name)
            kept = fields[index]["type"]
            fields[index]["type"] = _promoted(name, kept, new.field(index), new_type)
            if fields[index]["type"] != kept:
                fields[index].update(
                    {key: promoted(fields[index][key], kept) for key in (INITIAL, WRITE) if key in fields[index]}
                )
        case SetNotNull(name):
            fields[find_column(old, name)]["required"] = True
        case DropNotNull(name):
            fields[find_column(old, name)]["required"] = False
        case SetDefault(name):
            index = find_column(old, name)
            if before.keeps_defaults:
                _set(fields[index], WRITE, write_default(new.field(index), fields[index]))
        case SetComment(comment, column_name):
            if column_name is not None:
                _set(fields[find_column(old, column_name)], "doc", comment)
        case AddField() | DropField() | RenameField():
            index = find_column(old, change.path[0])
            _alter_struct(fields[index]["type"], change, change.path[1:], lambda field: _added(field, before, ids))


def _added(column: pa.Field, before: Columns, ids: Callable[[], int]) -> Json:
    """A new column or nested field, with the default for rows that are there and the one for rows to come."""
    planned = plan_column(column, ids)
    if before.keeps_defaults:
        # An empty table too, where it can be kept: rows that are on their way were written without the column.
        try:
            _set(planned, INITIAL, initial_default(column, planned))
        except Unsupported:
            if before.has_rows:
                raise
        _set(planned, WRITE, write_default(column, planned))
    elif before.has_rows and default_of(column) is not None:
        raise Unsupported(
            f"column '{column.name}': its default cannot be kept for the rows that are there before the table is of "
            "format v3: upgrade it, or add the column without a default and set that afterwards"
        )
    return planned


def _promoted(name: str, old: Any, column: pa.Field, new_type: pa.DataType) -> Any:
    wanted = plan_column(column, _Ids(0))["type"]
    if wanted == old or (old, wanted) in _PROMOTIONS:
        return wanted
    if isinstance(old, str) and isinstance(wanted, str) and old.startswith("decimal") and wanted.startswith("decimal"):
        return wanted
    raise Unsupported(f"column '{name}' is kept as {old}, which cannot become {wanted} ({new_type})")


def _alter_struct(
    iceberg_type: Any,
    change: AddField | DropField | RenameField,
    path: tuple[str, ...],
    add: Callable[[pa.Field], Json],
) -> None:
    if not isinstance(iceberg_type, dict) or iceberg_type.get("type") != "struct":
        raise Unsupported(f"column '{change.path[0]}' is not kept as a struct: its fields cannot be changed")
    inner: list[Json] = iceberg_type["fields"]
    if isinstance(change, AddField) and not path:
        inner.append(add(change.field))
        return
    matches = [index for index, field in enumerate(inner) if field["name"].casefold() == path[0].casefold()]
    if len(matches) != 1:
        raise InvalidArgument(f"field '{path[0]}' does not exist")
    if len(path) > 1 or isinstance(change, AddField):
        _alter_struct(inner[matches[0]]["type"], change, path[1:], add)
    elif isinstance(change, RenameField):
        inner[matches[0]]["name"] = change.new_name
    else:
        del inner[matches[0]]


def _set(field: Json, key: str, value: Any) -> None:
    field.pop(key, None)
    if value is not None:
        field[key] = value
