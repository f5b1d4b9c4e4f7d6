"""Lists, structs and maps come from Arrow just as DuckDB would have read them, whatever was in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkport.catalog.memory_sizes import cuts
from sparkport.errors import InternalError
from sparkport.filters.expressions import Column, Comparison, Literal, SqlType
from sparkport.lakehouse.columns.type_table import known_type
from sparkport.lakehouse.columns.types import stored_type
from sparkport.lakehouse.iceberg.manifests import DataFile, DeleteFile
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.plan import SnapshotPlan
from sparkport.lakehouse.scan import decoded, deleted_rows, direct, query, read
from sparkport.lakehouse.scan.limits import Ways
from sparkport.lakehouse.scan.nested import as_handed_out
from sparkport.lakehouse.scan.read import Reader

pytestmark = pytest.mark.tier("fast")

LEAVES = ("string", "long", "boolean", "double", "date", "timestamptz", "binary", "decimal(12, 3)", "uuid", "fixed[4]")
BIGINT = SqlType("BIGINT")


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def noted(*args: Any, **options: Any) -> str:
        found.append(query.group_sql(*args, **options))
        return found[-1]

    monkeypatch.setattr(read, "group_sql", noted)
    return found


def some_type(chance: random.Random, ids: Iterator[int], depth: int = 0) -> Any:
    kind = chance.choice(["list", "struct", "map", "leaf"] if depth < 3 else ["leaf"]) if depth else "struct"
    if kind == "list":
        return {"type": "list", "element-id": next(ids), "element": some_type(chance, ids, depth + 1)}
    if kind == "map":
        entries = {"key-id": next(ids), "value-id": next(ids), "value-required": False}
        return {"type": "map", "key": "string", "value": some_type(chance, ids, depth + 1), **entries}
    if kind == "struct":
        fields = [
            {"id": next(ids), "name": f"f{place}", "type": some_type(chance, ids, depth + 1), "required": False}
            for place in range(chance.randint(1, 3))
        ]
        return {"type": "struct", "fields": fields}
    return chance.choice(LEAVES)


def with_ids(field: pa.Field, field_id: int, kind: Any) -> pa.Field:
    """A field as Iceberg's writers mark it."""
    known = known_type(kind)
    made = field.type if known is None or known.in_files is None else known.in_files
    match kind:
        case {"type": "struct", "fields": fields}:
            made = pa.struct(
                [with_ids(made.field(place), part["id"], part["type"]) for place, part in enumerate(fields)]
            )
        case {"type": "list"}:
            made = pa.list_(with_ids(made.value_field.with_name("element"), kind["element-id"], kind["element"]))
        case {"type": "map"}:
            key = with_ids(made.key_field, kind["key-id"], kind["key"])
            made = pa.map_(key, with_ids(made.item_field, kind["value-id"], kind["value"]))
    return pa.field(field.name, made, field.nullable, {b"PARQUET:field_id": str(field_id).encode()})


def as_bytes(kind: pa.DataType) -> pa.DataType:
    """The same with bytes for UUIDs: Arrow makes no nested ones of Python's values."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(as_bytes(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(as_bytes(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(as_bytes(kind.item_type)))
    return pa.binary(16) if kind == pa.uuid() else kind


def some_value(chance: random.Random, kind: Any) -> Any:
    if chance.random() < 0.15:
        return None
    match kind:
        case {"type": "struct", "fields": fields}:
            return {field["name"]: some_value(chance, field["type"]) for field in fields}
        case {"type": "list", "element": element}:
            return [some_value(chance, element) for _ in range(chance.randint(0, 4))]
        case {"type": "map", "value": value}:
            return [(f"k{place}", some_value(chance, value)) for place in range(chance.randint(0, 3))]
        case "string":
            return chance.choice("abc") * chance.choice([0, 1, 40, 900])
        case "uuid":
            return chance.randbytes(16)
        case "fixed[4]":
            return chance.randbytes(4)
        case "binary":
            return b"\x00x" * chance.randint(0, 3)
        case "boolean":
            return chance.random() < 0.5
        case "double":
            return chance.choice([0.0, -1.5, float("inf")])
        case "decimal(12, 3)":
            return Decimal(chance.randint(-999, 999)).scaleb(-3)
    return chance.randint(0, 20_000)


def made(chance: random.Random, path: Path, rows: int) -> tuple[TableMetadata, DataFile]:
    kind = some_type(chance, iter(range(10, 1_000)))
    fields = [
        {"id": 1, "name": "id", "type": "long", "required": False},
        {"id": 2, "name": "v", "type": kind, "required": False},
    ]
    schema = pa.schema(
        [with_ids(pa.field(field["name"], stored_type(field["type"])), field["id"], field["type"]) for field in fields]
    )
    column = schema.field("v").type
    values = pa.array([some_value(chance, kind) for _ in range(rows)], as_bytes(column)).cast(column)
    table = pa.table([pa.array(range(rows), pa.int64()), values], schema=schema)
    options: dict[str, Any] = {"use_dictionary": chance.random() < 0.7, "data_page_size": chance.choice([64, 1 << 20])}
    pq.write_table(table, path, store_schema=False, row_group_size=chance.choice([7, 50, 1_000]), **options)
    numbers: dict[str, Any] = {"sequence_number": 7, "file_sequence_number": 7, "first_row_id": 100, "spec_id": 0}
    bounds: dict[str, Any] = {f"{name}_bounds": {} for name in ("lower", "upper")}
    counts: dict[str, Any] = {f"{name}_counts": {} for name in ("null", "nan", "value")}
    size = path.stat().st_size
    file = DataFile(str(path), "parquet", record_count=rows, size=size, partition=(), **numbers, **bounds, **counts)
    return TableMetadata({"location": "/x", "schemas": [{"schema-id": 0, "fields": fields}]}), file


@pytest.mark.parametrize("seed", range(25))
def test_nobody_can_tell_the_two_readers_apart(
    reader: Reader, tmp_path: Path, queries: list[str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    metadata, file = made(chance, tmp_path / "a.parquet", chance.choice([1, 30, 200]))
    gone = np.array(sorted(chance.sample(range(file.record_count), file.record_count // 5)), np.int64)
    delete = DeleteFile("/x/dv", 8, len(gone), 0, (), offset=4, length=40)
    for module in (direct, deleted_rows):
        monkeypatch.setattr(module, "deleted_positions", lambda fs, file: gone)
    monkeypatch.setattr(decoded, "_MOST_BYTES", chance.choice([200, 5_000, 8 << 20]))
    monkeypatch.setattr(decoded, "_LEAST_BYTES", 100)
    asked: list[dict[str, Any]] = [
        {},
        {"row_id": True, "columns": ["v"]},
        {"filter": Comparison("<", Column("id", BIGINT), Literal(20, BIGINT))},
        {"row_ids": np.arange(100, 300, 3, dtype=np.int64)},
    ]

    def read_by(*, arrow: bool) -> list[pa.Table]:
        with monkeypatch.context() as patched:
            if not arrow:
                patched.setattr(direct, "is_direct", lambda kind: False)
            plans = [SnapshotPlan(None, 0, 7, (found,)) for found in (file, replace(file, deletes=(delete,)))]
            streams = (reader.scan(metadata, plan, **options) for plan in plans for options in asked)
            return [pa.Table.from_batches(list(stream), stream.schema) for stream in streams]

    by_arrow = read_by(arrow=True)
    assert not queries
    for mine, others in zip(by_arrow, read_by(arrow=False), strict=True):
        mine.validate(full=True)
        assert mine.schema == others.schema
        assert mine.to_pylist() == others.to_pylist()
    assert queries


def test_a_struct_whose_fields_have_other_ids_is_left_to_duckdb(
    reader: Reader, tmp_path: Path, queries: list[str]
) -> None:
    metadata, file = made(random.Random(1), tmp_path / "a.parquet", 20)
    fields = metadata.current_schema["fields"]
    before = fields[1]["type"]["fields"]
    fields[1]["type"]["fields"] = [{**field, "id": field["id"] + 500} for field in before]
    list(reader.scan(metadata, SnapshotPlan(None, 0, 7, (file,))))
    assert len(queries) == 1


@pytest.mark.parametrize("small", [True, False])
def test_rows_that_arrow_does_not_find_are_missed(reader: Reader, tmp_path: Path, small: bool) -> None:
    """It reads a list's column up to a page without values, such as this writer makes of one row, and says nothing."""
    reader.ways = Ways() if small else Ways(small_bytes=0)
    kind = {"type": "list", "element-id": 3, "element": "long"}
    fields = [{"id": 2, "name": "v", "type": kind, "required": False}]
    field = with_ids(pa.field("v", stored_type(kind)), 2, kind)
    table = pa.table([pa.array([[1]], field.type)], schema=pa.schema([field]))
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, store_schema=False, data_page_size=1)
    _, other = made(random.Random(1), tmp_path / "b.parquet", 1)
    file = replace(other, path=str(path), size=path.stat().st_size)
    metadata = TableMetadata({"location": "/x", "schemas": [{"schema-id": 0, "fields": fields}]})

    with pytest.raises(InternalError):
        list(reader.scan(metadata, SnapshotPlan(None, 0, 7, (file,))))


def test_parts_of_nested_columns_take_no_more_than_they_may() -> None:
    texts = [["x" * 100] * (number % 30) for number in range(500)]
    nested = pa.array([{"a": value, "b": {"c": "y" * 50}} for value in texts])
    parts = [nested.slice(start, count) for start, count in cuts([nested], 20_000)]

    assert len(parts) > 10
    assert [row for part in parts for row in part.to_pylist()] == nested.to_pylist()
    sizes = [as_handed_out(part, nested.type).nbytes for part in parts]
    assert all(8_000 < size < 24_000 for size in sizes[:-1])
