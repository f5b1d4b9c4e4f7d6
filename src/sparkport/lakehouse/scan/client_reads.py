"""Scans that DuckDB clients read from a snapshot's files themselves, where that gives the very rows of a scan of ours.

Columns are mapped by field id, as our own reader does it. Whatever needs more than that mapping is left to the server:
rows that were deleted, files whose own schema has to be looked at, columns in another type than DuckDB reads them in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sparkport.catalog.scan import DuckDBCall
from sparkport.lakehouse.columns.columns import Columns
from sparkport.lakehouse.columns.shapes import HIDDEN_COLUMNS, default_text, must_inspect
from sparkport.lakehouse.columns.type_table import EXTENSION_MARKS, primitive
from sparkport.lakehouse.columns.types import IcebergType, sql_type
from sparkport.lakehouse.files import FileSystem, local_path
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.plan import DataFile, split

__all__ = ["duckdb_calls"]

_NARROWER = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.large_string(): "VARCHAR",
    pa.large_binary(): "BLOB",
    pa.bool8(): "BOOLEAN",
}
"""Types that Iceberg lacks, by DuckDB's names: it casts to them what the files have."""

_CALL_BYTES = 16 << 20  # a call is run by one thread
_MOST_CALLS = 64
_ENTRY = pa.struct([("name", pa.string()), ("type", pa.string()), ("default_value", pa.string())])


def duckdb_calls(
    fs: FileSystem,
    metadata: TableMetadata,
    columns: Columns,
    *,
    files: Sequence[DataFile],
    names: Sequence[str],
) -> Sequence[DuckDBCall] | None:
    """Calls of ``read_parquet`` that together read these columns of all files; None where the server has to read."""
    fields = [columns.field(name) for name in names]
    folded = {name.casefold() for name in names}
    if not files or len(folded) < max(len(names), 1) or folded & HIDDEN_COLUMNS:
        return None
    if any(file.deletes or file.equality_deletes or file.format != "parquet" for file in files):
        return None
    if must_inspect(metadata, fields):
        return None
    entries = []
    for name, field in zip(names, fields, strict=True):
        duckdb_type, default = _duckdb_type(columns.declared.field(name), field), field.get("initial-default")
        text = None if default is None else default_text(default, field["type"])
        if duckdb_type is None or (default is not None and text is None):
            return None
        entries.append((field["id"], {"name": name, "type": duckdb_type, "default_value": text}))
    parts = min(_MOST_CALLS, sum(file.size for file in files) // _CALL_BYTES + 1)
    schema = pa.scalar(entries, pa.map_(pa.int32(), _ENTRY))
    return [
        DuckDBCall("read_parquet", [_path(fs, file) for file in piece], hive_partitioning=False, schema=schema)
        for piece in split(files, parts)
    ]


def _duckdb_type(declared: pa.Field, field: Mapping[str, Any]) -> str | None:
    """The type in which clients list a column, if DuckDB reads its files so; None if values are stored otherwise."""
    if declared.type in _NARROWER and EXTENSION_MARKS[0] not in (declared.metadata or {}):
        return _NARROWER[declared.type]
    return sql_type(field["type"]) if _is_plain(field["type"], declared) else None


def _is_plain(iceberg: IcebergType, declared: pa.Field) -> bool:
    """Whether a column, or a part of one, has the Arrow type that its Iceberg type has by itself."""
    arrow_type = declared.type
    if EXTENSION_MARKS[0] in (declared.metadata or {}):
        return False
    match iceberg:
        case str():
            known = primitive(iceberg)
            return known.arrow == arrow_type and known.filtered is not None  # DuckDB reads others in another type
        case {"type": "list", "element": element}:
            return pa.types.is_list(arrow_type) and _is_plain(element, arrow_type.value_field)
        case {"type": "map", "key": key, "value": value}:
            return (
                pa.types.is_map(arrow_type)
                and _is_plain(key, arrow_type.key_field)
                and _is_plain(value, arrow_type.item_field)
            )
        case {"type": "struct", "fields": fields}:
            inner = (
                [arrow_type.field(index) for index in range(arrow_type.num_fields)]
                if pa.types.is_struct(arrow_type)
                else []
            )
            return len(inner) == len(fields) and all(
                field["name"] == part.name and _is_plain(field["type"], part)
                for field, part in zip(fields, inner, strict=True)
            )
    return False


def _path(fs: FileSystem, file: DataFile) -> str:
    """As another process finds it: relative paths are meant from where this one runs."""
    local = local_path(file.path)
    return fs.duckdb_path(file.path if local is None else str(local.absolute()))
