"""Which statements have been committed, in a database: a repeat is known for a day, whatever became of the server."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sparkport.lakehouse.catalogs.database import Database

__all__ = ["STATEMENTS_TABLE", "StatementRecords"]

STATEMENTS_TABLE = """CREATE TABLE IF NOT EXISTS sparkport_statements (
    catalog_name VARCHAR(255) NOT NULL, statement VARCHAR(255) NOT NULL, changed BIGINT NOT NULL,
    committed_at DOUBLE PRECISION NOT NULL, PRIMARY KEY (catalog_name, statement))"""


class StatementRecords:
    """For catalogs that cannot write the record together with the tables: the tables note the statement too.

    Called from several threads at once; the database is the caller's to close.
    """

    def __init__(self, database: Database, catalog: str) -> None:
        self._database = database
        self._catalog = catalog
        database.prepare(self._prepare)

    def _prepare(self) -> None:
        with self._database.transaction(write=True) as work:
            work.change(STATEMENTS_TABLE)

    def find(self, key: str) -> int | None:
        """The number of rows that a statement changed; None for one that is not known."""
        with self._database.transaction() as work:
            rows = work.query(
                "SELECT changed FROM sparkport_statements WHERE catalog_name = ? AND statement = ?",
                [self._catalog, key],
            )
        return int(rows[0][0]) if rows else None

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
