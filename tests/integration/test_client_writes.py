"""Row changes through the Python client, on a real server over the memory engine."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sparkport.app import Server
from sparkport.catalog.builder import CatalogBuilder
from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import Scannable, ScanRequest
from sparkport.catalog.statement import Statement
from sparkport.catalog.table import DMLOptions, DMLResult, InsertableTable
from sparkport.client import Client, WriteResult, col, connect
from sparkport.client.connection import Outbox
from sparkport.errors import (
    Conflict,
    ConstraintViolation,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
)
from sparkport.memory import MemoryCatalog, MemoryTable
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

USERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("level", pa.int32(), metadata={"default": "7"}),
    ]
)
ANN, BOB = {"id": 1, "name": "ann", "level": 1}, {"id": 2, "name": "bob", "level": 2}
TWO = pa.Table.from_pylist([ANN, BOB], USERS)


@pytest.fixture
def catalog() -> MemoryCatalog:
    catalog = MemoryCatalog()
    catalog.create_table("public.users", USERS)
    return catalog


@pytest.fixture
def server(catalog: MemoryCatalog) -> Iterator[Server]:
    with serving(catalog) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.location) as client:
        yield client


def stored(client: Client) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.scan("public.users").read_all().to_pylist()
    return rows


def ids(client: Client, *names: str) -> list[int]:
    rows = client.scan("public.users", columns=["name"], row_id=True).read_all().to_pylist()
    return [row["rowid"] for row in rows if not names or row["name"] in names]


class Stream:
    """Rows that can be had once, in no class that the client knows."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return TWO.to_reader().__arrow_c_stream__(requested_schema)


# INSERT


@pytest.mark.parametrize(
    "rows",
    [
        TWO,
        TWO.to_batches()[0],
        TWO.to_reader(),
        TWO.to_batches(max_chunksize=1),
        iter(TWO.to_batches(max_chunksize=1)),
        [ANN, BOB],
        (ANN, BOB),
        Stream(),
        TWO.to_pandas(),
        pl.DataFrame(TWO),
        TWO.select(["level", "id", "name"]),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_rows_of_every_kind_are_inserted(client: Client, rows: Any) -> None:
    assert client.insert("public.users", rows) == WriteResult(2, None)
    assert stored(client) == [ANN, BOB]


def test_columns_of_dicts_are_found_without_regard_to_case_and_gaps_are_null(client: Client) -> None:
    assert client.insert("users", [{"ID": 1, "Level": 3}, {"ID": 2, "Level": 4, "name": "x"}]).count == 2
    assert stored(client) == [{"id": 1, "name": None, "level": 3}, {"id": 2, "name": "x", "level": 4}]


def test_a_column_with_a_default_may_be_left_out(client: Client) -> None:
    result = client.insert("public.users", [{"id": 1, "name": "ann"}], returning=True)
    assert result.rows is not None
    assert result.rows.to_pylist() == [{"id": 1, "name": "ann", "level": 7}]
    assert stored(client)[0]["level"] == 7


@pytest.mark.parametrize("rows", [[], TWO.slice(0, 0), iter([])], ids=["list", "table", "iterator"])
def test_no_rows_are_no_change(client: Client, rows: Any) -> None:
    assert client.insert("public.users", rows).count == 0
    assert client.update("public.users", TWO.slice(0, 0), row_ids=[]).count == 0
    assert client.delete("public.users", []).count == 0


def test_inserted_rows_come_back_with_the_columns_asked_for(client: Client) -> None:
    assert client.insert("public.users", TWO, returning=True).rows == TWO
    result = client.insert("public.users", TWO, returning=["Name", "rowid"])
    assert result.count == 2
    assert result.rows is not None
    assert result.rows.column_names == ["name", "rowid"]
    assert result.rows.column("rowid").to_pylist() == ids(client)[2:]


def test_rows_come_back_for_many_batches_and_for_batches_of_several_messages(client: Client) -> None:
    count = 150_000
    text = ["x" * 80] * count
    rows = pa.table({"id": range(count), "name": text, "level": pa.array(range(count), pa.int32())})
    assert client.insert("public.users", rows, returning=["id"]).rows == rows.select(["id"]).cast(
        USERS.empty_table().select(["id"]).schema
    )
    whole = rows.combine_chunks().to_batches()[0]
    result = client.insert("public.users", whole, returning=["id"])
    assert result.rows is not None
    assert (result.count, result.rows.num_rows) == (count, count)


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([{"id": None, "name": "x", "level": 1}], ConstraintViolation, r"NOT NULL constraint failed: users\.id"),
        (TWO.select(["id"]), InvalidArgument, "column mismatch: table has 3 columns, input has 1"),
        (TWO.rename_columns(["id", "nick", "level"]), InvalidArgument, "'nick' is not in the table"),
        (TWO.set_column(2, "level", [["a", "b"]]), InvalidArgument, "column 'level' is int32, input has string"),
        ([{"id": 1, "rank": 2}], InvalidArgument, "'rank', which is not a column"),
        ([{"id": "x"}], InvalidArgument, "column 'id' cannot be int64"),
        ([ANN, 5], InvalidArgument, "rows must be an Arrow table"),
        (iter([ANN]), InvalidArgument, "rows must be an Arrow table"),
        ("text", InvalidArgument, "rows must be an Arrow table"),
        (7, InvalidArgument, "rows must be an Arrow table"),
        ([TWO.to_batches()[0], TWO.select(["id"]).to_batches()[0]], InvalidArgument, "schema of the first"),
    ],
)
def test_rows_that_do_not_fit_change_nothing(client: Client, rows: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        client.insert("public.users", rows)
    assert stored(client) == []


def test_unknown_columns_to_return_and_unknown_tables_are_errors_that_change_nothing(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="has no column 'rank'"):
        client.insert("public.users", TWO, returning=["rank"])
    with pytest.raises(InvalidArgument, match="not one text"):
        client.insert("public.users", TWO, returning="id")
    with pytest.raises(NotFound, match=r"table 'public\.nobody' not found"):
        client.insert("public.nobody", TWO)
    assert stored(client) == []


def test_a_table_that_takes_no_rows_says_so() -> None:
    with (
        serving(CatalogBuilder().schema("public").table("fixed", TWO).build()) as server,
        connect(server.location) as client,
    ):
        with pytest.raises(FailedPrecondition, match="does not support INSERT operations"):
            client.insert("fixed", TWO)
        with pytest.raises(FailedPrecondition, match=r"does not support DELETE \(no rowid\)"):
            client.delete("fixed", [1])


def test_an_error_while_making_the_rows_is_raised_as_it_is_and_changes_nothing(client: Client) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield TWO.to_batches()[0]
        raise ZeroDivisionError("mine")

    for returning in (False, True):
        with pytest.raises(ZeroDivisionError, match="mine"):
            client.insert("public.users", failing(), returning=returning)
    assert stored(client) == []


def test_a_null_in_the_middle_of_an_endless_stream_ends_it_with_the_servers_error(client: Client) -> None:
    bad = pa.RecordBatch.from_arrays([pa.nulls(1, pa.int64()), ["x"], pa.array([1], pa.int32())], names=USERS.names)
    good = pa.RecordBatch.from_arrays([[1], ["x"], pa.array([1], pa.int32())], names=USERS.names)

    def endless() -> Iterator[pa.RecordBatch]:
        yield good
        yield bad
        while True:
            yield good

    with pytest.raises(ConstraintViolation, match="NOT NULL"):
        client.insert("public.users", endless())
    assert stored(client) == []


# Streaming


def test_a_stream_is_taken_no_faster_than_the_server_takes_it(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, open_statement = threading.Event(), MemoryTable.open_statement

    def held(table: MemoryTable, ctx: CallContext, request: Any) -> Statement:
        gate.wait(60)
        return open_statement(table, ctx, request)

    monkeypatch.setattr(MemoryTable, "open_statement", held)
    rows = 10_000
    batch = pa.RecordBatch.from_arrays(
        [np.arange(rows), pa.array(["y" * 90] * rows), pa.array(np.arange(rows), pa.int32())], names=USERS.names
    )
    made: list[int] = []
    started = threading.Event()
    total = 100  # a million rows, a hundred megabytes
    stalled = threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(total):
            made.append(number)
            started.set()
            yield batch
        stalled.set()

    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(client.insert("public.users", batches()).count))
    thread.start()
    assert started.wait(30)
    assert not stalled.wait(0.5)
    assert len(made) < 20
    gate.set()
    thread.join(60)
    assert counts == [rows * total]
    assert len(made) == total


def test_an_outbox_has_room_for_a_few_messages_and_wakes_who_waits_when_the_call_is_over() -> None:
    outbox = Outbox(room=1)
    assert outbox.put_when_room(b"1")
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(outbox.put_when_room(b"2")))
    thread.start()
    outbox.drop()
    thread.join(10)
    assert answers == [False]
    assert list(outbox) == []


def test_what_is_in_an_outbox_at_the_end_of_input_is_still_sent() -> None:
    outbox = Outbox()
    for number in range(5):
        outbox.put(b"%d" % number)
    outbox.close()
    assert list(outbox) == [b"0", b"1", b"2", b"3", b"4"]
    assert not outbox.put_when_room(b"late")


# UPDATE


def test_an_update_changes_the_columns_it_carries(client: Client) -> None:
    client.insert("public.users", TWO)
    first, second = ids(client)
    assert client.update("public.users", [{"rowid": first, "name": "anna"}]).count == 1
    assert (
        client.update("public.users", row_ids=[second], rows=pa.table({"level": pa.array([9], pa.int32())})).count == 1
    )
    assert stored(client) == [ANN | {"name": "anna"}, BOB | {"level": 9}]


def test_a_scan_with_row_ids_can_be_changed_and_sent_back(client: Client) -> None:
    client.insert("public.users", TWO)
    rows = client.scan("public.users", filter=col("id") == 2, row_id=True).read_all()
    changed = rows.set_column(1, "name", [["rob"]])
    result = client.update("public.users", changed, returning=True)
    assert result.count == 1
    assert result.rows is not None
    assert result.rows.to_pylist() == [BOB | {"name": "rob"}]
    assert stored(client) == [ANN, BOB | {"name": "rob"}]


def test_an_update_returns_columns_that_it_carries(client: Client) -> None:
    client.insert("public.users", TWO)
    rows, found = pa.table({"name": ["x"]}), ids(client, "ann")
    result = client.update("public.users", rows, row_ids=found, returning=["rowid", "name"])
    assert result.rows is not None
    assert result.rows.to_pydict() == {"rowid": found, "name": ["x"]}
    with pytest.raises(InvalidArgument, match="has no column 'level'"):
        client.update("public.users", rows, row_ids=ids(client)[:1], returning=["level"])


def test_ids_that_are_not_there_are_skipped_and_not_counted(client: Client) -> None:
    client.insert("public.users", TWO)
    first = ids(client)[0]
    assert client.update("public.users", pa.table({"name": ["x", "y"]}), row_ids=[first, 999]).count == 1
    assert client.delete("public.users", [first, 998]).count == 1
    with pytest.raises(Conflict, match="row 997 is gone"):
        client.delete("public.users", [997], returning=True)
    assert stored(client) == [BOB]


@pytest.mark.parametrize(
    ("rows", "row_ids", "message"),
    [
        (pa.table({"name": ["x", "y"]}), [0], r"row_ids count \(1\) does not match input rows \(2\)"),
        (pa.table({"name": ["x"]}), [0, 1], r"row_ids count \(2\) does not match input rows \(1\)"),
        (pa.table({"name": ["x"]}), None, "UPDATE requires rowid column"),
        (pa.table({"name": ["x"], "rowid": [0]}), [0], "have a rowid column too"),
        (pa.table({"rank": ["x"], "rowid": [0]}), None, "'rank' is not in the table"),
        (pa.table({"name": ["x"]}), ["0"], "row ids must be whole numbers"),
        (pa.table({"name": ["x"]}), [None], "rowid must not be null"),
    ],
)
def test_updates_that_do_not_fit_change_nothing(client: Client, rows: Any, row_ids: Any, message: str) -> None:
    client.insert("public.users", TWO)
    with pytest.raises(InvalidArgument, match=message):
        client.update("public.users", rows, row_ids=row_ids)
    assert stored(client) == [ANN, BOB]


# DELETE


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        set,
        iter,
        np.array,
        pa.array,
        pd.Series,
        pl.Series,
        lambda found: pa.chunked_array([found]),
        lambda found: pa.table({"rowid": found, "other": found}),
        lambda found: pa.record_batch({"rowid": found}),
        lambda found: pa.table({"rowid": found}).to_reader(),
        lambda found: pl.DataFrame({"rowid": found}),
    ],
)
def test_rows_are_deleted_by_ids_of_every_kind(client: Client, form: Any) -> None:
    client.insert("public.users", TWO)
    assert client.delete("public.users", form(ids(client, "ann"))).count == 1
    assert stored(client) == [BOB]


def test_what_a_scan_finds_can_be_deleted_and_comes_back_as_it_was(client: Client) -> None:
    client.insert("public.users", TWO)
    found = client.scan("public.users", columns=[], filter=col("name") == "bob", row_id=True)
    result = client.delete("public.users", found, returning=True)
    assert result.rows is not None
    assert result.rows.to_pylist() == [BOB]
    assert stored(client) == [ANN]


def test_rows_without_ids_cannot_be_deleted_by(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="no rowid column"):
        client.delete("public.users", TWO)
    with pytest.raises(InvalidArgument, match="whole numbers"):
        client.delete("public.users", [1.5])


# Tables of the users' own


class Log(InsertableTable):
    """A table with the plain ability only."""

    name = "log"

    def __init__(self) -> None:
        self.rows = USERS.empty_table()

    @property
    def schema(self) -> pa.Schema:
        return USERS

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scannable:
        return self.rows

    def insert(self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None) -> DMLResult:
        new = rows.read_all()
        self.rows = pa.concat_tables([self.rows, new])
        returned = new.to_reader() if options is not None and options.returning else None
        return DMLResult(new.num_rows, returned)


def test_tables_of_the_users_own_are_written_too() -> None:
    catalog = CatalogBuilder().schema("public").table("log", Log()).build()
    with serving(catalog) as server, connect(server.location) as client:
        assert client.insert("log", TWO.to_batches(max_chunksize=1)).count == 2
        assert client.insert("log", TWO, returning=True) == WriteResult(2, TWO)
        assert client.scan("log").read_all().to_pylist() == [ANN, BOB] * 2


# The documentation


def test_the_examples_of_the_documentation_change_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    catalog = MemoryCatalog()
    users = pa.schema(
        [("id", pa.int64()), ("name", pa.string()), pa.field("level", pa.int32(), metadata={"default": "1"})]
    )
    catalog.create_table("public.users", users)
    catalog.create_table("public.orders", pa.schema([("user", pa.int64()), ("amount", pa.int64())]))
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
    examples = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"connect": connect, "col": col}
    with serving(catalog) as server, connect(server.location) as client:
        for example in examples:
            exec(example.replace("grpc://127.0.0.1:50051", server.location), names)
        rows = client.scan("public.users").read_all().sort_by("id").to_pylist()
        orders = client.scan("public.orders").read_all().to_pylist()
    assert len(examples) == 4
    assert capsys.readouterr().out == "1 [{'rowid': 2, 'id': 3}]\n1 1\n"
    assert rows == [
        {"id": 2, "name": "rob", "level": 1},
        {"id": 3, "name": "cid", "level": 5},
        {"id": 7, "name": "eve", "level": 1},
    ]
    assert orders == [{"user": 7, "amount": 11}]
    assert names["amount"] == 11
