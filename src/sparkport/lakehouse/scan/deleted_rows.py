"""Rows that a query over files brings although they were deleted, or are to be left out, taken out of its batches.

A join in the query would lose the order of the rows, and it is the order that makes the taking out cheap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.deletes import deleted_positions
from sparkport.lakehouse.iceberg.lineage import ids_of, places_of
from sparkport.lakehouse.scan.direct import removed
from sparkport.lakehouse.scan.query import KEY_SHIFT, Group, Request

__all__ = ["DeletedRows", "renamed"]


def renamed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not len(schema):
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, type=pa.struct([])))
    return pa.RecordBatch.from_arrays(batch.columns[: len(schema)], schema=schema)


class DeletedRows:
    """Takes the deleted rows, and those that are to be left out, out of the batches of one group."""

    def __init__(self, fs: FileSystem, request: Request, group: Group) -> None:
        self._fs = fs
        self._files = group.files
        self._without = request.without
        self._numbers = [number for number, file in enumerate(group.files) if file.deletes]
        self._key = len(request.names) if group.has_deletes else None

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keep = None
        if self._key is not None and batch.num_rows:
            keep = self._not_deleted(batch.column(self._key).to_numpy(zero_copy_only=False))
        if self._without is not None:
            ids = ids_of(batch.column(batch.num_columns - 1))
            keep = np.ones(len(ids), np.bool_) if keep is None else keep
            keep[places_of(self._without, ids)] = False
        if keep is None or keep.all():
            return batch
        return removed(batch, np.flatnonzero(~keep))

    def _not_deleted(self, keys: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """True for the rows to keep, None for all. ``keys`` ascend as long as DuckDB keeps its promise about order."""
        if bool(np.any(keys[1:] < keys[:-1])):
            order = np.argsort(keys)
            sorted_keep = self._not_deleted(keys[order])
            if sorted_keep is None:
                return None
            keep = np.empty(len(keys), dtype=np.bool_)
            keep[order] = sorted_keep
            return keep
        first, last = int(keys[0]) >> KEY_SHIFT, int(keys[-1]) >> KEY_SHIFT
        kept: NDArray[np.bool_] | None = None
        for number in self._numbers[bisect_left(self._numbers, first) : bisect_right(self._numbers, last)]:
            start, end = np.searchsorted(keys, [number << KEY_SHIFT, (number + 1) << KEY_SHIFT])
            rows = keys[start:end] - (number << KEY_SHIFT)
            if not len(rows):
                continue
            gone = deleted_positions(self._fs, self._files[number])
            gone = gone[np.searchsorted(gone, rows[0]) : np.searchsorted(gone, rows[-1], "right")]
            if len(gone):
                kept = np.ones(len(keys), dtype=np.bool_) if kept is None else kept
                kept[start:end] = ~np.isin(rows, gone, assume_unique=True)
        return kept
