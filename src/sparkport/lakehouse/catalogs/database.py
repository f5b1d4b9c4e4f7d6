"""The SQL database behind a catalog: SQLite or PostgreSQL, whole transactions only."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from sparkport.errors import PermissionDenied, ResourceExhausted, SparkportError, Unavailable
from sparkport.lakehouse.file_modes import FileMode

__all__ = ["Database", "Rows", "SqliteDatabase", "Work"]

logger = logging.getLogger(__name__)

Rows = list[tuple[Any, ...]]

_PATIENCE = 30.0
"""Seconds that a statement waits for the locks of others."""

_MAX_IDLE = 4
"""Connections that are kept for the next one: each holds three descriptors, and threads come in hundreds."""


class Work(Protocol):
    """A transaction under way. Parameters are marked with ``?`` whatever the database."""

    def query(self, sql: str, parameters: Sequence[object] = ()) -> Rows: ...

    def change(self, sql: str, parameters: Sequence[object] = ()) -> int:
        """The number of rows changed."""

    def columns(self, table: str) -> set[str]:
        """The names of a table's columns."""

    def has_index(self, name: str) -> bool: ...


class Database(ABC):
    """Commits at the end of a ``transaction`` block, rolls back when it raises.

    ``share`` is the end of a query's text: until the transaction is over, others may read its rows but not change them.
    Empty where only one writes at a time.
    """

    share = ""
    bytes_type = "BLOB"

    @abstractmethod
    def transaction(self, *, write: bool = False) -> Any:
        """A context manager over ``Work``; ``write`` takes the write lock at once, so that it cannot fail later."""

    def mark(self) -> object | None:
        """Equal to an earlier one only if nothing at all has been committed between; None if that is unknown."""
        return None

    def prepare(self, work: Callable[[], None]) -> None:
        """Create tables that may be there already. If several do so at once, PostgreSQL fails all but the first."""
        try:
            work()
        except Exception as exc:
            if not self.is_duplicate(exc):
                raise
            work()

    def create_table(self, sql: str) -> None:
        """Prepare one table by its CREATE TABLE IF NOT EXISTS."""

        def work() -> None:
            with self.transaction(write=True) as change:
                change.change(sql)

        self.prepare(work)

    def add_index(self, name: str, on: str) -> None:
        """Make an index if there is none, in older tables too. Everything works without it, only slower. It has a
        transaction of its own, so that two who make it at once do not wait for each other's other changes.
        """

        def work() -> None:
            with self.transaction() as looking:
                if looking.has_index(name):
                    return
            with self.transaction(write=True) as changing:
                changing.change(f"CREATE INDEX IF NOT EXISTS {name} ON {on}")

        try:
            self.prepare(work)
        except SparkportError as exc:
            logger.warning("the catalog's database has no index %s: %s", name, exc)

    @abstractmethod
    def is_duplicate(self, exc: Exception) -> bool:
        """Whether an error means that a row with this key, or a table of this name, is there already."""

    @abstractmethod
    def close(self) -> None: ...


class _SqliteWork:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def query(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        return self._connection.execute(sql, tuple(parameters)).fetchall()

    def change(self, sql: str, parameters: Sequence[object] = ()) -> int:
        return self._connection.execute(sql, tuple(parameters)).rowcount

    def columns(self, table: str) -> set[str]:
        return {name for (name,) in self.query("SELECT name FROM pragma_table_info(?)", [table])}

    def has_index(self, name: str) -> bool:
        return bool(self.query("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?", [name]))


class SqliteDatabase(Database):
    def __init__(self, path: Path, *, patience: float = _PATIENCE, mode: FileMode = FileMode.PRIVATE) -> None:
        self._path = path
        self._mode = mode
        self._patience = patience
        self._lock = threading.Lock()
        self._open: set[sqlite3.Connection] = set()
        self._idle: list[sqlite3.Connection] = []
        self._watching = threading.Lock()
        self._watcher: sqlite3.Connection | None = None

    def mark(self) -> object | None:
        # SQLite counts the commits of all other connections, so this one commits nothing.
        with self._watching:
            try:
                if self._watcher is None:
                    self._watcher = self._connect()
                data_version: int = self._watcher.execute("PRAGMA data_version").fetchone()[0]
            except (sqlite3.Error, OSError):
                return None
            return data_version

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[Work]:
        connection = self._take()
        try:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield _SqliteWork(connection)
                connection.commit()
            except BaseException:
                connection.rollback()  # of a commit that failed too, which leaves the transaction open
                raise
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise ResourceExhausted("the disk of the catalog's database is full") from exc
            if exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY:
                raise PermissionDenied("the catalog's database is read-only") from exc
            raise Unavailable(f"the catalog's database cannot be used: {exc}") from exc
        except sqlite3.DatabaseError as exc:
            if isinstance(exc, sqlite3.IntegrityError):
                raise
            raise Unavailable(f"the catalog's database is damaged: {exc}") from exc
        finally:
            self._give_back(connection)

    def is_duplicate(self, exc: Exception) -> bool:
        return isinstance(exc, sqlite3.IntegrityError)

    def close(self) -> None:
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open.clear()
            self._idle.clear()

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = None
        try:
            connection = self._connect()
            self._use_wal(connection)
            connection.execute("PRAGMA synchronous=FULL")
        except (sqlite3.Error, OSError) as exc:
            if connection is not None:
                self._forget(connection)
            raise Unavailable(f"the catalog's database cannot be opened: {exc}") from exc
        return connection

    def _forget(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if connection not in self._open:
                return
            if len(self._idle) < _MAX_IDLE and not connection.in_transaction:
                self._idle.append(connection)
                return
        self._forget(connection)

    def _connect(self) -> sqlite3.Connection:
        self._mode.make_folder(self._path.parent)
        with contextlib.suppress(OSError):  # it is there already, or SQLite will say what is wrong
            # SQLite makes the files beside it readable for those who may read this one.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, self._mode.file))
        connection = sqlite3.connect(self._path, timeout=self._patience, isolation_level=None, check_same_thread=False)
        with self._lock:
            self._open.add(connection)
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        end = time.monotonic() + self._patience
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as exc:
                # SQLite refuses some of those who do this at once to a new database, instead of letting them wait.
                if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
                time.sleep(0.01)
