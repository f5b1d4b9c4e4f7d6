"""Keys of all types that compare, many rows in little memory, and a model that says what an upsert must do."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkport.catalog.context import CallContext
from sparkport.catalog.row_ids import ROW_ID, data_schema
from sparkport.catalog.scan import ScanRequest
from sparkport.errors import FailedPrecondition, InvalidArgument
from sparkport.handlers.directory import Directory
from sparkport.handlers.upserts import Upserts
from sparkport.memory import MemoryCatalog, MemoryTable
from sparkport.upserts.keys import InputKeys, Matches, Scratch
from sparkport.upserts.model import KeyedChange, KeyedRequest
from sparkport.upserts.spool import RowSpool

pytestmark = pytest.mark.tier("fast")

ID = uuid.UUID(int=7)
FAR_DATES = list(pa.array([2**31 - 1, -(2**31) + 1, 3_000_000], pa.int32()).view(pa.date32()))
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 127]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.decimal128(38, 10), [Decimal("0.0000000001"), Decimal("-1234567890123456789012345678.9")]),
    (pa.decimal64(15, 2), [Decimal("1.10"), Decimal("-1.10")]),
    (pa.decimal256(60, 3), [Decimal("1.100"), Decimal("-0.001"), Decimal(10) ** 40]),
    (pa.string(), ["a", "A", "ä", "a\u0308", "", "a ", "𝄞"]),
    (pa.large_string(), ["a", "b"]),
    (pa.string_view(), ["a", "a longer text than twelve"]),
    (pa.binary(), [b"", b"\x00", b"\xff"]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999)]),
    (pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2026, 3, 29, 2, 30)]),
    (pa.timestamp("ns"), [1, 2**62]),
    (pa.timestamp("us", "Europe/Berlin"), [dt.datetime(2026, 10, 25, h, 30, tzinfo=dt.UTC) for h in (0, 1)]),
    (pa.timestamp("s", "UTC"), [2**63 - 1, -(2**63) + 1, 10**12, 0]),
    (pa.timestamp("ns", "UTC"), [2**63 - 1, 1_001, 1_002]),
    (pa.date32(), FAR_DATES),
    (pa.uuid(), [ID.bytes, bytes(16)]),
    (pa.dictionary(pa.int8(), pa.string()), ["x", "y"]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_each_key_finds_its_own_row_and_no_other(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(values, kind)
    field = pa.field("k", kind)
    keys = InputKeys(Scratch(), [field])
    try:
        keys.append(pa.RecordBatch.from_arrays([column], schema=pa.schema([field])))
        keys.require_distinct()
        reverse = pa.array(values[::-1], kind)
        target = pa.RecordBatch.from_arrays([reverse, pa.array(range(len(values)), pa.int64())], names=["k", ROW_ID])
        assert keys.filter() is None or str(keys.filter())
        matches = keys.matches(iter([target]), ROW_ID)
        assert matches.numbers.tolist() == list(range(len(values)))
        assert matches.row_ids.tolist() == list(range(len(values) - 1, -1, -1))
    finally:
        keys.close()


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_scan_is_limited_to_moments_in_the_unit_of_filters(unit: str) -> None:
    field = pa.field("k", pa.timestamp(unit, "UTC"))
    keys = InputKeys(Scratch(), [field])
    moments = pa.array([dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)] * 2, field.type)
    keys.append(pa.RecordBatch.from_arrays([moments], schema=pa.schema([field])))
    assert str(keys.filter()) == '("k" IN (TIMESTAMP WITH TIME ZONE 1000000))'
    keys.close()


def test_rows_beyond_what_is_held_go_to_disk_and_come_back(tmp_path: Path) -> None:
    rows = pa.table({"id": range(20_000), "name": [f"n{number}" for number in range(20_000)]})
    spool = RowSpool(rows.schema, tmp_path, most_held=10_000)
    for batch in rows.to_batches(max_chunksize=500):
        spool.append(batch)
    for _ in range(2):
        assert pa.Table.from_batches(spool.batches()).equals(rows)
    assert list(tmp_path.iterdir()) == []
    spool.close()
    spool.close()


def test_keys_beyond_what_is_held_are_joined_too() -> None:
    field = pa.field("k", pa.int64())
    keys = InputKeys(Scratch(), [field], most_held=100)
    for start in range(0, 1000, 50):
        keys.append(pa.RecordBatch.from_pydict({"k": pa.array(range(start, start + 50), pa.int64())}))
    target = pa.RecordBatch.from_pydict({"k": pa.array(range(900, 1100)), ROW_ID: pa.array(range(200))})
    matches = keys.matches(iter([target]), ROW_ID)
    assert matches.numbers.tolist() == list(range(900, 1000))
    keys.append(pa.RecordBatch.from_pydict({"k": pa.array([5], pa.int64())}))
    with pytest.raises(InvalidArgument, match=r"\(k\) = \(5\)"):
        keys.require_distinct()
    keys.close()


def test_values_that_become_equal_by_a_cast_are_one_key() -> None:
    catalog = _catalog({})
    rows = pa.table({"id": pa.array([Decimal("1.0"), Decimal("1.0")], pa.decimal128(5, 1)), "v": [1, 2]})
    with pytest.raises(InvalidArgument, match="more than one row"):
        _run(catalog, KeyedChange.UPSERT, rows)
    half = pa.table({"id": pa.array([Decimal("1.5")], pa.decimal128(5, 1)), "v": [1]})
    with pytest.raises(InvalidArgument, match="column 'id'"):
        _run(catalog, KeyedChange.UPSERT, half)


def test_a_declared_key_is_looked_for_again_as_often_as_others_insert_one(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = _catalog({}, primary_key=["id"])
    others, look = iter(range(5)), InputKeys.matches

    def late(keys: InputKeys, rows: Iterator[pa.RecordBatch], row_id: str) -> Matches:
        """Another inserts one of the keys after they have been looked for."""
        found, number = look(keys, rows, row_id), next(others, None)
        if number is not None:
            table = _table(catalog)
            row = pa.RecordBatch.from_pylist([{"id": number, "v": -1}], data_schema(table.schema))
            table.insert(CallContext(), pa.RecordBatchReader.from_batches(row.schema, [row]))
        return found

    monkeypatch.setattr(InputKeys, "matches", late)
    rows = pa.table({"id": pa.array(range(6), pa.int64()), "v": pa.array(range(6), pa.int64())})
    assert _run(catalog, KeyedChange.UPSERT, rows) == ["UPDATE"] * 5 + ["INSERT"]
    assert _contents(catalog) == {number: number for number in range(6)}


Step = tuple[KeyedChange, dict[int, int]]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(KeyedChange), st.dictionaries(st.integers(0, 12), st.integers(-5, 5), max_size=8)),
        max_size=6,
    )
)
def test_what_an_upsert_does_is_what_a_dict_does(steps: list[Step]) -> None:
    model: dict[int, int] = {3: 0, 4: 0}
    catalog = _catalog(model)
    upserts = Upserts(Directory([catalog]), catalog)  # it opens a DuckDB
    for change, rows in steps:
        there = set(model)
        match change:
            case KeyedChange.UPSERT:
                expected = ["UPDATE" if key in there else "INSERT" for key in rows]
                model |= rows
            case KeyedChange.INSERT_MISSING:
                expected = ["NOTHING" if key in there else "INSERT" for key in rows]
                model = rows | model
            case _:
                expected = ["DELETE" if key in there else "NOTHING" for key in rows]
                model = {key: value for key, value in model.items() if key not in rows}
        given_rows = pa.table({"id": pa.array(rows.keys(), pa.int64()), "v": pa.array(rows.values(), pa.int64())})
        assert _run(catalog, change, given_rows, upserts) == expected
        assert _contents(catalog) == model


def _catalog(rows: dict[int, int], primary_key: Sequence[str] = ()) -> MemoryCatalog:
    catalog = MemoryCatalog("lake")
    table = pa.table({"id": pa.array(rows.keys(), pa.int64()), "v": pa.array(rows.values(), pa.int64())})
    catalog.create_table("public.t", table.schema, rows=table, primary_key=primary_key)
    return catalog


def _run(catalog: MemoryCatalog, change: KeyedChange, rows: pa.Table, upserts: Upserts | None = None) -> list[str]:
    upserts = upserts or Upserts(Directory([catalog]), catalog)
    statement = upserts.open(CallContext(), KeyedRequest(change, "public", "t", ("id",)), rows.schema)
    try:
        for batch in rows.to_batches(max_chunksize=3):
            statement.push(batch)
        return [action for batch in statement.finish() for action in batch.column("merge_action").to_pylist()]
    finally:
        statement.close()


def _table(catalog: MemoryCatalog) -> MemoryTable:
    schema = catalog.schema(CallContext(), "public")
    assert schema is not None
    table = schema.table(CallContext(), "t")
    assert isinstance(table, MemoryTable)
    return table


def _contents(catalog: MemoryCatalog) -> dict[int, int]:
    table = _table(catalog)
    scanned = pa.Table.from_batches(list(table.scan(CallContext(), ScanRequest())), table.schema)
    assert len(np.unique(scanned.column("id"))) == scanned.num_rows
    return dict(zip(scanned.column("id").to_pylist(), scanned.column("v").to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        (pa.timestamp("us", "UTC"), 0, "1970-01-01 00:00:00+00:00"),
        (pa.timestamp("us", "UTC"), 2**63 - 1, "infinity"),
        (pa.timestamp("us"), -(2**63) + 1, "-infinity"),
        (pa.timestamp("us"), 864 * 10**15, "29349-01-26 00:00:00.000000"),
        (pa.timestamp("s"), 10**13, "10000000000000 s"),
        (pa.timestamp("ns"), 1_001, "1970-01-01 00:00:00.000001001"),
        (pa.time64("us"), 86_400_000_000, "24:00:00"),
    ],
    ids=str,
)
def test_a_moment_that_is_there_twice_is_named_whatever_it_is(kind: pa.DataType, number: int, text: str) -> None:
    keys = InputKeys(Scratch(), [pa.field("at", kind)])
    try:
        keys.append(pa.RecordBatch.from_arrays([pa.array([number, number], pa.int64()).view(kind)], names=["at"]))
        with pytest.raises(InvalidArgument, match=re.escape(f"the key (at) = ({text})")):
            keys.require_distinct()
        with pytest.raises(FailedPrecondition, match=re.escape(f"the key (at) = ({text})")):
            keys.require_unambiguous(Matches(np.array([0, 0]), np.array([1, 2])))
    finally:
        keys.close()
