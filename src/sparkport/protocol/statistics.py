"""Column statistics as DuckDB reads them: an Arrow stream of one row.

The client has two sharp edges. It fails a whole query when it asks for statistics of a type that it has none for, so
a table announces statistics only if all of its columns can have them. And it reads a missing bound of a text column
as the word NULL, so that text and blob columns always get bounds, the widest there are if need be.
"""

from __future__ import annotations

import pyarrow as pa

from sparkport.catalog.table import ColumnStatistics

__all__ = ["all_have_statistics", "encode_statistics"]

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


def _bounds(kind: pa.DataType, statistics: ColumnStatistics) -> tuple[object, object]:
    low, high = statistics.minimum, statistics.maximum
    if low is not None and high is not None:
        return low, high
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _WIDEST_TEXT
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _WIDEST_BLOB
    return None, None


def encode_statistics(kind: pa.DataType, statistics: ColumnStatistics | None) -> bytes:
    """What is not known is told in the way that makes DuckDB assume nothing."""
    known = statistics or ColumnStatistics()
    low, high = _bounds(kind, known)
    columns: dict[str, pa.Array] = {
        "has_not_null": pa.array([known.has_not_null is not False]),
        "has_null": pa.array([known.has_null is not False]),
        "distinct_count": pa.array([known.distinct_count or 0], pa.uint64()),
        "min": pa.array([low], kind),
        "max": pa.array([high], kind),
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
