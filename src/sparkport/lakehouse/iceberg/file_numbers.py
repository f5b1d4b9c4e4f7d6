"""The whole numbers that a file has in a column: files never change, so who looks for keys reads the column once.

Numbers that lie close together are a bit each, as keys that a sequence gave out; others are an array in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import TypeAlias

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
_MOST_BYTES = _CACHED_BYTES // 4
"""Of one look: tables that push each other out of the cache would be read as a whole each time."""

_MOST_FILES = 256
_DENSE = 16
"""As many bits for each number take less than half the array."""

_MOST_BITS = 1 << 27
_FEW_ROWS = 1 << 17
"""About a row group: there is none to leave out."""

_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


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


_Key: TypeAlias = tuple[str, int, int, tuple[int, int]]
_files: BoundedCache[_Key, _Bits | _Ascending | None] = BoundedCache(
    _CACHED_BYTES, weigh=lambda found: 200 if found is None else 200 + found.nbytes, name="keys"
)


def are_in_files(
    files: Sequence[DataFile],
    field_id: int,
    numbers: Numbers,
    *,
    most_bytes: int = _MOST_BYTES,
    few_rows: int = _FEW_ROWS,
) -> NDArray[np.bool_] | None:
    """Which of these numbers, in ascending order, a column of the files has; None where that is not worth knowing.

    Rows that were deleted since count as well. ``most_bytes`` is what may be kept of the files, and one of ``few_rows``
    is read whatever is asked for.
    """
    known = [(file, _bounds(file, field_id)) for file in files[: _MOST_FILES + 1]]
    looks = [(file, bounds) for file, bounds in known if bounds is not None and local_path(file.path) is not None]
    if len(looks) < len(files) or len(files) > _MOST_FILES or sum(starmap(_size, looks)) > most_bytes:
        return None
    if not all(_is_worth_it(file, field_id, bounds, numbers, few_rows) for file, bounds in looks):
        return None
    found = np.zeros(len(numbers), np.bool_)
    for file, (low, high) in looks:
        key = (file.path, file.size, field_id, (low, high))
        try:
            there = _files.get(key, partial(_read, file, field_id, low, high))
        except (pa.ArrowException, OSError):
            return None  # whoever reads the rows says what is wrong with it
        if there is None:
            return None
        first, last = np.searchsorted(numbers, low), np.searchsorted(numbers, high, "right")
        found[first:last] |= there.has(numbers[first:last])
    return found


def _is_worth_it(file: DataFile, field_id: int, bounds: tuple[int, int], numbers: Numbers, few_rows: int) -> bool:
    """Not where most of the file's row groups are ruled out anyway: that costs less than to read its whole column."""
    if (file.path, file.size, field_id, bounds) in _files or file.record_count <= few_rows:
        return True
    footer = footer_of(file)
    if footer is None or not len(numbers):
        return False
    met = 0
    for group in footer.row_groups(file, [field_id]).files:
        low, high = _bounds(group, field_id) or bounds
        met += group.record_count if low <= numbers[-1] and high >= numbers[0] else 0
    return 2 * met >= file.record_count


def _bounds(file: DataFile, field_id: int) -> tuple[int, int] | None:
    lower, upper = file.lower_bounds.get(field_id), file.upper_bounds.get(field_id)
    if lower is None or upper is None or file.format != "parquet":
        return None
    # A file from before the column was made wider has bounds of four bytes.
    low, high = (int.from_bytes(bound, "little", signed=True) for bound in (lower, upper))
    return (low, high) if _LEAST <= low <= high <= _GREATEST else None


def _is_dense(file: DataFile, bounds: tuple[int, int]) -> bool:
    return bounds[1] - bounds[0] < min(_DENSE * file.record_count, _MOST_BITS)


def _size(file: DataFile, bounds: tuple[int, int]) -> int:
    """The bytes that its numbers take in memory."""
    return (bounds[1] - bounds[0]) // 8 + 1 if _is_dense(file, bounds) else 8 * file.record_count


def _read(file: DataFile, field_id: int, low: int, high: int) -> _Bits | _Ascending | None:
    """None for a file that does not have the column as plain numbers, or not as its manifest says."""
    footer = footer_of(file)
    if footer is None:
        raise FileNotFoundError(file.path)
    fields = [field for field in footer.schema if (field.metadata or {}).get(FIELD_ID) == b"%d" % field_id]
    names = [field.name for field in fields]
    if len(fields) != 1 or "." in names[0] or fields[0].type not in (pa.int32(), pa.int64()):
        return None
    if footer.schema.names.count(names[0]) > 1:
        return None
    is_there = np.zeros(high - low + 1, np.bool_) if _is_dense(file, (low, high)) else None
    parts: list[Numbers] = []
    with pq.ParquetFile(str(local_path(file.path)), metadata=footer.metadata) as source:
        for batch in source.iter_batches(1 << 20, columns=names):
            numbers = pc.drop_null(batch.column(0)).to_numpy(zero_copy_only=False).astype(np.int64)
            if len(numbers) and (int(numbers.min()) < low or int(numbers.max()) > high):
                return None
            if is_there is None:
                parts.append(numbers)
            else:
                is_there[numbers - low] = True
    if is_there is not None:
        return _Bits(low, np.packbits(is_there, bitorder="little"))
    return _Ascending(np.sort(np.concatenate([np.empty(0, np.int64), *parts])))
