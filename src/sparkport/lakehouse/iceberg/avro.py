"""Avro files by a plainer schema than their own: Python cannot hold every value of their logical types.

Its dates end in the year 9999. Partitions by day go on, and DuckDB's infinity is one of them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection
from typing import Any

import fastavro

__all__ = ["CODEC", "SCHEMA", "joined", "plain", "reader", "split"]

SCHEMA, CODEC = "avro.schema", "avro.codec"

_MAGIC = b"Obj\x01"
_HEADER = fastavro.parse_schema({"type": "map", "values": "bytes"})
_UNITS = ("millis", "micros", "nanos")
_MOMENTS = frozenset({"date"} | {f"{kind}-{u}" for kind in ("time", "timestamp", "local-timestamp") for u in _UNITS})


def reader(data: bytes) -> Any:
    """The records of a file, with dates and times as the numbers that they are."""
    header, rest = split(data)
    text = header[SCHEMA]
    if not any(f'"{moment}"'.encode() in text for moment in _MOMENTS):
        return fastavro.reader(io.BytesIO(data))
    numbers = json.dumps(plain(json.loads(text), _MOMENTS)).encode()
    return fastavro.reader(io.BytesIO(joined({**header, SCHEMA: numbers}, rest)))


def split(data: bytes) -> tuple[dict[str, bytes], bytes]:
    """The header's notes, and all after them: the mark between blocks, and the blocks."""
    if not data.startswith(_MAGIC):
        raise ValueError("it is no Avro file")
    stream = io.BytesIO(data[len(_MAGIC) :])
    header: Any = fastavro.schemaless_reader(stream, _HEADER, None)
    return header, stream.read()


def joined(header: dict[str, bytes], rest: bytes) -> bytes:
    stream = io.BytesIO()
    stream.write(_MAGIC)
    fastavro.schemaless_writer(stream, _HEADER, header)
    return stream.getvalue() + rest


def plain(schema: Any, kinds: Collection[str] | None = None) -> Any:
    """A schema without logical types, or without those of some kinds."""
    if isinstance(schema, list):
        return [plain(part, kinds) for part in schema]
    if isinstance(schema, dict):
        left_out = kinds is None or schema.get("logicalType") in kinds
        return {key: plain(value, kinds) for key, value in schema.items() if key != "logicalType" or not left_out}
    return schema
