"""The schema ``tx`` of every catalog with a manager: how plain SQL in DuckDB holds several statements together.

    BEGIN;
    SELECT lake.tx.begin();
    INSERT INTO lake.public.a …; UPDATE lake.public.b …;
    SELECT lake.tx.commit();
    COMMIT;

DuckDB's client never sends COMMIT or ROLLBACK, but it sends the transaction's id with scalar functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import Function, ScalarFunction, Stability
from sparkport.catalog.model import Schema
from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.catalog.static import scan_arrow
from sparkport.catalog.table import Table
from sparkport.catalog.transaction import OpenTransaction, TransactionManager, require_committable
from sparkport.errors import FailedPrecondition, TransactionNotFound
from sparkport.transactions.journal import JournalPart, Sees

__all__ = ["TX_SCHEMA", "TransactionSchema"]

TX_SCHEMA = "tx"

_COLUMNS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("owner", pa.string(), nullable=False),
        pa.field("isolation", pa.string(), nullable=False),
        pa.field("begun", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("last_used", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("changed_tables", pa.list_(pa.string()), nullable=False),
        pa.field("changed_rows", pa.int64()),
    ]
)


class _TransactionFunction(ScalarFunction):
    """A function without arguments that acts on the transaction of the call it is in."""

    returns = pa.string()
    stability = Stability.VOLATILE

    def __init__(
        self, name: str, comment: str, *, act: Callable[[str], str], may_use: Callable[[CallContext], None]
    ) -> None:
        self.name = name
        self.comment = comment
        self._act = act
        self._may_use = may_use

    def call(self, ctx: CallContext, arguments: pa.RecordBatch) -> pa.Array:
        if ctx.transaction_id is None:
            raise FailedPrecondition(f"tx.{self.name}() acts on the transaction it is called in: begin one first")
        self._may_use(ctx)
        answer = self._act(ctx.transaction_id)
        return pa.array([answer] * arguments.num_rows, pa.string())


class _OpenTransactions(Table):
    """The deferred transactions that have not ended. Of others', only tables that the caller may know of are named.

    How many rows they have changed is told where the caller sees all rows of all these tables, and else NULL.
    """

    name = "transactions"
    comment = "Deferred transactions that have not ended"

    def __init__(self, manager: TransactionManager, sees: Sees, sees_whole: Sees) -> None:
        self._manager = manager
        self._sees = sees
        self._sees_whole = sees_whole

    @property
    def schema(self) -> pa.Schema:
        return _COLUMNS

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        rows = [
            {
                "id": item.id,
                "owner": item.owner,
                "isolation": item.isolation.value,
                "begun": item.begun,
                "last_used": item.last_used,
                "changed_tables": self._of(ctx, item, self._sees),
                "changed_rows": item.changed_rows if self._is_counted(ctx, item) else None,
            }
            for item in self._manager.open_transactions()
        ]
        return scan_arrow(pa.Table.from_pylist(rows, _COLUMNS), request)

    def _of(self, ctx: CallContext, item: OpenTransaction, sees: Sees) -> list[str]:
        if item.owner == ctx.identity.subject:
            return list(item.changed_tables)
        parts = {table: table.partition(".") for table in item.changed_tables}
        # A schema's name has no dot. An engine that knows no schemas here names the table alone.
        return [t for t, (head, dot, tail) in parts.items() if sees(ctx, *((head, tail) if dot else ("", head)))]

    def _is_counted(self, ctx: CallContext, item: OpenTransaction) -> bool:
        """Without its schema's name a table may be any of that name, also one that the caller sees in part."""
        counted = self._of(ctx, item, lambda ctx, schema, name: bool(schema) and self._sees_whole(ctx, schema, name))
        return len(counted) == len(item.changed_tables)


class TransactionSchema(Schema):
    name = TX_SCHEMA
    comment = "Transactions over several statements"

    def __init__(
        self,
        manager: TransactionManager,
        *,
        may_use: Callable[[CallContext], None],
        sees: Sees,
        sees_whole: Sees,
        commit: Callable[[str], None],
        ended: Callable[[str], None],
        journal: JournalPart | None = None,
    ) -> None:
        """``may_use`` raises for callers who may not begin and end transactions; ``sees`` says who may know of a table,
        and ``sees_whole`` who sees all of its rows and columns.

        ``commit`` commits a transaction; ``ended`` gets the id of one that a caller has committed or rolled back.
        """
        self._manager = manager
        self._make = commit
        self._ended = ended
        self._tables: tuple[Table, ...] = (_OpenTransactions(manager, sees, sees_whole),)
        functions = (
            ("begin", "Hold the commit back until tx.commit(); the transaction's id", self._begin, may_use),
            ("commit", "Commit all statements since tx.begin() at one instant", self._commit, may_use),
            ("rollback", "Undo all statements since tx.begin()", self._rollback, may_use),
            ("status", "active, committed or aborted", self._status, _everybody),
        )
        self._functions: tuple[Function, ...] = tuple(
            _TransactionFunction(name, comment, act=act, may_use=may) for name, comment, act, may in functions
        )
        if journal is not None:
            self._tables += journal.tables
            self._functions += journal.functions

    def tables(self, ctx: CallContext) -> Iterable[Table]:
        return self._tables

    def functions(self, ctx: CallContext) -> Iterable[Function]:
        return self._functions

    def _begin(self, transaction_id: str) -> str:
        self._manager.defer(transaction_id)
        return transaction_id

    def _commit(self, transaction_id: str) -> str:
        require_committable(self._manager, transaction_id)
        self._make(transaction_id)
        self._ended(transaction_id)
        return self._status(transaction_id)

    def _rollback(self, transaction_id: str) -> str:
        self._manager.rollback(transaction_id)
        self._ended(transaction_id)
        return self._status(transaction_id)

    def _status(self, transaction_id: str) -> str:
        state = self._manager.status(transaction_id)
        if state is None:
            raise TransactionNotFound(transaction_id)
        return state.value


def _everybody(ctx: CallContext) -> None:
    """Asking about one's own transaction needs no right."""
