"""Arrow's values as Python has them, where it can: its years end with 9999 and its day before 24:00.

DuckDB's dates and timestamps go on, and have infinities. ``as_py`` and ``to_pylist`` raise OverflowError for those, or
tell another time of day. So values are compared as the numbers that they are stored as, and shown as texts.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["is_moment", "plain_rows", "plain_value", "stored_numbers", "value_text"]

_INFINITE = {32: 2**31 - 1, 64: 2**63 - 1}
"""DuckDB's infinity, by the bits of a date or a timestamp; the negative of it is the other one."""

_PER_DAY = {"day": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_FORMATTED_DAYS = 10_000_000
"""How many days from 1970 Arrow writes as a date."""


def stored_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Moments as the whole numbers that they are; other columns as they are."""
    return column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64()) if is_moment(column.type) else column


def value_text(value: pa.Scalar) -> str:
    """A value in words, as DuckDB has them: whatever it is, there is one."""
    if not value.is_valid:
        return "NULL"
    if not is_moment(value.type):
        return str(plain_value(value))
    number, kind = value.value, value.type
    per_day = _PER_DAY[_unit(kind)]
    if _is_date(kind) and abs(number) == _INFINITE[kind.bit_width]:
        return "infinity" if number > 0 else "-infinity"
    if pa.types.is_time(kind) and number == per_day:
        return "24:00:00"
    if abs(number) // per_day > _FORMATTED_DAYS:
        return f"{number} {_unit(kind)}"
    if _unit(kind) != "ns":
        try:
            return str(value.as_py())
        except (ArithmeticError, ValueError):
            pass
    return str(value.cast(pa.string()).as_py())


def plain_value(value: pa.Scalar) -> Any:
    """What ``as_py`` gives, with a text for each moment that Python does not have."""
    kind = value.type
    if not value.is_valid or not _has_moments(kind):
        return value.as_py()
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind) or pa.types.is_union(kind):
        return plain_value(value.value)
    if pa.types.is_map(kind):
        return [(plain_value(item["key"]), plain_value(item["value"])) for item in value.values]
    if pa.types.is_struct(kind):
        return {kind.field(place).name: plain_value(value[place]) for place in range(kind.num_fields)}
    if pa.types.is_nested(kind):
        return [plain_value(item) for item in value.values]
    return value.as_py() if _is_known(value) else value_text(value)


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """What ``to_pylist`` gives, for whatever moments."""
    columns = [
        [plain_value(value) for value in column] if _has_moments(column.type) else column.to_pylist()
        for column in batch.columns
    ]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _is_known(value: pa.Scalar) -> bool:
    """Whether Python has just this value."""
    if not is_moment(value.type):
        return True
    if pa.types.is_time(value.type):
        return bool(value.value < _PER_DAY[value.type.unit]) and _unit(value.type) != "ns"
    try:
        value.as_py()
    except (ArithmeticError, ValueError):
        return False
    return not (_is_date(value.type) and abs(value.value) == _INFINITE[value.type.bit_width])


def _is_date(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def is_moment(kind: pa.DataType) -> bool:
    """Whether values are whole numbers that mean a date, a time or a length of time."""
    return bool(_is_date(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind))


def _unit(kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return "day" if pa.types.is_date32(kind) else "ms"
    return str(kind.unit)


def _has_moments(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_moments(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _has_moments(kind.value_type)
    if is_moment(kind):
        return True
    return bool(pa.types.is_nested(kind)) and any(_has_moments(kind.field(at).type) for at in range(kind.num_fields))
