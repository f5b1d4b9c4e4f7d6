"""Arrow's IPC metadata, read and written as bytes: pyarrow has no way to say that columns share one region of a body.

A column that nobody asked for must still be on the wire. Its buffers are all zeros, so one block of zeros, as long as
the longest of them, serves every such column: ``blank`` lays such columns out over that block, and ``build_batch``
writes the message around them. The few buffers that cannot be zeros (run ends, type ids of a union without type 0)
follow the block.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import types

from sparkport.protocol.ipc_metadata import (
    BATCH,
    DICTIONARY,
    SCHEMA,
    decompressed_length,
    dictionary_of,
    field_place,
    followed,
    numbers,
)

__all__ = [
    "BATCH",
    "BatchMetadata",
    "Blank",
    "DICTIONARY",
    "SCHEMA",
    "blank",
    "build_batch",
    "decompressed_length",
    "dictionary_of",
    "has_dictionary",
    "is_big_endian",
    "max_rows",
    "peek",
    "read_batch",
]

_U16: Final = struct.Struct("<H").unpack_from
_U32: Final = struct.Struct("<I").unpack_from
_I64: Final = struct.Struct("<q").unpack_from

# The message up to its first vector: root, vtable and table of Message, then of RecordBatch, number of nodes.
_HEAD: Final = struct.Struct("<I 6H iIqhBx 7H6x iIqII 4xI")
_COUNT: Final = struct.Struct("<4xI")
_VERSION_5: Final = 4


class BatchMetadata(NamedTuple):
    """Nodes (length, null count) and buffers (offset, length) are flat runs of 64-bit numbers."""

    rows: int
    nodes: tuple[int, ...]
    buffers: tuple[int, ...]
    variadic: tuple[int, ...]


def peek(header: Any) -> tuple[int, int]:
    """Kind of the message and length of its body. Raises ``struct.error`` where offsets lead out of the header."""
    table = _U32(header)[0]
    header_type, length = field_place(header, table, 1), field_place(header, table, 3)
    return (header[header_type] if header_type else 0), (_I64(header, length)[0] if length else 0)


def is_big_endian(header: Any) -> bool:
    """Whether a schema message announces numbers with their bytes in the other order."""
    field = field_place(header, followed(header, _U32(header)[0], 2), 0)
    return bool(field and _U16(header, field)[0])


def read_batch(header: Any) -> BatchMetadata:
    """The metadata of a record batch message that pyarrow wrote."""
    table = followed(header, _U32(header)[0], 2)
    rows = field_place(header, table, 0)
    nodes, buffers = numbers(header, table, 1, width=2), numbers(header, table, 2, width=2)
    return BatchMetadata(_I64(header, rows)[0] if rows else 0, nodes, buffers, numbers(header, table, 4, width=1))


def build_batch(metadata: BatchMetadata, body_length: int) -> bytes:
    rows, nodes, buffers, variadic = metadata
    nodes_end = _HEAD.size + 8 * len(nodes)
    buffers_end = nodes_end + _COUNT.size + 8 * len(buffers)
    head = _HEAD.pack(
        16,  # the Message table
        *(12, 20, 16, 18, 4, 8),  # its vtable: size, size of the table, version, header type, header, body length
        *(12, 36, body_length, _VERSION_5, BATCH),
        *(14, 24, 8, 4, 16, 0, 20 if variadic else 0),  # of RecordBatch: length, nodes, buffers, compression, variadic
        *(20, 24, rows, nodes_end + 4 - 72, buffers_end + 4 - 76 if variadic else 0),
        len(nodes) // 2,
    )
    parts = [head, struct.pack(f"<{len(nodes)}q", *nodes)]
    parts += (_COUNT.pack(len(buffers) // 2), struct.pack(f"<{len(buffers)}q", *buffers))
    if variadic:
        parts += (_COUNT.pack(len(variadic)), struct.pack(f"<{len(variadic)}q", *variadic))
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Blank:
    """Fields of a number of rows without any content; the offsets of ``buffers`` are within ``block``."""

    fields: tuple[BatchMetadata, ...]
    block: bytes


def blank(fields: Sequence[pa.Field], rows: int) -> Blank:
    """Nulls for nullable fields; zeros, empty strings and empty lists for the others."""
    layouts = []
    for field in fields:
        layout = _Layout()
        layout.add(field.type, rows, nullable=field.nullable)
        layouts.append(layout)
    zeros = -(max((layout.zeros for layout in layouts), default=0) // -8) * 8
    block = bytearray(zeros)
    done = []
    for layout in layouts:
        buffers: list[int] = []
        for content, length in layout.buffers:
            buffers += (len(block) if content else 0, length)
            block += content + bytes(-len(content) % 8)
        done.append(BatchMetadata(rows, tuple(layout.nodes), tuple(buffers), (0,) * layout.views))
    return Blank(tuple(done), bytes(block))


class _Layout:
    """Nodes and buffers of one field, in the order in which the format wants them: depth first."""

    def __init__(self) -> None:
        self.nodes: list[int] = []
        self.buffers: list[tuple[bytes, int]] = []  # content (empty: zeros) and length
        self.views = 0
        self.zeros = 0

    def _zeros(self, length: int) -> None:
        self.zeros = max(self.zeros, length)
        self.buffers.append((b"", length))

    def _bytes(self, content: bytes) -> None:
        self.buffers.append((content, len(content)))

    def add(self, data_type: Any, rows: int, *, nullable: bool) -> None:
        if isinstance(data_type, pa.BaseExtensionType):
            data_type = data_type.storage_type
        if types.is_dictionary(data_type):  # there is no value that an index could point at
            data_type, nullable = data_type.index_type, True
        if types.is_null(data_type):
            self.nodes += (rows, rows)
        elif types.is_union(data_type):
            self._union(data_type, rows, nullable=nullable)
        elif types.is_run_end_encoded(data_type):
            self._run(data_type, rows, nullable=nullable)
        else:
            self.nodes += (rows, rows if nullable else 0)
            self._zeros((rows + 7) // 8 if nullable else 0)
            self._values(data_type, rows)

    def _values(self, data_type: Any, rows: int) -> None:
        if types.is_struct(data_type):
            for field in data_type:
                self.add(field.type, rows, nullable=field.nullable)
        elif types.is_fixed_size_list(data_type):
            self.add(data_type.value_type, rows * data_type.list_size, nullable=data_type.value_field.nullable)
        elif types.is_map(data_type):
            self._zeros(4 * (rows + 1))
            self.add(pa.struct([data_type.key_field, data_type.item_field]), 0, nullable=False)
        elif types.is_list(data_type) or types.is_large_list(data_type):
            self._zeros((4 if types.is_list(data_type) else 8) * (rows + 1))
            self.add(data_type.value_type, 0, nullable=True)
        elif types.is_list_view(data_type) or types.is_large_list_view(data_type):
            width = 4 if types.is_list_view(data_type) else 8
            self._zeros(width * rows)
            self._zeros(width * rows)
            self.add(data_type.value_type, 0, nullable=True)
        elif types.is_string_view(data_type) or types.is_binary_view(data_type):
            self._zeros(16 * rows)
            self.views += 1
        elif types.is_string(data_type) or types.is_binary(data_type):
            self._zeros(4 * (rows + 1))
            self._zeros(0)
        elif types.is_large_string(data_type) or types.is_large_binary(data_type):
            self._zeros(8 * (rows + 1))
            self._zeros(0)
        else:
            self._zeros((rows * data_type.bit_width + 7) // 8)

    def _union(self, data_type: Any, rows: int, *, nullable: bool) -> None:
        """Unions have no nulls of their own: every row is the null (or zero) of one of the members."""
        self.nodes += (rows, 0)
        codes = data_type.type_codes
        if not codes or 0 in codes:
            code = 0
            self._zeros(rows)
        else:
            code = codes[0]
            self._bytes(bytes([code]) * rows)
        dense = data_type.mode == "dense"
        if dense:
            self._zeros(4 * rows)  # all rows are the one row of the member
        for field, its_code in zip(data_type, codes, strict=True):
            length = rows if not dense else min(rows, 1) if its_code == code else 0
            self.add(field.type, length, nullable=nullable and field.nullable)

    def _run(self, data_type: Any, rows: int, *, nullable: bool) -> None:
        self.nodes += (rows, 0)
        runs = min(rows, 1)
        self.nodes += (runs, 0)
        self._zeros(0)
        self._bytes(rows.to_bytes(data_type.run_end_type.bit_width // 8, "little") * runs)
        self.add(data_type.value_type, runs, nullable=nullable)


def _children(data_type: Any) -> list[Any]:
    if isinstance(data_type, pa.BaseExtensionType):
        return [data_type.storage_type]
    if types.is_dictionary(data_type):
        return [data_type.value_type]
    if types.is_run_end_encoded(data_type):
        return [data_type.run_end_type, data_type.value_type]
    return [data_type.field(index).type for index in range(data_type.num_fields)]


def has_dictionary(data_type: Any) -> bool:
    """Whether a dictionary is anywhere in a type."""
    return types.is_dictionary(data_type) or any(map(has_dictionary, _children(data_type)))


def max_rows(data_type: Any) -> int:
    """How many rows a blank array of the type can have: one run cannot be longer than its type of run ends counts."""
    limit = 2 ** (data_type.run_end_type.bit_width - 1) - 1 if types.is_run_end_encoded(data_type) else 2**31 - 1
    return min([limit, *map(max_rows, _children(data_type))])
