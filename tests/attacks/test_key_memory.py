"""The values of keys have one budget, over all keys of a commit and over all commits."""

from __future__ import annotations

import gc
import threading
import uuid
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableSchema, TableDefinition
from sparkport.catalog.key_values import KeyValues
from sparkport.catalog.keys import Key
from sparkport.catalog.scan import ScanRequest, as_scan
from sparkport.catalog.statement import ChangeableTable
from sparkport.errors import DuplicateKey, ResourceExhausted
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.write import key_room
from sparkport.lakehouse.write.key_room import CommitRoom, KeyRoom

pytestmark = pytest.mark.tier("fast")

MEGABYTE = 1 << 20


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> KeyRoom:
    small = KeyRoom(16 * MEGABYTE, wait_seconds=0.0)
    monkeypatch.setattr(key_room, "ROOM", small)
    return small


def table_with_keys(lake: Lakehouse, count: int) -> ChangeableTable:
    ctx = CallContext()
    schema = lake.catalog.schema(ctx, "public") or lake.catalog.create_schema(ctx, "public")
    assert isinstance(schema, MutableSchema)
    names = [f"k{number}" for number in range(count)]
    definition = TableDefinition(
        name=f"t{uuid.uuid4().hex}",
        columns=pa.schema([(name, pa.string()) for name in names]),
        keys=tuple(Key((name,)) for name in names),
    )
    table = schema.create_table(ctx, definition)
    assert isinstance(table, ChangeableTable)
    return table


def rows(table: ChangeableTable, numbers: Sequence[int]) -> pa.RecordBatchReader:
    """A megabyte in each column for every hundred rows."""
    columns = pa.schema([field for field in table.schema if field.name != "rowid"])
    texts = pa.array([f"{number:010}" + "x" * 10_475 for number in numbers])
    return pa.table([texts] * len(columns), schema=columns).to_reader(100)


def row_ids(lake: Lakehouse, name: str) -> pa.Int64Array:
    ctx = CallContext()
    schema = lake.catalog.schema(ctx, "public")
    table = None if schema is None else schema.table(ctx, name)
    assert table is not None
    scan = as_scan(table.scan(ctx, ScanRequest(columns=("rowid",))))
    return pa.concat_arrays([pa.array([], pa.int64()), *(batch.column("rowid") for batch in scan)])


def test_all_keys_of_a_commit_share_the_room(attacked_lakehouse: Lakehouse, room: KeyRoom) -> None:
    table, ctx = table_with_keys(attacked_lakehouse, 8), CallContext()

    with pytest.raises(ResourceExhausted, match="values of keys"):
        table.insert(ctx, rows(table, range(400)))  # 4 MB in each of eight keys
    assert len(row_ids(attacked_lakehouse, table.name)) == 0
    table.insert(ctx, rows(table, range(100)))
    assert len(row_ids(attacked_lakehouse, table.name)) == 100
    with pytest.raises(DuplicateKey):
        table.insert(ctx, rows(table, range(99, 150)))
    gc.collect()
    assert room.taken == 0


def test_values_that_are_given_to_rows_are_charged_as_well(attacked_lakehouse: Lakehouse, room: KeyRoom) -> None:
    table, ctx = table_with_keys(attacked_lakehouse, 2), CallContext()
    for start in range(0, 600, 200):
        table.insert(ctx, rows(table, range(start, start + 200)))
    ids = row_ids(attacked_lakehouse, table.name)

    with pytest.raises(ResourceExhausted, match="values of keys"):
        table.update(ctx, ids, rows(table, range(1_000, 1_600)))
    gc.collect()
    assert room.taken == 0


def test_a_commit_waits_for_another_that_has_the_room() -> None:
    room = KeyRoom(100)
    first, second = CommitRoom(room), CommitRoom(room)
    first.take(80)
    went_on = threading.Event()

    def wait() -> None:
        second.take(50)
        went_on.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not went_on.is_set()
    first.give_back(80)
    assert went_on.wait(30)
    thread.join()
    assert room.taken == 50


def test_a_commit_that_has_some_room_does_not_wait_for_more() -> None:
    room = KeyRoom(100)
    first, second = CommitRoom(room), CommitRoom(room)
    first.take(60)
    second.take(30)
    with pytest.raises(ResourceExhausted):
        second.take(30)
    with pytest.raises(ResourceExhausted):
        CommitRoom(room).take(101)
    assert room.taken == 90


def test_room_is_given_back_when_the_values_are_gone() -> None:
    room = KeyRoom(MEGABYTE)
    values = KeyValues([pa.array(range(1_000), pa.int64())])
    commit = CommitRoom(room)
    commit.take(50_000)
    commit.leave_to(values, 50_000)
    assert room.taken == values.nbytes == 8_000
    del values
    gc.collect()
    assert room.taken == 0


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint32(), pa.string()], ids=str)
def test_a_value_that_is_there_twice_is_found_in_every_type(kind: pa.DataType) -> None:
    random = np.random.default_rng(7)
    for repeats in (0, 1, 3):
        numbers = random.permutation(100).tolist()
        values = KeyValues([pa.array([*numbers, None, None, *numbers[:repeats]], pa.int64()).cast(kind)])
        found = values.repeated()
        assert (found is not None) == bool(repeats)
        if found is not None:
            assert int(found[0][0].as_py()) in numbers[:repeats]
            assert found[0].type == kind
