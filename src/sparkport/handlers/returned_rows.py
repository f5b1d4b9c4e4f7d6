"""Rows that go back in one message. There is room for them before what they tell of is committed, or it is not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.errors import ResourceExhausted

__all__ = ["MAX_RETURNED_BYTES", "ReturnedRows", "ipc_stream"]

MAX_RETURNED_BYTES = 64 << 20

_COPIES = 6  # the rows, their stream, that as text, its message, and what gRPC makes of it


class ReturnedRows:
    def __init__(self, ctx: CallContext) -> None:
        self._account = ctx.account
        self._size = 0
        self.batches: list[pa.RecordBatch] = []

    def append(self, batch: pa.RecordBatch) -> None:
        self.reserve(batch.nbytes)
        self.batches.append(batch)

    def reserve(self, size: int) -> None:
        """Room for rows of so many bytes more."""
        self._size += size
        if self._size > MAX_RETURNED_BYTES:
            raise ResourceExhausted(
                f"the rows to be returned take more than {MAX_RETURNED_BYTES} bytes: change fewer at once, or do not "
                f"ask for them"
            )
        self._account.promise(_COPIES * size)


def ipc_stream(rows: pa.Table) -> Any:
    """A buffer."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()
