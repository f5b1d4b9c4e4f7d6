"""Lakehouses for tests: each with a warehouse of its own, all on the one Spark of the test run.

A catalog's settings live in a Spark session, and every lakehouse has sessions of its own, so that all of them can be
called ``lake``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.spark import shared_spark

from sparkport.errors import TransactionNotActive
from sparkport.lakehouse.catalogs.database import Database, SqliteDatabase
from sparkport.lakehouse.catalogs.pointers import Pointers
from sparkport.lakehouse.catalogs.postgres import PostgresDatabase
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.staging import Staging
from sparkport.lakehouse.upkeep.maintenance import Maintenance
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings
from sparkport.transactions.manager import TransactionSettings

__all__ = ["Contents", "Lake", "Start", "die", "impatient_database", "lakehouse", "maintenance_of"]


@contextmanager
def lakehouse(
    warehouse: Path,
    *,
    catalog_uri: str | None = None,
    transactions: TransactionSettings | None = None,
    journal: JournalSettings | None = None,
    clock: Callable[[], float] = time.time,
) -> Iterator[Lakehouse]:
    settings = LakehouseSettings(warehouse=str(warehouse), catalog_uri=catalog_uri, sessions=2)
    spark = shared_spark()
    with Lakehouse(settings, spark=spark, transactions=transactions, journal=journal, clock=clock) as opened:
        yield opened


Start = Callable[[LakehouseSettings], Lakehouse]
"""Opens a lakehouse that is stopped after the test, also if it died. None has a Spark that runs."""


class Lake:
    """What tests of single parts need of a lakehouse."""

    def __init__(self, opened: Lakehouse) -> None:
        self.opened = opened
        self.catalog = opened.settings.catalog_name
        self.warehouse = Path(opened.settings.warehouse_path)
        self.pointers: Pointers = opened.engine.storage.pointers

    def spark(self) -> AbstractContextManager[Any]:
        """A plain Spark session on the same catalog."""
        return self.opened.engine.storage.spark.session()


def maintenance_of(opened: Lakehouse, settings: MaintenanceSettings, *, later: float = 0.0) -> Maintenance:
    """Maintenance with other settings, that takes place some seconds later."""
    storage, committer = opened.engine.storage, opened.engine.committer
    return Maintenance(storage, committer, opened.in_use, settings, clock=lambda: time.time() + later)


class Contents:
    """What a lakehouse holds at a moment. It can be set back to that as often as tests have changed it: the files of
    tables are never changed, so that the pointers to them are enough."""

    def __init__(self, opened: Lakehouse) -> None:
        pointers = opened.engine.storage.pointers
        assert isinstance(pointers, SqlPointers)
        self._transactions = opened.engine.transactions
        self._pointers = pointers
        cut = pointers.cut()
        self._schemas, self._tables = dict(cut.schemas), dict(cut.tables)

    def restore(self) -> None:
        """No transaction stays open, and no statement is remembered."""
        for transaction in self._transactions.everyone():
            with suppress(TransactionNotActive):  # it has expired meanwhile
                self._transactions.rollback(transaction.id)
        pointers = self._pointers
        pointers.forget_statements(time.time() + 1)
        now = pointers.cut()
        if now.journal.pending:
            with pointers.journal.changing() as work:
                _, revision = pointers.journal.advance(work)
                pointers.journal.remove(work, [journal.uuid for journal in now.journal.pending], revision)
        for table in now.tables.keys() - self._tables.keys():
            pointers.drop(table)
        for schema in now.schemas.keys() - self._schemas.keys():
            pointers.drop_schema(schema)
        for schema in self._schemas.keys() - now.schemas.keys():
            pointers.create_schema(schema, self._schemas[schema])
        for table, location in self._tables.items():
            if table not in now.tables:
                pointers.create(table, location)
            elif now.tables[table] != location:
                pointers.replace(table, location)


def die(staging: Staging) -> None:
    """What the kernel does to a server's staging folder when its process ends: the lock is gone, all else stays."""
    staging.let_go()


def impatient_database(uri: str) -> Database:
    """A catalog's database by a connection that does not wait long for the locks of others."""
    if uri.startswith("sqlite"):
        return SqliteDatabase(Path(uri.removeprefix("sqlite:///")), patience=0.2)
    return PostgresDatabase(uri, patience=0.2)
