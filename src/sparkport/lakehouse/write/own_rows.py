"""The rows of a deferred transaction on their way to one of its readers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.errors import Cancelled

__all__ = ["OwnRows"]


class OwnRows:
    """What a reader puts on top of a table: the ids that are no longer as the table has them, and the rows instead.

    Iterate once, close always. ``close`` may be called from another thread.
    """

    def __init__(
        self,
        hidden: NDArray[np.int64],
        batches: Iterator[pa.RecordBatch],
        *,
        cursor: duckdb.DuckDBPyConnection | None = None,
        translated: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """``cursor`` is where the batches come from, if they come from a database."""
        self.hidden = hidden
        self._cursor = cursor
        self._batches = batches
        self._translated = translated
        self._reading = threading.Lock()
        self._closed = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            with self._reading:  # a connection must not be closed while it is read from
                if self._closed:
                    raise Cancelled("the scan was cancelled")
                with self._translated():
                    batch = next(self._batches, None)
            if batch is None:
                return
            yield batch

    def close(self) -> None:
        self._closed = True
        with self._reading:
            if self._cursor is not None:
                self._cursor.close()
