"""Columns that small reads have decoded, kept for who asks next."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.lakehouse.cache import BoundedCache

__all__ = ["kept_batches", "weight"]

_KEPT_BYTES = 64 << 20
_ENTRY_BYTES = 1 << 10


def weight(column: pa.Array) -> int:
    """With what keeping it takes besides. One that would push out many others is not kept."""
    size = int(column.get_total_buffer_size()) + _ENTRY_BYTES
    return size if size <= _KEPT_BYTES // 8 else sys.maxsize


_columns: BoundedCache[tuple[object, ...], pa.Array] = BoundedCache(_KEPT_BYTES, weigh=weight, name="columns")


def kept_batches(
    source: pq.ParquetFile,
    key: tuple[str, int],
    groups: range,
    names: Sequence[str],
    *,
    repeating: Sequence[str],
    rows: int,
) -> Iterator[pa.RecordBatch]:
    """Row groups whose columns are kept for who asks next: those who change a row have mostly looked it up before.

    A row group is one batch or is not kept: on its way out a part of a column would take bytes of the others along.
    """
    for group in groups:
        arrays = None
        if source.metadata.row_group(group).num_rows <= rows:
            arrays = _kept_columns(source, (*key, group), group, names, repeating=repeating)
        if arrays is None:
            yield from source.iter_batches(rows, row_groups=[group], columns=list(names), use_threads=False)
        else:
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))


def _kept_columns(
    source: pq.ParquetFile, key: tuple[object, ...], group: int, names: Sequence[str], *, repeating: Sequence[str]
) -> list[pa.Array] | None:
    """None where a column is too large to be one array."""
    roots = {path.partition(".")[0] for path in repeating}
    keys = {name: (*key, name, name in roots) for name in names}
    missing = [name for name in names if keys[name] not in _columns]
    read = source.read_row_group(group, columns=missing, use_threads=False) if missing else None
    if read is not None and any(column.num_chunks > 1 for column in read.columns):
        return None

    def column(name: str) -> pa.Array:
        found = read
        if found is None or name not in missing:  # it was there a moment ago
            found = source.read_row_group(group, columns=[name], use_threads=False)
        return found.column(name).combine_chunks()

    return [_columns.get(keys[name], partial(column, name)) for name in names]
