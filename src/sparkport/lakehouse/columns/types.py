"""A column on its way from a client into an Iceberg table and back: which type it has at each station.

A column has up to three forms. *Declared* is the Arrow field that clients gave and get back. *Stored* is the plain form
in which Spark and DuckDB pass rows through Parquet files; ``storage.py`` turns values from one into the other.
*Iceberg* is what the table's schema says. Where the Iceberg type alone would not lead back to the declared field, the
field itself is remembered as text beside it (``remember``). The types are in ``type_table.py``.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from sparkport.catalog.defaults import DEFAULT_MARK
from sparkport.catalog.names import COMMENT_MARK
from sparkport.errors import Unsupported
from sparkport.filters.sql import quote_identifier
from sparkport.lakehouse.columns.type_table import (
    EXTENSION_MARKS,
    Primitive,
    TypeRefused,
    geo_metadata,
    is_list,
    known_type,
    parquet_name,
    primitive,
    rule_for,
    spelled,
)

__all__ = [
    "IcebergType",
    "declared_field",
    "plan_column",
    "pushable",
    "remember",
    "spark_type",
    "sql_type",
    "stored_columns",
    "stored_type",
]

T = TypeVar("T")

logger = logging.getLogger(__name__)

Json = dict[str, Any]
IcebergType = str | Json

ITEM = "l"
"""The name that DuckDB gives to the items of a list: with it most lists need not be remembered."""

UNION_TAG = "union_tag"

# A column's comment is Iceberg's doc and its default has an entry of its own: a second copy would go stale.
_KEPT_ELSEWHERE = (COMMENT_MARK, DEFAULT_MARK)


def _unsupported(column: str, refused_type: object, why: str) -> Unsupported:
    return Unsupported(f"column '{column}' cannot be of type {refused_type} in the lakehouse: {why}")


# From Arrow to Iceberg.


def plan_column(field: pa.Field, next_id: Callable[[], int]) -> Json:
    """A new column as the table's schema has it; Unsupported, with its name and type, where it cannot be kept."""
    try:
        return _plan_field(field, next_id)
    except TypeRefused as exc:
        raise _unsupported(field.name, field.type, str(exc)) from None


def remember(field: pa.Field, iceberg_field: Json) -> str | None:
    """The declared field as text, or None where the Iceberg field alone leads back to it."""
    kept = {key: value for key, value in (field.metadata or {}).items() if key not in _KEPT_ELSEWHERE}
    plain = field.with_metadata(kept or None)
    native = _native_field({**iceberg_field, "doc": None})
    if native.equals(plain, check_metadata=True):
        return None
    return base64.b64encode(pa.schema([plain]).serialize().to_pybytes()).decode()


def _plan_field(field: pa.Field, next_id: Callable[[], int]) -> Json:
    planned: Json = {"id": next_id(), "name": field.name, "required": not field.nullable}
    planned["type"] = _plan_type(field.type, next_id)
    comment = (field.metadata or {}).get(COMMENT_MARK)
    if comment:
        planned["doc"] = comment.decode(errors="replace")
    return planned


def _plan_type(arrow_type: pa.DataType, next_id: Callable[[], int]) -> IcebergType:
    rule = rule_for(arrow_type)
    if rule is not None:
        return rule.iceberg(arrow_type)
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _plan_type(arrow_type.storage_type, next_id)
    if pa.types.is_dictionary(arrow_type):
        if rule_for(arrow_type.value_type) is None or isinstance(arrow_type.value_type, pa.BaseExtensionType):
            raise TypeRefused("a dictionary can only have plain values")
        return _plan_type(arrow_type.value_type, next_id)
    if is_list(arrow_type):
        item = {"type": "list", "element-id": next_id(), "element-required": not arrow_type.value_field.nullable}
        return {**item, "element": _plan_type(arrow_type.value_type, next_id)}
    if pa.types.is_map(arrow_type):
        return _plan_map(arrow_type, next_id)
    if pa.types.is_struct(arrow_type):
        fields = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
        _check_names([field.name for field in fields])
        return {"type": "struct", "fields": [_plan_field(field, next_id) for field in fields]}
    if pa.types.is_union(arrow_type):
        return _plan_union(arrow_type, next_id)
    raise TypeRefused("nothing in it keeps such values" if not pa.types.is_null(arrow_type) else "it has no values")


def _plan_map(arrow_type: pa.DataType, next_id: Callable[[], int]) -> Json:
    if any(pa.types.is_map(part) for part in _parts(arrow_type.key_type)):
        raise TypeRefused("a map's key cannot hold a map")
    planned = {"type": "map", "key-id": next_id(), "value-id": next_id()}
    planned["key"] = _plan_type(arrow_type.key_type, next_id)
    planned["value"] = _plan_type(arrow_type.item_type, next_id)
    return {**planned, "value-required": not arrow_type.item_field.nullable}


def _plan_union(arrow_type: pa.DataType, next_id: Callable[[], int]) -> Json:
    """A struct with the member's code before all members; at most one of these is not null."""
    members = [arrow_type.field(index).with_nullable(True) for index in range(arrow_type.num_fields)]
    tag = UNION_TAG
    while tag.casefold() in {member.name.casefold() for member in members}:
        tag += "_"
    fields = [pa.field(tag, pa.int32()), *members]
    _check_names([field.name for field in fields])
    return {"type": "struct", "fields": [_plan_field(field, next_id) for field in fields]}


def _check_names(names: list[str]) -> None:
    """Spark and DuckDB find nested fields by name, without regard to case."""
    if not names:
        raise TypeRefused("a struct needs at least one field")
    if not all(names):
        raise TypeRefused("its fields need names")
    if any(len({change(name) for name in names}) < len(names) for change in (str.casefold, _folded_parquet_name)):
        raise TypeRefused("two of its fields have the same name")


def _folded_parquet_name(name: str) -> str:
    return parquet_name(name).casefold()


def _parts(arrow_type: pa.DataType) -> Iterator[pa.DataType]:
    yield arrow_type
    if isinstance(arrow_type, pa.BaseExtensionType):
        yield from _parts(arrow_type.storage_type)
    for index in range(arrow_type.num_fields):
        yield from _parts(arrow_type.field(index).type)


# From Iceberg to Arrow.


def declared_field(iceberg_field: Json, remembered: str | None) -> pa.Field:
    """What clients see for a column of any Iceberg table; Unsupported for types that cannot be read (variant).

    Name, nullability and comment are the schema's. The remembered type counts where it still fits: other writers may
    have widened a column, or changed the fields of a struct.
    """
    field = None if remembered is None else _recall(remembered)
    try:
        return _declared(iceberg_field, field)
    except TypeRefused as exc:
        raise _unsupported(iceberg_field["name"], iceberg_field["type"], str(exc)) from None


def _recall(remembered: str) -> pa.Field | None:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(remembered, validate=True))).field(0)
    except (pa.ArrowException, binascii.Error, IndexError, OSError):
        logger.warning("a remembered column type cannot be read, the Iceberg type stands alone", exc_info=True)
        return None


def _declared(iceberg_field: Json, remembered: pa.Field | None) -> pa.Field:
    native = _native_field(iceberg_field)
    if remembered is None:
        return native
    metadata = {key: value for key, value in (remembered.metadata or {}).items() if key != COMMENT_MARK}
    arrow_type = _fitted(iceberg_field["type"], remembered.type)
    if arrow_type is None:
        arrow_type = native.type
        metadata = {key: value for key, value in metadata.items() if key not in EXTENSION_MARKS}
    metadata = {**(native.metadata or {}), **metadata}
    return pa.field(native.name, arrow_type, nullable=native.nullable, metadata=metadata or None)


def _fitted(iceberg: IcebergType, arrow_type: pa.DataType) -> pa.DataType | None:
    """The remembered type, with names and nullability as the schema has them now; None where it no longer fits."""
    rule = rule_for(arrow_type)
    if rule is not None:
        return arrow_type if isinstance(iceberg, str) and rule.iceberg(arrow_type) == spelled(iceberg) else None
    if isinstance(arrow_type, pa.BaseExtensionType):
        return arrow_type if _fitted(iceberg, arrow_type.storage_type) == arrow_type.storage_type else None
    if pa.types.is_dictionary(arrow_type):
        return arrow_type if _fitted(iceberg, arrow_type.value_type) == arrow_type.value_type else None
    if isinstance(iceberg, str):
        return None
    if is_list(arrow_type) and iceberg["type"] == "list":
        return _list_like(
            arrow_type, _declared(_element(iceberg), arrow_type.value_field).with_name(arrow_type.value_field.name)
        )
    if pa.types.is_map(arrow_type) and iceberg["type"] == "map":
        key, value = _key(iceberg), _value(iceberg)
        key_field = _declared(key, arrow_type.key_field).with_name(arrow_type.key_field.name)
        value_field = _declared(value, arrow_type.item_field).with_name(arrow_type.item_field.name)
        return pa.map_(key_field, value_field, keys_sorted=arrow_type.keys_sorted)
    if pa.types.is_struct(arrow_type) and iceberg["type"] == "struct":
        known = {arrow_type.field(index).name: arrow_type.field(index) for index in range(arrow_type.num_fields)}
        return pa.struct([_declared(field, known.get(field["name"])) for field in iceberg["fields"]])
    if (
        pa.types.is_union(arrow_type)
        and iceberg["type"] == "struct"
        and len(iceberg["fields"]) == arrow_type.num_fields + 1
    ):
        members = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
        fits = all(
            _fitted(field["type"], member.type) == member.type
            for field, member in zip(iceberg["fields"][1:], members, strict=True)
        )
        return arrow_type if fits else None
    return None


def _list_like(arrow_type: pa.DataType, item: pa.Field) -> pa.DataType:
    if pa.types.is_fixed_size_list(arrow_type):
        return pa.list_(item, arrow_type.list_size)
    if pa.types.is_large_list(arrow_type):
        return pa.large_list(item)
    if pa.types.is_list_view(arrow_type):
        return pa.list_view(item)
    return pa.large_list_view(item) if pa.types.is_large_list_view(arrow_type) else pa.list_(item)


def _native_field(iceberg_field: Json) -> pa.Field:
    arrow_type, metadata = _native(iceberg_field["type"])
    if iceberg_field.get("doc"):
        metadata = {**metadata, COMMENT_MARK: iceberg_field["doc"].encode()}
    return pa.field(
        iceberg_field["name"], arrow_type, nullable=not iceberg_field["required"], metadata=metadata or None
    )


def _native(iceberg: IcebergType) -> tuple[pa.DataType, dict[bytes, bytes]]:
    if isinstance(iceberg, str):
        return primitive(iceberg).arrow, geo_metadata(iceberg)
    match iceberg["type"]:
        case "struct":
            return pa.struct([_native_field(field) for field in iceberg["fields"]]), {}
        case "list":
            return pa.list_(_native_field(_element(iceberg))), {}
        case "map":
            return pa.map_(_native_field(_key(iceberg)), _native_field(_value(iceberg))), {}
    raise TypeRefused("the type is not known")


def _element(iceberg: Json) -> Json:
    return {"name": ITEM, "required": iceberg["element-required"], "type": iceberg["element"]}


def _key(iceberg: Json) -> Json:
    return {"name": "key", "required": True, "type": iceberg["key"]}


def _value(iceberg: Json) -> Json:
    return {"name": "value", "required": iceberg["value-required"], "type": iceberg["value"]}


# What the stored form is called by those who carry it.


def stored_type(iceberg: IcebergType) -> pa.DataType:
    """The Arrow type in which rows are staged for Spark and come back from DuckDB (there with ``parquet_name``s)."""
    if (known := known_type(iceberg)) is not None:  # asked for with each row that is changed
        return known.stored
    return _fold(
        iceberg,
        leaf=lambda _, known: known.stored,
        struct=pa.struct,
        items=lambda item: pa.list_(pa.field(ITEM, item)),
        entries=pa.map_,
    )


def stored_columns(fields: Sequence[Json]) -> pa.Schema:
    """A table's columns as they are stored, named by their places: their own names may differ in case only."""
    return pa.schema([pa.field(f"c{at}", stored_type(field["type"])) for at, field in enumerate(fields)])


def spark_type(iceberg: IcebergType) -> str:
    """The type in Spark's DDL; Unsupported where Spark cannot write a table that has it."""

    def leaf(name: str, known: Primitive) -> str:
        if known.spark is None:
            raise Unsupported(f"Spark cannot write a table that has a column of type {name}")
        return known.spark

    def struct(fields: list[tuple[str, str]]) -> str:
        ticked = ((name.replace("`", "``"), text) for name, text in fields)
        return "struct<" + ", ".join(f"`{name}`: {text}" for name, text in ticked) + ">"

    return _fold(iceberg, leaf=leaf, struct=struct, items="array<{}>".format, entries="map<{}, {}>".format)


def sql_type(iceberg: IcebergType) -> str:
    """The type as DuckDB spells it."""

    def struct(fields: list[tuple[str, str]]) -> str:
        return "STRUCT(" + ", ".join(f"{quote_identifier(name)} {text}" for name, text in fields) + ")"

    return _fold(
        iceberg, leaf=lambda _, known: known.duckdb, struct=struct, items="{}[]".format, entries="MAP({}, {})".format
    )


def _fold(
    iceberg: IcebergType,
    *,
    leaf: Callable[[str, Primitive], T],
    struct: Callable[[list[tuple[str, T]]], T],
    items: Callable[[T], T],
    entries: Callable[[T, T], T],
) -> T:
    def fold(part: IcebergType) -> T:
        match part:
            case str():
                return leaf(part, primitive(part))
            case {"type": "struct", "fields": fields}:
                return struct([(field["name"], fold(field["type"])) for field in fields])
            case {"type": "list", "element": element}:
                return items(fold(element))
            case {"type": "map", "key": key, "value": value}:
                return entries(fold(key), fold(value))
        raise TypeRefused("the type is not known")

    try:
        return fold(iceberg)
    except TypeRefused as exc:
        raise Unsupported(f"a column of type {iceberg} cannot be read: {exc}") from None


def pushable(iceberg_field: Json, declared: pa.Field) -> bool:
    """Whether DuckDB compares the stored column as the client's DuckDB compares the declared one.

    Filters on columns where it does not must be left to the client.
    """
    return _pushable(iceberg_field["type"], declared)


def _pushable(iceberg: IcebergType, declared: pa.Field) -> bool:
    if EXTENSION_MARKS[0] in (declared.metadata or {}):
        return False
    arrow_type = declared.type
    if pa.types.is_dictionary(arrow_type):
        return _pushable(iceberg, declared.with_type(arrow_type.value_type))
    if isinstance(iceberg, str):
        known = primitive(iceberg)
        if known.arrow == arrow_type:
            return known.filtered is not None
        rule = rule_for(arrow_type)
        return rule is not None and rule.compares and rule.iceberg(arrow_type) == spelled(iceberg)
    if pa.types.is_struct(arrow_type):
        return iceberg["type"] == "struct" and all(
            parquet_name(field["name"]) == field["name"] and _pushable(field["type"], arrow_type.field(index))
            for index, field in enumerate(iceberg["fields"])
        )
    if is_list(arrow_type) and not pa.types.is_fixed_size_list(arrow_type):
        return iceberg["type"] == "list" and _pushable(iceberg["element"], arrow_type.value_field)
    if pa.types.is_map(arrow_type):
        keys = _pushable(iceberg["key"], arrow_type.key_field)
        return keys and _pushable(iceberg["value"], arrow_type.item_field)
    return False
