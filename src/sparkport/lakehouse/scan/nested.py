"""Lists, structs, maps and UUIDs as Arrow reads them from a file, in the types in which DuckDB would hand them out.

Arrow reads as many rows at a time as it is told to; DuckDB reads thousands, and a list may be of any length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sparkport.lakehouse.columns.storage import uuid_text
from sparkport.lakehouse.columns.type_table import known_type
from sparkport.lakehouse.iceberg.row_groups import FIELD_ID

__all__ = ["as_handed_out", "is_direct", "is_same_column", "leaves"]


def is_direct(iceberg_type: Any) -> bool:
    """Whether Arrow reads from files what DuckDB would, or what can be made into it."""
    if isinstance(iceberg_type, str):
        known = known_type(iceberg_type)
        return known is not None and known.in_files is not None
    inner = list(_inner(iceberg_type))
    return bool(inner) and all(is_direct(part) for _, part in inner)


def is_same_column(field: pa.Field, iceberg_type: Any) -> bool:
    """Whether a file's column is what the table has today, down to the ids of its nested fields and their order."""
    if isinstance(iceberg_type, str):
        known = known_type(iceberg_type)
        return known is not None and known.in_files is not None and field.type == known.in_files
    kinds = {"struct": pa.types.is_struct, "list": pa.types.is_list, "map": pa.types.is_map}
    inner = list(_inner(iceberg_type))
    if not inner or not kinds[iceberg_type["type"]](field.type):
        return False
    children = _children(field.type)
    return len(children) == len(inner) and all(
        (child.metadata or {}).get(FIELD_ID) == str(field_id).encode() and is_same_column(child, part)
        for child, (field_id, part) in zip(children, inner, strict=True)
    )


def leaves(iceberg_type: Any) -> int:
    """How many columns of a file a column of a table is: each has buffers of its own."""
    return sum(leaves(part) for _, part in _inner(iceberg_type)) or 1


def _inner(iceberg_type: Any) -> Iterator[tuple[int, Any]]:
    """The id and the type of each field, item or entry."""
    match iceberg_type:
        case {"type": "struct", "fields": fields}:
            yield from ((field["id"], field["type"]) for field in fields)
        case {"type": "list", "element": element, "element-id": element_id}:
            yield element_id, element
        case {"type": "map", "key": key, "key-id": key_id, "value": value, "value-id": value_id}:
            yield key_id, key
            yield value_id, value


def _children(arrow_type: Any) -> list[pa.Field]:
    if pa.types.is_map(arrow_type):
        return [arrow_type.key_field, arrow_type.item_field]
    return [arrow_type.field(place) for place in range(arrow_type.num_fields)]


def as_handed_out(column: Any, wanted: pa.DataType) -> pa.Array:
    """A column in another spelling of its type: texts stand for themselves, fields have the names of ``wanted``."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not wanted.num_fields:
        return _plain(column, wanted)
    if pa.types.is_struct(wanted):
        children = [as_handed_out(column.field(place), wanted.field(place).type) for place in range(wanted.num_fields)]
        return pa.Array.from_buffers(wanted, len(column), [_validity(column)], column.null_count, children=children)
    offsets = column.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    if pa.types.is_map(wanted):
        parts = [(column.keys, wanted.key_type), (column.items, wanted.item_type)]
        entries = [as_handed_out(part.slice(first, last - first), part_type) for part, part_type in parts]
        inner = wanted.field(0).type
        children = [pa.Array.from_buffers(inner, last - first, [None], 0, children=entries)]
    else:
        children = [as_handed_out(column.values.slice(first, last - first), wanted.value_type)]
    shifted = pa.py_buffer(np.ascontiguousarray(offsets - first if first else offsets))
    return pa.Array.from_buffers(
        wanted, len(column), [_validity(column), shifted], column.null_count, children=children
    )


def _plain(column: Any, wanted: pa.DataType) -> pa.Array:
    if column.type == wanted:
        return column
    return uuid_text(column.storage) if isinstance(column.type, pa.UuidType) else column.cast(wanted)


def _validity(column: Any) -> pa.Buffer | None:
    return column.is_valid().buffers()[1] if column.null_count else None
