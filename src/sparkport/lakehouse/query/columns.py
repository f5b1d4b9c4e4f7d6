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
    taken: dict[str, int] = {}
    return pa.schema([pa.field(_distinct(field.name, taken), _arrow(field.name, field.dataType)) for field in columns])


def stored_names(columns: pa.Schema) -> list[str]:
    """By which Spark writes them: Parquet cannot hold all names."""
    return [f"c{at}" for at in range(len(columns))]


def _distinct(name: str, taken: dict[str, int]) -> str:
    """``taken`` has with each name the number to go on with: a query may have any number of columns of one name."""
    wanted = first = name or "column"
    while wanted.casefold() in taken:
        taken[first.casefold()] += 1
        wanted = f"{first}_{taken[first.casefold()]}"
    taken[wanted.casefold()] = 0
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
