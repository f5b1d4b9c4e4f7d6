"""What a manifest says of a data file that was just written, made from the file's footer as Iceberg's writers do it.

Bounds of texts and bytes are cut to 16, upper ones rounded up. A footer does not have those of long values, and no
count of NaN, which is in no bounds: these are taken from the rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow.parquet as pq

__all__ = ["FileMetrics", "LONG", "Leaf", "leaves_of", "metrics_of"]

LONG = 4_096
"""Of how many bytes a text is at most for Arrow to write it into a footer as a bound."""

_CUT = 16
_MOST_COLUMNS = 100
"""Iceberg's writers stop here unless a table says otherwise: manifests of wide tables would be large. A struct's own
values come before those of what is nested in it."""

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
    """A column of a file. ``path`` leads to it through structs; it is None for what lists and maps have inside.

    ``is_described``: whether manifests say anything of it.
    """

    field_id: int
    iceberg_type: str
    path: tuple[int, ...] | None
    is_described: bool


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
    described = set(islice(_by_rank([(field["type"], field["id"]) for field in fields]), _MOST_COLUMNS))
    found = (leaf for at, field in enumerate(fields) for leaf in _leaves(field["type"], field["id"], (at,)))
    return tuple(Leaf(field_id, kind, path, field_id in described) for field_id, kind, path in found)


def _leaves(
    iceberg_type: Any, field_id: int, path: tuple[int, ...] | None
) -> Iterator[tuple[int, str, tuple[int, ...] | None]]:
    if isinstance(iceberg_type, str):
        yield field_id, iceberg_type, path
        return
    through = path if iceberg_type["type"] == "struct" else None
    for at, (inner, inner_id) in enumerate(_parts(iceberg_type)):
        yield from _leaves(inner, inner_id, None if through is None else (*through, at))


def _by_rank(parts: Sequence[tuple[Any, int]]) -> Iterator[int]:
    """Field ids of values in the order in which Iceberg's writers take them."""
    yield from (field_id for iceberg_type, field_id in parts if isinstance(iceberg_type, str))
    for iceberg_type, _ in parts:
        yield from _by_rank(_parts(iceberg_type))


def _parts(iceberg_type: Any) -> list[tuple[Any, int]]:
    """The types inside of a nested one, with their field ids."""
    match iceberg_type:
        case {"type": "struct", "fields": fields}:
            return [(field["type"], field["id"]) for field in fields]
        case {"type": "list", "element": element, "element-id": element_id}:
            return [(element, element_id)]
        case {"type": "map", "key": key, "key-id": key_id, "value": value, "value-id": value_id}:
            return [(key, key_id), (value, value_id)]
    return []


def metrics_of(
    footer: pq.FileMetaData,
    leaves: Sequence[Leaf],
    nan_counts: Mapping[int, int],
    long_bounds: Mapping[int, tuple[bytes, bytes]],
) -> FileMetrics:
    """``leaves`` are the file's columns. ``nan_counts`` has all columns of numbers that may be NaN, but for nested ones
    in lists and maps. ``long_bounds`` are of the row groups that have values longer than ``LONG``."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    nans: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for place, leaf in enumerate(leaves):
        if not leaf.is_described:
            continue
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
        may_lack = nans.get(leaf.field_id, 0) > 0 or leaf.field_id in long_bounds
        bounds = _bounds(statistics, leaf.iceberg_type, may_lack=may_lack, known=long_bounds.get(leaf.field_id))
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


def _bounds(
    statistics: Sequence[Any], iceberg_type: str, *, may_lack: bool, known: tuple[bytes, bytes] | None
) -> tuple[Any, Any] | None:
    """The lowest and the highest value of all row groups, None where a group with values does not tell."""
    told: list[tuple[Any, Any]] = [] if known is None else [known]
    for group in statistics:
        if group is None:
            return None
        if not group.has_min_max:
            if group.num_values and not may_lack:
                return None
            continue
        told.append((_value(iceberg_type, group.min_raw), _value(iceberg_type, group.max_raw)))
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
        text = _text(value)
        return None if text is None else text[:_CUT].encode()
    if iceberg_type == "binary" or iceberg_type.startswith("fixed"):
        return bytes(value[:_CUT])
    return _plain(iceberg_type, value)


def _upper(iceberg_type: str, value: Any) -> bytes | None:
    """No less than the value; None where nothing so short is."""
    if iceberg_type == "string":
        text = _text(value)
        if text is None:
            return None
        return value if len(text) <= _CUT else _next_text(text[:_CUT])
    if iceberg_type == "binary" or iceberg_type.startswith("fixed"):
        return bytes(value) if len(value) <= _CUT else _next_bytes(value[:_CUT])
    return _plain(iceberg_type, value)


def _text(value: bytes) -> str | None:
    """None for bytes that are no text: a client may send them all the same."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


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
