"""The journal in the schema ``tx``, for catalogs that keep one: how plain SQL in DuckDB switches, flushes and sees it.

SELECT lake.tx.set_journal('public.users', true);
SELECT lake.tx.flush();
FROM lake.tx.journal;
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import Function, Parameter, ScalarFunction, Stability
from sparkport.catalog.journal import Journal
from sparkport.catalog.names import split_name
from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.catalog.static import scan_arrow
from sparkport.catalog.table import Table
from sparkport.errors import InvalidArgument

__all__ = ["JournalPart", "MayUse", "Sees"]

_COLUMNS = pa.schema(
    [
        pa.field("schema_name", pa.string(), nullable=False),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("entries", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("oldest", pa.timestamp("us", "UTC")),
        pa.field("failure", pa.string()),
    ]
)

MayUse = Callable[[CallContext], None]
"""Raises for callers who may not use the functions of ``tx`` that change something."""

Alterable = Callable[[CallContext, str, str], tuple[str, str]]
"""The schema and the name of a table that the caller may alter, as the catalog has them; raises where there is none."""

Sees = Callable[[CallContext, str, str], bool]
"""Whether the caller may know of a table."""


class _SetJournal(ScalarFunction):
    name = "set_journal"
    comment = "Journal the changes of a table from now on, or no more"
    parameters = (Parameter("table_name", pa.string()), Parameter("journal", pa.bool_()))
    returns = pa.bool_()
    stability = Stability.VOLATILE

    def __init__(self, journal: Journal, catalog: str, alterable: Alterable) -> None:
        self._journal = journal
        self._catalog = catalog
        self._alterable = alterable

    def call(self, ctx: CallContext, arguments: pa.RecordBatch) -> pa.Array:
        # As everybody sees the table: like all DDL, this is not part of the caller's transaction.
        outside = replace(ctx, transaction_id=None)
        names, states = (column.to_pylist() for column in arguments.columns)
        for name, on in zip(names, states, strict=True):
            if name is None or on is None:
                raise InvalidArgument("tx.set_journal takes the name of a table, and true or false: not NULL")
            ctx.check()
            schema_name, table_name = self._alterable(outside, *self._parts(name))
            self._journal.set_journal(outside, schema_name, table_name, on=on)
        return arguments.column(1)

    def _parts(self, name: str) -> tuple[str, str]:
        """A schema and a table; an empty schema is the default one."""
        *around, last = split_name(name)
        if len(around) == 2 and around[0].casefold() == self._catalog.casefold():
            del around[0]
        if len(around) > 1:
            raise InvalidArgument(f"name '{name}' must be that of a table in '{self._catalog}': schema.table")
        return "".join(around), last


class _Flush(ScalarFunction):
    name = "flush"
    comment = "Publish now what the journal holds; how many rows it was"
    returns = pa.int64()
    stability = Stability.VOLATILE

    def __init__(self, journal: Journal, may_use: MayUse, sees: Sees) -> None:
        self._journal = journal
        self._may_use = may_use
        self._sees = sees

    def call(self, ctx: CallContext, arguments: pa.RecordBatch) -> pa.Array:
        self._may_use(ctx)
        ctx = replace(ctx, sees=partial(self._sees, ctx))
        return pa.array([self._journal.flush(ctx)] * arguments.num_rows, pa.int64())


class _WaitingChanges(Table):
    """What the journal holds for the tables that the caller may know of."""

    name = "journal"
    comment = "Tables whose changes are committed and wait in the journal to be published"

    def __init__(self, journal: Journal, sees: Sees) -> None:
        self._journal = journal
        self._sees = sees

    @property
    def schema(self) -> pa.Schema:
        return _COLUMNS

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        sees = partial(self._sees, ctx)
        rows = [
            {**{name: getattr(item, name) for name in _COLUMNS.names}, "failure": item.why(sees)}
            for item in self._journal.waiting()
            if sees(item.schema_name, item.table_name)
        ]
        return scan_arrow(pa.Table.from_pylist(rows, _COLUMNS), request)


class JournalPart:
    """What the schema ``tx`` of a catalog with a journal has besides transactions."""

    def __init__(self, journal: Journal, *, catalog: str, may_use: MayUse, alterable: Alterable, sees: Sees) -> None:
        self.tables: tuple[Table, ...] = (_WaitingChanges(journal, sees),)
        self.functions: tuple[Function, ...] = (
            _SetJournal(journal, catalog, alterable),
            _Flush(journal, may_use, sees),
        )
