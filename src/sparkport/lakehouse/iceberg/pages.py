"""What the pages of a column take, by their headers: a footer says it of a whole column chunk only, in which the last
hundred rows may take more than the million before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Final

import pyarrow as pa

__all__ = ["PageSizes", "longest_text", "page_sizes"]

_HEADER_BYTES: Final = 4 << 10
_MOST_HEADER_BYTES: Final = 1 << 20  # bounds of a page are in its header, and may be long texts
_MOST_PAGES: Final = 20_000
_MOST_DEPTH: Final = 8
_UNCOMPRESSED, _COMPRESSED, _DATA, _DICTIONARY, _DATA_V2 = 2, 3, 5, 7, 8  # fields of a header
_ENCODING: Final = {_DATA: 2, _DATA_V2: 4}  # fields of these fields
_NUMBERED: Final = (2, 8)  # encodings that point into a dictionary
_BOOLEANS, _NUMBERS, _DOUBLE, _BINARY, _STRUCT = (1, 2), (4, 5, 6), 7, 8, 12  # types of Thrift's compact protocol


@dataclass(frozen=True, slots=True)
class PageSizes:
    """Bytes of the ``largest`` page of data, of a value in the ``densest`` one, and of the ``dictionary``, before they
    are decoded; and how many values are ``numbered``, which means that they are in the dictionary."""

    largest: int
    densest: int
    dictionary: int = 0
    numbered: int = 0


def page_sizes(file: BinaryIO, start: int, size: int) -> PageSizes:
    """Of the column chunk that is in so many bytes of a file. Raises ValueError where there is none, or one of very
    many pages."""
    largest = densest = pages = dictionary = numbered = 0
    end = start + size
    while start < end:
        pages += 1
        if pages > _MOST_PAGES:
            raise ValueError("these are too many pages to look at")
        header = _header(file, start)
        start += header.size + header.compressed
        if header.is_dictionary:
            dictionary = max(dictionary, header.uncompressed)
        elif header.values:
            largest = max(largest, header.uncompressed)
            densest = max(densest, -(-header.uncompressed // header.values))
            numbered += header.values * header.is_numbered
    return PageSizes(largest, densest, dictionary, numbered)


def longest_text(file: BinaryIO, start: int, codec: str) -> int:
    """In the dictionary that begins there. Raises ValueError where there is none, or one that cannot be unpacked."""
    header = _header(file, start)
    if not header.is_dictionary:
        raise ValueError("this is no dictionary")
    file.seek(start + header.size)
    packed = file.read(header.compressed)
    try:
        name = "lz4_raw" if codec == "LZ4" else codec.lower()
        page = packed if codec == "UNCOMPRESSED" else pa.decompress(packed, header.uncompressed, name)
    except (ValueError, OSError, pa.ArrowException) as exc:
        raise ValueError("this dictionary cannot be unpacked") from exc
    data = memoryview(page)
    longest = place = 0
    while place < len(data):
        length = int.from_bytes(data[place : place + 4], "little")
        longest = max(longest, length)
        place += 4 + length
    if place != len(data):
        raise ValueError("this is no dictionary of texts")
    return longest


@dataclass(frozen=True, slots=True)
class _Header:
    size: int
    uncompressed: int
    compressed: int
    values: int
    is_dictionary: bool
    is_numbered: bool


def _header(file: BinaryIO, start: int) -> _Header:
    room = _HEADER_BYTES
    while True:
        file.seek(start)
        data = file.read(room)
        try:
            return _parsed(data)
        except IndexError:  # it goes on after what was read
            if len(data) < room or room >= _MOST_HEADER_BYTES:
                raise ValueError("this is no header of a page") from None
            room *= 16


def _parsed(data: bytes) -> _Header:
    """Raises IndexError where the header goes on after the data, ValueError where it is none."""
    reader = _Compact(data)
    sizes = {_UNCOMPRESSED: 0, _COMPRESSED: 0}
    values = number = 0
    is_dictionary = is_numbered = False
    while (field := reader.field(number)) is not None:
        number, kind = field
        if number in sizes:
            sizes[number] = reader.number()
        elif number in (_DATA, _DATA_V2) and kind == _STRUCT:
            found = reader.numbers()
            values, is_numbered = found.get(1, 0), found.get(_ENCODING[number]) in _NUMBERED
        else:
            is_dictionary = is_dictionary or number == _DICTIONARY
            reader.skip(kind)
    if min(sizes.values()) < 0:
        raise ValueError("this is no header of a page")
    return _Header(
        reader.place,
        sizes[_UNCOMPRESSED],
        sizes[_COMPRESSED],
        max(values, 0),
        is_dictionary=is_dictionary,
        is_numbered=is_numbered,
    )


class _Compact:
    """As much of Thrift's compact protocol as headers of pages need."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def _byte(self) -> int:
        self.place += 1
        return self._data[self.place - 1]

    def _varint(self) -> int:
        found = shift = 0
        while (byte := self._byte()) & 0x80:
            found |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise ValueError("this is no header of a page")
        return found | byte << shift

    def number(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)

    def field(self, before: int) -> tuple[int, int] | None:
        """The number and the type of the next field of a struct; None at its end."""
        byte = self._byte()
        if not byte:
            return None
        step, kind = byte >> 4, byte & 15
        return (before + step if step else self.number()), kind

    def numbers(self) -> dict[int, int]:
        """The fields of a struct that are numbers; others are skipped."""
        found: dict[int, int] = {}
        number = 0
        while (field := self.field(number)) is not None:
            number, kind = field
            if kind in _NUMBERS:
                found[number] = self.number()
            else:
                self.skip(kind)
        return found

    def skip(self, kind: int, depth: int = 0) -> None:
        if depth > _MOST_DEPTH:
            raise ValueError("this is no header of a page")
        if kind in _BOOLEANS:
            return
        if kind == _DOUBLE:
            self.place += 8
        elif kind == _BINARY:
            length = self._varint()
            self.place += length
        elif kind == _STRUCT:
            number = 0
            while (field := self.field(number)) is not None:
                number, inner = field
                self.skip(inner, depth + 1)
        elif kind in _NUMBERS:
            self._varint()
        else:
            raise ValueError("this is no header of a page")  # none has a list or a map
