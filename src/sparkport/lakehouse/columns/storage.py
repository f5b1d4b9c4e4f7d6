"""Values between the declared and the stored form of a column, without loss in either direction.

``types.py`` says which forms a column has. What cannot be stored exactly is InvalidArgument; a stored value that the
declared type cannot hold (another writer put it there) is FailedPrecondition. Never a value that is only nearly right.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkport.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from sparkport.lakehouse.columns.type_table import is_list
from sparkport.lakehouse.columns.types import stored_type

__all__ = ["conformed", "conformed_batch", "from_stored", "list_offsets", "map_entries", "to_stored", "uuid_text"]

_INFINITE = 2**63 - 1
"""DuckDB's infinity in timestamps of any unit; the negative of it is the other one."""

_PER_UNIT = {"s": 1_000_000, "ms": 1_000}
_UUID_PARTS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))


def to_stored(column: pa.Array, declared: pa.Field, iceberg_field: dict[str, Any]) -> pa.Array:
    """Values of a client as they are staged: an array of ``stored_type``."""
    try:
        return _store(column, stored_type(iceberg_field["type"]))
    except pa.ArrowException as exc:
        raise InvalidArgument(f"column '{declared.name}' has a value that cannot be stored exactly: {exc}") from exc


def from_stored(column: pa.Array, declared: pa.Field, iceberg_field: dict[str, Any]) -> pa.Array:
    """Values as DuckDB has read them from the table's files, in the declared type.

    ResourceExhausted where a dictionary's index is too narrow for the values of so many rows: take fewer at a time.
    """
    try:
        return _load(column, declared.type)
    except pa.ArrowException as exc:
        stored = iceberg_field["type"]
        raise FailedPrecondition(
            f"column '{declared.name}' ({stored}) has a value that {declared.type} cannot hold: {exc}"
        ) from exc


def conformed_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Stored columns that DuckDB has handed through, in the very types and under the names that they are staged in."""
    columns = [
        pa.nulls(len(column)) if pa.types.is_null(field.type) else _store(column, field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def conformed(column: pa.Array, stored: pa.DataType) -> pa.Array:
    """One such column."""
    return _store(column, stored)


def _store(column: pa.Array, stored: pa.DataType) -> pa.Array:
    declared = column.type
    if declared == stored:
        return column
    if pa.types.is_dictionary(declared):
        return _store(column.dictionary_decode(), stored)
    if isinstance(declared, pa.BaseExtensionType):
        return uuid_text(column.storage) if declared.extension_name == "arrow.uuid" else _store(column.storage, stored)
    if is_list(declared):
        items = _store(pc.list_flatten(column), stored.value_type)
        return pa.ListArray.from_arrays(list_offsets(column), items, type=stored, mask=column.is_null())
    if pa.types.is_map(declared):
        offsets, keys, values = map_entries(column)
        keys, values = _store(keys, stored.key_type), _store(values, stored.item_type)
        return pa.MapArray.from_arrays(offsets, keys, values, type=stored, mask=column.is_null())
    if pa.types.is_union(declared):
        return _store_union(column, stored)
    if pa.types.is_struct(declared):
        children = [_store(column.field(at), stored.field(at).type) for at in range(stored.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(stored), mask=column.is_null())
    return _store_leaf(column, stored)


def _store_leaf(column: pa.Array, stored: pa.DataType) -> pa.Array:
    declared = column.type
    if pa.types.is_interval(declared):
        return column.view(pa.binary(16)).cast(stored)
    if pa.types.is_timestamp(declared) and declared.unit in _PER_UNIT:
        return _to_microseconds(column, stored)
    if pa.types.is_timestamp(declared) and pa.types.is_timestamp(stored):
        return column.view(stored)  # zones differ in name only: the instants are UTC
    if pa.types.is_time(declared) or pa.types.is_duration(declared) or pa.types.is_timestamp(declared):
        return _number(column).cast(stored)
    return column.cast(stored)


def _load(column: pa.Array, declared: pa.DataType) -> pa.Array:
    if _same(column.type, declared):
        return column
    if pa.types.is_null(declared):
        return pa.nulls(len(column))
    if pa.types.is_dictionary(declared):
        return _dictionary(_load(column, declared.value_type), declared)
    if isinstance(declared, pa.BaseExtensionType):
        is_text = declared.extension_name == "arrow.uuid" and not pa.types.is_fixed_size_binary(column.type)
        storage = _uuid_bytes(column) if is_text else _load(column, declared.storage_type)
        return declared.wrap_array(storage)
    if is_list(declared):
        return _load_list(column, declared)
    if pa.types.is_map(declared):
        offsets, keys, values = map_entries(column)
        keys, values = _load(keys, declared.key_type), _load(values, declared.item_type)
        return pa.MapArray.from_arrays(offsets, keys, values, type=declared, mask=column.is_null())
    if pa.types.is_union(declared):
        return _load_union(column, declared)
    if pa.types.is_struct(declared):
        children = [_load(column.field(at), declared.field(at).type) for at in range(declared.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(declared), mask=column.is_null())
    return _load_leaf(column, declared)


def _load_leaf(column: pa.Array, declared: pa.DataType) -> pa.Array:
    if pa.types.is_interval(declared):
        return column.cast(pa.binary(16)).view(declared)
    if pa.types.is_timestamp(declared) and pa.types.is_timestamp(column.type):
        if declared.unit in _PER_UNIT:
            return _from_microseconds(column, declared)
        return column.view(declared)
    if pa.types.is_time(declared) or pa.types.is_duration(declared) or pa.types.is_timestamp(declared):
        return _number(column).cast(pa.int32() if pa.types.is_time32(declared) else pa.int64()).view(declared)
    return column.cast(declared)


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    """Equality of types does not look at the names of list items; readers of the schema do."""
    return bool(pa.field("", one).equals(pa.field("", other), check_metadata=True))


def _number(column: pa.Array) -> pa.Array:
    return column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())


# Timestamps. Infinity is the same number in each unit, so it is left out of the arithmetic.


def _is_infinite(numbers: pa.Array) -> pa.Array:
    return pc.or_(pc.equal(numbers, _INFINITE), pc.equal(numbers, -_INFINITE))


def _to_microseconds(column: pa.Array, stored: pa.DataType) -> pa.Array:
    numbers = column.view(pa.int64())
    infinite = _is_infinite(numbers)
    finite = pc.multiply_checked(pc.if_else(infinite, 0, numbers), _PER_UNIT[column.type.unit])
    return pc.if_else(infinite, numbers, finite).view(stored)


def _from_microseconds(column: pa.Array, declared: pa.DataType) -> pa.Array:
    numbers = column.view(pa.int64())
    infinite = _is_infinite(numbers)
    finite = pc.if_else(infinite, 0, numbers).view(pa.timestamp("us")).cast(pa.timestamp(declared.unit))
    return pc.if_else(infinite, numbers, finite.view(pa.int64())).view(declared)


# UUIDs are text for Spark. Whole buffers at once: a loop over rows is many times slower.


def uuid_text(column: pa.Array) -> pa.Array:
    digits = column.buffers()[1].slice(column.offset * 16, len(column) * 16).to_pybytes().hex().encode()
    offsets = array("i", range(0, len(digits) + 1, 32))
    text = pa.Array.from_buffers(pa.string(), len(column), [None, pa.py_buffer(offsets), pa.py_buffer(digits)])
    parts = [pc.utf8_slice_codeunits(text, start, stop) for start, stop in _UUID_PARTS]
    return pc.if_else(column.is_valid(), pc.binary_join_element_wise(*parts, "-"), pa.scalar(None, pa.string()))


def _uuid_bytes(column: pa.Array) -> pa.Array:
    text = pc.replace_substring(column.cast(pa.string()).fill_null("0" * 32), "-", "")
    data = bytes.fromhex(text.buffers()[2].slice(0, 32 * len(text)).to_pybytes().decode())
    valid = pc.if_else(column.is_valid(), True, False)
    return pa.Array.from_buffers(pa.binary(16), len(column), [valid.buffers()[1], pa.py_buffer(data)])


def _dictionary(values: pa.Array, declared: pa.DataType) -> pa.Array:
    encoded = values.dictionary_encode()
    try:
        indices = encoded.indices.cast(declared.index_type)
    except pa.ArrowInvalid as exc:
        count = len(encoded.dictionary)
        raise ResourceExhausted(f"{count} different values are too many for {declared} in one batch") from exc
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=declared.ordered)


# Lists, maps and unions, taken apart and put together. Slices and values hidden under nulls are taken care of here.


def list_offsets(column: pa.Array) -> pa.Array:
    lengths = pc.list_value_length(column).fill_null(0).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum_checked(lengths)])


def _load_list(column: pa.Array, declared: pa.DataType) -> pa.Array:
    items = _load(pc.list_flatten(column), declared.value_type)
    offsets, mask = list_offsets(column), column.is_null()
    if pa.types.is_fixed_size_list(declared):
        return _fixed_size_list(items, offsets, declared=declared, mask=mask)
    if pa.types.is_list(declared):
        return pa.ListArray.from_arrays(offsets, items, type=declared, mask=mask)
    if pa.types.is_large_list(declared):
        return pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), items, type=declared, mask=mask)
    large = pa.types.is_large_list_view(declared)
    number, views = (pa.int64(), pa.LargeListViewArray) if large else (pa.int32(), pa.ListViewArray)
    starts, ends = offsets[:-1].cast(number), offsets[1:].cast(number)
    return views.from_arrays(pc.add(starts, 0), pc.subtract(ends, starts), items, type=declared, mask=mask)


def _fixed_size_list(items: pa.Array, offsets: pa.Array, *, declared: pa.DataType, mask: pa.Array) -> pa.Array:
    """A null list has no items in the stored form, and as many as any other in this one."""
    rows = _row_numbers(len(items))
    places = pa.ListArray.from_arrays(offsets, rows, mask=mask).cast(pa.list_(rows.type, declared.list_size))
    if places.null_count:  # under a null there are numbers of no meaning
        hidden = pa.array(np.repeat(mask.to_numpy(zero_copy_only=False), declared.list_size))
        items = items.take(pc.if_else(hidden, pa.scalar(None, rows.type), places.values))
    return pa.FixedSizeListArray.from_arrays(items, type=declared, mask=mask)


def _row_numbers(count: int) -> pa.Array:
    return pa.array(range(count), pa.int32())


def map_entries(column: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    offsets = column.offsets
    start = offsets[0].as_py()
    count = offsets[-1].as_py() - start
    return pc.subtract(offsets, start), column.keys.slice(start, count), column.items.slice(start, count)


def _store_union(column: pa.Array, stored: pa.DataType) -> pa.Array:
    declared = column.type
    buffers, rows = column.buffers(), len(column)
    # Not column.type_codes and column.offsets: those forget where a slice begins.
    codes = pa.Array.from_buffers(pa.int8(), rows, [None, buffers[1]], offset=column.offset)
    places = _row_numbers(rows)
    if declared.mode == "dense":
        places = pa.Array.from_buffers(pa.int32(), rows, [None, buffers[2]], offset=column.offset)
    children = [codes.cast(pa.int32())]
    for at, code in enumerate(declared.type_codes):
        chosen = pc.if_else(pc.equal(codes, code), places, pa.scalar(None, pa.int32()))
        children.append(_store(column.field(at), stored.field(at + 1).type).take(chosen))
    return pa.StructArray.from_arrays(children, fields=list(stored))


def _load_union(column: pa.Array, declared: pa.DataType) -> pa.Array:
    """A null struct, which a union cannot be, is a null of its first member."""
    tags, *members = column.flatten()
    codes = tags.fill_null(declared.type_codes[0]).cast(pa.int8())
    children = [_load(member, declared.field(at).type) for at, member in enumerate(members)]
    buffers = [None, codes.buffers()[1]]
    if declared.mode == "dense":
        buffers.append(_row_numbers(len(column)).buffers()[1])
    return pa.Array.from_buffers(declared, len(column), buffers, children=children)
