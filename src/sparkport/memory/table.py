"""A table of the memory engine: scans, row ids, statistics and time travel as every engine must have them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sparkport.catalog.changes import ChangesTable, TableCommit, TableHead, changes_schema
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import AlterableTable, Alteration
from sparkport.catalog.row_ids import ROW_ID, row_id_field
from sparkport.catalog.scan import AsOf, AsOfUnit, Scan, ScanRequest
from sparkport.catalog.statement import ChangeableTable, Statement, StatementRequest
from sparkport.catalog.static import arrow_statistics, select_batches
from sparkport.catalog.table import ColumnStatistics, StatisticsTable
from sparkport.catalog.versions import RevertibleTable, TableTag, TaggedTable, not_a_version, require_tag_name
from sparkport.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    VersionNotFound,
)
from sparkport.memory.changes import changes_between, commits_of, evolved
from sparkport.memory.data import Author, Definition, TableData
from sparkport.memory.overlay import FrozenOverlay
from sparkport.memory.rows import Segment, coalesce
from sparkport.memory.statement import MemoryStatement, base_commit
from sparkport.memory.store import Store, View
from sparkport.transactions.manager import Transactions

__all__ = ["MemoryTable"]

T = TypeVar("T")

_COMMIT = re.compile(rb"\d{1,18}")  # in a ticket's part


class MemoryTable(ChangeableTable, StatisticsTable, RevertibleTable, TaggedTable, AlterableTable, ChangesTable):
    """A table as one call sees it: ``at`` is the commit of its description. Without it, the newest there is."""

    def __init__(
        self,
        data: TableData,
        *,
        store: Store,
        transactions: Transactions[View],
        name: str | None = None,
        at: int | None = None,
    ) -> None:
        definition = data.newest if at is None else data.at(at)
        self.name = data.name if name is None else name
        self.comment = definition.comment
        self.tags = dict(definition.tags)
        self.checks = definition.checks
        self.keys = definition.keys
        self._data = data
        self._at = at
        self._store = store
        self._transactions = transactions

    def seen_by(self, ctx: CallContext) -> MemoryTable:
        with self._transactions.use(ctx) as transaction:
            commit = base_commit(ctx, self._store, self._data, transaction)
        return MemoryTable(self._data, store=self._store, transactions=self._transactions, name=self.name, at=commit)

    @property
    def schema(self) -> pa.Schema:
        return _with_row_id(self._definition)

    @property
    def _definition(self) -> Definition:
        return self._data.newest if self._at is None else self._data.at(self._at)

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        commit, overlay = self._view(ctx, request)
        if request.at is None and not self._data.at(commit).same_rows(self._definition):
            raise Conflict(f"table '{self.name}' has been altered since the scan was planned; run the query again")
        with_ids = request.selects(ROW_ID)
        columns_at = self._data.newest.since if request.at is not None and self._is_branch(request.at) else commit
        batches = coalesce(_visible(self._data, commit, overlay, with_ids=with_ids, columns_at=columns_at))
        return Scan(select_batches(batches, request))

    def plan(self, ctx: CallContext, request: ScanRequest) -> Sequence[ScanRequest]:
        """One part, which remembers the moment of planning."""
        if ctx.transaction_id is not None or request.at is not None:
            return (request,)
        return (request.with_part(str(self._now()).encode()),)

    def row_count(self, ctx: CallContext) -> int:
        commit = self._now()
        segments = self._data.at(commit).rows.segments(commit)
        return sum(segment.batch.num_rows - len(segment.ended) for segment in segments)

    def column_statistics(self, ctx: CallContext, column: str) -> ColumnStatistics | None:
        batches = list(self.scan(ctx, ScanRequest(columns=(column,))))
        field = self.schema.field(column)
        return arrow_statistics(pa.chunked_array([batch.column(column) for batch in batches], field.type))

    def schema_at(self, ctx: CallContext, at: AsOf) -> pa.Schema:
        return _with_row_id(self._data.newest if self._is_branch(at) else self._data.at(self._commit_at(at)))

    def head(self, ctx: CallContext) -> TableHead:
        return TableHead(self._data.id, len(self._data.commits) - 1)

    def commits(self, ctx: CallContext) -> Sequence[TableCommit]:
        return commits_of(self._data)

    def changes_schema(self, ctx: CallContext, end: AsOf | None) -> pa.Schema:
        return changes_schema(self._data.at(self._commit_of(end)).columns)

    def changes(self, ctx: CallContext, start: AsOf, end: AsOf | None, request: ScanRequest) -> Scan:
        first, last = self._commit_at(start), self._commit_of(end)
        if first > last:
            numbers = [self._data.version_of(commit) for commit in (first, last)]
            raise InvalidArgument(
                f"changes from version {numbers[0]} to {numbers[1]}: the first is later than the last"
            )
        return Scan(select_batches(changes_between(self._data, first, last), request))

    def rollback(self, ctx: CallContext, at: AsOf) -> int:
        return self._data.version_of(
            self._store.rollback(self._data, self._commit_at(at), self._transactions.everyone())
        )

    def version_tags(self, ctx: CallContext) -> Sequence[TableTag]:
        tags = [TableTag(name=name, version=number) for name, number in self._data.version_tags.items()]
        tags += [TableTag(name=name, version=at, is_branch=True) for name, at in self._data.branches.items()]
        return sorted(tags, key=lambda tag: tag.name)

    def tag(self, ctx: CallContext, name: str, at: AsOf) -> None:
        self._name_version("tag", name, at)

    def untag(self, ctx: CallContext, name: str) -> None:
        if self._data.version_tags.pop(name, None) is None:
            raise NotFound(f"table '{self.name}' has no tag '{name}'")

    def branch(self, ctx: CallContext, name: str, at: AsOf) -> None:
        self._name_version("branch", name, at)

    def drop_branch(self, ctx: CallContext, name: str) -> None:
        if name == "main":
            raise InvalidArgument("'main' is the table itself: DROP TABLE drops it")
        if self._data.branches.pop(name, None) is None:
            raise NotFound(f"table '{self.name}' has no branch '{name}'")

    def _name_version(self, kind: str, name: str, at: AsOf) -> None:
        require_tag_name(name, kind)
        number = self._data.version_of(self._commit_at(at))
        if number == 0:
            raise FailedPrecondition(f"table '{self.name}' had no rows in that version: it has no snapshot")
        named = {"tag": self._data.version_tags, "branch": self._data.branches}
        with self._store.lock:
            for known_kind, names in named.items():
                if name in names and (known_kind, names[name]) != (kind, number):
                    raise AlreadyExists(f"table '{self.name}' has a {known_kind} '{name}' already")
            named[kind][name] = number

    def open_statement(self, ctx: CallContext, request: StatementRequest) -> Statement:
        statement = MemoryStatement(ctx, request, store=self._store, table=self._data, transactions=self._transactions)
        if not statement.definition.same_rows(self._definition):
            statement.abort()
            raise Conflict(f"table '{self.name}' has been altered; run the statement again")
        return statement

    def alter(self, ctx: CallContext, alteration: Alteration) -> None:
        self._store.alter(self._data, alteration, Author.from_context(ctx))

    def _now(self) -> int:
        return self._store.commit if self._at is None else self._at

    def _view(self, ctx: CallContext, request: ScanRequest) -> tuple[int, FrozenOverlay | None]:
        if request.at is not None:
            return self._commit_at(request.at), None
        with self._transactions.use(ctx) as transaction:
            if transaction is None:
                return _planned(request.part, self._now()), None
            with transaction.lock:
                view = transaction.state
                view.read.add(self._data)
                overlay = view.overlays.get(self._data)
                return view.follow(self._data, ctx), None if overlay is None else overlay.frozen()

    def _is_branch(self, at: AsOf) -> bool:
        return at.unit is AsOfUnit.VERSION and at.value in self._data.branches

    def _version(self, text: str) -> int:
        tagged = self._data.version_tags.get(text, self._data.branches.get(text))
        try:
            return int(text) if tagged is None else tagged
        except ValueError as exc:
            raise not_a_version(self.name, text) from exc

    def _commit_of(self, at: AsOf | None) -> int:
        return self._data.last_commit() if at is None else self._commit_at(at)

    def _commit_at(self, at: AsOf) -> int:
        commits = list(self._data.commits)
        if at.unit is AsOfUnit.VERSION:
            version = self._version(at.value)
            if not 0 <= version < len(commits):
                raise VersionNotFound(f"table '{self.name}' has no version {version}; the oldest is 0")
            return commits[version].number
        moment = _parsed(at, datetime.fromisoformat)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        earlier = [commit.number for commit in commits if commit.time <= moment]
        if not earlier:
            raise VersionNotFound(
                f"table '{self.name}' has no version at {at.value}; the oldest is of {commits[0].time}"
            )
        return earlier[-1]


def _with_row_id(definition: Definition) -> pa.Schema:
    return definition.columns.append(row_id_field())


def _parsed(at: AsOf, parse: Callable[[str], T]) -> T:
    try:
        return parse(at.value)
    except ValueError as exc:
        raise InvalidArgument(f"'{at.value}' is not a {at.unit.value}") from exc


def _planned(part: bytes, now: int) -> int:
    if not part:
        return now
    if _COMMIT.fullmatch(part) is None or int(part) > now:
        raise InvalidArgument("ticket has a part that this table did not make")
    return int(part)


def _visible(
    table: TableData, commit: int, overlay: FrozenOverlay | None, *, with_ids: bool, columns_at: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a commit, less those that the overlay replaces, then the overlay's own; in columns of another one."""
    hidden = None if overlay is None or not overlay.replaced else pa.array(overlay.replaced, pa.int64())
    for segment in table.at(commit).rows.segments(commit):
        batch = segment.batch
        if columns_at != commit:
            columns = table.at(columns_at).columns
            batch = evolved(table, batch, since=commit, until=columns_at)
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=columns)  # which may be NOT NULL only since
        batch = _rows(batch, segment, with_ids or hidden is not None)
        alive = segment.alive(commit)
        if alive is not None:
            batch = batch.take(pa.array(alive, pa.int64()))
        if hidden is not None:
            batch = batch.filter(pc.invert(pc.is_in(batch.column(ROW_ID), hidden)))
            batch = batch if with_ids else batch.drop_columns([ROW_ID])
        if batch.num_rows:
            yield batch
    for batch, segment in overlay.segments if overlay is not None else ():
        yield _rows(batch, segment, with_ids)


def _rows(batch: pa.RecordBatch, segment: Segment, with_ids: bool) -> pa.RecordBatch:
    return batch.append_column(row_id_field(), segment.ids()) if with_ids else batch
