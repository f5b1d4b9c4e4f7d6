"""Values for columns that a client left out: the column's default, an SQL expression kept in its metadata.

DuckDB fills defaults in by itself before it sends rows; this is for all other clients.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

import pyarrow as pa

from sparkport.catalog.casting import converter
from sparkport.catalog.isolated import ExpressionRefused, shortened, stabilities, values_of
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
    try:
        return value.decode() if value else None
    except UnicodeDecodeError as exc:
        raise InvalidArgument(f"column '{column.name}': its default is not text") from exc


def default_values(column: pa.Field, rows: int) -> pa.Array:
    """The default for each of ``rows`` rows; an expression such as ``random()`` is worked out for each."""
    expression = default_of(column)
    if expression is None:
        return pa.nulls(rows, column.type)
    try:
        values = values_of(expression, rows)
        convert = converter(values.type, column.type)
        return convert(values) if convert is not None else values.cast(column.type)
    except (ExpressionRefused, pa.ArrowException) as exc:
        reason = f": {exc}" if isinstance(exc, ExpressionRefused) else f" as {column.type}"
        raise InvalidArgument(
            f"column '{column.name}': its default {shortened(expression)!r} cannot be used{reason}"
        ) from exc


def require_default(column: pa.Field) -> None:
    """Refuse a default that could never be used, when it is set and not when it is first needed."""
    if default_of(column) is not None:
        default_values(column, 1)


@lru_cache(maxsize=256)
def steadiness(expression: str) -> Steadiness:
    """Whether a default is a constant, or one value per statement such as ``now()``, or another one for each row."""
    try:
        in_use = stabilities(expression)
    except ExpressionRefused:
        return Steadiness.NEVER
    if _VOLATILE in in_use:
        return Steadiness.NEVER
    return Steadiness.IN_ONE_STATEMENT if _WITHIN_QUERY in in_use else Steadiness.ALWAYS


_VOLATILE = "VOLATILE"
_WITHIN_QUERY = "CONSISTENT_WITHIN_QUERY"
