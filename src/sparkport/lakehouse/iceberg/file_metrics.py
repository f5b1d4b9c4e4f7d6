"""What a manifest says of a data file that was just written, made from the file's footer as Iceberg's writers do it.

Bounds of texts and bytes are cut to 16, upper ones rounded up. NaN is in no bounds: its count is taken from the rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

__all__ = ["FileMetrics", "Leaf", "leaves_of", "metrics_of"]

_CUT = 16
_MOST_COLUMNS = 100
"""Iceberg's writers stop here unless a table says otherwise: manifests of wide tables would be large."""

_PACKED = {
    "int": "<i",
    "date": "<i",
    "long": "<q",
    "timestamp": "<q",
    "timestamptz": "<q",
    "float": "<f",
    "double": "<d",
}
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of a file. ``path`` leads to it through structs; it is None for what lists and maps have inside."""

    field_id: int
    iceberg_type: str
    path: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetrics:
    """By field id."""

    column_sizes: Mapping[int, int]
    value_counts: Mapping[int, int]
    null_counts: Mapping[int, int]
    nan_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]
    split_offsets: Sequence[int]


def leaves_of(fields: Sequence[Mapping[str, Any]]) -> tuple[Leaf, ...]:
    """In the order in which a file has its columns."""
    return tuple(leaf for at, field in enumerate(fields) for leaf in _leaves(field["type"], field["id"], (at,)))


def _leaves(iceberg_type: Any, field_id: int, path: tuple[int, ...] | None) -> Iterator[Leaf]:
    match iceberg_type:
        case str():
            yield Leaf(field_id, iceberg_type, path)
        case {"type": "struct", "fields": fields}:
            for at, field in enumerate(fields):
                yield from _leaves(field["type"], field["id"], None if path is None else (*path, at))
        case {"type": "list", "element": element, "element-id": element_id}:
            yield from _leaves(element, element_id, None)
        case {"type": "map", "key": key, "key-id": key_id, "value": value, "value-id": value_id}:
            yield from _leaves(key, key_id, None)
            yield from _leaves(value, value_id, None)


def metrics_of(footer: pq.FileMetaData, leaves: Sequence[Leaf], nan_counts: Mapping[int, int]) -> FileMetrics:
    """``leaves`` are the file's columns. ``nan_counts`` has all columns of numbers that may be NaN, but for nested ones
    in lists and maps."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    nans: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for place, leaf in enumerate(leaves[:_MOST_COLUMNS]):
        chunks = [group.column(place) for group in groups]
        sizes[leaf.field_id] = sum(chunk.total_compressed_size for chunk in chunks)
        if leaf.path is None:
            continue
        values[leaf.field_id] = sum(chunk.num_values for chunk in chunks)
        statistics = [chunk.statistics for chunk in chunks]
        if all(known is not None and known.has_null_count for known in statistics):
            nulls[leaf.field_id] = sum(known.null_count for known in statistics)
        if leaf.field_id in nan_counts:
            nans[leaf.field_id] = nan_counts[leaf.field_id]
        bounds = _bounds(statistics, leaf.iceberg_type, has_nan=nans.get(leaf.field_id, 0) > 0)
        if bounds is not None:
            low, high = _lower(leaf.iceberg_type, bounds[0]), _upper(leaf.iceberg_type, bounds[1])
            if low is not None:
                lower[leaf.field_id] = low
            if high is not None:
                upper[leaf.field_id] = high
    return FileMetrics(
        column_sizes=sizes,
        value_counts=values,
        null_counts=nulls,
        nan_counts=nans,
        lower_bounds=lower,
        upper_bounds=upper,
        split_offsets=[_start(group) for group in groups],
    )


def _start(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    offset = first.dictionary_page_offset if first.has_dictionary_page else None
    return int(first.data_page_offset if offset is None else min(offset, first.data_page_offset))


def _bounds(statistics: Sequence[Any], iceberg_type: str, *, has_nan: bool) -> tuple[Any, Any] | None:
    """The lowest and the highest value of all row groups, None where a group with values does not tell."""
    told = []
    for known in statistics:
        if known is None:
            return None
        if not known.has_min_max:
            if known.num_values and not has_nan:
                return None
            continue
        told.append((_value(iceberg_type, known.min_raw), _value(iceberg_type, known.max_raw)))
    return (min(low for low, _ in told), max(high for _, high in told)) if told else None


def _value(iceberg_type: str, raw: Any) -> Any:
    """One that compares as the type does."""
    if iceberg_type.startswith("decimal") and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw


def _plain(iceberg_type: str, value: Any) -> bytes | None:
    if iceberg_type in _PACKED:
        return struct.pack(_PACKED[iceberg_type], value)
    if iceberg_type == "boolean":
        return b"\x01" if value else b"\x00"
    if iceberg_type.startswith("decimal"):
        return int(value).to_bytes(((value if value >= 0 else ~value).bit_length() // 8) + 1, "big", signed=True)
    return value if isinstance(value, bytes) and iceberg_type == "uuid" else None


def _lower(iceberg_type: str, value: Any) -> bytes | None:
    if iceberg_type == "string":
        return _text(value)[:_CUT].encode()
    if iceberg_type == "binary" or iceberg_type.startswith("fixed"):
        return bytes(value[:_CUT])
    return _plain(iceberg_type, value)


def _upper(iceberg_type: str, value: Any) -> bytes | None:
    """No less than the value; None where nothing so short is."""
    if iceberg_type == "string":
        text = _text(value)
        return value if len(text) <= _CUT else _next_text(text[:_CUT])
    if iceberg_type == "binary" or iceberg_type.startswith("fixed"):
        return bytes(value) if len(value) <= _CUT else _next_bytes(value[:_CUT])
    return _plain(iceberg_type, value)


def _text(value: bytes) -> str:
    return value.decode()


def _next_text(text: str) -> bytes | None:
    for at in range(len(text) - 1, -1, -1):
        code = ord(text[at]) + 1
        if code in _SURROGATES:
            code = _SURROGATES.stop
        if code <= _LAST_CODE_POINT:
            return (text[:at] + chr(code)).encode()
    return None


def _next_bytes(data: bytes) -> bytes | None:
    for at in range(len(data) - 1, -1, -1):
        if data[at] < 0xFF:
            return data[:at] + bytes([data[at] + 1])
    return None
