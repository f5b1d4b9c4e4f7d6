"""Which Arrow types a table takes for a column of its own: the same, or one from which nothing is lost.

Clients do not always send a column in the type the table has: DuckDB sends text in three layouts by the user's
settings, an enum as text or as a dictionary, a UUID as text. All that is safe is taken and made the table's type.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pyarrow as pa

__all__ = ["Converter", "converter", "converter_by_value", "decoded", "decoded_type"]

Converter = Callable[[pa.Array], pa.Array]

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
_DIGITS = 20  # of any whole number of 64 bits
_UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}


def decoded_type(data_type: pa.DataType) -> pa.DataType:
    """The type of an enum's values for an enum: of what a function returns, DuckDB's client shows the numbers else."""
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type


def decoded(column: pa.Array) -> pa.Array:
    """A column as ``decoded_type`` says."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def converter(source: pa.DataType, target: pa.DataType) -> Converter | None:
    """What makes arrays of ``source`` into ``target``; None when something could be lost. May raise ArrowInvalid."""
    if source == target:
        return _same
    if pa.types.is_null(source):
        return lambda column: pa.nulls(len(column), target)
    if isinstance(target, pa.BaseExtensionType):
        return _to_extension(source, target)
    if isinstance(source, pa.BaseExtensionType):
        return _from_extension(source, target)
    if pa.types.is_dictionary(source) and not pa.types.is_dictionary(target):
        return _chain(lambda column: column.dictionary_decode(), source.value_type, target)
    if pa.types.is_dictionary(target):
        value = source.value_type if pa.types.is_dictionary(source) else source
        return None if converter(value, target.value_type) is None else _cast(target)
    if _is_nested(source) or _is_nested(target):
        return _cast(target) if _nested_fits(source, target) else None
    return _cast(target) if _plain_fits(source, target) else None


def converter_by_value(source: pa.DataType, target: pa.DataType) -> Converter | None:
    """As ``converter``, and also between numbers, and from days to moments, as DuckDB's own INSERT casts.

    A value that does not fit raises ArrowInvalid: whole numbers are never rounded.
    """
    convert = converter(source, target)
    if convert is not None:
        return convert
    if pa.types.is_date(source) and pa.types.is_timestamp(target) and target.tz is None:
        return _cast(target)
    if not (_is(source, _NUMBERS) and _is(target, _NUMBERS)):
        return None
    if pa.types.is_integer(source) and pa.types.is_decimal(target):
        wide = pa.decimal128(_DIGITS, 0)
        return lambda column: column.cast(wide).cast(target)
    return _cast(target)


def _same(column: pa.Array) -> pa.Array:
    return column


def _cast(target: pa.DataType) -> Converter:
    return lambda column: column.cast(target, safe=True)


def _chain(first: Converter, between: pa.DataType, target: pa.DataType) -> Converter | None:
    second = converter(between, target)
    return None if second is None else lambda column: second(first(column))


def _is_nested(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_nested(data_type))


def _is(data_type: pa.DataType, checks: tuple[Callable[[pa.DataType], bool], ...]) -> bool:
    return any(check(data_type) for check in checks)


def _plain_fits(source: pa.DataType, target: pa.DataType) -> bool:
    if _is(source, _TEXT) and _is(target, _TEXT):
        return True
    if _is(source, _BYTES) and _is(target, _BYTES):
        return not pa.types.is_fixed_size_binary(target)
    if pa.types.is_integer(source) and pa.types.is_integer(target):
        signed = pa.types.is_signed_integer(target)
        if pa.types.is_signed_integer(source):
            return bool(signed and target.bit_width >= source.bit_width)
        return bool(target.bit_width > source.bit_width or (not signed and target.bit_width == source.bit_width))
    if pa.types.is_floating(source) and pa.types.is_floating(target):
        return bool(target.bit_width >= source.bit_width)
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        whole = target.precision - target.scale >= source.precision - source.scale
        return bool(whole and target.scale >= source.scale)
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None) and _UNITS[source.unit] <= _UNITS[target.unit]
    if pa.types.is_time(source) and pa.types.is_time(target):
        return _UNITS[source.unit] <= _UNITS[target.unit]
    if pa.types.is_duration(source) and pa.types.is_duration(target):
        return _UNITS[source.unit] <= _UNITS[target.unit]
    return bool(pa.types.is_date(source) and pa.types.is_date64(target))


def _nested_fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Names of list items and map entries do not matter, names of struct fields do."""
    if _is(source, _LISTS) and _is(target, _LISTS):
        fixed = pa.types.is_fixed_size_list(target)
        if fixed and not (pa.types.is_fixed_size_list(source) and source.list_size == target.list_size):
            return False
        return converter(source.value_type, target.value_type) is not None
    if pa.types.is_map(source) and pa.types.is_map(target):
        keys = converter(source.key_type, target.key_type)
        return keys is not None and converter(source.item_type, target.item_type) is not None
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        names = [source.field(index).name for index in range(source.num_fields)]
        if names != [target.field(index).name for index in range(target.num_fields)]:
            return False
        return all(
            converter(source.field(index).type, target.field(index).type) is not None
            for index in range(source.num_fields)
        )
    return False


def _to_extension(source: pa.DataType, target: pa.BaseExtensionType) -> Converter | None:
    if target.extension_name == "arrow.uuid" and _is(source, _TEXT):
        return lambda column: target.wrap_array(_uuid_bytes(column))
    if target.extension_name == "arrow.bool8" and pa.types.is_boolean(source):
        return lambda column: target.wrap_array(column.cast(pa.int8()))
    storage = source.storage_type if isinstance(source, pa.BaseExtensionType) else source
    if isinstance(source, pa.BaseExtensionType) and source.extension_name != target.extension_name:
        return None
    inner = converter(storage, target.storage_type)
    if inner is None:
        return None
    return lambda column: target.wrap_array(inner(column.storage if hasattr(column, "storage") else column))


def _from_extension(source: pa.BaseExtensionType, target: pa.DataType) -> Converter | None:
    if source.extension_name == "arrow.uuid" and _is(target, _TEXT):
        return lambda column: pa.array(
            [None if value is None else str(UUID(bytes=value)) for value in column.storage.to_pylist()], target
        )
    if source.extension_name == "arrow.bool8" and pa.types.is_boolean(target):
        return lambda column: column.storage.cast(pa.bool_())
    return _chain(lambda column: column.storage, source.storage_type, target)


def _uuid_bytes(column: pa.Array) -> pa.Array:
    try:
        values = [None if text is None else UUID(text).bytes for text in column.to_pylist()]
    except ValueError as exc:
        raise pa.ArrowInvalid("not a UUID") from exc
    return pa.array(values, pa.binary(16))
