"""Several streams read at once and handed out in order: what an engine split for parallel readers, put together again.

Each stream has a lane of bounded length, filled by a worker thread. Workers take the streams in order, so the one
that the consumer waits for always has a worker, and nothing can block for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from sparkport.errors import Cancelled

__all__ = ["BatchSource", "Parallel"]

_WORKERS = 4
_LANE_BATCHES = 4


class BatchSource(Protocol):
    """Batches that can be had once. Nothing is asked of the server before the first one is wanted."""

    def batches(self) -> Generator[pa.RecordBatch, None, None]: ...

    def cancel(self) -> None:
        """Stop, from any thread, at any time. Safe to repeat."""


class _Lane:
    """Batches of one stream on their way from its worker to the consumer."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self._changed = threading.Condition()
        self._batches: deque[pa.RecordBatch] = deque()
        self._ended = False
        self._cancelled = False
        self._error: BaseException | None = None

    def fill(self) -> None:
        try:
            for batch in self._source.batches():
                with self._changed:
                    self._changed.wait_for(lambda: self._cancelled or len(self._batches) < _LANE_BATCHES)
                    if self._cancelled:
                        raise Cancelled("the scan was closed")
                    self._batches.append(batch)
                    self._changed.notify_all()
        except BaseException as exc:  # raised again in the consumer's thread
            self._error = exc
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def drain(self) -> Iterator[pa.RecordBatch]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches or self._ended)
                if not self._batches:
                    break
                batch = self._batches.popleft()
                self._changed.notify_all()
            yield batch
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
        self._source.cancel()


class Parallel:
    """A source made of sources."""

    def __init__(self, sources: Sequence[BatchSource], *, workers: int = _WORKERS) -> None:
        self._lanes = [_Lane(source) for source in sources]
        self._workers = min(workers, len(self._lanes))

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        waiting = iter(self._lanes)
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    lane = next(waiting, None)
                if lane is None:
                    return
                lane.fill()

        for number in range(self._workers):
            threading.Thread(target=work, name=f"sparkport-scan-{number}", daemon=True).start()
        try:
            for lane in self._lanes:
                yield from lane.drain()
        finally:
            self.cancel()

    def cancel(self) -> None:
        for lane in self._lanes:
            lane.cancel()
