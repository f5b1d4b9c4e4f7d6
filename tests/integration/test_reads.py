"""Scans over the wire, as DuckDB makes them and as the stock Arrow client does."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import grpc
import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.support.duckdb_client import ROW_ID_COLUMN, AirportError, Attached, DuckDBClient
from tests.support.filters import compare, conjunction, function_call, is_not_null
from tests.support.flight_rpc import encode
from tests.support.listing import unpack

from sparkport.app import Limits
from sparkport.catalog import (
    ArrowTable,
    CallContext,
    Catalog,
    CatalogBuilder,
    ColumnStatistics,
    Scan,
    ScanRequest,
    StatisticsTable,
    Table,
)
from sparkport.errors import ConstraintViolation
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

NUMBERS = pa.table(
    {
        "id": pa.array(range(10_000), pa.int64()),
        "name": [None if i % 10 == 0 else f"n{i}" for i in range(10_000)],
    }
)


def catalog_of(*tables: Table, **rows: pa.Table) -> Catalog:
    schema = CatalogBuilder("lake").schema("public").add(*tables)
    for name, table in rows.items():
        schema.table(name, table)
    return schema.build()


def lake(rows: pa.Table = NUMBERS) -> MemoryCatalog:
    catalog = MemoryCatalog("lake")
    catalog.create_table("public.t", rows.schema, rows=rows)
    return catalog


@pytest.fixture
def memory() -> Iterator[Attached]:
    with serving(lake()) as server, DuckDBClient(server.location) as client:
        yield client.attach("lake")


@pytest.fixture
def static() -> Iterator[Attached]:
    with serving(catalog_of(t=NUMBERS)) as server, DuckDBClient(server.location) as client:
        yield client.attach("lake")


@pytest.fixture(params=["memory", "static"])
def numbers(request: pytest.FixtureRequest) -> Attached:
    attached: Attached = request.getfixturevalue(request.param)
    return attached


# Columns


def test_all_columns_come_in_order(numbers: Attached) -> None:
    assert numbers.scan("t").rows.to_pydict() == NUMBERS.to_pydict()


def test_one_column_of_a_hundred_costs_little_more_than_itself_and_the_others_are_null() -> None:
    wide = pa.table({f"c{i}": pa.array(range(20_000), pa.int64()) for i in range(100)})
    with serving(catalog_of(wide=wide)) as server, DuckDBClient(server.location) as client:
        result = client.attach("lake").scan("wide", ["c42"])
    assert result.rows["c42"].to_pylist() == list(range(20_000))
    assert all(result.full[f"c{i}"].null_count == 20_000 for i in range(100) if i != 42)
    assert result.received_bytes < 3 * wide["c42"].nbytes


def test_columns_that_were_not_asked_for_are_valid_even_if_they_must_not_be_null() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)])
    rows = pa.table({"id": [1, 2], "name": ["a", "b"]}, schema=schema)
    with serving(catalog_of(t=rows)) as server, DuckDBClient(server.location) as client:
        result = client.attach("lake").scan("t", ["id"])
    assert result.rows["id"].to_pylist() == [1, 2]
    assert result.full["name"].null_count == 0


def test_a_count_asks_for_no_column_and_gets_all_rows(numbers: Attached) -> None:
    result = numbers.scan("t", [])
    assert result.full.num_rows == NUMBERS.num_rows
    assert result.full["id"].null_count == NUMBERS.num_rows


def test_the_row_id_comes_when_asked_for(memory: Attached) -> None:
    ids = memory.scan("t", ["rowid", "id"]).rows["rowid"].to_pylist()
    assert len(set(ids)) == NUMBERS.num_rows


def test_nested_and_dictionary_columns_come_through() -> None:
    rows = pa.table(
        {
            "word": pa.array(["a", "b", None, "a"]).dictionary_encode(),
            "list": pa.array([[1], [], None, [2, 3]]),
            "pair": pa.array([{"x": 1, "y": ["z"]}, None, {"x": None, "y": []}, {"x": 4, "y": None}]),
            "map": pa.array([[("k", 1)], [], None, [("l", 2)]], pa.map_(pa.string(), pa.int64())),
        }
    )
    with serving(catalog_of(t=rows)) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        assert attached.scan("t").rows.to_pydict() == rows.to_pydict()
        assert attached.scan("t", ["word"]).rows["word"].to_pylist() == ["a", "b", None, "a"]
        assert attached.scan("t", ["pair"]).rows["pair"].to_pylist() == rows["pair"].to_pylist()


def test_a_column_number_that_is_not_there_is_an_invalid_argument(memory: Attached) -> None:
    with pytest.raises(AirportError, match="column_ids has 9") as caught:
        plan(memory, column_ids=[0, 9])
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def plan(attached: Attached, **changes: object) -> list[pf.FlightEndpoint]:
    parameters = {
        "json_filters": "",
        "column_ids": [ROW_ID_COLUMN],
        "table_function_parameters": "",
        "table_function_input_schema": "",
        "at_unit": "",
        "at_value": "",
        **changes,
    }
    body = {"descriptor": attached.table("t").descriptor.serialize(), "parameters": parameters}
    return [pf.FlightEndpoint.deserialize(item) for item in unpack(attached.action("endpoints", body))]


# Filters


def test_a_filter_sends_fewer_rows_and_loses_none(numbers: Attached) -> None:
    rows = numbers.scan(
        "t", ["id", "name"], filters=[compare("id", ">=", 9_990), is_not_null("name", kind="VARCHAR")]
    ).rows
    wanted = [row for row in NUMBERS.to_pylist() if row["id"] >= 9_990 and row["name"] is not None]
    assert rows.to_pylist() == wanted


def test_a_filter_that_is_not_understood_never_loses_a_row(numbers: Attached) -> None:
    strange = function_call("sounds_like", "name", "n77")
    alone = numbers.scan("t", ["id", "name"], filters=[strange]).rows
    joined = numbers.scan("t", ["id", "name"], filters=[strange, compare("id", "<", 10)]).rows
    either = numbers.scan("t", ["id", "name"], filters=[conjunction(strange, compare("id", "<", 10), any_of=True)]).rows
    assert alone.num_rows == either.num_rows == NUMBERS.num_rows
    assert set(range(10)) <= set(joined["id"].to_pylist())


@pytest.mark.parametrize("text", ["", '{"filters":[],"column_binding_names_by_index":[]}'])
def test_no_filter_in_any_form_gives_all_rows(numbers: Attached, text: str) -> None:
    assert numbers.scan("t", ["id"], filters=text).rows.num_rows == NUMBERS.num_rows


def test_a_filter_on_the_row_id_loses_no_row(memory: Attached) -> None:
    rows = memory.scan("t", ["id", "rowid"], filters=[compare("rowid", "=", 17)]).rows
    assert {"id": 17, "rowid": 17} in rows.to_pylist()


# Progress, parts and sizes


def test_progress_grows_to_one(static: Attached) -> None:
    rows = pa.concat_tables([NUMBERS.slice(0, 2_500), NUMBERS.slice(2_500, 5_000), NUMBERS.slice(7_500)])
    with serving(catalog_of(t=rows)) as server, DuckDBClient(server.location) as client:
        progress = client.attach("lake").scan("t").progress
    assert progress == (0.25, 0.75, 1.0)


class Parts(Table):
    """Four parts, each of which waits until all four are being read."""

    name = "parts"
    schema = pa.schema([("part", pa.int64())])

    def __init__(self) -> None:
        self._together = threading.Barrier(4, timeout=20)

    def plan(self, ctx: CallContext, request: ScanRequest) -> Sequence[ScanRequest]:
        return [request.with_part(str(number).encode()) for number in range(4)]

    def scan(self, ctx: CallContext, request: ScanRequest) -> pa.Table:
        self._together.wait()
        return pa.table({"part": [int(request.part)] * 10})


def test_the_parts_of_a_scan_are_read_in_parallel_and_give_each_row_once() -> None:
    with serving(catalog_of(Parts())) as server, DuckDBClient(server.location) as client:
        result = client.attach("lake").scan("parts")
    assert result.endpoints == 4
    assert sorted(result.rows["part"].to_pylist()) == sorted(list(range(4)) * 10)


def test_a_large_batch_arrives_in_messages_of_bounded_size() -> None:
    limits = Limits(max_concurrent_calls=8, max_batch_bytes=50_000)
    with serving(catalog_of(t=NUMBERS), limits=limits) as server, DuckDBClient(server.location) as client:
        result = client.attach("lake").scan("t")
    assert result.rows.to_pydict() == NUMBERS.to_pydict()
    assert result.full["id"].num_chunks > 1


# Versions and transactions


def test_a_scan_at_a_version_or_a_time_reads_that_state() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    catalog = MemoryCatalog("lake", clock=lambda: now)
    catalog.create_table("public.t", NUMBERS.schema, rows=NUMBERS.slice(0, 10))
    with serving(catalog) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        now += timedelta(hours=1)
        attached.insert("t", NUMBERS.slice(10, 10))
        sizes = [attached.scan("t", ["id"], at=("VERSION", str(number))).rows.num_rows for number in range(3)]
        early = attached.scan("t", ["id"], at=("TIMESTAMP", "2026-01-01 00:30:00")).rows.num_rows
        with pytest.raises(AirportError, match="oldest") as caught:
            attached.scan("t", ["id"], at=("TIMESTAMP", "2020-01-01 00:00:00"))
    assert (sizes, early) == ([0, 10, 20], 10)
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_reads_in_one_transaction_see_one_state() -> None:
    with serving(lake()) as server, DuckDBClient(server.location) as one, DuckDBClient(server.location) as other:
        reader, writer = one.attach("lake"), other.attach("lake")
        with reader.transaction():
            before = reader.scan("t", []).full.num_rows
            writer.insert("t", NUMBERS.slice(0, 5))
            assert reader.scan("t", []).full.num_rows == before
        assert reader.scan("t", []).full.num_rows == before + 5


def test_a_transaction_that_is_not_known_is_refused(memory: Attached) -> None:
    with memory.transaction():
        memory.transaction_id = "made-up"
        with pytest.raises(AirportError, match="transaction 'made-up' not found") as caught:
            memory.scan("t")
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


# Statistics


def test_statistics_tell_the_bounds(numbers: Attached) -> None:
    known = numbers.column_statistics("t", "id")
    assert (known["min"], known["max"], known["has_null"], known["has_not_null"]) == (0, 9_999, False, True)
    assert numbers.column_statistics("t", "name")["has_null"] is True


class Vague(StatisticsTable):
    """Knows that its text has no nulls, and no more."""

    name = "vague"
    schema = pa.schema([("word", pa.string()), ("number", pa.int64())])

    def scan(self, ctx: CallContext, request: ScanRequest) -> pa.Table:
        return pa.table({"word": ["a", "\U0010ffff"], "number": [1, 2]}, schema=self.schema)

    def column_statistics(self, ctx: CallContext, column: str) -> ColumnStatistics | None:
        return ColumnStatistics(has_null=False) if column == "word" else None


def test_text_without_known_bounds_gets_the_widest_because_duckdb_reads_none_as_a_word() -> None:
    with serving(catalog_of(Vague())) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        word, number = attached.column_statistics("vague", "word"), attached.column_statistics("vague", "number")
    assert word["min"] == ""
    assert word["max"] > "\U0010ffff"
    assert (word["has_null"], word["contains_unicode"]) == (False, True)
    assert (number["min"], number["max"], number["has_null"]) == (None, None, True)


def test_statistics_are_announced_only_where_duckdb_can_take_them_for_every_column() -> None:
    odd = ArrowTable("odd", pa.table({"id": [1], "word": pa.array(["x"]).dictionary_encode()}))
    with serving(catalog_of(odd, t=NUMBERS)) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        announced = {name: attached.table(name).schema.metadata or {} for name in ("odd", "t")}
    assert b"can_produce_statistics" in announced["t"]
    assert b"can_produce_statistics" not in announced["odd"]


def test_an_old_version_announces_no_statistics_because_duckdb_asks_for_those_of_now(memory: Attached) -> None:
    old = memory.flight_info("t", at=("VERSION", "0"))
    assert b"can_produce_statistics" in (memory.table("t").schema.metadata or {})
    assert b"can_produce_statistics" not in (old.schema.metadata or {})


class Broken(Vague):
    """Fails where it should tell what it knows, or tells what cannot be."""

    name = "broken"

    def column_statistics(self, ctx: CallContext, column: str) -> ColumnStatistics | None:
        if column == "word":
            raise OverflowError("days=-2147483647; must have magnitude <= 999999999")
        return ColumnStatistics(minimum=-(2**70), maximum=2**70, has_null=False)


def test_statistics_that_cannot_be_had_are_unknown_and_fail_no_query(caplog: pytest.LogCaptureFixture) -> None:
    with serving(catalog_of(Broken())) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        word, number = attached.column_statistics("broken", "word"), attached.column_statistics("broken", "number")
    assert (word["min"], word["has_null"], word["has_not_null"]) == ("", True, True)
    assert (number["min"], number["max"], number["has_null"]) == (None, None, False)
    assert "no statistics for column 'word' of table 'broken'" in caplog.text


def test_statistics_of_an_unknown_column_are_an_invalid_argument(memory: Attached) -> None:
    body = {"flight_descriptor": memory.table("t").descriptor.serialize(), "column_name": "age", "type": "BIGINT"}
    with pytest.raises(AirportError, match="no column 'age'") as caught:
        memory.action("column_statistics", body)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


# Failures


def failing(*, after: Exception) -> Catalog:
    schema = pa.schema([("id", pa.int64())])

    def scan(ctx: CallContext, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        raise after

    return CatalogBuilder("lake").schema("public").scan_table("t", schema, scan).build()


def test_an_error_in_the_middle_of_a_scan_reaches_duckdb_with_its_kind() -> None:
    catalog = failing(after=ConstraintViolation("row 2 is bad"))
    with serving(catalog) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        with pytest.raises(AirportError, match="row 2 is bad") as caught:
            attached.scan("t")
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.extra == {"exception_type": "ConstraintException", "message": "row 2 is bad"}


def test_an_unforeseen_error_is_internal_and_keeps_its_secrets() -> None:
    with serving(failing(after=RuntimeError("password=hunter2"))) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        with pytest.raises(AirportError, match="error id") as caught:
            attached.scan("t")
    assert caught.value.code is grpc.StatusCode.INTERNAL
    assert "hunter2" not in str(caught.value)


def test_a_table_that_breaks_its_own_schema_is_told_so() -> None:
    schema = pa.schema([("id", pa.int64())])
    wrong = (
        CatalogBuilder("lake").schema("public").scan_table("t", schema, lambda ctx, request: pa.table({"id": ["x"]}))
    )
    with serving(wrong.build()) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        with pytest.raises(AirportError, match="column 'id' as string, declared is int64") as caught:
            attached.scan("t")
    assert caught.value.code is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("ticket", [b"", b"junk", b"\x80", b"\x81\xa7version\x02"])
def test_a_ticket_that_is_not_ours_is_an_invalid_argument(memory: Attached, ticket: bytes) -> None:
    connection = memory.client.connection
    with pytest.raises(AirportError) as caught:
        list(connection.unary_stream("DoGet", encode("Ticket", ticket=ticket), memory.headers()))
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_a_table_that_is_dropped_between_planning_and_reading_is_not_found() -> None:
    catalog = lake()
    with serving(catalog) as server, DuckDBClient(server.location) as client:
        attached = client.attach("lake")
        (endpoint,) = plan(attached)
        catalog.drop_table("public.t")
        with pytest.raises(AirportError, match=r"table 'public\.t' not found") as caught:
            list(client.connection.do_get(endpoint.ticket.ticket, attached.headers()))
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_a_scan_is_closed_when_its_reader_goes_away() -> None:
    closed = threading.Event()

    def endless() -> Iterator[pa.RecordBatch]:
        while not closed.is_set():
            yield pa.record_batch({"id": list(range(1000))})

    def scan(ctx: CallContext, request: ScanRequest) -> Scan:
        return Scan(endless(), close=closed.set)

    catalog = CatalogBuilder("lake").schema("public").scan_table("t", pa.schema([("id", pa.int64())]), scan).build()
    with serving(catalog) as server, pf.connect(server.location) as client:
        info = client.get_flight_info(pf.FlightDescriptor.for_path("public", "t"))
        reader = client.do_get(info.endpoints[0].ticket)
        assert reader.read_chunk().data.num_rows == 1000
        reader.cancel()
        assert closed.wait(timeout=20)


def test_the_stock_client_reads_a_table_that_has_row_ids() -> None:
    with serving(lake()) as server, pf.connect(server.location) as client:
        info = client.get_flight_info(pf.FlightDescriptor.for_path("lake", "public", "table", "t"))
        rows = client.do_get(info.endpoints[0].ticket).read_all()
    assert info.total_records == NUMBERS.num_rows
    assert rows.drop_columns(["rowid"]).to_pydict() == NUMBERS.to_pydict()
