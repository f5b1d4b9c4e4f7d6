"""Which rows are in small files that hold row ids of their own: those that a change of few rows leaves behind.

Bounds do not tell them apart, for each may hold rows from all over the table. Their ids are few and never change, so
they are kept in memory: who looks for a row opens the one file that has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkport.errors import SparkportError
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.deletes import deleted_positions
from sparkport.lakehouse.iceberg.lineage import Ids, filled, ids_of, positions_in
from sparkport.lakehouse.iceberg.manifests import ROW_ID_FIELD, SEQUENCE_FIELD, DataFile
from sparkport.lakehouse.iceberg.row_groups import FIELD_ID

__all__ = ["SmallFile", "holding", "small_file"]

_MOST_ROWS = 1 << 16
_MOST_BYTES = 8 << 20
_CACHED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, eq=False)
class SmallFile:
    """Ids of the rows in a file, which ascend, the rows' positions in it, and the numbers of their last commits."""

    ids: Ids
    positions: Ids
    commits: Ids

    def find(self, fs: FileSystem, file: DataFile, row_ids: Ids) -> tuple[Ids, Ids]:
        """Ids and commits of those of the rows that are there and not deleted."""
        places = positions_in(self.ids, row_ids)
        places = places[places >= 0]
        if file.deletes and len(places):
            places = places[positions_in(deleted_positions(fs, file), self.positions[places]) < 0]
        return self.ids[places], self.commits[places]


_files: BoundedCache[tuple[FileSystem, str, int | None, int], SmallFile | None] = BoundedCache(
    _CACHED_BYTES, weigh=lambda found: 200 if found is None else 200 + 3 * int(found.ids.nbytes)
)


def small_file(fs: FileSystem, file: DataFile) -> SmallFile | None:
    """None for a file that is large, has no ids of its own, or cannot be read: its readers say why."""
    if (
        file.record_count > _MOST_ROWS
        or file.size > _MOST_BYTES
        or file.derives_row_ids
        or file.equality_deletes
        or file.format != "parquet"
    ):
        return None
    try:
        key = (fs, file.path, file.first_row_id, file.sequence_number)
        return _files.get(key, lambda: _read(fs, file))
    except (pa.ArrowException, OSError, SparkportError):
        return None


def holding(fs: FileSystem, files: Iterable[DataFile], row_ids: Ids) -> list[DataFile]:
    """Those of the files that may hold one of these rows; deleted ones count."""
    kept = []
    for file in files:
        known = small_file(fs, file)
        if known is None or bool(np.any(positions_in(known.ids, row_ids) >= 0)):
            kept.append(file)
    return kept


def _read(fs: FileSystem, file: DataFile) -> SmallFile | None:
    with fs.open(file.path) as opened:
        source = pq.ParquetFile(opened)
        names = {int((field.metadata or {}).get(FIELD_ID, b"-1")): field.name for field in source.schema_arrow}
        wanted = {field: names[field] for field in (ROW_ID_FIELD, SEQUENCE_FIELD) if field in names}
        if source.metadata.num_rows != file.record_count or any("." in name for name in wanted.values()):
            return None
        table = source.read(columns=list(wanted.values()))
    count, first = file.record_count, file.first_row_id
    positions = np.arange(count, dtype=np.int64)
    written = {field: _whole(table.column(name)) for field, name in wanted.items()}
    ids = filled(written.get(ROW_ID_FIELD), None if first is None else first + positions, count)
    made_by = None if first is None else np.full(count, file.sequence_number, np.int64)
    commits = filled(written.get(SEQUENCE_FIELD), made_by, count)
    known = pc.is_valid(ids).to_numpy(zero_copy_only=False)
    numbers = ids_of(ids)[known]
    order = np.argsort(numbers, kind="stable")
    if len(order) > 1 and bool(np.any(np.diff(numbers[order]) == 0)):
        return None  # a row is there twice, which is nothing to rely on
    changed = pc.fill_null(commits, 0).to_numpy(zero_copy_only=False)
    return SmallFile(numbers[order], positions[known][order], changed[known][order])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.int64()), *column.cast(pa.int64()).chunks])
