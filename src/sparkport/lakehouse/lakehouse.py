"""Putting a lakehouse together from its settings."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sparkport.errors import FailedPrecondition, PermissionDenied, SparkportError
from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.databases import open_database
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.pointers import Pointers
from sparkport.lakehouse.catalogs.rest import RestPointers
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.catalogs.statement_records import StatementRecords
from sparkport.lakehouse.files import FileSystem, local_path
from sparkport.lakehouse.modes import FileMode
from sparkport.lakehouse.mounts import network_file_system
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.places import Warehouse
from sparkport.lakehouse.scan.read import Reader
from sparkport.lakehouse.scan.spill import Spill
from sparkport.lakehouse.scan.version import VersionLoader
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer, SparkState
from sparkport.lakehouse.spark.staging import Staging
from sparkport.lakehouse.spark.warmup import warm_up
from sparkport.lakehouse.tables.catalog import LakehouseCatalog
from sparkport.lakehouse.tables.engine import LakeEngine
from sparkport.lakehouse.upkeep.dropped import DroppedFolders
from sparkport.lakehouse.upkeep.maintenance import Maintenance
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings
from sparkport.lakehouse.upkeep.maintenance_thread import MaintenanceThread
from sparkport.lakehouse.upkeep.recovery import JournalledFiles, Recovery, recover
from sparkport.transactions.manager import TransactionSettings

__all__ = ["Lakehouse"]

logger = logging.getLogger(__name__)


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
    ) -> None:
        """``spark`` is one that is shared with others: it is not started or stopped here.

        With settings of ``maintenance`` tables are maintained in the background, without only when it is asked for.
        """
        if (folder := local_path(settings.warehouse_path)) is not None:
            _make(folder, settings.file_mode)
        self.settings = settings
        self._owns_spark = spark is None
        self.spark = spark or SparkServer(settings, on_state=on_state)
        self._database: Database | None = None
        self._staging = Staging(settings.staging_path, catalog=_digest(settings), mode=settings.file_mode)
        files = JournalledFiles(self._staging)
        files.configure(settings.storage_options())
        sessions = self.spark.sessions(settings.session_conf())
        if self._owns_spark:
            self.spark.warm_up = lambda: warm_up(sessions, self._staging.folder, settings.catalog_name)
        self._reader = Reader(files, temp_directory=str(self._staging.folder / "duckdb"))
        loader = VersionLoader(files, self._reader, Spill(sessions, self._staging, settings.catalog_name))
        self.engine = LakeEngine(
            catalog_name=settings.catalog_name,
            pointers=self._pointers(files),
            files=files,
            spark=sessions,
            staging=self._staging,
            loader=loader,
            ledger=self._ledger,
            warehouse=Warehouse(settings.warehouse_path),
            settings=transactions,
            direct_reads=settings.direct_reads,
        )
        self._recovery = Recovery(self._recover)
        self._recovery.start()
        self.catalog = LakehouseCatalog(self.engine, warehouse=settings.warehouse_path, default_schema=default_schema)

        self.maintenance = Maintenance(self.engine, self._reader, maintenance)
        self._upkeep = None
        if maintenance is not None:
            self._upkeep = MaintenanceThread(
                self.maintenance,
                ready=lambda: self.spark.state is SparkState.READY,
                dropped=self._dropped_folders() if maintenance.dropped_seconds > 0 else None,
            )

    def _recover(self, stopping: threading.Event) -> None:
        engine = self.engine
        recover(
            engine.files,
            engine.pointers,
            self._staging,
            ledger=self._ledger,
            warehouse=engine.warehouse,
            stopping=stopping,
        )

    def _pointers(self, files: FileSystem) -> Pointers:
        name, mode = self.settings.catalog_name, self.settings.file_mode
        server = self._staging.server
        try:
            if self.settings.kind == "rest":
                # Such a catalog has no place for what becomes of transactions.
                uri, kept_as = _ledger_of(self.settings)
                self._database = open_database(uri, mode)

                def settle(transaction_id: str, tables: Sequence[TableName]) -> bool:
                    return rest.settle(transaction_id, tables)

                self._ledger = Ledger(self._database, kept_as, server=server, resolve=settle)
                statements = StatementRecords(self._database, kept_as)
                rest = RestPointers.of(self.settings, files, self._ledger, statements)
                return rest
            self._database = open_database(self.settings.database_uri, mode)
            self._ledger = Ledger(self._database, name, server=server)
            return SqlPointers(self._database, name, files, self._ledger, server=server)
        except BaseException:
            if self._database is not None:
                self._database.close()
            self._staging.close()
            raise

    def _dropped_folders(self) -> DroppedFolders | None:
        """None with a REST catalog: it does not tell of all tables that it has, and its files are its own to remove."""
        if self._database is None or self.settings.kind == "rest":
            return None
        return DroppedFolders(
            self._database,
            self.settings.catalog_name,
            warehouse=self.settings.warehouse_path,
            files=self.engine.files,
            pinned=self.maintenance.all_pinned,
            is_read=self.maintenance.is_read,
        )

    def start(self) -> Lakehouse:
        if self._owns_spark:
            self.spark.start()
        self._ledger.start(self.engine.needed)
        if self._upkeep is not None:
            self._upkeep.start()
        return self

    def stop(self) -> None:
        """Safe to repeat."""
        self._recovery.stop()
        if self._upkeep is not None:
            self._upkeep.stop()
        if self._owns_spark:
            self.spark.stop()
        if self._upkeep is not None:
            self._upkeep.join(30)
        if not self._owns_spark or not self.spark.is_child:
            self.engine.spark.close()
        self._reader.close()
        self.engine.close()
        self._ledger.stop()
        with contextlib.suppress(SparkportError):  # a row that is left does no harm
            self.engine.pointers.fence(self._staging.server)
        self._staging.close()
        if self._database is not None:
            self._database.close()

    def __enter__(self) -> Lakehouse:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


def _digest(settings: LakehouseSettings) -> str:
    """Tells catalogs apart by where they are, whoever asks: a new password makes no other catalog."""
    parts = urlsplit(settings.database_uri)
    names = ("warehouse", "prefix")  # by which a REST server knows several catalogs
    own = [settings.properties.get(f"spark.sql.catalog.{settings.catalog_name}.{name}") for name in names]
    told = (parts.scheme, parts.hostname, parts.port, parts.path, settings.catalog_name, *own)
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _ledger_of(settings: LakehouseSettings) -> tuple[str, str]:
    """The database of a REST catalog's ledger, and the catalog's name in it: others may keep theirs there too.

    Without one that was chosen, servers on one staging folder share it, on one machine.
    """
    digest = _digest(settings)[:12]
    if settings.ledger_uri is not None:
        return settings.ledger_uri, f"{settings.catalog_name}@{digest}"
    folder = Path(settings.staging_path).resolve()
    kind = network_file_system(folder)
    if kind is not None:
        raise FailedPrecondition(
            f"the staging folder '{folder}' is on a network file system ({kind}), where the SQLite database of the "
            "transactions could be damaged: set ledger_uri, to postgresql://host/database if several machines have "
            "servers on this catalog, or to sqlite:////path/on/a/local/disk.db for one"
        )
    return f"sqlite:///{folder}/transactions-{digest}.db", settings.catalog_name


def _make(folder: Path, mode: FileMode) -> None:
    try:
        mode.make_folder(folder)
        mode.warn_of(folder)
    except OSError as exc:
        raise PermissionDenied(f"the warehouse '{folder}' cannot be made: {exc.strerror or exc}") from exc
