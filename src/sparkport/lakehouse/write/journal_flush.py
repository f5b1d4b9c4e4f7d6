"""Entries of the journal on their way into the tables: one change set per table, and what is remembered afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from sparkport.lakehouse.catalogs.database import Work
from sparkport.lakehouse.catalogs.journal_records import JournalRecords
from sparkport.lakehouse.catalogs.journal_state import Flush, TableJournal
from sparkport.lakehouse.catalogs.pointers import Edit, JournalMoved
from sparkport.lakehouse.columns.types import stored_type
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.lineage import Ids, positions_in
from sparkport.lakehouse.iceberg.manifests import DataFile, read_manifest, read_manifest_list
from sparkport.lakehouse.iceberg.metadata import Snapshot, TableMetadata
from sparkport.lakehouse.journal.net import (
    GONE,
    UNTOLD,
    Net,
    RowChange,
    applied,
    flush_body,
    lost_among,
    moved,
    net_of,
    require_known,
)
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.spark.staging import StagedRows, Staging
from sparkport.lakehouse.write.change_set import ChangeSet, changed_rows_schema
from sparkport.lakehouse.write.new_rows import staged_new_rows

__all__ = ["JournalFlush", "TablePart", "as_table"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TablePart:
    """What is applied to one table: the entries that ``journal`` has."""

    version: TableVersion
    journal: TableJournal

    @property
    def net(self) -> Net:
        return require_known(self.journal)

    @property
    def rows(self) -> int:
        return int(np.count_nonzero(self.net.changes != RowChange.UNDONE))

    def foreign_changes(self) -> tuple[int, int]:
        """How many of the rows others have changed past the journal since they came into it, and how many deleted."""
        net, version = self.net, self.version
        sequences = {entry.revision: entry.sequence for entry in self.journal.entries}
        if not len(net.hidden) or not self._was_changed_since(min(sequences.values())):
            return 0, 0
        changed = np.isin(net.ids, net.hidden)
        ids = net.ids[changed]
        since = np.array([sequences[revision] for revision in net.revisions[changed].tolist()], np.int64)
        lineage = version.published_rows.lineage(ids)
        places = positions_in(lineage.ids, ids)
        there = places >= 0
        commits = lineage.commits[places[there]]
        ours = np.zeros(len(commits), np.bool_)
        for flush in self.journal.flushes:
            ours |= (commits >= flush.first_sequence) & (commits <= flush.last_sequence)
        return int(np.count_nonzero((commits > since[there]) & ~ours)), int(np.count_nonzero(~there))

    def _was_changed_since(self, sequence: int) -> bool:
        """Whether others than compaction and flushes have made snapshots."""
        metadata = self.version.metadata
        for snapshot in metadata.ancestors(metadata.main_snapshot_id):
            number = snapshot.sequence_number
            if number <= sequence:
                return False
            by_flush = any(flush.first_sequence <= number <= flush.last_sequence for flush in self.journal.flushes)
            if snapshot.operation != "replace" and not by_flush:
                return True
        return False

    def change_set(self, staging: Staging) -> ChangeSet:
        """Whoever asks discards the rows. A row that others have deleted stays so: nothing is pinned."""
        net, fields = self.net, self.version.columns.fields
        names = tuple(str(field["name"]) for field in fields)
        types = [stored_type(field["type"]) for field in fields]
        inserted, updated = net.changes == RowChange.INSERTED, net.changes == RowChange.UPDATED
        deleted = net.changes == RowChange.DELETED
        inserts = changes = None
        try:
            if bool(inserted.any()):
                inserts = staged_new_rows(staging, self.version)
                _stage(inserts, net.values(fields, names, inserted))
            if bool(updated.any() or deleted.any()):
                with_values = bool(updated.any())
                changes = staging.new(changed_rows_schema(types if with_values else []))
                changed = updated | deleted
                values = net.values(fields, names, changed) if with_values else []
                _stage(changes, [pa.array(net.ids[changed]), pa.array(deleted[changed]), *values])
        except BaseException:
            for rows in (inserts, changes):
                if rows is not None:
                    rows.discard()
            raise
        return ChangeSet(
            base=self.version,
            inserts=inserts,
            changes=changes,
            columns=names if bool(updated.any()) else (),
            updated=net.ids[updated],
            deleted=net.ids[deleted],
            pinned=False,
        )


def _stage(rows: StagedRows, columns: Sequence[pa.Array]) -> None:
    rows.append(pa.RecordBatch.from_arrays(list(columns), schema=rows.schema))
    rows.finish()


class JournalFlush:
    """Implements ``Flushing``. ``failures`` are the tables that it fails for, with the reasons."""

    def __init__(self, files: FileSystem, parts: Mapping[TableName, TablePart]) -> None:
        self.failures: dict[TableName, BaseException] = {}
        self._files = files
        self._parts = parts

    def failed(self, table: TableName, why: BaseException) -> None:
        self.failures.setdefault(table, why)

    def part(self, records: JournalRecords, edits: Sequence[Edit]) -> Callable[[Work], None]:
        by_table = {edit.table: edit for edit in edits}
        now = records.clock()
        flushes = {table: self._flush(part, by_table.get(table), now) for table, part in self._parts.items()}

        def write(work: Work) -> None:
            view, revision = records.advance(work)
            for table, part in self._parts.items():
                now = view.by_uuid.get(part.journal.uuid)
                if now is None or now.flushed != part.journal.flushed or now.table != table:
                    raise JournalMoved(table)
                self._move_later(records, work, now, flushes[table])
                records.flush(work, now, flushes[table], revision)

        return write

    def _move_later(self, records: JournalRecords, work: Work, journal: TableJournal, flush: Flush) -> None:
        """Entries that came meanwhile name rows as they were: from now on by the ids that are published.

        JournalMoved, so that Spark does it again, if one of those rows cannot be told by its id.
        """
        later = [entry for entry in journal.entries if entry.revision > flush.flushed]
        flushes = applied(replace(journal, flushes=(*journal.flushes, flush))) if later else []
        entries = [moved(entry, flushes) for entry in later]
        if len(lost_among(entries)):
            raise JournalMoved(journal.table)
        for before, entry in zip(later, entries, strict=True):
            if entry is not before:
                records.move(work, journal, entry)

    def _flush(self, part: TablePart, edit: Edit | None, now: float) -> Flush:
        net = part.net
        made = [] if edit is None else _made(edit)
        row_ids = np.where(net.changes == RowChange.UPDATED, net.ids, GONE)
        inserted = net.changes == RowChange.INSERTED
        if bool(inserted.any()):
            try:
                row_ids[inserted] = self._new_ids(part, made, int(np.count_nonzero(inserted)))
            except Exception as exc:
                self.failed(part.version.table, exc)
                raise
        at = part.version.sequence_number
        first, last = (made[0].sequence_number, made[-1].sequence_number) if made else (at + 1, at)
        snapshot = made[-1].id if made else part.version.snapshot_id
        body = flush_body(net.ids, row_ids, net.revisions, snapshot=snapshot)
        return Flush(part.journal.last, first, last, now, body)

    def _new_ids(self, part: TablePart, made: Sequence[Snapshot], count: int) -> Ids:
        """What ids new rows have got: they are in one file, in their order."""
        for snapshot in made:
            added = [
                file
                for entry in read_manifest_list(self._files, snapshot.manifest_list)
                if entry.get("added_snapshot_id") == snapshot.id
                for file in read_manifest(self._files, entry)
                if isinstance(file, DataFile) and file.sequence_number == snapshot.sequence_number
            ]
            if len(added) == 1 and added[0].record_count == count and added[0].first_row_id is not None:
                return np.arange(added[0].first_row_id, added[0].first_row_id + count, dtype=np.int64)
            break  # a second snapshot has changed rows
        logger.warning("new rows of '%s' cannot be told by the ids that they had in the journal", part.version.table)
        return np.full(count, UNTOLD, np.int64)


def _made(edit: Edit) -> list[Snapshot]:
    """The snapshots that are published, oldest first."""
    after, before = TableMetadata(edit.after), TableMetadata(edit.before or {"snapshots": []})
    made: list[Snapshot] = []
    for snapshot in after.ancestors(after.main_snapshot_id):
        if snapshot.id == before.main_snapshot_id:
            break
        made.insert(0, snapshot)
    return made


def as_table(part: TableJournal) -> pa.Table:
    """The rows of a table that is gone, with what was to happen to each."""
    net = net_of(part)
    segments = [segment.take(pa.array(_within(net, number))) for number, segment in enumerate(net.segments)]
    kinds = {int(change): change.name.lower() for change in RowChange}
    order = np.argsort(net.places, kind="stable")
    head = pa.table(
        {
            "row_id": pa.array(net.ids[order]),
            "change": pa.array([kinds[int(change)] for change in net.changes[order]]),
        }
    )
    values = pa.concat_tables([_named(segment) for segment in segments], promote_options="permissive")
    for place, name in enumerate(values.schema.names):
        head = head.append_column(f"_{name}" if name in ("row_id", "change") else name, values.column(place))
    return head


def _within(net: Net, number: int) -> Ids:
    start = sum(segment.num_rows for segment in net.segments[:number])
    end = start + net.segments[number].num_rows
    places = np.sort(net.places)
    within: Ids = places[(places >= start) & (places < end)] - start
    return within


def _named(segment: pa.Table) -> pa.Table:
    names = [(field.metadata or {}).get(b"name", field.name.encode()).decode() for field in segment.schema]
    return segment.rename_columns(names)
