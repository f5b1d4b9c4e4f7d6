"""What the manifests know about columns: statistics for DuckDB's planner, and conditions that spare Spark files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.catalog.table import ColumnStatistics
from sparkport.errors import SparkportError
from sparkport.lakehouse.columns.storage import from_stored
from sparkport.lakehouse.columns.types import stored_type
from sparkport.lakehouse.iceberg import prune
from sparkport.lakehouse.iceberg.manifests import DataFile
from sparkport.lakehouse.iceberg.row_groups import footer_of
from sparkport.lakehouse.spark.sql import literal, quoted

__all__ = ["bounds_predicate", "column_statistics"]

_ORDERED = ("int", "long", "date", "timestamp", "timestamptz")
_COLUMNS_USED = 2
_MOST_FOOTERS = 16


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
    """Ranges of the columns that tell the rows with these ids from the others best; empty when none does.

    They are ranges of whole files, or of row groups where few files are touched: Spark skips both by their statistics.
    """
    fields = [field for field in fields if field["type"] in _ORDERED]
    touched = prune.by_row_ids(files, row_ids)
    paths = {file.path for file in touched}
    others = [file for file in files if file.path not in paths]
    if len(touched) <= _MOST_FOOTERS:
        touched, spared_groups = _in_row_groups(touched, row_ids, [field["id"] for field in fields])
        others += spared_groups
    if not others or not touched:
        return ""
    found: list[tuple[int, str]] = []
    for field in fields:
        spared, text = _range(touched, others, field, alias)
        if spared:
            found.append((spared, text))
    found.sort(reverse=True)
    return " AND ".join(text for _, text in found[:_COLUMNS_USED])


def _in_row_groups(
    files: Sequence[DataFile], row_ids: NDArray[np.int64], field_ids: Sequence[int]
) -> tuple[list[DataFile], list[DataFile]]:
    """Row groups in the form of files: those that may hold one of the rows, and the others. Some stay whole."""
    touched: list[DataFile] = []
    others: list[DataFile] = []
    for file in files:
        footer = footer_of(file)
        if footer is None:
            touched.append(file)
            continue
        groups = footer.row_groups(file, field_ids)
        chosen = prune.by_row_ids(groups, row_ids)
        kept = {id(group) for group in chosen}
        touched += chosen
        others += [group for group in groups.files if id(group) not in kept]
    return touched, others


def _range(
    touched: Sequence[DataFile], others: Sequence[DataFile], field: Mapping[str, Any], alias: str
) -> tuple[int, str]:
    field_id, kind = field["id"], field["type"]
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
            spared += file.record_count
    if not spared:
        return 0, ""
    column = f"{alias}.{quoted(str(field['name']))}"
    return spared, f"{column} >= {least} AND {column} <= {most}"
