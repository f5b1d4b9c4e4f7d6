"""The schema ``history`` of every catalog: what has happened to its tables.

SELECT * FROM lake.history.snapshots('public.users');
SELECT * FROM lake.history.changes('public.users', 3, 7);
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict

import pyarrow as pa

from sparkport.catalog.changes import ChangesTable, TableCommit, changes_schema
from sparkport.catalog.context import CallContext
from sparkport.catalog.dropped import DroppedTable
from sparkport.catalog.functions import Arguments, Function, Parameter, TableFunction
from sparkport.catalog.model import Schema
from sparkport.catalog.scan import AsOf, Scan, ScanRequest
from sparkport.catalog.static import scan_arrow
from sparkport.catalog.table import Table
from sparkport.errors import FailedPrecondition, Unsupported
from sparkport.history.points import point
from sparkport.history.version_functions import DroppedTables, FindTable, Tags, restore_function, version_functions

__all__ = ["HISTORY_SCHEMA", "HistorySchema"]

HISTORY_SCHEMA = "history"

_COMMITS = pa.schema(
    [
        pa.field("version", pa.int64()),
        pa.field("committed", pa.timestamp("us", "UTC")),
        pa.field("authors", pa.list_(pa.string())),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("inserted", pa.int64()),
        pa.field("updated", pa.int64()),
        pa.field("deleted", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("transactions", pa.list_(pa.string()), nullable=False),
        pa.field("statements", pa.list_(pa.string()), nullable=False),
        pa.field("snapshot_id", pa.int64()),
    ]
)

_HEAD = pa.schema([pa.field("table_id", pa.string(), nullable=False), pa.field("version", pa.int64())])

_TABLE = Parameter("table", pa.string())
_TABLE_ID = Parameter("table_id", pa.string(), named=True)


class _Snapshots(TableFunction):
    name = "snapshots"
    comment = "The versions of a table that can be read: when, by whom, and what each has changed"
    parameters = (_TABLE,)

    def __init__(self, find: FindTable) -> None:
        self._find = find

    def schema(self, ctx: CallContext, arguments: Arguments | None) -> pa.Schema:
        if arguments is not None:
            self._table(ctx, arguments)
        return _COMMITS

    def scan(self, ctx: CallContext, arguments: Arguments, request: ScanRequest) -> Scan:
        rows = [_row(commit) for commit in self._table(ctx, arguments).commits(ctx)]
        return scan_arrow(pa.Table.from_pylist(rows, _COMMITS), request)

    def _table(self, ctx: CallContext, arguments: Arguments) -> ChangesTable:
        return _changes_table(self._find(ctx, str(arguments["table"] or "")))


def _row(commit: TableCommit) -> dict[str, object]:
    row = asdict(commit)
    row["snapshot_id"] = row.pop("snapshot")
    return row


class _Head(TableFunction):
    name = "head"
    comment = "The newest version of a table, and the table's own id, which another table of its name does not have"
    parameters = (_TABLE,)

    def __init__(self, find: FindTable) -> None:
        self._find = find

    def schema(self, ctx: CallContext, arguments: Arguments | None) -> pa.Schema:
        return _HEAD

    def scan(self, ctx: CallContext, arguments: Arguments, request: ScanRequest) -> Scan:
        head = _changes_table(self._find(ctx, str(arguments["table"] or ""))).head(ctx)
        return scan_arrow(pa.table([[head.id], [head.version]], schema=_HEAD), request)


class _Changes(TableFunction):
    name = "changes"
    comment = "Each change of a row in each version of a table after the first one named, up to and with the second"

    def __init__(self, find: FindTable, *, has_end: bool) -> None:
        """DuckDB knows functions of one name by the number of their arguments."""
        self._find = find
        self.parameters = (_TABLE, Parameter("first"), *([Parameter("last")] if has_end else []), _TABLE_ID)

    def bind(self, row: pa.RecordBatch | None) -> Arguments:
        """Which of the two a call is about is known by its arguments only."""
        given = () if row is None else [name for name in row.schema.names if name != _TABLE_ID.name]
        return super(_Changes, _Changes(self._find, has_end=len(given) > 2)).bind(row)

    def schema(self, ctx: CallContext, arguments: Arguments | None) -> pa.Schema:
        if arguments is None:
            return changes_schema(pa.schema([]))
        return self._table(ctx, arguments).changes_schema(ctx, _end(arguments))

    def scan(self, ctx: CallContext, arguments: Arguments, request: ScanRequest) -> Scan:
        start = point(arguments.values["first"], "the first version")
        return self._table(ctx, arguments).changes(ctx, start, _end(arguments), request)

    def _table(self, ctx: CallContext, arguments: Arguments) -> ChangesTable:
        table, wanted = _changes_table(self._find(ctx, str(arguments["table"] or ""))), arguments.get("table_id")
        if wanted is not None and table.head(ctx).id != wanted:
            raise FailedPrecondition(
                f"'{arguments['table']}' is another table now than the one with the id {wanted}: that one was dropped, "
                "replaced or renamed"
            )
        return table


def _end(arguments: Arguments) -> AsOf | None:
    last = arguments.values.get("last")
    return None if last is None or not last.is_valid else point(last, "the last version")


def _changes_table(table: Table) -> ChangesTable:
    if not isinstance(table, ChangesTable):
        raise Unsupported(f"table '{table.name}' does not tell its history")
    return table


class HistorySchema(Schema):
    name = HISTORY_SCHEMA
    comment = "What has happened to tables"

    def __init__(
        self,
        readable: FindTable,
        alterable: FindTable,
        *,
        dropped: Callable[[CallContext], Iterable[DroppedTable]] | None = None,
        restore: Callable[[CallContext, str], str] | None = None,
    ) -> None:
        """The first two find a table by its name: one that the caller may read the whole of, one that it may alter.

        ``dropped`` and ``restore`` are for catalogs that can bring tables back.
        """
        find = readable
        self._functions: tuple[Function, ...] = (
            *version_functions(alterable),
            Tags(find),
            _Snapshots(find),
            _Head(find),
            _Changes(find, has_end=True),
            _Changes(find, has_end=False),
            *(() if restore is None else (restore_function(restore),)),
        )
        self._tables: tuple[Table, ...] = () if dropped is None else (DroppedTables(dropped),)

    def tables(self, ctx: CallContext) -> Iterable[Table]:
        return self._tables

    def functions(self, ctx: CallContext) -> Iterable[Function]:
        return self._functions
