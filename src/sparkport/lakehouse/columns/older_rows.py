"""Values that were stored under an older schema, as the table's columns are now: by the ids of fields.

What a row did not have yet is the field's ``initial-default``, as Iceberg has it for rows of older files. Others can
add columns and nested fields while rows wait in the journal.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from sparkport.errors import Unsupported
from sparkport.lakehouse.columns.shapes import default_sql
from sparkport.lakehouse.columns.storage import conformed, list_offsets, map_entries
from sparkport.lakehouse.columns.types import IcebergType, stored_type

__all__ = ["evolved", "initial_values"]


def evolved(column: pa.Array, before: IcebergType, after: IcebergType) -> pa.Array:
    """A stored column of a table whose schema has changed since."""
    stored = stored_type(after)
    if before == after or not isinstance(before, dict) or not isinstance(after, dict):
        return conformed(column, stored)
    if after["type"] == "struct":
        places = {field["id"]: (at, field["type"]) for at, field in enumerate(before["fields"])}
        children = []
        for field in after["fields"]:
            if field["id"] in places:
                at, kind = places[field["id"]]
                children.append(evolved(column.field(at), kind, field["type"]))
            else:
                children.append(initial_values(field, len(column)))
        return pa.StructArray.from_arrays(children, fields=list(stored), mask=column.is_null())
    if after["type"] == "list":
        items = evolved(pc.list_flatten(column), before["element"], after["element"])
        return pa.ListArray.from_arrays(list_offsets(column), items, type=stored, mask=column.is_null())
    offsets, keys, values = map_entries(column)
    keys, values = evolved(keys, before["key"], after["key"]), evolved(values, before["value"], after["value"])
    return pa.MapArray.from_arrays(offsets, keys, values, type=stored, mask=column.is_null())


def initial_values(field: dict[str, Any], rows: int) -> pa.Array:
    """What so many rows have in a column or nested field that came after them, as it is stored."""
    stored = stored_type(field["type"])
    if field.get("initial-default") is None:
        return pa.nulls(rows, stored)
    try:
        value = _value(default_sql(field, str(field["name"])))
    except duckdb.Error as exc:
        raise Unsupported(f"column '{field['name']}': its default cannot be read: {exc}") from exc
    return pa.repeat(conformed(value, stored)[0], rows)


@lru_cache(maxsize=1_024)
def _value(sql: str) -> pa.Array:
    """By DuckDB, who reads the defaults of rows in files as well."""
    with duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"}) as database:
        database.execute("SET TimeZone = 'UTC'")
        return database.sql(f"SELECT {sql}").to_arrow_table().column(0).combine_chunks()
