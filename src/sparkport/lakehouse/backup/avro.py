"""Avro files with some of their values changed, and all else as it was: the header is kept byte for byte.

Iceberg has notes of its own in the header's schema, and logical types that Python cannot hold every value of. So the
records are read and written by the plain types beneath.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro

from sparkport.errors import InternalError

__all__ = ["rewrite"]

_MAGIC = b"Obj\x01"
_HEADER = fastavro.parse_schema({"type": "map", "values": "bytes"})
_SCHEMA, _CODEC = "avro.schema", "avro.codec"


def rewrite(data: bytes, change: Callable[[dict[str, Any]], None], *, what: str) -> bytes:
    """``change`` alters each record in place."""
    try:
        header, rest = _split(data)
        plain = {**header, _SCHEMA: json.dumps(_plain(json.loads(header[_SCHEMA]))).encode()}
        records = []
        reader = fastavro.reader(io.BytesIO(_joined(plain, rest)))
        for record in reader:
            if not isinstance(record, dict):
                raise TypeError(f"a record expected, not {type(record).__name__}")
            change(record)
            records.append(record)
        written = io.BytesIO()
        fastavro.writer(written, json.loads(plain[_SCHEMA]), records, codec="deflate")
        _, body = _split(written.getvalue())
    except (ValueError, KeyError, TypeError, EOFError, IndexError) as exc:
        raise InternalError(f"{what} cannot be rewritten: {exc}") from exc
    return _joined({**header, _CODEC: b"deflate"}, body)


def _split(data: bytes) -> tuple[dict[str, bytes], bytes]:
    """The header's notes, and all after them: the mark between blocks, and the blocks."""
    if not data.startswith(_MAGIC):
        raise ValueError("it is no Avro file")
    stream = io.BytesIO(data[len(_MAGIC) :])
    header: Any = fastavro.schemaless_reader(stream, _HEADER, None)
    return header, stream.read()


def _joined(header: dict[str, bytes], rest: bytes) -> bytes:
    stream = io.BytesIO()
    stream.write(_MAGIC)
    fastavro.schemaless_writer(stream, _HEADER, header)
    return stream.getvalue() + rest


def _plain(schema: Any) -> Any:
    """A schema without logical types."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items() if key != "logicalType"}
    return schema
