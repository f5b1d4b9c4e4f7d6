"""The finer ability beneath ``insert``, ``update`` and ``delete``, which our own engines have.

RETURNING from DuckDB needs rows back in the middle of the stream, so an engine takes a statement batch by batch and
makes it happen at its end, whole or not at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.row_ids import as_row_ids, require_row_id_column, split_row_ids
from sparkport.catalog.table import (
    DeletableBatchTable,
    DeletableTable,
    DMLOptions,
    DMLResult,
    InsertableTable,
    UpdatableBatchTable,
    UpdatableTable,
)
from sparkport.errors import InvalidArgument

__all__ = ["Change", "ChangeableTable", "MissingRows", "Statement", "StatementRequest"]

Push = tuple[pa.RecordBatch | None, pa.Int64Array | None]


class Change(Enum):
    """``UPSERT`` is both of the first two: rows that come without ids are new, those with ids are updated."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    UPSERT = "upsert"


class MissingRows(Enum):
    """What a row id means that is not in the transaction's view: nothing (DuckDB), or NOT_FOUND (the JSON contract)."""

    SKIP = "skip"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRequest:
    """``columns`` are the columns that batches carry, row id not among them: all for INSERT, none for DELETE.

    Of an UPSERT they are those that rows with ids carry; new rows have all. It never returns rows.

    ``statement`` is the statement's own id, if the client gave one, for engines that remember it with the commit.
    """

    change: Change
    columns: pa.Schema
    returning: bool = False
    missing: MissingRows = MissingRows.SKIP
    statement: str | None = None


class Statement(ABC):
    """One statement under way. One thread drives it; exactly one of ``finish`` and ``abort`` ends it."""

    @abstractmethod
    def push(self, rows: pa.RecordBatch | None, row_ids: pa.Int64Array | None) -> pa.RecordBatch | None:
        """Take a batch. When returning, give back the full rows, with row id, as many as came and in their order.

        For UPDATE the new values; for DELETE the rows as they were. Nobody else may see any of it yet. A row that is
        skipped comes back as it was sent.
        """

    @abstractmethod
    def finish(self) -> int:
        """Make it happen in its transaction, or for good where there is none; the number of rows really changed."""

    @abstractmethod
    def abort(self) -> None:
        """Leave no trace. MUST be safe at any moment before ``finish`` has returned, and to repeat."""


class ChangeableTable(InsertableTable, UpdatableTable, DeletableTable, UpdatableBatchTable, DeletableBatchTable):
    """A table with statements has all abilities: each is a statement driven from its first batch to its end."""

    @abstractmethod
    def open_statement(self, ctx: CallContext, request: StatementRequest) -> Statement:
        """Begin a statement in the transaction of ``ctx``."""

    def insert(self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None) -> DMLResult:
        return self._run(ctx, Change.INSERT, rows.schema, ((batch, None) for batch in rows), options)

    def update(
        self, ctx: CallContext, row_ids: Sequence[int], rows: pa.RecordBatchReader, options: DMLOptions | None = None
    ) -> DMLResult:
        return self._run(ctx, Change.UPDATE, rows.schema, _paired(row_ids, rows), options)

    def delete(self, ctx: CallContext, row_ids: Sequence[int], options: DMLOptions | None = None) -> DMLResult:
        ids = as_row_ids(pa.array(row_ids, pa.int64()))
        return self._run(ctx, Change.DELETE, pa.schema([]), [(None, ids)], options)

    def update_batches(
        self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None
    ) -> DMLResult:
        index = require_row_id_column(rows.schema, "UPDATE")
        pushes = (split_row_ids(batch, index)[::-1] for batch in rows)
        return self._run(ctx, Change.UPDATE, rows.schema.remove(index), pushes, options)

    def delete_batches(
        self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None
    ) -> DMLResult:
        index = require_row_id_column(rows.schema, "DELETE")
        pushes = ((None, split_row_ids(batch, index)[0]) for batch in rows)
        return self._run(ctx, Change.DELETE, pa.schema([]), pushes, options)

    def _run(
        self, ctx: CallContext, change: Change, columns: pa.Schema, pushes: Iterable[Push], options: DMLOptions | None
    ) -> DMLResult:
        options = options or DMLOptions()
        wanted = list(options.returning_columns) or self.schema.names
        for name in wanted:
            if name not in self.schema.names:
                raise InvalidArgument(f"returning_columns has '{name}', which is not in the table")
        request = StatementRequest(change=change, columns=columns, returning=options.returning)
        statement = self.open_statement(ctx, request)
        returned: list[pa.RecordBatch] = []
        try:
            for rows, row_ids in pushes:
                ctx.check()
                back = statement.push(rows, row_ids)
                if back is not None:
                    returned.append(back.select(wanted))
            count = statement.finish()
        except BaseException:
            statement.abort()
            raise
        if not options.returning:
            return DMLResult(count)
        schema = returned[0].schema if returned else pa.schema([self.schema.field(name) for name in wanted])
        return DMLResult(count, pa.RecordBatchReader.from_batches(schema, returned))


def _paired(row_ids: Sequence[int], rows: pa.RecordBatchReader) -> Iterable[Push]:
    ids = as_row_ids(pa.array(row_ids, pa.int64()))
    used = 0
    for batch in rows:
        yield batch, ids.slice(used, batch.num_rows)
        used += batch.num_rows
    if used != len(ids):
        raise InvalidArgument(f"row_ids count ({len(ids)}) does not match input rows ({used})")
