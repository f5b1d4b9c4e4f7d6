"""What the real client sent for row changes, played to our server: the tables must then hold what SQL says.

The row ids in the recordings are another server's. They are taken as they stand: what must change is the rows of ours
that have those ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgpack
import pyarrow as pa
import pytest
from tests.support import golden_catalog as shop
from tests.support.duckdb_client import Attached, DuckDBClient
from tests.support.golden import Answer, Recorded, load, replay

from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = load("rows")


@dataclass(frozen=True, slots=True)
class RowsCase:
    number: int
    table: str
    before: pa.Table
    returning: bool = False


INSERTS = [
    RowsCase(12, "items", shop.ITEMS),
    RowsCase(15, "items", shop.ITEMS),
    RowsCase(30, "items", shop.ITEMS, returning=True),
    RowsCase(42, "pair", shop.PAIR),
    RowsCase(63, "items", shop.MORE_ITEMS),
    RowsCase(69, "items", shop.ITEMS, returning=True),
    RowsCase(103, "nest", shop.NEST),
]
UPDATES = [RowsCase(34, "items", shop.MORE_ITEMS), RowsCase(46, "pair", shop.PAIR, returning=True)]
DELETES = [
    RowsCase(52, "items", shop.MORE_ITEMS, returning=True),
    RowsCase(58, "items", shop.MORE_ITEMS),
    RowsCase(73, "items", shop.MANY_ITEMS),
]


@contextmanager
def attached(catalog: MemoryCatalog) -> Iterator[Attached]:
    with serving(catalog) as server, DuckDBClient(server.location) as client:
        yield client.attach("lake")


def served(case: RowsCase) -> MemoryCatalog:
    return shop.shop_catalog(case.before if case.table == "items" else shop.ITEMS)


def play(lake: Attached, case: RowsCase) -> tuple[Answer, int]:
    """The answer, and the count that DuckDB shows."""
    with lake.transaction() as transaction:
        answer = replay(lake.client.connection, ROWS[case.number], transaction=transaction)
    return answer, msgpack.unpackb(answer.marks()[-1])["total_changed"]


def sent(case: RowsCase) -> pa.Table:
    return pa.Table.from_batches(ROWS[case.number].sent_batches())


def stored(lake: Attached, table: str) -> list[dict[str, object]]:
    """All rows with their ids."""
    entry = lake.table(f"shop.{table}")
    rows: list[dict[str, object]] = lake.scan(f"shop.{table}", [*entry.columns, "rowid"]).rows.to_pylist()
    return rows


def without_ids(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "rowid"} for row in rows]


def batches(answer: Answer) -> int:
    return sum(1 for message in answer.flight_data() if message.body or message.header) - 1


@pytest.mark.parametrize("case", INSERTS, ids=lambda case: f"call_{case.number}")
def test_a_recorded_insert_adds_its_rows_at_the_end(case: RowsCase) -> None:
    with attached(served(case)) as lake:
        before = stored(lake, case.table)
        answer, count = play(lake, case)
        after = stored(lake, case.table)
    rows = sent(case)
    assert count == rows.num_rows
    assert after[: len(before)] == before
    assert without_ids(after[len(before) :]) == rows.to_pylist()
    if case.returning:
        assert without_ids(answer.table().to_pylist()) == rows.to_pylist()
        assert batches(answer) == len(list(ROWS[case.number].sent_batches()))


@pytest.mark.parametrize("case", UPDATES, ids=lambda case: f"call_{case.number}")
def test_a_recorded_update_changes_its_columns_and_answers_in_the_order_sent(case: RowsCase) -> None:
    with attached(served(case)) as lake:
        before = {row["rowid"]: row for row in stored(lake, case.table)}
        answer, count = play(lake, case)
        after = {row["rowid"]: row for row in stored(lake, case.table)}
    changes = {row["rowid"]: row for row in sent(case).to_pylist()}
    assert changes.keys() <= before.keys()
    assert count == len(changes)
    assert after == {row_id: {**row, **changes.get(row_id, {})} for row_id, row in before.items()}
    if case.returning:
        assert answer.table().column_names == sent(case).column_names
        assert answer.table().to_pylist() == sent(case).to_pylist()


@pytest.mark.parametrize("case", DELETES, ids=lambda case: f"call_{case.number}")
def test_a_recorded_delete_removes_the_rows_it_names_and_skips_those_that_are_not_there(case: RowsCase) -> None:
    with attached(served(case)) as lake:
        before = stored(lake, case.table)
        answer, count = play(lake, case)
        after = stored(lake, case.table)
    named = set(sent(case)["rowid"].to_pylist())
    gone = [row for row in before if row["rowid"] in named]
    assert gone
    assert count == len(gone)
    assert after == [row for row in before if row["rowid"] not in named]
    if case.returning:
        assert without_ids(answer.table().to_pylist()) == without_ids(gone)


# A value of every type


def typed_inserts(recording: str) -> Iterator[tuple[str, pa.Schema, Recorded]]:
    """Each recorded INSERT with its table's name and the schema that CREATE TABLE gave it."""
    schemas: dict[str, pa.Schema] = {}
    for call in load(recording).values():
        if call.action == "create_table":
            name = call.body[b"table_name"].decode()
            schemas[name] = pa.ipc.read_schema(pa.py_buffer(call.body[b"arrow_schema"]))
        elif call.headers.get("airport-operation") == "insert":
            name = call.headers["airport-flight-path"].rpartition("/")[2]
            yield name, schemas[name], call


TYPED = [
    pytest.param(schema, name, call, id=f"{recording}-{name}-{schema.field(0).type}")
    for recording in ("types", "types_lossless")
    for name, schema, call in typed_inserts(recording)
]


@pytest.mark.parametrize(("schema", "name", "call"), TYPED)
def test_a_recorded_value_of_each_type_comes_back_as_it_was_sent(schema: pa.Schema, name: str, call: Recorded) -> None:
    catalog = MemoryCatalog("lake")
    catalog.new_schema("k")
    catalog.create_table(f"k.{name}", schema)
    rows = pa.Table.from_batches(call.sent_batches())
    with attached(catalog) as lake:
        replay(lake.client.connection, call)
        back = lake.scan(f"k.{name}").rows
    assert back.schema.field(0).type == schema.field(0).type
    assert back.column(0).to_pylist() == rows.column(0).to_pylist()
