"""Keys as an Iceberg table keeps them: by field ids, so that a rename leaves them as they are.

The primary key is the schema's identifier fields, which Spark knows too; other keys are a property of the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sparkport.catalog.keys import Key, is_comparable, primary_key
from sparkport.lakehouse.columns.columns import Columns

__all__ = ["UNIQUE", "identifier_fields", "is_readable", "read_keys", "unique_property"]

UNIQUE = "sparkport.unique"


def identifier_fields(keys: Sequence[Key], columns: Columns) -> list[int]:
    primary = primary_key(keys)
    return [] if primary is None else _field_ids(primary, columns)


def unique_property(keys: Sequence[Key], columns: Columns) -> str | None:
    """The value of ``UNIQUE``, None where there is nothing to keep."""
    unique = [_field_ids(key, columns) for key in keys if not key.primary]
    return json.dumps(unique) if unique else None


def read_keys(schema: Mapping[str, Any], properties: Mapping[str, str], columns: Columns) -> tuple[Key, ...]:
    """The keys of any table, ours or not.

    Iceberg lets fields inside of structs identify rows: such a primary key is not one that can be kept here. A key
    of which somebody else has dropped a column is gone with it.
    """
    names = {field["id"]: column for field, column in zip(columns.fields, columns.declared, strict=True)}
    asked = [(schema.get("identifier-field-ids") or (), True), *((ids, False) for ids in _unique(properties) or ())]
    keys = []
    for ids, primary in asked:
        key_columns = [names[number] for number in ids if number in names]
        if ids and len(key_columns) == len(ids) and all(is_comparable(column.type) for column in key_columns):
            keys.append(Key(tuple(column.name for column in key_columns), primary))
    return tuple(keys)


def is_readable(properties: Mapping[str, str]) -> bool:
    return _unique(properties) is not None


def _unique(properties: Mapping[str, str]) -> list[list[int]] | None:
    try:
        unique = json.loads(properties.get(UNIQUE) or "[]")
    except (ValueError, RecursionError):
        return None
    if not isinstance(unique, list) or not all(isinstance(ids, list) for ids in unique):
        return None
    return unique if all(type(number) is int for ids in unique for number in ids) else None


def _field_ids(key: Key, columns: Columns) -> list[int]:
    return [int(columns.field(name)["id"]) for name in key.columns]
