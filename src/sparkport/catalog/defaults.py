"""Values for columns that a client left out: the column's default, an SQL expression kept in its metadata.

DuckDB fills defaults in by itself before it sends rows; this is for all other clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa

from sparkport.catalog.casting import converter
from sparkport.catalog.sandbox import SANDBOX
from sparkport.errors import InvalidArgument

__all__ = ["DEFAULT_MARK", "Steadiness", "default_of", "default_values", "require_default", "steadiness"]

DEFAULT_MARK = b"default"


class Steadiness(Enum):
    """For how long an expression has the same value."""

    ALWAYS = "always"
    IN_ONE_STATEMENT = "in one statement"
    NEVER = "never"


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


@lru_cache(maxsize=256)
def steadiness(expression: str) -> Steadiness:
    """Whether a default is a constant, or one value per statement such as ``now()``, or another one for each row."""

    def stabilities(db: duckdb.DuckDBPyConnection) -> set[str | None]:
        # All rows are fetched, though there is one: the connection takes no other query before.
        ((text,),) = db.execute("SELECT CAST(json_serialize_sql(?) AS VARCHAR)", [f"SELECT ({expression})"]).fetchall()
        parsed = json.loads(text)
        if parsed["error"]:
            return {_VOLATILE}
        nodes = list(_nodes(parsed))
        names = [node["function_name"].lower() for node in nodes if "function_name" in node]
        found = db.execute(
            "SELECT DISTINCT stability FROM duckdb_functions() WHERE list_contains(?::VARCHAR[], function_name)",
            [names],
        ).fetchall()
        # There are no columns here: what looks like one is current_date or its kin, or belongs to a lambda.
        keywords = any(node.get("class") == "COLUMN_REF" for node in nodes)
        return {stability for (stability,) in found} | ({_WITHIN_QUERY} if keywords else set())

    try:
        found = SANDBOX.run(stabilities)
    except duckdb.Error:
        return Steadiness.NEVER
    if _VOLATILE in found:
        return Steadiness.NEVER
    return Steadiness.IN_ONE_STATEMENT if _WITHIN_QUERY in found else Steadiness.ALWAYS


_VOLATILE = "VOLATILE"
_WITHIN_QUERY = "CONSISTENT_WITHIN_QUERY"


def _nodes(parsed: Any) -> Iterator[dict[str, Any]]:
    if isinstance(parsed, dict):
        yield parsed
    for part in parsed.values() if isinstance(parsed, dict) else parsed if isinstance(parsed, list) else ():
        yield from _nodes(part)
