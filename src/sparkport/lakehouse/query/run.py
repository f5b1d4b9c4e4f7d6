"""A query as it runs: Spark writes its rows into Parquet files, which are sent, and removed, one after the other.

Neither side holds more than a few batches, however many rows there are; what Spark is ahead of the reader is on disk.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.catalog.disk_errors import disk_error
from sparkport.errors import Cancelled, Conflict, InternalError, SparkportError
from sparkport.lakehouse.query.columns import stored_names
from sparkport.lakehouse.scan.decoded import bounded_batches

__all__ = ["Progress", "QueryRun", "write_rows"]

logger = logging.getLogger(__name__)

_BATCH_ROWS = 32_768
_BATCH_BYTES = 16 << 20
_LOOK_SECONDS = 0.05
_TELL_SECONDS = 0.5
_OPTIONS = {
    # Each task's file is there when the task is done, and not all of them when the last one is.
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "parquet.block.size": str(16 << 20),
    # A file says how long its rows are only where a value stands in it as often as there are rows with it.
    "parquet.enable.dictionary": "false",
    "parquet.page.size.row.check.min": "1",
    "compression": "lz4_raw",
}


class Progress:
    """What part of a query's tasks is done. It never goes back, though Spark finds more to do as it goes on."""

    def __init__(self) -> None:
        self._stages: dict[int, tuple[int, int]] = {}
        self._part = 0.0

    def __call__(self) -> float | None:
        return self._part

    def heard(self, stages: Any = (), **_: Any) -> None:
        """Spark's report, as pyspark hands it on."""
        for stage in stages or ():
            self._stages[stage.stage_id] = stage.num_tasks, stage.num_completed_tasks
        tasks = sum(count for count, _ in self._stages.values())
        if tasks:
            self._part = max(self._part, min(sum(done for _, done in self._stages.values()) / tasks, 0.99))


def write_rows(session: Any, frame: Any, columns: pa.Schema, folder: Path, heard: Callable[..., None]) -> None:
    """Have Spark run the query. Its reports of how far it is are ``heard``."""
    session.registerProgressHandler(heard)
    try:
        frame.toDF(*stored_names(columns)).write.options(**_OPTIONS).parquet(str(folder))
    finally:
        session.removeProgressHandler(heard)


class QueryRun:
    """``work`` writes into a folder until it is done or ``stop`` was called; it is run by a thread of its own."""

    def __init__(
        self,
        parent: Path,
        columns: pa.Schema,
        *,
        is_ordered: bool,
        work: Callable[[Path], None],
        stop: Callable[[], None],
    ) -> None:
        self._folder = parent / f"query-{uuid.uuid4().hex}"
        self._columns = columns
        self._is_ordered = is_ordered
        self._work = work
        self._stop = stop
        self._closed = threading.Event()
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sparkport-query", daemon=True)

    def _run(self) -> None:
        try:
            self._work(self._folder)
        except BaseException as exc:
            self._error = exc
        finally:
            self._done.set()
            if self._closed.is_set():
                self._remove()

    def close(self) -> None:
        """Safe to repeat, and from any thread."""
        self._closed.set()
        if self._done.is_set() or not self._thread.ident:
            self._remove()
        else:
            self._stop()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self._thread.start()
        seen: dict[str, None] = {}
        since = 0.0
        while True:
            done = self._done.is_set()
            new = [] if self._is_ordered and not done else self._files(seen)
            for path in new:
                yield from self._read(path)
            if done:
                break
            if new:
                since = 0.0
                continue
            self._done.wait(_LOOK_SECONDS)
            since += _LOOK_SECONDS
            if since >= _TELL_SECONDS:
                since = 0.0
                yield pa.RecordBatch.from_pylist([], schema=self._columns)
        self._raise_error()

    def _raise_error(self) -> None:
        if self._closed.is_set():
            raise Cancelled("the query was cancelled")
        if isinstance(self._error, SparkportError):
            raise self._error
        if self._error is not None:
            raise InternalError("the query failed") from self._error

    def _files(self, seen: dict[str, None]) -> list[Path]:
        """The files that have come since, in the order of Spark's tasks."""
        if self._error is not None:  # the rows of a query that has failed are of no use
            return []
        found = sorted(self._folder.glob("part-*.parquet"))
        if any(path.name in seen for path in found):
            # A worker was lost after its rows were here: whether they are the same the second time nobody can say.
            raise Conflict("Spark has run a part of the query twice; run it again")
        seen.update(dict.fromkeys(path.name for path in found))
        return found

    def _read(self, path: Path) -> Iterator[pa.RecordBatch]:
        try:
            with pq.ParquetFile(path) as file:
                for batch in bounded_batches(path, file, rows=_BATCH_ROWS, size=_BATCH_BYTES):
                    yield _typed(batch, self._columns)
                    if self._closed.is_set():
                        raise Cancelled("the query was cancelled")
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        except (OSError, pa.ArrowException) as exc:
            if self._closed.is_set():
                raise Cancelled("the query was cancelled") from exc
            if isinstance(exc, OSError):
                raise disk_error(exc, "the staging folder") from exc
            raise InternalError("the rows that Spark has written cannot be read") from exc


def _typed(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    pairs = zip(batch.columns, columns, strict=True)
    return pa.RecordBatch.from_arrays(
        [column if column.type == field.type else column.cast(field.type) for column, field in pairs], schema=columns
    )
