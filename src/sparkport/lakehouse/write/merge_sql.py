"""MERGE by row id: the SQL that makes Spark change just the rows that were decided on.

Spark takes the first part of ``t._row_id`` for a column if there is one of that name, and only then for an alias. So
the target goes by an alias that no column of the table has, and staged rows bring their columns by place, not by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparkport.catalog.ddl import MERGE_COLUMNS
from sparkport.errors import Unsupported
from sparkport.lakehouse.iceberg.lineage import ascending
from sparkport.lakehouse.spark.sql import quoted
from sparkport.lakehouse.write.change_set import CHANGED_ID, IS_DELETED, TablePlan, changed_column

__all__ = ["DELETED_COUNT", "UPDATED_COUNT", "merge_sql"]

UPDATED_COUNT = "spark.merge-into.num-target-rows-updated"
DELETED_COUNT = "spark.merge-into.num-target-rows-deleted"

_COPY = "copy-on-write"
_MOST_COPIED = 10_000


def merge_sql(target: str, view: str, plan: TablePlan) -> str:
    """The rows of ``view`` are laid out as ``changed_rows_schema`` says."""
    current, deletes = plan.version, bool(len(plan.deleted))
    names = plan.columns if len(plan.updated) else None
    ids = ascending(plan.updated, plan.deleted)
    columns = current.columns.declared.names
    if taken := [name for name in columns if name.casefold() in MERGE_COLUMNS]:
        raise Unsupported(f"column '{taken[0]}' has a name that Spark uses in a MERGE: rename it to change rows")
    t, s = _unused("t", columns), _unused("s", columns)
    predicate = current.rows.statistics.bounds_predicate(ids, t)
    make = _merging
    if current.properties.get("write.merge.mode", _COPY) == _COPY:
        if len(ids) > _MOST_COPIED:
            raise Unsupported(
                f"table '{current.table.name}' is copy-on-write, where a statement can change {_MOST_COPIED} rows "
                "at most: set its property 'write.merge.mode' to 'merge-on-read'"
            )
        make = _copying
    using, on, clauses = make(view, names, predicate, deletes=deletes, t=t, s=s)
    return f"MERGE INTO {target} {t} USING {using} {s} ON {on} {' '.join(clauses)}"


def _merging(
    view: str, names: Sequence[str] | None, predicate: str, *, deletes: bool, t: str, s: str
) -> tuple[str, str, list[str]]:
    on = f"{t}._row_id = {s}.{CHANGED_ID}" + (f" AND {predicate}" if predicate else "")
    clauses = []
    if deletes:
        clauses.append(f"WHEN MATCHED{_and(names, f'{s}.{IS_DELETED}')} THEN DELETE")
    if names is not None:
        change = ", ".join(f"{t}.{quoted(name)} = {s}.{changed_column(at)}" for at, name in enumerate(names))
        clauses.append(f"WHEN MATCHED THEN UPDATE SET {change}")
    return view, on, clauses


def _copying(
    view: str, names: Sequence[str] | None, predicate: str, *, deletes: bool, t: str, s: str
) -> tuple[str, str, list[str]]:
    """For copy-on-write, where Spark takes no row id in the condition: all changes in one row, as a map by row id."""
    both = [IS_DELETED] if deletes and names is not None else []
    values = ", ".join([*both, *(changed_column(at) for at in range(len(names or ())))]) or "true"
    source = f"SELECT map_from_entries(collect_list(struct({CHANGED_ID}, struct({values})))) AS changes FROM {view}"
    here, change = f"map_contains_key({s}.changes, {t}._row_id)", f"{s}.changes[{t}._row_id]"
    clauses = []
    if deletes:
        clauses.append(f"WHEN MATCHED AND {here}{_and(names, f'{change}.{IS_DELETED}')} THEN DELETE")
    if names is not None:
        sets = ", ".join(f"{t}.{quoted(name)} = {change}.{changed_column(at)}" for at, name in enumerate(names))
        clauses.append(f"WHEN MATCHED AND {here} THEN UPDATE SET {sets}")
    return f"({source})", predicate or "true", clauses


def _and(names: Sequence[str] | None, condition: str) -> str:
    return "" if names is None else f" AND {condition}"


def _unused(alias: str, names: Iterable[str]) -> str:
    """The alias, with as many underscores as it needs to be no column's name, however Spark folds cases."""
    taken = {name.casefold() for name in names}
    while alias in taken:
        alias += "_"
    return alias
