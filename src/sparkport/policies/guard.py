"""A table as one caller may see it: the wrapper through which every call goes that a rule limits.

What a rule limits is kept here and nowhere else, so that no handler can forget it: the handlers get this in place of
the table, and it has only those of the table's abilities that it can keep within the limits. Direct reads and
alterations are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow as pa

from sparkport.auth.operations import Operation
from sparkport.auth.policy import Policy
from sparkport.catalog.constraints import can_be_evaluated
from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import AsOf, Scan, Scannable, ScanRequest, as_scan
from sparkport.catalog.statement import Change, ChangeableTable, Statement, StatementRequest
from sparkport.catalog.table import ColumnStatistics, StatisticsTable, Table, VersionedTable
from sparkport.errors import InvalidArgument, PermissionDenied
from sparkport.policies.statement import GuardedStatement, GuardedUpsert
from sparkport.policies.view import View, view_of

__all__ = ["GuardedTable", "guarded"]


def guarded(table: Table, policy: Policy) -> GuardedTable:
    """The table within the limits of a policy. A table of a user's own can be read so, and not be changed."""
    view = view_of(table.name, policy, table.schema)
    statistics = isinstance(table, StatisticsTable) and view.rows.always
    abilities = (isinstance(table, ChangeableTable), isinstance(table, VersionedTable), statistics)
    return _class(*abilities)(table, policy, view)


class GuardedTable(Table):
    def __init__(self, inner: Table, policy: Policy, view: View) -> None:
        self.name = inner.name
        self.comment = inner.comment
        self.tags = inner.tags
        self.view = view
        self._inner = inner
        self._policy = policy
        self.checks = _visible_checks(inner.checks, view) if inner.checks else ()
        self.keys = tuple(key for key in inner.keys if set(key.columns) <= set(view.clear))

    @property
    def schema(self) -> pa.Schema:
        return self.view.schema

    def require(self, operation: Operation) -> None:
        """Raise PermissionDenied where no rule that fits gives this right."""
        self.view.require(operation)

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scannable:
        view = self._view_of(ctx, request)
        names = [name for name in view.schema.names if request.selects(name)]
        unknown = set(request.columns or ()) - set(names)
        if unknown:
            raise InvalidArgument(f"table '{self.name}' has no column '{min(unknown)}'")
        rows = self._inner.scan(ctx, _within(view, request, names))
        scan = as_scan(rows)
        batches = _shown(ctx, view, scan, names)
        if not isinstance(rows, Scan):
            return batches  # only a Scan promises that it can be closed while another thread reads from it
        return Scan(batches, total_rows=scan.total_rows if view.rows.always else None, close=scan.close)

    def plan(self, ctx: CallContext, request: ScanRequest) -> Sequence[ScanRequest]:
        """The table's own parts; with which filter each is read is decided anew when it is."""
        view = self._view_of(ctx, request)
        names = [name for name in view.schema.names if request.selects(name)]
        return [request.with_part(part.part) for part in self._inner.plan(ctx, _within(view, request, names))]

    def schema_of(self, ctx: CallContext, request: ScanRequest) -> pa.Schema:
        return self._view_of(ctx, request).schema

    def row_count(self, ctx: CallContext) -> int | None:
        return self._inner.row_count(ctx) if self.view.is_readable and self.view.rows.always else None

    def _view_of(self, ctx: CallContext, request: ScanRequest) -> View:
        """The limits for the columns that the scan will read, whatever version a ticket says it was planned for."""
        return self._view(self._inner.schema_of(ctx, request))

    def _view(self, schema: pa.Schema) -> View:
        view = self.view if schema.equals(self.view.raw, check_metadata=True) else None
        view = view or view_of(self.name, self._policy, schema)
        view.require(Operation.READ)
        return view


def _visible_checks(checks: tuple[str, ...], view: View) -> tuple[str, ...]:
    """Those that name no column which is hidden or masked: DuckDB checks them itself, on what it sees."""
    clear = pa.schema([column for column in view.raw if column.name in view.clear])
    return _evaluable(checks, clear.serialize().to_pybytes())


@lru_cache(maxsize=1024)
def _evaluable(checks: tuple[str, ...], columns: bytes) -> tuple[str, ...]:
    schema = pa.ipc.read_schema(pa.py_buffer(columns))
    return tuple(check for check in checks if can_be_evaluated(check, schema))


def _within(view: View, request: ScanRequest, names: Sequence[str]) -> ScanRequest:
    return ScanRequest(columns=view.needed(names), filter=view.pushed(request.filter), at=request.at, part=request.part)


def _shown(ctx: CallContext, view: View, scan: Scan, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        for batch in scan:
            ctx.check()
            seen = view.seen(batch)
            if seen.num_rows:
                yield view.show(seen, names)
    finally:
        scan.close()


class _Changeable(GuardedTable, ChangeableTable):
    def open_statement(self, ctx: CallContext, request: StatementRequest) -> Statement:
        if not isinstance(self._inner, ChangeableTable):
            raise PermissionDenied(f"table '{self.name}' cannot be changed by callers who see only a part of it")
        kind = GuardedUpsert if request.change is Change.UPSERT else GuardedStatement
        return kind(ctx, request, table=self._inner, view=self.view, checks=self.checks, keys=self.keys)


class _Versioned(GuardedTable, VersionedTable):
    def schema_at(self, ctx: CallContext, at: AsOf) -> pa.Schema:
        if not isinstance(self._inner, VersionedTable):
            raise InvalidArgument(f"table '{self.name}' keeps no versions")
        return self._view(self._inner.schema_at(ctx, at)).schema


class _Statistics(GuardedTable, StatisticsTable):
    def column_statistics(self, ctx: CallContext, column: str) -> ColumnStatistics | None:
        if not isinstance(self._inner, StatisticsTable) or not self.view.rows.always or column not in self.view.clear:
            return None
        return self._inner.column_statistics(ctx, column)


@lru_cache
def _class(changeable: bool, versioned: bool, statistics: bool) -> type[GuardedTable]:
    """The class with just these abilities: whether a table has one is told by its class."""
    asked = ((changeable, _Changeable), (versioned, _Versioned), (statistics, _Statistics))
    bases = tuple(ability for is_asked, ability in asked if is_asked) or (GuardedTable,)
    return type("GuardedTable", bases, {})
