"""Putting a lakehouse together from its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from sparkport.errors import Unsupported
from sparkport.lakehouse.catalog import LakehouseCatalog
from sparkport.lakehouse.database import Database, open_database
from sparkport.lakehouse.engine import LakeEngine
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.pointers import SqlPointers
from sparkport.lakehouse.read import Reader
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.snapshot import VersionLoader
from sparkport.lakehouse.spark import SparkServer, SparkState
from sparkport.lakehouse.spill import Spill
from sparkport.lakehouse.staging import Staging
from sparkport.transactions.manager import TransactionSettings

__all__ = ["Lakehouse"]

logger = logging.getLogger(__name__)


class Lakehouse:
    """A catalog and what stands behind it, from ``start`` to ``stop``. Reads work at once, writes wait for Spark."""

    def __init__(
        self,
        settings: LakehouseSettings,
        *,
        default_schema: str = "main",
        transactions: TransactionSettings | None = None,
        on_state: Callable[[SparkState], None] | None = None,
        spark: SparkServer | None = None,
    ) -> None:
        """``spark`` is one that is shared with others: it is not started or stopped here."""
        if settings.kind == "rest":
            raise Unsupported("an Iceberg REST catalog cannot be used yet")
        if "://" not in settings.warehouse_path:
            Path(settings.warehouse_path).mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self._owns_spark = spark is None
        self.spark = spark or SparkServer(settings, on_state=on_state)
        self._database: Database = open_database(settings.database_uri)
        self._staging = Staging(settings.staging_path)
        files = FileSystem()
        self._reader = Reader(files, temp_directory=str(self._staging.folder / "duckdb"))
        loader = VersionLoader(files, self._reader, Spill(self.spark, self._staging, settings.catalog_name))
        self.engine = LakeEngine(
            catalog_name=settings.catalog_name,
            pointers=SqlPointers(self._database, settings.catalog_name),
            files=files,
            spark=self.spark,
            staging=self._staging,
            loader=loader,
            settings=transactions,
        )
        self.catalog = LakehouseCatalog(self.engine, warehouse=settings.warehouse_path, default_schema=default_schema)

    def start(self) -> Lakehouse:
        if self._owns_spark:
            self.spark.start()
        return self

    def stop(self) -> None:
        """Safe to repeat."""
        if self._owns_spark:
            self.spark.stop()
        self._reader.close()
        self._staging.close()
        self._database.close()

    def __enter__(self) -> Lakehouse:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
