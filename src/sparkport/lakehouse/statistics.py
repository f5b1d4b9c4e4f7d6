"""What the manifests know about columns: statistics for DuckDB's planner, and conditions that spare Spark files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.catalog.table import ColumnStatistics
from sparkport.lakehouse import prune
from sparkport.lakehouse.manifests import DataFile
from sparkport.lakehouse.spark_sql import literal, quoted

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
        if (file.value_counts.get(field_id) or 1) != file.null_counts.get(field_id)
    ]
    if not bounds or any(low is None or high is None for low, high in bounds):
        return known
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    try:
        low, high = _values([low, high], kind, declared)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return known
    return ColumnStatistics(minimum=low, maximum=high, has_null=has_null, has_not_null=has_value)


def _values(bounds: list[int], kind: str, declared: pa.Field) -> list[Any]:
    """Bounds are whole units since the epoch; as values they are dates and times."""
    stored = {"date": pa.date32(), "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", "UTC")}.get(kind)
    if stored is None:
        return pa.array(bounds, declared.type).to_pylist()  # type: ignore[no-any-return]
    units = pa.int32() if kind == "date" else pa.int64()
    return pa.array(bounds, units).cast(stored).cast(declared.type).to_pylist()  # type: ignore[no-any-return]


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
        file.null_counts.get(field_id) for file in touched
    ):
        return 0, ""
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    spared = 0
    for file in others:
        other_low, other_high = file.bounds(field_id, kind)
        if other_low is not None and other_high is not None and (other_high < low or other_low > high):
            spared += 1
    if not spared:
        return 0, ""
    column = f"{alias}.{quoted(str(field['name']))}"
    return spared, f"{column} >= {literal(low, kind)} AND {column} <= {literal(high, kind)}"
