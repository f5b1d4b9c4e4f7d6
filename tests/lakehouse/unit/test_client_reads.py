"""What clients read from the files themselves is what a scan of the server reads; all else is left to the server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lakehouse.fixtures import NAMES, Fixture, materialise, with_equality_deletes
from tests.support.duckdb_calls import run_call

from sparkport.catalog.scan import DuckDBCall
from sparkport.lakehouse.columns.columns import Columns, new_columns, read_columns
from sparkport.lakehouse.columns.types import stored_type
from sparkport.lakehouse.iceberg.plan import DataFile, plan
from sparkport.lakehouse.scan.client_reads import duckdb_calls
from sparkport.lakehouse.scan.read import Reader
from sparkport.protocol.call_locations import call_location

pytestmark = pytest.mark.tier("fast")


def columns_of(found: Fixture, schema_id: int) -> Columns:
    return read_columns(dict(found.metadata.schemas[schema_id]), found.metadata.properties, 1_000)


def calls_of(
    found: Fixture, snapshot_id: int | None, columns: Columns, names: Sequence[str]
) -> Sequence[DuckDBCall] | None:
    files = plan(found.fs, found.metadata, snapshot_id).files
    return duckdb_calls(found.fs, found.metadata, columns, files=files, names=names)


def clients_rows(calls: Sequence[DuckDBCall], columns: Columns, names: Sequence[str]) -> list[Any]:
    read = [run_call(call_location(call).encode(), columns.declared, names) for call in calls]
    return in_order(pa.concat_tables(read).select(list(names)).to_pylist())


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)


@pytest.mark.parametrize("name", NAMES)
def test_every_snapshot_reads_as_the_server_reads_it(reader: Reader, tmp_path: Path, name: str) -> None:
    """With the schema of its time and with the current one, by which columns were renamed, added, dropped, widened."""
    found = materialise(name, tmp_path)
    newest = found.metadata.current_schema["schema-id"]
    for snapshot, schema_id in {(s.id, i) for s in found.metadata.snapshots for i in (s.schema_id or 0, newest)}:
        columns = columns_of(found, schema_id)
        names = [each for each in columns.declared.names if calls_of(found, snapshot, columns, [each])]
        calls = calls_of(found, snapshot, columns, names)
        if calls is not None:
            files, schema = plan(found.fs, found.metadata, snapshot), found.metadata.schemas[schema_id]
            stream = reader.scan(found.metadata, files, schema=schema, columns=names)
            scanned = pa.Table.from_batches(list(stream), stream.schema)
            assert clients_rows(calls, columns, names) == in_order(scanned.to_pylist())


def test_columns_that_were_renamed_added_and_widened_are_read_by_clients(tmp_path: Path) -> None:
    found = materialise("evolved", tmp_path)
    columns = columns_of(found, found.metadata.current_schema["schema-id"])
    assert len(found.metadata.schemas) > 1
    assert calls_of(found, found.metadata.snapshots[0].id, columns, columns.declared.names) is not None


@pytest.mark.parametrize("name", ["changes", "positions_v2"])
def test_snapshots_with_deleted_rows_are_left_to_the_server(tmp_path: Path, name: str) -> None:
    found = materialise(name, tmp_path)
    columns = columns_of(found, 0)
    for snapshot in found.metadata.snapshots:
        deleted = any(file.deletes for file in plan(found.fs, found.metadata, snapshot.id).files)
        assert (calls_of(found, snapshot.id, columns, ["id"]) is None) == deleted


def test_equality_deletes_are_left_to_the_server(tmp_path: Path) -> None:
    found = with_equality_deletes(materialise("positions_v2", tmp_path))
    assert calls_of(found, found.metadata.main_snapshot_id, columns_of(found, 0), ["id"]) is None


@pytest.mark.parametrize(("name", "column"), [("imported", "id"), ("nested", "s"), ("replaced", "l")])
def test_files_that_must_be_looked_at_are_left_to_the_server(tmp_path: Path, name: str, column: str) -> None:
    found = materialise(name, tmp_path)
    columns = columns_of(found, found.metadata.current_schema["schema-id"])
    assert calls_of(found, found.metadata.snapshots[0].id, columns, [column]) is None


def test_an_empty_table_and_no_columns_are_left_to_the_server(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    assert calls_of(found, None, columns_of(found, 0), ["id"]) is None
    assert calls_of(found, found.metadata.snapshots[0].id, columns_of(found, 0), []) is None


# One file with columns of every kind


NATIVE = {
    "flag": (pa.bool_(), True),
    "number": (pa.int64(), 5),
    "small": (pa.int8(), -7),
    "wide": (pa.uint64(), 2**64 - 1),
    "price": (pa.decimal128(12, 2), Decimal("12.50")),
    "text": (pa.string(), "x"),
    "at": (pa.timestamp("us"), dt.datetime(2026, 1, 2, 3, 4, 5)),
    "zoned": (pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
    "items": (pa.list_(pa.field("l", pa.int64())), [1, 2]),
    "pair": (pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": "y"}),
}
CONVERTED = {
    "time": pa.time64("us"),
    "nanos": pa.timestamp("ns"),
    "span": pa.month_day_nano_interval(),
    "seconds": pa.timestamp("s"),
    "json": pa.json_(),
    "enum": pa.dictionary(pa.uint8(), pa.string()),
    "huge": pa.opaque(pa.binary(16), "hugeint", "DuckDB"),
    "array": pa.list_(pa.int64(), 2),
    "union": pa.sparse_union([pa.field("a", pa.int64())]),
    "smalls": pa.list_(pa.field("l", pa.int8())),
}


def one_file(found: Fixture, columns: Columns, row: dict[str, Any]) -> DataFile:
    """A file as Spark writes it, next to a table's own."""
    stored = pa.schema(
        [
            pa.field(field["name"], stored_type(field["type"]), metadata={"PARQUET:field_id": str(field["id"])})
            for field in columns.fields
        ]
    )
    path = found.folder / "one file.parquet"
    pq.write_table(pa.Table.from_pylist([row], stored), path)
    (some, *_) = plan(found.fs, found.metadata, found.metadata.snapshots[0].id).files
    return replace(some, path=str(path))


def test_values_come_in_the_types_that_clients_list(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    columns = new_columns(pa.schema([(name, kind) for name, (kind, _) in NATIVE.items()]))
    row = {name: value for name, (_, value) in NATIVE.items()}
    file = one_file(found, columns, row)
    calls = duckdb_calls(found.fs, found.metadata, columns, files=[file], names=list(NATIVE))
    assert calls is not None
    assert clients_rows(calls, columns, list(NATIVE)) == [row]


@pytest.mark.parametrize("name", CONVERTED)
def test_columns_that_are_stored_in_another_form_are_left_to_the_server(tmp_path: Path, name: str) -> None:
    found = materialise("changes", tmp_path)
    columns = new_columns(pa.schema([(name, CONVERTED[name])]))
    files = plan(found.fs, found.metadata, found.metadata.snapshots[0].id).files
    assert duckdb_calls(found.fs, found.metadata, columns, files=files, names=[name]) is None


def test_a_column_that_only_looks_like_another_is_left_to_the_server(tmp_path: Path) -> None:
    """DuckDB adds columns of its own to files, and tells no names apart by their case."""
    found = materialise("changes", tmp_path)
    columns = new_columns(pa.schema([("filename", pa.string()), ("a", pa.int64()), ("b", pa.int64())]))
    columns = replace(columns, declared=pa.schema([("filename", pa.string()), ("a", pa.int64()), ("A", pa.int64())]))
    files = plan(found.fs, found.metadata, found.metadata.snapshots[0].id).files
    for names in (["filename"], ["a", "A"]):
        assert duckdb_calls(found.fs, found.metadata, columns, files=files, names=names) is None


def test_defaults_are_in_rows_that_are_older_than_their_column(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    columns = new_columns(pa.schema([("id", pa.int64()), ("added", pa.int64())]))
    file = one_file(found, columns, {"id": 1, "added": None})
    columns.fields[1].update({"id": 77, "initial-default": 9})
    calls = duckdb_calls(found.fs, found.metadata, columns, files=[file], names=["id", "added"])
    assert calls is not None
    assert clients_rows(calls, columns, ["id", "added"]) == [{"id": 1, "added": 9}]


def test_large_tables_are_read_by_several_threads(tmp_path: Path) -> None:
    found = materialise("changes", tmp_path)
    (some, *_) = plan(found.fs, found.metadata, found.metadata.snapshots[0].id).files
    files = [replace(some, path=f"{some.path}{number}", size=64 << 20) for number in range(4)]
    calls = duckdb_calls(found.fs, found.metadata, columns_of(found, 0), files=files, names=["id"])
    assert calls is not None
    assert [path for call in calls for path in call.arguments[0]] == [file.path for file in files]
    assert len(calls) == 4
