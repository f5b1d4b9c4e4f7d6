"""What all tables of a lakehouse share: pointers, files, Spark, staging, writers, and the views of transactions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sparkport.catalog.context import CallContext, current_call
from sparkport.catalog.transaction import Isolation, OpenTransaction, TransactionState
from sparkport.errors import (
    AlreadyExists,
    Conflict,
    NotFound,
    ResourceExhausted,
    SparkportError,
    TransactionNotActive,
)
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.ledger_rows import ALL_SINCE
from sparkport.lakehouse.catalogs.pointers import Cut, OutcomeUnknown, OverlaidTables, Pointers
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.places import Warehouse
from sparkport.lakehouse.scan.version import TableVersion, VersionLoader
from sparkport.lakehouse.spark.server import Sessions
from sparkport.lakehouse.spark.staging import Staging
from sparkport.lakehouse.tables.session_ddl import OwnChanges
from sparkport.lakehouse.write.apply import Applier
from sparkport.lakehouse.write.changes import NetChange, TableChange, Workspace
from sparkport.lakehouse.write.commit import Committer, Pending
from sparkport.lakehouse.write.own_rows import OwnRows
from sparkport.lakehouse.write.writer import TableWriter, Writers
from sparkport.transactions.manager import InDoubt, Transaction, Transactions, TransactionSettings, require_usable

__all__ = ["LakeEngine", "LakeView"]

logger = logging.getLogger(__name__)

_PATIENCE = 300.0
"""How long a commit waits for a Spark that is starting."""

_ENTRIES_KEPT = 200_000
"""Snapshots and log entries in all metadata that is kept: they are what makes it large."""

_PINS_KEPT = 100_000
"""Of which only the snapshot is kept: all of them are asked for at every beat, and few are read."""


def _entries(version: TableVersion) -> int:
    metadata = version.metadata
    return 10 + len(metadata.snapshots) + len(metadata.snapshot_log) + len(metadata.metadata_log)


@dataclass(slots=True, eq=False)
class LakeView:
    """What a transaction sees: all pointers of the moment it began, later ones for tables that it wrote itself.

    ``net`` is what it has changed and not committed, ``returned`` are tables whose rows it was given and deleted,
    ``unknown`` is a statement's commit that was not answered.
    """

    cut: Cut
    since: int = 0
    pins: dict[TableName, str | None] = field(default_factory=dict)
    read: set[TableName] = field(default_factory=set)
    net: NetChange | None = None
    unknown: OutcomeUnknown | None = None
    returned: set[TableName] = field(default_factory=set)

    def change(self, table: TableName) -> TableChange | None:
        return None if self.net is None else self.net.tables.get(table)

    def location(self, table: TableName) -> str | None:
        return self.pins[table] if table in self.pins else self.cut.tables.get(table)

    def tables(self) -> Mapping[TableName, str]:
        return self.cut.tables if not self.pins else OverlaidTables(self.cut.tables, self.pins)


class LakeEngine:
    """Implements ``transactions.Engine``."""

    def __init__(
        self,
        *,
        catalog_name: str,
        pointers: Pointers,
        files: FileSystem,
        spark: Sessions,
        staging: Staging,
        loader: VersionLoader,
        ledger: Ledger,
        warehouse: Warehouse,
        settings: TransactionSettings | None = None,
        direct_reads: bool = False,
    ) -> None:
        """``direct_reads``: clients that can may be told a snapshot's files, to read them themselves."""
        self.catalog_name = catalog_name
        self.direct_reads = direct_reads
        self.pointers = pointers
        self.files = files
        self.spark = spark
        self.staging = staging
        self.ledger = ledger
        self.warehouse = warehouse
        self._loader = loader
        self._settings = settings or TransactionSettings()
        self.transactions: Transactions[LakeView] = Transactions(self, self._settings)
        self.own = OwnChanges()
        self.writers = Writers(
            lambda table: TableWriter(table, catalog=catalog_name, pointers=pointers, files=files, spark=spark)
        )
        self.workspace = Workspace(staging.folder)
        self.applier = Applier(catalog=catalog_name, pointers=pointers, files=files, spark=spark, staging=staging)
        self._committer = Committer(pointers=pointers, writers=self.writers, applier=self.applier, current=self.current)
        self._versions: BoundedCache[tuple[TableName, str], TableVersion] = BoundedCache(_ENTRIES_KEPT, weigh=_entries)
        self._pinned: BoundedCache[tuple[TableName, str], tuple[str, int | None]] = BoundedCache(_PINS_KEPT)

    def close(self) -> None:
        self._committer.close()
        self.workspace.close()

    # Looking at tables

    def cut(self, ctx: CallContext) -> Cut:
        """The catalog as a call sees it: now, or as its transaction does."""
        with self.transactions.use(ctx) as transaction:
            if transaction is None:
                return self.pointers.cut()
            view = transaction.state
            for table in self.own.tables(ctx, since=view.since):
                self._follow(ctx, view, table)
            return Cut(view.tables(), self.own.schemas(ctx, view.cut.schemas, since=view.since))

    def version_for(self, ctx: CallContext, table: TableName) -> TableVersion | None:
        """A table as a call sees it."""
        with self.transactions.use(ctx) as transaction:
            if transaction is None:
                return self.current(table)
            location = self._follow(ctx, transaction.state, table)
        return None if location is None else self.version(table, location)

    def _follow(self, ctx: CallContext, view: LakeView, table: TableName) -> str | None:
        """Where a transaction sees a table, moved on by what the caller itself has created or altered since."""
        seen = view.location(table)
        if view.change(table) is not None:
            return seen
        moved = self.own.follow(ctx, table, seen, since=view.since)
        if moved != seen:
            view.pins[table] = moved
        return moved

    def current(self, table: TableName) -> TableVersion | None:
        location = self.pointers.location(table)
        return None if location is None else self.version(table, location)

    def version(self, table: TableName, location: str) -> TableVersion:
        """A table as one metadata file describes it; that never changes, so it is kept."""
        return self._versions.get((table, location), lambda: self._loader.load(table, location))

    def listed(self, table: TableName, tables: Mapping[TableName, str]) -> TableVersion | None:
        """A table for a listing: one that cannot be read, or may not, must not hide all others."""
        try:
            location = tables.get(table)
            if location is None:  # dropped since the names were listed
                return None
            version = self.version(table, location)
            version.fingerprint  # noqa: B018 - looks at the columns, which may be of a type that is not known here
        except SparkportError as exc:
            logger.warning("table '%s.%s' is left out of the listing: %s", *table, exc)
            return None
        return version

    def require_schema(self, version: TableVersion) -> None:
        """Rows that were fitted to a schema go into a table that still has it."""
        current = self.current(version.name)
        if current is None:
            raise NotFound(f"table '{version.name[1]}' has been dropped")
        if current.uuid != version.uuid or not current.columns.takes_rows_of(version.columns):
            raise Conflict(f"table '{version.name[1]}' has been altered; run the statement again")

    def committed(self, table: TableName, location: str, transaction: Transaction[LakeView] | None) -> None:
        """A statement has published itself: its transaction sees the table as it is now."""
        if transaction is not None:
            transaction.state.pins[table] = location

    def dropped(self, ctx: CallContext, table: TableName, location: str) -> None:
        """The caller has dropped a table, or given it another name."""
        self.own.note(ctx, table, location, None)
        self.writers.forget(table)

    # Changes that wait for a commit

    def defers(self, transaction: Transaction[LakeView]) -> bool:
        """Whether statements go through the transaction's own file.

        Under serializable those do too that are committed one by one: what they read is checked with the commit.
        """
        return not transaction.auto_commit or transaction.isolation is Isolation.SERIALIZABLE

    def changing(self, transaction: Transaction[LakeView], version: TableVersion) -> TableChange:
        """Where a statement of a transaction puts its changes; the transaction's lock is held."""
        require_usable(transaction)
        view = transaction.state
        if view.net is None:
            view.net = self.workspace.open(transaction.id)
        change = view.net.table(version)
        if change.version.location != version.location:
            raise Conflict(f"table '{version.name[1]}' has been altered; run the transaction again")
        return change

    def deferred(
        self,
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
        if transaction.auto_commit and transaction.state.net is not None:
            try:
                return self._commit_statement(transaction, statement, count)
            finally:
                self._close(transaction)
        return count

    def _commit_statement(self, transaction: Transaction[LakeView], statement: str | None, count: int) -> int:
        pending = self._pending(transaction, {} if statement is None else {statement: count})
        try:
            transaction.state.pins.update(self._commit(pending))
        except (AlreadyExists, Conflict, NotFound):
            # Those who were first may have been this very statement, at another server.
            if statement is None:
                raise
            known = (self.pointers.statement(statement, table) for table in pending.changes)
            committed = next((count for count in known if count is not None), None)
            if committed is None:
                raise
            return committed
        return count - sum(map(len, pending.gone.values()))

    def own_rows(self, ctx: CallContext, version: TableVersion, columns: tuple[int, ...]) -> OwnRows | None:
        """What a call's transaction has changed in a table that it reads, and does not see in ``version``."""
        with self.transactions.use(ctx) as transaction:
            if transaction is None or not self.defers(transaction):
                return None
            with transaction.lock:
                require_usable(transaction)
                transaction.state.read.add(version.name)
                change = transaction.state.change(version.name)
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

    def _pending(self, transaction: Transaction[LakeView], statements: dict[str, int]) -> Pending:
        view = transaction.state
        tables = {} if view.net is None else view.net.tables
        reads: dict[TableName, TableVersion | None] = {}
        if transaction.isolation is Isolation.SERIALIZABLE:
            for table in sorted(view.read):
                location = view.location(table)
                reads[table] = None if location is None else self.version(table, location)
        changes = {table: change for table, change in tables.items() if change.rows}
        recorded, returned = not transaction.auto_commit, frozenset(view.returned)
        return Pending(transaction.id, changes, reads, statements, recorded=recorded, returned=returned)

    def _commit(self, pending: Pending) -> Mapping[TableName, str]:
        if not pending.changes and not pending.reads:
            return {}
        call = current_call() or CallContext()
        if pending.changes:
            left = call.remaining()
            self.spark.wait_ready(_PATIENCE if left is None else min(left, _PATIENCE))
        return self._committer.commit(pending, call.remaining)

    def _close(self, transaction: Transaction[LakeView]) -> None:
        transaction.state.returned.clear()
        net, transaction.state.net = transaction.state.net, None
        if net is not None:
            net.close()

    def needed(self) -> dict[str, set[int]]:
        """Snapshots that are not the newest and that open transactions, scans or commits need, by the table's uuid."""
        self.transactions.expire()
        found = self._loader.reader.all_reading()
        newest = self.pointers.cut().looked_up.items()
        views = [transaction.state for transaction in self.transactions.everyone()]
        # Those that began between the same two commits share a cut, and there may be very many of them.
        cuts = {id(view.cut): view.cut for view in views}.values()
        old: set[tuple[TableName, str | None]] = set().union(*(cut.looked_up.items() - newest for cut in cuts))
        old |= {item for view in views if view.pins for item in list(view.pins.items())} - newest
        for table, place in old:
            try:
                uuid, snapshot_id = self._pinned.get((table, place or ""), partial(self._snapshot_of, table, place))
            except NotFound:
                continue  # its metadata is gone, and with it all that could be read by it
            except SparkportError as exc:
                logger.warning("what transactions need of '%s.%s' is not known: %s", *table, exc)
                found[ALL_SINCE] = {int(min(transaction.begun for transaction in self.transactions.everyone()))}
                continue
            if snapshot_id is not None:
                found.setdefault(uuid, set()).add(snapshot_id)
        for table in self.applier.tables_in_use():
            try:
                version = self.current(table)
            except SparkportError as exc:
                logger.warning("what commits have staged of '%s.%s' is not known: %s", *table, exc)
                continue
            if version is not None:
                found.setdefault(version.uuid, set()).update(self.applier.staged_in(version.metadata))
        return found

    def _snapshot_of(self, table: TableName, location: str | None) -> tuple[str, int | None]:
        if location is None:
            return "", None
        version = self.version(table, location)
        return version.uuid, version.snapshot_id

    # transactions.Engine

    def pin(self) -> LakeView:
        since = self.own.now()
        return LakeView(self.pointers.cut(), since)

    def begun(self, transaction: Transaction[LakeView]) -> None:
        self.ledger.begin(transaction.id, owner=transaction.owner, isolation=transaction.isolation)

    def publish(self, transaction: Transaction[LakeView]) -> None:
        if transaction.auto_commit:
            return  # statements have published themselves
        try:
            moved = self._commit(self._pending(transaction, {}))
            if not moved:
                state = self.ledger.end(transaction.id, TransactionState.COMMITTED)
                if state is not TransactionState.COMMITTED:
                    raise TransactionNotActive(transaction.id, state.value)
        except SparkportError as exc:
            # Whatever went wrong: the record says whether it was committed, and from now on it cannot be any more. An
            # earlier try may have been, whose answer was lost: then its own changes look like another's.
            try:
                state = self.ledger.end(transaction.id, TransactionState.ABORTED)
            except SparkportError as unknown:
                raise InDoubt(transaction.id) from unknown
            if state is not TransactionState.COMMITTED:
                raise exc

    def abort(self, transaction: Transaction[LakeView]) -> TransactionState:
        if transaction.auto_commit:
            return self._settled(transaction)
        try:
            return self.ledger.end(transaction.id, TransactionState.ABORTED)
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
        return tuple(sorted(".".join(table) for table in changed)), sum(changed.values())

    def recorded(self, transaction_id: str) -> TransactionState | None:
        found = self.ledger.find(transaction_id)
        if found is not None and found.here and found.state is TransactionState.ACTIVE:
            # It has ended here, which could not be noted then.
            return self.ledger.end(transaction_id, TransactionState.ABORTED)
        return None if found is None else found.state

    def recorded_owner(self, transaction_id: str) -> str | None:
        return self.ledger.owner(transaction_id)

    def open_elsewhere(self) -> Sequence[OpenTransaction]:
        return self.ledger.open_elsewhere()
