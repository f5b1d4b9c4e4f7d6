"""A table as a deferred transaction reads it: the rows of its snapshot, less those it changed, and then its overlay."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.lakehouse.scan.version import Rows
from sparkport.lakehouse.write.own_rows import OwnRows

__all__ = ["scan_with"]


def scan_with(overlay: OwnRows, rows: Rows, request: ScanRequest, part: range | None) -> Scan:
    """Only the first of several parts of a scan has the transaction's own rows."""
    try:
        beneath = rows.scan(request, part, without=overlay.hidden)
    except BaseException:
        overlay.close()
        raise
    names = rows.selected(request)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from beneath
        if part is None or part.start == 0:
            for batch in rows.columns.as_declared(overlay, names):
                yield batch if rows.selects_ids(request) else batch.select(names)

    def close() -> None:
        try:
            beneath.close()
        finally:
            overlay.close()

    return Scan(batches(), close=close)
