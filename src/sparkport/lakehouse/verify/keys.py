"""Whether a table keeps its keys: writers past the server know nothing of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing

import duckdb
import pyarrow as pa

from sparkport.catalog.keys import Key
from sparkport.lakehouse.backup.reach import Kind
from sparkport.lakehouse.columns.columns import read_columns
from sparkport.lakehouse.columns.keys import read_keys
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.plan import SnapshotPlan, plan
from sparkport.lakehouse.scan.duck import DuckDB, duckdb_error
from sparkport.lakehouse.scan.read import Reader, RowStream
from sparkport.lakehouse.verify.findings import Findings, Wrong

__all__ = ["check_keys"]

_MEMORY = "1GB"


def check_keys(fs: FileSystem, metadata: TableMetadata, findings: Findings) -> None:
    """Reads the columns of keys, of all rows of ``main``. What only Spark reads right is left out."""
    schema = dict(metadata.current_schema)
    columns = read_columns(schema, metadata.properties, int(metadata.json.get("last-column-id", 0)))
    keys = read_keys(schema, metadata.properties, columns)
    chosen = plan(fs, metadata, metadata.main_snapshot_id)
    if not keys or not chosen.files or chosen.needs_spark:
        return
    with (
        tempfile.TemporaryDirectory(prefix="sparkport-check-") as folder,
        closing(Reader(fs, memory_limit=_MEMORY, temp_directory=folder)) as reader,
        closing(DuckDB(memory_limit=_MEMORY, temp_directory=folder)) as database,
    ):
        for key in keys:
            with findings.catching(Kind.METADATA.value, metadata.metadata_location):
                _check(reader, database, metadata, chosen, key)


def _check(reader: Reader, database: DuckDB, metadata: TableMetadata, chosen: SnapshotPlan, key: Key) -> None:
    schema = metadata.current_schema
    with closing(reader.scan(metadata, chosen, schema=schema, columns=list(key.columns))) as stream:
        names = [f"k{place}" for place in range(len(key.columns))]
        with database.cursor() as cursor:
            rows = pa.RecordBatchReader.from_batches(_renamed(stream, names), _batches(stream, names))
            cursor.register("there", rows)
            given = " AND ".join(f"{name} IS NOT NULL" for name in names)
            twice = (
                f"SELECT {', '.join(names)}, count(*) AS rows FROM there WHERE {given} GROUP BY ALL HAVING count(*) > 1"
            )
            try:
                found = cursor.execute(f"SELECT count(*), {_examples(names)} FROM ({twice})").fetchone()
            except duckdb.Error as exc:
                raise duckdb_error(exc, "the check of keys") from exc
    if found and found[0]:
        shown = ", ".join(f"{name} = {value}" for name, value in zip(key.columns, found[1:], strict=True))
        raise Wrong(f"{found[0]:,} values of {key} are of two rows or more, such as {shown}")


def _examples(names: list[str]) -> str:
    return ", ".join(f"CAST(first({name} ORDER BY ({', '.join(names)})) AS VARCHAR)" for name in names)


def _renamed(stream: RowStream, names: list[str]) -> pa.Schema:
    return pa.schema([field.with_name(name) for field, name in zip(stream.schema, names, strict=True)])


def _batches(stream: RowStream, names: list[str]) -> Iterator[pa.RecordBatch]:
    schema = _renamed(stream, names)
    for batch in stream:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
