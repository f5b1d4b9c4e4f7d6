"""MERGE by row id: the SQL that makes Spark change just the rows that were decided on.

Spark takes the first part of ``t._row_id`` for a column if there is one of that name, and only then for an alias. So
the target goes by an alias that no column of the table has, and staged rows bring their columns by place, not by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparkport.catalog.ddl import MERGE_COLUMNS
from sparkport.errors import Unsupported
from sparkport.lakehouse.iceberg.lineage import Ids
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.spark.sql import quoted

__all__ = [
    "DELETED_COUNT",
    "IS_DELETED",
    "MERGED_ID",
    "UPDATED_COUNT",
    "merge_sql",
    "merged_column",
]

UPDATED_COUNT = "spark.merge-into.num-target-rows-updated"
DELETED_COUNT = "spark.merge-into.num-target-rows-deleted"

MERGED_ID = "row_id"
IS_DELETED = "is_deleted"
"""A column of staged rows that says which are to be deleted, where a statement also updates others."""

_COPY = "copy-on-write"
_MOST_COPIED = 10_000


def merged_column(place: int) -> str:
    """What the column of a staged row is called: a name of the table's own could be in the way of another."""
    return f"c{place}"


def merge_sql(
    target: str, view: str, current: TableVersion, ids: Ids, *, names: Sequence[str] | None, deletes: bool
) -> str:
    """``names`` are the columns to set in rows that are updated, None if none are; ``deletes`` if rows are deleted.

    The rows of ``view`` bring their ids, ``IS_DELETED`` where both happens, and the values of ``names`` by place.
    """
    columns = current.columns.declared.names
    if taken := [name for name in columns if name.casefold() in MERGE_COLUMNS]:
        raise Unsupported(f"column '{taken[0]}' has a name that Spark uses in a MERGE: rename it to change rows")
    t, s = _unused("t", columns), _unused("s", columns)
    predicate = current.bounds_predicate(ids, t)
    make = _merging
    if current.properties.get("write.merge.mode", _COPY) == _COPY:
        if len(ids) > _MOST_COPIED:
            raise Unsupported(
                f"table '{current.name[1]}' is copy-on-write, where a statement can change {_MOST_COPIED} rows "
                "at most: set its property 'write.merge.mode' to 'merge-on-read'"
            )
        make = _copying
    using, on, clauses = make(view, names, predicate, deletes=deletes, t=t, s=s)
    return f"MERGE INTO {target} {t} USING {using} {s} ON {on} {' '.join(clauses)}"


def _merging(
    view: str, names: Sequence[str] | None, predicate: str, *, deletes: bool, t: str, s: str
) -> tuple[str, str, list[str]]:
    on = f"{t}._row_id = {s}.{MERGED_ID}" + (f" AND {predicate}" if predicate else "")
    clauses = []
    if deletes:
        clauses.append(f"WHEN MATCHED{_and(names, f'{s}.{IS_DELETED}')} THEN DELETE")
    if names is not None:
        change = ", ".join(f"{t}.{quoted(name)} = {s}.{merged_column(at)}" for at, name in enumerate(names))
        clauses.append(f"WHEN MATCHED THEN UPDATE SET {change}")
    return view, on, clauses


def _copying(
    view: str, names: Sequence[str] | None, predicate: str, *, deletes: bool, t: str, s: str
) -> tuple[str, str, list[str]]:
    """For copy-on-write, where Spark takes no row id in the condition: all changes in one row, as a map by row id."""
    both = [IS_DELETED] if deletes and names is not None else []
    values = ", ".join([*both, *(merged_column(at) for at in range(len(names or ())))]) or "true"
    source = f"SELECT map_from_entries(collect_list(struct({MERGED_ID}, struct({values})))) AS changes FROM {view}"
    here, change = f"map_contains_key({s}.changes, {t}._row_id)", f"{s}.changes[{t}._row_id]"
    clauses = []
    if deletes:
        clauses.append(f"WHEN MATCHED AND {here}{_and(names, f'{change}.{IS_DELETED}')} THEN DELETE")
    if names is not None:
        sets = ", ".join(f"{t}.{quoted(name)} = {change}.{merged_column(at)}" for at, name in enumerate(names))
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
