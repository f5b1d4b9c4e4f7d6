"""Rows of a table that a statement in a deferred transaction is about, as the table itself has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import duckdb
import pyarrow as pa

from sparkport.errors import SparkportError
from sparkport.lakehouse.columns.storage import conformed_batch
from sparkport.lakehouse.iceberg.lineage import Ids
from sparkport.lakehouse.scan.journalled_rows import JournalledRows
from sparkport.lakehouse.scan.rows import TableRows

__all__ = ["streamed"]


@contextmanager
def streamed(
    rows: TableRows | JournalledRows, names: Sequence[str], schema: pa.Schema, ids: Ids
) -> Iterator[pa.RecordBatchReader]:
    """As a stream that DuckDB can read; what goes wrong in it is told as it is."""
    if not len(ids):
        yield pa.RecordBatchReader.from_batches(schema, [])
        return
    errors: list[SparkportError] = []
    with closing(rows.stored(names, row_ids=ids)) as stream:

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for batch in stream:
                    yield conformed_batch(batch, schema)
            except SparkportError as exc:
                errors.append(exc)  # of which DuckDB would leave the text only
                raise

        try:
            yield pa.RecordBatchReader.from_batches(schema, batches())
        except duckdb.Error as exc:
            if errors:
                raise errors[0] from exc
            raise
