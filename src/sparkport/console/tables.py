"""What there is, as the caller may know it: tables with what they take up, and one table in all detail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
from markupsafe import Markup

from sparkport.auth.model import Operation, Resource
from sparkport.catalog.context import CallContext
from sparkport.catalog.defaults import default_of
from sparkport.catalog.history import HistoryTable, TableHistory, TableSnapshot
from sparkport.catalog.names import COMMENT_MARK
from sparkport.catalog.row_ids import data_schema
from sparkport.catalog.table import Table
from sparkport.console.charts import Points, chart, sparkline, total
from sparkport.console.formats import bytes_text, short_count
from sparkport.errors import SparkportError
from sparkport.filters.types import arrow_sql_type
from sparkport.handlers.directory import Directory

__all__ = [
    "Column",
    "SORTS",
    "TableRow",
    "Totals",
    "charts_of",
    "columns_of",
    "described",
    "listed",
    "matching",
    "sorted_rows",
    "totals",
]

logger = logging.getLogger(__name__)

_LISTED_SNAPSHOTS = 40
_CHARTED = 200
"""Of more tables than this the sum over time is not drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A table in a list. ``history`` is None where the caller may not read the table, or the table keeps none."""

    catalog: str
    schema: str
    name: str
    comment: str | None
    columns: int
    rows: int | None = None
    history: TableHistory | None = field(default=None, repr=False)
    failure: str = ""

    @property
    def current(self) -> TableSnapshot | None:
        return None if self.history is None else self.history.current

    @property
    def bytes(self) -> int | None:
        return None if self.current is None else self.current.bytes

    @property
    def files(self) -> int | None:
        return None if self.current is None else self.current.files

    @property
    def delete_files(self) -> int | None:
        return None if self.current is None else self.current.delete_files

    @property
    def snapshots(self) -> int | None:
        return None if self.history is None else self.history.kept

    @property
    def changed(self) -> datetime | None:
        return None if self.current is None else self.current.committed

    @property
    def compacted(self) -> datetime | None:
        return None if self.history is None else self.history.compacted

    @property
    def file_size(self) -> float | None:
        return self.bytes / self.files if self.bytes is not None and self.files else None

    def sparkline(self) -> Markup:
        return sparkline(_series(self.history, "bytes"))


def listed(directory: Directory, ctx: CallContext) -> Iterator[TableRow]:
    """All tables that the caller may know of, but for the server's own."""
    for catalog in directory.catalogs(ctx):
        for schema in directory.schemas(ctx, catalog):
            if directory.is_builtin(catalog, schema):
                continue
            for table in directory.tables(ctx, catalog, schema):
                may_read = directory.authorizer.allows(
                    ctx.identity, Operation.READ, Resource(catalog.name, schema.name, table.name)
                )
                yield described(ctx, catalog.name, schema.name, table, may_read=may_read, most=_LISTED_SNAPSHOTS)


def described(
    ctx: CallContext, catalog: str, schema: str, table: Table, *, may_read: bool, most: int | None = None
) -> TableRow:
    rows, history, failure = None, None, ""
    try:
        if may_read and isinstance(table, HistoryTable):
            history = table.history(ctx, most)
            rows = history.current.rows if history.current is not None else 0
        elif may_read:
            rows = table.row_count(ctx)
    except SparkportError:
        failure = "cannot be read"
    except Exception:  # a table of a user's own may raise anything, and must not spoil the list
        logger.warning("table '%s.%s' cannot be described", schema, table.name, exc_info=True)
        failure = "cannot be read"
    return TableRow(
        catalog=catalog,
        schema=schema,
        name=table.name,
        comment=table.comment,
        columns=len(data_schema(table.schema)),
        rows=rows,
        history=history,
        failure=failure,
    )


def matching(rows: Sequence[TableRow], words: str) -> list[TableRow]:
    """Those whose name or comment has all the words."""
    wanted = words.casefold().split()
    return [row for row in rows if all(w in f"{row.schema}.{row.name} {row.comment or ''}".casefold() for w in wanted)]


SORTS: dict[str, Callable[[TableRow], float]] = {
    "rows": lambda row: -1 if row.rows is None else row.rows,
    "size": lambda row: -1 if row.bytes is None else row.bytes,
    "files": lambda row: -1 if row.files is None else row.files,
    "snapshots": lambda row: -1 if row.snapshots is None else row.snapshots,
    "changed": lambda row: 0 if row.changed is None else row.changed.timestamp(),
}
"""By what tables can be sorted, the largest first; by their names else."""


def sorted_rows(rows: Sequence[TableRow], by: str) -> list[TableRow]:
    named = sorted(rows, key=lambda row: (row.catalog, row.schema, row.name))
    return sorted(named, key=SORTS[by], reverse=True) if by in SORTS else named


@dataclass(frozen=True, slots=True)
class Totals:
    tables: int
    rows: int
    bytes: int | None
    files: int | None
    charts: tuple[tuple[str, str, Markup], ...]


def totals(rows: Sequence[TableRow]) -> Totals:
    with_history = [row for row in rows if row.history is not None]
    charts: list[tuple[str, str, Markup]] = []
    if len(with_history) <= _CHARTED:
        for title, attribute, text in (("Size", "bytes", bytes_text), ("Files", "files", short_count)):
            series = total([_series(row.history, attribute) for row in with_history])
            if len(series) > 1:
                charts.append((title, text(series[-1][1]), chart(series, title=f"{title} of all tables", text=text)))
    return Totals(
        tables=len(rows),
        rows=sum(row.rows or 0 for row in rows),
        bytes=sum(row.bytes or 0 for row in with_history) if with_history else None,
        files=sum(row.files or 0 for row in with_history) if with_history else None,
        charts=tuple(charts),
    )


def charts_of(history: TableHistory) -> list[tuple[str, str, Markup]]:
    """Title, the number of now, and the chart."""
    drawn = []
    for title, attribute, text in (
        ("Rows", "rows", short_count),
        ("Size", "bytes", bytes_text),
        ("Files", "files", short_count),
    ):
        series = _series(history, attribute)
        if series:
            drawn.append((title, text(series[-1][1]), chart(series, title=title, text=text)))
    return drawn


def _series(history: TableHistory | None, attribute: str) -> Points:
    snapshots = () if history is None else history.snapshots
    values = ((item.committed, getattr(item, attribute)) for item in snapshots)
    return [(when, float(value)) for when, value in values if value is not None]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    nullable: bool
    default: str | None
    comment: str | None


def columns_of(table: Table) -> list[Column]:
    return [_column(column) for column in data_schema(table.schema)]


def _column(column: pa.Field) -> Column:
    try:
        default = default_of(column)
    except SparkportError:
        default = None
    comment = (column.metadata or {}).get(COMMENT_MARK)
    return Column(
        column.name,
        _type(column.type),
        column.nullable,
        default,
        None if not comment else comment.decode("utf-8", "replace"),
    )


def _type(kind: pa.DataType) -> str:
    """As DuckDB spells it, where it has a word for it."""
    known = arrow_sql_type(kind)
    if known is not None:
        return str(known)
    if pa.types.is_map(kind):
        return f"MAP({_type(kind.key_type)}, {_type(kind.item_type)})"
    if pa.types.is_fixed_size_list(kind):
        return f"{_type(kind.value_type)}[{kind.list_size}]"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{_type(kind.value_type)}[]"
    if pa.types.is_struct(kind):
        return f"STRUCT({', '.join(f'{part.name} {_type(part.type)}' for part in kind)})"
    if isinstance(kind, pa.OpaqueType):
        return str(kind.type_name).upper()
    if isinstance(kind, pa.BaseExtensionType):
        return str(kind.extension_name).rpartition(".")[2].upper()
    return str(kind)
