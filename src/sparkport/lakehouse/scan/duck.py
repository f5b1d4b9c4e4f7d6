"""The DuckDB instance in this process that reads the lakehouse's files: bounded in memory, replaced when it breaks."""

from __future__ import annotations

import logging
import threading
from typing import Any

import duckdb

from sparkport.catalog.duckdb_errors import is_broken, is_interrupted, is_out_of_room, is_unreadable
from sparkport.errors import Cancelled, Conflict, InternalError, ResourceExhausted, SparkportError, Unavailable

__all__ = ["DUCKDB_MEMORY", "DuckDB", "duckdb_error", "is_broken", "translate"]

_log = logging.getLogger(__name__)

DUCKDB_MEMORY = "640MB"
"""What it may take, pages of files that it keeps included: with it the whole server stays under a gigabyte."""


class DuckDB:
    """Cursors of one in-memory database. Safe to use from several threads; each cursor belongs to one scan."""

    def __init__(
        self, *, memory_limit: str = DUCKDB_MEMORY, threads: int | None = None, temp_directory: str | None = None
    ) -> None:
        self._settings = [
            f"SET memory_limit = '{memory_limit}'",
            "SET GLOBAL TimeZone = 'UTC'",
            "SET preserve_insertion_order = true",
            # A snapshot's files never change: neither does what is in their footers.
            "SET parquet_metadata_cache = true",
            "SET validate_external_file_cache = 'NO_VALIDATION'",
            "SET autoinstall_known_extensions = false",
            "SET autoload_known_extensions = false",
            "SET python_enable_replacements = false",
        ]
        if threads is not None:
            self._settings.append(f"SET threads = {int(threads)}")
        quoted = (temp_directory or "").replace("'", "''")
        self._settings.append(f"SET temp_directory = '{quoted}'")
        self._lock = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of one's own, to be closed by the caller."""
        with self._lock:
            if self._database is None:
                self._database = self._open()
            return self._database.cursor()

    def replace(self) -> None:
        """Let the next cursor be one of a new instance; scans that run keep the old one until they end."""
        with self._lock:
            self._database = None
        _log.error("DuckDB met an internal error; a new instance takes its place")

    def close(self) -> None:
        with self._lock:
            database, self._database = self._database, None
        if database is not None:
            database.close()

    def _open(self) -> duckdb.DuckDBPyConnection:
        database = duckdb.connect(":memory:")
        for setting in self._settings:
            database.execute(setting)
        return database


def translate(exc: Any) -> SparkportError:
    """An error of a scan as one of ours; the caller raises it ``from exc``."""
    text = str(exc)
    if isinstance(exc, SparkportError):
        return exc
    if is_interrupted(exc):
        return Cancelled("the scan was cancelled")
    if "No files found" in text or "No such file" in text or "Cannot open file" in text or "FileNotFound" in text:
        return Conflict("files of the snapshot are gone: it was expired while it was being read")
    return duckdb_error(exc, "the scan")


def duckdb_error(exc: Any, what: str) -> SparkportError:
    """An error of work that no table's files are to blame for."""
    if is_out_of_room(exc):
        return ResourceExhausted(f"{what} needs more room than there is")
    if is_unreadable(exc):
        return Unavailable(f"{what} cannot go on: {exc}")
    return InternalError(f"{what} failed: {exc}")
