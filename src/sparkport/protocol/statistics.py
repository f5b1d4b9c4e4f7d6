"""Column statistics as DuckDB reads them: an Arrow stream of one row.

The client has two sharp edges. It fails a whole query when it asks for statistics of a type that it has none for, so
a table announces statistics only if all of its columns can have them. And it reads a missing bound of a text column
as the word NULL, so that text and blob columns always get bounds, the widest there are if need be.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

import pyarrow as pa

from sparkport.catalog.table import ColumnStatistics

__all__ = ["all_have_statistics", "encode_statistics"]

_log = logging.getLogger(__name__)

_WIDEST_TEXT = ("", "\U0010ffff" * 2)
_WIDEST_BLOB = (b"", b"\xff" * 8)

_SUPPORTED = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal128,
    pa.types.is_date32,
    pa.types.is_time64,
    pa.types.is_timestamp,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_struct,
    pa.types.is_map,
)


def all_have_statistics(schema: pa.Schema) -> bool:
    """Whether the client can take statistics for every column of a table."""
    return all(any(check(column.type) for check in _SUPPORTED) for column in schema)


def _bounds(data_type: pa.DataType, statistics: ColumnStatistics) -> tuple[pa.Array, pa.Array]:
    if statistics.minimum is not None and statistics.maximum is not None:
        try:
            return _array(statistics.minimum, data_type), _array(statistics.maximum, data_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            _log.warning("bounds that are no values of type %s are left out", data_type, exc_info=True)
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return _array(_WIDEST_TEXT[0], data_type), _array(_WIDEST_TEXT[1], data_type)
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type):
        return _array(_WIDEST_BLOB[0], data_type), _array(_WIDEST_BLOB[1], data_type)
    return pa.nulls(1, data_type), pa.nulls(1, data_type)


def _array(value: Any, data_type: pa.DataType) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, 1).cast(data_type)
    return pa.array([value], data_type)


def encode_statistics(data_type: pa.DataType, statistics: ColumnStatistics | None) -> bytes:
    """Unknown statistics are written so that DuckDB assumes nothing.

    The client asks twice for each column of each statement, and mostly gets the same answer: it is kept.
    """
    known = statistics or ColumnStatistics()
    try:
        return _kept(data_type, known)
    except TypeError:  # bounds of nested types cannot be looked up by
        return _encoded(data_type, known)


def _encoded(data_type: pa.DataType, known: ColumnStatistics) -> bytes:
    low, high = _bounds(data_type, known)
    columns: dict[str, pa.Array] = {
        "has_not_null": pa.array([known.has_not_null is not False]),
        "has_null": pa.array([known.has_null is not False]),
        "distinct_count": pa.array([known.distinct_count or 0], pa.uint64()),
        "min": low,
        "max": high,
        "contains_unicode": pa.array([known.contains_unicode is not False]),
    }
    if known.max_string_length is not None:
        columns["max_string_length"] = pa.array([known.max_string_length], pa.uint64())
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


_kept = lru_cache(4_096)(_encoded)
