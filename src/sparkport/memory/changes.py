"""What the commits of a memory table have changed, read off its segments: rows that each has made, and has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from sparkport.catalog.casting import decoded
from sparkport.catalog.changes import ChangeKind, TableCommit, changes_schema
from sparkport.catalog.ddl import SetNotNull
from sparkport.catalog.evolve import evolve_batch
from sparkport.memory.data import Commit, Definition, TableData
from sparkport.memory.rows import Place, gather

__all__ = ["changes_between", "commits_of", "evolved"]


def commits_of(table: TableData) -> list[TableCommit]:
    commits = []
    for version, commit in enumerate(list(table.commits)):
        if commit.is_alteration:
            operation = "alter" if version else "create"
            commits.append(TableCommit(version=version, operation=operation, committed=commit.time))
            continue
        made, ended = _made(table, commit), _ended(table, commit)
        updated = len(made.keys() & ended.keys())
        inserted, deleted = len(made) - updated, len(ended) - updated
        rows = table.at(commit.number).rows.segments(commit.number)
        alive = [(segment.batch.num_rows, segment.alive(commit.number)) for segment in rows]
        commits.append(
            TableCommit(
                version=version,
                operation=_operation(commit, made=bool(made), ended=bool(ended)),
                committed=commit.time,
                authors=None if commit.author is None else (commit.author,),
                inserted=inserted,
                updated=updated,
                deleted=deleted,
                rows=sum(count if left is None else len(left) for count, left in alive),
                transactions=() if commit.transaction is None else (commit.transaction,),
                statements=() if commit.statement is None else (commit.statement,),
            )
        )
    return commits


def _operation(commit: Commit, *, made: bool, ended: bool) -> str:
    if commit.is_rollback:
        return "rollback"
    return "append" if not ended else "overwrite" if made else "delete"


def changes_between(table: TableData, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Changes of the commits after ``first``, up to and with ``last``, in the columns of the last."""
    schema = changes_schema(table.at(last).columns)
    for version, commit in enumerate(list(table.commits)):
        if commit.is_alteration or not first < commit.number <= last:
            continue
        made, ended = _made(table, commit), _ended(table, commit)
        sides = (
            (ended, made, ChangeKind.DELETE, ChangeKind.UPDATE_BEFORE),
            (made, ended, ChangeKind.INSERT, ChangeKind.UPDATE_AFTER),
        )
        for places, others, alone, update in sides:
            if places:
                kinds = [(update if row_id in others else alone).value for row_id in places]
                rows = _rows(table, commit.number, last, places.values())
                arrays = [
                    pa.array(kinds),
                    pa.array(list(places), pa.int64()),
                    pa.array([version] * len(places), pa.int64()),
                ]
                yield pa.RecordBatch.from_arrays([*arrays, *map(decoded, rows.columns)], schema=schema)


def _made(table: TableData, commit: Commit) -> dict[int, Place]:
    """The rows that a commit has made, new ones and new versions of old ones, by their ids."""
    return {
        row_id: (segment, offset)
        for segment in table.at(commit.number).rows.segments(commit.number)
        if segment.created == commit.number
        for offset, row_id in enumerate(segment.ids().to_pylist())
    }


def _ended(table: TableData, commit: Commit) -> dict[int, Place]:
    """The rows that a commit has taken away, or put another version in the place of."""
    return {
        segment.ids()[offset].as_py(): (segment, offset)
        for segment in table.at(commit.number).rows.segments(commit.number)
        for offset, ended in sorted(segment.ended.copy().items())
        if ended == commit.number
    }


def _rows(table: TableData, commit: int, last: int, places: Iterable[Place]) -> pa.RecordBatch:
    """Rows as the table's columns are at ``last``."""
    return evolved(table, gather(list(places), table.at(commit).columns), since=commit, until=last)


def evolved(table: TableData, rows: pa.RecordBatch, *, since: int, until: int) -> pa.RecordBatch:
    """Rows of one commit in the columns of a later one."""
    for later in _later(table, table.at(since), until):
        # A row that is gone may have a NULL where there must be none since.
        if later.change is not None and not isinstance(later.change, SetNotNull):
            rows = evolve_batch(rows, later.change, later.columns)
    return rows


def _later(table: TableData, definition: Definition, last: int) -> Iterator[Definition]:
    return (item for item in table.definitions if definition.since < item.since <= last)
