"""A DuckDB that can compute and do nothing else: no files, no network, no settings. For filters, whose SQL is our own.

SQL that others wrote never gets here, and never meets another caller's rows: see :mod:`sparkport.catalog.isolated`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import duckdb

__all__ = ["SANDBOX", "Sandbox"]

_T = TypeVar("_T")

# What is run was spelled by us, after what strangers have sent; this is the second lock on the same door.
_SETTINGS = (
    "SET threads = 1",
    "SET memory_limit = '1GB'",
    "SET GLOBAL TimeZone = 'UTC'",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET python_enable_replacements = false",
    "SET temp_directory = ''",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


class Sandbox:
    """One locked-down DuckDB per process, a connection per thread; replaced when an internal error ruins it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None
        self._local = threading.local()

    def run(self, work: Callable[[duckdb.DuckDBPyConnection], _T]) -> _T:
        database, connection = self._connection()
        try:
            return work(connection)
        except Exception as exc:
            # A connection that failed in the middle may hold a result that blocks its next query.
            self._local.database = None
            connection.close()
            if isinstance(exc, duckdb.InternalException | duckdb.FatalException):
                with self._lock:
                    if self._database is database:
                        self._database = None
            raise

    def _connection(self) -> tuple[duckdb.DuckDBPyConnection, duckdb.DuckDBPyConnection]:
        with self._lock:
            if self._database is None:
                self._database = _open()
            database = self._database
            if getattr(self._local, "database", None) is not database:
                self._local.database = database
                self._local.connection = database.cursor()
        return database, self._local.connection


def _open() -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(":memory:")
    for setting in _SETTINGS:
        database.execute(setting)
    return database


SANDBOX = Sandbox()
