"""Tables over rows that somebody else keeps: an Arrow table in memory, or a function that makes batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import Scan, Scannable, ScanRequest
from sparkport.catalog.table import ColumnStatistics, StatisticsTable, Table
from sparkport.filters.evaluate import RowFilter, keep_rows

__all__ = ["ArrowTable", "ScanFunction", "ScanTable", "arrow_statistics", "scan_arrow", "select_batches"]

ScanFunction = Callable[[CallContext, ScanRequest], Scannable]

_FILTER_ROWS = 65_536

_ORDERED = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_time,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
)


def scan_arrow(rows: pa.Table, request: ScanRequest) -> Scan:
    """The rows of an Arrow table that a request asks for; types come through untouched."""
    total = rows.num_rows if request.filter is None else None
    return Scan(select_batches(rows.to_batches(), request), total_rows=total)


def select_batches(batches: Iterable[pa.RecordBatch], request: ScanRequest) -> Iterator[pa.RecordBatch]:
    """The columns of each batch that a request asks for, and the rows that its filter keeps."""
    row_filter: RowFilter | None = None
    for batch in batches:
        if request.filter is not None and row_filter is None:
            row_filter = RowFilter(request.filter, batch.schema)
        selected = batch
        if request.columns is not None:
            selected = batch.select([name for name in batch.schema.names if name in request.columns])
        if row_filter is None:
            yield selected
            continue
        for start in range(0, batch.num_rows, _FILTER_ROWS):
            piece = selected.slice(start, _FILTER_ROWS)
            mask = row_filter.mask(batch.slice(start, _FILTER_ROWS))
            kept = piece if mask is None else keep_rows(piece, mask)
            if kept.num_rows:
                yield kept


def arrow_statistics(column: pa.ChunkedArray) -> ColumnStatistics:
    """Exact statistics of a column in memory."""
    nulls = column.null_count
    known = ColumnStatistics(has_null=nulls > 0, has_not_null=len(column) > nulls)
    data_type = column.type
    if len(column) == nulls or not any(check(data_type) for check in _ORDERED):
        return known
    if pa.types.is_floating(data_type) and pc.any(pc.is_nan(column)).as_py():
        return known  # min_max leaves NaN out, DuckDB sorts it above all: a maximum here would be a lie
    try:
        bounds = pc.min_max(column)
    except pa.ArrowNotImplementedError:  # half floats and small decimals among others
        return known
    text = pa.types.is_string(data_type) or pa.types.is_large_string(data_type)
    return ColumnStatistics(
        minimum=bounds["min"],
        maximum=bounds["max"],
        has_null=known.has_null,
        has_not_null=known.has_not_null,
        distinct_count=pc.count_distinct(column).as_py(),
        max_string_length=pc.max(pc.binary_length(column)).as_py() if text else None,
        contains_unicode=not pc.all(pc.string_is_ascii(column)).as_py() if text else None,
    )


class ArrowTable(StatisticsTable):
    """A ``pyarrow.Table`` that is served as it is: read only."""

    def __init__(self, name: str, rows: pa.Table, *, comment: str | None = None) -> None:
        self.name = name
        self._rows = rows
        self.comment = comment
        self._statistics: dict[str, ColumnStatistics] = {}

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        return scan_arrow(self._rows, request)

    def row_count(self, ctx: CallContext) -> int:
        return int(self._rows.num_rows)

    def column_statistics(self, ctx: CallContext, column: str) -> ColumnStatistics | None:
        if column not in self._rows.schema.names:
            return None
        known = self._statistics.get(column)
        if known is None:
            known = self._statistics[column] = arrow_statistics(self._rows.column(column))
        return known


class ScanTable(Table):
    """A table whose rows a function makes anew for each scan."""

    def __init__(
        self, name: str, schema: pa.Schema, scan: ScanFunction, *, comment: str | None = None, rows: int | None = None
    ) -> None:
        self.name = name
        self._schema = schema
        self._scan = scan
        self.comment = comment
        self._rows = rows

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scannable:
        return self._scan(ctx, request)

    def row_count(self, ctx: CallContext) -> int | None:
        return self._rows
