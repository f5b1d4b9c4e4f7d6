"""What two snapshots of a table do not share: files that only one of them has, and positions that only one has deleted.

Snapshots share nearly all of their files, so this costs what lies between them and not what the table holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.errors import FailedPrecondition, InternalError, NotFound, Unsupported, VersionNotFound
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.deletes import Positions, deleted_positions
from sparkport.lakehouse.iceberg.lineage import Ids, filled, ids_of, positions_in
from sparkport.lakehouse.iceberg.manifests import ROW_ID_FIELD, SEQUENCE_FIELD, DataFile
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.plan import SnapshotPlan
from sparkport.lakehouse.iceberg.row_groups import FIELD_ID

__all__ = ["Place", "SnapshotDiff", "compare", "lineage_at", "only_moved"]


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A data file as one snapshot has it, and which of its rows only that snapshot shows; None: all that it shows."""

    file: DataFile
    positions: Positions | None = None

    @property
    def rows(self) -> int:
        """How many, at most."""
        return self.file.record_count if self.positions is None else len(self.positions)


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotDiff:
    """Rows that moved to another place are in both."""

    before: tuple[Place, ...]
    after: tuple[Place, ...]


def only_moved(metadata: TableMetadata, before: int | None, after: int | None) -> bool:
    """Whether the way from one snapshot to a later one writes the same rows to other files, as compaction does."""
    for snapshot in metadata.ancestors(after):
        if snapshot.id == before:
            return True
        if snapshot.operation != "replace":
            return False
    return False


def compare(fs: FileSystem, before: SnapshotPlan, after: SnapshotPlan) -> SnapshotDiff:
    """Raises Unsupported or FailedPrecondition for what cannot be told apart by row lineage."""
    old = {file.path: file for file in before.files}
    gone: list[Place] = []
    come: list[Place] = []
    for file in after.files:
        earlier = old.pop(file.path, None)
        if earlier is None:
            come.append(Place(_told(file)))
        elif earlier is not file and earlier.deletes != file.deletes:
            # A file from before an upgrade to v3 has got its row ids since.
            _told(file)
            if earlier.first_row_id is None:
                earlier = replace(earlier, first_row_id=file.first_row_id)
            hidden, shown = _positions(fs, _told(earlier), file)
            gone += [Place(earlier, hidden)] if len(hidden) else []
            come += [Place(file, shown)] if len(shown) else []
    gone += [Place(_told(file)) for file in old.values()]
    return SnapshotDiff(tuple(gone), tuple(come))


def _positions(fs: FileSystem, earlier: DataFile, later: DataFile) -> tuple[Positions, Positions]:
    """Positions that are deleted later and were not before, and the other way round."""
    old, new = deleted_positions(fs, earlier), deleted_positions(fs, later)
    return new[positions_in(old, new) < 0], old[positions_in(new, old) < 0]


def _told(file: DataFile) -> DataFile:
    if file.equality_deletes:
        raise Unsupported(
            "another engine has deleted rows by their values (equality deletes): Iceberg does not tell which rows "
            "these were, so the changes of this version cannot be told"
        )
    if file.format != "parquet":
        raise Unsupported(f"changes are read from Parquet files only: this version has files of format '{file.format}'")
    if file.first_row_id is None:
        raise FailedPrecondition(
            "this version has rows without row ids (they were written before the table was upgraded to format v3): "
            "their changes cannot be told"
        )
    return file


def lineage_at(fs: FileSystem, place: Place) -> Iterator[tuple[Ids, Ids]]:
    """Ids and last commits of the rows at a place, in parts."""
    file, first = place.file, place.file.first_row_id
    if first is None:
        raise InternalError("a file without row ids has no lineage")
    positions = _all_live(fs, file) if place.positions is None else place.positions
    if file.derives_row_ids:
        yield first + positions, np.full(len(positions), file.sequence_number, np.int64)
        return
    try:
        with fs.open(file.path) as opened:
            source = pq.ParquetFile(opened)
            names = {int((field.metadata or {}).get(FIELD_ID, b"-1")): field.name for field in source.schema_arrow}
            wanted = {field: names[field] for field in (ROW_ID_FIELD, SEQUENCE_FIELD) if field in names}
            start = 0
            for group in range(source.metadata.num_row_groups):
                end = start + source.metadata.row_group(group).num_rows
                low, high = np.searchsorted(positions, (start, end))
                if low < high:
                    here = positions[low:high]
                    table = source.read_row_group(group, columns=list(wanted.values()))
                    picked = {field: _picked(table.column(name), here - start) for field, name in wanted.items()}
                    ids = filled(picked.get(ROW_ID_FIELD), first + here, len(here))
                    made_by = np.full(len(here), file.sequence_number, np.int64)
                    commits = filled(picked.get(SEQUENCE_FIELD), made_by, len(here))
                    yield ids_of(ids), ids_of(commits)
                start = end
    except (NotFound, FileNotFoundError) as exc:
        raise VersionNotFound(f"a file of this version is gone: '{file.path.rpartition('/')[2]}'") from exc
    except (pa.ArrowException, OSError) as exc:
        raise InternalError(f"'{file.path}' cannot be read: {exc}") from exc


def _all_live(fs: FileSystem, file: DataFile) -> Positions:
    live = np.ones(file.record_count, np.bool_)
    if file.deletes:
        live[deleted_positions(fs, file)] = False
    return np.flatnonzero(live)


def _picked(column: pa.ChunkedArray, places: Positions) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.int64()), *column.cast(pa.int64()).take(pa.array(places)).chunks])
