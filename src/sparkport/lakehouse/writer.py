"""Apply and publish: how staged rows become a snapshot, and the snapshot the table.

Spark makes a snapshot that nobody sees (write-audit-publish). Its counts are checked, and then ``main`` moves to it on
the condition that it still is the snapshot's parent. Writers of one table queue up here; inserts that wait are applied
together. Foreign writers are met by the condition: what they did is looked at, and the statement is applied again.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkport.errors import Conflict, InternalError, TableNotFound, Unavailable
from sparkport.lakehouse.edits import move_main
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.metadata import load
from sparkport.lakehouse.pointers import Edit, Moved, Pointers, TableName
from sparkport.lakehouse.spark import Sessions, translated
from sparkport.lakehouse.spark_sql import quoted

__all__ = ["Applied", "MergeWork", "TableWriter", "Writers"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_GROUP = 64


@dataclass(frozen=True, slots=True)
class Applied:
    """A published change: where the metadata is now, and what the snapshot's summary says."""

    location: str
    summary: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MergeWork:
    """A change by row ids, decided on one snapshot: the SQL, the staged rows, and the counts that must come out."""

    base_snapshot: int | None
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
    deadline: Callable[[], float | None]
    done: threading.Event = field(default_factory=threading.Event)
    result: Applied | None = None
    error: BaseException | None = None


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
        self, path: Path, schema: str, *, rows: int, statement: str | None, remaining: Callable[[], float | None]
    ) -> Applied:
        """Append staged rows. Whoever comes first takes along all that wait by then."""
        mine = _Insert(path, schema, statement, rows, remaining)
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
        timeout = remaining()
        if not self._turn.acquire(timeout=-1 if timeout is None else max(timeout, 0.001)):
            raise Unavailable(f"table '{self._table[1]}' is busy; try again")
        try:
            for _ in range(_ATTEMPTS):
                work = decide()
                if work is None:
                    return 0, None
                applied = self._merge_once(work, statement, remaining)
                if applied is not None:
                    return work.count, applied
        finally:
            self._turn.release()
        raise Conflict(f"table '{self._table[1]}' is changed by others all the time; run the statement again")

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
        batches: OrderedDict[str, list[_Insert]] = OrderedDict()
        for insert in group:
            batches.setdefault(insert.schema, []).append(insert)
        for same in batches.values():
            self._append_all(same)

    def _append_all(self, inserts: list[_Insert]) -> None:
        try:
            applied = self._append(inserts)
        except BaseException as exc:
            if len(inserts) == 1 or isinstance(exc, Unavailable):
                for insert in inserts:
                    insert.error = exc
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
        remaining = inserts[0].deadline
        for _ in range(_ATTEMPTS):
            wap_id = uuid.uuid4().hex
            with self._spark.session(_conf(wap_id, statements), timeout=remaining()) as session:
                fault("apply.before")
                with translated(f"inserting into '{self._table[1]}'"):
                    frame = session.read.schema(inserts[0].schema).parquet(*[str(insert.path) for insert in inserts])
                    frame.writeTo(self._name).option("check-nullability", "false").append()
                fault("apply.after")
            applied = self._publish(wap_id, {"added-records": rows}, None, statements)
            if applied is not None:
                return applied
        raise Conflict(f"table '{self._table[1]}' is changed by others all the time; run the statement again")

    # Merges

    def _merge_once(
        self, work: MergeWork, statement: str | None, remaining: Callable[[], float | None]
    ) -> Applied | None:
        wap_id = uuid.uuid4().hex
        view = f"staged_{wap_id}"
        statements = {} if statement is None else {statement: work.count}
        with self._spark.session(_conf(wap_id, statements), timeout=remaining()) as session:
            fault("apply.before")
            with translated(f"changing '{self._table[1]}'"):
                session.read.schema(work.source_schema).parquet(str(work.staged)).createOrReplaceTempView(view)
                try:
                    session.sql(work.sql(view)).collect()
                finally:
                    session.catalog.dropTempView(view)
            fault("apply.after")
        return self._publish(wap_id, work.expected, (work.base_snapshot,), statements)

    # Publishing

    def _publish(
        self,
        wap_id: str,
        expected: Mapping[str, int],
        base: tuple[int | None] | None,
        statements: Mapping[str, int],
    ) -> Applied | None:
        """Move ``main`` to the staged snapshot; None when somebody moved it first and all has to be done again."""
        while True:
            location = self._pointers.location(self._table)
            if location is None:
                raise TableNotFound(*self._table)
            metadata: dict[str, Any] = dict(load(self._files, location).json)
            staged = next(
                (item for item in metadata["snapshots"] if item.get("summary", {}).get("wap.id") == wap_id), None
            )
            if staged is None:
                # Nothing to write: Spark makes no snapshot when no row was touched.
                raise InternalError(f"Spark made no snapshot of '{self._table[1]}'")
            parent = staged.get("parent-snapshot-id")
            main = metadata.get("refs", {}).get("main", {}).get("snapshot-id")
            if parent != main or (base is not None and parent != base[0]):
                return None
            summary: dict[str, str] = staged["summary"]
            for key, count in expected.items():
                if int(summary.get(key, "0")) != count:
                    raise InternalError(
                        f"table '{self._table[1]}': Spark reports {summary.get(key, '0')} for {key}, not {count}"
                    )
            after = move_main(metadata, staged["snapshot-id"], previous=location)
            fault("publish.before")
            try:
                change = Edit(self._table, metadata, after, location)
                published = self._pointers.commit([change], statements)
            except Moved:
                continue
            fault("publish.after")
            return Applied(published[self._table], summary)


def _conf(wap_id: str, statements: Mapping[str, int]) -> dict[str, str]:
    conf = {"spark.wap.id": wap_id}
    if statements:
        conf["spark.sql.iceberg.snapshot-property.sparkport.statements"] = ",".join(statements)[:4000]
    return conf


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
