"""What happens to one table: the rows, staged as Parquet, and the ids of those that they change.

A statement or a transaction's net change yields change sets. The committer decides what is left of them on the table as
it is, and an applier makes that happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from sparkport.errors import InternalError
from sparkport.lakehouse.columns.columns import Json
from sparkport.lakehouse.columns.types import spark_type
from sparkport.lakehouse.iceberg.lineage import NO_IDS, Ids, ascending
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.spark.sql import quoted
from sparkport.lakehouse.spark.staging import StagedRows, Staging

__all__ = [
    "CHANGED_ID",
    "ChangeSet",
    "IS_DELETED",
    "TablePlan",
    "changed_column",
    "changed_rows_schema",
    "new_rows_schema",
    "spark_schema",
    "widened",
]

CHANGED_ID = "row_id"
IS_DELETED = "is_deleted"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChangeSet:
    """``base`` is the version that the rows were fitted to.

    ``inserts`` are new rows, ``changes`` those that take the place of others, with the values of ``columns``, or say
    that they are deleted. ``updated`` and ``deleted`` are their ids, each once and ascending. Where the change set is
    ``pinned``, these rows are in ``base``, and it is a conflict if others have changed them since; deleted ones may be
    gone by now, unless they were ``returned`` to the client. Where it is not, rows are changed as they are, and
    ``complete`` demands that all are there. ``new_ids`` are those that new rows get in the journal, if clients were
    told of them.
    """

    base: TableVersion
    inserts: StagedRows | None = None
    changes: StagedRows | None = None
    columns: tuple[str, ...] = ()
    updated: Ids = field(default_factory=lambda: NO_IDS)
    deleted: Ids = field(default_factory=lambda: NO_IDS)
    pinned: bool = True
    complete: bool = False
    returned: bool = False
    new_ids: Ids | None = None

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in (self.inserts, self.changes) if rows is not None)

    def finish(self) -> None:
        """All rows where Spark can read them."""
        for rows in (self.inserts, self.changes):
            if rows is not None:
                rows.finish()

    def with_current_ids(self, current: TableVersion, staging: Staging) -> ChangeSet:
        """The same for rows that have other ids by now: those that were new in the journal have got Iceberg's."""
        updated, deleted = current.rows.resolve(self.updated), current.rows.resolve(self.deleted)
        if self.changes is None or (updated is self.updated and deleted is self.deleted):
            return self
        changes = staging.new(self.changes.schema)
        for batch in self.changes.batches():
            ids = pa.array(current.rows.resolve(batch.column(CHANGED_ID).to_numpy()))
            changes.append(batch.set_column(0, batch.schema.field(0), ids))
        self.changes.discard()
        return replace(self, changes=changes, updated=ascending(updated), deleted=ascending(deleted))

    def names_moved_rows(self, current: TableVersion) -> bool:
        """Whether its staged rows have ids that are not those of the table any more."""
        return any(not np.array_equal(current.rows.resolve(ids), ids) for ids in (self.updated, self.deleted))

    @property
    def inserted(self) -> int:
        return 0 if self.inserts is None else self.inserts.rows

    @property
    def is_for_spark(self) -> bool:
        """Whether it takes Spark to make it happen; a table that has become another one may need it all the same."""
        return self.changes is not None or (self.inserts is not None and self.inserts.is_for_spark)

    def discard(self) -> None:
        """The staged rows; safe to repeat."""
        for rows in (self.inserts, self.changes):
            if rows is not None:
                rows.discard()

    @property
    def changes_rows(self) -> bool:
        return bool(len(self.updated) or len(self.deleted))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TablePlan:
    """What one commit does to one table: change sets that do not meet, decided on ``version``.

    ``updated`` and ``deleted`` are the rows that there are of those that the change sets name. ``timeout`` is how long
    to wait for Spark. ``alone`` says that the commit changes no other table and no transaction's state, and depends on
    no table that was read. ``in_order``: new rows are few, and go into one file as they come.
    """

    version: TableVersion
    change_sets: tuple[ChangeSet, ...]
    columns: tuple[str, ...]
    updated: Ids
    deleted: Ids
    statements: tuple[str, ...]
    transactions: tuple[str, ...]
    timeout: float | None
    alone: bool
    in_order: bool = False
    authors: tuple[str, ...] = ()

    @property
    def table(self) -> TableName:
        return self.version.table

    @property
    def inserted(self) -> int:
        return sum(change.inserted for change in self.change_sets)

    @property
    def changed(self) -> int:
        return len(self.updated) + len(self.deleted)

    def changes_the_same(self, other: TablePlan) -> bool:
        """Whether it does just the same to the table, if that is the same."""
        return (
            self.change_sets == other.change_sets
            and np.array_equal(self.updated, other.updated)
            and np.array_equal(self.deleted, other.deleted)
        )


def changed_column(place: int) -> str:
    """What the column of a staged row is called: a name of the table's own could be in the way of another."""
    return f"c{place}"


def new_rows_schema(names: Iterable[str], types: Iterable[pa.DataType]) -> pa.Schema:
    """Rows that are appended bring their columns by name."""
    return pa.schema([pa.field(name, type_) for name, type_ in zip(names, types, strict=True)])


def changed_rows_schema(types: Iterable[pa.DataType]) -> pa.Schema:
    """Rows that change others bring the id, whether the row is deleted, and their columns by place."""
    body = (pa.field(changed_column(place), type_) for place, type_ in enumerate(types))
    return pa.schema([pa.field(CHANGED_ID, pa.int64()), pa.field(IS_DELETED, pa.bool_()), *body])


def spark_schema(fields: Iterable[Json], *, by_place: bool) -> str:
    """The same in Spark's DDL, for rows that are appended or change others."""
    return ", ".join(_spark_columns(fields, by_place))


def _spark_columns(fields: Iterable[Json], by_place: bool) -> Iterator[str]:
    if by_place:
        yield f"{CHANGED_ID} bigint"
        yield f"{IS_DELETED} boolean"
    for place, column in enumerate(fields):
        name = changed_column(place) if by_place else quoted(str(column["name"]))
        yield f"{name} {spark_type(column['type'])}"


def widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows that are deleted bring no values. Nothing is cast, which Arrow would do, and lose digits by it."""
    names = batch.schema.names
    columns = [batch.column(f.name) if f.name in names else pa.nulls(len(batch), f.type) for f in schema]
    if [column.type for column in columns] != schema.types:
        raise InternalError("staged rows that are to go together are of other types")
    return pa.RecordBatch.from_arrays(columns, schema=schema)
