"""Values for columns that a client left out: the column's default, an SQL expression kept in its metadata.

DuckDB fills defaults in by itself before it sends rows; this is for all other clients.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa

from sparkport.catalog.casting import converter
from sparkport.catalog.sandbox import SANDBOX
from sparkport.errors import InvalidArgument

__all__ = ["DEFAULT_MARK", "default_of", "default_values", "require_default"]

DEFAULT_MARK = b"default"


def default_of(column: pa.Field) -> str | None:
    """The column's default as SQL text; None when it has none."""
    value = (column.metadata or {}).get(DEFAULT_MARK)
    return value.decode() if value else None


def default_values(column: pa.Field, rows: int) -> pa.Array:
    """The default for each of ``rows`` rows; an expression such as ``random()`` is worked out for each."""
    expression = default_of(column)
    if expression is None:
        return pa.nulls(rows, column.type)

    def evaluate(db: duckdb.DuckDBPyConnection) -> pa.Table:
        return db.sql(f"SELECT ({expression}) AS value FROM range({rows})").to_arrow_table()

    try:
        values = SANDBOX.run(evaluate).column("value").combine_chunks()
        convert = converter(values.type, column.type)
        return convert(values) if convert is not None else values.cast(column.type)
    except (duckdb.Error, pa.ArrowException) as exc:
        raise InvalidArgument(f"column '{column.name}': its default {expression!r} cannot be used") from exc


def require_default(column: pa.Field) -> None:
    """Refuse a default that could never be used, when it is set and not when it is first needed."""
    if default_of(column) is not None:
        default_values(column, 1)
