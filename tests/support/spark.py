"""The one Spark of a test run: all its lakehouses are on it, of whatever catalog, and all its processes use it.

Nobody's catalog has the name that this Spark is started with: what it is started with holds in all of its sessions.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from sparkport.errors import Unavailable
from sparkport.lakehouse.jars import JarCache
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer

__all__ = ["download_jars", "shared_spark"]

_START_SECONDS = 900.0
_lock = threading.Lock()
_spark: SparkServer | None = None


class _AllDrivers(LakehouseSettings):
    """Of every catalog that a test has."""

    def packages(self) -> tuple[str, ...]:
        postgres = LakehouseSettings(catalog_uri="postgresql://127.0.0.1/none", properties={"s3.endpoint": "none"})
        return tuple(dict.fromkeys((*LakehouseSettings.packages(self), *postgres.packages())))


def download_jars() -> None:
    """Before the first test, since it may take longer than a test may; where it cannot be done, tests say so."""
    if not JarCache(_AllDrivers().packages()).resolved():
        with suppress(Unavailable):
            shared_spark()


def shared_spark() -> SparkServer:
    """Ready. Started when it is first asked for, by whichever process of the run comes first."""
    global _spark
    with _lock:
        if _spark is None:
            _spark = _shared(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
    _spark.wait_ready(_START_SECONDS)
    return _spark


def _shared(run: str | None) -> SparkServer:
    if run is None:
        folder = Path(tempfile.mkdtemp(prefix="sparkport-spark-"))
        return _started(folder)
    folder = Path(tempfile.gettempdir(), f"sparkport-spark-{run}")
    folder.mkdir(mode=0o700, exist_ok=True)
    # Whoever starts it ends it, and not before all others have ended: each holds this lock as long as it lives.
    users = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
    starting = os.open(folder / "starting", os.O_RDWR | os.O_CREAT, 0o600)
    address = folder / "address"
    fcntl.flock(starting, fcntl.LOCK_EX)
    try:
        if address.exists():
            fcntl.flock(users, fcntl.LOCK_SH)
            found = SparkServer(LakehouseSettings(spark=address.read_text(), sessions=2))
            found.start()
            atexit.register(found.stop)
            return found
        spark = _started(folder)
        atexit.register(fcntl.flock, users, fcntl.LOCK_EX)
        spark.wait_ready(_START_SECONDS)
        address.write_text(spark.url)
        return spark
    finally:
        os.close(starting)


def _started(folder: Path) -> SparkServer:
    settings = _AllDrivers(
        warehouse=str(folder),
        catalog_name="nobodys",
        driver_memory="2g",
        sessions=2,
    )
    spark = SparkServer(settings)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(spark.stop)
    spark.start()
    return spark
