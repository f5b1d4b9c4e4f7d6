"""What all tables of a lakehouse share: pointers, files, Spark, staging, writers, and the views of transactions."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkport.catalog.context import CallContext
from sparkport.errors import Conflict, SparkportError, Unsupported
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.pointers import Cut, Pointers, TableName
from sparkport.lakehouse.snapshot import TableVersion, VersionLoader
from sparkport.lakehouse.spark import Sessions
from sparkport.lakehouse.staging import Staging
from sparkport.lakehouse.writer import TableWriter, Writers
from sparkport.transactions.manager import Transaction, Transactions, TransactionSettings

__all__ = ["LakeEngine", "LakeView"]

logger = logging.getLogger(__name__)

_VERSIONS_KEPT = 4_096


@dataclass(slots=True, eq=False)
class LakeView:
    """What a transaction sees: all pointers of the moment it began, later ones for tables that it wrote itself."""

    cut: Cut
    pins: dict[TableName, str] = field(default_factory=dict)
    read: set[TableName] = field(default_factory=set)

    def location(self, table: TableName) -> str | None:
        return self.pins.get(table) or self.cut.tables.get(table)


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
        self.transactions: Transactions[LakeView] = Transactions(self, settings)
        self.writers = Writers(
            lambda table: TableWriter(table, catalog=catalog_name, pointers=pointers, files=files, spark=spark)
        )
        self._lock = threading.Lock()
        self._versions: OrderedDict[tuple[TableName, str], TableVersion] = OrderedDict()

    # Looking at tables

    def cut(self, ctx: CallContext) -> tuple[Cut, Mapping[TableName, str]]:
        """The catalog as a call sees it: now, or as its transaction does; and the pointers that it has moved."""
        if ctx.transaction_id is None:
            return self.pointers.cut(), {}
        with self.transactions.use(ctx) as transaction:
            if transaction is None:
                return self.pointers.cut(), {}
            return transaction.state.cut, dict(transaction.state.pins)

    def version_for(self, ctx: CallContext, table: TableName) -> TableVersion | None:
        """A table as a call sees it."""
        if ctx.transaction_id is None:
            return self.current(table)
        with self.transactions.use(ctx) as transaction:
            if transaction is None:
                return self.current(table)
            location = transaction.state.location(table)
        return None if location is None else self.version(table, location)

    def current(self, table: TableName) -> TableVersion | None:
        location = self.pointers.location(table)
        return None if location is None else self.version(table, location)

    def version(self, table: TableName, location: str) -> TableVersion:
        """A table as one metadata file describes it; that never changes, so it is kept."""
        key = (table, location)
        with self._lock:
            known = self._versions.get(key)
            if known is not None:
                self._versions.move_to_end(key)
                return known
        loaded = self._loader.load(table, location)
        with self._lock:
            self._versions[key] = loaded
            while len(self._versions) > _VERSIONS_KEPT:
                self._versions.popitem(last=False)
        return loaded

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
        if current is None or current.columns.fields != version.columns.fields:
            raise Conflict(f"table '{version.name[1]}' has been altered; run the statement again")

    def committed(self, table: TableName, location: str, transaction: Transaction[LakeView] | None) -> None:
        """A statement has published itself: its transaction sees the table as it is now."""
        if transaction is not None:
            transaction.state.pins[table] = location

    # transactions.Engine

    def pin(self) -> LakeView:
        return LakeView(self.pointers.cut())

    def publish(self, transaction: Transaction[LakeView]) -> None:
        """Statements publish themselves: there is nothing left to do."""

    def discard(self, transaction: Transaction[LakeView]) -> None:
        """Statements that failed have left nothing."""

    def changes(self, transaction: Transaction[LakeView]) -> tuple[tuple[str, ...], int]:
        return (), 0

    def refuse_deferred(self) -> None:
        raise Unsupported("the lakehouse commits each statement by itself: deferred transactions are not there yet")
