"""Names and values as Spark SQL writes them, every value in exactly its column's type.

An implicit cast in a statement that also names a metadata column such as ``_row_id`` fails in Spark.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

__all__ = ["literal", "quoted", "text_literal"]


def quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def text_literal(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def literal(value: Any, kind: str) -> str:
    """A bound of a column of an ordered Iceberg type."""
    if kind == "int":
        return str(int(value))
    if kind == "long":
        return f"{int(value)}L" if value > -(2**63) else f"CAST('{value}' AS BIGINT)"
    if kind == "date":
        return f"DATE '{_date(value).isoformat()}'"
    micros = value if isinstance(value, int) else _micros(value)
    instant = f"timestamp_micros({micros}L)"
    return instant if kind == "timestamptz" else f"CAST({instant} AS TIMESTAMP_NTZ)"


def _date(value: Any) -> dt.date:
    return value if isinstance(value, dt.date) else dt.date(1970, 1, 1) + dt.timedelta(days=int(value))


def _micros(value: dt.datetime) -> int:
    epoch = dt.datetime(1970, 1, 1, tzinfo=value.tzinfo)
    return (value - epoch) // dt.timedelta(microseconds=1)
