"""The rows of a statement until its input has ended: few in memory, more in a file that has no name."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from sparkport.catalog.disk_errors import disk_error

__all__ = ["RowSpool"]

_HELD_BYTES = 32 * 1024 * 1024
_BATCH_ROWS = 65_536


class RowSpool:
    """Batches in, the same rows out, in their order and as often as they are wanted.

    The file is gone with the process, whatever becomes of that. One thread uses it; ``close`` is safe to repeat.
    """

    def __init__(self, schema: pa.Schema, folder: Path | None, *, most_held: int = _HELD_BYTES) -> None:
        self.schema = schema
        self.rows = self.nbytes = 0
        self._folder = folder
        self._most_held = most_held
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_bytes >= self._most_held:
            with _disk_errors():
                self._write()

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._file is None:
            yield from _joined(self._held, self.schema)
            return
        with _disk_errors():
            self._write()
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            self._file.flush()
            self._file.seek(0)
            source = pa.PythonFile(self._file, mode="r")
            with pa.ipc.open_stream(source) as reader:
                yield from reader

    def close(self) -> None:
        self._held = []
        writer, self._writer = self._writer, None
        file, self._file = self._file, None
        if writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                writer.close()
        if file is not None:
            file.close()

    def _write(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - it outlives the method
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), self.schema)
        for batch in _joined(self._held, self.schema):
            self._writer.write_batch(batch)
        self._held, self._held_rows, self._held_bytes = [], 0, 0


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Fewer and larger ones: clients send 2,048 rows at a time."""
    if all(batch.num_rows >= _BATCH_ROWS for batch in batches):
        yield from batches
        return
    try:
        whole = pa.Table.from_batches(batches, schema).combine_chunks()
    except pa.ArrowException:  # texts of more than Arrow can hold in one piece
        yield from batches
        return
    yield from whole.to_batches(_BATCH_ROWS)


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise disk_error(exc, "the folder for temporary files") from exc
