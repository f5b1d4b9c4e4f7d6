"""The DuckDB that holds what open transactions have changed, a database for each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa

from sparkport.errors import Conflict, SparkportError
from sparkport.lakehouse.scan.duck import DuckDB, duckdb_error, is_broken

__all__ = ["Workspace"]


class Workspace:
    """The databases of all open transactions, in one DuckDB: its limit of memory holds for all of them together.

    They are in memory, and what has no room there on disk: they need not outlive the server.
    """

    def __init__(self, folder: Path, *, memory_limit: str = "1GB") -> None:
        self._lock = threading.Lock()
        self._generation = 0
        self._kept = 0
        self._databases: set[str] = set()
        self._duckdb = DuckDB(memory_limit=memory_limit, temp_directory=str(folder / "transactions"))

    def bytes_held(self) -> int:
        """By all transactions together, in memory and on disk."""
        if not self._databases:
            return self._kept
        with self.cursor(self._generation) as cursor:
            held = cursor.execute("SELECT sum(memory_usage_bytes + temporary_storage_bytes) FROM duckdb_memory()")
            (size,) = held.fetchone() or (0,)
        return self._kept + int(size or 0)

    def keeps(self, nbytes: int) -> None:
        """So many bytes more, or fewer, are kept beside the databases."""
        with self._lock:
            self._kept += nbytes

    def attach(self, generation: int, name: str) -> None:
        """A database for a transaction."""
        with self.cursor(generation) as cursor:
            cursor.execute(f"ATTACH ':memory:' AS {name}")
        with self._lock:
            self._databases.add(name)

    def detach(self, generation: int, name: str) -> None:
        with self._lock:
            self._databases.discard(name)
        with self.cursor(generation) as cursor:
            cursor.execute(f"DETACH {name}")

    @property
    def generation(self) -> int:
        return self._generation

    @contextlib.contextmanager
    def cursor(self, generation: int) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for a block; errors come out of it as ours."""
        with self.translated(generation):
            cursor = self._cursor(generation)
            try:
                yield cursor
            finally:
                cursor.close()

    def lasting_cursor(self, generation: int) -> duckdb.DuckDBPyConnection:
        """A connection that the caller closes."""
        with self.translated(generation):
            return self._cursor(generation)

    @contextlib.contextmanager
    def translated(self, generation: int) -> Iterator[None]:
        try:
            yield
        except SparkportError:
            raise
        except (duckdb.Error, pa.ArrowException, OSError) as exc:
            if is_broken(exc):
                with self._lock:
                    if generation == self._generation:
                        self._generation += 1
                        self._databases.clear()
                        self._duckdb.replace()
                raise _lost() from exc
            raise duckdb_error(exc, "keeping a transaction's changes") from exc

    def close(self) -> None:
        self._duckdb.close()

    def _cursor(self, generation: int) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if generation != self._generation:
                raise _lost()
            return self._duckdb.cursor()


def _lost() -> Conflict:
    return Conflict("the transaction's changes are lost: run it again from its beginning")
