"""Iceberg's binary form of single values, in which manifests keep each file's lowest and highest value of a column.

Values come out as filter literals hold them: dates, times and timestamps as whole units since the epoch or midnight.
"""

from __future__ import annotations

import struct
import uuid
from decimal import Decimal
from typing import Any

__all__ = ["decode"]

_DAY_MICROS = 86_400_000_000


def decode(iceberg_type: Any, data: bytes | None) -> Any:
    """A bound as a value of the column's type of today, None where it is unknown.

    The bytes are in the type that the column had when the file was written: the length shows promotions.
    """
    if data is None or not isinstance(iceberg_type, str):
        return None
    try:
        return _decode(iceberg_type, data)
    except (struct.error, ValueError):
        return None


def _decode(name: str, data: bytes) -> Any:
    match name:
        case "boolean":
            return data != b"\x00"
        case "int" | "date":
            return struct.unpack("<i", data)[0]
        case "long" | "time":
            return struct.unpack("<i" if len(data) == 4 else "<q", data)[0]
        case "float":
            return struct.unpack("<f", data)[0]
        case "double":
            return struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
        case "timestamp" | "timestamptz":
            return struct.unpack("<i", data)[0] * _DAY_MICROS if len(data) == 4 else struct.unpack("<q", data)[0]
        case "timestamp_ns" | "timestamptz_ns":
            days_or_nanos = struct.unpack("<i" if len(data) == 4 else "<q", data)[0]
            return days_or_nanos * _DAY_MICROS * 1000 if len(data) == 4 else days_or_nanos
        case "string":
            return data.decode()
        case "uuid":
            return uuid.UUID(bytes=data)
        case "binary":
            return data
        case _ if name.startswith("fixed"):
            return data
        case _ if name.startswith("decimal("):
            return _decimal(int.from_bytes(data, "big", signed=True), int(name[:-1].partition(",")[2]))
        case _:
            return None


def _decimal(unscaled: int, scale: int) -> Decimal:
    """Digit by digit: Python's decimal arithmetic rounds to 28 of them."""
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
