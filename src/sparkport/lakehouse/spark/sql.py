"""Names and values as Spark SQL writes them, every value in exactly its column's type.

An implicit cast in a statement that also names a metadata column such as ``_row_id`` fails in Spark.
"""

from __future__ import annotations

import datetime as dt

__all__ = ["literal", "quoted", "text_literal"]

_EPOCH = dt.date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = ((edge - _EPOCH).days for edge in (dt.date.min, dt.date.max))
_DAY_MICROS = 86_400_000_000


def quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def text_literal(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def literal(value: int, kind: str) -> str | None:
    """A bound of a column of an ordered Iceberg type; None for dates and times outside of the years 1 to 9999.

    Beyond them Spark's literals end, and what DuckDB takes for infinity is a number like any other to Spark.
    """
    if kind == "int":
        return str(value)
    if kind == "long":
        return f"{value}L" if value > -(2**63) else f"CAST('{value}' AS BIGINT)"
    days = value if kind == "date" else value // _DAY_MICROS
    if not _FIRST_DAY <= days <= _LAST_DAY:
        return None
    if kind == "date":
        return f"DATE '{(_EPOCH + dt.timedelta(days=value)).isoformat()}'"
    instant = f"timestamp_micros({value}L)"
    return instant if kind == "timestamptz" else f"CAST({instant} AS TIMESTAMP_NTZ)"
