"""Numbers about a lakehouse: Spark, the queue of commits, the journal, and each table's files and snapshots.

What needs the catalog's database or a metadata file is looked up by a thread now and then, so that whoever asks for the
numbers waits for neither; the same look shows whether the catalog answers at all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sparkport.catalog.figures import Figure
from sparkport.catalog.readiness import Readiness
from sparkport.errors import SparkportError
from sparkport.lakehouse.cache import cache_figures
from sparkport.lakehouse.iceberg.metadata import TableMetadata, load
from sparkport.lakehouse.iceberg.plan import plan
from sparkport.lakehouse.iceberg.totals import Totals
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.spark.server import SparkServer, SparkState
from sparkport.lakehouse.tables.engine import LakeEngine
from sparkport.lakehouse.upkeep.journal_control import JournalControl
from sparkport.lakehouse.upkeep.maintenance import Maintenance

__all__ = ["LakehouseFigures"]

logger = logging.getLogger(__name__)

_MOST_TABLES: Final = 100
_LOOK_SECONDS: Final = 15.0
_REASON_CHARACTERS: Final = 120
_MOST_ASKED: Final = 10
_ASK_SECONDS: Final = 60.0
"""Where each table has to be asked for by itself, as of a REST catalog."""


@dataclass(frozen=True, slots=True)
class _TableNumbers:
    """What one metadata file says. Files are counted by their sizes for tables that this server writes to."""

    files: int
    small_files: int | None
    delete_files: int
    snapshots: int
    rows: int
    bytes: int
    compacted: float | None


class LakehouseFigures:
    """``lists_tables``: all tables can be had at once; else only those are told of that this server writes to."""

    def __init__(
        self,
        engine: LakeEngine,
        spark: SparkServer,
        maintenance: Maintenance,
        journal: JournalControl,
        *,
        lists_tables: bool,
        most_tables: int = _MOST_TABLES,
    ) -> None:
        self._engine = engine
        self._spark = spark
        self._maintenance = maintenance
        self._journal = journal
        self._lists_tables = lists_tables
        self.most_tables = most_tables
        """Of so many something is told: labels must not become very many."""
        self._known: dict[tuple[TableName, str, bool], _TableNumbers] = {}
        self._seen: list[Figure] = []
        self._failure = ""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="figures", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Safe to repeat."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(5)

    def readiness(self) -> Readiness:
        state = self._spark.state
        writes = state is SparkState.READY
        if self._failure:
            return Readiness(False, False, self._failure)
        if writes and self._spark.tasks.is_late:
            return Readiness(True, False, "Spark has no place for another task")
        return Readiness(True, writes, "" if writes else f"Spark is {state.value}")

    def current(self) -> Iterator[Figure]:
        """What is known now, and of tables what was seen at the last look."""
        yield from self._spark_figures()
        committer = self._engine.committer
        yield Figure("commits_waiting", "Commits that wait for their turn", committer.waiting())
        yield Figure("commit_group_size", "Statements that were committed together", committer.group_sizes)
        if self._engine.storage.pointers.journal is not None:
            sizes, seconds = self._engine.journal.group_sizes, self._engine.flusher.seconds
            yield Figure("journal_group_size", "Commits that went into the journal together", sizes)
            yield Figure("journal_publish_seconds", "How long it took to publish what the journal held", seconds)
        yield Figure(
            "staged_bytes", "What open transactions hold until they are committed", self._engine.workspace.bytes_held()
        )
        yield from cache_figures()
        yield from self._seen

    def _spark_figures(self) -> Iterator[Figure]:
        spark, state = self._spark, self._spark.state
        states = {item.value: float(item is state) for item in SparkState}
        yield from Figure.by_label("spark_state", "Spark's state: 1 for the one that it is in", "state", states)
        yield Figure("spark_restarts", "How often Spark was started again", max(spark.generation - 1, 0), total=True)
        sessions = self._engine.storage.spark
        yield Figure("spark_jobs", "Jobs that Spark works on", len(sessions.jobs()))
        yield Figure("spark_sessions_in_use", "Sessions of Spark that are lent", sessions.in_use)

    # The looks

    def _run(self) -> None:
        while True:
            self.look()
            if self._stopping.wait(_LOOK_SECONDS if self._lists_tables else _ASK_SECONDS):
                return

    def look(self) -> None:
        try:
            self._seen = [*self._journal_figures(), *self._table_figures()]
            self._failure = ""
        except SparkportError as exc:
            logger.debug("the catalog cannot be looked at: %s", exc)
            self._failure = "the catalog does not answer"
        except Exception:
            logger.exception("looking at the tables failed")

    def _journal_figures(self) -> Iterator[Figure]:
        if self._engine.storage.pointers.journal is None:
            return
        waiting = self._journal.status()
        oldest = min((part.oldest.timestamp() for part in waiting if part.oldest is not None), default=None)
        lag = 0.0 if oldest is None else max(time.time() - oldest, 0.0)
        yield Figure("journal_entries", "Commits in the journal", sum(part.entries for part in waiting))
        yield Figure("journal_rows", "Rows in the journal", sum(part.rows for part in waiting))
        yield Figure("journal_bytes", "Bytes in the journal", sum(part.bytes for part in waiting))
        yield Figure("journal_lag_seconds", "For how long the oldest entry of the journal has waited", lag)
        apart = [part for part in waiting if part.failure is not None or part.waits_for]
        yield Figure("journal_tables_set_apart", "Tables that cannot be published, or are tied to one", len(apart))
        for part in apart[: self.most_tables]:
            reason = part.failure or f"waits for {', '.join(map(str, part.waits_for))}"
            labels = {"table": str(part.table), "reason": " ".join(reason.split())[:_REASON_CHARACTERS]}
            yield Figure("journal_table_set_apart", "1 for a table that cannot be published, with why", 1, labels)

    def _table_figures(self) -> Iterator[Figure]:
        written = self._engine.committer.written()
        places = self._places(written)
        known: dict[tuple[TableName, str, bool], _TableNumbers] = {}
        for table, place in places.items():
            key = (table, place, table in written)
            try:
                known[key] = self._known.get(key) or self._numbers(*key)
            except SparkportError as exc:  # it was dropped, or is of a kind that only Spark reads
                logger.debug("table '%s' cannot be looked at: %s", table, exc)
        self._known = known
        yield Figure("tables_told", "Tables whose numbers are told", len(known))
        for (table, _, _), numbers in known.items():
            yield from self._of_table(table, numbers)

    def _places(self, written: list[TableName]) -> dict[TableName, str]:
        """The newest metadata of at most so many tables, those that are written to first."""
        pointers = self._engine.storage.pointers
        if self._lists_tables:
            listed = pointers.cut().tables
            names = dict.fromkeys([*(t for t in written if t in listed), *sorted(listed)])
            return {table: listed[table] for table in list(names)[: self.most_tables]}
        found = {table: pointers.location(table) for table in written[-_MOST_ASKED:]}
        return {table: place for table, place in found.items() if place is not None}

    def _numbers(self, table: TableName, place: str, count_sizes: bool) -> _TableNumbers:
        files = self._engine.storage.files
        metadata = load(files, place)
        summary = _of_summary(metadata)
        small = None
        if count_sizes:
            limit = self._maintenance.settings.small_file_bytes
            small = sum(file.size < limit for file in plan(files, metadata, metadata.main_snapshot_id).files)
        compactions = [item.timestamp_ms / 1000 for item in metadata.snapshots if item.operation == "replace"]
        return _TableNumbers(
            files=summary("total-data-files"),
            small_files=small,
            delete_files=summary("total-delete-files"),
            snapshots=len(metadata.snapshots),
            rows=summary("total-records"),
            bytes=summary("total-files-size"),
            compacted=max(compactions, default=None),
        )

    def _of_table(self, table: TableName, numbers: _TableNumbers) -> Iterable[Figure]:
        labels = {"table": str(table)}
        yield Figure("table_files", "Data files of a table", numbers.files, labels)
        if numbers.small_files is not None:
            yield Figure("table_small_files", "Data files that compaction counts as small", numbers.small_files, labels)
        yield Figure("table_delete_files", "Delete files of a table", numbers.delete_files, labels)
        yield Figure("table_snapshots", "Snapshots of a table", numbers.snapshots, labels)
        yield Figure("table_rows", "Rows of a table's data files, deleted ones too", numbers.rows, labels)
        yield Figure("table_bytes", "Bytes of a table's files", numbers.bytes, labels)
        times = [at for at in (numbers.compacted, self._maintenance.finished.get(table)) if at is not None]
        if times:
            text = "When a table was last maintained"
            yield Figure("table_maintained_timestamp_seconds", text, max(times), labels)


def _of_summary(metadata: TableMetadata) -> Callable[[str], int]:
    """What the newest snapshot says of itself; others may have written nothing, or nonsense, there."""
    snapshot, totals = metadata.main_snapshot_id, Totals(metadata)
    return lambda name: 0 if snapshot is None else totals.number(snapshot, name) or 0
