"""How much memory values take once each row has its own: dictionaries, views and nulls say much with few bytes.

A dictionary of one text of ten megabytes and a million rows that refer to it is a small message, and ten terabytes when
it is made into plain text. What is to be made is estimated before it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from sparkport.errors import ResourceExhausted

__all__ = [
    "MAX_EXPANDED_BYTES",
    "cuts",
    "expanded_bytes",
    "expands",
    "has_views",
    "null_bytes",
    "require_room",
    "view_bytes",
]

MAX_EXPANDED_BYTES: Final = 256 * 1024 * 1024

_NULL_BYTES: Final = 16  # of what a null of no type is made into, whatever that is

_OFFSET_BYTES: Final = 4  # of a list or a text, besides what is in it

_VIEWS = (types.is_string_view, types.is_binary_view)
_LIST_VIEWS = (types.is_list_view, types.is_large_list_view)
_LISTS = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_map)


def require_room(size: int) -> None:
    if size > MAX_EXPANDED_BYTES:
        raise ResourceExhausted(
            f"a batch would take {size} bytes, at most {MAX_EXPANDED_BYTES} are taken: send fewer rows at once"
        )


def null_bytes(data_type: Any) -> int:
    """What a row of nulls, or of a default, takes at least; texts count as references."""
    if isinstance(data_type, pa.BaseExtensionType):
        return null_bytes(data_type.storage_type)
    if types.is_fixed_size_list(data_type):
        return int(data_type.list_size) * null_bytes(data_type.value_type)
    if types.is_struct(data_type):
        return sum(null_bytes(field.type) for field in data_type) + 1
    try:
        return int(data_type.bit_width) // 8 + 1
    except ValueError:
        return 8


def expands(data_type: Any) -> bool:
    """Whether a value of the type may take less than it stands for."""
    if isinstance(data_type, pa.BaseExtensionType):
        return expands(data_type.storage_type)
    if (
        types.is_dictionary(data_type)
        or types.is_null(data_type)
        or any(check(data_type) for check in (*_VIEWS, *_LIST_VIEWS))
    ):
        return True
    return any(expands(data_type.field(index).type) for index in range(data_type.num_fields))


def has_views(data_type: Any) -> bool:
    if isinstance(data_type, pa.BaseExtensionType):
        return has_views(data_type.storage_type)
    if types.is_dictionary(data_type):
        return has_views(data_type.value_type)
    return any(check(data_type) for check in _VIEWS) or any(
        has_views(data_type.field(index).type) for index in range(data_type.num_fields)
    )


def view_bytes(column: Any) -> int:
    """What has to be looked at to check the texts of a column: each view's, as often as it is there. Nothing but the
    number of rows needs to have been checked before."""
    data_type = column.type
    if isinstance(data_type, pa.BaseExtensionType):
        return view_bytes(column.storage)
    if types.is_dictionary(data_type):
        return view_bytes(column.dictionary)
    if any(check(data_type) for check in _VIEWS):
        return _view_bytes(column)
    if types.is_struct(data_type):
        return sum(view_bytes(column.field(index)) for index in range(data_type.num_fields))
    return view_bytes(column.values) if data_type.num_fields and hasattr(column, "values") else 0


def expanded_bytes(column: Any) -> int:
    """What the values of a column take when each stands for itself; about right for lists, exact for texts."""
    data_type = column.type
    if isinstance(data_type, pa.BaseExtensionType):
        return expanded_bytes(column.storage)
    if types.is_null(data_type):
        return len(column) * _NULL_BYTES
    if types.is_dictionary(data_type):
        return _dictionary_bytes(column)
    if any(check(data_type) for check in _VIEWS):
        return _view_bytes(column)
    if any(check(data_type) for check in _LIST_VIEWS):
        return int(pc.sum(pc.list_value_length(column)).as_py() or 0) * _largest(column.values)
    if types.is_struct(data_type):
        return sum(expanded_bytes(column.field(index)) for index in range(data_type.num_fields))
    if any(check(data_type) for check in _LISTS):
        return expanded_bytes(column.values) if expands(data_type) else int(column.nbytes)
    return int(column.nbytes)


def _dictionary_bytes(column: Any) -> int:
    values = column.dictionary
    if _has_lengths(values.type):
        return int(pc.sum(pc.take(pc.binary_length(values), column.indices)).as_py() or 0)
    return len(column) * _largest(values)


def _view_bytes(column: Any) -> int:
    """Each view is 16 bytes; the first four are its length."""
    views = np.frombuffer(column.buffers()[1], np.int32)[::4] if len(column) else np.empty(0, np.int32)
    lengths = views[column.offset : column.offset + len(column)].astype(np.int64)
    return int(lengths[column.is_valid().to_numpy(zero_copy_only=False)].sum())


def _largest(values: Any) -> int:
    """What the largest of some values takes; if that is not known, what all of them take."""
    if not len(values):
        return 0
    if _has_lengths(values.type):
        return int(pc.max(pc.binary_length(values)).as_py() or 0) + 8
    if types.is_primitive(values.type) or types.is_fixed_size_binary(values.type):
        return null_bytes(values.type)
    return expanded_bytes(values)


def _has_lengths(data_type: Any) -> bool:
    return bool(
        types.is_string(data_type)
        or types.is_large_string(data_type)
        or types.is_binary(data_type)
        or types.is_large_binary(data_type)
    )


def cuts(columns: Sequence[pa.Array], limit: int) -> Iterator[tuple[int, int]]:
    """Where to begin and how many rows to take, so that no part of the texts, dictionaries, lists, structs and maps
    among these columns takes more than ``limit`` bytes when it is decoded, unless one row does."""
    rows = len(columns[0]) if columns else 0
    nested = [column for column in columns if column.type.num_fields]
    numbered = [column for column in columns if types.is_dictionary(column.type)]
    texts = [column for column in columns if _has_lengths(column.type)]
    uneven = [*nested, *numbered, *texts]
    size = sum(column.nbytes for column in texts)
    if nested:
        size += sum(map(expanded_bytes, [*nested, *numbered]))
    else:
        size += rows * sum(_largest(column.dictionary) for column in numbered)
    if rows and size <= limit:
        yield 0, rows
        return
    counts = np.arange(1, rows + 1, dtype=np.int64)
    ends = sum((_ends(column, counts) for column in uneven), np.zeros(rows, np.int64))
    start = 0
    while start < rows:
        before = int(ends[start - 1]) if start else 0
        end = max(int(np.searchsorted(ends, before + limit, "right")), start + 1)
        yield start, end - start
        start = end


def _ends(column: Any, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much so many first values of a column take, for each of some ``counts``: there may be very many items for few
    rows."""
    data_type = column.type
    if types.is_dictionary(data_type) and _has_lengths(data_type.value_type):
        lengths = pc.fill_null(pc.take(pc.binary_length(column.dictionary), column.indices), 0)
        return _before(np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64), counts)
    if types.is_struct(data_type):
        return sum((_ends(column.field(index), counts) for index in range(data_type.num_fields)), counts)
    if any(check(data_type) for check in (types.is_list, types.is_large_list, types.is_map)):
        offsets = column.offsets.to_numpy()
        first = int(offsets[0])
        items = column.values.slice(first, int(offsets[-1]) - first)
        return _ends(items, offsets[counts].astype(np.int64) - first) + counts * _OFFSET_BYTES
    if _has_lengths(data_type):
        lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        return _before(np.cumsum(lengths, dtype=np.int64), counts) + counts * _OFFSET_BYTES
    each = _largest(column.dictionary) if types.is_dictionary(data_type) else null_bytes(data_type)
    return counts * each


def _before(ends: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    if not len(ends):
        return np.zeros_like(counts)
    return np.where(counts > 0, ends[counts - 1], 0)
