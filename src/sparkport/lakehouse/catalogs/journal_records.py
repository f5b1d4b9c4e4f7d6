"""The journal in the catalog's database: changes that are committed and that Spark has not applied yet.

An entry is what one commit did to one table. All that happens to the journal has a place in one order, the revision:
whoever writes it takes the next numbers, which lets one write at a time. Entries that were applied are removed by the
transaction that publishes the tables; what is left of them is a record of the flush.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from sparkport.errors import FailedPrecondition
from sparkport.lakehouse.catalogs.database import Database, Rows, Work
from sparkport.lakehouse.catalogs.journal_state import (
    NO_JOURNAL,
    NO_TABLE,
    Entry,
    Flush,
    JournalStatus,
    JournalView,
    TableJournal,
)
from sparkport.lakehouse.names import TableName

__all__ = ["FORMAT", "JournalRecords"]

FORMAT = 1
"""Of the bodies of entries and flushes: one that a newer sparkport has written is not read as if it were ours."""

_TABLES = (
    """CREATE TABLE IF NOT EXISTS sparkport_journal (
        catalog_name VARCHAR(255) NOT NULL PRIMARY KEY, revision BIGINT NOT NULL, next_id BIGINT NOT NULL,
        flusher VARCHAR(255), flushes_until DOUBLE PRECISION)""",
    """CREATE TABLE IF NOT EXISTS sparkport_journal_tables (
        catalog_name VARCHAR(255) NOT NULL, uuid VARCHAR(64) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
        table_name VARCHAR(255) NOT NULL, flushed BIGINT NOT NULL, revision BIGINT NOT NULL,
        PRIMARY KEY (catalog_name, uuid))""",
    """CREATE TABLE IF NOT EXISTS sparkport_journal_entries (
        catalog_name VARCHAR(255) NOT NULL, uuid VARCHAR(64) NOT NULL, revision BIGINT NOT NULL,
        sequence BIGINT NOT NULL, format INTEGER NOT NULL, row_count BIGINT NOT NULL,
        written_at DOUBLE PRECISION NOT NULL, body {bytes} NOT NULL,
        PRIMARY KEY (catalog_name, uuid, revision))""",
    """CREATE TABLE IF NOT EXISTS sparkport_journal_flushes (
        catalog_name VARCHAR(255) NOT NULL, uuid VARCHAR(64) NOT NULL, flushed BIGINT NOT NULL,
        format INTEGER NOT NULL, first_sequence BIGINT NOT NULL, last_sequence BIGINT NOT NULL,
        flushed_at DOUBLE PRECISION NOT NULL, body {bytes} NOT NULL, PRIMARY KEY (catalog_name, uuid, flushed))""",
)

_VIEWS_KEPT = 64
_ID_BLOCK = 100_000


class JournalRecords:
    """The journal's tables, and the newest state of them as this server knows it. Called from several threads."""

    def __init__(
        self,
        database: Database,
        catalog: str,
        *,
        remember_seconds: float = 3_600.0,
        remember_bytes: int = 64 << 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Records of flushes are kept for some time: clients may name rows by the ids that these had before.

        Entries never need them: those that wait are moved to the published ids by the flush itself. A server keeps no
        more than ``remember_bytes`` of them for a table.
        """
        self.clock = clock
        self.remember_seconds = remember_seconds
        self.remember_bytes = remember_bytes
        self._database = database
        self._catalog = catalog
        self._lock = threading.Lock()
        self._views: OrderedDict[int, JournalView] = OrderedDict({0: NO_JOURNAL})
        self._newest = NO_JOURNAL
        self._ids_lock = threading.Lock()
        self._ids = range(0)
        database.prepare(self._prepare)
        database.add_index("sparkport_journal_tables_by_revision", "sparkport_journal_tables (catalog_name, revision)")

    def _prepare(self) -> None:
        with self._database.transaction(write=True) as work:
            for table in _TABLES:
                work.change(table.format(bytes=self._database.bytes_type))
            work.change(
                "INSERT INTO sparkport_journal (catalog_name, revision, next_id) VALUES (?, 0, 0) "
                "ON CONFLICT (catalog_name) DO NOTHING",
                [self._catalog],
            )

    # Reading

    def view(self, work: Work) -> JournalView:
        """The journal as a transaction of the database sees it."""
        rows = work.query("SELECT revision FROM sparkport_journal WHERE catalog_name = ?", [self._catalog])
        revision = int(rows[0][0]) if rows else 0
        known = self._known_by(revision)
        if known.revision == revision:
            return known
        view = self._read(work, known, revision)
        self._keep(view)
        return view

    def _known_by(self, revision: int) -> JournalView:
        """The last state that is known up to a revision: this server may have seen more than a transaction does."""
        with self._lock:
            if (known := self._views.get(revision)) is not None:
                return known
            if self._newest.revision <= revision:
                return self._newest
            earlier = max((at for at in self._views if at < revision), default=None)
            return NO_JOURNAL if earlier is None else self._views[earlier]

    def _keep(self, view: JournalView) -> None:
        with self._lock:
            self._views[view.revision] = view
            while len(self._views) > _VIEWS_KEPT:
                self._views.popitem(last=False)
            if view.revision > self._newest.revision:
                self._newest = view

    def _read(self, work: Work, known: JournalView, revision: int) -> JournalView:
        changed = work.query(
            "SELECT uuid, table_namespace, table_name, flushed FROM sparkport_journal_tables "
            "WHERE catalog_name = ? AND revision > ?",
            [self._catalog, known.revision],
        )
        journals = dict(known.by_uuid)
        for uuid, schema, name, flushed in changed:
            journal = journals.get(uuid) or TableJournal(uuid, TableName(schema, name))
            journals[uuid] = self._read_table(work, journal, TableName(schema, name), int(flushed))
        return JournalView(revision, journals)

    def _read_table(self, work: Work, known: TableJournal, table: TableName, flushed: int) -> TableJournal:
        if flushed > known.flushed:
            rows = work.query(
                "SELECT flushed, first_sequence, last_sequence, flushed_at, body, format "
                "FROM sparkport_journal_flushes WHERE catalog_name = ? AND uuid = ? AND flushed > ? ORDER BY flushed",
                [self._catalog, known.uuid, known.flushed],
            )
            _require_format(rows)
            flushes = self._remembered(
                [
                    *self._left_of(work, known),
                    *(Flush(int(f), int(first), int(last), at, bytes(body)) for f, first, last, at, body, _ in rows),
                ]
            )
            # All that waits is read anew: the flush may have moved it to other ids.
            known = TableJournal(known.uuid, table, flushed, flushes=flushes)
        rows = work.query(
            "SELECT revision, sequence, row_count, written_at, body, format FROM sparkport_journal_entries "
            "WHERE catalog_name = ? AND uuid = ? AND revision > ? ORDER BY revision",
            [self._catalog, known.uuid, known.last],
        )
        _require_format(rows)
        fresh = tuple(Entry(int(r), int(s), int(n), at, bytes(body)) for r, s, n, at, body, _ in rows)
        return replace(known.followed_by(fresh), table=table)

    def _left_of(self, work: Work, known: TableJournal) -> tuple[Flush, ...]:
        """The flushes that were known, if their records are there: they are about another table where those went."""
        last = "SELECT 1 FROM sparkport_journal_flushes WHERE catalog_name = ? AND uuid = ? AND flushed = ?"
        if known.flushes and work.query(last, [self._catalog, known.uuid, known.flushes[-1].flushed]):
            return known.flushes
        return ()

    def _remembered(self, flushes: Sequence[Flush]) -> tuple[Flush, ...]:
        """The last ones, as far as there is room: what is decided by a row that none of them knows is a conflict."""
        since, room, kept = self.clock() - self.remember_seconds, self.remember_bytes, 0
        for flush in reversed(flushes):
            room -= len(flush.body)
            if room < 0 or flush.flushed_at < since:
                break
            kept += 1
        return tuple(flushes[len(flushes) - kept :])

    @contextmanager
    def changing(self) -> Iterator[Work]:
        """A transaction that changes nothing but the journal."""
        with self._database.transaction(write=True) as work:
            yield work

    # Writing: whoever does holds the journal until the end of the transaction

    def advance(self, work: Work, by: int = 1) -> tuple[JournalView, int]:
        """The journal as it is, which stays so until the transaction ends, and the first of the next revisions.

        Once in a transaction: what is read here is kept, and must not be what is taken back if the transaction fails.
        """
        work.change("UPDATE sparkport_journal SET revision = revision + ? WHERE catalog_name = ?", [by, self._catalog])
        rows = work.query("SELECT revision FROM sparkport_journal WHERE catalog_name = ?", [self._catalog])
        before = int(rows[0][0]) - by
        known = self._known_by(before)
        if known.revision != before:
            known = self._read(work, known, before)
            self._keep(known)
        return known, before + 1

    def append(self, work: Work, journal: TableJournal, entry: Entry) -> None:
        work.change(
            "INSERT INTO sparkport_journal_entries "
            "(catalog_name, uuid, revision, sequence, format, row_count, written_at, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                self._catalog,
                journal.uuid,
                entry.revision,
                entry.sequence,
                FORMAT,
                entry.rows,
                entry.written_at,
                entry.body,
            ],
        )
        self._touch(work, journal, entry.revision)

    def _touch(self, work: Work, journal: TableJournal, revision: int) -> None:
        work.change(
            "INSERT INTO sparkport_journal_tables "
            "(catalog_name, uuid, table_namespace, table_name, flushed, revision) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (catalog_name, uuid) DO UPDATE SET table_namespace = excluded.table_namespace, "
            "table_name = excluded.table_name, flushed = excluded.flushed, revision = excluded.revision",
            [self._catalog, journal.uuid, *journal.table, journal.flushed, revision],
        )

    def flush(self, work: Work, journal: TableJournal, flush: Flush, revision: int) -> None:
        """Entries up to a revision have been applied."""
        work.change(
            "DELETE FROM sparkport_journal_entries WHERE catalog_name = ? AND uuid = ? AND revision <= ?",
            [self._catalog, journal.uuid, flush.flushed],
        )
        work.change(
            "DELETE FROM sparkport_journal_flushes WHERE catalog_name = ? AND flushed_at < ?",
            [self._catalog, self.clock() - self.remember_seconds],
        )
        work.change(
            "INSERT INTO sparkport_journal_flushes (catalog_name, uuid, flushed, format, first_sequence, "
            "last_sequence, flushed_at, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                self._catalog,
                journal.uuid,
                flush.flushed,
                FORMAT,
                flush.first_sequence,
                flush.last_sequence,
                flush.flushed_at,
                flush.body,
            ],
        )
        self._touch(work, replace(journal, flushed=flush.flushed), revision)

    def move(self, work: Work, journal: TableJournal, entry: Entry) -> None:
        """An entry that waits names its rows by other ids from now on; a flush of the table MUST follow."""
        work.change(
            "UPDATE sparkport_journal_entries SET body = ? WHERE catalog_name = ? AND uuid = ? AND revision = ?",
            [entry.body, self._catalog, journal.uuid, entry.revision],
        )

    def turn(self, work: Work) -> int:
        """The next revision, for whoever changes what tables there are; 0 where the journal knows of none.

        It comes before all else in the transaction, as for commits: two who held one thing each would wait for ever.
        """
        known = work.query("SELECT 1 FROM sparkport_journal_tables WHERE catalog_name = ? LIMIT 1", [self._catalog])
        return self.advance(work)[1] if known else 0

    def remove(self, work: Work, uuids: Iterable[str], revision: int) -> None:
        """Tables are gone, and what the journal holds for them with them. That they were here is kept: others ask."""
        for uuid in uuids:
            self._remove_all(work, "entries", uuid)
            self._remove_all(work, "flushes", uuid)
            self._touch(work, TableJournal(uuid, NO_TABLE, revision), revision)

    def _remove_all(self, work: Work, what: str, uuid: str) -> None:
        where = "WHERE catalog_name = ? AND uuid = ?"
        work.change(f"DELETE FROM sparkport_journal_{what} {where}", [self._catalog, uuid])

    def named(self, work: Work, table: TableName) -> list[str]:
        """The uuids of tables that had this name when the journal last heard of them."""
        rows = work.query(
            "SELECT uuid FROM sparkport_journal_tables "
            "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?",
            [self._catalog, *table],
        )
        return [uuid for (uuid,) in rows]

    def rename(self, work: Work, uuid: str, new: TableName, revision: int) -> None:
        work.change(
            "UPDATE sparkport_journal_tables SET table_namespace = ?, table_name = ?, revision = ? "
            "WHERE catalog_name = ? AND uuid = ?",
            [*new, revision, self._catalog, uuid],
        )

    def follow(self, journal: TableJournal, table: TableName) -> None:
        """Others have renamed the table that a journal knows by another name."""
        with self.changing() as work:
            view, revision = self.advance(work)
            now = view.by_uuid.get(journal.uuid)
            if now is not None and now.table == journal.table:
                self.rename(work, journal.uuid, table, revision)

    def forgotten(self, work: Work, journal: TableJournal, flushed: int) -> TableJournal:
        """A journal without its past, which was that of another table with the same uuid; nothing may wait for that."""
        self._remove_all(work, "flushes", journal.uuid)
        return TableJournal(journal.uuid, journal.table, flushed)

    def written(self, revision: int, journals: Mapping[str, TableJournal]) -> None:
        """What this server has just committed, so that it need not be read back."""
        self._keep(JournalView(revision, journals))

    @property
    def newest(self) -> JournalView:
        """The last state that this server has seen."""
        return self._newest

    # Ids, and whose turn it is to flush

    def new_ids(self, count: int) -> range:
        """Numbers that nobody has had: for rows that are in the journal alone. Taken from the database in blocks."""
        with self._ids_lock:
            if len(self._ids) < count:
                block = max(count, _ID_BLOCK)
                with self._database.transaction(write=True) as work:
                    work.change(
                        "UPDATE sparkport_journal SET next_id = next_id + ? WHERE catalog_name = ?",
                        [block, self._catalog],
                    )
                    rows = work.query("SELECT next_id FROM sparkport_journal WHERE catalog_name = ?", [self._catalog])
                end = int(rows[0][0])
                self._ids = range(end - block, end)
            taken, self._ids = self._ids[:count], self._ids[count:]
            return taken

    def may_flush(self, server: str, seconds: float) -> bool:
        """Whether this server is the one that flushes, for some time. It saves work; nothing depends on it."""
        now = self.clock()
        with self._database.transaction(write=True) as work:
            changed: int = work.change(
                "UPDATE sparkport_journal SET flusher = ?, flushes_until = ? WHERE catalog_name = ? "
                "AND (flusher IS NULL OR flusher = ? OR flushes_until < ? OR flushes_until > ?)",
                [server, now + seconds, self._catalog, server, now, now + 10 * seconds],
            )
        return changed == 1

    def status(self) -> list[JournalStatus]:
        with self._database.transaction() as work:
            rows = work.query(
                "SELECT t.table_namespace, t.table_name, count(*), sum(e.row_count), sum(length(e.body)), "
                "min(e.written_at) FROM sparkport_journal_entries e JOIN sparkport_journal_tables t "
                "ON t.catalog_name = e.catalog_name AND t.uuid = e.uuid WHERE e.catalog_name = ? "
                "GROUP BY t.table_namespace, t.table_name ORDER BY t.table_namespace, t.table_name",
                [self._catalog],
            )
        return [
            JournalStatus(
                table=TableName(schema, name),
                entries=int(entries),
                rows=int(count),
                bytes=int(size),
                oldest=datetime.fromtimestamp(oldest, UTC),
            )
            for schema, name, entries, count, size, oldest in rows
        ]


def _require_format(rows: Rows) -> None:
    """The last column says how a body is written."""
    if newer := [row[-1] for row in rows if row[-1] > FORMAT]:
        raise FailedPrecondition(
            f"the journal was written by a newer sparkport, which this one cannot read: format {newer[0]}, not {FORMAT}"
        )
