"""Functions of your own, called from SQL: one value per row, a table from arguments, and rows to rows.

SELECT tools.public.with_tax(price, 0.19) FROM products;
SELECT * FROM tools.public.countdown(3);
SELECT * FROM tools.public.running_total((SELECT price FROM products));
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from sparkport import CallContext, CatalogBuilder, Parameter, ScanRequest, Server
from sparkport.catalog import Arguments, InOutCall
from sparkport.errors import InvalidArgument

BATCH = 10_000


def with_tax(ctx: CallContext, arguments: pa.RecordBatch) -> pa.Array:
    """A scalar function gets whole columns and returns one: no loop over rows."""
    return pc.multiply(arguments["price"], pc.add(arguments["rate"], 1.0))


def countdown(ctx: CallContext, arguments: Arguments, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    """A table function makes its rows as they are read; a reader that stops early stops this loop."""
    start, step = arguments["start"], arguments.get("step", 1)
    if step < 1:
        raise InvalidArgument("step must be at least 1")
    numbers = range(start, 0, -step)
    for first in range(0, len(numbers), BATCH):
        yield pa.record_batch({"n": pa.array(numbers[first : first + BATCH], pa.int64())})


class RunningTotal(InOutCall):
    """An in-out function may keep state between batches; each call has an object of its own."""

    def __init__(self) -> None:
        self._total = 0.0

    def push(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        totals = pc.cumulative_sum(pc.cast(batch.column(0), pa.float64()), start=self._total, skip_nulls=True)
        self._total += pc.sum(pc.cast(batch.column(0), pa.float64())).as_py() or 0.0
        yield pa.record_batch({"total": totals})


catalog = (
    CatalogBuilder("tools")
    .schema("public")
    .scalar_function(
        "with_tax", with_tax, [Parameter("price", pa.float64()), Parameter("rate", pa.float64())], pa.float64()
    )
    .table_function(
        "countdown",
        countdown,
        [Parameter("start", pa.int64()), Parameter("step", pa.int64(), named=True)],
        pa.schema([("n", pa.int64())]),
    )
    .in_out_function(
        "running_total",
        lambda ctx, arguments, columns: RunningTotal(),
        [Parameter("numbers", table=True)],
        pa.schema([("total", pa.float64())]),
    )
    .build()
)


def main() -> None:
    server = Server(catalog).start()
    print(f"ATTACH 'tools' (TYPE airport, LOCATION '{server.location}');", flush=True)
    try:
        server.wait()
    except KeyboardInterrupt:
        server.stop()


if __name__ == "__main__":
    main()
