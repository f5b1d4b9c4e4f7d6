"""The rows of one statement in a deferred transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

__all__ = ["Sent"]


class Sent:
    """The rows of one statement, as they are staged to change others: of several about one row the last one counts.

    ``columns`` are the places in the table of the columns that they set.
    """

    HEAD = (pa.field("id", pa.int64()), pa.field("number", pa.int64()))

    def __init__(self, batches: Iterable[pa.RecordBatch], columns: Sequence[int], *, rows: int, nbytes: int) -> None:
        self._batches = batches
        self.columns = tuple(columns)
        self.rows, self.nbytes = rows, nbytes

    def keep(self) -> None:
        """From now on they can be read more than once."""
        self._batches = list(self._batches)

    def reader(self, stored: pa.Schema) -> pa.RecordBatchReader:
        """In the types in which the table's columns are stored."""
        kinds = [stored.field(column).type for column in self.columns]
        body = [pa.field(f"s{place}", kind) for place, kind in enumerate(kinds)]
        schema = pa.schema([*self.HEAD, *body])
        return pa.RecordBatchReader.from_batches(schema, self._numbered(schema))

    def _numbered(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        count = 0
        for batch in self._batches:
            ids, _, *values = batch.columns
            numbers = pa.array(np.arange(count, count + len(batch)))
            count += len(batch)
            yield pa.RecordBatch.from_arrays([ids, numbers, *values], schema=schema)
