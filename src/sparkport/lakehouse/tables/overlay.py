"""A table as a deferred transaction reads it: the rows of its snapshot, less those it changed, and then its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.catalog.table import ROW_ID
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.write.own_rows import OwnRows

__all__ = ["scan_with"]


def scan_with(own: OwnRows, version: TableVersion, request: ScanRequest, part: str | None, ctx: CallContext) -> Scan:
    """Of several parts of a scan only the first has the transaction's own rows."""
    try:
        beneath = _beneath(own, version, request, part, ctx)
    except BaseException:
        own.close()
        raise
    names = [name for name in version.columns.declared.names if request.selects(name)]
    first = part is None or part.startswith("0-")

    def batches() -> Iterator[pa.RecordBatch]:
        yield from beneath
        if first:
            for batch in version.as_declared(own, names):
                yield batch if request.selects(ROW_ID) and version.has_row_ids else batch.select(names)

    def close() -> None:
        try:
            beneath.close()
        finally:
            own.close()

    return Scan(batches(), close=close)


def _beneath(own: OwnRows, version: TableVersion, request: ScanRequest, part: str | None, ctx: CallContext) -> Scan:
    if not version.needs_spark:
        return version.scan(request, part, ctx, without=own.hidden)
    if not len(own.hidden):
        return version.scan(request, part, ctx)
    # What Spark has read is taken apart here: it has to bring the row ids along.
    columns = None if request.columns is None else tuple(dict.fromkeys([*request.columns, ROW_ID]))
    asked = ScanRequest(columns=columns, filter=request.filter, at=request.at, part=request.part)
    scan = version.scan(asked, part, ctx)
    return Scan(_left(scan, np.unique(own.hidden)), close=scan.close)


def _left(batches: Iterable[pa.RecordBatch], hidden: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keep = ~np.isin(batch.column(ROW_ID).to_numpy(zero_copy_only=False), hidden)
        yield batch.filter(pa.array(keep))
