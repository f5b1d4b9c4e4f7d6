"""What all tables of a lakehouse share: pointers, files, Spark, staging, writers, and the views of transactions."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from sparkport.catalog.context import CallContext
from sparkport.errors import Conflict, SparkportError
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.own import OwnChanges
from sparkport.lakehouse.pointers import Cut, Pointers, TableName
from sparkport.lakehouse.snapshot import TableVersion, VersionLoader
from sparkport.lakehouse.spark import Sessions
from sparkport.lakehouse.staging import Staging
from sparkport.lakehouse.writer import TableWriter, Writers
from sparkport.transactions.manager import Transaction, Transactions, TransactionSettings

__all__ = ["LakeEngine", "LakeView"]

logger = logging.getLogger(__name__)

_ENTRIES_KEPT = 200_000
"""Snapshots and log entries in all metadata that is kept: they are what makes it large."""


def _entries(version: TableVersion) -> int:
    metadata = version.metadata
    return 10 + len(metadata.snapshots) + len(metadata.snapshot_log) + len(metadata.metadata_log)


@dataclass(slots=True, eq=False)
class LakeView:
    """What a transaction sees: all pointers of the moment it began, later ones for tables that it wrote itself."""

    cut: Cut
    since: int = 0
    pins: dict[TableName, str | None] = field(default_factory=dict)
    read: set[TableName] = field(default_factory=set)

    def location(self, table: TableName) -> str | None:
        return self.pins[table] if table in self.pins else self.cut.tables.get(table)

    def tables(self) -> dict[TableName, str]:
        seen = {**self.cut.tables, **self.pins}
        return {table: location for table, location in sorted(seen.items()) if location is not None}


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
        settings: TransactionSettings | None = None,
    ) -> None:
        self.catalog_name = catalog_name
        self.pointers = pointers
        self.files = files
        self.spark = spark
        self.staging = staging
        self._loader = loader
        self.transactions: Transactions[LakeView] = Transactions(self, settings, deferred=False)
        self.own = OwnChanges()
        self.writers = Writers(
            lambda table: TableWriter(table, catalog=catalog_name, pointers=pointers, files=files, spark=spark)
        )
        self._versions: BoundedCache[tuple[TableName, str], TableVersion] = BoundedCache(_ENTRIES_KEPT, weigh=_entries)

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

    def listed(self, table: TableName, location: str) -> TableVersion | None:
        """A table for a listing: one that cannot be read must not hide all others."""
        try:
            version = self.version(table, location)
            version.fingerprint  # noqa: B018 - looks at the columns, which may be of a type that is not known here
        except SparkportError as exc:
            logger.warning("table '%s.%s' is left out of the listing: %s", *table, exc)
            return None
        return version

    def require_schema(self, version: TableVersion) -> None:
        """Rows that were fitted to a schema go into a table that still has it."""
        current = self.current(version.name)
        if current is None or current.uuid != version.uuid or current.columns.fields != version.columns.fields:
            raise Conflict(f"table '{version.name[1]}' has been altered; run the statement again")

    def committed(self, table: TableName, location: str, transaction: Transaction[LakeView] | None) -> None:
        """A statement has published itself: its transaction sees the table as it is now."""
        if transaction is not None:
            transaction.state.pins[table] = location

    # transactions.Engine

    def pin(self) -> LakeView:
        since = self.own.now()
        return LakeView(self.pointers.cut(), since)

    def publish(self, transaction: Transaction[LakeView]) -> None:
        """Statements publish themselves: there is nothing left to do."""

    def discard(self, transaction: Transaction[LakeView]) -> None:
        """Statements that failed have left nothing."""

    def changes(self, transaction: Transaction[LakeView]) -> tuple[tuple[str, ...], int]:
        return (), 0
