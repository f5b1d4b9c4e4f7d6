"""A table's columns as its data files have them: names, field ids and types as Iceberg's own writers choose them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sparkport.lakehouse.columns.type_table import known_type, parquet_name
from sparkport.lakehouse.columns.types import Json
from sparkport.lakehouse.iceberg.row_groups import FIELD_ID

__all__ = ["file_notes", "file_schema"]


def file_schema(fields: Sequence[Json]) -> pa.Schema | None:
    """None for columns that only Spark writes."""
    columns = _fields(fields)
    return None if columns is None else pa.schema(columns)


def _fields(fields: Sequence[Json]) -> list[pa.Field] | None:
    """None also where two names are one in a file, which Iceberg's readers refuse."""
    made = [_field(field["name"], field["type"], field["id"], required=bool(field.get("required"))) for field in fields]
    columns = [field for field in made if field is not None]
    is_whole = len({field.name for field in columns}) == len(made)
    return columns if is_whole else None


def _field(name: str, iceberg_type: Any, field_id: int, *, required: bool) -> pa.Field | None:
    file_type = _type(iceberg_type)
    if file_type is None:
        return None
    return pa.field(parquet_name(name), file_type, nullable=not required, metadata={FIELD_ID: str(field_id)})


def _type(iceberg_type: Any) -> pa.DataType | None:
    match iceberg_type:
        case str():
            known = known_type(iceberg_type)
            return None if known is None or known.spark is None else known.in_files
        case {"type": "struct", "fields": fields}:
            # Where a struct is null, Arrow misses what is required inside of it.
            inner = None if any(field.get("required") for field in fields) else _fields(fields)
            return pa.struct(inner) if inner else None
        case {"type": "list", "element": element, "element-id": field_id}:
            item = _field("element", element, field_id, required=bool(iceberg_type.get("element-required")))
            return None if item is None else pa.list_(item)
        case {"type": "map", "key": key, "key-id": key_id, "value": value, "value-id": value_id}:
            named = _field("key", key, key_id, required=True)
            item = _field("value", value, value_id, required=bool(iceberg_type.get("value-required")))
            return None if named is None or item is None else pa.map_(named, item)
    return None


def file_notes(fields: Sequence[Json]) -> dict[str, str]:
    """What a file's footer says of its columns for those who find it without its table.

    As Spark has it: without defaults, and whatever the schema's number is.
    """
    about = {"type": "struct", "schema-id": 0, "fields": [_noted(field) for field in fields]}
    return {"iceberg.schema": json.dumps(about, ensure_ascii=False, separators=(",", ":"))}


def _noted(field: Json) -> Json:
    about = {"id": field["id"], "name": field["name"], "required": bool(field.get("required"))}
    comment = {"doc": field["doc"]} if "doc" in field else {}
    return {**about, "type": _noted_type(field["type"]), **comment}


def _noted_type(iceberg_type: Any) -> Any:
    names: tuple[str, ...]
    match iceberg_type:
        case {"type": "struct", "fields": fields}:
            return {"type": "struct", "fields": [_noted(field) for field in fields]}
        case {"type": "list"}:
            names = ("element-id", "element", "element-required")
        case {"type": "map"}:
            names = ("key-id", "key", "value-id", "value", "value-required")
        case _:
            return iceberg_type
    return {"type": iceberg_type["type"], **{name: _noted_type(iceberg_type.get(name, False)) for name in names}}
