"""What the manifests know about columns: statistics for DuckDB's planner, and conditions that spare Spark files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.catalog.table import ColumnStatistics
from sparkport.errors import SparkportError
from sparkport.lakehouse import prune
from sparkport.lakehouse.manifests import DataFile
from sparkport.lakehouse.spark_sql import literal, quoted
from sparkport.lakehouse.storage import from_stored
from sparkport.lakehouse.types import stored_type

__all__ = ["bounds_predicate", "column_statistics"]

_ORDERED = ("int", "long", "date", "timestamp", "timestamptz")
_COLUMNS_USED = 2


def column_statistics(files: Sequence[DataFile], field: Mapping[str, Any], declared: pa.Field) -> ColumnStatistics:
    """Bounds over all files, where each of them has some. Rows deleted since make bounds too wide, never too narrow."""
    field_id, kind = field["id"], field["type"]
    nulls = [file.null_counts.get(field_id) for file in files]
    values = [file.value_counts.get(field_id) for file in files]
    has_null = None if None in nulls else any(nulls)
    has_value = None
    if None not in nulls and None not in values:
        has_value = any((value or 0) > (null or 0) for value, null in zip(values, nulls, strict=True))
    known = ColumnStatistics(has_null=has_null, has_not_null=has_value)
    if kind not in _ORDERED or not files:
        return known
    bounds = [
        file.bounds(field_id, kind)
        for file in files
        if field_id not in file.value_counts or file.value_counts[field_id] != file.null_counts.get(field_id)
    ]
    if not bounds or any(low is None or high is None for low, high in bounds):
        return known
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    try:
        minimum, maximum = _values([low, high], field, declared)
    except (pa.ArrowException, SparkportError):  # a value that another writer put there, and the type cannot hold
        return known
    return ColumnStatistics(minimum=minimum, maximum=maximum, has_null=has_null, has_not_null=has_value)


def _values(bounds: list[int], field: Mapping[str, Any], declared: pa.Field) -> pa.Array:
    """Bounds are whole units since the epoch, as values are stored; never Python's dates, which end too early."""
    stored = stored_type(field["type"])
    units = pa.int32() if stored.bit_width == 32 else pa.int64()
    return from_stored(pa.array(bounds, units).view(stored), declared, dict(field))


def bounds_predicate(
    files: Sequence[DataFile], row_ids: NDArray[np.int64], fields: Iterable[Mapping[str, Any]], alias: str
) -> str:
    """Ranges of the columns that tell the files with these row ids from the others best; empty when none does."""
    touched = prune.by_row_ids(files, row_ids)
    paths = {file.path for file in touched}
    others = [file for file in files if file.path not in paths]
    if not others:
        return ""
    found: list[tuple[int, str]] = []
    for field in fields:
        spared, text = _range(touched, others, field, alias)
        if spared:
            found.append((spared, text))
    found.sort(reverse=True)
    return " AND ".join(text for _, text in found[:_COLUMNS_USED])


def _range(
    touched: Sequence[DataFile], others: Sequence[DataFile], field: Mapping[str, Any], alias: str
) -> tuple[int, str]:
    field_id, kind = field["id"], field["type"]
    if kind not in _ORDERED:
        return 0, ""
    bounds = [file.bounds(field_id, kind) for file in touched]
    if any(low is None or high is None for low, high in bounds) or any(
        file.null_counts.get(field_id) != 0 for file in touched
    ):
        return 0, ""
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    least, most = literal(low, kind), literal(high, kind)
    if least is None or most is None:
        return 0, ""
    spared = 0
    for file in others:
        other_low, other_high = file.bounds(field_id, kind)
        if other_low is not None and other_high is not None and (other_high < low or other_low > high):
            spared += 1
    if not spared:
        return 0, ""
    column = f"{alias}.{quoted(str(field['name']))}"
    return spared, f"{column} >= {least} AND {column} <= {most}"
