"""Decimals of more digits than their type has room for, which Arrow carries without a look at them.

DuckDB sends HUGEINT as decimal128(38, 0), and the numbers of 39 digits too where it does not cast them itself (CREATE
TABLE AS). Computing with such a value, or storing it, would fail later and less clearly.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["has_decimals", "overlong_decimal"]


def has_decimals(data_type: pa.DataType) -> bool:
    if isinstance(data_type, pa.BaseExtensionType):
        return has_decimals(data_type.storage_type)
    return pa.types.is_decimal(data_type) or any(
        has_decimals(data_type.field(at).type) for at in range(data_type.num_fields)
    )


def overlong_decimal(column: pa.Array) -> tuple[Decimal, pa.DataType] | None:
    """A value that does not fit its type, and the type; None where all do."""
    data_type = column.type
    if isinstance(data_type, pa.BaseExtensionType):
        return overlong_decimal(column.storage)
    if pa.types.is_decimal(data_type):
        return _overlong(column)
    for part in _parts(column):
        if has_decimals(part.type) and (overlong := overlong_decimal(part)) is not None:
            return overlong
    return None


def _overlong(column: pa.Array) -> tuple[Decimal, pa.DataType] | None:
    if pa.types.is_decimal128(column.type) and _is_plainly_short(column):
        return None
    try:
        edges = pc.min_max(column)
    except pa.ArrowNotImplementedError:  # 32 and 64 bits: what is too long for them, no client can send
        return None
    for edge in (edges["min"], edges["max"]):
        value = edge.as_py()
        if value is not None and len(value.as_tuple().digits) > column.type.precision:
            return value, column.type
    return None


def _is_plainly_short(column: pa.Array) -> bool:
    """By the upper halves alone, in a fraction of the time; those of values hidden under nulls count too."""
    halves = np.frombuffer(column.buffers()[1], np.int64)
    upper = halves[2 * column.offset + 1 : 2 * (column.offset + len(column)) : 2]
    limit = 10**column.type.precision >> 64
    return not len(upper) or bool(-limit <= upper.min() and upper.max() < limit)


def _parts(column: pa.Array) -> list[pa.Array]:
    """What a nested array is made of, as far as it counts."""
    data_type = column.type
    if pa.types.is_struct(data_type):
        return list(column.flatten())
    if pa.types.is_map(data_type):
        start = column.offsets[0].as_py()
        count = column.offsets[-1].as_py() - start
        return [column.keys.slice(start, count), column.items.slice(start, count)]
    if pa.types.is_union(data_type):  # whose members hold anything where another one counts
        return []
    return [pc.list_flatten(column)]
