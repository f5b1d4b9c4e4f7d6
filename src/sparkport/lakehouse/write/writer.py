"""Apply and publish: how staged rows become a snapshot, and the snapshot the table.

Spark makes a snapshot that nobody sees (write-audit-publish). Its counts are checked, and then ``main`` moves to it on
the condition that it still is the snapshot's parent. Writers of one table queue up here; inserts that wait are applied
together. Foreign writers are met by the condition: what they did is looked at, and the statement is applied again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.errors import AlreadyExists, Conflict, InternalError, NotFound, SparkportError, Unavailable
from sparkport.lakehouse.catalogs.pointers import Edit, Moved, Pointers
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.durable import sync_snapshot
from sparkport.lakehouse.iceberg.edits import move_main
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.spark.server import LostRace, Sessions, translated
from sparkport.lakehouse.spark.sql import quoted
from sparkport.lakehouse.write.staged import (
    LeftInTheOpen,
    allow_staging,
    append_staged,
    can_stage,
    check_counts,
    current_metadata,
    in_the_open,
    marked_snapshot,
    marking,
    merge_staged,
    rows_and_columns,
    stageable,
    take_back,
)

__all__ = ["Applied", "MergeWork", "TableWriter", "Writers"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_GROUP = 64
_SMALL_ROWS = 100_000

_REFUSALS = (AlreadyExists, Conflict, NotFound)
"""What a statement is told that came too late: those who were first may have been this very statement."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A published change: where the metadata is now, and the statements in it with the rows that each has changed."""

    location: str
    statements: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MergeWork:
    """A change by row ids: the SQL, the staged rows, and the counts that must come out.

    ``base`` is the table's rows and columns as they were when it was decided.
    """

    base: tuple[object, ...]
    staged: Path
    source_schema: str
    sql: Callable[[str], str]
    expected: Mapping[str, int]
    count: int


@dataclass(slots=True, eq=False)
class _Insert:
    path: Path
    schema: str
    statement: str | None
    rows: int
    check: Callable[[], None]
    deadline: Callable[[], float | None]
    done: threading.Event = field(default_factory=threading.Event)
    result: Applied | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One try to change a table: as it was when that was decided, the counts that must come out, what is noted."""

    before: TableMetadata
    expected: Mapping[str, int]
    statements: Mapping[str, int]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def conf(self) -> dict[str, str]:
        conf = {"spark.wap.id": self.mark, **marking(self.mark)}
        if self.statements:
            conf["spark.sql.iceberg.snapshot-property.sparkport.statements"] = ",".join(self.statements)[:4000]
        return conf


class TableWriter:
    """All changes that this server makes to one table, one after another."""

    def __init__(
        self, table: TableName, *, catalog: str, pointers: Pointers, files: FileSystem, spark: Sessions
    ) -> None:
        self._table = table
        self._name = quoted(catalog, *table)
        self._pointers = pointers
        self._files = files
        self._spark = spark
        self._turn = threading.Lock()
        self._waiting: list[_Insert] = []
        self._waiting_lock = threading.Lock()

    def insert(
        self,
        path: Path,
        schema: str,
        *,
        rows: int,
        check: Callable[[], None],
        statement: str | None,
        remaining: Callable[[], float | None],
    ) -> Applied:
        """Append staged rows. Whoever comes first takes along all that wait by then.

        ``check`` raises when the table is no longer the one that the rows were made for.
        """
        self._spark.wait_ready(remaining())
        mine = _Insert(path, schema, statement, rows, check, remaining)
        with self._waiting_lock:
            self._waiting.append(mine)
        while not mine.done.is_set():
            if not self._turn.acquire(timeout=0.05):
                if not mine.done.is_set() and _expired(remaining()) and self._withdraw(mine):
                    raise Unavailable(f"table '{self._table[1]}' is busy; try again")
                continue
            try:
                if not mine.done.is_set():
                    self._append_group()
            finally:
                self._turn.release()
        if mine.error is not None:
            raise mine.error
        if mine.result is None:
            raise InternalError("an insert ended without a result")
        return mine.result

    def merge(
        self, decide: Callable[[], MergeWork | None], *, statement: str | None, remaining: Callable[[], float | None]
    ) -> tuple[int, Applied | None]:
        """Change rows by id. ``decide`` looks at the table as it is and says what to do; None means nothing."""
        self._spark.wait_ready(remaining())
        timeout = remaining()
        if not self._turn.acquire(timeout=-1 if timeout is None else max(timeout, 0.001)):
            raise Unavailable(f"table '{self._table[1]}' is busy; try again")
        try:
            try:
                return self._merge(decide, statement, remaining)
            except _REFUSALS:
                done = self._done_elsewhere(statement)
                if statement is None or done is None:
                    raise
                return done.statements[statement], done
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Keep this server's other writers of the table waiting while the block runs."""
        with self._turn:
            yield

    # Inserts

    def _withdraw(self, insert: _Insert) -> bool:
        with self._waiting_lock:
            if insert in self._waiting:
                self._waiting.remove(insert)
                return True
        return False

    def _append_group(self) -> None:
        with self._waiting_lock:
            group, self._waiting = self._waiting[:_GROUP], self._waiting[_GROUP:]
        batches: OrderedDict[tuple[str, int], list[_Insert]] = OrderedDict()
        seen: Counter[str | None] = Counter()
        for insert in group:
            # A statement that is there twice must not be in one commit twice.
            batches.setdefault((insert.schema, seen[insert.statement]), []).append(insert)
            seen[insert.statement] += insert.statement is not None
        for same in batches.values():
            self._append_all(same)

    def _append_all(self, inserts: list[_Insert]) -> None:
        try:
            applied = self._append(inserts)
        except BaseException as exc:
            if len(inserts) == 1 or isinstance(exc, (Unavailable, LeftInTheOpen)):
                for insert in inserts:
                    if isinstance(exc, _REFUSALS):
                        with contextlib.suppress(SparkportError):
                            insert.result = self._done_elsewhere(insert.statement)
                    insert.error = None if insert.result is not None else exc
                    insert.done.set()
                if not isinstance(exc, Exception):
                    raise
                return
            logger.info("an insert of a group of %d failed; each is tried alone", len(inserts))
            for insert in inserts:
                self._append_all([insert])
            return
        for insert in inserts:
            insert.result = applied
            insert.done.set()

    def _append(self, inserts: list[_Insert]) -> Applied:
        rows = sum(insert.rows for insert in inserts)
        statements = {insert.statement: insert.rows for insert in inserts if insert.statement is not None}
        with _together(inserts) as paths:
            return self._append_staged(inserts, paths, rows, statements)

    def _append_staged(
        self, inserts: list[_Insert], paths: list[str], rows: int, statements: Mapping[str, int]
    ) -> Applied:
        def append(session: Any) -> None:
            append_staged(session, self._name, inserts[0].schema, paths)

        for _ in range(_ATTEMPTS):
            attempt = _Attempt(self._stageable(), {"added-records": rows}, statements)
            for insert in inserts:
                insert.check()
            applied = self._apply(attempt, append, _longest(inserts))
            if applied is not None:
                return applied
        raise Conflict(f"table '{self._table[1]}' is changed by others all the time; run the statement again")

    # Merges

    def _merge(
        self, decide: Callable[[], MergeWork | None], statement: str | None, remaining: Callable[[], float | None]
    ) -> tuple[int, Applied | None]:
        for _ in range(_ATTEMPTS):
            work = decide()
            if work is None:
                done = self._done_elsewhere(statement)
                return (0, None) if done is None else (sum(done.statements.values()), done)
            applied = self._merge_once(work, statement, remaining)
            if applied is not None:
                return work.count, applied
        raise Conflict(f"table '{self._table[1]}' is changed by others all the time; run the statement again")

    def _merge_once(
        self, work: MergeWork, statement: str | None, remaining: Callable[[], float | None]
    ) -> Applied | None:
        attempt = _Attempt(self._stageable(), work.expected, {} if statement is None else {statement: work.count})
        if rows_and_columns(attempt.before) != work.base:
            return None

        def merge(session: Any) -> None:
            merge_staged(session, work.source_schema, str(work.staged), work.sql)

        return self._apply(attempt, merge, remaining())

    # Apply and publish

    def _apply(self, attempt: _Attempt, work: Callable[[Any], None], timeout: float | None) -> Applied | None:
        """Let Spark make a snapshot, and publish it; None when others have changed the table meanwhile."""
        try:
            with self._spark.session(attempt.conf(), timeout=timeout) as session:
                fault("apply.before")
                with translated(f"changing '{self._table[1]}'"):
                    work(session)
                fault("apply.after")
        except SparkportError as exc:
            found = self._current()
            if (landed := self._landed(found, attempt)) is not None:
                return landed
            is_race = isinstance(exc, LostRace) or rows_and_columns(found) != rows_and_columns(attempt.before)
            if isinstance(exc, Unavailable) or not is_race:
                raise
            return None
        return self._publish(attempt)

    def _landed(self, found: TableMetadata, attempt: _Attempt) -> Applied | None:
        """What Spark has written in the open: as good as published if it stands where it should, else taken back."""
        base = attempt.before.main_snapshot_id
        while ours := in_the_open(found, attempt.mark, base):
            same_table = rows_and_columns(found)[:2] == rows_and_columns(attempt.before)[:2]
            if not same_table or len(ours) > 1 or ours[0].parent_id != base:
                take_back(self._pointers, self._files, self._table, attempt.mark, base)
                return None
            try:
                check_counts(self._table, ours[0].summary, attempt.expected)
                sync_snapshot(self._files, found.location, ours[0])
                published = self._pointers.commit([stageable(self._table, found)], attempt.statements)
            except Moved:
                found = self._current()
                continue
            except Unavailable as exc:  # all can see the rows: it is done, though that is not noted
                logger.warning("a change of '%s.%s' is not noted for a repeat: %s", *self._table, exc)
                return Applied(found.metadata_location, attempt.statements)
            except SparkportError:
                take_back(self._pointers, self._files, self._table, attempt.mark, base)
                raise
            return Applied(published[self._table], attempt.statements)
        return None

    def _done_elsewhere(self, statement: str | None) -> Applied | None:
        """A statement that another server has committed while it was at it here: its client had sent it to both."""
        if statement is None:
            return None
        count = self._pointers.statement(statement, self._table)
        location = self._pointers.location(self._table)
        return None if count is None or location is None else Applied(location, {statement: count})

    def _current(self) -> TableMetadata:
        return current_metadata(self._pointers, self._files, self._table)

    def _stageable(self) -> TableMetadata:
        """The table as it is. One that was made elsewhere has to be told first: Spark would write it in the open."""
        while True:
            found = self._current()
            if can_stage(found):
                return found
            allow_staging(self._pointers, self._table, found)

    def _publish(self, attempt: _Attempt) -> Applied | None:
        """Move ``main`` to the staged snapshot; None when somebody moved it first and all has to be done again."""
        while True:
            found = self._current()
            location, metadata = found.metadata_location, dict(found.json)
            if rows_and_columns(found) != rows_and_columns(attempt.before):
                return self._landed(found, attempt)
            staged = marked_snapshot(found, self._table, attempt.mark)
            if staged is None or staged.get("parent-snapshot-id") != found.main_snapshot_id:
                return None
            check_counts(self._table, staged["summary"], attempt.expected)
            sync_snapshot(self._files, found.location, found.snapshot(staged["snapshot-id"]))
            after = move_main(metadata, staged["snapshot-id"], previous=location)
            fault("publish.before")
            try:
                change = Edit(self._table, metadata, after, location)
                published = self._pointers.commit([change], attempt.statements)
            except Moved:
                continue
            fault("publish.after")
            return Applied(published[self._table], attempt.statements)


def _longest(inserts: list[_Insert]) -> float | None:
    """Who waits together waits as long as the most patient: none may fail because of another."""
    left = [insert.deadline() for insert in inserts]
    known = [seconds for seconds in left if seconds is not None]
    return max(known) if len(known) == len(left) else None


@contextlib.contextmanager
def _together(inserts: list[_Insert]) -> Iterator[list[str]]:
    """The staged files; many small ones are put into one, because a file costs Spark more than the rows in it."""
    paths = [str(insert.path) for insert in inserts]
    if len(inserts) == 1 or sum(insert.rows for insert in inserts) > _SMALL_ROWS:
        yield paths
        return
    joined = inserts[0].path.with_suffix(".group.parquet")
    try:
        try:
            pq.write_table(pa.concat_tables([pq.read_table(path) for path in paths]), joined, compression="snappy")
        except (pa.ArrowException, OSError) as exc:
            raise InternalError("a staged file of the group cannot be read") from exc
        yield [str(joined)]
    finally:
        with contextlib.suppress(OSError):
            joined.unlink(missing_ok=True)


def _expired(remaining: float | None) -> bool:
    return remaining is not None and remaining <= 0


class Writers:
    """One writer per table, made when it is first needed."""

    def __init__(self, make: Callable[[TableName], TableWriter]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._writers: dict[TableName, TableWriter] = {}

    def of(self, table: TableName) -> TableWriter:
        with self._lock:
            writer = self._writers.get(table)
            if writer is None:
                writer = self._writers[table] = self._make(table)
            return writer

    def forget(self, table: TableName) -> None:
        """A table has been dropped: whoever still waits for its turn keeps the writer that it has."""
        with self._lock:
            self._writers.pop(table, None)

    def tables(self) -> list[TableName]:
        """Tables that this server has written to."""
        with self._lock:
            return list(self._writers)
