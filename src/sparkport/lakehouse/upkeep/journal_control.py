"""The journal of a running server: Spark applies it, in the background or when it is asked for."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow.parquet as pq

from sparkport.catalog.context import CallContext
from sparkport.errors import (
    Conflict,
    FailedPrecondition,
    InternalError,
    NotFound,
    SparkportError,
    TableNotFound,
    Unavailable,
    without_places,
)
from sparkport.lakehouse.catalogs.journal_records import JournalRecords
from sparkport.lakehouse.catalogs.journal_state import JournalStatus, TableJournal
from sparkport.lakehouse.catalogs.pointers import Edit, Moved
from sparkport.lakehouse.iceberg.edits import set_properties
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import JOURNAL
from sparkport.lakehouse.tables.engine import LakeEngine
from sparkport.lakehouse.write.journal_flush import as_table

__all__ = ["FlushReport", "JournalControl", "JournalStatus"]

logger = logging.getLogger(__name__)

_LEASE_SECONDS = 10.0
_STOP_SECONDS = 20.0
_NOT_READY = "Spark is not ready"
_LARGE = 0.25
"""Of its limit: a journal that holds more is applied at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushReport:
    """What Spark has applied."""

    tables: int
    rows: int
    seconds: float


class JournalControl:
    """From ``start`` to ``stop`` what the journal holds is applied every ``seconds`` of its settings."""

    def __init__(self, engine: LakeEngine, *, ready: Callable[[], bool], warehouse: str) -> None:
        self._engine = engine
        self._ready = ready
        self._aside = f"{warehouse}/.journal"
        self._settings = engine.journal.settings
        self._stopping = threading.Event()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        engine.journal.wake = self._wake

    @property
    def failure(self) -> str | None:
        """Why what is in the journal could not be applied the last time."""
        return self._engine.journal.failure

    @property
    def foreign_changes(self) -> tuple[int, int]:
        """Rows that others had changed, and deleted, past the journal, as flushes of this server have found out."""
        return self._engine.flusher.overwritten, self._engine.flusher.deleted

    def set(self, ctx: CallContext, table: TableName, on: bool) -> None:
        """Let small changes of a table go into the journal, or not any more: then what it holds is applied first."""
        self._records()
        with self._engine.journal.held(table):
            for _ in range(_ATTEMPTS):
                if self._switched(ctx, table, on):
                    return
        raise Conflict(f"table '{table.name}' is changed by others all the time; try again")

    def _switched(self, ctx: CallContext, table: TableName, on: bool) -> bool:
        """False if it has to be tried again."""
        current = self._engine.versions.current(table)
        if current is None:
            raise TableNotFound(*table)
        if on and current.no_journal is not None:
            raise current.no_journal
        if current.is_switched_to_journal == on:
            return True
        after = set_properties(current.json, {JOURNAL: "true" if on else None}, previous=current.location)
        try:
            moved = self._engine.alter(ctx, Edit(table, current.json, after, current.location), current)
        except Moved:
            return False
        self._engine.views.session_ddl.note(ctx, table, current.location, moved)
        return True

    def flush(self, timeout: float | None = None) -> FlushReport:
        """Apply what the journal holds now, and wait for it."""
        self._records()
        began, tables, rows = time.monotonic(), set[TableName](), 0
        until = self._engine.storage.pointers.cut().journal.revision
        while True:
            left = None if timeout is None else timeout - (time.monotonic() - began)
            if left is not None and left <= 0:
                raise Unavailable("the journal could not be applied in time; it is kept")
            self._put_orphans_aside()
            applied = self._engine.flush(left, until=until)
            if applied is None:
                return FlushReport(tables=len(tables), rows=rows, seconds=time.monotonic() - began)
            tables |= applied.keys()
            rows += sum(applied.values())

    def status(self) -> list[JournalStatus]:
        """Tables that Spark has something to do for."""
        records = self._engine.storage.pointers.journal
        return [] if records is None else records.status()

    # In the background

    def start(self) -> None:
        if self._engine.storage.pointers.journal is not None:
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """What the journal holds is applied if Spark is there; else it stays for the next server. Safe to repeat."""
        self._stopping.set()
        self._wanted.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if self._ready():
            try:
                self.flush(_STOP_SECONDS)
            except Exception as exc:
                logger.warning(
                    "the journal is left for the next server: %s", exc, exc_info=not isinstance(exc, SparkportError)
                )

    def _wake(self, held: int) -> None:
        if held > _LARGE * self._settings.limit:
            self._wanted.set()

    def _run(self) -> None:
        failing = False
        while not self._stopping.is_set():
            self._wanted.wait(self._settings.seconds)
            self._wanted.clear()
            try:
                if self._stopping.is_set() or not self._has_work():
                    continue
                if not self._ready():
                    self._engine.journal.failure = _NOT_READY
                    continue
                if self.failure == _NOT_READY:
                    self._engine.journal.failure = None
                if self._records().may_flush(self._engine.storage.ledger.server, _LEASE_SECONDS):
                    self.flush()
                self._engine.journal.failure = None
                failing = False
            except Exception as exc:
                self._engine.journal.failure = _told(exc)
                if not failing:
                    logger.warning(
                        "the journal could not be applied; it is kept, and tried again: %s",
                        exc,
                        exc_info=not isinstance(exc, SparkportError),
                    )
                failing = True
                self._stopping.wait(min(self._settings.seconds, 1.0))

    def _has_work(self) -> bool:
        return bool(self._engine.storage.pointers.cut().journal.pending)

    def _records(self) -> JournalRecords:
        records = self._engine.storage.pointers.journal
        if records is None:
            raise FailedPrecondition("a REST catalog has no database that could hold a journal")
        return records

    # Tables that others have dropped or renamed

    def _put_orphans_aside(self) -> None:
        cut = self._engine.storage.pointers.cut()
        for journal in cut.journal.pending:
            location = cut.tables.get(journal.table)
            with contextlib.suppress(NotFound, InternalError):  # a table that nobody can read is there all the same
                if location is None or self._engine.versions.at(journal.table, location).uuid != journal.uuid:
                    self._put_aside(journal)

    def _put_aside(self, journal: TableJournal) -> None:
        storage, records = self._engine.storage, self._records()
        for table, location in storage.pointers.cut().tables.items():
            try:
                version = self._engine.versions.at(table, location)
            except (NotFound, InternalError):
                continue
            except SparkportError as exc:  # it may be this one
                logger.warning("where table '%s' is cannot be seen now: %s", journal.table, exc)
                return
            if version.uuid == journal.uuid:
                with records.changing() as work:
                    _, revision = records.advance(work)
                    records.rename(work, journal.uuid, table, revision)
                logger.info("the journal follows table '%s', which is '%s' now", journal.table, table)
                return
        name = "".join(c if c.isalnum() else "_" for c in journal.table.name)[:64]
        place = f"{self._aside}/{name}-{journal.uuid}-{journal.last}.parquet"
        sink = io.BytesIO()
        pq.write_table(as_table(journal), sink)
        with contextlib.suppress(FileExistsError):
            storage.files.write_new(place, sink.getvalue())
        with records.changing() as work:
            view, revision = records.advance(work)
            if (now := view.by_uuid.get(journal.uuid)) is None or now.last != journal.last:
                return  # the next time, with what has come since
            records.remove(work, [journal.uuid], revision)
        logger.error(
            "table '%s' was dropped by others while the journal held changes of it: they are in %s",
            journal.table,
            place,
        )


_ATTEMPTS = 8


def _told(exc: Exception) -> str:
    """What clients are told: the log has all of it."""
    return without_places(exc.message) if isinstance(exc, SparkportError) else "internal error; the log has more"
