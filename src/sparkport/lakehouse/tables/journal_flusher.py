"""Spark applies what the journal holds: one commit for all tables, up to one revision."""

from __future__ import annotations

import contextlib
import logging
import threading
import time

from sparkport.catalog.figures import Distribution
from sparkport.errors import Conflict, InternalError, NotFound, Unavailable
from sparkport.lakehouse.catalogs.journal_state import JournalView
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.tables.storage import Storage
from sparkport.lakehouse.tables.versions import TableVersions
from sparkport.lakehouse.write.change_set import ChangeSet
from sparkport.lakehouse.write.commit_group import CommitRequest
from sparkport.lakehouse.write.committer import Committer
from sparkport.lakehouse.write.journal_flush import JournalFlush, TablePart

__all__ = ["JournalFlusher"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_MOST_BYTES = 48 << 20
_MOST_ROWS = 500_000
"""That are applied at once: new rows have to be in one row group, to stay in their order."""


class JournalFlusher:
    """``overwritten`` and ``deleted`` count rows that others had changed or deleted past the journal, meanwhile."""

    def __init__(self, storage: Storage, versions: TableVersions, committer: Committer) -> None:
        self.overwritten = 0
        self.deleted = 0
        self.seconds = Distribution((0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60))
        self._storage = storage
        self._versions = versions
        self._committer = committer
        self._turn = threading.Lock()

    def flush(self, timeout: float | None, *, until: int | None) -> dict[TableName, int] | None:
        """Apply entries up to a revision: how many rows of which tables; None if there is nothing.

        All tables are brought to one revision, so that whoever reads without the journal sees whole transactions.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if not self._turn.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            raise Unavailable("the journal is being applied; try again")
        try:
            for attempt in range(_ATTEMPTS):
                try:
                    return self._timed_flush(end, until)
                except (Conflict, NotFound):
                    # A table was altered or dropped between the look at it and the commit.
                    if attempt == _ATTEMPTS - 1:
                        raise
        finally:
            self._turn.release()
        return None

    def _timed_flush(self, end: float | None, until: int | None) -> dict[TableName, int] | None:
        began = time.monotonic()
        applied = self._flush(end, until)
        if applied is not None:
            self.seconds.add(time.monotonic() - began)
        return applied

    def _flush(self, end: float | None, until: int | None) -> dict[TableName, int] | None:
        with contextlib.ExitStack() as staged:
            cut = self._storage.pointers.cut()
            revision = _revision(cut.journal, until)
            parts: dict[TableName, TablePart] = {}
            changes: dict[TableName, ChangeSet] = {}
            for journal in cut.journal.pending:
                location, some = cut.tables.get(journal.table), journal.up_to(revision)
                version = None if location is None else self._readable(journal.table, location)
                if version is not None and version.uuid == journal.uuid and some.entries:
                    parts[journal.table] = TablePart(version, some)
                    changes[journal.table] = parts[journal.table].change_set(self._storage.staging)
                    staged.callback(changes[journal.table].discard)
            if not parts:
                return None

            def remaining() -> float | None:
                return None if end is None else end - time.monotonic()

            self._storage.spark.wait_ready(remaining())
            flush = JournalFlush(self._storage.files, parts)
            self._committer.commit(CommitRequest(changes=changes, flush=flush, remaining=remaining))
            for part in parts.values():
                self._note_foreign_changes(part)
            return {table: part.rows for table, part in parts.items()}

    def _readable(self, table: TableName, location: str) -> TableVersion | None:
        """None for a table whose metadata is lost or damaged: all others must not wait for it."""
        try:
            return self._versions.at(table, location)
        except (NotFound, InternalError) as exc:
            logger.error("the journal of '%s' is kept, and cannot be applied: %s", table, exc)
            return None

    def _note_foreign_changes(self, part: TablePart) -> None:
        overwritten, deleted = part.foreign_changes()
        self.overwritten += overwritten
        self.deleted += deleted
        if overwritten or deleted:
            logger.warning(
                "table '%s' was changed past the journal: %d rows that others had changed are as they were committed "
                "here, and %d that others had deleted stay so",
                part.version.table,
                overwritten,
                deleted,
            )


def _revision(journal: JournalView, until: int | None) -> int:
    """The last one that is applied now: whole commits, and not too many rows and bytes."""
    held, rows, last = 0, 0, 0
    entries = sorted((entry for table in journal.pending for entry in table.entries), key=lambda e: e.revision)
    for entry in entries:
        if until is not None and entry.revision > until:
            break
        if (held > _MOST_BYTES or rows + entry.rows > _MOST_ROWS) and last not in (0, entry.revision):
            break
        held += len(entry.body)
        rows += entry.rows
        last = entry.revision
    return last
