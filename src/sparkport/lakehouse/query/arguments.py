"""Arguments of a query, as literals in exactly their types that take the places of its markers.

Iceberg's parser in Spark 4.1 loses arguments that are sent beside a text. So they are written in letters that cannot
end a literal: digits, and texts as the hexadecimal digits of their bytes.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sparkport.errors import InvalidArgument

__all__ = ["Arguments", "arguments_of"]

_INTEGERS = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.uint8(): "SMALLINT",
    pa.uint16(): "INT",
    pa.uint32(): "BIGINT",
}


class Arguments:
    """Either by position, for ``?``, or by name, for ``:name``; all as literals."""

    def __init__(self, positional: Sequence[str] = (), named: Mapping[str, str] | None = None) -> None:
        self.positional = tuple(positional)
        self.named = {name.casefold(): literal for name, literal in (named or {}).items()}
        if len(self.named) != len(named or {}):
            raise InvalidArgument("two arguments have the same name")


def arguments_of(value: pa.Scalar | None) -> Arguments:
    """What the caller gave as ``args``: a list by position, a MAP or a STRUCT by name."""
    try:
        return _arguments(value)
    except (OverflowError, RecursionError, ValueError) as exc:  # a year of six digits, bytes that are no text, …
        raise InvalidArgument("args: a value is out of range, nested too deeply, or a text that is none") from exc


def _arguments(value: pa.Scalar | None) -> Arguments:
    if value is None or not value.is_valid:
        return Arguments()
    if _is_list(value.type):
        return Arguments([_literal(item, value.type.value_type) for item in value.values])
    if pa.types.is_map(value.type):
        if not _is_text(value.type.key_type):
            raise InvalidArgument("args: the keys of a MAP are the names of parameters, and so must be texts")
        entries = value.values
        names = [str(name) for name in entries.field(0).to_pylist()]
        literals = [_literal(item, value.type.item_type) for item in entries.field(1)]
        _require_distinct(names)
        return Arguments(named=dict(zip(names, literals, strict=True)))
    if pa.types.is_struct(value.type):
        fields = [value.type.field(at) for at in range(value.type.num_fields)]
        _require_distinct([field.name for field in fields])
        return Arguments(named={field.name: _literal(value[at], field.type) for at, field in enumerate(fields)})
    if _is_text(value.type):
        raise InvalidArgument(
            "args must be a list, a MAP or a STRUCT, not a text; DuckDB makes a text of args := …: give them as the "
            "second argument, without a name"
        )
    raise InvalidArgument(f"args must be a list, a MAP or a STRUCT, not {value.type}")


def _require_distinct(names: list[str]) -> None:
    if len({name.casefold() for name in names}) < len(names):
        raise InvalidArgument("args: two of them have the same name")


def _literal(value: pa.Scalar, arrow_type: pa.DataType) -> str:
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _literal(
            value.value if value.is_valid else pa.scalar(None, arrow_type.storage_type), arrow_type.storage_type
        )
    if pa.types.is_dictionary(arrow_type):
        return _literal(pa.scalar(value.as_py(), arrow_type.value_type), arrow_type.value_type)
    spark = _spark_type(arrow_type)
    if not value.is_valid:
        return f"CAST(NULL AS {spark})"
    if _is_list(arrow_type):
        items = ", ".join(_literal(item, arrow_type.value_type) for item in value.values)
        return f"CAST(array({items}) AS {spark})"
    if pa.types.is_map(arrow_type):
        keys = ", ".join(_literal(item, arrow_type.key_type) for item in value.values.field(0))
        items = ", ".join(_literal(item, arrow_type.item_type) for item in value.values.field(1))
        return f"CAST(map_from_arrays(array({keys}), array({items})) AS {spark})"
    if pa.types.is_struct(arrow_type):
        parts = ", ".join(_literal(value[at], arrow_type.field(at).type) for at in range(arrow_type.num_fields))
        return f"CAST(struct({parts}) AS {spark})"
    return f"CAST({_plain(value.as_py())} AS {spark})"


def _plain(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return f"'{value}'"
        case float():
            return f"'{_float(value)}'"
        case Decimal():
            return f"'{value:f}'"
        case str():
            return f"X'{value.encode().hex()}'"
        case bytes():
            return f"X'{value.hex()}'"
        case dt.datetime() | dt.date():
            return f"'{value.isoformat()}'"
    raise InvalidArgument(f"args: a value of type {type(value).__name__} cannot be sent to Spark")


def _float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def _spark_type(arrow_type: pa.DataType) -> str:
    if arrow_type in _INTEGERS:
        return _INTEGERS[arrow_type]
    if pa.types.is_uint64(arrow_type):
        return "DECIMAL(20, 0)"
    if pa.types.is_boolean(arrow_type):
        return "BOOLEAN"
    if pa.types.is_float32(arrow_type) or pa.types.is_float16(arrow_type):
        return "FLOAT"
    if pa.types.is_float64(arrow_type):
        return "DOUBLE"
    if pa.types.is_decimal128(arrow_type):
        return f"DECIMAL({arrow_type.precision}, {arrow_type.scale})"
    if _is_text(arrow_type):
        return "STRING"
    if pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type):
        return "BINARY"
    if pa.types.is_date32(arrow_type):
        return "DATE"
    if pa.types.is_timestamp(arrow_type) and arrow_type.unit != "ns":
        return "TIMESTAMP_NTZ" if arrow_type.tz is None else "TIMESTAMP"
    if pa.types.is_null(arrow_type):
        return "STRING"
    if _is_list(arrow_type):
        return f"ARRAY<{_spark_type(arrow_type.value_type)}>"
    if pa.types.is_map(arrow_type):
        return f"MAP<{_spark_type(arrow_type.key_type)}, {_spark_type(arrow_type.item_type)}>"
    if pa.types.is_struct(arrow_type):
        fields = [arrow_type.field(at) for at in range(arrow_type.num_fields)]
        named = ", ".join("`" + field.name.replace("`", "``") + f"`: {_spark_type(field.type)}" for field in fields)
        return f"STRUCT<{named}>"
    raise InvalidArgument(f"args: a value of type {arrow_type} cannot be sent to Spark: cast it")


def _is_list(arrow_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type)
    )


def _is_text(arrow_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type) or pa.types.is_string_view(arrow_type)
    )
