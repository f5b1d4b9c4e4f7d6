"""What an alteration makes of a schema, and of rows that were written under the old one. Pure: engines share it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sparkport.catalog.casting import converter
from sparkport.catalog.ddl import (
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
    check_new_names,
)
from sparkport.catalog.defaults import DEFAULT_MARK, default_values
from sparkport.catalog.names import COMMENT_MARK
from sparkport.errors import AlreadyExists, ConstraintViolation, InvalidArgument, Unsupported

__all__ = ["can_promote", "evolve_batch", "evolve_schema", "find_column"]

_PROMOTIONS = "integers to wider integers, FLOAT to DOUBLE, DECIMAL to more digits before the point"


def find_column(columns: pa.Schema, name: str) -> int:
    """The position of a column, without regard to case."""
    for index, column in enumerate(columns.names):
        if column == name:
            return index
    matches = [index for index, column in enumerate(columns.names) if column.casefold() == name.casefold()]
    if len(matches) != 1:
        problem = "is ambiguous" if matches else "does not exist"
        raise InvalidArgument(f"column '{name}' {problem}")
    return matches[0]


def can_promote(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a column's type can become another: the promotions that every engine can make."""
    if source == target:
        return True
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        return bool(source.scale == target.scale and target.precision >= source.precision)
    numbers = pa.types.is_integer(source) and pa.types.is_integer(target)
    floats = pa.types.is_floating(source) and pa.types.is_floating(target)
    return (numbers or floats) and converter(source, target) is not None


def evolve_schema(columns: pa.Schema, change: Alteration) -> pa.Schema:
    """The schema after a change; the very same object when there is nothing to do."""
    match change:
        case AddColumn(column, if_not_exists):
            if column.name.casefold() in {name.casefold() for name in columns.names}:
                if if_not_exists:
                    return columns
                raise AlreadyExists(f"column '{column.name}' already exists")
            evolved = columns.append(column)
        case DropColumn(name, if_exists):
            if if_exists and name.casefold() not in {other.casefold() for other in columns.names}:
                return columns
            if len(columns) == 1:
                raise InvalidArgument("a table needs at least one column")
            return columns.remove(find_column(columns, name))
        case RenameColumn(name, new_name):
            index = find_column(columns, name)
            others = columns.names[:index] + columns.names[index + 1 :]
            if new_name.casefold() in {other.casefold() for other in others}:
                raise AlreadyExists(f"column '{new_name}' already exists")
            if columns.names[index] == new_name:
                return columns
            evolved = columns.set(index, columns.field(index).with_name(new_name))
        case ChangeType(name, new_type):
            index = find_column(columns, name)
            old = columns.field(index)
            if not can_promote(old.type, new_type):
                raise Unsupported(
                    f"column '{name}' cannot change from {old.type} to {new_type}; possible are {_PROMOTIONS}"
                )
            return columns.set(index, old.with_type(new_type))
        case SetNotNull(name):
            index = find_column(columns, name)
            return columns.set(index, columns.field(index).with_nullable(False))
        case DropNotNull(name):
            index = find_column(columns, name)
            return columns.set(index, columns.field(index).with_nullable(True))
        case SetDefault(name, expression):
            index = find_column(columns, name)
            return columns.set(index, _marked(columns.field(index), DEFAULT_MARK, expression))
        case SetComment(comment, column):
            if column is None:
                return columns
            index = find_column(columns, column)
            return columns.set(index, _marked(columns.field(index), COMMENT_MARK, comment))
        case AddField() | DropField() | RenameField():
            return _evolve_nested(columns, change)
    check_new_names(evolved)
    return evolved


def evolve_batch(batch: pa.RecordBatch, change: Alteration, target: pa.Schema) -> pa.RecordBatch:
    """Rows written before a change, as they read after it."""
    old = batch.schema
    match change:
        case AddColumn(column):
            values = default_values(column, batch.num_rows)
            if values.null_count and not column.nullable:
                raise ConstraintViolation(
                    f"column '{column.name}' is NOT NULL and the table has rows: it needs a default"
                )
            return pa.RecordBatch.from_arrays([*batch.columns, values], schema=target)
        case DropColumn(name):
            kept = [index for index in range(len(old)) if index != find_column(old, name)]
            return pa.RecordBatch.from_arrays([batch.column(index) for index in kept], schema=target)
        case ChangeType(name, new_type):
            index = find_column(old, name)
            columns = list(batch.columns)
            columns[index] = columns[index].cast(new_type)
            return pa.RecordBatch.from_arrays(columns, schema=target)
        case SetNotNull(name):
            if batch.column(find_column(old, name)).null_count:
                raise ConstraintViolation(f"column '{name}' has NULL values: it cannot be NOT NULL")
            return pa.RecordBatch.from_arrays(batch.columns, schema=target)
        case AddField() | DropField() | RenameField():
            index = find_column(old, change.path[0])
            columns = list(batch.columns)
            columns[index] = _evolve_array(columns[index], change, change.path[1:])
            return pa.RecordBatch.from_arrays(columns, schema=target)
        case _:
            return pa.RecordBatch.from_arrays(batch.columns, schema=target)


def _marked(column: pa.Field, mark: bytes, value: str | None) -> pa.Field:
    metadata = {key: content for key, content in (column.metadata or {}).items() if key != mark}
    if value is not None:
        metadata[mark] = value.encode()
    return column.with_metadata(metadata) if metadata else column.remove_metadata()


# Fields inside structs. A path goes through structs only; lists and maps on the way are Unsupported.

_Nested = AddField | DropField | RenameField


def _evolve_nested(columns: pa.Schema, change: _Nested) -> pa.Schema:
    if not change.path:
        raise InvalidArgument("column_path is empty")
    index = find_column(columns, change.path[0])
    column = columns.field(index)
    new_type = _evolve_type(column.type, change, change.path[1:])
    return columns if new_type is column.type else columns.set(index, column.with_type(new_type))


def _evolve_type(data_type: pa.DataType, change: _Nested, path: tuple[str, ...]) -> pa.DataType:
    if not pa.types.is_struct(data_type):
        raise Unsupported(f"column '{change.path[0]}' is no struct: only fields of structs can be changed")
    fields = [data_type.field(index) for index in range(data_type.num_fields)]
    if isinstance(change, AddField) and not path:
        if not change.field.nullable:
            raise Unsupported(f"field '{change.field.name}' is NOT NULL: a field that is added must take NULL")
        if any(sibling.name.casefold() == change.field.name.casefold() for sibling in fields):
            if change.if_not_exists:
                return data_type
            raise AlreadyExists(f"field '{change.field.name}' already exists")
        return pa.struct([*fields, change.field])
    if not path:
        raise InvalidArgument("column_path leads to no field")
    index = _field_index(fields, path[0])
    if index is None:
        if isinstance(change, DropField) and change.if_exists:
            return data_type
        raise InvalidArgument(f"field '{path[0]}' does not exist")
    if len(path) > 1 or isinstance(change, AddField):
        inner = _evolve_type(fields[index].type, change, path[1:])
        return (
            data_type if inner is fields[index].type else pa.struct(_set(fields, index, fields[index].with_type(inner)))
        )
    if isinstance(change, RenameField):
        if _field_index(fields, change.new_name) not in (None, index):
            raise AlreadyExists(f"field '{change.new_name}' already exists")
        return pa.struct(_set(fields, index, fields[index].with_name(change.new_name)))
    if len(fields) == 1:
        raise InvalidArgument("a struct needs at least one field")
    return pa.struct(fields[:index] + fields[index + 1 :])


def _evolve_array(array: pa.Array, change: _Nested, path: tuple[str, ...]) -> pa.Array:
    target = _evolve_type(array.type, change, path)
    if target is array.type:
        return array
    fields = [array.type.field(index) for index in range(array.type.num_fields)]
    columns = [array.field(index) for index in range(len(fields))]
    if isinstance(change, AddField) and not path:
        columns.append(default_values(change.field, len(array)))
    else:
        index = _field_index(fields, path[0])
        if index is not None and (len(path) > 1 or isinstance(change, AddField)):
            columns[index] = _evolve_array(columns[index], change, path[1:])
        elif index is not None and isinstance(change, DropField):
            del columns[index]
    validity = pc.is_null(array)
    new_fields = [target.field(index) for index in range(target.num_fields)]
    return pa.StructArray.from_arrays(columns, fields=new_fields, mask=validity)


def _field_index(fields: list[pa.Field], name: str) -> int | None:
    matches = [index for index, field in enumerate(fields) if field.name.casefold() == name.casefold()]
    return matches[0] if len(matches) == 1 else None


def _set(fields: list[pa.Field], index: int, value: pa.Field) -> list[pa.Field]:
    return [*fields[:index], value, *fields[index + 1 :]]
