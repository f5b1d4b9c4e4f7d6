"""Columns without anything of other rows in them.

An array can carry more than its rows show: a dictionary has the values of all rows that it was made for, views point
into buffers that others share, and what is written of a slice is rounded up to whole words. All of it goes over the
wire.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkport.errors import PermissionDenied

__all__ = ["own_values"]


def own_values(column: pa.Array) -> pa.Array:
    """The same values in buffers of their own."""
    if isinstance(column, pa.ExtensionArray):
        return column.type.wrap_array(own_values(column.storage))
    kind = column.type
    if isinstance(column, pa.DictionaryArray):
        used = pc.unique(column.indices).drop_null()
        places = pc.index_in(column.indices, value_set=used).cast(kind.index_type)
        values = own_values(_taken(column.dictionary, used))
        return pa.DictionaryArray.from_arrays(places, values, ordered=kind.ordered)
    if kind in (pa.string_view(), pa.binary_view()):
        return column.cast(pa.large_string() if kind == pa.string_view() else pa.large_binary()).cast(kind)
    if not _is_shared(kind):
        return column.take(pa.array(np.arange(len(column)), pa.int64()))
    return _made_anew(column)


def _taken(values: pa.Array, places: pa.Array) -> pa.Array:
    try:
        return values.take(places)
    except pa.ArrowNotImplementedError:  # of view types
        return pa.array([values[place] for place in places.to_pylist()], values.type)


def _is_shared(kind: pa.DataType) -> bool:
    """Whether a part of the type keeps its values where others' are, so that picking rows does not part them."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind) or kind in (pa.string_view(), pa.binary_view()):
        return True
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _is_shared(kind.storage_type)
    return types.is_nested(kind) and any(_is_shared(kind.field(place).type) for place in range(kind.num_fields))


def _made_anew(column: pa.Array) -> pa.Array:
    """Of Arrow's own values, as Python lacks some dates; Arrow makes no runs of those."""
    has_runs = pa.types.is_run_end_encoded(column.type)
    try:
        return pa.array(column.to_pylist() if has_runs else list(column), column.type)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
        # Not chained: the message may have a value in it.
        raise PermissionDenied(f"a column of type {column.type} cannot be shown in part") from None
