"""Rows of a snapshot, read straight from the files by Arrow and DuckDB, with their ids and without what was deleted.

One query reads all files that Arrow does not, mostly; those with large rows are read one by one.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.errors import Cancelled, InvalidArgument, SparkportError, Unsupported
from sparkport.filters.expressions import Expression
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg import prune
from sparkport.lakehouse.iceberg.lineage import ascending
from sparkport.lakehouse.iceberg.manifests import DataFile
from sparkport.lakehouse.iceberg.metadata import IcebergSchema, TableMetadata
from sparkport.lakehouse.iceberg.plan import SnapshotPlan, live_rows
from sparkport.lakehouse.iceberg.small_files import holding
from sparkport.lakehouse.scan.decoded import LARGE_ROW, Share, file_held_bytes, file_row_bytes
from sparkport.lakehouse.scan.deleted_rows import DeletedRows, renamed
from sparkport.lakehouse.scan.direct import DirectScan, read_ahead
from sparkport.lakehouse.scan.duck import DUCKDB_MEMORY, DuckDB, is_broken, translate
from sparkport.lakehouse.scan.large_reads import LargeReads
from sparkport.lakehouse.scan.limits import Room, Ways
from sparkport.lakehouse.scan.query import (
    SEQUENCE,
    WANTED,
    Group,
    Request,
    empty_sql,
    group_files,
    group_sql,
    scattered,
)

__all__ = ["BATCH_ROWS", "HeldSnapshots", "Reader", "RowStream", "SEQUENCE"]

logger = logging.getLogger(__name__)

BATCH_ROWS = 122_880
_VECTOR = 2048  # DuckDB's own portion, of which a query that runs holds a few
_VECTORS_HELD = 3
_INTERRUPT_SECONDS = 0.05
_MANY_SCANS = 16  # of which none reads ahead
_READERS = _MANY_SCANS + 1  # threads that read ahead: one that waits for its turn is in nobody's way
_UNKNOWN_BYTES = 512  # of a row in a file that is elsewhere

# The columns of a query follow from its text alone; asking takes longer than to read a small file.
_schemas: BoundedCache[tuple[str, ...], pa.Schema] = BoundedCache(100_000, weigh=len)


class Unfiltered:
    """Scans that were read without their filter, because DuckDB refused it: right, and far more than was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """By the class of the error."""

    def note(self, cause: duckdb.Error) -> None:
        """Into the log the first time, then each time that there are ten times as many."""
        error_class = type(cause).__name__
        with self._lock:
            self.counts[error_class] += 1
            count = self.counts[error_class]
        if str(count).strip("0") == "1":
            logger.warning("a scan is read without its filter (number %d for a %s): %s", count, error_class, cause)


class Reader:
    """Scans of snapshots. Safe to use from several threads."""

    def __init__(
        self,
        fs: FileSystem,
        *,
        memory_limit: str = DUCKDB_MEMORY,
        threads: int | None = None,
        temp_directory: str | None = None,
        ways: Ways | None = None,
        room: Room | None = None,
    ) -> None:
        self.ways = ways or Ways()
        self.unfiltered = Unfiltered()
        self._fs = fs
        self._duckdb = DuckDB(memory_limit=memory_limit, threads=threads, temp_directory=temp_directory)
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="sparkport-read")
        self.share = Share(room)
        self.large_reads = LargeReads(self.share, temp_directory=temp_directory)
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[RowStream] = weakref.WeakSet()
        self._held: weakref.WeakSet[HeldSnapshots] = weakref.WeakSet()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._duckdb.close()

    def reading(self, table_uuid: str) -> set[int]:
        """Snapshots of a table that scans under way read from."""
        with self._lock:
            streams, held = list(self._streams), list(self._held)
        snapshot_ids = {
            stream.snapshot_id for stream in streams if stream.table_uuid == table_uuid and not stream.closed
        }
        for several in held:
            if several.table_uuid == table_uuid and not several.closed:
                snapshot_ids |= several.snapshot_ids
        return {snapshot_id for snapshot_id in snapshot_ids if snapshot_id is not None}

    def all_reading(self) -> dict[str, set[int]]:
        """The same for all tables, by uuid."""
        with self._lock:
            uuids = {stream.table_uuid for stream in self._streams} | {held.table_uuid for held in self._held}
        return {table: self.reading(table) for table in uuids}

    def hold(self, table_uuid: str, snapshot_ids: Collection[int]) -> HeldSnapshots:
        """Keep snapshots from being expired until the answer is closed: they will be read one after the other."""
        held = HeldSnapshots(table_uuid, frozenset(snapshot_ids))
        with self._lock:
            self._held.add(held)
        return held

    def scan(
        self,
        metadata: TableMetadata,
        plan: SnapshotPlan,
        *,
        schema: IcebergSchema | None = None,
        columns: Sequence[str] | None = None,
        filter: Expression | None = None,  # noqa: A002 - the word of scan requests
        row_ids: NDArray[np.int64] | None = None,
        without: NDArray[np.int64] | None = None,
        row_id: bool = False,
        sequence: bool = False,
        skips_only: bool = False,
    ) -> RowStream:
        """The rows of a plan's files, in the order in which they were written.

        ``schema`` is the one to read with, unless told the one that belongs to the snapshot; ``columns`` are names
        in it. ``row_id`` and ``sequence`` add the columns ``rowid`` and ``_last_updated_sequence_number`` at the end.
        ``filter`` may be applied or not, or in part, and ``skips_only`` says that nobody cares for single rows;
        ``row_ids`` (read only these) and ``without`` (leave these out) always are. Raises Unsupported where only Spark
        reads a file right.
        """
        chosen = metadata.schema_of(plan.snapshot_id) if schema is None else schema
        request = Request(
            metadata=metadata,
            schema_fields=tuple(chosen["fields"]),
            fields=_fields(chosen, columns),
            filter=filter,
            row_id=row_id,
            sequence=sequence,
            row_ids=None if row_ids is None else ascending(row_ids),
            without=None if without is None or not len(without) else ascending(without),
            skips_only=skips_only,
            ways=self.ways,
        )
        files = list(plan.files)
        if filter is not None:
            files = prune.by_filter(plan.index, metadata, schema=chosen, filter=filter)
        if request.row_ids is not None:
            files = prune.by_row_ids(plan.index if filter is None else files, request.row_ids)
            files = holding(self._fs, files, request.row_ids)
        for file in files:
            if file.equality_deletes or file.format != "parquet":
                raise Unsupported(f"only Spark can read '{file.path}': it is no Parquet, or has equality deletes")
        stream = RowStream(
            self._fs,
            self._duckdb,
            self._pool,
            request=request,
            files=files,
            share=self.share,
            large=self.large_reads,
            unfiltered=self.unfiltered,
        )
        stream.snapshot_id = plan.snapshot_id
        with self._lock:
            self._streams.add(stream)
        return stream


def _fields(schema: IcebergSchema, columns: Sequence[str] | None) -> tuple[Any, ...]:
    if columns is None:
        return tuple(schema["fields"])
    by_name = {field["name"]: field for field in schema["fields"]}
    if missing := [name for name in columns if name not in by_name]:
        raise InvalidArgument(f"column '{missing[0]}' not found")
    return tuple(by_name[name] for name in columns)


class HeldSnapshots:
    def __init__(self, table_uuid: str, snapshot_ids: frozenset[int]) -> None:
        self.table_uuid = table_uuid
        self.snapshot_ids = snapshot_ids
        self.closed = False

    def close(self) -> None:
        self.closed = True


class RowStream:
    """Arrow batches on their way out: iterate once, close always. ``close`` may be called from another thread."""

    def __init__(
        self,
        fs: FileSystem,
        database: DuckDB,
        pool: Executor,
        *,
        request: Request,
        files: list[DataFile],
        share: Share,
        large: LargeReads,
        unfiltered: Unfiltered,
    ) -> None:
        self._fs = fs
        self._duckdb = database
        self._pool = pool
        self._request = request
        self._files = files
        self.snapshot_id: int | None = None
        self._groups = group_files(fs, request, files)
        self._schema: pa.Schema | None = None
        self._state = threading.Lock()
        self._reading = threading.Lock()
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._closed = False
        self._share = share
        self._counted = False
        self._large = large
        self._unfiltered = unfiltered

    @property
    def table_uuid(self) -> str:
        return self._request.metadata.uuid

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def files(self) -> list[DataFile]:
        """The files that are left to be read after pruning."""
        return list(self._files)

    @property
    def total_rows(self) -> int:
        """How many rows come at most."""
        return sum(map(live_rows, self._files))

    @property
    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._schema = self._translated(self._find_schema)
        return self._schema

    def _find_schema(self) -> pa.Schema:
        text, names = empty_sql(self._request), self._request.names

        def ask() -> pa.Schema:
            with self._duckdb.cursor() as cursor:
                answered = cursor.sql(text).to_arrow_table().schema
            return pa.schema([answered.field(number).with_name(name) for number, name in enumerate(names)])

        return _schemas.get((text, *names), ask)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with self._state:
            if not self._closed and not self._counted:
                self._counted = True
                self._share.enter()
        try:
            for group in chain.from_iterable(scattered(self._request, group) for group in self._groups):
                rest = yield from self._read_directly(group)
                if rest:
                    for part, size in self._by_size(replace(group, files=rest)):
                        yield from self._read_sized(part, size)
        finally:
            self.close()

    def close(self) -> None:
        """Stop, whatever the stream is doing. A reader in the middle of a batch gets Cancelled."""
        with self._state:
            self._closed = True
            if self._counted:
                self._counted = False
                self._share.leave()
        self._interrupt()
        # A read under way must not lose its cursor. Interrupt until it has come back: one that was about to start
        # when it was interrupted did not notice.
        while not self._reading.acquire(timeout=_INTERRUPT_SECONDS):
            self._interrupt()
        try:
            cursor, self._cursor = self._cursor, None
        finally:
            self._reading.release()
        if cursor is not None:
            cursor.close()

    def _interrupt(self) -> None:
        with self._state:
            if self._cursor is not None:
                self._cursor.interrupt()

    def _read_directly(self, group: Group) -> Generator[pa.RecordBatch, None, list[DataFile]]:
        """What Arrow can read; the files that are left are returned."""
        if group.nodes is not None or group.pages or not group.files:
            return group.files
        scan = DirectScan(
            self._fs,
            self._request,
            group.files,
            schema=self.schema,
            rows=BATCH_ROWS,
            share=self._share,
            large=self._large,
            stopped=lambda: self._closed,
        )
        alone = scan.is_small or self._share.scans > _MANY_SCANS
        batches = scan.batches() if alone else read_ahead(self._pool, scan.batches())
        with closing(batches):
            while (batch := self._next(batches)) is not None:
                yield batch
        return scan.rest

    def _by_size(self, group: Group) -> Iterator[tuple[Group, int]]:
        """Files of a group that one query may read, and what a row of them takes at most; those with large rows are
        by themselves."""
        field_ids = {field["id"] for field in self._request.fields}
        together: list[DataFile] = []
        largest = 0
        for file in group.files:
            size = file_row_bytes(file, field_ids) or _UNKNOWN_BYTES
            if size > LARGE_ROW:
                if together:
                    yield replace(group, files=together), largest
                yield replace(group, files=[file]), size
                together, largest = [], 0
                continue
            together.append(file)
            largest = max(largest, size)
        if together:
            yield replace(group, files=together), largest

    def _read_sized(self, group: Group, size: int) -> Iterator[pa.RecordBatch]:
        """A query that runs holds thousands of rows while its reader does something else: of large ones not all may."""
        rows = max(1, min(BATCH_ROWS, self._share.bytes // size))
        rows -= rows % _VECTOR if rows > _VECTOR else 0
        wanted, whole = self._request.row_ids, sum(file.record_count for file in group.files)
        held = size * min(_VECTORS_HELD * _VECTOR, whole if wanted is None else len(wanted))
        field_ids = {field["id"] for field in self._request.fields}
        held = max(held, *(file_held_bytes(file, field_ids) for file in group.files))
        yield from self._large.read(self._read(group, rows), held=held, stopped=lambda: self._closed)

    def _read(self, group: Group, rows: int) -> Generator[pa.RecordBatch, None, None]:
        schema, drop = self.schema, DeletedRows(self._fs, self._request, group)
        try:
            reader = self._start(group, rows, filtered=True)
        except SparkportError as exc:
            if isinstance(exc, Cancelled) or self._request.filter is None:
                raise
            if not isinstance(exc.__cause__, duckdb.Error) or is_broken(exc.__cause__):
                raise
            self._unfiltered.note(exc.__cause__)
            reader = self._start(group, rows, filtered=False)
        while (batch := self._next(reader)) is not None:
            batch = drop.apply(batch)
            if batch.num_rows:
                yield renamed(batch, schema)

    def _next(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        with self._reading:
            if self._closed:
                raise Cancelled("the scan was cancelled")
            return self._translated(lambda: next(batches, None))

    def _start(self, group: Group, rows: int, *, filtered: bool) -> Any:
        text = group_sql(self._fs, self._request, group, filtered=filtered)
        with self._reading:
            with self._state:
                if self._closed:
                    raise Cancelled("the scan was cancelled")
                previous, self._cursor = self._cursor, self._duckdb.cursor()
                cursor = self._cursor
            if previous is not None:
                previous.close()

            def start() -> Any:
                for file in group.files:
                    self._fs.register(cursor, file.path)
                if self._request.row_ids is not None:
                    cursor.register(WANTED, pa.table({"id": self._request.row_ids}))
                return cursor.sql(text).to_arrow_reader(rows)

            return self._translated(start)

    def _translated(self, work: Any) -> Any:
        try:
            return work()
        except Exception as exc:  # stores raise what they like, and it comes through DuckDB as it is
            if is_broken(exc):
                self._duckdb.replace()
            raise translate(exc) from exc
