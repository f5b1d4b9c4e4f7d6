"""The rows that the versions of a table have changed, by row lineage: Iceberg's v3 keeps a row's id when it is written
anew, and with it which commit changed the row last.

Of each version only the files are read that the one before it does not have, and of those only the rows that it has
deleted or brought. A row that is in both with the same last commit has merely moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.catalog.casting import decoded
from sparkport.catalog.changes import ChangeKind, change_columns, changes_schema
from sparkport.catalog.context import CallContext
from sparkport.catalog.row_ids import ROW_ID
from sparkport.catalog.scan import AsOf, AsOfUnit, Scan, ScanRequest
from sparkport.errors import Cancelled, Conflict, FailedPrecondition, InvalidArgument, VersionNotFound
from sparkport.lakehouse.iceberg.lineage import NO_IDS, Ids, ascending, positions_in
from sparkport.lakehouse.iceberg.plan import SnapshotPlan, plan
from sparkport.lakehouse.iceberg.snapshot_diff import Place, SnapshotDiff, compare, lineage_at, only_moved
from sparkport.lakehouse.iceberg.version_numbers import Version, number_of, versions
from sparkport.lakehouse.scan.history import version_at
from sparkport.lakehouse.scan.read import HeldSnapshots, RowStream
from sparkport.lakehouse.scan.version import TableVersion

__all__ = ["TableChanges"]

_NUMBER = re.compile("[0-9]{1,19}")  # of the longer ones, int() does not even take all


@dataclass(frozen=True, slots=True)
class _Step:
    """A version, and the snapshots before and after it."""

    number: int
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True, eq=False)
class _Differences:
    """Ids of rows, ascending, by what has become of them."""

    deleted: Ids
    updated: Ids
    inserted: Ids


class TableChanges:
    """What the versions after ``start``, up to and with ``end``, have changed in a table. ``newest`` is the table."""

    def __init__(self, newest: TableVersion, start: AsOf, end: AsOf | None) -> None:
        self._newest = newest
        self._metadata = newest.metadata
        if not newest.has_row_ids:
            raise FailedPrecondition(
                f"table '{newest.table.name}' is of format v{newest.format_version}, which has no row ids: its changes "
                f"cannot be told; upgrade it with 'sparkport table upgrade {newest.table}'"
            )
        self._known = {version.number: version for version in versions(newest.metadata)}
        first, _ = self._found(start)
        last, self._end = (self._number(newest, "now"), newest) if end is None else self._found(end)
        if first > last:
            raise InvalidArgument(f"changes from version {first} to {last}: the first is later than the last")
        self._steps = self._between(first, last)
        self._held: HeldSnapshots | None = None
        self._stream: RowStream | None = None
        self._closed = False

    @property
    def schema(self) -> pa.Schema:
        return changes_schema(self._end.columns.declared)

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        """The snapshots are held while the rows are on their way."""
        source = self._newest.loader
        ids = {item for step in self._steps for item in (step.before, step.after) if item is not None}
        self._held = source.reader.hold(self._newest.uuid, ids)
        return Scan(self._batches(ctx, request), close=self._close)

    def _close(self) -> None:
        """May be called by another thread than the one that reads."""
        self._closed = True
        if self._held is not None:
            self._held.close()
        if self._stream is not None:
            self._stream.close()

    # Versions

    def _found(self, asked: AsOf) -> tuple[int, TableVersion]:
        """The number of a version, and the table as it was then."""
        if asked.unit is AsOfUnit.VERSION and _NUMBER.fullmatch(asked.value) is not None:
            known = self._known.get(int(asked.value))
            if known is not None and self._keeps(known):
                return known.number, replace(self._newest, snapshot=(known.snapshot_id,), schema_id=known.schema_id)
        version = version_at(self._newest, asked)
        return self._number(version, str(asked)), version

    def _number(self, version: TableVersion, asked: str) -> int:
        """An older metadata file has a number of its own; what the newest says of older versions goes by snapshot."""
        number = number_of(version.metadata) if version.snapshot is None else None
        if version.snapshot is not None:
            same = [known for known in self._known.values() if known.snapshot_id == version.snapshot[0]]
            alike = [known.number for known in same if known.schema_id == version.schema_id]
            number = next(iter([*alike, *(known.number for known in same)]), None)
        if number is None and version.snapshot is not None and self._is_on_a_branch(version.snapshot[0]):
            raise InvalidArgument(
                f"table '{self._newest.table.name}': {asked} is not among the table's own versions, but on a branch of "
                "it; changes are told between versions of the table itself"
            )
        if number is None:
            raise VersionNotFound(
                f"table '{self._newest.table.name}': nobody knows the number of {asked}, because others have expired "
                "what came before it"
            )
        return number

    def _is_on_a_branch(self, snapshot_id: int | None) -> bool:
        """Whether a branch leads to a snapshot that the table itself has never been at."""
        metadata = self._metadata
        was_here = {entry.get("snapshot-id") for entry in metadata.snapshot_log}
        was_here |= {snapshot.id for snapshot in metadata.ancestors(metadata.main_snapshot_id)}
        branches = [ref.get("snapshot-id") for ref in metadata.refs.values() if ref.get("type") == "branch"]
        return snapshot_id not in was_here and any(
            snapshot_id == snapshot.id for tip in branches for snapshot in metadata.ancestors(tip)
        )

    def _between(self, first: int, last: int) -> list[_Step]:
        if first == last:
            return []
        missing = [number for number in range(first, last + 1) if not self._keeps(self._known.get(number))]
        if missing:
            left = missing[-1] + 1
            hint = f"; changes can be told from version {left} on" if left <= last else ""
            raise VersionNotFound(
                f"table '{self._newest.table.name}': version {missing[0]} has expired or is not known{hint}"
            )
        ordered = [self._known[number] for number in range(first, last + 1)]
        return [_Step(later.number, earlier.snapshot_id, later.snapshot_id) for earlier, later in pairwise(ordered)]

    def _keeps(self, version: Version | None) -> bool:
        """Whether the rows of a version, and what its columns were, have not been cleaned away."""
        if version is None:
            return False
        there = version.snapshot_id is None or self._metadata.has_snapshot(version.snapshot_id)
        return there and version.schema_id in self._metadata.schemas

    # Rows

    def _batches(self, ctx: CallContext, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        columns = self._end.columns
        names = [name for name in columns.declared.names if request.selects(name)]
        for step in self._steps:
            ctx.check()
            for kinds, batch in self._step(ctx, step, names):
                if batch.num_rows:
                    yield self._shown(step, names, kinds, batch)

    def _shown(self, step: _Step, names: Sequence[str], kinds: pa.Array, batch: pa.RecordBatch) -> pa.RecordBatch:
        kind, row_id, version = change_columns(self._end.columns.declared.names)
        wanted = self.schema
        fields = [wanted.field(name) for name in (kind, row_id, version, *names)]
        arrays = [kinds, batch.column(ROW_ID), pa.repeat(pa.scalar(step.number, pa.int64()), batch.num_rows)]
        told = map(decoded, batch.columns[: len(names)])
        return pa.RecordBatch.from_arrays([*arrays, *told], schema=pa.schema(fields))

    def _step(self, ctx: CallContext, step: _Step, names: Sequence[str]) -> Iterator[tuple[pa.Array, pa.RecordBatch]]:
        if step.before == step.after or only_moved(self._metadata, step.before, step.after):
            return
        fs = self._newest.loader.files
        before, after = (plan(fs, self._metadata, snapshot) for snapshot in (step.before, step.after))
        diff = compare(fs, before, after)
        whole = all(place.positions is None for place in (*diff.before, *diff.after))
        if whole and not (diff.before and diff.after):  # rows were only added, or files only dropped
            yield from self._rows(before, diff.before, names, ids=None, updated=NO_IDS, old=True)
            yield from self._rows(after, diff.after, names, ids=None, updated=NO_IDS, old=False)
            return
        next_id, rows = int(self._metadata.json.get("next-row-id", 0)), self._newest.loader.reader.ways.window_rows
        for window in _windows(diff, next_id, rows):
            ctx.check()
            found = self._compared(diff, window)
            gone, come = ascending(found.deleted, found.updated), ascending(found.inserted, found.updated)
            yield from self._rows(before, diff.before, names, ids=gone, updated=found.updated, old=True)
            yield from self._rows(after, diff.after, names, ids=come, updated=found.updated, old=False)

    def _compared(self, diff: SnapshotDiff, window: tuple[int, int] | None) -> _Differences:
        old_ids, old_commits = self._lineage(diff.before, window)
        new_ids, new_commits = self._lineage(diff.after, window)
        places = positions_in(new_ids, old_ids)
        there = places >= 0
        changed = new_commits[places[there]] != old_commits[there]
        return _Differences(
            deleted=old_ids[~there],
            updated=old_ids[there][changed],
            inserted=new_ids[positions_in(old_ids, new_ids) < 0],
        )

    def _lineage(self, places: Sequence[Place], window: tuple[int, int] | None) -> tuple[Ids, Ids]:
        """Ids, ascending, and commits."""
        parts: list[tuple[Ids, Ids]] = []
        for place in places:
            for ids, commits in lineage_at(self._newest.loader.files, place):
                if len(ids) and int(ids.min()) < 0:
                    raise FailedPrecondition("this version has rows without row ids: their changes cannot be told")
                if window is not None:
                    inside = (ids >= window[0]) & (ids < window[1])
                    ids, commits = ids[inside], commits[inside]
                parts.append((ids, commits))
        all_ids = np.concatenate([NO_IDS, *(ids for ids, _ in parts)])
        all_commits = np.concatenate([NO_IDS, *(commits for _, commits in parts)])
        order = np.argsort(all_ids, kind="stable")
        all_ids, all_commits = all_ids[order], all_commits[order]
        if len(all_ids) > 1 and bool(np.any(all_ids[1:] == all_ids[:-1])):
            raise FailedPrecondition(
                f"table '{self._newest.table.name}' has two rows with the same row id, which some writer has made: "
                "its changes cannot be told"
            )
        return all_ids, all_commits

    def _rows(
        self,
        snapshot: SnapshotPlan,
        places: Sequence[Place],
        names: Sequence[str],
        *,
        ids: Ids | None,
        updated: Ids,
        old: bool,
    ) -> Iterator[tuple[pa.Array, pa.RecordBatch]]:
        """Rows at some places by their ids, or all of them, in the columns of the end, with what became of each."""
        if not places or (ids is not None and not len(ids)):
            return
        one, two = (
            (ChangeKind.DELETE, ChangeKind.UPDATE_BEFORE) if old else (ChangeKind.INSERT, ChangeKind.UPDATE_AFTER)
        )
        rows, count = self._end.published_rows, 0
        files = tuple(place.file for place in places)
        chosen = SnapshotPlan(snapshot.snapshot_id, snapshot.schema_id, snapshot.sequence_number, files)
        self._stream = stream = rows.stored_in(chosen, names, row_ids=ids)
        if self._closed:
            raise Cancelled("the scan was cancelled")
        with closing(stream):
            for batch in rows.columns.as_declared(stream, names):
                found = batch.column(batch.schema.get_field_index(ROW_ID))
                if found.null_count:
                    raise FailedPrecondition("this version has rows without row ids: their changes cannot be told")
                is_update = positions_in(updated, found.to_numpy()) >= 0
                count += batch.num_rows
                yield _kinds(is_update, one, two), batch
        if ids is not None and count != len(ids):
            raise Conflict(
                f"table '{self._newest.table.name}': rows of a version are gone that its metadata has: "
                "its files were removed while they were read"
            )


def _kinds(is_update: NDArray[np.bool_], one: ChangeKind, two: ChangeKind) -> pa.Array:
    words = pa.array([one.value, two.value], pa.string())
    return words.take(pa.array(is_update.astype(np.int8)))


def _windows(diff: SnapshotDiff, next_id: int, rows: int) -> Iterator[tuple[int, int] | None]:
    """Ranges of row ids that are compared one after the other, so that memory stays bounded; None for all at once."""
    places = (*diff.before, *diff.after)
    parts = -(-sum(place.rows for place in places) // rows)
    if parts < 2:
        yield None
        return
    bounds = [place.file.row_id_bounds or (0, next_id) for place in places]
    low, high = min(pair[0] for pair in bounds), max(pair[1] for pair in bounds) + 1
    yield from pairwise(low + (high - low) * part // parts for part in range(parts + 1))
