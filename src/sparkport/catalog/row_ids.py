"""The row-id column: what it is called, how it is marked, and which ids of those that a client sends are good."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sparkport.errors import InvalidArgument
from sparkport.filters.types import ROW_ID, ROW_ID_MARK

__all__ = [
    "ROW_ID",
    "ROW_ID_MARK",
    "as_row_ids",
    "data_schema",
    "find_row_id_column",
    "require_row_id_column",
    "row_id_field",
    "split_row_ids",
]

_ALLOWED = (pa.int64(), pa.int32(), pa.uint64())
_LARGEST = 2**63 - 1


def row_id_field(name: str = ROW_ID) -> pa.Field:
    """The row-id column as DuckDB recognises it."""
    return pa.field(name, pa.int64(), nullable=False, metadata={ROW_ID_MARK: b"1"})


def find_row_id_column(schema: pa.Schema) -> int | None:
    """The position of the row-id column: named exactly ``rowid``, or marked ``is_rowid``; None if there is none."""
    for index, column in enumerate(schema):
        if column.name == ROW_ID or (column.metadata or {}).get(ROW_ID_MARK):
            return index
    return None


def data_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without its row-id column: what a user sees as the table's columns."""
    index = find_row_id_column(schema)
    return schema if index is None else schema.remove(index)


def require_row_id_column(schema: pa.Schema, operation: str) -> int:
    """The position of the row-id column of an UPDATE or DELETE."""
    index = find_row_id_column(schema)
    if index is None:
        raise InvalidArgument(f"{operation} requires rowid column")
    if schema.field(index).type not in _ALLOWED:
        raise InvalidArgument("rowid must be integer type")
    return index


def as_row_ids(column: pa.Array) -> pa.Int64Array:
    """Row ids as int64. A null, or one that int64 cannot hold, names no row of any table."""
    if column.type not in _ALLOWED:
        raise InvalidArgument("rowid must be integer type")
    if column.null_count:
        raise InvalidArgument("rowid must not be null")
    if column.type == pa.int64():
        return column
    if column.type == pa.uint64() and len(column):
        largest = pc.max(column).as_py()
        if largest > _LARGEST:
            raise InvalidArgument(f"rowid {largest} is out of range")
    return column.cast(pa.int64())


def split_row_ids(batch: pa.RecordBatch, index: int) -> tuple[pa.Int64Array, pa.RecordBatch]:
    """The ids, and the batch without them."""
    rest = [position for position in range(batch.num_columns) if position != index]
    return as_row_ids(batch.column(index)), batch.select(rest)
