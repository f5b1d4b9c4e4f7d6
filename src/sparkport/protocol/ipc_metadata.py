"""Arrow's IPC metadata, read as bytes: pyarrow does not say what a message will take before it takes it.

The metadata is a flatbuffer: tables that begin with a (negative) way to their vtable, which holds each field's place.
Nothing here trusts the bytes: ``struct.error`` is raised where offsets lead out of them.
"""

from __future__ import annotations

import struct
from typing import Any, Final

__all__ = [
    "BATCH",
    "DICTIONARY",
    "SCHEMA",
    "decompressed_length",
    "dictionary_of",
    "field_place",
    "followed",
    "numbers",
]

SCHEMA: Final = 1
DICTIONARY: Final = 2
BATCH: Final = 3

_OLD_KEY: Final = b"ARROW:experimental_compression"

_I32: Final = struct.Struct("<i").unpack_from
_U16: Final = struct.Struct("<H").unpack_from
_U32: Final = struct.Struct("<I").unpack_from
_I64: Final = struct.Struct("<q").unpack_from


def field_place(data: Any, table: int, index: int) -> int:
    """Where a table's field is, 0 when it has its default."""
    vtable = table - _I32(data, table)[0]
    slot = 4 + 2 * index
    if slot >= _U16(data, vtable)[0]:
        return 0
    offset: int = _U16(data, vtable + slot)[0]
    return table + offset if offset else 0


def followed(data: Any, table: int, index: int) -> int:
    """Where the table or vector is that a field refers to, 0 when there is none."""
    at = field_place(data, table, index)
    return at + _U32(data, at)[0] if at else 0


def numbers(data: Any, table: int, index: int, *, width: int) -> tuple[int, ...]:
    start = followed(data, table, index)
    return struct.unpack_from(f"<{_U32(data, start)[0] * width}q", data, start + 4) if start else ()


def dictionary_of(header: Any) -> tuple[int, bool]:
    """Number of the dictionary that a message carries, and whether it is an addition to the one before."""
    table = followed(header, _U32(header)[0], 2)
    number, delta = field_place(header, table, 0), field_place(header, table, 2)
    return (_I64(header, number)[0] if number else 0), bool(delta and header[delta])


def decompressed_length(header: Any, body: Any) -> int:
    """What a batch or dictionary with compressed buffers says it will take, 0 for one without compression."""
    message = _U32(header)[0]
    table = followed(header, message, 2)
    if header[field_place(header, message, 1)] == DICTIONARY:
        table = followed(header, table, 1)
    if not table or not (field_place(header, table, 3) or _is_compressed_by_old_rule(header, message)):
        return 0
    buffers = numbers(header, table, 2, width=2)
    places = zip(buffers[::2], buffers[1::2], strict=True)  # each buffer begins with its length, -1: as it is
    return sum(max(length, _I64(body, offset)[0]) for offset, length in places if length)


def _is_compressed_by_old_rule(header: Any, message: int) -> bool:
    """The message's metadata named the compression before it had a place of its own; Arrow still reads that."""
    return bool(field_place(header, message, 4)) and _OLD_KEY in bytes(header)
