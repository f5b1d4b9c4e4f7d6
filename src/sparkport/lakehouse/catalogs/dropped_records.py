"""Which tables were dropped and where their metadata is, in the catalog's database: the files are left to be found."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.names import TableName

__all__ = ["DroppedRecord", "DroppedRecords"]

_TABLE = """CREATE TABLE IF NOT EXISTS sparkport_dropped (
    catalog_name VARCHAR(255) NOT NULL, location VARCHAR(1000) NOT NULL, schema_name VARCHAR(255) NOT NULL,
    table_name VARCHAR(255) NOT NULL, dropped_at DOUBLE PRECISION NOT NULL, author VARCHAR(255),
    PRIMARY KEY (catalog_name, location))"""

_KEPT_SECONDS = 366 * 86_400.0
_AUTHOR_CHARACTERS = 255


@dataclass(frozen=True, slots=True)
class DroppedRecord:
    table: TableName
    location: str
    dropped_at: float
    author: str | None


class DroppedRecords:
    """Called from several threads at once; the database is the caller's to close."""

    def __init__(self, database: Database, catalog: str) -> None:
        self._database = database
        self._catalog = catalog
        database.create_table(_TABLE)

    def add(self, table: TableName, location: str, author: str) -> None:
        now = time.time()
        with self._database.transaction(write=True) as work:
            old = "DELETE FROM sparkport_dropped WHERE catalog_name = ? AND (location = ? OR dropped_at < ?)"
            work.change(old, [self._catalog, location, now - _KEPT_SECONDS])
            work.change(
                "INSERT INTO sparkport_dropped (catalog_name, location, schema_name, table_name, dropped_at, author) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [self._catalog, location, table.schema, table.name, now, author[:_AUTHOR_CHARACTERS]],
            )

    def newest_first(self) -> list[DroppedRecord]:
        with self._database.transaction() as work:
            rows = work.query(
                "SELECT schema_name, table_name, location, dropped_at, author FROM sparkport_dropped "
                "WHERE catalog_name = ? ORDER BY dropped_at DESC",
                [self._catalog],
            )
        return [
            DroppedRecord(TableName(str(schema), str(name)), str(location), float(at), author)
            for schema, name, location, at, author in rows
        ]

    def forget(self, location: str) -> None:
        with self._database.transaction(write=True) as work:
            sql = "DELETE FROM sparkport_dropped WHERE catalog_name = ? AND location = ?"
            work.change(sql, [self._catalog, location])
