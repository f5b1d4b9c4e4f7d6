"""Rows for a page, by the very same way as a scan of the caller's: what it may not see does not come here either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.console.cells import Cell, cells
from sparkport.handlers.service import Handlers
from sparkport.protocol.streams import BatchMessage
from sparkport.protocol.targets import Kind, Target, Ticket

__all__ = ["Sample", "all_rows", "sample"]

_ROWS = 50
_COLUMNS = 60
_BYTES = 64 << 20
_LISTED = 1_000


@dataclass(frozen=True, slots=True)
class Sample:
    """``more`` says whether there are rows beyond these."""

    names: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: bool
    left_out: int
    numbers: frozenset[int]

    def is_number(self, column: int) -> bool:
        return column in self.numbers


def sample(handlers: Handlers, ctx: CallContext, target: Target, names: list[str]) -> Sample:
    """The first rows of a table. The scan is closed as soon as there are enough."""
    chosen = tuple(names[:_COLUMNS])
    rows: list[tuple[Cell, ...]] = []
    more, size = False, 0
    for batch in _batches(handlers, ctx, Ticket(target=target, columns=chosen)):
        few = batch.slice(0, _ROWS - len(rows))
        columns = [cells(few.column(name)) for name in chosen]
        rows += zip(*columns, strict=True) if columns else ()
        size += batch.nbytes
        more = batch.num_rows > few.num_rows or size > _BYTES
        if more or len(rows) > _ROWS:
            break
    ctx.record.rows_out += len(rows)
    numbers = frozenset(place for row in rows for place, cell in enumerate(row) if cell.kind == "number")
    return Sample(chosen, tuple(rows), more, len(names) - len(chosen), numbers)


def all_rows(handlers: Handlers, ctx: CallContext, catalog: str, schema: str, name: str) -> list[dict[str, Any]]:
    """The rows of one of the server's own small tables, such as ``tx.transactions``."""
    rows: list[dict[str, Any]] = []
    for batch in _batches(handlers, ctx, Ticket(target=Target(catalog, schema, Kind.TABLE, name))):
        rows += batch.to_pylist()
        if len(rows) >= _LISTED:
            break
    return rows[:_LISTED]


def _batches(handlers: Handlers, ctx: CallContext, ticket: Ticket) -> Iterator[pa.RecordBatch]:
    stream = handlers.do_get(ctx, ticket.encode())
    with closing(stream):  # type: ignore[type-var]
        for message in stream:
            if isinstance(message, BatchMessage):
                yield message.batch
