"""INSERT, UPDATE and DELETE on a memory table: collected in an overlay, and committed at the end."""

from __future__ import annotations

from contextlib import nullcontext

import pyarrow as pa

from sparkport.catalog.constraints import check_rows
from sparkport.catalog.context import CallContext
from sparkport.catalog.row_ids import ROW_ID
from sparkport.catalog.statement import Change, MissingRows, Statement, StatementRequest
from sparkport.errors import Conflict, RowNotFound, TransactionNotActive
from sparkport.memory.overlay import Overlay
from sparkport.memory.rows import Place, gather
from sparkport.memory.store import Store, TableData, View, conflict, require_same
from sparkport.transactions.manager import Transaction, Transactions

__all__ = ["MemoryStatement", "base_commit"]


class MemoryStatement(Statement):
    """In a transaction, what the transaction sees decides; without one, the moment at which the statement ends."""

    def __init__(
        self,
        ctx: CallContext,
        request: StatementRequest,
        *,
        store: Store,
        table: TableData,
        transactions: Transactions[View],
    ) -> None:
        self._request = request
        self._store = store
        self._table = table
        self._transactions = transactions
        self._transaction = None if ctx.transaction_id is None else transactions.enter(ctx.transaction_id)
        self._base = base_commit(ctx, store, table, self._transaction)
        self.definition = table.at(self._base)
        self._schema = self.definition.columns
        self._overlay = Overlay()
        self._seen: dict[int, Place] = {}
        self._pushes: list[tuple[pa.RecordBatch | None, pa.Int64Array | None]] = []
        self._ended = False

    def push(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array | None) -> pa.RecordBatch | None:
        if self._transaction is None and self._request.change is not Change.INSERT:
            self._pushes.append((rows, row_ids))
        return self._take(rows, row_ids)

    def finish(self) -> int:
        try:
            return self._commit() if self._transaction is None else self._finish_in(self._transaction)
        finally:
            self.abort()

    def abort(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._overlay = Overlay()
        self._seen.clear()
        self._pushes.clear()
        if self._transaction is not None:
            self._transactions.leave(self._transaction)

    # Taking batches

    def _take(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array | None) -> pa.RecordBatch | None:
        if row_ids is None:
            return self._insert(rows)
        with nullcontext() if self._transaction is None else self._transaction.lock, self._store.lock:
            places = [self._find(row_id) for row_id in row_ids.to_pylist()]
        return self._update(rows, row_ids, places) if rows is not None else self._delete(row_ids, places)

    def _insert(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        check_rows(self._table.name, self.definition.checks, rows)
        first = self._table.allocate(rows.num_rows)
        self._overlay.insert(rows, first)
        return self._with_ids(rows, pa.arange(first, first + rows.num_rows)) if self._request.returning else None

    def _update(
        self, rows: pa.RecordBatch, row_ids: pa.Int64Array, places: list[Place | None]
    ) -> pa.RecordBatch | None:
        ids = row_ids.to_pylist()
        kept = {row_id: index for index, row_id in enumerate(ids) if places[index] is not None}  # the last one wins
        chosen = list(kept.values())
        old = gather([place for index in chosen if (place := places[index]) is not None], self._schema)
        new = self._merged(old, rows.take(pa.array(chosen, pa.int64())))
        check_rows(self._table.name, self.definition.checks, new)
        kept_ids = pa.array(list(kept), pa.int64())
        self._overlay.update(new, kept_ids)
        if not self._request.returning:
            return None
        # One row back for each that came: the row as it now is, or what was sent where there is no such row.
        position = {row_id: index for index, row_id in enumerate(kept)}
        sent = self._padded(rows)
        both = pa.Table.from_batches([new, sent], self._schema)
        indices = [position.get(row_id, new.num_rows + index) for index, row_id in enumerate(ids)]
        return self._with_ids(_one(both.take(pa.array(indices, pa.int64()))), row_ids)

    def _delete(self, row_ids: pa.Int64Array, places: list[Place | None]) -> pa.RecordBatch | None:
        ids = row_ids.to_pylist()
        if not self._request.returning:
            self._overlay.delete({row_id for row_id, place in zip(ids, places, strict=True) if place is not None})
            return None
        deleted: dict[int, Place] = {}
        for row_id, place in zip(ids, places, strict=True):
            if place is not None:
                deleted[row_id] = place
            elif row_id not in deleted:
                raise Conflict(f"table '{self._table.name}': row {row_id} is gone; run the statement again")
        self._overlay.delete(set(deleted))
        return self._with_ids(gather([deleted[row_id] for row_id in ids], self._schema), row_ids)

    def _find(self, row_id: int) -> Place | None:
        """The version of a row that this statement sees, its own changes and its transaction's included."""
        place = self._overlay.find(row_id)
        if place is None and not self._overlay.hides(row_id):
            place = self._beneath(row_id)
            if place is not None:
                self._seen[row_id] = place
            elif self._request.missing is MissingRows.REFUSE:
                raise RowNotFound(row_id)
        return place

    def _beneath(self, row_id: int) -> Place | None:
        """The version of a row that was there before this statement."""
        overlay = None if self._transaction is None else self._transaction.state.overlays.get(self._table)
        place = None if overlay is None else overlay.find(row_id)
        if place is None and (overlay is None or not overlay.hides(row_id)):
            place = self.definition.rows.at(row_id, self._base)
        return place

    def _merged(self, old: pa.RecordBatch, new: pa.RecordBatch) -> pa.RecordBatch:
        columns = [new.column(name) if name in new.schema.names else old.column(name) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _padded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            rows.column(column.name) if column.name in rows.schema.names else pa.nulls(rows.num_rows, column.type)
            for column in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _with_ids(self, rows: pa.RecordBatch, row_ids: pa.Int64Array) -> pa.RecordBatch:
        return rows.append_column(ROW_ID, row_ids)

    # Making it happen

    def _commit(self) -> int:
        """Without a transaction: the last write wins, so changes are made to the rows as they are at this moment."""
        with self._store.lock:
            require_same(self._table, self._base)
            if self._overlay.replaced:
                changed, gone = self._store.conflicts(self._table, self._overlay, self._base)
                if changed or gone:
                    if self._request.returning:
                        raise conflict(self._table, changed + len(gone))  # other rows have been handed out already
                    self._base = self._store.commit
                    self._overlay = Overlay()
                    for rows, row_ids in self._pushes:
                        self._take(rows, row_ids)
            count = self._count(set())
            if count:
                self._store.check_keys(self._table, self._overlay)
                self._store.apply({self._table: self._overlay})
            return count

    def _finish_in(self, transaction: Transaction[View]) -> int:
        with transaction.lock:
            if transaction.ended:
                raise TransactionNotActive(transaction.id, transaction.status.value)
            transaction.wrote = True
            view = transaction.state
            if not transaction.auto_commit:
                with self._store.lock:
                    require_same(self._table, self._base)
                    stale = sum(self._beneath(row_id) != place for row_id, place in self._seen.items())
                if stale:
                    raise Conflict(
                        f"table '{self._table.name}': {stale} rows changed by another statement of this transaction "
                        f"that ran at the same time"
                    )
                count = self._count(set())
                view.overlays.setdefault(self._table, Overlay()).take(self._overlay)
                return count
            with self._store.lock:
                require_same(self._table, self._base)
                self._store.check_reads(transaction)
                changed, gone = self._store.conflicts(self._table, self._overlay, self._base)
                if changed:
                    raise conflict(self._table, changed)
                if gone and self._request.returning:
                    raise conflict(self._table, len(gone))
                count = self._count(gone)
                if count:
                    self._store.check_keys(self._table, self._overlay)
                    view.pins[self._table] = self._store.apply({self._table: self._overlay})
                return count

    def _count(self, gone: set[int]) -> int:
        return self._overlay.inserted + len(self._overlay.replaced) - len(gone)


def base_commit(ctx: CallContext, store: Store, table: TableData, transaction: Transaction[View] | None) -> int:
    """The commit at which a call sees a table: that of its transaction, or now."""
    if transaction is None:
        return store.commit
    with transaction.lock:
        return transaction.state.follow(table, ctx)


def _one(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_arrays([[] for _ in table.schema], schema=table.schema)
