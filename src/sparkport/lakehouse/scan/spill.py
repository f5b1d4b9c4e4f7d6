"""Spark reads what DuckDB cannot read right, such as equality deletes, into Parquet, from where it is streamed."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.catalog.row_ids import ROW_ID
from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.errors import NotFound, Unsupported
from sparkport.lakehouse.columns.columns import Json
from sparkport.lakehouse.columns.defaults import INITIAL
from sparkport.lakehouse.columns.type_table import known_type
from sparkport.lakehouse.columns.types import spark_type, stored_type
from sparkport.lakehouse.scan.decoded import bounded_batches
from sparkport.lakehouse.scan.rows import TableRows
from sparkport.lakehouse.spark.server import Sessions, Work, translated
from sparkport.lakehouse.spark.sql import quoted, text_literal
from sparkport.lakehouse.spark.staging import Staging

__all__ = ["Spill"]

_BATCH_ROWS = 65_536
_BATCH_BYTES = 8 << 20


class Spill:
    def __init__(self, spark: Sessions, staging: Staging, catalog: str) -> None:
        self._spark = spark
        self._staging = staging
        self._catalog = catalog

    def __call__(self, rows: TableRows, request: ScanRequest) -> Scan:
        folder = self._staging.folder / f"spill-{uuid.uuid4().hex}"
        names, with_ids = rows.selected(request), rows.selects_ids(request)
        chosen = [*_selected(rows, names), *([f"_row_id AS {quoted(ROW_ID)}"] if with_ids else [])]
        types = [stored_type(rows.columns.field(name)["type"]) for name in names] + [pa.int64()] * with_ids
        source = f"{quoted(self._catalog, *rows.name)} VERSION AS OF {rows.snapshot_id}"
        try:
            work = Work("read", (rows.name,))
            with self._spark.session(work=work) as session, translated(f"reading '{rows.name.name}'"):
                frame = session.sql(f"SELECT {', '.join(chosen) or '1 AS nothing'} FROM {source}")
                frame.write.parquet(str(folder))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return Scan(
            rows.columns.as_declared(_stored(folder, types), names),
            close=lambda: shutil.rmtree(folder, ignore_errors=True),
        )


def _selected(rows: TableRows, names: list[str]) -> Iterator[str]:
    """Spark reads a snapshot by the columns that the table had then; here they are as the version has them."""
    metadata, schema_id = rows.metadata, None
    if rows.snapshot_id is not None:
        schema_id = metadata.snapshot(rows.snapshot_id).schema_id
    schema = metadata.current_schema if schema_id is None else metadata.schemas[schema_id]
    then = {field["id"]: field for field in schema["fields"]}
    for name in names:
        field = rows.columns.field(name)
        old, spark_name = then.get(field["id"]), spark_type(field["type"])
        if old is None:
            yield f"CAST({_default(field)} AS {spark_name}) AS {quoted(name)}"
        elif old["type"] == field["type"]:
            yield f"{quoted(old['name'])} AS {quoted(name)}"
        elif isinstance(old["type"], str) and isinstance(field["type"], str):
            yield f"CAST({quoted(old['name'])} AS {spark_name}) AS {quoted(name)}"
        else:
            raise Unsupported(
                f"column '{name}' has been changed inside, and the table has equality deletes: compact it first"
            )


def _default(field: Json) -> str:
    """What rows have in a column that came after them."""
    value = field.get(INITIAL)
    if value is None:
        return "NULL"
    if isinstance(value, str):
        known = known_type(field["type"])
        return f"X'{value}'" if known is not None and known.is_bytes else text_literal(value)
    return str(value).lower()


def _stored(folder: Path, types: list[pa.DataType]) -> Iterator[pa.RecordBatch]:
    """What Spark has written, in the types in which DuckDB would have read it."""
    for path in sorted(folder.glob("*.parquet")):
        try:
            file = pq.ParquetFile(path)
        except FileNotFoundError as exc:
            raise NotFound("the rows that Spark has read are gone") from exc
        for batch in bounded_batches(path, file, rows=_BATCH_ROWS, size=_BATCH_BYTES):
            if not types:
                yield batch.select([])
                continue
            pairs = zip(batch.columns, types, strict=True)
            columns = [column if column.type == wanted else column.cast(wanted) for column, wanted in pairs]
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
