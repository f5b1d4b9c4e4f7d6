"""Transactions on a lakehouse: what they defer, what they see of it, and how they end."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from sparkport.catalog.context import CallContext, current_call
from sparkport.catalog.steps import step
from sparkport.catalog.transaction import Isolation, OpenTransaction, TransactionState
from sparkport.errors import (
    AlreadyExists,
    Conflict,
    NotFound,
    ResourceExhausted,
    SparkportError,
    TableNotFound,
    TransactionNotActive,
)
from sparkport.lakehouse.catalogs.database import Work
from sparkport.lakehouse.catalogs.journal_state import TableJournal
from sparkport.lakehouse.catalogs.pointers import Edit, JournalMoved, Moved
from sparkport.lakehouse.iceberg.edits import Json
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion, VersionLoader
from sparkport.lakehouse.tables.journal_flusher import Flushed, JournalFlusher
from sparkport.lakehouse.tables.planned_journals import PlannedJournals
from sparkport.lakehouse.tables.storage import Storage
from sparkport.lakehouse.tables.versions import TableVersions
from sparkport.lakehouse.tables.views import LakeView, Views
from sparkport.lakehouse.write.applier import Applier
from sparkport.lakehouse.write.change_set import ChangeSet
from sparkport.lakehouse.write.commit_request import CommitRequest, Committed, NotFlushed, quoted_names
from sparkport.lakehouse.write.committer import Committer, done_elsewhere
from sparkport.lakehouse.write.journal_room import JournalRoom
from sparkport.lakehouse.write.journal_writer import JournalWriter
from sparkport.lakehouse.write.net_change import NetChange, TableChange
from sparkport.lakehouse.write.own_rows import OwnRows
from sparkport.lakehouse.write.shadow_applier import ShadowApplier
from sparkport.lakehouse.write.wap_applier import WapApplier
from sparkport.lakehouse.write.workspace import Workspace
from sparkport.transactions.manager import InDoubt, Transaction, Transactions, TransactionSettings, require_usable

__all__ = ["LakeEngine"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 8
_DROP_SECONDS = 30.0


class LakeEngine:
    """Implements ``transactions.Engine``."""

    def __init__(
        self,
        storage: Storage,
        loader: VersionLoader,
        settings: TransactionSettings | None = None,
        journal: JournalSettings | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.storage = storage
        self.versions = TableVersions(storage.pointers, loader)
        self._settings = settings or TransactionSettings()
        self.transactions: Transactions[LakeView] = Transactions(self, self._settings, clock=clock)
        self.views = Views(storage.pointers, self.versions, self.transactions)
        self.workspace = Workspace(storage.staging.folder)
        kind = WapApplier if storage.pointers.shadows is None else ShadowApplier
        self.applier: Applier = kind(
            catalog=storage.catalog_name,
            pointers=storage.pointers,
            files=storage.files,
            spark=storage.spark,
            staging=storage.staging,
        )
        journal = journal or JournalSettings()
        room = JournalRoom(storage.pointers, storage.apart)
        self.journal = JournalWriter(storage.pointers, self.versions.current, journal, room=room)
        self.planned = PlannedJournals(storage.pointers)
        self.committer = Committer(pointers=storage.pointers, applier=self.applier, current=self.versions.current)
        self.flusher = JournalFlusher(storage, self.versions, self.committer, pace=journal.seconds)

    def close(self) -> None:
        self.committer.close()
        self.workspace.close()

    def dropped(self, ctx: CallContext, table: TableName, location: str) -> None:
        """The caller has dropped a table, or given it another name."""
        self.views.session_ddl.note(ctx, table, location, None)
        self.committer.forget(table)

    # Changes that wait for a commit

    def defers(self, transaction: Transaction[LakeView]) -> bool:
        """Whether statements go through the transaction's own database.

        Under serializable those do too that are committed one by one: what they read is checked with the commit.
        """
        return not transaction.auto_commit or transaction.isolation is Isolation.SERIALIZABLE

    def changing(self, transaction: Transaction[LakeView], version: TableVersion) -> TableChange:
        """Where a statement of a transaction puts its changes; the transaction's lock is held."""
        require_usable(transaction)
        view = transaction.state
        if view.net is None:
            view.net = NetChange(self.workspace, transaction.id)
        change = view.net.table(version)
        if change.version.location != version.location:
            raise Conflict(f"table '{version.table.name}' has been altered; run the transaction again")
        return change

    def deferred(
        self,
        ctx: CallContext,
        transaction: Transaction[LakeView],
        count: int,
        *,
        statement: str | None,
        returned: TableName | None,
    ) -> int:
        """A statement has put its changes there; how many rows that are in the end.

        ``returned`` is the table, if old rows have been handed out. One that commits each statement commits it at once.
        """
        if returned is not None:
            transaction.state.returned.add(returned)
        held = self.workspace.bytes_held()
        if held > self._settings.max_staged_bytes:
            raise ResourceExhausted(
                f"open transactions hold {held:,} bytes of changes, more than {self._settings.max_staged_bytes:,}"
            )
        net = transaction.state.net
        if not transaction.auto_commit or net is None:
            return count
        try:
            with net.change_sets(self.storage.staging, returned=transaction.state.returned) as changes:
                return self.commit_statement(ctx, transaction, changes, statement)
        finally:
            self._close(transaction)

    def commit_statement(
        self,
        ctx: CallContext,
        transaction: Transaction[LakeView] | None,
        changes: Mapping[TableName, ChangeSet],
        statement: str | None,
    ) -> int:
        """Commit a statement at once; how many rows it changed. Its transaction sees the table as it is then."""
        reads = {} if transaction is None else self._reads(transaction)
        committed = self._commit(ctx, changes, reads, statement=statement)
        if transaction is not None:
            transaction.state.pins.update(committed.locations)
            transaction.state.journals.update(committed.journals)
        return committed.rows

    def own_rows(self, ctx: CallContext, version: TableVersion, columns: tuple[int, ...]) -> OwnRows | None:
        """What a call's transaction has changed in a table that it reads, and does not see in ``version``."""
        with self.transactions.use(ctx) as transaction:
            if transaction is None or not self.defers(transaction):
                return None
            with transaction.lock:
                require_usable(transaction)
                transaction.state.read.add(version.table)
                change = transaction.state.change(version.table)
                if change is None or not change.rows or change.version.location != version.location:
                    return None
                return change.own_rows(columns)

    def hides_statistics(self, ctx: CallContext, table: TableName) -> bool:
        """Whether what a snapshot knows of its rows does not hold for a call, or would be a read that nobody notes."""
        with self.transactions.use(ctx) as transaction:
            if transaction is None or not self.defers(transaction):
                return False
            change = transaction.state.change(table)
            return transaction.isolation is Isolation.SERIALIZABLE or (change is not None and change.rows > 0)

    def _reads(self, transaction: Transaction[LakeView]) -> dict[TableName, TableVersion | None]:
        """What must be as it was seen, under serializable."""
        if transaction.isolation is not Isolation.SERIALIZABLE:
            return {}
        view = transaction.state
        places = {table: view.location(table) for table in sorted(view.read)}
        return {t: None if place is None else self.views.seen(view, t, place) for t, place in places.items()}

    def _commit(
        self,
        ctx: CallContext,
        changes: Mapping[TableName, ChangeSet],
        reads: Mapping[TableName, TableVersion | None],
        *,
        statement: str | None = None,
        transaction: str | None = None,
    ) -> Committed:
        if not changes and not reads:
            return Committed({}, 0)
        request = CommitRequest(
            changes=changes,
            reads=reads,
            statement=statement,
            transaction=transaction,
            remaining=ctx.remaining,
            author=ctx.identity.subject,
        )
        if self.journal.takes(changes):
            try:
                with step("journal"):
                    committed = self.journal.commit(request)
            except (AlreadyExists, Conflict, NotFound) as exc:
                # Those who were first may have been this very statement.
                committed = done_elsewhere(self.storage.pointers, request)
                if committed is None:
                    raise exc
            if committed is not None and not committed.locations:
                committed = done_elsewhere(self.storage.pointers, request) or committed
            if committed is not None:
                return committed
        return self._commit_by_spark(ctx, request)

    def _commit_by_spark(self, ctx: CallContext, request: CommitRequest) -> Committed:
        """What the journal holds of these tables is applied first: who reads without it sees changes in their order."""
        with contextlib.ExitStack() as staged:
            return self._commit_after_flush(ctx, request, staged)

    def _commit_after_flush(self, ctx: CallContext, request: CommitRequest, staged: contextlib.ExitStack) -> Committed:
        if any(change.is_for_spark for change in request.changes.values()):
            with step("spark"):
                self.storage.spark.wait_ready(ctx.remaining())
        for attempt in range(_ATTEMPTS):
            current = {table: self.versions.current(table) for table in request.changes}
            pending = [v for v in current.values() if v is not None and v.journal is not None]
            if attempt or any(version.journal.entries for version in pending if version.journal is not None):
                with step("flush"):
                    self.flush_of(request.changes, ctx.remaining(), check=ctx.check)
                current = {table: self.versions.current(table) for table in request.changes}
            request = replace(request, changes=self._with_current_ids(request.changes, current))
            for change in request.changes.values():
                staged.callback(change.discard)
            try:
                for change in request.changes.values():
                    change.finish()
                committed = self.committer.commit(request)
            except NotFlushed:
                continue
            return self._with_journals(committed) if pending else committed
        raise Conflict(f"table {quoted_names(request.changes)} is changed by others all the time; try again")

    def _with_current_ids(
        self, changes: Mapping[TableName, ChangeSet], current: Mapping[TableName, TableVersion | None]
    ) -> dict[TableName, ChangeSet]:
        staging = self.storage.staging
        return {
            table: change if (version := current[table]) is None else change.with_current_ids(version, staging)
            for table, change in changes.items()
        }

    def _with_journals(self, committed: Committed) -> Committed:
        """Tables as they are by now, with what has come into the journal since."""
        places, journals = {}, dict[str, TableJournal]()
        for table in committed.locations:
            version = self.versions.current(table)
            if version is not None:
                places[table] = version.location
                if version.journal is not None:
                    journals[version.uuid] = version.journal
        return Committed(places, committed.rows, journals)

    def journals(self, version: TableVersion) -> bool:
        """Whether small changes of a table go into the journal."""
        return version.is_journalled and self.storage.pointers.journal is not None

    def flush(self, timeout: float | None = None, *, every: bool = True) -> Flushed:
        """Apply what the journal holds by now; not ``every``: what is set apart only where it is due."""
        return self.flusher.flush(timeout, every=every)

    def flush_of(
        self, tables: Collection[TableName], timeout: float | None, *, check: Callable[[], None] = lambda: None
    ) -> bool:
        """Apply what the journal holds of some tables by now; False if that is nothing. ``check`` may end it.

        Tables that waiting commits tie to them are applied with them, and no others. Raises where that cannot be.
        """
        records = self.storage.pointers.journal
        if not tables or records is None:
            return False
        for table in tables:
            with contextlib.suppress(SparkportError):  # one that cannot be read is known by its own name
                version = self.versions.current(table)
                if version is not None and version.journal is not None and version.journal.table != table:
                    records.follow(version.journal, table)
        if not any(journal.table in tables for journal in self.storage.pointers.cut().journal.pending):
            return False
        self.flusher.flush(timeout, of=tables, check=check).require(tables)
        return True

    @contextlib.contextmanager
    def dropping(self, ctx: CallContext, tables: Collection[TableName]) -> Iterator[None]:
        """A block that drops tables: what the journal holds of them is applied before, and writers wait meanwhile.

        So they can be restored with all that was committed. If that cannot be had, they are dropped anyway.
        """
        left = ctx.remaining()
        end = time.monotonic() + (_DROP_SECONDS if left is None else min(left / 2, _DROP_SECONDS))
        with contextlib.ExitStack() as held:
            for table in tables:
                held.enter_context(self.journal.held(table))
            try:
                while self.flush_of(tables, end - time.monotonic()):  # other servers go on
                    pass
            except (SparkportError, OSError) as exc:
                names = ", ".join(f"'{table}'" for table in tables)
                logger.warning("%s cannot be restored with what the journal holds of it: %s", names, exc)
            yield

    def alter(
        self, ctx: CallContext, table: TableName, change: Callable[[TableVersion], Json | None], *, published: bool
    ) -> TableVersion:
        """Give a table the metadata that ``change`` makes of it, if it makes any: the table as it is then.

        What the journal holds of it is applied before, however many flushes that takes, and this server's writers wait
        meanwhile; others' may go on, so it must be nothing in the very instant of the change. ``published``: only a
        table of which nothing waits may be changed, or looked at.
        """
        lost = 0
        with self.journal.held(table):
            while lost < _ATTEMPTS:
                ctx.check()
                current = self.versions.current(table)
                if current is None:
                    raise TableNotFound(*table)
                waits = current.journal is not None and bool(current.journal.entries)
                after = None if waits and published else change(current.without_journal() if published else current)
                if waits and (published or after is not None):
                    self.flush_of([table], ctx.remaining(), check=ctx.check)
                    continue
                if after is None:
                    return current
                try:
                    moved = self._moved(ctx, Edit(table, current.json, after, current.location), current)
                except JournalMoved:
                    continue
                except Moved:
                    lost += 1
                    continue
                self.views.session_ddl.note(ctx, table, current.location, moved)
                return self.versions.at(table, moved)
        raise Conflict(f"table '{table.name}' is changed by others all the time; run the statement again")

    def _moved(self, ctx: CallContext, edit: Edit, seen: TableVersion) -> str:
        """Where a table's metadata is then; Moved if others were first."""
        records, applied = self.storage.pointers.journal, None

        def check(work: Work) -> None:
            nonlocal applied
            assert records is not None
            view, _ = records.advance(work)
            journal = view.by_uuid.get(seen.uuid)
            if journal is None or journal.table == seen.twin:
                return
            if journal.entries:
                raise JournalMoved(edit.table)
            applied = replace(journal, flushes=(), known={})

        moved = self.storage.pointers.commit([edit], with_journal=None if records is None else check)[edit.table]
        self.views.session_ddl.note_journal(ctx, edit.table, location=moved, journal=applied)
        return moved

    def _close(self, transaction: Transaction[LakeView]) -> None:
        transaction.state.returned.clear()
        net, transaction.state.net = transaction.state.net, None
        if net is not None:
            net.close()

    # transactions.Engine

    def pin(self) -> LakeView:
        return self.views.pin()

    def begun(self, transaction: Transaction[LakeView]) -> None:
        self.storage.ledger.begin(transaction.id, owner=transaction.owner, isolation=transaction.isolation)

    def publish(self, transaction: Transaction[LakeView]) -> None:
        if transaction.auto_commit:
            return  # statements have published themselves
        try:
            if not self._commit_all(transaction).locations:
                state = self.storage.ledger.end(transaction.id, TransactionState.COMMITTED)
                if state is not TransactionState.COMMITTED:
                    raise TransactionNotActive(transaction.id, state.value)
        except SparkportError as exc:
            # Whatever went wrong: the record says whether it was committed, and from now on it cannot be any more. An
            # earlier try may have been, whose answer was lost: then its own changes look like another's.
            try:
                state = self.storage.ledger.end(transaction.id, TransactionState.ABORTED)
            except SparkportError as unknown:
                raise InDoubt(transaction.id) from unknown
            if state is not TransactionState.COMMITTED:
                raise exc

    def _commit_all(self, transaction: Transaction[LakeView]) -> Committed:
        view = transaction.state
        ctx, reads = current_call() or CallContext(), self._reads(transaction)
        if view.net is None:
            return self._commit(ctx, {}, reads, transaction=transaction.id)
        with view.net.change_sets(self.storage.staging, returned=view.returned) as changes:
            return self._commit(ctx, changes, reads, transaction=transaction.id)

    def abort(self, transaction: Transaction[LakeView]) -> TransactionState:
        if transaction.auto_commit:
            return self._settled(transaction)
        try:
            return self.storage.ledger.end(transaction.id, TransactionState.ABORTED)
        except SparkportError as exc:
            if transaction.in_doubt:
                raise InDoubt(transaction.id) from exc
            logger.warning("the end of transaction %s was not noted: %s", transaction.id, exc)
            return TransactionState.ABORTED

    def _settled(self, transaction: Transaction[LakeView]) -> TransactionState:
        unknown = transaction.state.unknown
        if unknown is None:
            return TransactionState.ABORTED
        try:
            return TransactionState.COMMITTED if unknown.settle() else TransactionState.ABORTED
        except SparkportError as exc:  # whatever it is: nobody knows more than before
            raise InDoubt(transaction.id, auto_commit=True) from exc

    def discard(self, transaction: Transaction[LakeView]) -> None:
        self._close(transaction)

    def changes(self, transaction: Transaction[LakeView]) -> tuple[tuple[str, ...], int]:
        net = transaction.state.net
        if net is None:
            return (), 0
        changed = {table: change.rows for table, change in list(net.tables.items()) if change.rows}
        return tuple(sorted(str(table) for table in changed)), sum(changed.values())

    def recorded(self, transaction_id: str) -> TransactionState | None:
        record = self.storage.ledger.find(transaction_id)
        if record is not None and record.here and record.state is TransactionState.ACTIVE:
            # It has ended here, which could not be noted then.
            return self.storage.ledger.end(transaction_id, TransactionState.ABORTED)
        return None if record is None else record.state

    def recorded_owner(self, transaction_id: str) -> str | None:
        return self.storage.ledger.owner(transaction_id)

    def open_elsewhere(self) -> Sequence[OpenTransaction]:
        return self.storage.ledger.open_elsewhere()
