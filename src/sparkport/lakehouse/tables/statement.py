"""INSERT, UPDATE and DELETE on a lakehouse table: rows are staged as Parquet while they come.

At its end a statement is a change set, which is committed at once; see ``committer.py``. In a deferred transaction the
end of a statement only changes the transaction's own database; see ``net_change.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sparkport.catalog.constraints import check_rows
from sparkport.catalog.context import CallContext
from sparkport.catalog.row_ids import ROW_ID
from sparkport.catalog.statement import Change, MissingRows, Statement, StatementRequest
from sparkport.errors import Conflict, RowNotFound
from sparkport.lakehouse.catalogs.pointers import OutcomeUnknown
from sparkport.lakehouse.columns.columns import Columns, Json
from sparkport.lakehouse.columns.storage import conformed_batch, to_stored
from sparkport.lakehouse.columns.types import stored_columns, stored_type
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.iceberg.lineage import NO_IDS, Ids, Lineage, positions_in
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.spark.staging import StagedRows
from sparkport.lakehouse.tables.engine import LakeEngine
from sparkport.lakehouse.tables.views import LakeView
from sparkport.lakehouse.write.change_set import ChangeSet, changed_rows_schema
from sparkport.lakehouse.write.net_change import TableChange
from sparkport.lakehouse.write.new_rows import staged_new_rows
from sparkport.lakehouse.write.sent import Sent
from sparkport.transactions.manager import InDoubt, Transaction, require_usable

__all__ = ["LakeStatement"]

_COPIES = 3  # of rows that are looked up: as they are read, in the order of their ids, and as one batch


class LakeStatement(Statement):
    def __init__(
        self,
        ctx: CallContext,
        request: StatementRequest,
        version: TableVersion,
        engine: LakeEngine,
        *,
        is_part: bool = False,
    ) -> None:
        """One that ``is_part`` of another, which commits it with its other part, does not commit itself."""
        self._ctx = ctx
        self._request = request
        self._engine = engine
        self._version = version
        self._columns = _SentColumns.from_schema(version.columns, request.columns)
        self._transaction = None if ctx.transaction_id is None else engine.transactions.enter(ctx.transaction_id)
        self._staged: StagedRows | None = None
        self._ids: list[Ids] = []
        self._told: list[Ids] = []
        self._handed_out: set[int] = set()
        self._held = 0
        self._ended = False
        self._change: TableChange | None = None
        self._since = 0
        transaction = self._transaction
        if transaction is not None and (engine.defers(transaction) if not is_part else not transaction.auto_commit):
            try:
                with transaction.lock:
                    self._change = engine.changing(transaction, version)
                    self._since = self._change.step
            except BaseException:
                self.abort()
                raise

    def push(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array | None) -> pa.RecordBatch | None:
        if self._request.change is Change.INSERT and rows is not None:
            check_rows(self._version.table.name, self._version.checks, rows)
            new_ids = None if self._change is None else self._change.new_ids(rows.num_rows)
            self._stage(rows, new_ids)
            if not self._request.returning:
                return None
            if new_ids is None:
                new_ids = self._told_ids(rows.num_rows)
            return rows.append_column(ROW_ID, new_ids)
        if row_ids is None:
            return None
        row_ids = self._current(row_ids)
        if rows is not None and self._request.returning:
            rows = _last_of_each(rows, row_ids)
        try:
            back = self._changed(rows, row_ids)
            self._stage(rows, row_ids)
        finally:
            self._release()
        return back

    def finish(self) -> int:
        try:
            if self._transaction is not None:
                with self._transaction.lock:
                    return self._finish_in(self._transaction)
            return self._finish(None)
        finally:
            self.abort()

    def abort(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._staged is not None:
            self._staged.discard()
        if self._transaction is not None:
            self._engine.transactions.leave(self._transaction)

    # Row ids

    def _current(self, row_ids: pa.Int64Array) -> pa.Int64Array:
        """Rows that were new in the journal when a client saw them may have got Iceberg's ids since."""
        if self._version.journal is None:
            return row_ids
        return pa.array(self._version.rows.resolve(np.array(row_ids, np.int64)), pa.int64())

    def _told_ids(self, count: int) -> pa.Int64Array:
        """What id a row gets is known when Spark has written it, or before it is put into the journal."""
        if not self._engine.journals(self._version):
            return pa.nulls(count, pa.int64())
        self._told.append(self._engine.journal.new_ids(count))
        return pa.array(self._told[-1])

    def _new_ids(self) -> Ids | None:
        return np.concatenate(self._told) if self._told else None

    # Taking batches

    def _stage(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array | None) -> None:
        if self._staged is None:
            fault("stage.before")
            staging = self._engine.storage.staging
            if self._request.change is Change.INSERT and self._change is None:
                self._staged = staged_new_rows(staging, self._version, self._columns.names)
            else:
                self._staged = staging.new(changed_rows_schema(self._columns.stored_types))
        arrays = [] if rows is None else self._columns.stored(rows)
        if row_ids is not None:
            if self._change is None:
                # A copy: a view would keep the whole message, its other columns too, until the end.
                self._ids.append(np.array(row_ids, np.int64))
            is_deleted = pa.array(np.full(len(row_ids), self._request.change is Change.DELETE))
            arrays = [row_ids, is_deleted, *arrays]
        self._staged.append(pa.RecordBatch.from_arrays(arrays, schema=self._staged.schema))

    def _changed(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array) -> pa.RecordBatch | None:
        """The full rows after an UPDATE or before a DELETE, where somebody needs them: to give back, or to check."""
        declared = self._version.columns.declared
        checks = self._version.checks if rows is not None else ()
        if not (self._request.returning or checks):
            return None
        if rows is not None and len(rows.schema) == len(declared):
            full = rows.select(declared.names)
        else:
            full = self._old_rows(row_ids, refuse=rows is None)
            for name, column in zip(rows.schema.names, rows.columns, strict=True) if rows is not None else ():
                full = full.set_column(full.schema.get_field_index(name), declared.field(name), column)
        check_rows(self._version.table.name, checks, full)
        return full.append_column(ROW_ID, row_ids) if self._request.returning else None

    def _old_rows(self, row_ids: pa.Int64Array, *, refuse: bool) -> pa.RecordBatch:
        """The rows as this statement sees them, null where there is none; or a refusal, also of a second time."""
        wanted = row_ids.to_pylist()
        before = frozenset(self._handed_out)
        visible = self._visible([row_id for row_id in wanted if row_id not in before])
        if refuse:
            self._handed_out.update(wanted)
        places = {row_id: index for index, row_id in enumerate(visible.column(ROW_ID).to_pylist())}
        indices = [places.get(row_id) for row_id in wanted]
        if refuse and None in indices:
            gone = row_ids[indices.index(None)].as_py()
            if self._request.missing is MissingRows.REFUSE and gone not in before:
                raise RowNotFound(gone)
            raise Conflict(f"table '{self._version.table.name}': row {gone} is gone; run the statement again")
        # Taken while they are as they are stored: Arrow cannot take from all types that a client may declare.
        taken = visible.drop_columns([ROW_ID]).take(pa.array(indices, pa.int64())).combine_chunks()
        declared = self._version.columns.declared
        nullable = pa.schema([column.with_nullable(True) for column in declared])
        for batch in self._version.columns.as_declared(taken.to_batches(), declared.names):
            return pa.RecordBatch.from_arrays(batch.columns, schema=nullable)
        return pa.RecordBatch.from_arrays([pa.array([], column.type) for column in nullable], schema=nullable)

    def _visible(self, row_ids: list[int]) -> pa.Table:
        """Those of the rows that are there, in no order and as stored, the transaction's own changes included."""
        fields = self._version.columns.fields
        schema = stored_columns(fields).append(pa.field(ROW_ID, pa.int64()))
        visible: list[pa.RecordBatch] = []
        if self._change is not None:
            here, gone = self._change.find(row_ids)
            gone |= set(here.column(ROW_ID).to_pylist())
            row_ids = [row_id for row_id in row_ids if row_id >= 0 and row_id not in gone]
            visible = here.to_batches()
        if row_ids:
            names = [str(field["name"]) for field in fields]
            with closing(self._version.rows.stored(names, row_ids=np.array(row_ids, np.int64))) as stream:
                for batch in stream:
                    self._ctx.check()
                    self._hold(_COPIES * batch.nbytes)
                    visible.append(conformed_batch(batch, schema))
        return pa.Table.from_batches(visible, schema)

    def _hold(self, size: int) -> None:
        self._ctx.account.keep(size)
        self._held += size

    def _release(self) -> None:
        self._ctx.account.keep(-self._held)
        self._held = 0

    # Making it happen

    def _finish_in(self, transaction: Transaction[LakeView]) -> int:
        try:
            return self._finish(transaction)
        except OutcomeUnknown as exc:
            if not transaction.auto_commit:
                raise
            transaction.in_doubt, transaction.state.unknown = True, exc
            raise InDoubt(transaction.id, auto_commit=True) from exc

    def _finish(self, transaction: Transaction[LakeView] | None) -> int:
        if transaction is not None:
            require_usable(transaction)
            if self._change is None and self._engine.defers(transaction):
                raise Conflict("the transaction was deferred while the statement ran; run it again")
            transaction.wrote = True
        if self._staged is None or not self._staged.rows:
            return 0
        if transaction is not None and self._change is not None:
            change = self._engine.changing(transaction, self._version)
            if change is not self._change:  # another statement of the transaction has been committed meanwhile
                self._change, self._since = change, change.step
            return self._defer(transaction, change, self._staged)
        change_set = self._change_set(self._staged)
        fault("stage.after")
        changes = {self._version.table: change_set}
        return self._engine.commit_statement(self._ctx, transaction, changes, self._request.statement)

    def change_set(self) -> ChangeSet | None:
        """What a part of another statement wants to be committed; None for nothing."""
        if self._staged is None or not self._staged.rows:
            return None
        return self._change_set(self._staged)

    def _defer(self, transaction: Transaction[LakeView], change: TableChange, staged: StagedRows) -> int:
        """Put the rows into the transaction's net change; one that commits each statement commits it at once."""
        columns = [change.names.index(name) for name in self._columns.names]
        sent = Sent(staged.batches(), columns, rows=staged.rows, nbytes=staged.nbytes)
        if self._request.change is Change.INSERT:
            count = change.insert(sent)
        else:
            apply = change.update if self._request.change is Change.UPDATE else change.delete
            count = apply(sent, since=self._since, refuse=self._request.missing is MissingRows.REFUSE)
        fault("defer.after")
        # Of an UPDATE a row that is gone is a conflict in any case.
        handed_out = self._request.returning and self._request.change is Change.DELETE
        return self._engine.deferred(
            self._ctx,
            transaction,
            count,
            statement=self._request.statement,
            returned=self._version.table if handed_out else None,
        )

    def _change_set(self, staged: StagedRows) -> ChangeSet:
        if self._request.change is Change.INSERT:
            return ChangeSet(base=self._version, inserts=staged, pinned=False, new_ids=self._new_ids())
        # Rows that were handed out are those that are changed.
        pinned = self._transaction is not None or self._request.returning
        sent = _SentIds.from_parts(self._ids)
        self._ids.clear()
        ids = sent.ids
        if pinned:
            seen = self._version.rows.lineage(ids)
            if self._request.missing is MissingRows.REFUSE:
                sent.require(seen)
            ids = seen.ids
        if len(ids) != staged.rows:
            staged = self._keep(staged, sent.last_rows(ids))
        is_update = self._request.change is Change.UPDATE
        return ChangeSet(
            base=self._version,
            changes=staged,
            columns=self._columns.names if is_update else (),
            updated=ids if is_update else NO_IDS,
            deleted=NO_IDS if is_update else ids,
            pinned=pinned,
            complete=self._request.missing is MissingRows.REFUSE,
            returned=self._request.returning,
        )

    def _keep(self, staged: StagedRows, places: Ids) -> StagedRows:
        """Leave out all staged rows but these: of several changes to one row the last one counts."""
        is_kept = np.zeros(staged.rows, np.bool_)
        is_kept[places] = True
        kept, place = self._engine.storage.staging.new(staged.schema), 0
        self._staged = kept
        try:
            for batch in staged.batches():
                kept.append(batch.filter(pa.array(is_kept[place : place + len(batch)])))
                place += len(batch)
        finally:
            staged.discard()
        return kept


@dataclass(frozen=True, slots=True)
class _SentColumns:
    """The columns that a statement carries, as they are staged."""

    names: tuple[str, ...]
    declared: tuple[pa.Field, ...]
    fields: tuple[Json, ...]

    @classmethod
    def from_schema(cls, columns: Columns, sent: pa.Schema) -> _SentColumns:
        fields = [columns.field(name) for name in sent.names]
        declared = [columns.declared.field(name) for name in sent.names]
        return cls(tuple(sent.names), tuple(declared), tuple(fields))

    def stored(self, rows: pa.RecordBatch) -> list[pa.Array]:
        return [
            to_stored(column, declared, field)
            for column, declared, field in zip(rows.columns, self.declared, self.fields, strict=True)
        ]

    @property
    def stored_types(self) -> list[pa.DataType]:
        return [stored_type(field["type"]) for field in self.fields]


def _last_of_each(rows: pa.RecordBatch, row_ids: pa.Int64Array) -> pa.RecordBatch:
    """For each row what it is set to in the end: of several changes to one row the last one counts."""
    ids = row_ids.to_pylist()
    last = {row_id: place for place, row_id in enumerate(ids)}
    return rows if len(last) == len(ids) else rows.take(pa.array([last[row_id] for row_id in ids], pa.int64()))


@dataclass(frozen=True, slots=True, eq=False)
class _SentIds:
    """The row ids that a statement has brought: as they came, and each once with the number of its last row.

    Without such numbers (``last`` is None) each id's place is its number.
    """

    all: Ids
    ids: Ids
    last: Ids | None

    @classmethod
    def from_parts(cls, parts: Sequence[Ids]) -> _SentIds:
        named = np.concatenate([NO_IDS, *parts])
        if bool(np.all(named[1:] > named[:-1])):  # as a scan gives them
            return cls(named, named, None)
        order = np.argsort(named, kind="stable")
        ids = named[order]
        last = np.concatenate([ids[1:] != ids[:-1], [True]])
        return cls(named, ids[last], order[last])

    def last_rows(self, ids: Ids) -> Ids:
        """The numbers of the last rows of these ids."""
        places = positions_in(self.ids, ids)
        return places if self.last is None else self.last[places]

    def require(self, present: Lineage) -> None:
        missing = np.flatnonzero(~present.has(self.all))
        if len(missing):
            raise RowNotFound(int(self.all[missing[0]]))
