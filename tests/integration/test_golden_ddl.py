"""What the real client sent for DDL, played to our server over the memory engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import msgpack
import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.support.duckdb_client import AirportError, Attached, DuckDBClient
from tests.support.golden import Answer, Recorded, load, replay
from tests.support.listing import Entry

from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = load("rows")
QUESTIONS = {
    "reset",
    "create_database",
    "catalog_version",
    "create_transaction",
    "list_schemas",
    "endpoints",
    "flight_info",
}


@contextmanager
def attached(catalog: MemoryCatalog) -> Iterator[Attached]:
    with serving(catalog) as server, DuckDBClient(server.location) as client:
        yield client.attach("lake")


def play(lake: Attached, number: int) -> Answer:
    return replay(lake.client.connection, ROWS[number])


def described(answer: Answer) -> Entry:
    return Entry.decode(answer.result)


def columns(lake: Attached, table: str) -> list[str]:
    lake.list_schemas()
    return lake.table(f"shop.{table}").columns


def test_the_recorded_statements_do_in_order_what_they_say() -> None:
    with attached(MemoryCatalog("lake")) as lake:
        play(lake, 5)  # CREATE SCHEMA
        items = described(play(lake, 9))
        assert items.columns == ["id", "name", "price", "added"]
        assert not items.schema.field("id").nullable
        assert msgpack.unpackb(items.schema.metadata[b"check_constraints"]) == {"constraints": ["(id > 0)"]}
        assert items.metadata["catalog"] == "lake"
        assert items.row_id == "rowid"
        with lake.transaction() as transaction:
            replay(lake.client.connection, ROWS[12], transaction=transaction)
        assert described(play(lake, 78)).columns[-1] == "note"
        assert described(play(lake, 81)).columns[-1] == "remark"
        assert not described(play(lake, 84)).schema.field("name").nullable
        assert described(play(lake, 87)).schema.field("name").nullable
        assert described(play(lake, 90)).schema.field("remark").metadata[b"default"] == b"'none'"
        with pytest.raises(AirportError, match="'id' cannot change from int64 to decimal128") as refused:
            play(lake, 93)  # ALTER COLUMN id TYPE HUGEINT
        assert refused.value.code is grpc.StatusCode.UNIMPLEMENTED
        assert described(play(lake, 96)).columns == ["id", "name", "price", "added"]
        assert described(play(lake, 99)).name == "goods"
        assert columns(lake, "goods") == ["id", "name", "price", "added"]
        assert lake.scan("shop.goods", ["id"]).rows["id"].to_pylist() == [1, 2, 3]
        play(lake, 132)  # DROP SCHEMA … CASCADE
        lake.list_schemas()
        assert "shop" not in lake.schemas


def test_create_table_as_select_fills_the_table_inside_a_transaction_that_is_older_than_it() -> None:
    catalog = MemoryCatalog("lake")
    catalog.new_schema("shop")
    with attached(catalog) as lake:
        with lake.transaction() as transaction:
            play(lake, 102)
            replay(lake.client.connection, ROWS[103], transaction=transaction)
        lake.list_schemas()
        rows = lake.scan("shop.nest").rows.to_pylist()
        nested = lake.scan("shop.nest", at=("VERSION", "1")).rows.to_pylist()
    assert [row["s"] for row in rows] == [{"a": 1, "b": "x"}]
    assert nested == rows


def test_fields_of_structs_as_the_client_sends_them() -> None:
    catalog = MemoryCatalog("lake")
    catalog.new_schema("shop")
    with attached(catalog) as lake:
        play(lake, 102)
        with pytest.raises(AirportError, match="does not send the name of a field that is added to 's'") as unnamed:
            play(lake, 106)
        assert unnamed.value.code is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(AirportError, match="field 'c' does not exist") as missing:
            play(lake, 109)
        assert missing.value.code is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(AirportError, match="field 'd' does not exist"):
            play(lake, 112)
        play(lake, 124)  # DROP TABLE
        lake.list_schemas()
        assert not lake.schemas["shop"].entries


def test_every_recorded_change_of_the_catalog_is_played_here() -> None:
    recorded = {number for number, call in ROWS.items() if call.action not in {None, *QUESTIONS}}
    assert recorded == {5, 9, 39, 78, 81, 84, 87, 90, 93, 96, 99, 102, 106, 109, 112, 124, 132}


# A column of every type

CREATED = [
    pytest.param(call, id=f"{recording}-{call.body[b'table_name'].decode()}")
    for recording in ("types", "types_lossless")
    for call in load(recording).values()
    if call.action == "create_table"
]


@pytest.mark.parametrize("call", CREATED)
def test_a_recorded_create_table_makes_a_table_of_that_type(call: Recorded) -> None:
    catalog = MemoryCatalog("lake")
    schema = call.body[b"schema_name"].decode()
    catalog.new_schema(schema)
    wanted = pa.ipc.read_schema(pa.py_buffer(call.body[b"arrow_schema"]))
    with attached(catalog) as lake:
        info = pf.FlightInfo.deserialize(replay(lake.client.connection, call).result)
        lake.list_schemas()
        listed = lake.table(f"{schema}.{call.body[b'table_name'].decode()}")
    for found in (info.schema, listed.schema):
        assert found.remove(len(wanted)).equals(wanted)


def test_pair_as_recorded_is_a_table_without_constraints() -> None:
    catalog = MemoryCatalog("lake")
    catalog.new_schema("shop")
    with attached(catalog) as lake:
        pair = described(play(lake, 39))
    assert pair.columns == ["name", "age"]
    assert b"check_constraints" not in (pair.schema.metadata or {})
    assert all(column.nullable for column in pair.schema if column.name != "rowid")
