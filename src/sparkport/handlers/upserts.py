"""Changes by key: the input is kept until it ends, its keys are looked up, and one statement changes what they say.

Looking up and changing is done in one transaction, the caller's if it has one. In one of its own a table without a
declared key must not have changed in between, or two callers could insert the same key; then it is done again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.catalog.casting import decoded, decoded_type
from sparkport.catalog.context import CallContext
from sparkport.catalog.keys import is_comparable, primary_key
from sparkport.catalog.memory_sizes import cuts, expanded_bytes
from sparkport.catalog.model import Catalog
from sparkport.catalog.repeats import KNOWN_SECONDS, Recent, statement_key
from sparkport.catalog.row_ids import data_schema, find_row_id_column
from sparkport.catalog.scan import ScanRequest, as_scan
from sparkport.catalog.statement import Change, ChangeableTable, MissingRows, Statement, StatementRequest
from sparkport.catalog.steps import step
from sparkport.catalog.table import Table
from sparkport.catalog.transaction import Isolation
from sparkport.errors import (
    AlreadyExists,
    Conflict,
    DuplicateKey,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    PermissionDenied,
)
from sparkport.filters.evaluate import keep_rows
from sparkport.handlers.columns import fit_new, fit_some
from sparkport.handlers.operations import require_manager
from sparkport.policies.guard import GuardedTable
from sparkport.protocol.targets import Kind, Target
from sparkport.upserts.keys import InputKeys, Matches, Scratch
from sparkport.upserts.model import Counts, KeyedChange, KeyedRequest, Outcome
from sparkport.upserts.spool import RowSpool

if TYPE_CHECKING:
    from sparkport.handlers.directory import Directory

__all__ = ["ACTION", "Upsert", "Upserts"]

ACTION = "merge_action"
"""The column that says what became of a row."""

_ATTEMPTS = 10
_DUPLICATES = 3
_BATCH_ROWS = 65_536
_BATCH_BYTES = 8 << 20
_ACTION_BYTES = 12
_SENT_COPIES = 6  # of batches that are being sent, in two of which the longest text may be
_WORDS = pa.array([outcome.name for outcome in Outcome], pa.string())

Outcomes = NDArray[np.int8]


class Upserts:
    """Those of one catalog."""

    def __init__(self, directory: Directory, catalog: Catalog) -> None:
        self._directory = directory
        self._catalog = catalog
        self._scratch = Scratch(catalog.scratch_folder)
        self._known: Recent[str, Counts] = Recent(KNOWN_SECONDS)

    def open(self, ctx: CallContext, request: KeyedRequest, sent: pa.Schema) -> Upsert:
        """A statement on rows of the schema ``sent``; raises for all that can be known to be wrong before they come."""
        return Upsert(
            ctx,
            request,
            sent,
            directory=self._directory,
            catalog=self._catalog,
            scratch=self._scratch,
            known=self._known,
        )


class Upsert:
    """One statement under way. One thread drives it; always ``close`` it."""

    def __init__(
        self,
        ctx: CallContext,
        request: KeyedRequest,
        sent: pa.Schema,
        *,
        directory: Directory,
        catalog: Catalog,
        scratch: Scratch,
        known: Recent[str, Counts],
    ) -> None:
        """``known`` are statements that have been done, for those that are sent again."""
        self._ctx = ctx
        self._request = request
        self._directory = directory
        self._catalog = catalog
        table = self._table(ctx)
        self._columns = data_schema(table.schema)
        self._fit = fit_some(table.name, sent, self._columns, by_value=True)
        self._key = self._key_columns(table)
        declared = any(set(key.columns) <= set(self._key) for key in table.keys)
        alone = declared or request.change is KeyedChange.DELETE_MATCHING
        # Of a caller who does not see all rows, one that is hidden may have the key, and keep it.
        own = () if isinstance(table, GuardedTable) else table.keys
        self._own_keys = [key for key in own if set(key.columns) == set(self._key)]
        self._isolation = Isolation.SNAPSHOT if alone else Isolation.SERIALIZABLE
        self.counts: Counts | None = None
        self.changed = self._returned = 0
        self._known = known
        self._rows = RowSpool(self._fit.target, scratch.folder)
        self._keys = InputKeys(scratch, [self._fit.target.field(name) for name in self._key])

    @property
    def output(self) -> pa.Schema:
        """The input's columns as the table has them, but enums as their values, and what became of each row."""
        names = {name.casefold() for name in self._fit.target.names}
        action = ACTION
        while action in names:
            action += "_1"
        fields = [pa.field(column.name, decoded_type(column.type)) for column in self._fit.target]
        return pa.schema([*fields, pa.field(action, pa.string())])

    def push(self, batch: pa.RecordBatch) -> int:
        """How many bytes the rows take in ``finish``."""
        self._ctx.check()
        rows = self._fit(batch)
        self._rows.append(rows)
        self._keys.append(rows)
        size: int = sum(map(expanded_bytes, rows.columns)) + _ACTION_BYTES * rows.num_rows
        self._returned += size
        return size

    def finish(self, *, at_once: bool = False) -> Iterator[pa.RecordBatch]:
        """Commit; then the rows of the input with what became of each, some megabytes at a time.

        Who wants them ``at_once`` has made sure that there is room for them; for the others' messages there is before
        anything is committed.
        """
        if not at_once:
            self._ctx.account.promise(_SENT_COPIES * min(self._returned, _BATCH_BYTES))
        outcomes = self.commit()
        if outcomes is None:
            raise AlreadyExists(
                f"statement '{self._ctx.statement_id}' has been committed: what became of its rows cannot be told again"
            )
        output, start = self.output, 0
        for whole in self._rows.batches():
            for first, count in _parts(whole):
                batch = whole.slice(first, count)
                words = _WORDS.take(pa.array(outcomes[start : start + batch.num_rows]))
                start += batch.num_rows
                yield pa.RecordBatch.from_arrays([*map(decoded, batch.columns), words], schema=output)

    def commit(self) -> Outcomes | None:
        """What became of each row, by ``Outcome``; None for a statement that was committed before.

        Sets ``changed``, and ``counts`` where they are known.
        """
        ctx, request = self._ctx, self._request
        key = statement_key(ctx, self._catalog, request.change, schema=request.schema, table=request.table)
        log = self._directory.operations.statements
        with log.once(key, self._catalog, schema=request.schema, table=request.table) as once:
            if once.done is not None:
                self.changed, self.counts = once.done, None if key is None else self._known.get(key)
                return None
            self._keys.require_distinct()
            outcomes, counts = self._in_transaction(key)
            self.changed, self.counts = counts.changed, counts
            once.count = counts.changed
            if key is not None:
                self._known.put(key, counts)
            ctx.record.changed(counts.changed)
        return outcomes

    def close(self) -> None:
        """Safe to repeat."""
        self._rows.close()
        self._keys.close()

    # The table

    def _table(self, ctx: CallContext) -> ChangeableTable:
        """As the call sees it, if the caller may do this."""
        request = self._request
        target = Target(self._catalog.name, request.schema, Kind.TABLE, request.table)
        tables = [self._directory.table(ctx, target, right).table for right in request.change.rights]
        table = tables[0]
        if not isinstance(table, ChangeableTable) or find_row_id_column(table.schema) is None:
            raise FailedPrecondition(f"table '{table.name}' does not support changes by key")
        return table

    def _key_columns(self, table: Table) -> tuple[str, ...]:
        given = self._request.key
        if given is None and (primary := primary_key(table.keys)) is not None:
            given = primary.columns
        if given is None:
            raise FailedPrecondition(
                f"table '{table.name}' has no primary key: name the columns of the key, in DuckDB with "
                f"rows.{self._request.change.value}_by"
            )
        names = tuple(_found(name, self._columns.names, table.name) for name in given)
        if not names:
            raise InvalidArgument("a key needs at least one column")
        if len(set(names)) < len(names):
            raise InvalidArgument("the key has a column twice")
        for name in names:
            if name not in self._fit.target.names:
                raise InvalidArgument(f"the input lacks column '{name}' of the key")
            if isinstance(table, GuardedTable) and name not in table.view.clear:
                raise PermissionDenied(
                    f"column '{name}' of table '{table.name}' is not shown to you as it is: it cannot be a key"
                )
            if not is_comparable(kind := self._columns.field(name).type):
                raise InvalidArgument(f"column '{name}' cannot be part of a key: values of type {kind} do not compare")
        return names

    # Making it happen

    def _in_transaction(self, key: str | None) -> tuple[Outcomes, Counts]:
        ctx, operations = self._ctx, self._directory.operations
        if ctx.transaction_id is not None:
            with operations.running(ctx, self._catalog):
                return self._change(ctx, key)
        manager = require_manager(self._catalog)
        duplicates = 0
        for attempt in itertools.count(1):
            ctx.check()
            try:
                with operations.new_transaction(ctx, manager, self._isolation) as inner:
                    return self._change(inner, key)
            except Conflict:
                if attempt == _ATTEMPTS:
                    raise
            except DuplicateKey as exc:
                # Another has inserted the key meanwhile; or it is another key, which stays so.
                duplicates += not any(own.is_violated(exc) for own in self._own_keys)
                if duplicates == _DUPLICATES or attempt == _ATTEMPTS:
                    raise
            time.sleep(min(1.0, 0.01 * 2**attempt))
        raise InternalError("nothing was tried")

    def _change(self, ctx: CallContext, key: str | None) -> tuple[Outcomes, Counts]:
        table = self._table(ctx)
        if not data_schema(table.schema).equals(self._columns, check_metadata=True):
            raise FailedPrecondition(f"table '{table.name}' has been altered; run the statement again")
        with step("match"):
            matches = self._matches(ctx, table)
        change = self._request.change
        outcomes = np.full(self._rows.rows, Outcome.NOTHING, np.int8)
        found = np.zeros(self._rows.rows, np.bool_)
        found[matches.numbers] = True
        updated: Sequence[str] = ()
        if change is not KeyedChange.DELETE_MATCHING:
            outcomes[~found] = Outcome.INSERT
        if change is KeyedChange.UPSERT:
            self._keys.require_unambiguous(matches)
            updated = [name for name in self._fit.target.names if name not in self._key]
            if updated:
                outcomes[found] = Outcome.UPDATE
        elif change is KeyedChange.DELETE_MATCHING:
            outcomes[found] = Outcome.DELETE
        return outcomes, self._apply(ctx, table, matches, outcomes, updated=updated, key=key)

    def _matches(self, ctx: CallContext, table: ChangeableTable) -> Matches:
        place = find_row_id_column(table.schema)
        assert place is not None
        row_id = table.schema.field(place).name
        if not self._rows.rows:
            return Matches.none()
        request = ScanRequest(columns=(*self._key, row_id), filter=self._keys.filter())
        scan = as_scan(table.scan(ctx, request))

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in scan:
                ctx.check()
                yield batch

        try:
            return self._keys.matches(batches(), row_id)
        finally:
            scan.close()

    def _apply(
        self,
        ctx: CallContext,
        table: ChangeableTable,
        matches: Matches,
        outcomes: Outcomes,
        *,
        updated: Sequence[str],
        key: str | None,
    ) -> Counts:
        counted = np.bincount(outcomes, minlength=len(Outcome))
        deleted = np.unique(matches.row_ids) if counted[Outcome.DELETE] else _NO_IDS
        inserts, updates = int(counted[Outcome.INSERT]), int(counted[Outcome.UPDATE])
        counts = Counts(inserts, updates, len(deleted), int(counted[Outcome.NOTHING]))
        if not counts.changed:
            return counts
        if len(deleted):
            kind, columns = Change.DELETE, pa.schema([])
        elif self._request.change is KeyedChange.UPSERT and updated:
            kind, columns = Change.UPSERT, pa.schema([self._columns.field(name) for name in updated])
        else:
            kind, columns = Change.INSERT, self._columns
        request = StatementRequest(change=kind, columns=columns, missing=MissingRows.REFUSE, statement=key)
        statement = table.open_statement(ctx, request)
        try:
            with step("stage"):
                if kind is Change.DELETE:
                    _push_ids(statement, deleted)
                else:
                    self._push_rows(ctx, statement, matches, outcomes, updated)
            ctx.check()
            with step("commit"):
                statement.finish()
        finally:
            statement.abort()
        return counts

    def _push_rows(
        self, ctx: CallContext, statement: Statement, matches: Matches, outcomes: Outcomes, updated: Sequence[str]
    ) -> None:
        row_ids = np.zeros(len(outcomes), np.int64)
        row_ids[matches.numbers] = matches.row_ids
        whole = fit_new(self._request.table, self._fit.target, self._columns)
        start = 0
        for batch in self._rows.batches():
            ctx.check()
            part = slice(start, start + batch.num_rows)
            start += batch.num_rows
            new, old = outcomes[part] == Outcome.INSERT, outcomes[part] == Outcome.UPDATE
            if new.any():
                statement.push(whole(keep_rows(batch, pa.array(new))), None)
            if old.any():
                rows = keep_rows(batch.select(list(updated)), pa.array(old))
                statement.push(rows, pa.array(row_ids[part][old]))


_NO_IDS = np.zeros(0, np.int64)


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    rows = max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        for first, count in cuts(batch.slice(start, rows).columns, _BATCH_BYTES):
            yield start + first, count


def _push_ids(statement: Statement, row_ids: NDArray[np.int64]) -> None:
    for start in range(0, len(row_ids), _BATCH_ROWS):
        statement.push(None, pa.array(row_ids[start : start + _BATCH_ROWS]))


def _found(name: str, names: Sequence[str], table: str) -> str:
    folded = [known for known in names if known.casefold() == name.casefold()]
    if name in names:
        return name
    if len(folded) != 1:
        raise InvalidArgument(f"table '{table}' has no column '{name}' for a key")
    return folded[0]
