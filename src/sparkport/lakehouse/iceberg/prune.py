"""Bounds, counts, partitions and row ids show which files cannot hold a row of interest: these are not opened.

One rule: a file goes only when no row in it can make the filter true. What is not understood keeps the file. The
comparison is DuckDB's (NaN is the greatest number and equals itself), not Iceberg's or Python's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkport.catalog.best_effort import best_effort
from sparkport.filters.expressions import (
    And,
    Between,
    Column,
    Comparison,
    Expression,
    In,
    IsNotNull,
    IsNull,
    Literal,
    Or,
    SqlType,
)
from sparkport.filters.types import INTEGERS, ROW_ID, ZONED
from sparkport.lakehouse.iceberg.manifests import DataFile
from sparkport.lakehouse.iceberg.metadata import IcebergSchema, TableMetadata
from sparkport.lakehouse.iceberg.ranges import FileIndex, Flags, Range, Ranges

__all__ = ["by_filter", "by_row_ids"]

_FLOATS = frozenset({"FLOAT", "DOUBLE"})
_TEXT = frozenset({"VARCHAR", "JSON"})
# How many of the literal's units make one of the finest there is.
_UNITS = {"TIMESTAMP_S": 10**9, "TIMESTAMP_MS": 10**6, "TIMESTAMP": 10**3, "TIMESTAMP_NS": 1}
_INFINITE = 2**63 - 1
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "IS NOT DISTINCT FROM": "IS NOT DISTINCT FROM"}


def by_filter(
    files: Iterable[DataFile] | FileIndex,
    metadata: TableMetadata,
    *,
    schema: IcebergSchema,
    filter: Expression | None,  # noqa: A002
) -> list[DataFile]:
    """The files that may hold a row for which ``filter`` is true. An index spares decoding the bounds again."""
    index = _index(files)
    if filter is None:
        return list(index.files)
    return best_effort(
        lambda: index.chosen(_Pruner(index.whole, metadata, schema).may_match(filter)), otherwise=list(index.files)
    )


def by_row_ids(files: Iterable[DataFile] | FileIndex, row_ids: NDArray[np.int64]) -> list[DataFile]:
    """The files that may hold one of these rows; ``row_ids`` MUST be sorted."""
    index = _index(files)
    if not len(row_ids):
        return [file for file in index.files if file.row_id_bounds is None]
    ranges = index.whole.ranges(ROW_ID, _row_id_range)
    if len(row_ids) == 1:
        return index.chosen(ranges.lower.may("<=", int(row_ids[0])) & ranges.upper.may(">=", int(row_ids[0])))
    return [file for file in index.chosen(_overlap(ranges, row_ids)) if _has_one(file, row_ids)]


def _index(files: Iterable[DataFile] | FileIndex) -> FileIndex:
    return files if isinstance(files, FileIndex) else FileIndex(files)


def _overlap(ranges: Ranges, row_ids: NDArray[np.int64]) -> Flags:
    return ranges.lower.may("<=", int(row_ids[-1])) & ranges.upper.may(">=", int(row_ids[0]))


def _has_one(file: DataFile, row_ids: NDArray[np.int64]) -> bool:
    bounds = file.row_id_bounds
    if bounds is None:
        return True
    return bool(np.searchsorted(row_ids, bounds[0], "left") < np.searchsorted(row_ids, bounds[1], "right"))


def _row_id_range(file: DataFile) -> Range:
    bounds = file.row_id_bounds
    return Range() if bounds is None else Range(*bounds, nulls=False)


class _Pruner:
    """Tells for all files at once whether a row in them may make an expression true."""

    def __init__(self, index: FileIndex, metadata: TableMetadata, schema: IcebergSchema) -> None:
        self._index = index
        self._metadata = metadata
        self._columns: dict[str, Mapping[str, Any] | None] = {}
        for field in schema["fields"]:
            name = field["name"].lower()
            self._columns[name] = None if name in self._columns else field

    def may_match(self, expr: Expression) -> Flags:
        match expr:
            case And(nodes):
                return self._combined(nodes, np.logical_and)
            case Or(nodes) if nodes:
                return self._combined(nodes, np.logical_or)
            case Literal(value):
                return self._all(value is not False)
            case IsNull(Column() as column):
                ranges = self._ranges(column)
                return self._all(True) if ranges is None else ranges.nulls
            case IsNotNull(Column() as column):
                ranges = self._ranges(column)
                return self._all(True) if ranges is None else ranges.values
            case Comparison(op, Column() as column, Literal(value, literal_type)):
                return self._compare(op, column, value, literal_type=literal_type)
            case Comparison(op, Literal(value, literal_type), Column() as column) if op in _FLIPPED:
                return self._compare(_FLIPPED[op], column, value, literal_type=literal_type)
            case In(Column() as column, values) if values and all(isinstance(value, Literal) for value in values):
                return self._combined([Comparison("=", column, value) for value in values], np.logical_or)
            case Between(Column() as column, Literal(low, low_type), Literal(high, high_type)):
                lower = self._compare(">=", column, low, literal_type=low_type)
                return lower & self._compare("<=", column, high, literal_type=high_type)
            case _:
                return self._all(True)

    def _all(self, flag: bool) -> Flags:
        return np.full(len(self._index), flag)

    def _combined(self, nodes: Sequence[Expression], combine: Any) -> Flags:
        return functools.reduce(combine, map(self.may_match, nodes), self._all(combine is np.logical_and))

    def _compare(self, op: str, column: Column, value: Any, *, literal_type: SqlType) -> Flags:
        ranges = self._ranges(column)
        if ranges is None or op not in _FLIPPED:
            return self._all(True)
        if value is None:  # a comparison with NULL is never true, but for the one that asks for it
            return ranges.nulls if op == "IS NOT DISTINCT FROM" else self._all(False)
        iceberg_type = "long" if self._is_row_id(column) else self._type(column)
        if not _compared_alike(column.type, literal_type):
            return ranges.values
        wanted = _comparable(value, literal_type, iceberg_type)
        if wanted is None or (op in ("<", "<=") and value != value):  # all numbers come before NaN
            return ranges.values
        if op in ("<", "<="):
            return ranges.values & ranges.lower.may(op, wanted)
        if op in (">", ">="):
            return ranges.values & ranges.upper.may(op, wanted)
        return ranges.values & ranges.lower.may("<=", wanted) & ranges.upper.may(">=", wanted)

    def _is_row_id(self, column: Column) -> bool:
        return column.name.lower() == ROW_ID and ROW_ID not in self._columns

    def _type(self, column: Column) -> Any:
        field = self._columns.get(column.name.lower())
        return None if field is None else field["type"]

    def _ranges(self, column: Column) -> Ranges | None:
        """None where the column is not known, or of a type whose order is not."""
        if self._is_row_id(column):
            return self._index.ranges(ROW_ID, _row_id_range)
        field = self._columns.get(column.name.lower())
        if field is None or not isinstance(field["type"], str):
            return None
        field_id, iceberg_type = field["id"], field["type"]
        return self._index.ranges(
            (field_id, iceberg_type), functools.partial(_file_range, field_id, iceberg_type, self._places(field_id))
        )

    def _places(self, field_id: int) -> dict[int, int]:
        """Where partitions have the column's own value, by spec: only where the transform is the identity."""
        return {
            spec_id: place
            for spec_id, fields in self._metadata.specs.items()
            for place, field in enumerate(fields)
            if field.get("source-id") == field_id and field.get("transform") == "identity"
        }


def _file_range(field_id: int, iceberg_type: str, places: Mapping[int, int], file: DataFile) -> Range:
    place = places.get(file.spec_id)
    nulls = file.null_counts.get(field_id)
    lower, upper = file.bounds(field_id, iceberg_type)
    if place is not None and place < len(file.partition):
        if file.partition[place] is None:
            return Range(nulls=True, values=False)
        if lower is None and upper is None:  # files that came from elsewhere may have no statistics
            lower = upper = _partition_value(file.partition[place], iceberg_type)
    if iceberg_type in ("float", "double"):
        # Bounds leave NaN out, which is greater than all of them; without a count there may be some.
        if file.nan_counts.get(field_id) != 0:
            upper = None
        lower = None if lower is not None and math.isnan(lower) else lower
        upper = None if upper is not None and math.isnan(upper) else upper
    return Range(
        lower if lower is None else _scaled(lower, iceberg_type),
        upper if upper is None else _scaled(upper, iceberg_type),
        nulls=nulls != 0,
        values=nulls is None or nulls < file.record_count,
    )


def _partition_value(value: Any, iceberg_type: str) -> Any:
    """A value as Avro's reader gives it, in the form that bounds have; None where the two may differ."""
    match iceberg_type:
        case "int" | "long" | "date" if isinstance(value, int):
            return value
        case "string" if isinstance(value, str):
            return value
        case _:
            return None


def _scaled(value: Any, iceberg_type: str) -> Any:
    """Timestamps in nanoseconds, so that all units compare."""
    if iceberg_type in ("timestamp", "timestamptz"):
        return _nanos(value, 1000)
    return _nanos(value, 1) if iceberg_type in ("timestamp_ns", "timestamptz_ns") else value


def _compared_alike(seen: SqlType | None, literal: SqlType) -> bool:
    """Whether the sender compares the column as the literal's type, and not as what it cast the column to."""
    if seen is None or seen == literal or seen.id == literal.id:
        return True
    return {seen.id, literal.id} <= _TEXT or {seen.id, literal.id} <= INTEGERS


def _comparable(value: Any, literal_type: SqlType, iceberg_type: Any) -> Any:
    """A literal in the form that bounds of this type have; None where the two are not compared by value."""
    if not isinstance(iceberg_type, str):
        return None
    name = literal_type.id
    whole = isinstance(value, int) and not isinstance(value, bool)
    match iceberg_type:
        case "boolean":
            return value if name == "BOOLEAN" and isinstance(value, bool) else None
        case "int" | "long":
            return value if (name in INTEGERS and whole) or _is_decimal(value, name) else None
        case "float" | "double":
            if name not in _FLOATS or not isinstance(value, float | int) or (name, iceberg_type) == ("FLOAT", "double"):
                return None  # rounded to FLOAT, values leave the bounds that they have as DOUBLE
            # NaN is the greatest, and equal to itself: as good as infinity, since no upper limit is known with it.
            return math.inf if math.isnan(value) else float(value)
        case "string":
            return value if name in _TEXT and isinstance(value, str) else None
        case "date":
            return value if name == "DATE" and whole else None
        case "time":
            return value if name == "TIME" and whole else None
        case "timestamp" | "timestamp_ns":
            return _nanos(value, _UNITS[name]) if name in _UNITS and whole else None
        case "timestamptz" | "timestamptz_ns":
            return _nanos(value, 1000) if name == ZONED and whole else None
        case "binary":
            return value if name == "BLOB" and isinstance(value, bytes) else None
        case _ if iceberg_type.startswith("decimal("):
            return value if (name in INTEGERS and whole) or _is_decimal(value, name) else None
        case _:  # UUIDs among them: engines do not agree on their order
            return None


def _is_decimal(value: Any, name: str) -> bool:
    return name == "DECIMAL" and isinstance(value, Decimal) and value.is_finite()


def _nanos(value: int, scale: int) -> float | int:
    if abs(value) == _INFINITE:
        return math.inf if value > 0 else -math.inf
    return value * scale
