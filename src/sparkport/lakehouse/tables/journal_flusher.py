"""Spark applies what the journal holds: one commit for all tables that can be applied, up to one revision.

A table that cannot be is set apart, together with those that waiting commits tie to it, and all others go on without
them. Who is to blame is found out by trying: whatever goes wrong for several is tried again for each alone.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sparkport.catalog.figures import Distribution
from sparkport.catalog.journal import Sees
from sparkport.errors import Conflict, FailedPrecondition, NotFound, SparkportError, Unavailable, without_places
from sparkport.lakehouse.catalogs.journal_apart import Tied, tied
from sparkport.lakehouse.catalogs.journal_state import Entry, TableJournal
from sparkport.lakehouse.catalogs.pointers import Cut
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.tables.journal_orphans import Orphans
from sparkport.lakehouse.tables.storage import Storage
from sparkport.lakehouse.tables.versions import TableVersions
from sparkport.lakehouse.write.change_set import ChangeSet
from sparkport.lakehouse.write.commit_request import CommitRequest
from sparkport.lakehouse.write.committer import Committer
from sparkport.lakehouse.write.journal_flush import JournalFlush, TablePart

__all__ = ["Flushed", "JournalFlusher", "told"]

logger = logging.getLogger(__name__)

_MOST_NAMED = 5
_MOST_BYTES = 48 << 20
_MOST_ROWS = 500_000
"""That are applied at once: new rows have to be in one row group, to stay in their order."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """How many rows of which tables were applied, and which tables could not be.

    ``left`` are those too that are tied to one of these ``failures``.
    """

    rows: Mapping[TableName, int] = field(default_factory=dict)
    failures: Mapping[TableName, BaseException] = field(default_factory=dict)
    left: Collection[TableName] = ()

    def require(self, tables: Collection[TableName] = (), *, sees: Sees = lambda schema, name: False) -> None:
        """Raise where something is left. Whoever asked for some ``tables`` is told of these, and of others he sees."""
        if not self.failures:
            return
        named = [table for table in sorted(self.failures) if table in tables or sees(*table)][:_MOST_NAMED]
        parts = [f"table '{table}' could not be published: {told(self.failures[table])}" for table in named]
        parts += [
            f"table '{table}' could not be published: commits that wait tie it to a table that cannot be"
            for table in sorted(self.left)
            if table in tables and table not in self.failures
        ]
        if not tables and (rest := len(self.failures) - len(named)):
            parts.append(
                f"{rest} {'more ' if named else ''}{'table' if rest == 1 else 'tables'} could not be published"
            )
        is_passing = all(isinstance(why, Unavailable) for why in self.failures.values())
        raise (Unavailable if is_passing else FailedPrecondition)(f"{'; '.join(parts)}. What waits is kept")


def told(why: BaseException) -> str:
    """What clients are told of a failure: the log has all of it."""
    return without_places(why.message) if isinstance(why, SparkportError) else "internal error; the log has more"


@dataclass(slots=True)
class _Run:
    """One flush, of what the journal held when it began."""

    until: int
    rows: Counter[TableName] = field(default_factory=Counter)
    failures: dict[TableName, BaseException] = field(default_factory=dict)
    left: set[TableName] = field(default_factory=set)
    alone: set[TableName] = field(default_factory=set)
    """Those that one of several must be to blame among."""
    tries: int = 0
    """Of the same, one after the other."""


class JournalFlusher:
    """``overwritten`` and ``deleted`` count rows that others had changed or deleted past the journal, meanwhile."""

    def __init__(self, storage: Storage, versions: TableVersions, committer: Committer, *, pace: float) -> None:
        """``pace`` is after how many seconds a table that could not be applied is tried again for the first time."""
        self.overwritten = 0
        self.deleted = 0
        self.seconds = Distribution((0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60))
        self._storage = storage
        self._versions = versions
        self._committer = committer
        self._orphans = Orphans(storage, versions)
        self._pace = pace
        self._freed = threading.Condition()
        self._busy: set[TableName] = set()
        self._ended = 0

    def flush(
        self,
        timeout: float | None = None,
        *,
        of: Collection[TableName] | None = None,
        every: bool = True,
        check: Callable[[], None] = lambda: None,
    ) -> Flushed:
        """Apply what the journal holds by now: of all tables, or of some and those that are tied to them.

        Those that go together are brought to one revision, so that whoever reads without the journal sees whole
        transactions. Not ``every``: tables that are set apart are left until they are due. ``check`` may end it. What
        it raises is about no table: Spark or the catalog is not there, or there is no more time.
        """
        end = None if timeout is None else time.monotonic() + timeout
        run = _Run(self._storage.pointers.cut().journal.revision)
        while True:
            check()
            with self._taken(lambda cut: self._waiting(cut, run, of, every), run.alone, end) as (cut, batch):
                if not batch:
                    return Flushed(run.rows, run.failures, run.left)
                self._flush_some(cut, batch, run, end)

    @contextlib.contextmanager
    def _taken(
        self, look: Callable[[Cut], list[Tied]], alone: Collection[TableName], end: float | None
    ) -> Iterator[tuple[Cut, list[Tied]]]:
        """Some of what there is to do, whose tables no other flush of this server is at: nobody waits for all others.

        All together that nothing is known against; then the rest, one by one.
        """
        while True:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise Unavailable("the journal could not be applied in time; it is kept")
            ended, cut = self._ended, self._storage.pointers.cut()
            groups = look(cut)
            with self._freed:
                if self._ended != ended:
                    continue  # what was seen may be done by now
                free = [group for group in groups if self._busy.isdisjoint(group.tables)]
                if free or not groups:
                    batch = [group for group in free if not group.apart and group.tables.isdisjoint(alone)] or free[:1]
                    tables = {table for group in batch for table in group.tables}
                    self._busy |= tables
                    break
                self._freed.wait(left)
        try:
            yield cut, batch
        finally:
            with self._freed:
                self._busy -= tables
                self._ended += bool(tables)
                self._freed.notify_all()

    def _waiting(self, cut: Cut, run: _Run, of: Collection[TableName] | None, every: bool) -> list[Tied]:
        """What this flush has still to do."""
        apart, pending = self._storage.apart, cut.journal.pending
        noted, there = apart.all(), {(journal.uuid, journal.table) for journal in pending}
        if over := [key for item in noted if (key := (item.uuid, item.table)) not in there]:
            apart.forget(over)
        now, waiting = time.time(), [journal.up_to(run.until) for journal in pending]
        return [
            group
            for group in tied((journal for journal in waiting if journal.entries), noted)
            if (of is None or not group.tables.isdisjoint(of))
            and run.left.isdisjoint(group.tables)
            and (every or all(item.is_due(now) for item in group.apart))
        ]

    def _flush_some(self, cut: Cut, batch: Sequence[Tied], run: _Run, end: float | None) -> None:
        failures: dict[TableName, BaseException] = {}
        began = time.monotonic()
        try:
            applied = self._apply(cut, batch, end, failures)
        except Exception as exc:
            self._require_working(end, exc)
            run.tries += 1
            if run.tries < _attempts(exc):
                return
            run.tries = 0
            if len(batch) == 1:
                self._set_apart(batch[0], failures or dict.fromkeys(batch[0].tables, exc), run)
            else:
                blamed = [group for group in batch if not group.tables.isdisjoint(failures)] or batch
                run.alone.update(table for group in blamed for table in group.tables)
            return
        run.tries = 0
        if applied:
            self.seconds.add(time.monotonic() - began)
            run.rows.update(applied)
        if known := [(item.uuid, item.table) for group in batch for item in group.apart if item.table in applied]:
            self._storage.apart.forget(known)
            for _, table in known:
                logger.info("table '%s' is set apart no longer: what the journal held of it is applied", table)

    def _require_working(self, end: float | None, exc: Exception) -> None:
        """Raise what is no table's fault: nothing can be applied now, or not in the time that there is."""
        if end is not None and time.monotonic() >= end:
            raise Unavailable("the journal could not be applied in time; it is kept") from exc
        try:
            self._storage.spark.wait_ready(0)
        except Unavailable as gone:
            raise gone from exc

    def _set_apart(self, group: Tied, failures: Mapping[TableName, BaseException], run: _Run) -> None:
        run.failures.update(failures)
        run.left |= group.tables
        for journal in group.journals:
            why = failures.get(journal.table)
            if why is None:
                continue
            if self._storage.apart.note(journal, told(why), pace=self._pace) == 1:
                logger.warning(
                    "table '%s' is set apart: what the journal holds of it could not be applied; it is kept, and tried "
                    "again: %s",
                    journal.table,
                    why,
                    exc_info=None if isinstance(why, SparkportError) else why,
                )

    def _apply(
        self, cut: Cut, batch: Sequence[Tied], end: float | None, failures: dict[TableName, BaseException]
    ) -> Mapping[TableName, int]:
        """How many rows of which tables; ``failures`` are told which tables it fails for, where that is known."""
        revision = _revision(entry for group in batch for journal in group.journals for entry in journal.entries)
        with contextlib.ExitStack() as staged:
            parts: dict[TableName, TablePart] = {}
            changes: dict[TableName, ChangeSet] = {}
            settled = False
            for journal in (journal for group in batch for journal in group.journals):
                some = journal.up_to(revision)
                try:
                    version = self._version(cut, journal)
                    if version is None:
                        settled = True
                    elif some.entries:
                        parts[journal.table] = TablePart(version, some)
                        changes[journal.table] = parts[journal.table].change_set(self._storage.staging)
                        staged.callback(changes[journal.table].discard)
                except Exception as exc:
                    failures[journal.table] = exc
            if failures:
                raise next(iter(failures.values()))
            if settled:
                return {}  # what is left is seen by another look

            def remaining() -> float | None:
                return None if end is None else end - time.monotonic()

            if any(change.is_for_spark for change in changes.values()):
                self._storage.spark.wait_ready(remaining())
            flush = JournalFlush(self._storage.files, parts)
            try:
                self._committer.commit(CommitRequest(changes=changes, flush=flush, remaining=remaining))
            except Exception:
                failures.update(flush.failures)
                raise
            for part in parts.values():
                self._note_foreign_changes(part)
            return {table: part.rows for table, part in parts.items()}

    def _version(self, cut: Cut, journal: TableJournal) -> TableVersion | None:
        """None for a table that others have dropped or renamed: the journal knows it no longer, or by its new name."""
        location, records = cut.tables.get(journal.table), self._storage.pointers.journal
        version = None if location is None else self._versions.at(journal.table, location)
        if version is not None and version.uuid == journal.uuid:
            return version
        whole = [item for item in cut.journal.pending if (item.uuid, item.table) == (journal.uuid, journal.table)]
        if records is not None:
            self._orphans.settle(records, whole[0])
        return None

    def _note_foreign_changes(self, part: TablePart) -> None:
        try:
            overwritten, deleted = part.foreign_changes()
        except Exception:  # it is done all the same
            logger.exception("what others have changed in '%s' past the journal is not known", part.version.table)
            return
        with self._freed:
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


def _attempts(exc: Exception) -> int:
    """How often the same is tried before it counts as failed."""
    if isinstance(exc, (Conflict, NotFound)):
        return 5  # a table was altered or dropped between the look at it and the commit
    return 2 if isinstance(exc, Unavailable) else 1  # it may have been done, and the answer was lost


def _revision(waiting: Iterable[Entry]) -> int:
    """The last one that is applied now: whole commits, and not too many rows and bytes."""
    held, rows, last = 0, 0, 0
    for entry in sorted(waiting, key=lambda entry: entry.revision):
        if (held > _MOST_BYTES or rows + entry.rows > _MOST_ROWS) and last not in (0, entry.revision):
            break
        held += len(entry.body)
        rows += entry.rows
        last = entry.revision
    return last
