"""The whole numbers that a file has in a column: files never change, so who looks for keys reads the column once.

Numbers that lie close together are a bit each, as keys that a sequence gave out; others are an array in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.files import local_path
from sparkport.lakehouse.iceberg.lineage import positions_in
from sparkport.lakehouse.iceberg.manifests import DataFile
from sparkport.lakehouse.iceberg.row_groups import FIELD_ID, footer_of

__all__ = ["are_in_files"]

Numbers = NDArray[np.int64]

_CACHED_BYTES = 128 << 20
_MOST_BYTES = _CACHED_BYTES // 2
"""Of one look: more would push itself out of the cache, and cost as much the next time."""

_MOST_FILES = 256
_DENSE = 16
"""As many bits for each number take less than half the array."""

_MOST_BITS = 1 << 27


@dataclass(frozen=True, slots=True, eq=False)
class _Bits:
    low: int
    bits: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes

    def has(self, numbers: Numbers) -> NDArray[np.bool_]:
        inside = (numbers >= self.low) & (numbers < self.low + 8 * len(self.bits))
        places = np.where(inside, numbers, self.low) - self.low
        found: NDArray[np.bool_] = inside & ((self.bits[places >> 3] >> (places & 7).astype(np.uint8)) & 1 == 1)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Ascending:
    numbers: Numbers

    @property
    def nbytes(self) -> int:
        return self.numbers.nbytes

    def has(self, numbers: Numbers) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = positions_in(self.numbers, numbers) >= 0
        return found


_files: BoundedCache[tuple[str, int, int], _Bits | _Ascending | None] = BoundedCache(
    _CACHED_BYTES, weigh=lambda found: 200 if found is None else 200 + found.nbytes, name="keys"
)


def are_in_files(files: Sequence[DataFile], field_id: int, numbers: Numbers) -> NDArray[np.bool_] | None:
    """Which of these numbers, in ascending order, a column of the files has; None where that is not worth knowing.

    Rows that were deleted since count as well.
    """
    sizes = [_size(file, field_id) for file in files]
    known = [size for size in sizes if size is not None]
    if len(known) < len(files) or len(files) > _MOST_FILES or sum(known) > _MOST_BYTES:
        return None
    found = np.zeros(len(numbers), np.bool_)
    for file in files:
        there = _files.get((file.path, file.size, field_id), partial(_read, file, field_id))
        if there is None:
            return None
        low, high = _bounds(file, field_id) or (0, 0)
        first, last = np.searchsorted(numbers, low), np.searchsorted(numbers, high, "right")
        found[first:last] |= there.has(numbers[first:last])
    return found


def _bounds(file: DataFile, field_id: int) -> tuple[int, int] | None:
    lower, upper = file.lower_bounds.get(field_id), file.upper_bounds.get(field_id)
    if lower is None or upper is None:
        return None
    # A file from before the column was made wider has bounds of four bytes.
    return int.from_bytes(lower, "little", signed=True), int.from_bytes(upper, "little", signed=True)


def _is_dense(file: DataFile, bounds: tuple[int, int]) -> bool:
    return bounds[1] - bounds[0] < min(_DENSE * file.record_count, _MOST_BITS)


def _size(file: DataFile, field_id: int) -> int | None:
    """The bytes that its numbers take in memory, None for a file that is not read here."""
    bounds = _bounds(file, field_id)
    if bounds is None or file.format != "parquet" or local_path(file.path) is None:
        return None
    return (bounds[1] - bounds[0]) // 8 + 1 if _is_dense(file, bounds) else 8 * file.record_count


def _read(file: DataFile, field_id: int) -> _Bits | _Ascending | None:
    """None for a file that does not have the column as plain numbers, or not as its manifest says."""
    footer, bounds = footer_of(file), _bounds(file, field_id)
    if footer is None or bounds is None:
        return None
    names = [field.name for field in footer.schema if (field.metadata or {}).get(FIELD_ID) == b"%d" % field_id]
    if len(names) != 1 or "." in names[0] or footer.schema.field(names[0]).type not in (pa.int32(), pa.int64()):
        return None
    low, high = bounds
    is_there = np.zeros(high - low + 1, np.bool_) if _is_dense(file, bounds) else None
    parts: list[Numbers] = []
    try:
        with pq.ParquetFile(str(local_path(file.path)), metadata=footer.metadata) as source:
            for batch in source.iter_batches(1 << 20, columns=names):
                numbers = pc.drop_null(batch.column(0)).to_numpy(zero_copy_only=False).astype(np.int64)
                if len(numbers) and (int(numbers.min()) < low or int(numbers.max()) > high):
                    return None
                if is_there is None:
                    parts.append(numbers)
                else:
                    is_there[numbers - low] = True
    except (pa.ArrowException, OSError):
        return None  # whoever reads the rows says what is wrong with it
    if is_there is not None:
        return _Bits(low, np.packbits(is_there, bitorder="little"))
    return _Ascending(np.sort(np.concatenate([np.empty(0, np.int64), *parts])))
