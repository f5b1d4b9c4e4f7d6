"""What the real client sent for listings, scans and functions, played to our server: the answers must mean the same.

A scan's answer is judged by DuckDB itself: the recorded query over the rows that we sent must give what it gives over
the whole table, because DuckDB applies its filters again and must never miss a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.support import golden_catalog as shop
from tests.support.duckdb_client import DuckDBClient
from tests.support.flight_rpc import Connection
from tests.support.golden import Answer, Recorded, load, replay
from tests.support.listing import Entry, decompressed, raw

from sparkport.catalog import CallContext, Catalog, CatalogBuilder
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = load("rows")
FUNCTIONS = load("functions")


@contextmanager
def connected(catalog: Catalog) -> Iterator[Connection]:
    with serving(catalog) as server:
        connection = Connection(server.location)
        try:
            yield connection
        finally:
            connection.close()


@pytest.fixture(scope="module")
def functions() -> Iterator[Connection]:
    with connected(shop.functions_catalog()) as connection:
        yield connection


def begin(connection: Connection, recording: dict[int, Recorded], before: int) -> str | None:
    """The transaction that the call belongs to: the last one that was asked for before it."""
    call = max((c for c in recording.values() if c.number < before and c.action == "create_transaction"), key=_number)
    identifier: str | None = replay(connection, call).value()["identifier"]
    return identifier


def _number(call: Recorded) -> int:
    return call.number


def tickets(answer: Answer) -> list[bytes]:
    return [pf.FlightEndpoint.deserialize(raw(item)).ticket.ticket for item in answer.value()]


def fetch(connection: Connection, endpoints: Recorded, do_get: Recorded, transaction: str | None = None) -> pa.Table:
    planned = replay(connection, endpoints, transaction=transaction)
    streams = [replay(connection, do_get, transaction=transaction, ticket=t).table() for t in tickets(planned)]
    return pa.concat_tables(streams)


# Listings and transactions


@pytest.mark.parametrize("recording", ["rows", "functions"])
def test_every_recorded_transaction_and_version_request_is_answered(recording: str) -> None:
    calls = load(recording).values()
    asked = [call for call in calls if call.action in ("catalog_version", "create_transaction")]
    with connected(shop.shop_catalog()) as connection:
        versions: set[int] = set()
        for call in asked:
            answer = replay(connection, call).value()
            if call.action == "catalog_version":
                assert answer["is_fixed"] is False
                versions.add(answer["catalog_version"])
            else:
                assert set(answer) == {"identifier"}
        assert len(versions) <= 1
    assert asked


def test_the_recorded_listing_request_lists_the_tables_with_their_row_ids() -> None:
    with connected(shop.shop_catalog()) as connection:
        listing = decompressed(replay(connection, ROWS[7]).result)
    schemas = {item["name"]: item for item in listing["schemas"]}
    entries = [Entry.decode(raw(data)) for data in decompressed(schemas["shop"]["contents"]["serialized"])]
    assert {entry.name for entry in entries} == {"items", "pair", "nest"}
    items = next(entry for entry in entries if entry.name == "items")
    assert items.metadata["catalog"] == "lake"
    assert items.columns == ["id", "name", "price", "added"]
    assert items.row_id is not None


def test_the_recorded_listing_request_lists_the_functions_with_their_parameters(functions: Connection) -> None:
    listing = decompressed(replay(functions, FUNCTIONS[4]).result)
    (utils,) = [item for item in listing["schemas"] if item["name"] == "utils"]
    entries = {
        entry.name: entry for entry in map(Entry.decode, map(raw, decompressed(utils["contents"]["serialized"])))
    }
    assert entries["test_add"].kind == "scalar_function"
    assert entries["test_add"].input_schema.types == [pa.int64(), pa.int64()]
    assert entries["test_any_type"].input_schema.field(0).metadata == {b"is_any_type": b"1"}
    named = entries["test_dynamic_schema_named_parameters"].input_schema
    assert named.field("location").metadata == {b"is_named_parameter": b"1"}
    assert named.field("city").metadata is None
    assert entries["test_table_in_out"].input_schema.field(1).metadata == {b"is_table_type": b"1"}


# Scans


@dataclass(frozen=True, slots=True)
class ScanCase:
    """``sql`` is the recorded statement, or for UPDATE and DELETE the query inside it, over a table named ``t``."""

    endpoints: int
    do_get: int
    truth: pa.Table
    sql: str
    items: pa.Table | None = None


SCANS = [
    ScanCase(18, 19, shop.ITEMS, "SELECT * EXCLUDE (rowid) FROM t"),
    ScanCase(
        22,
        23,
        shop.ITEMS,
        "SELECT rowid, name FROM t WHERE id >= 2 AND price IS NOT NULL AND (name LIKE 'h%' OR name IN ('cup','map')) "
        "AND added BETWEEN TIMESTAMP '2026-01-01' AND TIMESTAMP '2026-12-31'",
    ),
    ScanCase(26, 27, shop.ITEMS, "SELECT count(*) FROM t"),
    ScanCase(35, 36, shop.MORE_ITEMS, "SELECT price * 2, rowid FROM t WHERE id = 1", shop.MORE_ITEMS),
    ScanCase(47, 48, shop.PAIR, "SELECT age, rowid FROM t WHERE age = 1"),
    ScanCase(53, 54, shop.MORE_ITEMS, "SELECT rowid FROM t WHERE id = 3", shop.MORE_ITEMS),
    ScanCase(59, 60, shop.MORE_ITEMS, "SELECT rowid FROM t WHERE id = 4", shop.MORE_ITEMS),
    ScanCase(65, 66, shop.MORE_ITEMS, "SELECT count(*) FROM t", shop.MORE_ITEMS),
    ScanCase(74, 75, shop.MANY_ITEMS, "SELECT rowid FROM t WHERE id > 100", shop.MANY_ITEMS),
    ScanCase(117, 118, shop.NEST, "SELECT k, s, m, l FROM t"),
]


@pytest.mark.parametrize("case", SCANS, ids=lambda case: f"call_{case.endpoints}")
def test_a_recorded_scan_gives_duckdb_the_rows_its_query_needs(case: ScanCase) -> None:
    with connected(shop.shop_catalog(shop.ITEMS if case.items is None else case.items)) as connection:
        transaction = begin(connection, dict(ROWS), case.endpoints)
        received = fetch(connection, ROWS[case.endpoints], ROWS[case.do_get], transaction)
    # The engine numbers rows from 0 in the order in which they were inserted.
    truth = case.truth.append_column("rowid", pa.array(range(case.truth.num_rows), pa.int64()))
    assert query(case.sql, received) == query(case.sql, truth)


def query(sql: str, rows: pa.Table) -> list[tuple[object, ...]]:
    with duckdb.connect() as database:
        database.register("t", rows)
        return database.execute(sql).fetchall()


def test_a_recorded_filter_is_applied_and_not_only_taken() -> None:
    with connected(shop.shop_catalog(shop.MANY_ITEMS)) as connection:
        received = fetch(connection, ROWS[53], ROWS[54])
    assert received.column("id").to_pylist() == [3]


@pytest.mark.parametrize("number", [114, 116])
def test_the_recorded_flight_info_at_a_version_gives_the_schema(number: int) -> None:
    with connected(shop.shop_catalog()) as connection:
        entry = Entry.decode(replay(connection, ROWS[number]).result)
    assert entry.columns == ["k", "s", "m", "l"]
    assert entry.schema.field("m").type == shop.NEST.schema.field("m").type


# Functions


@dataclass(frozen=True, slots=True)
class ScalarCase:
    number: int
    expected: list[object]


SCALARS = [
    ScalarCase(5, ["X"]),
    ScalarCase(7, [i + 10 for i in range(3000)]),
    ScalarCase(9, ["1.5"]),
    ScalarCase(11, ["called"]),
]


@pytest.mark.parametrize("case", SCALARS, ids=lambda case: f"call_{case.number}")
def test_a_recorded_scalar_call_gets_one_value_per_row_in_lock_step(functions: Connection, case: ScalarCase) -> None:
    call = FUNCTIONS[case.number]
    transaction = begin(functions, dict(FUNCTIONS), case.number)
    answer = replay(functions, call, transaction=transaction)
    assert answer.table().column(0).to_pylist() == case.expected
    assert len(answer.messages) == 1 + len(list(call.sent_batches()))


@dataclass(frozen=True, slots=True)
class TableFunctionCase:
    info: int
    endpoints: int
    do_get: int
    expected: list[dict[str, object]]


TABLE_FUNCTIONS = [
    TableFunctionCase(12, 13, 14, [{"result": "hello"}]),
    TableFunctionCase(16, 17, 18, [{"result": "ab"}] * 3),
    TableFunctionCase(20, 21, 22, [{"name": "n", "location": "x", "input": 5, "city": "Oslo"}]),
]


@pytest.mark.parametrize("case", TABLE_FUNCTIONS, ids=lambda case: f"call_{case.info}")
def test_a_recorded_table_function_call_streams_the_schema_that_it_announced(
    functions: Connection, case: TableFunctionCase
) -> None:
    info = Entry.decode(replay(functions, FUNCTIONS[case.info]).result)
    received = fetch(functions, FUNCTIONS[case.endpoints], FUNCTIONS[case.do_get])
    assert received.schema.equals(info.schema)
    assert received.to_pylist() == case.expected


def test_the_recorded_in_out_call_answers_each_batch_and_one_round_more(functions: Connection) -> None:
    info = Entry.decode(replay(functions, FUNCTIONS[24]).result)
    answer = replay(functions, FUNCTIONS[25])
    assert info.columns == ["input", "a"]
    expected = [{"input": "x", "a": f"q{i}"} for i in range(5)] + [{"input": "last", "a": "row"}]
    assert answer.table().to_pylist() == expected
    assert answer.marks() == [b"chunk_finished"] * 2


# The scripted client that other tests use must be like the real one


def test_the_scripted_client_sends_the_headers_of_the_real_one() -> None:
    seen: dict[str, set[str]] = {}

    def note(kind: str, ctx: CallContext) -> pa.Table:
        seen[kind] = {key for key in ctx.headers if key.startswith("airport-") or key in ("authority", "return-chunks")}
        return pa.table({"x": [1]})

    columns = pa.schema([("x", pa.int64())])
    catalog = (
        CatalogBuilder("lake")
        .schema("public")
        .scan_table("t", columns, lambda ctx, request: note("scan", ctx))
        .scalar_function("s", lambda ctx, args: note("scalar", ctx)["x"], [], pa.int64())
        .table_function("f", lambda ctx, args, request: note("table_function", ctx), [], columns)
        .build()
    )
    with serving(catalog) as server, DuckDBClient(server.location) as client:
        lake = client.attach("lake")
        lake.scan("t")
        lake.call_scalar("s", rows=1)
        lake.call_table("f")
    recorded = {"scan": ROWS[19], "scalar": FUNCTIONS[5], "table_function": FUNCTIONS[14]}
    for kind, call in recorded.items():
        # This catalog keeps no transactions, so that there is no id to send.
        assert seen[kind] == set(call.headers) - {"authorization", "airport-transaction-id"}, kind
