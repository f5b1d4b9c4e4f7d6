"""A column's default as Iceberg keeps it: a constant in the schema, which all engines then read and write alike.

``initial-default`` is the value in rows whose files were written before the column was there; it never changes.
``write-default`` is what writers fill in from now on. Both are values, where DuckDB's default is an expression: the
expression stays in the table's properties, and what of it is constant is written down here too.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from sparkport.catalog.defaults import Steadiness, default_of, default_values, steadiness
from sparkport.errors import SparkportError, Unsupported
from sparkport.lakehouse.columns.storage import to_stored

__all__ = ["INITIAL", "WRITE", "initial_default", "promoted", "single_value", "write_default"]

INITIAL = "initial-default"
WRITE = "write-default"

Json = dict[str, Any]


class _Inexpressible(Exception):
    """Why a value cannot be in a schema."""


def initial_default(column: pa.Field, iceberg_field: Json) -> Any:
    """What rows that are there have in a new column; None for NULL. Raises Unsupported where that cannot be kept."""
    expression = default_of(column)
    if expression is None:
        return None
    problem = "has another value in each row"
    if steadiness(expression) is not Steadiness.NEVER:
        try:
            return single_value(default_values(column, 1), column, iceberg_field)
        except _Inexpressible as exc:
            problem = str(exc)
    raise Unsupported(
        f"column '{column.name}': its default {expression} {problem}, which cannot be kept for the rows that are "
        "there: add the column without it, then set the default"
    )


def write_default(column: pa.Field, iceberg_field: Json) -> Any:
    """What writers that know nothing of expressions fill in; None where it is NULL, or not the same for ever."""
    expression = default_of(column)
    if expression is None or steadiness(expression) is not Steadiness.ALWAYS:
        return None
    try:
        return single_value(default_values(column, 1), column, iceberg_field)
    except (_Inexpressible, SparkportError):
        return None


def single_value(values: pa.Array, column: pa.Field, iceberg_field: Json) -> Any:
    """The first of these values as JSON, in the form in which the column is stored."""
    iceberg_type = iceberg_field["type"]
    if not values[0].is_valid:
        return None
    if not isinstance(iceberg_type, str):
        raise _Inexpressible("is nested")
    stored = to_stored(values, column, iceberg_field)
    try:
        return _json(stored[0].as_py(), iceberg_type)
    except (ValueError, OverflowError) as exc:  # dates and times that no calendar has
        raise _Inexpressible("is beyond the years that a schema can hold") from exc


def _json(value: Any, iceberg_type: str) -> Any:
    """Spelled as Iceberg's own writers do, who write the whole schema anew with every commit."""
    match value:
        case None:
            return None
        case float() if not math.isfinite(value):
            raise _Inexpressible("is no finite number")
        case float() if iceberg_type == "float":
            return float(str(np.float32(value)))
        case float() | bool() | int() | str():
            return value
        case bytes():
            return value.hex().upper()
        case Decimal():
            return format(value, "f")
        case dt.datetime():
            text = value.replace(tzinfo=None).isoformat()
            text = text.rstrip("0") if value.microsecond else text
            return f"{text}+00:00" if iceberg_type == "timestamptz" else text
        case dt.date():
            return value.isoformat()
    raise _Inexpressible(f"is of type {iceberg_type}")


def promoted(value: Any, iceberg_type: str) -> Any:
    """The default of a column that changes from ``iceberg_type`` to a wider type: the value that readers have seen."""
    return float(np.float32(value)) if iceberg_type == "float" and value is not None else value
