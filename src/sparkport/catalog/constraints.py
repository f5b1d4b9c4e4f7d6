"""CHECK conditions: SQL that a table's owner wrote, evaluated by DuckDB in the sandbox, for every client alike."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from sparkport.catalog.sandbox import SANDBOX
from sparkport.errors import ConstraintViolation, InvalidArgument

__all__ = ["check_rows", "require_checks"]


def _failing(checks: Sequence[str], rows: pa.RecordBatch) -> list[bool]:
    # As in SQL, a condition that is NULL counts as kept.
    conditions = ", ".join(f"coalesce(bool_and(({check})::BOOLEAN), true)" for check in checks)

    def evaluate(db: duckdb.DuckDBPyConnection) -> list[bool]:
        relation = db.from_arrow(pa.Table.from_batches([rows]))
        found = relation.aggregate(conditions).fetchall()
        return [not kept for kept in found[0]]

    return SANDBOX.run(evaluate)


def require_checks(checks: Sequence[str], columns: pa.Schema) -> None:
    """Refuse a condition that could never be evaluated, when the table is made and not when it is first written."""
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, column.type) for column in columns], schema=columns)
    for check in checks:
        if not check.strip():
            raise InvalidArgument("a CHECK is empty: it cannot be evaluated")
        try:
            _failing([check], empty)
        except duckdb.Error as exc:
            raise InvalidArgument(f"CHECK {check} cannot be evaluated: {str(exc).splitlines()[0]}") from exc


def check_rows(table: str, checks: Sequence[str], rows: pa.RecordBatch) -> None:
    """Raise ConstraintViolation when a row breaks a condition."""
    if not checks or not rows.num_rows:
        return
    try:
        failing = _failing(checks, rows)
    except duckdb.Error as exc:
        raise ConstraintViolation(f"CHECK constraint on table {table} cannot be evaluated") from exc
    for check, failed in zip(checks, failing, strict=True):
        if failed:
            raise ConstraintViolation(f"CHECK constraint failed on table {table} with expression: {check}")
