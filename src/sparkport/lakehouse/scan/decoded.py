"""How much room rows take once they are decoded, which a file's size does not tell: a text that a million rows have is
in a file once. Scans read as many rows at a time as take little of it, and the more of them run, the fewer.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.files import local_path
from sparkport.lakehouse.iceberg.manifests import DataFile
from sparkport.lakehouse.iceberg.row_groups import FIELD_ID, Footer, footer_of, read_footer

__all__ = ["Share", "bounded_batches", "file_row_bytes", "has_long_dictionary", "row_bytes"]

_ALL_BYTES: Final = 64 << 20  # decoded rows that all scans of a reader hold together
_LEAST_BYTES, _MOST_BYTES = 512 << 10, 8 << 20  # of one scan
_QUERY_BYTES: Final = 128 << 20  # what queries that run may hold besides, of rows that take much
_PEEK_ROWS: Final = 256
_UNEVEN: Final = 2  # by how much lists in a part of a file are longer than in all of it

_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


Place: TypeAlias = tuple[str, int]
"""A file's path, and its size."""


class Share:
    """What one scan may hold of decoded rows, while so many run. Called from all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scans = 0
        self._reserved = 0

    def enter(self) -> None:
        with self._lock:
            self._scans += 1

    def leave(self) -> None:
        with self._lock:
            self._scans -= 1

    def reserve(self, size: int) -> bool:
        """Room for a query that goes on while its reader does something else, until ``give_back``; False if there is
        none."""
        with self._lock:
            if self._reserved + size > _QUERY_BYTES:
                return False
            self._reserved += size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self._reserved -= size

    @property
    def scans(self) -> int:
        return self._scans

    @property
    def bytes(self) -> int:
        return max(_LEAST_BYTES, min(_MOST_BYTES, _ALL_BYTES // max(self._scans, 1)))


def row_bytes(place: Place, footer: Footer, group: int, *, names: Collection[str]) -> int:
    """What a row of a row group takes at most, about: texts of a dictionary count as its longest.

    ``names`` are columns by the names that the file has for them.
    """

    def add_up() -> int:
        chunks = footer.metadata.row_group(group)
        size = 0.0
        for number in range(chunks.num_columns):
            column = footer.metadata.schema.column(number)
            if column.path in names or column.path.partition(".")[0] in names:
                size += _chunk_bytes(place, footer, group, number)
        return max(int(size / max(chunks.num_rows, 1)), 1)

    return _group_bytes.get((*place, group, frozenset(names)), add_up)


def file_row_bytes(file: DataFile, field_ids: Collection[int]) -> int | None:
    """The most that a row of a file takes in some columns, about; None where only a reader of the file could tell."""

    def find() -> int | None:
        footer = footer_of(file)
        if footer is None:
            return None
        by_id = {int((field.metadata or {}).get(FIELD_ID, b"-1")): field.name for field in footer.schema}
        # A file of another tool may have no ids, and then any of its columns may be meant.
        names = {by_id[field_id] for field_id in field_ids if field_id in by_id} if -1 not in by_id else by_id.values()
        groups = range(footer.metadata.num_row_groups)
        return max((row_bytes((file.path, file.size), footer, group, names=set(names)) for group in groups), default=1)

    return _row_bytes.get((file.path, file.size, frozenset(field_ids)), find)


_group_bytes: BoundedCache[tuple[str, int, int, frozenset[str]], int] = BoundedCache(50_000)
_row_bytes: BoundedCache[tuple[str, int, frozenset[int]], int | None] = BoundedCache(50_000)


def _chunk_bytes(place: Place, footer: Footer, group: int, number: int) -> float:
    column, chunk = footer.metadata.schema.column(number), footer.metadata.row_group(group).column(number)
    values = chunk.num_values
    uneven = _UNEVEN if column.max_repetition_level else 1
    if chunk.physical_type != "BYTE_ARRAY":
        width = _WIDTHS.get(chunk.physical_type, column.length)
        return float(values * (width + 1) * uneven)
    size = chunk.total_uncompressed_size + 5 * values
    if not chunk.has_dictionary_page:
        return float(size * uneven)
    if has_long_dictionary(footer, group, number):
        size = max(size, values * _longest(place, footer, group, column.path))
    else:
        size = max(size, values * chunk.total_uncompressed_size)
    return float(size * uneven)


def has_long_dictionary(footer: Footer, group: int, number: int) -> bool:
    """Whether the texts of a column chunk could take much more than they take in the file."""
    chunk = footer.metadata.row_group(group).column(number)
    return bool(chunk.has_dictionary_page) and chunk.num_values * chunk.total_uncompressed_size > _LEAST_BYTES


_lengths: BoundedCache[tuple[str, int, int, str], int] = BoundedCache(200_000, name="dictionaries")


def _longest(place: Place, footer: Footer, group: int, path: str) -> int:
    """The longest text in the dictionary of a column chunk."""

    def read() -> int:
        with pq.ParquetFile(str(local_path(place[0])), metadata=footer.metadata, read_dictionary=[path]) as source:
            for batch in source.iter_batches(_PEEK_ROWS, row_groups=[group], columns=[path], use_threads=False):
                if longest := max(map(_longest_in, batch.columns)):  # before the first value there is no dictionary
                    return longest
        return 0

    return _lengths.get((*place, group, path), read)


def _longest_in(column: Any) -> int:
    if pa.types.is_dictionary(column.type):
        return int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
    if pa.types.is_struct(column.type):
        return max((_longest_in(column.field(place)) for place in range(column.type.num_fields)), default=0)
    if column.type.num_fields:
        return _longest_in(column.values)
    return 0


def bounded_batches(path: Path, file: pq.ParquetFile, *, rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """All rows of a file of ours, so many at a time at most, and so many bytes if a row has no more."""
    footer, place = read_footer(str(path)), (str(path), path.stat().st_size)
    names = set(footer.schema.names)
    for group in range(footer.metadata.num_row_groups):
        fitting = size // row_bytes(place, footer, group, names=names)
        yield from file.iter_batches(max(1, min(rows, fitting)), row_groups=[group])
