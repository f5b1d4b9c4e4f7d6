"""Following a table: its changes, version by version, as they are committed, each exactly once.

A version is fetched whole before it is handed out, so that a connection that breaks in the middle of it is not seen: it
is fetched again. What does not fit into a moderate part of the memory waits in a temporary file.
"""

from __future__ import annotations

import logging
import random
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO, TypeVar

import pyarrow as pa

from sparkport.client.results import ScanResult
from sparkport.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable

__all__ = ["Follower", "VersionChanges"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_IN_MEMORY_BYTES = 32 << 20
_LONGEST_PAUSE = 10.0


class VersionChanges:
    """What one version of a table has changed, in the table's columns as they were then; nothing for a compaction.

    To go on later from here, follow the table from this ``version`` with this ``table_id``.
    """

    def __init__(self, table_id: str, version: int, changes: ScanResult) -> None:
        self.table_id = table_id
        self.version = version
        self.schema = changes.schema
        self.num_rows = 0
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - it lives as long
        weakref.finalize(self, self._file.close)
        with changes, pa.ipc.new_stream(self._file, self.schema) as writer:
            for batch in changes:
                writer.write_batch(batch)
                self.num_rows += batch.num_rows

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)

    def read_all(self) -> pa.Table:
        """All of it in memory."""
        return pa.Table.from_batches(list(self), self.schema)

    def __repr__(self) -> str:
        return f"VersionChanges(version={self.version}, num_rows={self.num_rows})"


class Follower:
    """Goes on for ever, waiting for commits. ``close`` ends it, from another thread too."""

    def __init__(
        self,
        head: Callable[[], tuple[str, int | None]],
        changes: Callable[[int, int, str], ScanResult],
        *,
        from_version: int | None,
        table_id: str | None,
        poll_seconds: float,
    ) -> None:
        """``head`` tells a table's id and its version now, ``changes`` those between two versions of one by its id."""
        if not poll_seconds > 0:
            raise InvalidArgument(f"poll_seconds is {poll_seconds}: it must be above 0")
        if from_version is not None and from_version < 0:
            raise InvalidArgument(f"from_version is {from_version}: versions are counted from 0")
        self._head = head
        self._changes = changes
        self._poll_seconds = poll_seconds
        self._closed = threading.Event()
        self._newest = -1
        found, version = head()
        self._table_id = table_id or found
        self._require_same(found)
        if from_version is None and version is None:
            raise FailedPrecondition("the table's versions cannot be counted: name one to follow it from")
        if from_version is not None and version is not None and from_version > version:
            raise NotFound(f"the table has no version {from_version} to follow it from: the newest is {version}")
        self.version = (version or 0) if from_version is None else from_version
        """The last version that was handed out, or that it begins after."""

    def __iter__(self) -> Iterator[VersionChanges]:
        return self

    def __next__(self) -> VersionChanges:
        while self._newest <= self.version:
            if self._closed.is_set():
                raise StopIteration
            found, newest = self._steadily(self._head)
            self._require_same(found)
            self._newest = self._newest if newest is None else newest
            if self._newest <= self.version and self._closed.wait(self._poll_seconds):
                raise StopIteration
        after, table_id = self.version, self._table_id
        changes = self._steadily(lambda: VersionChanges(table_id, after + 1, self._changes(after, after + 1, table_id)))
        self.version = changes.version
        return changes

    def close(self) -> None:
        self._closed.set()

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _require_same(self, found: str) -> None:
        if found != self._table_id:
            raise FailedPrecondition(
                f"the table that is followed (id {self._table_id}) was dropped or replaced: its name is another table's"
            )

    def _steadily(self, work: Callable[[], T]) -> T:
        """As long as the server is away, or on its way down, it is waited for."""
        attempt = 0
        while True:
            if self._closed.is_set():
                raise StopIteration
            try:
                return work()
            except Unavailable as exc:
                attempt += 1
                logger.info("the server is not there (try %d): %s", attempt, exc)
                self._closed.wait(random.uniform(0.5, 1.0) * min(_LONGEST_PAUSE, 0.1 * 2 ** min(attempt, 10)))
