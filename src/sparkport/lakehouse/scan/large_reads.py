"""Reads that hold much at a time: a page of a file that decodes to hundreds of megabytes, lists of very uneven lengths.

As long as there is room, such a read goes on while its rows are on their way out. Where there is none, it waits for its
turn, runs to its end and leaves its rows on disk: a reader that has stopped asking then holds none of it in memory.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final

import pyarrow as pa

from sparkport.catalog.disk_errors import disk_error
from sparkport.errors import Cancelled, ResourceExhausted
from sparkport.lakehouse.scan.decoded import Share

__all__ = ["LargeReads"]

_WAIT_SECONDS: Final = 0.05


@contextmanager
def _disk() -> Iterator[None]:
    """Errors of the disk on which rows wait: they are not about the table's files, and tell no path."""
    try:
        yield
    except OSError as exc:
        raise disk_error(exc, "rows of a large scan that wait for their reader") from exc


def _release() -> None:
    """What a large read has left: Arrow keeps it for the next one, and the next may be somebody else's."""
    pa.default_memory_pool().release_unused()


class LargeReads:
    """Called from all threads."""

    def __init__(self, share: Share, *, temp_directory: str | None = None) -> None:
        self._share = share
        self._directory = temp_directory
        self.turn = threading.Lock()
        """Held by the one that reads."""
        self._count = threading.Lock()
        self.on_disk = 0
        """Bytes of rows that wait for their readers."""

    def read(
        self, batches: Generator[pa.RecordBatch, None, None], *, held: int, stopped: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        """The same batches. ``held`` is what reading them holds at most, about; ``stopped`` tells that nobody wants
        them any more."""
        with closing(batches):
            small = held <= self._share.room.small_shares * self._share.bytes and self._share.reserve(held, small=True)
            if small or self._share.reserve(held):
                try:
                    yield from batches
                finally:
                    self._share.give_back(held, small=small)
                    if not small:
                        batches.close()
                        _release()
            else:
                yield from self._by_way_of_disk(batches, stopped)

    def _by_way_of_disk(
        self, batches: Generator[pa.RecordBatch, None, None], stopped: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        with _disk():
            handle, path = tempfile.mkstemp(prefix="sparkport-rows-", dir=self._directory)
        os.close(handle)
        size = 0
        try:
            try:
                with self._one_at_a_time(stopped):
                    try:
                        with closing(batches):
                            size = self._write(batches, path, stopped)
                    finally:
                        _release()
                with _disk():
                    source = pa.OSFile(path)
            finally:
                with suppress(OSError):
                    os.unlink(path)  # the open file is enough, and it is gone with the process
            if size:
                with source, pa.ipc.open_stream(source) as rows:
                    yield from rows
        finally:
            self._forget(size)

    def _write(self, batches: Generator[pa.RecordBatch, None, None], path: str, stopped: Callable[[], bool]) -> int:
        size = 0
        writer = None
        try:
            with _disk():
                sink = pa.OSFile(path, "wb")
            with sink:
                for batch in batches:
                    if stopped():
                        raise Cancelled("the scan was cancelled")
                    self._remember(batch.nbytes)
                    size += batch.nbytes
                    with _disk():
                        writer = writer or pa.ipc.new_stream(sink, batch.schema)
                        writer.write_batch(batch)
                if writer is not None:
                    with _disk():
                        writer.close()
        except BaseException:
            self._forget(size)
            raise
        return size

    def _remember(self, size: int) -> None:
        most = self._share.room.disk_bytes
        with self._count:
            if self.on_disk + size > most:
                raise ResourceExhausted(
                    f"rows of large scans that wait for their readers take {most} bytes of disk, which is the "
                    "most: read fewer at once"
                )
            self.on_disk += size

    def _forget(self, size: int) -> None:
        with self._count:
            self.on_disk -= size

    @contextmanager
    def _one_at_a_time(self, stopped: Callable[[], bool]) -> Iterator[None]:
        while not self.turn.acquire(timeout=_WAIT_SECONDS):
            if stopped():
                raise Cancelled("the scan was cancelled")
        try:
            yield
        finally:
            self.turn.release()
