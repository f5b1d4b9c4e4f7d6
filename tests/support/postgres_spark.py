"""A Spark with the driver of PostgreSQL, for all lakehouses of a test run that have such a catalog or a REST one."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
from pathlib import Path

from tests.support.spark_cluster import ready_or_skip

from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer

__all__ = ["postgres_spark"]

_lock = threading.Lock()
_spark: SparkServer | None = None


def postgres_spark() -> SparkServer:
    """Started when it is first asked for; skips the test when there is no way to its jars."""
    global _spark
    with _lock:
        if _spark is None:
            folder = Path(tempfile.mkdtemp(prefix="sparkport-spark-"))
            settings = LakehouseSettings(
                warehouse=str(folder),
                catalog_uri="postgresql://127.0.0.1/none",
                # What a Spark is started with holds in all of its sessions, so nobody's catalog may have this name.
                catalog_name="nobodys",
                spark="local[2]",
                driver_memory="1g",
                sessions=2,
            )
            _spark = SparkServer(settings)
            _spark.start()
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            atexit.register(_spark.stop)
    ready_or_skip(_spark)
    return _spark
