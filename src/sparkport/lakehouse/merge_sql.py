"""MERGE by row id: the SQL that makes Spark change just the rows that were decided on."""

from __future__ import annotations

from collections.abc import Sequence, Set

from sparkport.errors import Unsupported
from sparkport.lakehouse.snapshot import TableVersion
from sparkport.lakehouse.spark_sql import quoted

__all__ = ["DELETED_COUNT", "IS_DELETED", "MERGED_ID", "UPDATED_COUNT", "merge_sql"]

UPDATED_COUNT = "spark.merge-into.num-target-rows-updated"
DELETED_COUNT = "spark.merge-into.num-target-rows-deleted"

MERGED_ID = "sparkport_row_id"
IS_DELETED = "sparkport_is_deleted"
"""A column of staged rows that says which are to be deleted, where a statement also updates others."""

_COPY = "copy-on-write"
_MOST_COPIED = 10_000


def merge_sql(
    target: str, view: str, current: TableVersion, ids: Set[int], *, names: Sequence[str] | None, deletes: bool
) -> str:
    """``names`` are the columns to set in rows that are updated, None if none are; ``deletes`` if rows are deleted.

    The rows of ``view`` bring their ids, and ``IS_DELETED`` where both happens.
    """
    predicate = current.bounds_predicate(ids, "t")
    if current.properties.get("write.merge.mode", _COPY) == _COPY:
        if len(ids) > _MOST_COPIED:
            raise Unsupported(
                f"table '{current.name[1]}' is copy-on-write, where a statement can change {_MOST_COPIED} rows "
                "at most: set its property 'write.merge.mode' to 'merge-on-read'"
            )
        return _copying(target, view, names, predicate, deletes)
    return _merging(target, view, names, predicate, deletes)


def _merging(target: str, view: str, names: Sequence[str] | None, predicate: str, deletes: bool) -> str:
    on = f"t._row_id = s.{quoted(MERGED_ID)}" + (f" AND {predicate}" if predicate else "")
    clauses = []
    if deletes:
        clauses.append(f"WHEN MATCHED{_and(names, f's.{quoted(IS_DELETED)}')} THEN DELETE")
    if names is not None:
        change = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in names)
        clauses.append(f"WHEN MATCHED THEN UPDATE SET {change}")
    return f"MERGE INTO {target} t USING {view} s ON {on} {' '.join(clauses)}"


def _copying(target: str, view: str, names: Sequence[str] | None, predicate: str, deletes: bool) -> str:
    """For copy-on-write, where Spark takes no row id in the condition: all changes in one row, as a map by row id."""
    both = [IS_DELETED] if deletes and names is not None else []
    values = ", ".join(quoted(name) for name in [*both, *(names or ())]) or "true"
    source = (
        f"SELECT map_from_entries(collect_list(struct({quoted(MERGED_ID)}, struct({values})))) AS changes FROM {view}"
    )
    here = "map_contains_key(s.changes, t._row_id)"
    clauses = []
    if deletes:
        doomed = f"s.changes[t._row_id].{quoted(IS_DELETED)}"
        clauses.append(f"WHEN MATCHED AND {here}{_and(names, doomed)} THEN DELETE")
    if names is not None:
        change = ", ".join(f"t.{quoted(name)} = s.changes[t._row_id].{quoted(name)}" for name in names)
        clauses.append(f"WHEN MATCHED AND {here} THEN UPDATE SET {change}")
    return f"MERGE INTO {target} t USING ({source}) s ON {predicate or 'true'} {' '.join(clauses)}"


def _and(names: Sequence[str] | None, condition: str) -> str:
    return "" if names is None else f" AND {condition}"
