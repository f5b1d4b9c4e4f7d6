"""Putting a lakehouse together from its settings."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sparkport.errors import FailedPrecondition, PermissionDenied
from sparkport.lakehouse.catalogs.open_catalog import catalog_digest, open_catalog
from sparkport.lakehouse.file_modes import FileMode
from sparkport.lakehouse.files import local_path
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.query.queries import SparkQueries
from sparkport.lakehouse.query.views import LakeViews
from sparkport.lakehouse.scan.read import Reader
from sparkport.lakehouse.scan.spill import Spill
from sparkport.lakehouse.scan.version import VersionLoader
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.jobs import SparkJobs
from sparkport.lakehouse.spark.server import SparkServer, SparkState
from sparkport.lakehouse.spark.staging import Staging
from sparkport.lakehouse.spark.warmup import warm_up
from sparkport.lakehouse.tables.catalog import LakehouseCatalog
from sparkport.lakehouse.tables.engine import LakeEngine
from sparkport.lakehouse.tables.storage import Storage
from sparkport.lakehouse.upkeep.catalog_journal import CatalogJournal
from sparkport.lakehouse.upkeep.dropped_folders import DroppedFolders
from sparkport.lakehouse.upkeep.figures import LakehouseFigures
from sparkport.lakehouse.upkeep.in_use import InUse
from sparkport.lakehouse.upkeep.journal_control import JournalControl
from sparkport.lakehouse.upkeep.maintenance import Maintenance
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings
from sparkport.lakehouse.upkeep.maintenance_thread import MaintenanceThread
from sparkport.lakehouse.upkeep.recovery import NotedFiles, Recovery, recover
from sparkport.lakehouse.warehouse import Warehouse
from sparkport.transactions.manager import TransactionSettings

__all__ = ["Lakehouse"]


class Lakehouse:
    """A catalog and what stands behind it, from ``start`` to ``stop``. Reads work at once, writes wait for Spark."""

    def __init__(
        self,
        settings: LakehouseSettings,
        *,
        default_schema: str = "public",
        transactions: TransactionSettings | None = None,
        on_state: Callable[[SparkState], None] | None = None,
        spark: SparkServer | None = None,
        maintenance: MaintenanceSettings | None = None,
        journal: JournalSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``spark`` is one that is shared with others: it is not started or stopped here.

        With settings of ``maintenance`` tables are maintained in the background, without only when it is asked for.
        Those of the ``journal`` are for tables that are journalled; without settings the usual ones hold. By ``clock``
        transactions expire, and servers are taken for dead.
        """
        if journal is not None and journal.new_tables and settings.catalog_type == "rest":
            raise FailedPrecondition("journal is set, and a REST catalog has no database that could hold one")
        if (folder := local_path(settings.warehouse_path)) is not None:
            _make(folder, settings.file_mode)
        self.settings = settings
        self._owns_spark = spark is None
        self.spark = spark or SparkServer(settings, on_state=on_state)
        with contextlib.ExitStack() as opened:
            self._staging = Staging(
                settings.staging_path,
                catalog=catalog_digest(settings),
                mode=settings.file_mode,
                makes_data_files=settings.catalog_type != "rest",
            )
            opened.callback(self._staging.close)
            files = NotedFiles(self._staging)
            files.configure(settings.storage_options())
            sessions = self.spark.sessions(settings.writing_conf())
            if self._owns_spark:
                self.spark.warm_up = lambda: warm_up(sessions, self._staging.folder, settings.written_catalog)
            self.reader = reader = Reader(files, temp_directory=str(self._staging.folder / "duckdb"))
            opened.callback(reader.close)
            self.store = open_catalog(settings, files, server=self._staging.server, clock=clock)
            opened.callback(self.store.close)
            storage = Storage(
                catalog_name=settings.catalog_name,
                pointers=self.store.pointers,
                files=files,
                spark=sessions,
                staging=self._staging,
                ledger=self.store.ledger,
                apart=self.store.apart,
                warehouse=Warehouse(settings.warehouse_path),
                direct_reads=settings.direct_reads,
                dropped=self.store.dropped,
            )
            loader = VersionLoader(files, reader, Spill(sessions, self._staging, settings.catalog_name))
            self.engine = LakeEngine(storage, loader, transactions, journal, clock=clock)
            opened.callback(self.engine.close)
            self.catalog = LakehouseCatalog(
                self.engine, warehouse=settings.warehouse_path, default_schema=default_schema
            )
            views = LakeViews(self.store.views, files, catalog=settings.catalog_name)
            # Whatever a query does to the Spark that it runs on, those who write have another one.
            self.query_spark = self.spark
            if self._owns_spark and settings.spark_is_local:
                self.query_spark = SparkServer(settings, for_queries=True)
            self.queries = SparkQueries(
                self.engine, self.query_spark, reader, settings=settings, default_schema=default_schema, views=views
            )
            self.catalog.spark_sql = self.queries
            self.catalog.spark_views = views
            self.catalog.jobs = SparkJobs(self.spark, sessions, self.queries.places)
            self.in_use = InUse(self.engine, reader)
            self.maintenance = Maintenance(storage, self.engine.committer, self.in_use, maintenance)
            self.journal = JournalControl(self.engine, ready=lambda: self.spark.state is SparkState.READY)
            if self.store.pointers.journal is not None:
                self.catalog.journal = CatalogJournal(self.journal)
            self.figures = self.catalog.watch = LakehouseFigures(
                self.engine,
                self.spark,
                self.maintenance,
                self.journal,
                lists_tables=settings.catalog_type != "rest",
            )
            self.upkeep = None
            if maintenance is not None:
                self.upkeep = MaintenanceThread(
                    self.maintenance,
                    ready=lambda: self.spark.state is SparkState.READY,
                    dropped=self._dropped_folders() if maintenance.dropped_seconds > 0 else None,
                )
            self.recovery = Recovery(self._recover)
            self.recovery.start()
            self._opened = opened.pop_all()

    def _recover(self, stopping: threading.Event) -> None:
        storage = self.engine.storage
        recover(
            storage.files,
            storage.pointers,
            self._staging,
            ledger=self.store.ledger,
            warehouse=storage.warehouse,
            stopping=stopping,
        )

    def _dropped_folders(self) -> DroppedFolders | None:
        """None with a REST catalog: it does not list all its tables, and removes its files itself."""
        if self.settings.catalog_type == "rest":
            return None
        return DroppedFolders(
            self.store.database,
            self.settings.catalog_name,
            warehouse=self.settings.warehouse_path,
            files=self.engine.storage.files,
            pinned=self.in_use.all_metadata_files,
            is_read=self.in_use.is_read,
        )

    def start(self) -> Lakehouse:
        if self._owns_spark:
            self.spark.start()
        self.store.ledger.start(self.in_use.reported)
        self.journal.start()
        self.figures.start()
        if self.upkeep is not None:
            self.upkeep.start()
        return self

    def stop(self) -> None:
        """Safe to repeat."""
        self.figures.stop()
        self.journal.stop()
        self.recovery.stop()
        if self.upkeep is not None:
            self.upkeep.stop()
        if self._owns_spark:
            self.query_spark.stop()
            self.spark.stop()
        if self.upkeep is not None:
            self.upkeep.join(30)
        if not self._owns_spark or not self.spark.is_child:
            self.engine.storage.spark.close()
            self.queries.places.close()
        self._opened.close()

    def __enter__(self) -> Lakehouse:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


def _make(folder: Path, mode: FileMode) -> None:
    try:
        mode.make_folder(folder)
        mode.warn_of(folder)
    except OSError as exc:
        raise PermissionDenied(f"the warehouse '{folder}' cannot be made: {exc.strerror or exc}") from exc
