"""The journal of a running server: Spark applies it, in the background or when it is asked for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sparkport.catalog.context import CallContext
from sparkport.catalog.journal import Sees
from sparkport.errors import FailedPrecondition, SparkportError
from sparkport.lakehouse.catalogs.journal_apart import tied
from sparkport.lakehouse.catalogs.journal_records import JournalRecords
from sparkport.lakehouse.catalogs.journal_state import JournalStatus
from sparkport.lakehouse.iceberg.edits import Json, set_properties
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import JOURNAL, TableVersion
from sparkport.lakehouse.tables.engine import LakeEngine
from sparkport.lakehouse.tables.journal_flusher import told
from sparkport.lakehouse.write.journal_room import LARGE

__all__ = ["FlushReport", "JournalControl", "TableStatus"]

logger = logging.getLogger(__name__)

_LEASE_SECONDS = 10.0
_STOP_SECONDS = 20.0
_NOT_READY = "Spark is not ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushReport:
    """What Spark has applied."""

    tables: int
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus(JournalStatus):
    """With why it was set apart: it could not be applied the last time, or commits tie it to others that could not."""

    failure: str | None = None
    waits_for: tuple[TableName, ...] = ()


class JournalControl:
    """From ``start`` to ``stop`` what the journal holds is applied every ``seconds`` of its settings."""

    def __init__(self, engine: LakeEngine, *, ready: Callable[[], bool]) -> None:
        self._engine = engine
        self._ready = ready
        self._settings = engine.journal.settings
        self._stopping = threading.Event()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        engine.journal.wake = self._wake

    @property
    def failure(self) -> str | None:
        """Why nothing in the journal could be applied the last time; ``status`` has why single tables could not."""
        return self._engine.journal.room.failure

    @failure.setter
    def failure(self, why: str | None) -> None:
        self._engine.journal.room.failure = why

    @property
    def foreign_changes(self) -> tuple[int, int]:
        """Rows that others had changed, and deleted, past the journal, as flushes of this server have found out."""
        return self._engine.flusher.overwritten, self._engine.flusher.deleted

    def set(self, ctx: CallContext, table: TableName, on: bool) -> None:
        """Let small changes of a table go into the journal, or not any more: then what it holds is applied first."""
        self._records()

        def switched(current: TableVersion) -> Json | None:
            if on and current.no_journal is not None:
                raise current.no_journal
            if current.is_switched_to_journal == on:
                return None
            return set_properties(current.json, {JOURNAL: "true" if on else None}, previous=current.location)

        self._engine.alter(ctx, table, switched, published=False)

    def flush(self, timeout: float | None = None, *, sees: Sees = lambda schema, name: True) -> FlushReport:
        """Apply what the journal holds now, and wait for it. Raises where a table could not be; all others are then."""
        self._records()
        began = time.monotonic()
        flushed = self._engine.flush(timeout)
        flushed.require(sees=sees)
        rows = sum(flushed.rows.values())
        return FlushReport(tables=len(flushed.rows), rows=rows, seconds=time.monotonic() - began)

    def status(self) -> list[TableStatus]:
        """Tables that Spark has something to do for, and why it could not do it."""
        records = self._engine.storage.pointers.journal
        if records is None:
            return []
        noted = self._engine.storage.apart.all()
        groups = tied(self._engine.storage.pointers.cut().journal.pending, noted) if noted else []
        apart = {item.table: item.reason for group in groups for item in group.apart}
        ties = {table: tuple(item.table for item in group.apart) for group in groups for table in group.tables}
        return [
            TableStatus(
                table=item.table,
                entries=item.entries,
                rows=item.rows,
                bytes=item.bytes,
                oldest=item.oldest,
                failure=apart.get(item.table),
                waits_for=() if item.table in apart else ties.get(item.table, ()),
            )
            for item in records.status()
        ]

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
        if held > LARGE * self._settings.limit:
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
                    self.failure = _NOT_READY
                    continue
                if self.failure == _NOT_READY:
                    self.failure = None
                if self._records().may_flush(self._engine.storage.ledger.server, _LEASE_SECONDS):
                    self._engine.flush(every=False)
                self.failure = None
                failing = False
            except Exception as exc:
                self.failure = told(exc)
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
