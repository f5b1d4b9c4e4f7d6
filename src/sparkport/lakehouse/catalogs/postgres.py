"""PostgreSQL behind a catalog: a few connections for all threads, and no thread waits for one without end.

A stock server takes a hundred connections, and a busy server of ours has more threads than that. A database that does
not answer must not hold a table's turn: the wait for each answer is limited, a connection that missed one is closed,
and the database itself gives up a transaction whose owner has fallen silent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparkport.catalog.waiting import is_readable
from sparkport.errors import InvalidArgument, Unavailable
from sparkport.lakehouse.catalogs.database import Database, Rows, Work

__all__ = ["PostgresDatabase"]

_CONNECTIONS = 16
_PATIENCE = 10.0
_MARGIN = 2.0
"""Seconds that an answer may take beyond the wait for locks, which the database itself ends."""


class _PostgresWork:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def query(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        rows: Rows = self._connection.execute(sql.replace("?", "%s"), parameters).fetchall()
        return rows

    def change(self, sql: str, parameters: Sequence[object] = ()) -> int:
        count: int = self._connection.execute(sql.replace("?", "%s"), parameters).rowcount
        return count

    def columns(self, table: str) -> set[str]:
        rows = self.query(
            "SELECT attname FROM pg_attribute WHERE attrelid = ?::regclass AND attnum > 0 AND NOT attisdropped", [table]
        )
        return {name for (name,) in rows}

    def has_index(self, name: str) -> bool:
        return self.query("SELECT to_regclass(?)", [name]) != [(None,)]


class PostgresDatabase(Database):
    """``patience``: seconds that a statement waits for locks, and a thread for one of the ``connections``."""

    share = " FOR SHARE"
    bytes_type = "BYTEA"

    def __init__(self, uri: str, *, patience: float = _PATIENCE, connections: int = _CONNECTIONS) -> None:
        try:
            import psycopg
        except ImportError as exc:
            raise InvalidArgument("a PostgreSQL catalog needs the package psycopg") from exc
        self._psycopg = psycopg
        errors = psycopg.errors
        # The last two are for those who create a table at the same time, IF NOT EXISTS or not.
        self._duplicates = (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject)
        self._patience = patience
        self._count = connections
        self._slots = threading.BoundedSemaphore(connections)
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self._closed = False
        self._class = _limited(psycopg, patience + _MARGIN)
        try:
            self._parameters = _connection_parameters(psycopg, uri, patience)
        except psycopg.Error as exc:
            raise InvalidArgument("the address of the catalog's database cannot be read") from exc

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[Work]:
        psycopg = self._psycopg
        try:
            with self._lent() as connection, connection.transaction():
                # A reader sees one instant of everything; for writers the conditions of their updates are enough.
                if not write:
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                yield _PostgresWork(connection)
        except self._duplicates:
            raise
        except psycopg.DataError as exc:
            raise InvalidArgument(f"the catalog's database cannot hold this: {type(exc).__name__}") from exc
        except psycopg.Error as exc:
            raise Unavailable(f"the catalog's database cannot be used: {type(exc).__name__}") from exc

    def is_duplicate(self, exc: Exception) -> bool:
        return isinstance(exc, self._duplicates)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _lent(self) -> Iterator[Any]:
        """A connection for the length of the block; it is used again if it came to no harm."""
        if not self._slots.acquire(timeout=self._patience):
            raise Unavailable(f"all {self._count} connections to the catalog's database are in use; try again")
        try:
            connection = self._kept() or self._connect()
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._slots.release()

    def _kept(self) -> Any:
        """One that is open at both ends; a database that was restarted has closed all that it had."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            # Nobody has asked it anything: if there is something to read it is the end.
            if not connection.closed and not is_readable(connection.fileno()):
                return connection
            connection.close()

    def _connect(self) -> Any:
        connection = self._class.connect(**self._parameters, autocommit=True)
        connection.execute(f"SET lock_timeout = {round(self._patience * 1000)}")
        # A client that falls silent in the middle of a transaction would keep its locks until the network gives up.
        connection.execute(f"SET idle_in_transaction_session_timeout = {round(self._patience * 3000)}")
        return connection

    def _give_back(self, connection: Any) -> None:
        unharmed = connection.info.transaction_status == self._psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if unharmed and not self._closed:
                self._idle.append(connection)
                return
        connection.close()


def _connection_parameters(psycopg: Any, uri: str, patience: float) -> dict[str, Any]:
    """What the address says, and limits for a network that swallows what is sent, unless it has its own."""
    seconds = max(round(patience), 1)
    limits = {
        "connect_timeout": seconds,
        "tcp_user_timeout": seconds * 1000,
        "keepalives_idle": seconds,
        "keepalives_interval": max(seconds // 3, 1),
        "keepalives_count": 3,
    }
    return {**limits, **psycopg.conninfo.conninfo_to_dict(uri)}


def _limited(psycopg: Any, seconds: float) -> Any:
    """A connection that is closed when an answer takes too long: nobody knows in which state it is then."""

    class Limited(psycopg.Connection):  # type: ignore[misc]
        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            try:
                return super().wait(gen, interval, timeout=seconds if timeout is None else timeout)
            except psycopg.errors._WaitTimeout as exc:
                self.pgconn.finish()
                raise psycopg.OperationalError(f"no answer within {seconds:g} seconds") from exc

    return Limited
