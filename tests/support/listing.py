"""A catalog's listing as the DuckDB client decodes it: nested msgpack, zstd and FlightInfos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.flight as pf
import zstandard

__all__ = [
    "Entry",
    "ROW_ID_COLUMN",
    "SchemaEntry",
    "create_table_body",
    "decompressed",
    "is_marked",
    "pack",
    "raw",
    "unpack",
]

ROW_ID_COLUMN = 2**64 - 1


def pack(value: Any) -> bytes:
    """As the client's library does it: bytes go out as text that need not be UTF-8."""
    data: bytes = msgpack.packb(value, use_bin_type=False, unicode_errors="surrogateescape")
    return data


def unpack(data: bytes) -> Any:
    """Text as str; what is not text stays bytes, whichever of the two msgpack kinds it came as."""
    return msgpack.unpackb(data, raw=False, strict_map_key=False, unicode_errors="surrogateescape")


def raw(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def decompressed(data: str | bytes) -> Any:
    length, compressed = unpack(raw(data))
    content = zstandard.ZstdDecompressor().decompress(raw(compressed), max_output_size=length)
    assert len(content) == length, "the announced length of compressed contents is wrong"
    return unpack(content)


def create_table_body(schema: str, table: str, columns: bytes) -> dict[str, Any]:
    """What the client says of a new table without constraints; ``columns`` is an Arrow schema as IPC."""
    constraints = (
        *("not_null_constraints", "unique_constraints", "check_constraints", "primary_key_columns"),
        *("unique_columns", "multi_key_primary_keys", "extra_constraints"),
    )
    place = {"catalog_name": "lake", "schema_name": schema, "table_name": table}
    return {**place, "arrow_schema": columns, "on_conflict": "error", **{name: [] for name in constraints}}


@dataclass(frozen=True, slots=True)
class Entry:
    """A table or function of a listing."""

    descriptor: pf.FlightDescriptor
    schema: pa.Schema
    metadata: dict[str, Any]
    total_records: int

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        info = pf.FlightInfo.deserialize(data)
        return cls(info.descriptor, info.schema, unpack(info.app_metadata), info.total_records)

    @property
    def kind(self) -> str:
        return str(self.metadata["type"])

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def path(self) -> str:
        return "/".join(part.decode() for part in self.descriptor.path)

    @property
    def input_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(raw(self.metadata["input_schema"])))

    @property
    def row_id(self) -> str | None:
        """The pseudocolumn's name: only the mark counts."""
        return next((column.name for column in self.schema if is_marked(column, b"is_rowid")), None)

    @property
    def columns(self) -> list[str]:
        """What DuckDB shows as the table's columns, and numbers from 0."""
        return [column.name for column in self.schema if not is_marked(column, b"is_rowid")]

    def column_ids(self, columns: Sequence[str]) -> list[int]:
        return [ROW_ID_COLUMN if name == self.row_id else self.columns.index(name) for name in columns]


def is_marked(column: pa.Field, mark: bytes) -> bool:
    return bool((column.metadata or {}).get(mark))


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    name: str
    description: str
    tags: dict[str, str]
    is_default: bool
    sha256: str
    entries: tuple[Entry, ...]
