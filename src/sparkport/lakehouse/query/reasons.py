"""What Spark says against a query, in one line: never its stack, and never where its files are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparkport.errors import InvalidArgument, NotFound, SparkportError, TableNotFound
from sparkport.lakehouse.spark.errors import LostRace, translated

__all__ = ["NO_CATALOG", "reasons"]

NO_CATALOG = "none.that.queries.may.read"
"""The class of a catalog that is there and that queries must not reach: it cannot be found."""

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]\s*([^\n]*)")
_NOT_OF_QUERIES = ("INTERNAL_ERROR", "INVALID_HANDLE", "OPERATION_CANCELED", "FAILED_READ_FILE", "TASK_WRITE_FAILED")
_OF_QUERIES = frozenset({"AnalysisException", "ParseException", "IllegalArgumentException", "ArithmeticException"})
_MOST_CHARACTERS = 500


@contextmanager
def reasons(catalog: str, default_schema: str) -> Iterator[None]:
    """Turns what Spark raises for a query into errors of ours."""
    try:
        yield
    except SparkportError:
        raise
    except Exception as exc:
        error = _reason(exc, catalog, default_schema)
        if error is not None:
            raise error from exc
        try:
            with translated("the query"):
                raise
        except LostRace as lost:  # Iceberg's words for a branch that is not there as well; and a query changes nothing
            raise InvalidArgument("a table of the query has no such branch, tag or snapshot") from lost


def _reason(exc: Exception, catalog: str, default_schema: str) -> SparkportError | None:
    text = str(exc)
    if NO_CATALOG in text:
        return NotFound("the query names a catalog that is not there")
    conditions = [found for found in _CONDITION.finditer(text) if not found[1].startswith(_NOT_OF_QUERIES)]
    if conditions:
        condition, words = conditions[0][1], conditions[0][2]
        if condition == "TABLE_OR_VIEW_NOT_FOUND":
            return _not_found(exc, catalog, default_schema)
        words = re.sub(r"\s+", " ", words.partition(" SQLSTATE:")[0])
        return InvalidArgument(f"Spark: [{condition}] {words[:_MOST_CHARACTERS]}".rstrip())
    if type(exc).__name__ in _OF_QUERIES:
        first = next((line.strip() for line in text.splitlines() if line.strip()), type(exc).__name__)
        return InvalidArgument(f"Spark: {first.rstrip(';')[:_MOST_CHARACTERS]}")
    return None


def _not_found(exc: Any, catalog: str, default_schema: str) -> SparkportError:
    parameters = exc.getMessageParameters() if hasattr(exc, "getMessageParameters") else None
    named = (parameters or {}).get("relationName", "")
    parts = [part.replace("``", "`") for part in re.findall(r"`((?:[^`]|``)*)`", named)]
    if len(parts) > 2 and parts[0].casefold() == catalog.casefold():
        parts = parts[1:]
    if not parts:
        return NotFound("a table of the query is not found")
    schema, name = parts[:2] if len(parts) > 1 else (default_schema, parts[0])
    return TableNotFound(schema, name)
