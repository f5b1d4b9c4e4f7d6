"""What a call sees of the catalog: now, or as its transaction does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sparkport.catalog.context import CallContext
from sparkport.lakehouse.catalogs.journal_state import JournalView, TableJournal
from sparkport.lakehouse.catalogs.pointers import Cut, OutcomeUnknown, OverlaidTables, Pointers
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.tables.session_ddl import SessionDdl
from sparkport.lakehouse.tables.versions import TableVersions
from sparkport.lakehouse.write.net_change import NetChange, TableChange
from sparkport.transactions.manager import Transactions

__all__ = ["LakeView", "Views"]


@dataclass(slots=True, eq=False)
class LakeView:
    """What a transaction sees: all pointers of the moment it began, later ones for tables that it wrote itself.

    ``journals`` are later ones, too. ``net`` is what it has changed and not committed, ``returned`` are tables whose
    rows it was given and deleted, ``unknown`` is a statement's commit that was not answered.
    """

    cut: Cut
    since: int = 0
    pins: dict[TableName, str | None] = field(default_factory=dict)
    journals: dict[str, TableJournal] = field(default_factory=dict)
    read: set[TableName] = field(default_factory=set)
    net: NetChange | None = None
    unknown: OutcomeUnknown | None = None
    returned: set[TableName] = field(default_factory=set)

    def change(self, table: TableName) -> TableChange | None:
        return None if self.net is None else self.net.tables.get(table)

    def location(self, table: TableName) -> str | None:
        return self.pins[table] if table in self.pins else self.cut.tables.get(table)

    def known_location(self, table: TableName) -> str | None:
        """Where a table was when the transaction began, or is: what its journal had then is not another's."""
        return self.cut.tables.get(table) or self.location(table)

    def journal(self) -> JournalView:
        now = self.cut.journal
        return now if not self.journals else JournalView(now.revision, {**now.by_uuid, **self.journals})

    def tables(self) -> Mapping[TableName, str]:
        return self.cut.tables if not self.pins else OverlaidTables(self.cut.tables, self.pins)


class Views:
    """``session_ddl`` is what callers have created and altered themselves, which their transactions see."""

    def __init__(self, pointers: Pointers, versions: TableVersions, transactions: Transactions[LakeView]) -> None:
        self.session_ddl = SessionDdl()
        self._pointers = pointers
        self._versions = versions
        self._transactions = transactions

    def pin(self) -> LakeView:
        """What a new transaction sees."""
        since = self.session_ddl.now()
        return LakeView(self._pointers.cut(), since)

    def cut(self, ctx: CallContext) -> Cut:
        with self._transactions.use(ctx) as transaction:
            if transaction is None:
                return self._pointers.cut()
            view = transaction.state
            for table in self.session_ddl.tables(ctx, since=view.since):
                self._follow(ctx, view, table)
            schemas = self.session_ddl.schemas(ctx, view.cut.schemas, since=view.since)
            return Cut(view.tables(), schemas, view.journal())

    def version(self, ctx: CallContext, table: TableName) -> TableVersion | None:
        with self._transactions.use(ctx) as transaction:
            if transaction is None:
                return self._versions.current(table)
            location = self._follow(ctx, transaction.state, table)
        return None if location is None else self.seen(transaction.state, table, location)

    def seen(self, view: LakeView, table: TableName, location: str) -> TableVersion:
        """A table with the journal that was laid over it when the transaction began, or by its own changes since."""
        return self._versions.laid_over(self._versions.at(table, location), view.journal(), view.known_location)

    def _follow(self, ctx: CallContext, view: LakeView, table: TableName) -> str | None:
        """Where a transaction sees a table, moved on by what the caller itself has created or altered since."""
        seen = view.location(table)
        if view.change(table) is not None:
            return seen
        moved = self.session_ddl.follow(ctx, table, self._flushed_since(ctx, view, table, seen), since=view.since)
        if moved != seen:
            view.pins[table] = moved
            if moved is not None:
                journal = self._journal_at(table, moved)
                if journal is not None:
                    view.journals[journal.uuid] = replace(journal, table=table)
        return moved

    def _journal_at(self, table: TableName, location: str) -> TableJournal | None:
        """A table's journal when the caller altered it, which was applied first, or renamed it, where it waits on."""
        noted, applied = self.session_ddl.journal(table, location), self._applied(table, location).journal
        if noted is None or noted.entries or applied is None:
            return noted or applied
        return replace(applied, flushed=noted.flushed)

    def _flushed_since(self, ctx: CallContext, view: LakeView, table: TableName, seen: str | None) -> str | None:
        """Where a table was when the caller altered it, if that is how the transaction sees it: only the journal was
        applied in between, for that very change or before it."""
        began = None if seen is None else self.session_ddl.moved_from(ctx, table, since=view.since)
        if seen is None or began is None or began == seen:
            return seen
        same = self._applied(table, began).same_rows_as(self.seen(view, table, seen))
        return began if same else seen

    def _applied(self, table: TableName, location: str) -> TableVersion:
        """A table of which nothing is in the journal, with what is known of what was."""
        version, records = self._versions.at(table, location), self._pointers.journal
        if records is None:
            return version
        version = self._versions.laid_over(version, records.newest, self._pointers.location)
        journal = version.journal
        return version if journal is None else version.with_journal(journal.applied_by(version.sequence_number))
