"""INSERT, UPDATE and DELETE on a lakehouse table: staged as Parquet while rows come, applied and published at the end.

What happens to which row is decided on one snapshot, with its row ids and row lineage read by DuckDB in milliseconds,
while the table's writers wait; Spark then does just that, and ``main`` moves only if that snapshot is still its end.

In a deferred transaction the end of a statement only changes the transaction's own file; see ``changes.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkport.catalog.constraints import check_rows
from sparkport.catalog.context import CallContext
from sparkport.catalog.statement import Change, MissingRows, Statement, StatementRequest
from sparkport.catalog.table import ROW_ID
from sparkport.errors import Conflict, NotFound, RowNotFound, rows_changed
from sparkport.lakehouse.catalogs.pointers import OutcomeUnknown
from sparkport.lakehouse.columns.columns import Columns, Json
from sparkport.lakehouse.columns.storage import conformed_batch, to_stored
from sparkport.lakehouse.columns.types import spark_type, stored_columns, stored_type
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.iceberg.lineage import NO_IDS, Ids, Lineage, changed_since, positions_in
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.spark.sql import quoted
from sparkport.lakehouse.spark.staging import StagedRows
from sparkport.lakehouse.tables.engine import LakeEngine, LakeView
from sparkport.lakehouse.write.changes import Sent, TableChange
from sparkport.lakehouse.write.merge_sql import DELETED_COUNT, MERGED_ID, UPDATED_COUNT, merge_sql, merged_column
from sparkport.lakehouse.write.staged import rows_and_columns
from sparkport.lakehouse.write.writer import Applied, MergeWork
from sparkport.transactions.manager import InDoubt, Transaction, require_usable

__all__ = ["LakeStatement"]


class LakeStatement(Statement):
    def __init__(self, ctx: CallContext, request: StatementRequest, version: TableVersion, engine: LakeEngine) -> None:
        self._ctx = ctx
        self._request = request
        self._engine = engine
        self._version = version
        self._columns = _Stored.of(version.columns, request.columns)
        self._transaction = None if ctx.transaction_id is None else engine.transactions.enter(ctx.transaction_id)
        self._staged: StagedRows | None = None
        self._ids: list[Ids] = []
        self._handed_out: set[int] = set()
        self._pushed = 0
        self._ended = False
        self._change: TableChange | None = None
        self._since = 0
        if self._transaction is not None and engine.defers(self._transaction):
            try:
                with self._transaction.lock:
                    self._change = engine.changing(self._transaction, version)
                    self._since = self._change.step
            except BaseException:
                self.abort()
                raise

    def push(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array | None) -> pa.RecordBatch | None:
        if self._request.change is Change.INSERT and rows is not None:
            check_rows(self._version.name[1], self._version.checks, rows)
            new_ids = None if self._change is None else self._change.new_ids(rows.num_rows)
            self._stage(rows, new_ids)
            if not self._request.returning:
                return None
            # What id a row gets is known when Spark has written it.
            return rows.append_column(ROW_ID, pa.nulls(rows.num_rows, pa.int64()) if new_ids is None else new_ids)
        if row_ids is None:
            return None
        if rows is not None and self._request.returning:
            rows = _last_of_each(rows, row_ids)
        back = self._changed(rows, row_ids)
        self._stage(rows, row_ids)
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
            with contextlib.suppress(OSError):  # the statement may have been published, whatever is left behind
                self._staged.path.with_suffix(".reduced.parquet").unlink(missing_ok=True)
        if self._transaction is not None:
            self._engine.transactions.leave(self._transaction)

    # Taking batches

    def _stage(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array | None) -> None:
        """Each row with its number in the statement: of several changes to one row the last one counts."""
        if self._staged is None:
            fault("stage.before")
            with_ids = self._request.change is not Change.INSERT or self._change is not None
            self._staged = self._engine.staging.new(self._columns.staged_schema(with_ids=with_ids))
        arrays = [] if rows is None else self._columns.stored(rows)
        if row_ids is not None:
            if self._change is None:
                # A copy: a view would keep the whole message, its other columns too, until the end.
                self._ids.append(np.array(row_ids, np.int64))
            arrays = [row_ids, pa.array(np.arange(self._pushed, self._pushed + len(row_ids))), *arrays]
            self._pushed += len(row_ids)
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
        check_rows(self._version.name[1], checks, full)
        return full.append_column(ROW_ID, row_ids) if self._request.returning else None

    def _old_rows(self, row_ids: pa.Int64Array, *, refuse: bool) -> pa.RecordBatch:
        """The rows as this statement sees them, null where there is none; or a refusal, also of a second time."""
        wanted = row_ids.to_pylist()
        found = self._visible([row_id for row_id in wanted if row_id not in self._handed_out])
        if refuse:
            self._handed_out.update(wanted)
        places = {row_id: index for index, row_id in enumerate(found.column(ROW_ID).to_pylist())}
        indices = [places.get(row_id) for row_id in wanted]
        if refuse and None in indices:
            gone = row_ids[indices.index(None)].as_py()
            raise Conflict(f"table '{self._version.name[1]}': row {gone} is gone; run the statement again")
        # Taken while they are as they are stored: Arrow cannot take from all types that a client may declare.
        taken = found.drop_columns([ROW_ID]).take(pa.array(indices, pa.int64())).combine_chunks()
        declared = self._version.columns.declared
        nullable = pa.schema([column.with_nullable(True) for column in declared])
        for batch in self._version.as_declared(taken.to_batches(), declared.names):
            return pa.RecordBatch.from_arrays(batch.columns, schema=nullable)
        return pa.RecordBatch.from_arrays([pa.array([], column.type) for column in nullable], schema=nullable)

    def _visible(self, row_ids: list[int]) -> pa.Table:
        """Those of the rows that are there, in no order and as stored, the transaction's own changes included."""
        fields = self._version.columns.fields
        schema = stored_columns(fields).append(pa.field(ROW_ID, pa.int64()))
        found: list[pa.RecordBatch] = []
        if self._change is not None:
            here, gone = self._change.find(row_ids)
            gone |= set(here.column(ROW_ID).to_pylist())
            row_ids = [row_id for row_id in row_ids if row_id >= 0 and row_id not in gone]
            found = here.to_batches()
        if row_ids:
            names = [str(field["name"]) for field in fields]
            with closing(self._version.stored_rows(names, row_ids=np.array(row_ids, np.int64))) as stream:
                found += [conformed_batch(batch, schema) for batch in stream]
        return pa.Table.from_batches(found, schema)

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
        path = self._staged.finish()
        fault("stage.after")
        count, applied = self._insert(path) if self._request.change is Change.INSERT else self._merge(path, transaction)
        if applied is not None:
            self._engine.committed(self._version.name, applied.location, transaction)
        return count

    def _defer(self, transaction: Transaction[LakeView], change: TableChange, staged: StagedRows) -> int:
        """Put the rows into the transaction's net change; one that commits each statement commits it at once."""
        columns = [change.names.index(name) for name in self._columns.names]
        sent = Sent(staged.batches(), columns)
        if self._request.change is Change.INSERT:
            count = change.insert(sent)
        else:
            apply = change.update if self._request.change is Change.UPDATE else change.delete
            count = apply(sent, since=self._since, refuse=self._request.missing is MissingRows.REFUSE)
        fault("defer.after")
        # Of an UPDATE a row that is gone is a conflict in any case.
        handed_out = self._request.returning and self._request.change is Change.DELETE
        return self._engine.deferred(
            transaction,
            count,
            statement=self._request.statement,
            returned=self._version.name if handed_out else None,
        )

    def _insert(self, path: Path) -> tuple[int, Applied]:
        rows = 0 if self._staged is None else self._staged.rows
        applied = self._engine.writers.of(self._version.name).insert(
            path,
            self._columns.spark_schema(with_ids=False),
            rows=rows,
            check=lambda: self._engine.require_schema(self._version),
            statement=self._request.statement,
            remaining=self._ctx.remaining,
        )
        return rows, applied

    def _merge(self, path: Path, transaction: Transaction[LakeView] | None) -> tuple[int, Applied | None]:
        view = None if transaction is None else self._version
        nothing_set = self._request.change is Change.UPDATE and not self._columns.names
        sent = _Sent.of(self._ids)
        named = 0

        def decide() -> MergeWork | None:
            current = self._engine.current(self._version.name)
            if current is None:
                raise NotFound(f"table '{self._version.name[1]}' has been dropped")
            ids = self._decided(current, view, sent)
            if nothing_set:
                nonlocal named
                named = len(ids)
            return self._work(path, current, ids, sent) if len(ids) and not nothing_set else None

        writer = self._engine.writers.of(self._version.name)
        count, applied = writer.merge(decide, statement=self._request.statement, remaining=self._ctx.remaining)
        return count or named, applied

    def _decided(self, current: TableVersion, view: TableVersion | None, sent: _Sent) -> Ids:
        """The rows that the statement changes; raises when somebody else was first, or when an id has to be there."""
        if current.uuid != self._version.uuid or not current.columns.takes_rows_of(self._version.columns):
            raise Conflict(f"table '{self._version.name[1]}' has been altered; run the statement again")
        present = current.lineage(sent.ids)
        seen = present if view is None or view.snapshot_id == current.snapshot_id else view.lineage(sent.ids)
        if self._request.missing is MissingRows.REFUSE:
            sent.require(seen)
        if view is None:
            return present.ids
        if not current.metadata.descends_from(view.snapshot_id, view.sequence_number):
            raise Conflict(f"table '{self._version.name[1]}' has been rolled back; run the statement again")
        changed, gone = changed_since(seen.ids, present, view.sequence_number)
        lost = len(changed)
        if self._request.change is Change.UPDATE or self._request.returning:
            lost += len(gone)
        if lost:
            raise rows_changed(self._version.name[1], lost)
        return seen.ids[present.has(seen.ids)]

    def _work(self, path: Path, current: TableVersion, ids: Ids, sent: _Sent) -> MergeWork:
        update = self._request.change is Change.UPDATE
        target = quoted(self._engine.catalog_name, *self._version.name)
        staged = path
        if len(ids) != self._pushed:
            staged = _reduced(path, sent.last[positions_in(sent.ids, ids)])
        names = self._columns.names if update else None

        def sql(view: str) -> str:
            return merge_sql(target, quoted(view), current, ids, names=names, deletes=not update)

        return MergeWork(
            base=rows_and_columns(current.metadata),
            staged=staged,
            source_schema=self._columns.spark_schema(with_ids=True),
            sql=sql,
            expected={UPDATED_COUNT if update else DELETED_COUNT: len(ids)},
            count=len(ids),
        )


_NUMBER = "number"


@dataclass(frozen=True, slots=True)
class _Stored:
    """The columns that a statement carries, as they are staged."""

    names: tuple[str, ...]
    declared: tuple[pa.Field, ...]
    fields: tuple[Json, ...]

    @classmethod
    def of(cls, columns: Columns, sent: pa.Schema) -> _Stored:
        fields = [columns.field(name) for name in sent.names]
        declared = [columns.declared.field(name) for name in sent.names]
        return cls(tuple(sent.names), tuple(declared), tuple(fields))

    def stored(self, rows: pa.RecordBatch) -> list[pa.Array]:
        return [
            to_stored(column, declared, field)
            for column, declared, field in zip(rows.columns, self.declared, self.fields, strict=True)
        ]

    def staged_schema(self, *, with_ids: bool) -> pa.Schema:
        """Rows that are merged by id bring their columns by place; those that are appended by name."""
        head = [pa.field(MERGED_ID, pa.int64()), pa.field(_NUMBER, pa.int64())] if with_ids else []
        body = [
            pa.field(merged_column(at) if with_ids else name, stored_type(field["type"]))
            for at, (name, field) in enumerate(zip(self.names, self.fields, strict=True))
        ]
        return pa.schema([*head, *body])

    def spark_schema(self, *, with_ids: bool) -> str:
        head = [f"{MERGED_ID} bigint", f"{_NUMBER} bigint"] if with_ids else []
        body = [
            f"{merged_column(at) if with_ids else quoted(name)} {spark_type(field['type'])}"
            for at, (name, field) in enumerate(zip(self.names, self.fields, strict=True))
        ]
        return ", ".join([*head, *body])


def _last_of_each(rows: pa.RecordBatch, row_ids: pa.Int64Array) -> pa.RecordBatch:
    """For each row what it is set to in the end: of several changes to one row the last one counts."""
    ids = row_ids.to_pylist()
    last = {row_id: place for place, row_id in enumerate(ids)}
    return rows if len(last) == len(ids) else rows.take(pa.array([last[row_id] for row_id in ids], pa.int64()))


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """The row ids that a statement has brought: as they came, and each once with the number of its last row."""

    all: Ids
    ids: Ids
    last: Ids

    @classmethod
    def of(cls, parts: Sequence[Ids]) -> _Sent:
        found = np.concatenate([NO_IDS, *parts])
        if bool(np.all(found[1:] > found[:-1])):  # as a scan gives them
            return cls(found, found, np.arange(len(found)))
        order = np.argsort(found, kind="stable")
        ids = found[order]
        last = np.concatenate([ids[1:] != ids[:-1], [True]])
        return cls(found, ids[last], order[last])

    def require(self, present: Lineage) -> None:
        missing = np.flatnonzero(~present.has(self.all))
        if len(missing):
            raise RowNotFound(int(self.all[missing[0]]))


def _reduced(path: Path, numbers: Ids) -> Path:
    """The staged rows with these numbers, in a file beside the first: the last change of each row that is there."""
    rows = pq.read_table(path)
    kept = rows.filter(pc.is_in(rows.column(_NUMBER), pa.array(numbers)))
    reduced = path.with_suffix(".reduced.parquet")
    pq.write_table(kept, reduced, compression="snappy")
    return reduced
