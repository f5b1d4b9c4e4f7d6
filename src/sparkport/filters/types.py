"""What DuckDB calls things in filters: the row id, whole numbers, and the type as which an Arrow column is seen."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparkport.filters.expressions import SqlType

__all__ = ["INTEGERS", "ROW_ID", "ROW_ID_MARK", "SIGNED", "UNSIGNED", "ZONED", "arrow_sql_type"]

ROW_ID = "rowid"
"""The column by which DuckDB names rows, in every table that has none of its own with that name."""

ROW_ID_MARK = b"is_rowid"
"""In the metadata of the column that holds the ids, whatever it is called."""

SIGNED = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
UNSIGNED = {f"U{name}": bits for name, bits in SIGNED.items()}
INTEGERS = frozenset({*SIGNED, *UNSIGNED})
ZONED = "TIMESTAMP WITH TIME ZONE"

_ARROW_TYPES: dict[Any, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.large_string(): "VARCHAR",
    pa.string_view(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
    pa.binary_view(): "BLOB",
    pa.date32(): "DATE",
    pa.date64(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
    pa.month_day_nano_interval(): "INTERVAL",
    pa.uuid(): "UUID",
}


def arrow_sql_type(arrow_type: Any) -> SqlType | None:
    """The DuckDB type as which a column of this Arrow type is seen, None where filters on it are not sent."""
    if pa.types.is_dictionary(arrow_type):
        return arrow_sql_type(arrow_type.value_type)
    if pa.types.is_decimal128(arrow_type):
        return SqlType("DECIMAL", width=arrow_type.precision, scale=arrow_type.scale)
    if pa.types.is_timestamp(arrow_type) and arrow_type.tz and arrow_type.unit != "ns":
        return SqlType(ZONED)
    name = _ARROW_TYPES.get(arrow_type)
    return None if name is None else SqlType(name)
