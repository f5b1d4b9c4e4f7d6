"""New rows of a deferred transaction that inserts a few of them and does nothing else: they need no database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

__all__ = ["NewRows"]

_MOST_ROWS = 1_000
_MOST_BYTES = 256 << 10


class NewRows:
    """Rows as they are kept: id, kind, step and then all columns of the table."""

    _HEAD = 3

    def __init__(self, schema: pa.Schema, *, kind: int) -> None:
        self._schema = schema
        self._kind = kind
        self._batches: list[pa.RecordBatch] = []
        self.rows = self.nbytes = 0

    def has_room(self, rows: int, nbytes: int) -> bool:
        return self.rows + rows <= _MOST_ROWS and self.nbytes + nbytes <= _MOST_BYTES

    def add(self, batches: Iterable[pa.RecordBatch], columns: Sequence[int], step: int) -> None:
        """Batches of ids, numbers and these columns."""
        places = {column: place + 2 for place, column in enumerate(columns)}
        for batch in batches:
            count = batch.num_rows
            kinds, steps = np.full(count, self._kind, np.int8), np.full(count, step, np.int64)
            body = [
                batch.column(places[at]) if at in places else pa.nulls(count, kind)
                for at, kind in enumerate(self._schema.types[self._HEAD :])
            ]
            arrays = [batch.column(0), pa.array(kinds), pa.array(steps), *body]
            self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
            self.rows += count
            self.nbytes += batch.nbytes

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self._batches, self._schema)

    def values(self) -> list[pa.RecordBatch]:
        """The columns of the table, in the order in which the rows got their ids: from -1 downwards."""
        rows = self.table()
        order = np.argsort(-rows.column(0).to_numpy(), kind="stable")
        values: list[pa.RecordBatch] = rows.select(self._schema.names[self._HEAD :]).take(pa.array(order)).to_batches()
        return values

    def clear(self) -> None:
        self._batches, self.rows, self.nbytes = [], 0, 0
