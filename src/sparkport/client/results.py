"""The rows of a scan or a function, on their way: read lazily, once, and given up without leaving anything open."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any

import pyarrow as pa

from sparkport.client.parallel import BatchSource
from sparkport.errors import FailedPrecondition, Unsupported

__all__ = ["ScanResult"]


class ScanResult:
    """Rows that are fetched while they are read.

    They can be read once, in one of these ways: iterate over it, ``read_all``, ``to_pandas``, ``to_polars``,
    ``to_reader``, or hand it to whatever takes an Arrow stream (DuckDB, Polars). The server's side is closed when
    the reading ends, when the loop over it is left, and by ``close`` or the end of a ``with`` block.
    """

    def __init__(self, schema: pa.Schema, source: BatchSource) -> None:
        self._schema = schema
        self._source = source
        self._taken = False

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        # The generator is not kept here, so that it ends with the loop that holds it.
        return self._batches()

    def read_all(self) -> pa.Table:
        """All rows in memory."""
        return pa.Table.from_batches(list(self._batches()), self._schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """A reader that fetches as it is read. Let go of it, or close the result, to stop early."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def to_pandas(self, **options: Any) -> Any:
        """A pandas DataFrame; ``options`` are those of ``pyarrow.Table.to_pandas``."""
        try:
            import pandas as pd  # noqa: F401 - pyarrow needs it; its absence is better told before rows are read
        except ImportError as exc:
            raise Unsupported("to_pandas() needs pandas, which is not installed") from exc
        return self.read_all().to_pandas(**options)

    def to_polars(self) -> Any:
        """A Polars DataFrame."""
        try:
            import polars as pl
        except ImportError as exc:
            raise Unsupported("to_polars() needs polars, which is not installed") from exc
        return pl.from_arrow(self.read_all())

    def close(self) -> None:
        """Stop reading. Safe to repeat, and from another thread."""
        self._taken = True
        self._source.cancel()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __enter__(self) -> ScanResult:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ScanResult({', '.join(f'{field.name}: {field.type}' for field in self._schema)})"

    def _batches(self) -> Generator[pa.RecordBatch, None, None]:
        if self._taken:
            raise FailedPrecondition("these rows have been read or closed already: ask for them again")
        self._taken = True
        return self._source.batches()
