"""Columns of a query as Spark names and types them, and as they are sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparkport.errors import Unsupported

__all__ = ["arrow_schema", "stored_names"]

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def arrow_schema(columns: Any) -> pa.Schema:
    """Of Spark's ``StructType``. Names are made different from each other, whatever their case."""
    taken: set[str] = set()
    return pa.schema([pa.field(_distinct(field.name, taken), _arrow(field.name, field.dataType)) for field in columns])


def stored_names(columns: pa.Schema) -> list[str]:
    """By which Spark writes them: Parquet cannot hold all names."""
    return [f"c{at}" for at in range(len(columns))]


def _distinct(name: str, taken: set[str]) -> str:
    wanted, number = name or "column", 0
    while wanted.casefold() in taken:
        number += 1
        wanted = f"{name or 'column'}_{number}"
    taken.add(wanted.casefold())
    return wanted


def _arrow(column: str, spark: Any) -> pa.DataType:
    kind = type(spark).__name__
    if kind == "DecimalType":
        return pa.decimal128(spark.precision, spark.scale)
    if kind == "ArrayType":
        return pa.list_(pa.field("l", _arrow(column, spark.elementType)))
    if kind == "MapType":
        return pa.map_(_arrow(column, spark.keyType), _arrow(column, spark.valueType))
    if kind == "StructType" and spark.fields:
        return pa.struct([pa.field(field.name, _arrow(column, field.dataType)) for field in spark.fields])
    name = spark.simpleString().partition("(")[0].partition(" ")[0]
    if name in ("char", "varchar"):
        return pa.string()
    known = _PLAIN.get(name)
    if known is None:
        raise Unsupported(f"column '{column}' is of type {spark.simpleString()}: cast it, such as to STRING")
    return known
