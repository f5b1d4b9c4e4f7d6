"""Arrow schemas that clients send, read only when what they come to is in proportion.

In a flatbuffer several places can refer to the same table or text, and Arrow makes a copy for each of them: a message
of a kilobyte can be thousands of fields, one of four megabytes tens of gigabytes. So what it comes to is counted first.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import pyarrow as pa

from sparkport.protocol.ipc_metadata import field_place, followed

__all__ = ["MAX_EXPANDED_BYTES", "check_expanded", "check_names", "read_schema"]

MAX_EXPANDED_BYTES: Final = 16 << 20
"""What the fields and texts of a schema may come to."""

_FIELD_BYTES: Final = 64
_MOST_DEPTH: Final = 128
_TIMESTAMP: Final = 10
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_U32: Final = struct.Struct("<I").unpack_from


def read_schema(message: bytes) -> pa.Schema:
    """The schema of an IPC message. Raises whatever pyarrow does where the bytes are none, or ``ValueError``."""
    check_expanded(message[8:] if message.startswith(_CONTINUATION) else message[4:])
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    check_names(schema)
    return schema


def check_expanded(header: Any) -> None:
    """Raise ``ValueError`` where the metadata of a schema message says the same things over and over.

    ``struct.error`` is raised where offsets lead out of the bytes.
    """
    message = _U32(header)[0]
    schema = followed(header, message, 2)
    size = _texts(header, message, 4, 0)
    if not schema:
        return
    size = _texts(header, schema, 2, size)
    waiting = [(field, 0) for field in _tables(header, schema, 1, size)]
    while waiting:
        field, depth = waiting.pop()
        size = _grown(size, _FIELD_BYTES + _text_length(header, field, 0))
        size = _texts(header, field, 6, size)
        kind = field_place(header, field, 2)
        if kind and header[kind] == _TIMESTAMP and (stamp := followed(header, field, 3)):
            size = _grown(size, _text_length(header, stamp, 1))
        if depth > _MOST_DEPTH:
            raise ValueError("a schema nested too deep")
        waiting += [(child, depth + 1) for child in _tables(header, field, 5, size)]


def _texts(header: Any, table: int, index: int, size: int) -> int:
    """``size`` with the keys and values of a table's custom metadata."""
    for pair in _tables(header, table, index, size):
        size = _grown(size, _FIELD_BYTES + _text_length(header, pair, 0) + _text_length(header, pair, 1))
    return size


def _tables(header: Any, table: int, index: int, size: int) -> list[int]:
    """Where the tables of a vector are."""
    start = followed(header, table, index)
    if not start:
        return []
    count = _U32(header, start)[0]
    _grown(size, count * _FIELD_BYTES)
    offsets = struct.unpack_from(f"<{count}I", header, start + 4)
    return [start + 4 + 4 * number + offset for number, offset in enumerate(offsets)]


def _text_length(header: Any, table: int, index: int) -> int:
    start = followed(header, table, index)
    length: int = _U32(header, start)[0] if start else 0
    return length


def _grown(size: int, by: int) -> int:
    if size + by > MAX_EXPANDED_BYTES:
        raise ValueError(f"a schema whose fields and texts come to more than {MAX_EXPANDED_BYTES} bytes")
    return size + by


def check_names(schema: pa.Schema) -> None:
    """Raises ``UnicodeDecodeError`` where a name, or a time zone, is no text: pyarrow would do so later, far from where
    it came in."""

    def check(data_type: Any) -> None:
        if isinstance(data_type, pa.BaseExtensionType):
            check(data_type.storage_type)
        elif pa.types.is_dictionary(data_type):
            check(data_type.value_type)
        elif pa.types.is_timestamp(data_type):
            _ = data_type.tz
        else:
            for index in range(data_type.num_fields):
                field = data_type.field(index)
                _ = field.name
                check(field.type)

    for field in schema:
        _ = field.name
        check(field.type)
