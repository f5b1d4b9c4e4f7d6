"""Tables whose part of the journal Spark could not apply, with the reason: set apart, so that all others go on.

It is noted in the catalog's database: all servers count by it what the journal has room for, and each can say why a
table waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.journal_state import TableJournal
from sparkport.lakehouse.names import TableName

__all__ = ["Apart", "ApartRecords", "Tied", "tied"]

_TABLE = """CREATE TABLE IF NOT EXISTS sparkport_journal_apart (
    catalog_name VARCHAR(255) NOT NULL, uuid VARCHAR(64) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
    table_name VARCHAR(255) NOT NULL, reason VARCHAR(1000) NOT NULL, failures INTEGER NOT NULL,
    since DOUBLE PRECISION NOT NULL, retry_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (catalog_name, uuid, table_namespace, table_name))"""

_KEY = "catalog_name = ? AND uuid = ? AND table_namespace = ? AND table_name = ?"
_REASON_CHARACTERS = 1_000
_LONGEST_SECONDS = 60.0
"""Between two tries of a table that is set apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A table whose flush has failed so many times in a row, and why it did the last time."""

    uuid: str
    table: TableName
    reason: str
    failures: int
    since: float
    retry_at: float

    def is_due(self, now: float) -> bool:
        """Whether it is time to try again. A clock that was set back does not put it off for longer than usual."""
        return not now < self.retry_at <= now + _LONGEST_SECONDS


@dataclass(frozen=True, slots=True, eq=False)
class Tied:
    """Tables that can only be published together, because commits that wait have changed several of them.

    ``apart`` are those of them that could not be applied the last time.
    """

    journals: Sequence[TableJournal]
    apart: Sequence[Apart] = ()

    @property
    def tables(self) -> frozenset[TableName]:
        return frozenset(journal.table for journal in self.journals)


def tied(journals: Iterable[TableJournal], apart: Iterable[Apart] = ()) -> list[Tied]:
    """All tables that wait, those together that must be published together: ties lead on from one to the next."""
    waiting = list(journals)
    lead = list(range(len(waiting)))

    def first(number: int) -> int:
        while lead[number] != number:
            lead[number] = number = lead[lead[number]]
        return number

    seen: dict[int, int] = {}
    for number, journal in enumerate(waiting):
        for entry in journal.entries:
            other = seen.setdefault(entry.revision, number)
            if other != number:
                lead[first(number)] = first(other)
    groups: dict[int, list[TableJournal]] = {}
    for number, journal in enumerate(waiting):
        groups.setdefault(first(number), []).append(journal)
    noted = {(item.uuid, item.table): item for item in apart}
    return [
        Tied(group, [noted[key] for journal in group if (key := (journal.uuid, journal.table)) in noted])
        for group in groups.values()
    ]


class ApartRecords:
    """Called from several threads at once; the database is the caller's to close."""

    def __init__(self, database: Database, catalog: str) -> None:
        self._database = database
        self._catalog = catalog
        database.create_table(_TABLE)

    def all(self) -> list[Apart]:
        with self._database.transaction() as work:
            rows = work.query(
                "SELECT uuid, table_namespace, table_name, reason, failures, since, retry_at "
                "FROM sparkport_journal_apart WHERE catalog_name = ? ORDER BY table_namespace, table_name",
                [self._catalog],
            )
        return [
            Apart(
                uuid=str(uuid),
                table=TableName(str(schema), str(name)),
                reason=str(reason),
                failures=int(failures),
                since=float(since),
                retry_at=float(retry_at),
            )
            for uuid, schema, name, reason, failures, since, retry_at in rows
        ]

    def note(self, journal: TableJournal, reason: str, *, pace: float) -> int:
        """A table could not be applied, how many times in a row by now. Each time it is let alone for twice as long."""
        key, now = [self._catalog, journal.uuid, *journal.table], time.time()
        with self._database.transaction(write=True) as work:
            known = work.query(f"SELECT failures, since FROM sparkport_journal_apart WHERE {_KEY}", key)
            failures, since = (int(known[0][0]) + 1, float(known[0][1])) if known else (1, now)
            wait = min(pace * 2.0 ** min(failures - 1, 16), _LONGEST_SECONDS)
            work.change(f"DELETE FROM sparkport_journal_apart WHERE {_KEY}", key)
            work.change(
                "INSERT INTO sparkport_journal_apart (catalog_name, uuid, table_namespace, table_name, reason, "
                "failures, since, retry_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [*key, reason[:_REASON_CHARACTERS], failures, since, now + wait],
            )
        return failures

    def forget(self, tables: Iterable[tuple[str, TableName]]) -> None:
        """Tables, by uuid and name, have been applied, or have nothing more to apply."""
        with self._database.transaction(write=True) as work:
            for uuid, table in tables:
                work.change(f"DELETE FROM sparkport_journal_apart WHERE {_KEY}", [self._catalog, uuid, *table])
