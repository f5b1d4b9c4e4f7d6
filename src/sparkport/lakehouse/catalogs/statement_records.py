"""Which statements have been committed, in a database: a repeat is known for a day, whatever became of the server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from sparkport.lakehouse.catalogs.database import Database, Work

__all__ = ["StatementRecords"]

_TABLE = """CREATE TABLE IF NOT EXISTS sparkport_statements (
    catalog_name VARCHAR(255) NOT NULL, statement VARCHAR(255) NOT NULL, changed BIGINT NOT NULL,
    committed_at DOUBLE PRECISION NOT NULL, PRIMARY KEY (catalog_name, statement))"""

_INDEX = ("sparkport_statements_by_time", "sparkport_statements (catalog_name, committed_at)")


class StatementRecords:
    """Written together with the tables where the catalog can (``note``), else after them (``add``): these note it too.

    Called from several threads at once; the database is the caller's to close.
    """

    def __init__(self, database: Database, catalog: str) -> None:
        self._database = database
        self._catalog = catalog
        database.create_table(_TABLE)
        database.add_index(*_INDEX)

    def find(self, key: str) -> int | None:
        """The number of rows that a statement changed; None for one that is not known."""
        with self._database.transaction() as work:
            rows = work.query(
                "SELECT changed FROM sparkport_statements WHERE catalog_name = ? AND statement = ?",
                [self._catalog, key],
            )
        return int(rows[0][0]) if rows else None

    def note(self, work: Work, statements: Mapping[str, int]) -> None:
        """Statements that are committed with a transaction of the database; a duplicate of one that is known."""
        for key, count in statements.items():
            work.change(
                "INSERT INTO sparkport_statements VALUES (?, ?, ?, ?)", [self._catalog, key, count, time.time()]
            )

    def remove(self, work: Work, keys: Iterable[str]) -> None:
        for key in keys:
            work.change(
                "DELETE FROM sparkport_statements WHERE catalog_name = ? AND statement = ?", [self._catalog, key]
            )

    def add(self, statements: Mapping[str, int], at: Mapping[str, float] | None = None) -> None:
        """Statements that have been committed, now or ``at`` a time; of those that are known the first record holds."""
        with self._database.transaction(write=True) as work:
            for key, count in sorted(statements.items()):
                committed = time.time() if at is None else at[key]
                work.change(
                    "INSERT INTO sparkport_statements (catalog_name, statement, changed, committed_at) "
                    "VALUES (?, ?, ?, ?) ON CONFLICT (catalog_name, statement) DO NOTHING",
                    [self._catalog, key, count, committed],
                )

    def forget(self, before: float) -> int:
        """Drop the records of statements committed before a time; how many that were."""
        with self._database.transaction(write=True) as work:
            count: int = work.change(
                "DELETE FROM sparkport_statements WHERE catalog_name = ? AND committed_at < ?", [self._catalog, before]
            )
        return count
