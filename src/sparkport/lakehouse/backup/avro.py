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
from sparkport.lakehouse.iceberg.avro import CODEC, SCHEMA, joined, plain, split

__all__ = ["rewrite"]


def rewrite(data: bytes, change: Callable[[dict[str, Any]], None], *, what: str) -> bytes:
    """``change`` alters each record in place."""
    try:
        header, rest = split(data)
        numbers = {**header, SCHEMA: json.dumps(plain(json.loads(header[SCHEMA]))).encode()}
        records = []
        reader = fastavro.reader(io.BytesIO(joined(numbers, rest)))
        for record in reader:
            if not isinstance(record, dict):
                raise TypeError(f"a record expected, not {type(record).__name__}")
            change(record)
            records.append(record)
        written = io.BytesIO()
        fastavro.writer(written, json.loads(numbers[SCHEMA]), records, codec="deflate")
        _, body = split(written.getvalue())
    except (ValueError, KeyError, TypeError, EOFError, IndexError) as exc:
        raise InternalError(f"{what} cannot be rewritten: {exc}") from exc
    return joined({**header, CODEC: b"deflate"}, body)
