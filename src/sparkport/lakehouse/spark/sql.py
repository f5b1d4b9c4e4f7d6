"""Names and values as Spark SQL writes them, every value in exactly its column's type.

An implicit cast in a statement that also names a metadata column such as ``_row_id`` fails in Spark.
"""

from __future__ import annotations

__all__ = ["quoted", "text_literal"]


def quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def text_literal(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
