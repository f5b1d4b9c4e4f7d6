"""New rows and changed ones of one table in one statement: an INSERT and an UPDATE that are committed together."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.statement import Change, Statement, StatementRequest
from sparkport.lakehouse.catalogs.pointers import OutcomeUnknown
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.tables.engine import LakeEngine
from sparkport.lakehouse.tables.statement import LakeStatement
from sparkport.lakehouse.tables.views import LakeView
from sparkport.transactions.manager import InDoubt, Transaction, require_usable

__all__ = ["LakeUpsert"]


class LakeUpsert(Statement):
    def __init__(self, ctx: CallContext, request: StatementRequest, version: TableVersion, engine: LakeEngine) -> None:
        self._ctx = ctx
        self._request = request
        self._version = version
        self._engine = engine
        self._transaction = None if ctx.transaction_id is None else engine.transactions.enter(ctx.transaction_id)
        self._ended = False
        new = replace(request, change=Change.INSERT, columns=version.columns.declared)
        try:
            self._new = LakeStatement(ctx, new, version, engine, is_part=True)
            try:
                changed = replace(request, change=Change.UPDATE)
                self._changed = LakeStatement(ctx, changed, version, engine, is_part=True)
            except BaseException:
                self._new.abort()
                raise
        except BaseException:
            self._leave()
            raise

    def push(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array | None) -> None:
        (self._new if row_ids is None else self._changed).push(rows, row_ids)

    def finish(self) -> int:
        try:
            if self._transaction is None:
                return self._commit(None)
            with self._transaction.lock:
                if not self._transaction.auto_commit:
                    return self._changed.finish() + self._new.finish()
                return self._commit_in(self._transaction)
        finally:
            self.abort()

    def abort(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._new.abort()
        self._changed.abort()
        self._leave()

    def _leave(self) -> None:
        if self._transaction is not None:
            self._engine.transactions.leave(self._transaction)

    def _commit_in(self, transaction: Transaction[LakeView]) -> int:
        require_usable(transaction)
        transaction.wrote = True
        try:
            return self._commit(transaction)
        except OutcomeUnknown as exc:
            transaction.in_doubt, transaction.state.unknown = True, exc
            raise InDoubt(transaction.id, auto_commit=True) from exc

    def _commit(self, transaction: Transaction[LakeView] | None) -> int:
        new, changed = self._new.change_set(), self._changed.change_set()
        both = new if changed is None else changed
        if both is None:
            return 0
        if new is not None and changed is not None:
            both = replace(changed, inserts=new.inserts, new_ids=new.new_ids)
        fault("stage.after")
        return self._engine.commit_statement(
            self._ctx, transaction, {self._version.table: both}, self._request.statement
        )
