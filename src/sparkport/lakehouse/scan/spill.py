"""What DuckDB cannot read right, such as equality deletes, is read by Spark into Parquet and streamed from there."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.catalog.table import ROW_ID
from sparkport.errors import NotFound, Unsupported
from sparkport.lakehouse.columns.columns import Json
from sparkport.lakehouse.columns.defaults import INITIAL
from sparkport.lakehouse.columns.storage import from_stored
from sparkport.lakehouse.columns.types import spark_type, stored_type
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.spark.server import Sessions, translated
from sparkport.lakehouse.spark.sql import quoted, text_literal
from sparkport.lakehouse.spark.staging import Staging

__all__ = ["Spill"]

_BATCH_ROWS = 65_536


class Spill:
    def __init__(self, spark: Sessions, staging: Staging, catalog: str) -> None:
        self._spark = spark
        self._staging = staging
        self._catalog = catalog

    def __call__(self, version: TableVersion, request: ScanRequest) -> Scan:
        folder = self._staging.folder / f"spill-{uuid.uuid4().hex}"
        names = [name for name in version.columns.declared.names if request.selects(name)]
        with_ids = request.selects(ROW_ID) and version.has_row_ids
        chosen = [*_selected(version, names), *([f"_row_id AS {quoted(ROW_ID)}"] if with_ids else [])]
        source = f"{quoted(self._catalog, *version.name)} VERSION AS OF {version.snapshot_id}"
        try:
            with self._spark.session() as session, translated(f"reading '{version.name[1]}'"):
                frame = session.sql(f"SELECT {', '.join(chosen) or '1 AS nothing'} FROM {source}")
                frame.write.parquet(str(folder))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return Scan(
            _batches(folder, version, names, with_ids=with_ids),
            close=lambda: shutil.rmtree(folder, ignore_errors=True),
        )


def _selected(version: TableVersion, names: list[str]) -> Iterator[str]:
    """Spark reads a snapshot by the columns that the table had then; here they are as the version has them."""
    metadata, schema_id = version.metadata, None
    if version.snapshot_id is not None:
        schema_id = metadata.snapshot(version.snapshot_id).schema_id
    schema = metadata.current_schema if schema_id is None else metadata.schemas[schema_id]
    then = {field["id"]: field for field in schema["fields"]}
    for name in names:
        field = version.columns.field(name)
        old, kind = then.get(field["id"]), spark_type(field["type"])
        if old is None:
            yield f"CAST({_default(field)} AS {kind}) AS {quoted(name)}"
        elif old["type"] == field["type"]:
            yield f"{quoted(old['name'])} AS {quoted(name)}"
        elif isinstance(old["type"], str) and isinstance(field["type"], str):
            yield f"CAST({quoted(old['name'])} AS {kind}) AS {quoted(name)}"
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
        is_bytes = field["type"] == "binary" or str(field["type"]).startswith("fixed")
        return f"X'{value}'" if is_bytes else text_literal(value)
    return str(value).lower()


def _batches(folder: Path, version: TableVersion, names: list[str], *, with_ids: bool) -> Iterator[pa.RecordBatch]:
    declared = [version.columns.declared.field(name) for name in names]
    fields = [version.columns.field(name) for name in names]
    schema = pa.schema([*declared, *([pa.field(ROW_ID, pa.int64())] if with_ids else [])])
    for path in sorted(folder.glob("*.parquet")):
        try:
            file = pq.ParquetFile(path)
        except FileNotFoundError as exc:
            raise NotFound("the rows that Spark has read are gone") from exc
        for batch in file.iter_batches(_BATCH_ROWS):
            if not schema.names:
                yield batch.select([])
                continue
            columns = [
                from_stored(_as(batch.column(index), stored_type(field["type"])), column, field)
                for index, (column, field) in enumerate(zip(declared, fields, strict=True))
            ]
            yield pa.RecordBatch.from_arrays([*columns, *batch.columns[len(columns) :]], schema=schema)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)
