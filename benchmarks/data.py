"""The rows that are sent around; equal on both sides of every comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["SCANS", "SMALL", "WIDE", "generated", "integers", "one_row", "wide"]

BATCH_ROWS: Final = 65_536
UPLOAD_ROWS: Final = 2_048
"""What the DuckDB client puts into one batch."""

SMALL: Final = pa.schema([("id", pa.int64()), ("price", pa.int64()), ("stock", pa.int64())])
GENERATED: Final = pa.schema([(f"c{index}", pa.int64()) for index in range(8)])
GENERATED_BATCHES: Final = 1_024
GENERATED_BYTES: Final = GENERATED_BATCHES * BATCH_ROWS * 8 * len(GENERATED)
WIDE: Final = 100


def integers(rows: int, first: int = 0) -> pa.RecordBatch:
    ids = pa.arange(first, first + rows)
    return pa.RecordBatch.from_arrays([ids, pc.multiply(ids, 3), pc.bit_wise_xor(ids, 0x5555)], schema=SMALL)


def one_row() -> pa.RecordBatch:
    return integers(1)


def _scan_integers() -> pa.Table:
    return pa.Table.from_batches([integers(BATCH_ROWS, index * BATCH_ROWS) for index in range(200)])


def _scan_mixed() -> pa.Table:
    batches = []
    for index in range(100):
        batch = integers(BATCH_ROWS, index * BATCH_ROWS)
        text = pc.cast(batch.column("price"), pa.string())
        value = pc.divide(pc.cast(batch.column("id"), pa.float64()), 7.0)
        batches.append(pa.record_batch({"id": batch.column("id"), "text": text, "value": value}))
    return pa.Table.from_batches(batches)


SCANS: Final[dict[str, Callable[[], pa.Table]]] = {"integers": _scan_integers, "mixed": _scan_mixed}


def generated() -> Iterator[pa.RecordBatch]:
    """4 GB, made batch by batch and kept by nobody."""
    ids = pa.arange(0, BATCH_ROWS)
    for index in range(GENERATED_BATCHES):
        columns = [pc.add(ids, index + column) for column in range(len(GENERATED))]
        yield pa.RecordBatch.from_arrays(columns, schema=GENERATED)


def wide(columns: int) -> pa.Table:
    ids = pa.arange(0, 4 * BATCH_ROWS)
    return pa.table({f"c{index}": ids for index in range(columns)})
