"""What the manifests know about columns: statistics for DuckDB's planner, and conditions that spare Spark files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.catalog.row_ids import ROW_ID
from sparkport.catalog.table import ColumnStatistics
from sparkport.errors import SparkportError
from sparkport.lakehouse.columns.columns import Columns
from sparkport.lakehouse.columns.storage import from_stored
from sparkport.lakehouse.columns.type_table import SparkLiteral, known_type
from sparkport.lakehouse.columns.types import stored_type
from sparkport.lakehouse.iceberg import prune
from sparkport.lakehouse.iceberg.lineage import Ids
from sparkport.lakehouse.iceberg.manifests import DataFile
from sparkport.lakehouse.iceberg.plan import SnapshotPlan
from sparkport.lakehouse.iceberg.row_groups import footer_of
from sparkport.lakehouse.spark.sql import quoted

__all__ = ["TableStatistics", "bounds_predicate", "column_statistics"]

_COLUMNS_USED = 2
_MOST_FOOTERS = 16


class TableStatistics:
    """What is known of the rows of a plan without reading them."""

    def __init__(self, plan: SnapshotPlan, columns: Columns) -> None:
        self._plan = plan
        self._columns = columns
        self._known: dict[int, ColumnStatistics] = {}
        """The statistics of columns that have been asked for, by their places."""

    def row_count(self) -> int:
        return self._plan.record_count

    def column(self, name: str) -> ColumnStatistics | None:
        if name == ROW_ID:
            return None
        index = self._columns.declared.get_field_index(name)
        if index not in self._known:
            field, declared = self._columns.fields[index], self._columns.declared.field(index)
            self._known[index] = column_statistics(self._plan.files, field, declared)
        return self._known[index]

    def bounds_predicate(self, row_ids: Ids, alias: str) -> str:
        """A condition that holds for all of these rows, whose ids ascend: it spares Spark files and row groups."""
        return bounds_predicate(self._plan.files, row_ids, self._columns.fields, alias)


def column_statistics(files: Sequence[DataFile], field: Mapping[str, Any], declared: pa.Field) -> ColumnStatistics:
    """Bounds over all files, where each of them has some. Rows deleted since make bounds too wide, never too narrow."""
    field_id, iceberg_type = field["id"], field["type"]
    nulls = [file.null_counts.get(field_id) for file in files]
    values = [file.value_counts.get(field_id) for file in files]
    has_null = None if None in nulls else any(nulls)
    has_value = None
    if None not in nulls and None not in values:
        has_value = any((value or 0) > (null or 0) for value, null in zip(values, nulls, strict=True))
    known = ColumnStatistics(has_null=has_null, has_not_null=has_value)
    if _literal(field) is None or not files:
        return known
    bounds = [
        file.bounds(field_id, iceberg_type)
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


def _literal(field: Mapping[str, Any]) -> SparkLiteral | None:
    known = known_type(field["type"])
    return None if known is None else known.literal


def _values(bounds: list[int], field: Mapping[str, Any], declared: pa.Field) -> pa.Array:
    """Bounds are whole units since the epoch, as values are stored; never Python's dates, which end too early."""
    stored = stored_type(field["type"])
    units = pa.int32() if stored.bit_width == 32 else pa.int64()
    return from_stored(pa.array(bounds, units).view(stored), declared, dict(field))


def bounds_predicate(
    files: Sequence[DataFile], row_ids: NDArray[np.int64], fields: Iterable[Mapping[str, Any]], alias: str
) -> str:
    """Ranges of the columns that separate the rows with these ids from the others best; empty when none does.

    They are ranges of whole files, or of row groups where few files are touched: Spark skips both by their statistics.
    """
    fields = [field for field in fields if _literal(field) is not None]
    touched = prune.by_row_ids(files, row_ids)
    paths = {file.path for file in touched}
    others = [file for file in files if file.path not in paths]
    if len(touched) <= _MOST_FOOTERS:
        touched, spared_groups = _in_row_groups(touched, row_ids, [field["id"] for field in fields])
        others += spared_groups
    if not others or not touched:
        return ""
    predicates: list[tuple[int, str]] = []
    for field in fields:
        spared, text = _range(touched, others, field, alias)
        if spared:
            predicates.append((spared, text))
    predicates.sort(reverse=True)
    return " AND ".join(text for _, text in predicates[:_COLUMNS_USED])


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
    field_id, iceberg_type = field["id"], field["type"]
    bounds = [file.bounds(field_id, iceberg_type) for file in touched]
    if any(low is None or high is None for low, high in bounds) or any(
        file.null_counts.get(field_id) != 0 for file in touched
    ):
        return 0, ""
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    literal = _literal(field)
    least, most = (None, None) if literal is None else (literal(low), literal(high))
    if least is None or most is None:
        return 0, ""
    spared = 0
    for file in others:
        other_low, other_high = file.bounds(field_id, iceberg_type)
        if other_low is not None and other_high is not None and (other_high < low or other_low > high):
            spared += file.record_count
    if not spared:
        return 0, ""
    column = f"{alias}.{quoted(str(field['name']))}"
    return spared, f"{column} >= {least} AND {column} <= {most}"
