"""Small changes of journalled tables: committed by one transaction of the catalog's database, applied by Spark later.

What waits at the same time is committed together. Each is decided on the tables as they are, outside of the
transaction; in it the journal is held, and whatever has changed since sends a member back to be decided again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from sparkport.catalog.ddl import MERGE_COLUMNS
from sparkport.catalog.figures import Distribution
from sparkport.catalog.row_ids import ROW_ID
from sparkport.errors import Conflict, SparkportError, TransactionNotActive, Unavailable
from sparkport.lakehouse.catalogs.database import Work
from sparkport.lakehouse.catalogs.journal_records import JournalRecords
from sparkport.lakehouse.catalogs.journal_state import Entry, TableJournal
from sparkport.lakehouse.catalogs.pointers import JournalMoved, Pointers
from sparkport.lakehouse.columns.storage import conformed_batch
from sparkport.lakehouse.columns.types import stored_type
from sparkport.lakehouse.iceberg.lineage import Ids, ascending, positions_in
from sparkport.lakehouse.journal.net import FIRST_ID, RowChange, entry_body, is_about, touches_since
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.write.change_set import CHANGED_ID, ChangeSet, changed_column
from sparkport.lakehouse.write.checks import require_checks_hold
from sparkport.lakehouse.write.commit_request import CommitRequest, Committed, quoted_names
from sparkport.lakehouse.write.conflicts import Decision, check_reads, decide, read_lineages
from sparkport.lakehouse.write.journal_room import JournalRoom
from sparkport.lakehouse.write.keys import AddedKey, added_keys, adds_since, require_unique, rows_with_keys

__all__ = ["JournalWriter"]

_ATTEMPTS = 30
_TRIES_WITH_OTHERS = 4
_MOST_TOGETHER = 64
_TOLD_ROWS = 500_000
"""Of an INSERT whose client has been told the ids of new rows: more than a flush takes at once have no place."""


@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    """What is to be written for one table, decided on ``version``."""

    version: TableVersion
    ids: Ids
    body: bytes
    rows: int
    added: Sequence[AddedKey]


class _Again(Exception):
    """It has to be decided again."""


@dataclass(slots=True, eq=False)
class _Member:
    request: CommitRequest
    versions: Mapping[TableName, TableVersion | None]
    drafts: Sequence[_Draft]
    rows: int
    journals: dict[str, TableJournal] = field(default_factory=dict)
    outcome: Committed | BaseException | None = None


class _Stale(JournalMoved):
    def __init__(self, member: _Member, table: TableName) -> None:
        super().__init__(table)
        self.member = member


class JournalWriter:
    """Called from several threads at once. ``wake`` is told when the journal has grown."""

    def __init__(
        self,
        pointers: Pointers,
        current: Callable[[TableName], TableVersion | None],
        settings: JournalSettings,
        *,
        room: JournalRoom,
        wake: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.wake = wake
        self.room = room
        self._pointers = pointers
        self._current = current
        self._turn = threading.Lock()
        self._queue_lock = threading.Lock()
        self.group_sizes = Distribution((1, 2, 4, 8, 16, 32, 64))
        self._queue: list[_Member] = []
        self._freed = threading.Condition()
        self._held: list[TableName] = []

    def takes_columns(self, names: Iterable[str]) -> bool:
        """Whether a new table with these columns is journalled."""
        fit = not any(name.casefold() in MERGE_COLUMNS for name in names)
        return fit and self.settings.new_tables and self._pointers.journal is not None

    def new_ids(self, count: int) -> Ids:
        ids = self._records.new_ids(count)
        return np.arange(FIRST_ID + ids.start, FIRST_ID + ids.stop, dtype=np.int64)

    def takes(self, changes: Mapping[TableName, ChangeSet]) -> bool:
        """Whether changes go into the journal: small ones, of journalled tables only."""
        if self._pointers.journal is None or not changes:
            return False
        rows = sum(change.inserted + len(change.updated) + len(change.deleted) for change in changes.values())
        most_rows, most_bytes = self._most(changes)
        return (
            all(change.base.is_journalled for change in changes.values())
            and rows <= most_rows
            and sum(change.nbytes for change in changes.values()) <= most_bytes
        )

    def _most(self, changes: Mapping[TableName, ChangeSet]) -> tuple[int, int]:
        """How many rows and bytes go into the journal: more where clients were told ids that only it gives."""
        if any(change.new_ids is not None for change in changes.values()):
            return _TOLD_ROWS, max(self.settings.limit // 4, self.settings.bytes)
        return self.settings.rows, self.settings.bytes

    def commit(self, request: CommitRequest) -> Committed | None:
        """None if a table is not journalled any more, or what is to be written is too much for the journal."""
        for attempt in range(_ATTEMPTS):
            self._wait_for(request)
            # Where many change the same rows, all but one of them are late: after some tries nobody here is quicker.
            with self._alone(request) if attempt >= _TRIES_WITH_OTHERS else nullcontext() as alone:
                member = self._decided(request)
                if not isinstance(member, _Member):
                    return member
                if alone:
                    self._write([member])
                else:
                    self._queued(member, request.remaining())
            if isinstance(member.outcome, Committed):
                return member.outcome
            if not isinstance(member.outcome, _Again):
                raise member.outcome or Unavailable("a change of the journal ended without an outcome")
        raise Conflict(f"table {quoted_names(request.changes)} is changed by others all the time; try again")

    def _decided(self, request: CommitRequest) -> _Member | Committed | None:
        versions = {table: self._current(table) for table in sorted(request.changes.keys() | request.reads.keys())}
        check_reads(request.reads, versions)
        lineages = read_lineages(request.changes.values(), versions)
        decisions = {t: decide(change, versions[t], lineages) for t, change in request.changes.items()}
        require_checks_hold(request.changes, decisions, versions, lineages)
        if not all(version.is_journalled for t in request.changes if (version := versions[t]) is not None):
            return None
        rows = sum(change.inserted for change in request.changes.values())
        rows += sum(decision.rows for decision in decisions.values())
        drafts = [self._draft(change, decisions[t], versions[t]) for t, change in request.changes.items()]
        written = [draft for draft in drafts if draft is not None]
        if not written and request.transaction is None and not request.reads:
            return Committed({}, rows)
        size = sum(len(draft.body) for draft in written)
        if size > 2 * self._most(request.changes)[1]:
            return None
        self.room.require(size, request.changes, limit=self.settings.limit, wake=self.wake)
        return _Member(request, versions, written, rows)

    @contextmanager
    def _alone(self, request: CommitRequest) -> Iterator[bool]:
        """No other of this server writes the journal while the block runs."""
        remaining = request.remaining()
        if not self._turn.acquire(timeout=-1 if remaining is None else max(remaining, 0)):
            raise Unavailable("the journal is busy; try again")
        try:
            yield True
        finally:
            self._turn.release()

    @contextmanager
    def held(self, table: TableName) -> Iterator[None]:
        """Keep this server's writers of a table waiting while the block runs: else there is always one more entry."""
        with self._freed:
            self._held.append(table)
        try:
            yield
        finally:
            with self._freed:
                self._held.remove(table)
                self._freed.notify_all()

    def _wait_for(self, request: CommitRequest) -> None:
        with self._freed:
            if not self._freed.wait_for(lambda: not any(t in request.changes for t in self._held), request.remaining()):
                raise Unavailable(f"table {quoted_names(request.changes)} is being altered; try again")

    @property
    def _records(self) -> JournalRecords:
        records = self._pointers.journal
        if records is None:
            raise Unavailable("this catalog has no journal")
        return records

    # What is written

    def _draft(self, change: ChangeSet, decision: Decision, version: TableVersion | None) -> _Draft | None:
        assert version is not None, "decided without a table"
        updated = decision.updated if change.columns else decision.updated[:0]
        inserted = change.inserted
        if not (inserted or len(updated) or len(decision.deleted)):
            return None
        new = change.new_ids if change.new_ids is not None else self.new_ids(inserted) if inserted else updated[:0]
        ids = np.concatenate([new, updated, decision.deleted])
        changes = np.repeat(
            np.array([RowChange.INSERTED, RowChange.UPDATED, RowChange.DELETED], np.int8),
            [inserted, len(updated), len(decision.deleted)],
        )
        fields = version.columns.fields
        parts = [self._inserted(change, version), self._updated(change, version, updated)]
        values = []
        for at, column in enumerate(fields):
            stored = stored_type(column["type"])
            gone = pa.nulls(len(decision.deleted), stored)
            values.append(pa.concat_arrays([*(part[at] for part in parts if part), gone]))
        body = entry_body(ids, changes, values, fields, snapshot=version.snapshot_id)
        added = added_keys(change, decision, version)
        for item in added:
            require_unique(version, item, rows_with_keys(version, item.key, item.values))
        return _Draft(version, ascending(updated, decision.deleted), body, len(ids), added)

    def _inserted(self, change: ChangeSet, version: TableVersion) -> list[pa.Array]:
        """New rows bring their columns by name; what they do not bring is NULL."""
        if change.inserts is None or not change.inserted:
            return []
        rows = pa.Table.from_batches(change.inserts.batches(), change.inserts.schema)
        values = []
        for column in version.columns.fields:
            stored, place = stored_type(column["type"]), rows.schema.get_field_index(str(column["name"]))
            values.append(pa.nulls(rows.num_rows, stored) if place < 0 else _flat(rows.column(place), stored))
        return values

    def _updated(self, change: ChangeSet, version: TableVersion, ids: Ids) -> list[pa.Array]:
        """Whole rows: the columns that are sent, and the others as they are."""
        if change.changes is None or not len(ids):
            return []
        sent = pa.Table.from_batches(change.changes.batches(), change.changes.schema)
        sent_ids = version.rows.resolve(sent.column(CHANGED_ID).to_numpy())
        order = np.argsort(sent_ids, kind="stable")
        places = pa.array(order[np.searchsorted(sent_ids, ids, sorter=order)])
        names = [str(column["name"]) for column in version.columns.fields]
        rest = [name for name in names if name not in change.columns]
        old = self._old(version, rest, ids) if rest else {}
        values = []
        for name, column in zip(names, version.columns.fields, strict=True):
            stored = stored_type(column["type"])
            if name in old:
                values.append(old[name])
            else:
                taken = sent.column(changed_column(change.columns.index(name))).take(places)
                values.append(_flat(taken, stored))
        return values

    def _old(self, version: TableVersion, names: Sequence[str], ids: Ids) -> dict[str, pa.Array]:
        fields = [version.columns.field(name) for name in names]
        schema = pa.schema([pa.field(f"c{at}", stored_type(f["type"])) for at, f in enumerate(fields)])
        schema = schema.append(pa.field(ROW_ID, pa.int64()))
        with closing(version.rows.stored(names, row_ids=ids)) as stream:
            rows = pa.Table.from_batches([conformed_batch(batch, schema) for batch in stream], schema)
        there = rows.column(ROW_ID).to_numpy()
        order = np.argsort(there, kind="stable")
        places = positions_in(there[order], ids)
        if bool(np.any(places < 0)):
            raise Conflict(f"table '{version.table.name}': a row is gone; run the statement again")
        taken = rows.take(pa.array(order[places]))
        return {name: _flat(taken.column(at), schema.field(at).type) for at, name in enumerate(names)}

    # Writing it, together with what waits

    def _queued(self, member: _Member, remaining: float | None) -> None:
        with self._queue_lock:
            self._queue.append(member)
        if not self._turn.acquire(timeout=-1 if remaining is None else max(remaining, 0)):
            with self._queue_lock:
                if member in self._queue:
                    self._queue.remove(member)
                    raise Unavailable("the journal is busy; try again")
            self._turn.acquire()  # another writes it just now
        try:
            while member.outcome is None:
                with self._queue_lock:
                    group, self._queue = self._queue[:_MOST_TOGETHER], self._queue[_MOST_TOGETHER:]
                self._write(group)
        finally:
            self._turn.release()

    def _write(self, group: Sequence[_Member]) -> None:
        waiting = [member for member in group if member.outcome is None]
        while waiting:
            try:
                self._write_all(waiting)
            except _Stale as exc:
                exc.member.outcome = _Again()
            except TransactionNotActive as exc:
                ended = [member for member in waiting if member.request.transaction == exc.transaction_id]
                for member in ended or waiting:
                    member.outcome = exc
            except BaseException as exc:
                if len(waiting) > 1 and isinstance(exc, SparkportError) and not isinstance(exc, Unavailable):
                    for member in waiting:
                        self._write([member])
                else:
                    for member in waiting:
                        member.outcome = exc
                    if not isinstance(exc, Exception):
                        raise
            waiting = [member for member in waiting if member.outcome is None]

    def _write_all(self, members: Sequence[_Member]) -> None:
        self.group_sizes.add(len(members))
        journals: dict[str, TableJournal] = {}
        last = 0

        def write(work: Work) -> None:
            nonlocal journals, last
            view, first = self._records.advance(work, len(members))
            journals, last = dict(view.by_uuid), first + len(members) - 1
            # What was read must be so when this is committed, by whatever way others change it; in their order.
            for table in sorted({table for member in members for table in member.request.reads}):
                self._pointers.location_in(work, table, hold=True)
            for number, member in enumerate(members):
                self._require_current(work, member, journals)
                for draft in member.drafts:
                    version = draft.version
                    journal = journals.get(version.uuid) or TableJournal(version.uuid, version.table)
                    if journal.table != version.table and not is_about(journal, version.metadata):
                        if journal.entries:
                            raise _Stale(member, version.table)
                        journal = self._records.forgotten(work, journal, first + number - 1)
                    journal = replace(journal, table=version.table)
                    entry = Entry(first + number, version.sequence_number, draft.rows, time.time(), draft.body)
                    self._records.append(work, journal, entry)
                    journals[version.uuid] = member.journals[version.uuid] = journal.followed_by([entry])

        statements = {m.request.statement: m.rows for m in members if m.request.statement is not None}
        transactions = [m.request.transaction for m in members if m.request.transaction is not None]
        if len(statements) < sum(m.request.statement is not None for m in members):
            raise Conflict("a statement is there twice")
        self._pointers.commit([], statements, transactions=transactions, with_journal=write)
        self._records.written(last, journals)
        for member in members:
            places = {draft.version.table: draft.version.location for draft in member.drafts}
            member.outcome = Committed(places, member.rows, member.journals)

    def _require_current(self, work: Work, member: _Member, journals: Mapping[str, TableJournal]) -> None:
        """What was decided holds still: the journal, which is held, is the only thing that can have changed it."""
        drafts = {draft.version.table: draft for draft in member.drafts}
        for table, version in member.versions.items():
            place = None if version is None else version.location
            if self._pointers.location_in(work, table) != place:
                raise _Stale(member, table)
            if version is None:
                continue
            journal = journals.get(version.uuid)
            if journal is None or journal.table == version.twin:
                continue
            known = None if version.journal is None else version.journal.table
            if journal.table not in (version.table, known):  # another with the same uuid has come first
                raise _Stale(member, table)
            if journal.flushed != (0 if version.journal is None else version.journal.flushed):
                raise _Stale(member, table)
            if table in member.request.reads and journal.last > version.revision:
                raise _Stale(member, table)
            draft = drafts.get(table)
            if draft is not None and (
                touches_since(journal, version.revision, draft.ids)
                or adds_since(journal, version.revision, version, draft.added)
            ):
                raise _Stale(member, table)


def _flat(column: pa.ChunkedArray, stored: pa.DataType) -> pa.Array:
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    whole = chunks[0] if len(chunks) == 1 else pa.concat_arrays([pa.array([], column.type), *chunks])
    batch = pa.RecordBatch.from_arrays([whole], names=["value"])
    return conformed_batch(batch, pa.schema([pa.field("value", stored)])).column(0)
