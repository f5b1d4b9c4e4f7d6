"""CHECK conditions: SQL that a table's owner wrote, evaluated in a process of its own, for every client alike."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sparkport.catalog.ddl import Alteration, DropColumn, DropField
from sparkport.catalog.isolated import ExpressionRefused, failing_conditions, shortened
from sparkport.errors import ConstraintViolation, InvalidArgument

__all__ = ["can_be_evaluated", "check_rows", "checks_after", "require_checks"]


def require_checks(checks: Sequence[str], columns: pa.Schema) -> None:
    """Refuse a condition that could never be evaluated, when the table is made and not when it is first written."""
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, column.type) for column in columns], schema=columns)
    for check in checks:
        if not check.strip():
            raise InvalidArgument("a CHECK is empty: it cannot be evaluated")
        try:
            failing_conditions([check], empty)
        except ExpressionRefused as exc:
            raise InvalidArgument(f"CHECK {shortened(check)} cannot be evaluated: {exc}") from exc


def checks_after(change: Alteration, checks: Sequence[str], columns: pa.Schema) -> tuple[str, ...]:
    """The conditions that a table has after a change that left it these columns.

    With CASCADE, a condition goes with the column that it needs; without, the column cannot be dropped.
    """
    if not isinstance(change, DropColumn | DropField):
        require_checks(checks, columns)
        return tuple(checks)
    kept = tuple(check for check in checks if can_be_evaluated(check, columns))
    lost = [check for check in checks if check not in kept]
    if lost and not change.cascade:
        what = f"column '{change.name}'" if isinstance(change, DropColumn) else f"field '{'.'.join(change.path)}'"
        raise InvalidArgument(f"{what} is needed by CHECK {shortened(lost[0])}: DROP … CASCADE drops the check with it")
    return kept


def can_be_evaluated(check: str, columns: pa.Schema) -> bool:
    """Whether a condition needs no other columns than these."""
    try:
        require_checks([check], columns)
    except InvalidArgument:
        return False
    return True


def check_rows(table: str, checks: Sequence[str], rows: pa.RecordBatch) -> None:
    """Raise ConstraintViolation when a row breaks a condition."""
    if not checks or not rows.num_rows:
        return
    try:
        failing = failing_conditions(checks, rows)
    except ExpressionRefused as exc:
        raise ConstraintViolation(f"CHECK constraint on table {table} cannot be evaluated: {exc}", table=table) from exc
    for check, failed in zip(checks, failing, strict=True):
        if failed:
            message = f"CHECK constraint failed on table {table} with expression: {check}"
            raise ConstraintViolation(message, table=table, check=check)
