"""The changes of a small commit to a large table, against the same to a small one: what does the table cost?"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import Result, compare, timed
from sparkport.app import Lakehouse, LakehouseSettings, MaintenanceSettings
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableSchema, TableDefinition
from sparkport.catalog.scan import AsOf, AsOfUnit, ScanRequest
from sparkport.lakehouse.tables.table import LakeTable

__all__ = ["change_feed"]

_SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64()), ("name", pa.string())])
_SPARK = "SPARKPORT_BENCH_SPARK"
_CHANGED = 100
_BATCH = 1_000_000


def change_feed(*, quick: bool = False) -> Iterator[Result]:
    small, large = 100_000, 1_000_000 if quick else 10_000_000
    folder = Path(tempfile.mkdtemp(prefix="sparkport-changes-"))
    settings = LakehouseSettings(warehouse=str(folder), spark=os.environ.get(_SPARK, "local[*]"))
    try:
        with Lakehouse(settings, maintenance=MaintenanceSettings(interval_seconds=3_600)) as lakehouse:
            lakehouse.spark.wait_ready(300)
            for name, rows in (("small", small), ("large", large)):
                _fill(lakehouse, name, rows)
            for spread in ("neighbours", "all over the table"):
                for name, rows in (("small", small), ("large", large)):
                    step = 1 if spread == "neighbours" else rows // _CHANGED
                    ids = [rows // 2 + place if step == 1 else place * step for place in range(_CHANGED)]
                    new = pa.table({"v": pa.array([-1.0] * _CHANGED)})
                    _table(lakehouse, name).update(CallContext(), ids, new.to_reader())
                found = compare(
                    lambda: timed(lambda: _changes(lakehouse, "large")),
                    lambda: timed(lambda: _changes(lakehouse, "small")),
                    rounds=5 if quick else 15,
                )
                yield Result(
                    name=f"changes of {_CHANGED} rows, {spread}, of {large:,} against {small:,}",
                    ours=f"{found.ours * 1000:.1f} ms",
                    baseline=f"{found.baseline * 1000:.1f} ms",
                    value=found.ratio,
                    goal=1.5,
                    at_least=False,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill(lakehouse: Lakehouse, name: str, rows: int) -> None:
    schema = lakehouse.catalog.schema(CallContext(), "public")
    if not isinstance(schema, MutableSchema):
        raise TypeError("the lakehouse has no schema 'public'")
    schema.create_table(CallContext(), TableDefinition(name=name, columns=_SCHEMA))

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, _BATCH):
            ids = np.arange(start, min(start + _BATCH, rows), dtype=np.int64)
            names = pa.array(ids).cast(pa.string())
            yield pa.RecordBatch.from_arrays([pa.array(ids), pa.array(ids / 4), names], schema=_SCHEMA)

    _table(lakehouse, name).insert(CallContext(), pa.RecordBatchReader.from_batches(_SCHEMA, batches()))


def _table(lakehouse: Lakehouse, name: str) -> LakeTable:
    schema = lakehouse.catalog.schema(CallContext(), "public")
    table = None if schema is None else schema.table(CallContext(), name)
    if not isinstance(table, LakeTable):
        raise TypeError(f"the lakehouse has no table '{name}'")
    return table


def _changes(lakehouse: Lakehouse, name: str) -> None:
    """Those of the newest version."""
    table, ctx = _table(lakehouse, name), CallContext()
    newest = table.head(ctx).version or 0
    scan = table.changes(ctx, AsOf(AsOfUnit.VERSION, str(newest - 1)), None, ScanRequest())
    try:
        rows = sum(batch.num_rows for batch in scan)
    finally:
        scan.close()
    if rows != 2 * _CHANGED:
        raise RuntimeError(f"{rows} changes, not {2 * _CHANGED}")
