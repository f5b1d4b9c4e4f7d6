"""How much room rows take once they are decoded, which a file's size does not tell: a text that a million rows have is
in a file once. Scans read as many rows at a time as take little of it, and the more of them run, the fewer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterator
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.files import local_path
from sparkport.lakehouse.iceberg.manifests import DataFile
from sparkport.lakehouse.iceberg.pages import PageSizes, longest_text, page_sizes
from sparkport.lakehouse.iceberg.row_groups import FIELD_ID, Footer, footer_of, read_footer
from sparkport.lakehouse.scan.limits import Room

__all__ = [
    "LARGE_ROW",
    "Share",
    "as_key",
    "bounded_batches",
    "file_held_bytes",
    "file_row_bytes",
    "has_long_dictionary",
    "held_bytes",
    "is_all_numbered",
    "row_bytes",
]

LARGE_ROW: Final = 1024  # bytes: a query holds too many of such rows

_ALL_BYTES: Final = 64 << 20  # decoded rows that all scans of a reader hold together
_LEAST_BYTES, _MOST_BYTES = 512 << 10, 8 << 20  # of one scan
_SMALL_CHUNK: Final = 4 << 20  # of which it does not matter how large its pages are
_NUMBER_BYTES: Final = 5  # in place of a text of a dictionary, and with its place in a list
_LEVEL_BYTES: Final = 4  # that say which list an item is in
_ROOM: Final = 2  # by how much buffers are larger than what is in them
_BUFFER_BYTES: Final = 64 << 10  # of a column that is read
_UNEVEN: Final = 2  # by how much lists in a part of a file are longer than in all of it
_UNEVEN_STEP: Final = 16  # the same where small steps cost little
_PREFIXED: Final = 4
"""How many shares a batch may take if texts are as long as a page that says only how they differ."""

_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}

_DECIMAL_BYTES: Final = 16


K = TypeVar("K", bound=Hashable)

Place: TypeAlias = tuple[str, int]
"""A file's path, and its size."""


class Share:
    """What one scan may hold of decoded rows, while so many run. Called from all threads."""

    def __init__(self, room: Room | None = None) -> None:
        self.room = room or Room()
        self._lock = threading.Lock()
        self._scans = 0
        self._taken = {True: 0, False: 0}

    def enter(self) -> None:
        with self._lock:
            self._scans += 1

    def leave(self) -> None:
        with self._lock:
            self._scans -= 1

    def reserve(self, size: int, *, small: bool = False) -> bool:
        """Room for a read that goes on while its reader does something else, until ``give_back``; False if there is
        none. There is some for ``small`` reads alone: each of them would not matter, but all together do."""
        with self._lock:
            if self._taken[small] + size > (self.room.small_bytes if small else self.room.large_bytes):
                return False
            self._taken[small] += size
            return True

    def give_back(self, size: int, *, small: bool = False) -> None:
        with self._lock:
            self._taken[small] -= size

    @property
    def reserved(self) -> int:
        return sum(self._taken.values())

    @property
    def scans(self) -> int:
        return self._scans

    @property
    def bytes(self) -> int:
        return max(_LEAST_BYTES, min(_MOST_BYTES, _ALL_BYTES // max(self._scans, 1)))


def row_bytes(
    place: Place,
    footer: Footer,
    group: int,
    *,
    names: Collection[str],
    numbered: Collection[str] = (),
    by_page: bool = True,
) -> int:
    """What a row of a row group takes at most, about: texts of a dictionary count as its longest, others as those of
    the page in which they are longest; without ``by_page`` as they are on the average.

    ``names`` are columns by the names that the file has for them; ``numbered`` are the paths of texts that are read as
    numbers of a dictionary.
    """

    def add_up() -> int:
        chunks = footer.metadata.row_group(group)
        numbers = 0
        chosen = []
        for number in _leaves(footer, names):
            column = footer.metadata.schema.column(number)
            if column.path in numbered:
                uneven = _UNEVEN_STEP if column.max_repetition_level else 1
                numbers += _NUMBER_BYTES * chunks.column(number).num_values * uneven
            else:
                chosen.append(number)
        texts = [chunk for chunk in map(chunks.column, chosen) if chunk.physical_type == "BYTE_ARRAY"]
        # As many as this may be in one batch, wherever they are.
        many = sum(chunk.total_uncompressed_size for chunk in texts) > _MOST_BYTES
        size = sum(_chunk_bytes(place, footer, group, number) for number in chosen)
        if by_page:
            size = max(size, sum(_bytes_by_page(place, footer, group, number, many=many) for number in chosen))
        return max(int((size + numbers) / max(chunks.num_rows, 1)), 1)

    return _found_once(_group_bytes, place, (*place, group, by_page, as_key(names), as_key(numbered)), add_up)


def held_bytes(
    place: Place, footer: Footer, group: int, *, names: Collection[str], numbered: Collection[str] = ()
) -> int:
    """What reading a row group a few rows at a time holds at most, about, besides these rows: a page of each column,
    which is decoded as a whole, and its dictionary; and of lists, which may be of any length, perhaps all that there
    is. ``names`` and ``numbered`` are as in ``row_bytes``."""

    def add_up() -> int:
        return sum(_held(place, footer, group, number, numbered) for number in _leaves(footer, names))

    return _found_once(_held_bytes, place, (*place, group, as_key(names), as_key(numbered)), add_up)


def _held(place: Place, footer: Footer, group: int, number: int, numbered: Collection[str]) -> int:
    column, chunk = footer.metadata.schema.column(number), footer.metadata.row_group(group).column(number)
    size, values = int(chunk.total_uncompressed_size), int(chunk.num_values)
    if column.max_repetition_level:
        if "DELTA_BYTE_ARRAY" in chunk.encodings:
            size = max(size, int(_bytes_by_page(place, footer, group, number, many=False)))
        width = _width(footer, group, number) or 2 * _LEVEL_BYTES  # the number of a text, and where it ends
        if has_long_dictionary(footer, group, number) and chunk.physical_type == "BYTE_ARRAY":
            size += _pages(place, footer, group, number).dictionary
            if column.path not in numbered:
                each = _longest(place, footer, group, number)
                size += _pages(place, footer, group, number).numbered * each
        return size + values * _ROOM * (width + _LEVEL_BYTES)
    if size > _SMALL_CHUNK:
        pages = _pages(place, footer, group, number)
        size = min(size, pages.largest) + _ROOM * pages.dictionary
    return size + min(int(chunk.total_compressed_size), _BUFFER_BYTES)


def _width(footer: Footer, group: int, number: int) -> int:
    """What a value of a column takes once it is decoded; 0 for texts, whose lengths differ."""
    column, kind = footer.metadata.schema.column(number), footer.metadata.row_group(group).column(number).physical_type
    if column.logical_type.type == "DECIMAL":
        return _DECIMAL_BYTES
    return 0 if kind == "BYTE_ARRAY" else int(_WIDTHS.get(kind, column.length))


def _leaves(footer: Footer, names: Collection[str]) -> list[int]:
    """The numbers of the columns of a file in which a table's columns are."""
    schema = footer.metadata.schema
    paths = ((number, schema.column(number).path) for number in range(footer.metadata.num_columns))
    return [number for number, path in paths if path in names or path.partition(".")[0] in names]


def _names(footer: Footer, field_ids: Collection[int]) -> Collection[str]:
    by_id = {int((field.metadata or {}).get(FIELD_ID, b"-1")): field.name for field in footer.schema}
    if -1 in by_id:  # a file of another tool may have no ids, and then any of its columns may be meant
        return set(footer.schema.names)
    return {by_id[field_id] for field_id in field_ids if field_id in by_id}


def file_row_bytes(file: DataFile, field_ids: Collection[int]) -> int | None:
    """The most that a row of a file takes in some columns, about; None where only a reader of the file could tell."""

    def find() -> int | None:
        footer = footer_of(file)
        if footer is None:
            return None
        names, place = _names(footer, field_ids), (file.path, file.size)
        # Arrow reads what has very long rows here and there; a query goes over all of it.
        groups = range(footer.metadata.num_row_groups)
        return max((row_bytes(place, footer, group, names=names, by_page=False) for group in groups), default=1)

    return _row_bytes.get((file.path, file.size, as_key(field_ids)), find)


def file_held_bytes(file: DataFile, field_ids: Collection[int]) -> int:
    """The most that reading a file holds, about, besides the rows that are asked for."""
    footer = footer_of(file)
    if footer is None:
        return 0
    names, place = _names(footer, field_ids), (file.path, file.size)
    groups = range(footer.metadata.num_row_groups)
    return max((held_bytes(place, footer, group, names=names) for group in groups), default=0)


def as_key(columns: Collection[object]) -> int:
    """Some columns as a part of a cache's key: a thousand names for each of very many row groups would take gigabytes.
    Columns that are taken for others, which is hardly possible, would only be thought to be larger or smaller."""
    return hash(frozenset(columns))


_sizing: Final = [threading.Lock() for _ in range(64)]


def _found_once(cache: BoundedCache[K, int], place: Place, key: K, find: Callable[[], int]) -> int:
    """For a file of very many columns it takes long, and many scans that begin at once would all do it: that would be
    felt by everybody."""
    if key in cache:
        return cache.get(key, find)
    with _sizing[hash(place) % len(_sizing)]:
        return cache.get(key, find)


_group_bytes: BoundedCache[tuple[str, int, int, bool, int, int], int] = BoundedCache(50_000)
_held_bytes: BoundedCache[tuple[str, int, int, int, int], int] = BoundedCache(50_000)
_row_bytes: BoundedCache[tuple[str, int, int], int | None] = BoundedCache(50_000)


def _chunk_bytes(place: Place, footer: Footer, group: int, number: int) -> float:
    column, chunk = footer.metadata.schema.column(number), footer.metadata.row_group(group).column(number)
    values = chunk.num_values
    uneven = _UNEVEN if column.max_repetition_level else 1
    if chunk.physical_type != "BYTE_ARRAY":
        return float(values * (_width(footer, group, number) + 1) * uneven)
    size = chunk.total_uncompressed_size + 5 * values
    if not chunk.has_dictionary_page:
        return float(size * uneven)
    if has_long_dictionary(footer, group, number):
        size = max(size, values * _longest(place, footer, group, number))
    else:
        size = max(size, values * chunk.total_uncompressed_size)
    return float(size * uneven)


def _bytes_by_page(place: Place, footer: Footer, group: int, number: int, *, many: bool) -> float:
    """As if all values were like those of the page where they are longest. ``many``: they may be too many for a batch,
    so that it matters where they are."""
    column, chunk = footer.metadata.schema.column(number), footer.metadata.row_group(group).column(number)
    size = _chunk_bytes(place, footer, group, number)
    is_text = chunk.physical_type == "BYTE_ARRAY"
    if is_text and many:
        size = max(size, chunk.num_values * (_pages(place, footer, group, number).densest + 5))
    if column.max_repetition_level:
        size *= _UNEVEN_STEP / _UNEVEN
    if not is_text:
        return size
    if "DELTA_BYTE_ARRAY" in chunk.encodings and chunk.num_values * chunk.total_uncompressed_size > _LEAST_BYTES:
        # Of a text there is only what the one before it has not: all may be about as long as a page.
        size = max(size, chunk.num_values * _pages(place, footer, group, number).largest / _PREFIXED)
    return size


_page_sizes: BoundedCache[tuple[str, int, int, int], PageSizes] = BoundedCache(200_000, name="pages")


def _pages(place: Place, footer: Footer, group: int, number: int) -> PageSizes:
    chunk = footer.metadata.row_group(group).column(number)

    def read() -> PageSizes:
        try:
            with open(str(local_path(place[0])), "rb") as file:
                return page_sizes(file, _start(chunk), chunk.total_compressed_size)
        except (OSError, ValueError):
            size = chunk.total_uncompressed_size
            return PageSizes(size, size, size, chunk.num_values)  # any value may be all of it

    return _page_sizes.get((*place, group, number), read)


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    """Where a column chunk begins in its file."""
    start = int(chunk.data_page_offset)
    return min(start, chunk.dictionary_page_offset or start) if chunk.has_dictionary_page else start


def has_long_dictionary(footer: Footer, group: int, number: int) -> bool:
    """Whether the texts of a column chunk could take much more than they take in the file."""
    chunk = footer.metadata.row_group(group).column(number)
    return bool(chunk.has_dictionary_page) and chunk.num_values * chunk.total_uncompressed_size > _LEAST_BYTES


def is_all_numbered(place: Place, footer: Footer, group: int, number: int) -> bool:
    """Whether all values of a column chunk are in its dictionary. Some writers say so by the pages alone."""
    chunk = footer.metadata.row_group(group).column(number)
    if not chunk.has_dictionary_page or "PLAIN" not in chunk.encodings:
        return bool(chunk.has_dictionary_page)
    return _pages(place, footer, group, number).numbered == int(chunk.num_values)


_lengths: BoundedCache[tuple[str, int, int, int], int] = BoundedCache(200_000, name="dictionaries")
_unpacking = threading.Lock()


def _longest(place: Place, footer: Footer, group: int, number: int) -> int:
    """The longest text in the dictionary of a column chunk."""
    chunk = footer.metadata.row_group(group).column(number)

    def read() -> int:
        try:
            with _unpacking, open(str(local_path(place[0])), "rb") as file:  # one dictionary at a time is in memory
                return longest_text(file, _start(chunk), chunk.compression)
        except (OSError, ValueError):
            return int(chunk.total_uncompressed_size)

    return _lengths.get((*place, group, number), read)


def bounded_batches(path: Path, file: pq.ParquetFile, *, rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """All rows of a file of ours, so many at a time at most, and so many bytes if a row has no more."""
    footer, place = read_footer(str(path)), (str(path), path.stat().st_size)
    names = set(footer.schema.names)
    for group in range(footer.metadata.num_row_groups):
        fitting = size // row_bytes(place, footer, group, names=names)
        yield from file.iter_batches(max(1, min(rows, fitting)), row_groups=[group])
