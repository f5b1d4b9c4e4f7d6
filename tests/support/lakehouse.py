"""Lakehouses for tests: each with a warehouse of its own, all on the one Spark of the test run.

A catalog's settings live in a Spark session, and every lakehouse has sessions of its own, so that all of them can be
called ``lake``.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sparkport.lakehouse.catalogs.database import Database, SqliteDatabase
from sparkport.lakehouse.catalogs.pointers import Pointers
from sparkport.lakehouse.catalogs.postgres import PostgresDatabase
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer
from sparkport.transactions.manager import TransactionSettings

__all__ = ["Lake", "impatient_database", "lakehouse", "shared_spark"]

_lock = threading.Lock()
_spark: SparkServer | None = None


def shared_spark() -> SparkServer:
    """The Spark of this test run, started when it is first asked for."""
    global _spark
    with _lock:
        if _spark is None:
            folder = Path(tempfile.mkdtemp(prefix="sparkport-spark-"))
            _spark = SparkServer(LakehouseSettings(warehouse=str(folder), driver_memory="2g", sessions=2))
            _spark.start()
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            atexit.register(_spark.stop)
    return _spark


@contextmanager
def lakehouse(
    warehouse: Path, *, catalog_uri: str | None = None, transactions: TransactionSettings | None = None
) -> Iterator[Lakehouse]:
    settings = LakehouseSettings(warehouse=str(warehouse), catalog_uri=catalog_uri, sessions=2)
    with Lakehouse(settings, spark=shared_spark(), transactions=transactions) as opened:
        yield opened


class Lake:
    """What tests of single parts need of a lakehouse."""

    def __init__(self, opened: Lakehouse) -> None:
        self.opened = opened
        self.catalog = opened.settings.catalog_name
        self.warehouse = Path(opened.settings.warehouse_path)
        self.pointers: Pointers = opened.engine.pointers

    def spark(self) -> AbstractContextManager[Any]:
        """A plain Spark session on the same catalog."""
        return self.opened.engine.spark.session()


def impatient_database(uri: str) -> Database:
    """A catalog's database by a connection that does not wait long for the locks of others."""
    if uri.startswith("sqlite"):
        return SqliteDatabase(Path(uri.removeprefix("sqlite:///")), patience=0.2)
    return PostgresDatabase(uri, patience=0.2)
