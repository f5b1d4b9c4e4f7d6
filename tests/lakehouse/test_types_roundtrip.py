"""Every type through the real thing: staged as Parquet, appended and rewritten by Spark, read from the files by DuckDB.

The ``lake`` fixture has ``spark()`` (a context manager with a Spark Connect session), ``pointers`` (a ``Pointers``),
``catalog`` (its name in Spark) and ``warehouse`` (a local ``Path``).
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lakehouse.type_samples import SAMPLES, Sample, StoredColumn, same, stored_column

from sparkport.lakehouse.columns.storage import from_stored, to_stored
from sparkport.lakehouse.columns.type_table import parquet_name
from sparkport.lakehouse.columns.types import declared_field, spark_type, sql_type
from sparkport.lakehouse.iceberg.edits import new_table

pytestmark = pytest.mark.tier("fast")

pytest.importorskip("tests.support.lakehouse", reason="the lakehouse of the tests is not there")

SCHEMA = "types"
PROPERTIES = {
    "write.merge.mode": "merge-on-read",
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}
ROWS = max(len(sample.column) for sample in SAMPLES)


@dataclass(frozen=True, slots=True)
class Written:
    """What DuckDB reads from the table's files, after Spark has appended the rows and after it has rewritten them."""

    columns: tuple[StoredColumn, ...]
    appended: pa.Table
    rewritten: pa.Table


@pytest.fixture(scope="module")
def written(lake: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """One table with a column for each sample: a table for each would take Spark a minute."""
    name = f"t_{uuid.uuid4().hex[:8]}"
    table = f"{lake.catalog}.{SCHEMA}.{name}"
    columns, last = _planned()
    location = Path(lake.warehouse) / SCHEMA / name
    (location / "metadata").mkdir(parents=True)
    metadata = location / "metadata" / f"00000-{uuid.uuid4()}.metadata.json"
    fields = [column.iceberg for column in columns]
    metadata.write_text(json.dumps(new_table(str(location), fields, last_column_id=last, properties=PROPERTIES)))
    if SCHEMA not in lake.pointers.cut().schemas:
        lake.pointers.create_schema(SCHEMA, {})
    lake.pointers.create((SCHEMA, name), str(metadata))
    staged = tmp_path_factory.mktemp("staged") / "rows.parquet"
    pq.write_table(_staged(columns), staged)
    ddl = ", ".join(f"`{field['name']}` {spark_type(field['type'])}" for field in fields)
    with lake.spark() as spark:
        spark.read.schema(ddl).parquet(str(staged)).writeTo(table).option("check-nullability", "false").append()
        appended = _read(spark, table, columns)
        spark.sql(
            f"MERGE INTO {table} t USING (SELECT id AS rowid FROM range({ROWS})) s ON t._row_id = s.rowid "
            "WHEN MATCHED THEN UPDATE SET v0 = CAST(-1 AS INT)"
        ).collect()
        yield Written(columns, appended, _read(spark, table, columns))
        spark.sql(f"DROP TABLE {table}").collect()


def _planned() -> tuple[tuple[StoredColumn, ...], int]:
    ids = itertools.count(1)
    fields = [sample.field.with_name(f"v{at}") for at, sample in enumerate(SAMPLES)]
    columns = tuple(stored_column(field, lambda: next(ids)) for field in fields)
    return columns, next(ids) - 1


def _sent(sample: Sample) -> pa.Array:
    return pa.concat_arrays([sample.column, pa.nulls(ROWS - len(sample.column), sample.column.type)])


def _staged(columns: tuple[StoredColumn, ...]) -> pa.Table:
    found = {}
    for column, sample in zip(columns, SAMPLES, strict=True):
        declared = declared_field(column.iceberg, column.remembered)
        found[column.iceberg["name"]] = to_stored(_sent(sample), declared, column.iceberg)
    return pa.table(found)


def _read(spark: Any, table: str, columns: tuple[StoredColumn, ...]) -> pa.Table:
    """The newest data file: a rewrite makes a file of its own."""
    query = (
        f"SELECT f.file_path FROM {table}.entries e JOIN {table}.files f ON e.data_file.file_path = f.file_path "
        "WHERE f.content = 0 ORDER BY e.sequence_number DESC, f.file_path"
    )
    newest = spark.sql(query).collect()[0][0]
    fields = [column.iceberg for column in columns]
    parts = [
        f"{field['id']}: {{name: '{field['name']}', type: {_text(field)}, default_value: NULL}}" for field in fields
    ]
    with duckdb.connect() as db:
        found = db.sql(
            f"SELECT * FROM read_parquet('{newest.removeprefix('file:')}', schema = MAP {{{', '.join(parts)}}}, "
            "file_row_number = true) ORDER BY file_row_number"
        )
        return found.to_arrow_table().combine_chunks()


def _text(field: dict[str, Any]) -> str:
    return "'" + sql_type(_in_files(field["type"])).replace("'", "''") + "'"


def _in_files(kind: Any) -> Any:
    """Fields of structs under the names that they have in the files."""
    match kind:
        case {"fields": fields}:
            named = [
                {**field, "name": parquet_name(field["name"]), "type": _in_files(field["type"])} for field in fields
            ]
            return {**kind, "fields": named}
        case dict():
            return {
                key: _in_files(value) if key in ("element", "key", "value") else value for key, value in kind.items()
            }
    return kind


def _check(written: Written, rows: pa.Table, at: int) -> None:
    column, sample = written.columns[at], SAMPLES[at]
    declared = declared_field(column.iceberg, column.remembered)
    read = rows.column(column.iceberg["name"])
    chunks = [from_stored(chunk, declared, column.iceberg) for chunk in read.chunks]
    assert same(pa.concat_arrays(chunks), _sent(sample))


@pytest.mark.parametrize("at", range(len(SAMPLES)), ids=[sample.label for sample in SAMPLES])
def test_what_spark_appends_is_read_as_it_was_sent(written: Written, at: int) -> None:
    _check(written, written.appended, at)


@pytest.mark.parametrize("at", range(1, len(SAMPLES)), ids=[sample.label for sample in SAMPLES[1:]])
def test_what_spark_rewrites_for_another_column_stays_as_it_was_sent(written: Written, at: int) -> None:
    _check(written, written.rewritten, at)


def test_the_column_that_was_rewritten_has_its_new_value(written: Written) -> None:
    assert set(written.rewritten.column("v0").to_pylist()) == {-1}
