"""Tables and a manager as a user would write them: any subset of the abilities, every call written down."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from tests.contract.clients import JsonClient
from tests.support.flight_rpc import Connection

from sparkport.catalog.builder import CatalogBuilder
from sparkport.catalog.context import CallContext, transaction_id
from sparkport.catalog.row_ids import find_row_id_column, row_id_field
from sparkport.catalog.scan import ScanRequest
from sparkport.catalog.table import (
    DeletableBatchTable,
    DeletableTable,
    DMLOptions,
    DMLResult,
    InsertableTable,
    Table,
    UpdatableBatchTable,
    UpdatableTable,
)
from sparkport.catalog.transaction import Isolation, TransactionManager, TransactionState
from sparkport.errors import Unsupported
from sparkport.testing import serving

__all__ = [
    "Call",
    "Deletes",
    "DeletesBatches",
    "Inserts",
    "OwnTable",
    "RecordingManager",
    "Served",
    "Updates",
    "UpdatesBatches",
    "own_table",
    "served",
]

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    ids: list[int] | None
    columns: list[str]
    rows: list[dict[str, Any]]
    options: DMLOptions | None
    transaction: str | None


class OwnTable(Table):
    """Rows by id. What is changed in a transaction waits in ``staged`` until its manager says commit."""

    def __init__(self, name: str = "own", row_id: str = "rowid", rows: int = 5) -> None:
        self.name = name
        self.row_id = row_id
        self.calls: list[Call] = []
        self.rows: dict[int, dict[str, Any]] = {n: {"id": n, "name": f"old{n}"} for n in range(rows)}
        self.staged: dict[str, list[Callable[[], None]]] = {}
        self.failure: Exception | None = None
        self.entered = threading.Semaphore(0)
        self.left = threading.Semaphore(0)
        self.extra_returned = 0

    @property
    def schema(self) -> pa.Schema:
        return COLUMNS.append(row_id_field(self.row_id))

    def scan(self, ctx: CallContext, request: ScanRequest) -> pa.Table:
        rows = [{**row, self.row_id: row_id} for row_id, row in self.rows.items()]
        return pa.Table.from_pylist(rows, self.schema)

    @contextmanager
    def _called(
        self,
        ctx: CallContext,
        method: str,
        reader: pa.RecordBatchReader | None,
        ids: Sequence[int] | None,
        options: DMLOptions | None,
    ) -> Iterator[pa.Table]:
        """Reads all input before anything is changed: all or none."""
        assert ctx.transaction_id == transaction_id()
        self.entered.release()
        try:
            rows = pa.table({}) if reader is None else reader.read_all()
            given = None if ids is None else list(ids)
            call = Call(method, given, rows.column_names, rows.to_pylist(), options, ctx.transaction_id)
            self.calls.append(call)
            if self.failure is not None:
                raise self.failure
            yield rows
        finally:
            self.left.release()

    def _apply(self, ctx: CallContext, action: Callable[[], None]) -> None:
        if ctx.transaction_id is None:
            action()
        else:
            self.staged.setdefault(ctx.transaction_id, []).append(action)

    def _result(self, options: DMLOptions | None, rows: list[dict[str, Any]]) -> DMLResult:
        if options is None or not options.returning:
            return DMLResult(len(rows))
        # All columns, also where fewer were asked for: a table MAY leave the rest out, and need not.
        back = pa.Table.from_pylist([*rows, *[{} for _ in range(self.extra_returned)]], COLUMNS)
        return DMLResult(len(rows), back.to_reader())

    def _change(self, ctx: CallContext, ids: Sequence[int], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
        def action() -> None:
            for row_id, row in zip(ids, new, strict=True):
                self.rows[row_id].update(row)

        changed = [{**self.rows[row_id], **row} for row_id, row in zip(ids, new, strict=True)]
        self._apply(ctx, action)
        return changed

    def _remove(self, ctx: CallContext, ids: Sequence[int]) -> list[dict[str, Any]]:
        def action() -> None:
            for row_id in ids:
                del self.rows[row_id]

        removed = [self.rows[row_id] for row_id in ids]
        self._apply(ctx, action)
        return removed

    def end(self, transaction: str, *, commit: bool) -> None:
        for action in self.staged.pop(transaction, []):
            if commit:
                action()


class Inserts(OwnTable, InsertableTable):
    def insert(self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None) -> DMLResult:
        with self._called(ctx, "insert", rows, None, options) as table:
            new = table.to_pylist()
            first = len(self.rows)
            self._apply(ctx, lambda: self.rows.update(zip(itertools.count(first), new, strict=False)))
            return self._result(options, new)


class Updates(OwnTable, UpdatableTable):
    def update(
        self, ctx: CallContext, row_ids: Sequence[int], rows: pa.RecordBatchReader, options: DMLOptions | None = None
    ) -> DMLResult:
        with self._called(ctx, "update", rows, row_ids, options) as table:
            return self._result(options, self._change(ctx, row_ids, table.to_pylist()))


class UpdatesBatches(OwnTable, UpdatableBatchTable):
    def update_batches(
        self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None
    ) -> DMLResult:
        with self._called(ctx, "update_batches", rows, None, options) as table:
            index = find_row_id_column(table.schema)
            assert index is not None
            ids = table.column(index).to_pylist()
            return self._result(options, self._change(ctx, ids, table.remove_column(index).to_pylist()))


class Deletes(OwnTable, DeletableTable):
    def delete(self, ctx: CallContext, row_ids: Sequence[int], options: DMLOptions | None = None) -> DMLResult:
        with self._called(ctx, "delete", None, row_ids, options):
            return self._result(options, self._remove(ctx, row_ids))


class DeletesBatches(OwnTable, DeletableBatchTable):
    def delete_batches(
        self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None
    ) -> DMLResult:
        with self._called(ctx, "delete_batches", rows, None, options) as table:
            return self._result(options, self._remove(ctx, table.column(0).to_pylist()))


def own_table(abilities: Iterable[type[OwnTable]], **settings: Any) -> OwnTable:
    """A table with just these abilities."""
    made: type[OwnTable] = type("Made", (*abilities, OwnTable), {})
    return made(**settings)


class RecordingManager(TransactionManager):
    """Auto-commit only, the four methods only; ``log`` is the sequence of calls that it got."""

    def __init__(self, *tables: OwnTable) -> None:
        self.tables = tables
        self.log: list[tuple[str, str]] = []
        self.states: dict[str, TransactionState] = {}
        self.begin_failure: Exception | None = None
        self.commit_failure: Exception | None = None
        self.rolled_back = threading.Event()
        self.ended = threading.Event()

    def begin(self, ctx: CallContext, *, auto_commit: bool = True, isolation: Isolation = Isolation.SNAPSHOT) -> str:
        if self.begin_failure is not None:
            raise self.begin_failure
        if not auto_commit:
            raise Unsupported("this manager commits each statement")
        name = f"tx{len(self.states) + 1}"
        self.states[name] = TransactionState.ACTIVE
        self.log.append(("begin", name))
        return name

    def commit(self, transaction_id: str) -> None:
        self.log.append(("commit", transaction_id))
        if self.commit_failure is not None:
            raise self.commit_failure
        self.states[transaction_id] = TransactionState.COMMITTED
        for table in self.tables:
            table.end(transaction_id, commit=True)
        self.ended.set()

    def rollback(self, transaction_id: str) -> None:
        self.log.append(("rollback", transaction_id))
        self.states[transaction_id] = TransactionState.ABORTED
        for table in self.tables:
            table.end(transaction_id, commit=False)
        self.rolled_back.set()
        self.ended.set()

    def status(self, transaction_id: str) -> TransactionState | None:
        return self.states.get(transaction_id)


@dataclass
class Served:
    table: OwnTable
    manager: RecordingManager | None
    connection: Connection
    location: str
    json: JsonClient = field(init=False)

    def __post_init__(self) -> None:
        self.json = JsonClient(self.connection)

    @property
    def calls(self) -> list[Call]:
        return self.table.calls


@contextmanager
def served(table: OwnTable, *, manager: bool = False) -> Iterator[Served]:
    """The table as ``public.own`` of the catalog ``lake``."""
    transactions = RecordingManager(table) if manager else None
    catalog = CatalogBuilder("lake", transactions=transactions).schema("public").add(table).build()
    with serving(catalog) as server:
        connection = Connection(server.location)
        yield Served(table, transactions, connection, server.location)
        connection.close()
