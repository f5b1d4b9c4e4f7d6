"""What is left of a change set on the table as it is: row lineage shows which rows others have changed or deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkport.errors import Conflict, NotFound, RowNotFound, rows_changed
from sparkport.lakehouse.iceberg.lineage import Ids, Lineage, ascending, changed_since
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.write.change_set import ChangeSet

__all__ = ["Decision", "check_reads", "decide", "read_lineages"]


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The rows that a change set changes."""

    updated: Ids
    deleted: Ids

    @property
    def rows(self) -> int:
        return len(self.updated) + len(self.deleted)


def read_lineages(
    changes: Iterable[ChangeSet], versions: Mapping[TableName, TableVersion | None]
) -> dict[TableName, Lineage]:
    """The lineage of all rows that change sets name, in the tables as they are: once per table, where it is needed."""
    named: dict[TableName, tuple[TableVersion, list[Ids]]] = {}
    for change in changes:
        current = versions[change.base.table]
        if current is not None and current.uuid == change.base.uuid and _needs_lineage(change, current):
            ids = (current.rows.resolve(change.updated), current.rows.resolve(change.deleted))
            named.setdefault(current.table, (current, []))[1].extend(ids)
    return {table: current.rows.lineage(ascending(*ids)) for table, (current, ids) in named.items()}


def _needs_lineage(change: ChangeSet, current: TableVersion) -> bool:
    """Rows that were pinned in the table as it is are all there, unchanged."""
    same = current.snapshot_id == change.base.snapshot_id and current.revision == change.base.revision
    return change.changes_rows and not (change.pinned and same)


def decide(change: ChangeSet, current: TableVersion | None, lineages: Mapping[TableName, Lineage]) -> Decision:
    """Raises Conflict where another was first. ``lineages`` are what ``read_lineages`` has read."""
    base = change.base
    if current is None:
        raise NotFound(f"table '{base.table.name}' has been dropped")
    if current.uuid != base.uuid or not current.columns.takes_rows_of(base.columns):
        raise Conflict(f"table '{base.table.name}' has been altered; run the statement again")
    if change.pinned and not current.metadata.descends_from(base.snapshot_id, base.sequence_number):
        raise Conflict(f"table '{base.table.name}' has been rolled back; run the statement again")
    if not _needs_lineage(change, current):
        return Decision(change.updated, change.deleted)
    named = ascending(change.updated, change.deleted)
    if change.pinned and len(unknown := current.rows.unknown(named)):
        # The transaction has seen these rows. That they cannot be found does not mean that they are gone.
        raise Conflict(
            f"table '{base.table.name}': {len(unknown):,} rows were new when this transaction read them, and it is too "
            "long ago to tell where they are; run it again"
        )
    if len(untold := current.rows.untold(named)):
        raise Conflict(
            f"table '{base.table.name}': {len(untold):,} rows were new when they were read, and have got other ids; "
            "run the statement again"
        )
    lineage = lineages[base.table]
    updated, deleted = ascending(current.rows.resolve(change.updated)), ascending(current.rows.resolve(change.deleted))
    if not change.pinned:
        left = Decision(lineage.present(updated), lineage.present(deleted))
        if change.complete and left.rows < len(change.updated) + len(change.deleted):
            named = ascending(updated, deleted)
            raise RowNotFound(int(named[~lineage.has(named)][0]))
        return left
    updated_since, update_gone = changed_since(updated, lineage, base.sequence_number, base.revision)
    deleted_since, delete_gone = changed_since(deleted, lineage, base.sequence_number, base.revision)
    lost = len(updated_since) + len(update_gone) + len(deleted_since)
    if change.returned:
        lost += len(delete_gone)
    if lost:
        raise rows_changed(base.table.name, lost)
    return Decision(updated, lineage.present(deleted))


def check_reads(
    reads: Mapping[TableName, TableVersion | None], versions: Mapping[TableName, TableVersion | None]
) -> None:
    """Under serializable, a table that was read must be as it was; compaction leaves it so."""
    for table, seen in reads.items():
        current = versions[table]
        if seen is None and current is None:
            continue
        if seen is None or current is None or not current.same_rows_as(seen):
            raise Conflict(f"table '{table.name}' was read by this transaction and has been changed since")
