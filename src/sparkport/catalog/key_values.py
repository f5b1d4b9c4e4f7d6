"""The values that rows have in a key's columns: which of them are there twice, and which other rows have them too.

Engines keep rows in their own ways and share this. A row with a NULL in the key meets no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkport.catalog.plain_values import plain_value, value_text
from sparkport.catalog.table import Key
from sparkport.errors import DuplicateKey

__all__ = ["KeyValues", "duplicate_key"]

_COUNT = "count_all"
_SHOWN = 100
_MANY_ROWS = 10_000


class KeyValues:
    """Columns are by place; their names do not matter."""

    def __init__(self, columns: Sequence[pa.ChunkedArray | pa.Array]) -> None:
        self._columns = [_plain(column) for column in columns]
        if any(column.null_count for column in self._columns):
            there = _all([column.is_valid() for column in self._columns])
            self._columns = [column.filter(there) for column in self._columns]
        self._numbers: _Numbers | None = None

    @classmethod
    def joined(cls, parts: Sequence[KeyValues]) -> KeyValues:
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part._columns for part in parts), strict=True)
        return cls([pa.chunked_array([c for p in same for c in p.chunks], same[0].type) for same in columns])

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def columns(self) -> Sequence[pa.ChunkedArray]:
        return self._columns

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self._columns)

    @property
    def comparing_bytes(self) -> int:
        """What ``repeated`` and ``places_in`` take besides, about: numbers are sorted, others put into hash tables."""
        return (
            self.nbytes if len(self._columns) == 1 and pa.types.is_integer(self._columns[0].type) else 2 * self.nbytes
        )

    def repeated(self) -> list[pa.Array] | None:
        """Values that are there twice, one of each column."""
        if len(self) < 2:
            return None
        if len(self._columns) == 1 and pa.types.is_integer(self._columns[0].type):
            return self._repeated_number()
        table = self._table()
        counted = table.group_by(table.column_names).aggregate([([], _COUNT)])
        more = counted.filter(pc.greater(counted.column(_COUNT), 1))
        columns = [more.column(name).slice(0, 1).combine_chunks() for name in table.column_names]
        return columns if more.num_rows else None

    def _repeated_number(self) -> list[pa.Array] | None:
        numbers = np.sort(self._columns[0].to_numpy())
        twice = np.flatnonzero(numbers[1:] == numbers[:-1])
        return [pa.array(numbers[twice[:1]], self._columns[0].type)] if len(twice) else None

    def places_in(self, columns: Sequence[pa.ChunkedArray | pa.Array]) -> pa.Array | None:
        """Which rows of these columns have values that are here, None for none."""
        if not len(self) or not len(columns[0]):
            return None
        theirs = [_plain(column) for column in columns]
        if len(theirs) == 1 and len(theirs[0]) > _MANY_ROWS and _are_numbers(theirs[0], self._columns[0]):
            return self._among_many(theirs[0])
        chosen = _all([pc.is_in(there, value_set=own) for there, own in zip(theirs, self._columns, strict=True)])
        places = pc.indices_nonzero(chosen)
        if len(theirs) > 1 and len(places):
            # Each of the values is here, but perhaps not in one row.
            named = pa.table([column.take(places) for column in theirs], names=_names(theirs))
            named = named.append_column("place", places)
            places = (
                named.join(self._table(), keys=_names(theirs), join_type="left semi").column("place").combine_chunks()
            )
        return places if len(places) else None

    def _among_many(self, theirs: pa.ChunkedArray) -> pa.Array | None:
        if self._numbers is None:
            self._numbers = _Numbers(self._columns[0].to_numpy())
        places = self._numbers.places_in(theirs.to_numpy())
        return pa.array(places, pa.uint64()) if len(places) else None

    def _table(self) -> pa.Table:
        return pa.table(self._columns, names=_names(self._columns))


class _Numbers:
    """Whole numbers to look for among many others, most of which are told by a bit: their slot is empty."""

    _SPREAD = np.uint64(0x9E3779B97F4A7C15)
    _SLOTS_PER_VALUE = 32
    _MOST_SLOTS = (1 << 26) - 1

    def __init__(self, values: NDArray[Any]) -> None:
        bits = min(len(values) * self._SLOTS_PER_VALUE, self._MOST_SLOTS).bit_length()
        self._shift = np.uint64(64 - bits)
        self._is_taken = np.zeros(1 << bits, np.bool_)
        self._is_taken[self._slots(values)] = True
        self._ascending = np.sort(values)

    def places_in(self, values: NDArray[Any]) -> NDArray[np.int64]:
        likely = np.flatnonzero(self._is_taken[self._slots(values)])
        nearest = np.minimum(np.searchsorted(self._ascending, values[likely]), len(self._ascending) - 1)
        places: NDArray[np.int64] = likely[self._ascending[nearest] == values[likely]]
        return places

    def _slots(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """By the upper bits of a product, in which numbers next to each other are far apart."""
        spread = values.astype(np.int64, copy=False).view(np.uint64) * self._SPREAD
        return (spread >> self._shift).view(np.int64)


def _are_numbers(theirs: pa.ChunkedArray, own: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_integer(own.type) and theirs.type == own.type and not theirs.null_count)


def duplicate_key(table: str, key: Key, values: Iterable[pa.Scalar]) -> DuplicateKey:
    shown = ", ".join(f"{name} = {_text(value)}" for name, value in zip(key.columns, values, strict=True))
    message = f"table '{table}': duplicate key ({shown}) violates {key}"
    return DuplicateKey(message, table=table, columns=key.columns, primary=key.primary)


def _text(value: pa.Scalar) -> str:
    plain = plain_value(value)
    is_quoted = isinstance(plain, str | bytes) and not pa.types.is_temporal(value.type)
    text = repr(plain) if is_quoted else value_text(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _names(columns: Sequence[object]) -> list[str]:
    return [f"k{place}" for place in range(len(columns))]


def _all(flags: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    result = flags[0]
    for other in flags[1:]:
        result = pc.and_(result, other)
    return result


def _plain(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    """As Arrow compares and joins it."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    plain = [_plain_array(chunk) for chunk in chunks]
    return pa.chunked_array(plain, plain[0].type if plain else _plain_array(pa.array([], column.type)).type)


def _plain_array(array: pa.Array) -> pa.Array:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string_view(array.type) or pa.types.is_large_string(array.type):
        return array.cast(pa.string())
    if pa.types.is_decimal32(array.type) or pa.types.is_decimal64(array.type):
        return array.cast(pa.decimal128(array.type.precision, array.type.scale))
    if pa.types.is_binary_view(array.type) or pa.types.is_large_binary(array.type):
        return array.cast(pa.binary())
    return array
