"""Many one-row inserts with maintenance beside them, against a table that was written at once.

A day of one insert a second, scaled down: the background looks every few seconds instead of every minute, so that the
table goes through as many rounds of inserts and compaction as in hours of real time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pyarrow as pa

from benchmarks.harness import Result, compare
from sparkport.app import Lakehouse, LakehouseSettings, MaintenanceSettings
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableSchema, TableDefinition
from sparkport.catalog.scan import ScanRequest, as_scan
from sparkport.catalog.statement import Change, ChangeableTable, StatementRequest
from sparkport.lakehouse.iceberg.metadata import load
from sparkport.lakehouse.iceberg.plan import plan
from sparkport.lakehouse.names import TableName

__all__ = ["upkeep"]

_SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64()), ("name", pa.string())])
_SPARK = "SPARKPORT_BENCH_SPARK"
_LIMITS = MaintenanceSettings(
    interval_seconds=5, max_snapshots=50, grace_seconds=10, metadata_seconds=10, staged_seconds=60
)


def upkeep(*, quick: bool = False) -> Iterator[Result]:
    count = 60 if quick else 600
    folder = Path(tempfile.mkdtemp(prefix="sparkport-upkeep-"))
    settings = LakehouseSettings(warehouse=str(folder), spark=os.environ.get(_SPARK, "local[*]"))
    try:
        with Lakehouse(settings, maintenance=_LIMITS) as lakehouse:
            lakehouse.spark.wait_ready(180)
            yield from _measured(lakehouse, count)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(lakehouse: Lakehouse, count: int) -> Iterator[Result]:
    many, once = _table(lakehouse, "many"), _table(lakehouse, "once")
    times = []
    for number in range(count):
        begin = time.perf_counter()
        _insert(many, _rows(number, number + 1))
        times.append(time.perf_counter() - begin)
    lakehouse.maintenance.run(TableName("public", "many"))
    _insert(once, _rows(0, count))
    scans = compare(lambda: _scan(lakehouse, "many"), lambda: _scan(lakehouse, "once"), rounds=15)
    left, fresh = _left(lakehouse, "many"), _left(lakehouse, "once")
    yield Result(
        name=f"scan after {count} inserts of a row",
        ours=f"{scans.ours * 1000:.1f} ms",
        baseline=f"{scans.baseline * 1000:.1f} ms",
        value=scans.ratio,
        goal=1.5,
        at_least=False,
    )
    yield Result(
        name="files of the table", ours=left[0], baseline=fresh[0], value=float(left[1]), goal=5, at_least=False
    )
    tenth = max(count // 10, 1)
    first, last = median(times[tenth : 2 * tenth]), median(times[-tenth:])
    yield Result(
        name="last tenth of inserts against first",
        ours=f"{last * 1000:.0f} ms",
        baseline=f"{first * 1000:.0f} ms",
        value=last / first,
        goal=1.5,
        at_least=False,
    )


def _table(lakehouse: Lakehouse, name: str) -> ChangeableTable:
    schema = lakehouse.catalog.schema(CallContext(), "public")
    if not isinstance(schema, MutableSchema):
        raise TypeError("the lakehouse has no schema 'public'")
    table = schema.create_table(CallContext(), TableDefinition(name=name, columns=_SCHEMA))
    if not isinstance(table, ChangeableTable):
        raise TypeError("a table of the lakehouse takes no rows")
    return table


def _rows(start: int, end: int) -> pa.RecordBatch:
    numbers = range(start, end)
    rows = {"id": list(numbers), "v": [number / 4 for number in numbers], "name": [f"n{number}" for number in numbers]}
    return pa.RecordBatch.from_pydict(rows, _SCHEMA)


def _insert(table: ChangeableTable, rows: pa.RecordBatch) -> None:
    statement = table.open_statement(CallContext(), StatementRequest(change=Change.INSERT, columns=_SCHEMA))
    statement.push(rows, None)
    statement.finish()


def _scan(lakehouse: Lakehouse, name: str) -> float:
    begin, ctx = time.perf_counter(), CallContext()
    schema = lakehouse.catalog.schema(ctx, "public")
    table = None if schema is None else schema.table(ctx, name)
    if table is None:
        raise LookupError(name)
    sum(batch.num_rows for batch in as_scan(table.scan(ctx, ScanRequest())))
    return time.perf_counter() - begin


def _left(lakehouse: Lakehouse, name: str) -> tuple[str, int]:
    """What there is of a table on disk, in words, and the number of data files to read."""
    engine = lakehouse.engine
    metadata = load(engine.storage.files, engine.storage.pointers.location(TableName("public", name)) or "")
    read = len(plan(engine.storage.files, metadata, metadata.main_snapshot_id).files)
    return f"{read} of {len(engine.storage.files.list(metadata.location))}", read
