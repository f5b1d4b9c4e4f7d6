"""Rows that make engines stumble: nulls, many types, several batches."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa

__all__ = ["NUMBERS", "TYPES", "numbers"]


def numbers(start: int, stop: int) -> pa.Table:
    ids = list(range(start, stop))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([None if i % 7 == 0 else f"n{i:05}" for i in ids]),
            "price": pa.array([None if i % 5 == 0 else i / 4 for i in ids], pa.float64()),
        }
    )


NUMBERS = pa.concat_tables([numbers(0, 1000), numbers(1000, 1001), numbers(1001, 5000)])
"""5,000 rows in three batches."""

_PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])

TYPES = pa.table(
    {
        "flag": pa.array([True, None, False]),
        "tiny": pa.array([-5, None, 127], pa.int8()),
        "big": pa.array([2**62, None, -(2**62)], pa.int64()),
        "real": pa.array([1.5, None, -0.25], pa.float64()),
        "money": pa.array([Decimal("12.30"), None, Decimal("-0.01")], pa.decimal128(10, 2)),
        "word": pa.array(["x", None, "Ærø"]),
        "raw": pa.array([b"\x00\xff", None, b""]),
        "day": pa.array([date(2026, 1, 2), None, date(1999, 12, 31)]),
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 678), None, datetime(1970, 1, 1)], pa.timestamp("us")),
        "zoned": pa.array([datetime(2026, 1, 2), None, datetime(1970, 1, 1)], pa.timestamp("us", tz="UTC")),
        "many": pa.array([[1, None, 2], None, []], pa.list_(pa.int32())),
        "pair": pa.array(
            [{"a": 1, "b": "x"}, None, {"a": None, "b": None}], pa.struct([("a", pa.int32()), ("b", pa.string())])
        ),
        "dict": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
    }
)
