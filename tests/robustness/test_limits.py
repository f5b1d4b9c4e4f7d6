"""What clients can make the server hold is bounded, and past the bound they are told so."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.robustness.rig import (
    ROWS,
    SCALAR_HEADERS,
    TIMEOUT,
    Blocking,
    Raw,
    action,
    catalog,
    eventually,
    exchange_messages,
    numbers_ticket,
    ticket,
)

from sparkport.app import Limits, Server
from sparkport.catalog import CatalogBuilder
from sparkport.protocol.targets import Kind
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

LIMIT = 64 * 1024


def test_calls_past_the_limit_are_refused_until_others_end() -> None:
    table = Blocking(1)
    rows = (
        CatalogBuilder("lake").schema("public").table("numbers", ROWS).scan_table("t", ROWS.schema, table.scan).build()
    )
    limits = Limits(max_concurrent_calls=3)
    with serving(rows, limits=limits) as server, Raw(server.port) as raw:
        running = [raw.start("DoGet", [ticket("t")]) for _ in range(3)]
        for call in running:
            next(call)
        refused = raw.call("DoGet", numbers_ticket())
        running[0].cancel()

        assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        eventually(lambda: raw.call("DoGet", numbers_ticket()).code is grpc.StatusCode.OK)
        assert table.closed.wait(TIMEOUT)


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A server that takes and gives small messages only."""
    rows = pa.table({"n": pa.array(range(100_000), pa.int64()), "s": ["text"] * 100_000})
    wide = pa.table({"n": [1], "s": ["x" * (2 * LIMIT)]})
    tables = CatalogBuilder("wide").schema("public").table("rows", rows).table("wide", wide).build()
    with serving(catalog(), tables, limits=Limits(max_message_bytes=LIMIT, max_batch_bytes=LIMIT // 4)) as server:
        yield server


@pytest.fixture(scope="module")
def connection(small: Server) -> Iterator[Raw]:
    with Raw(small.port) as raw:
        yield raw


@pytest.fixture
def stock(small: Server) -> Iterator[pf.FlightClient]:
    with pf.connect(small.location) as client:
        yield client


def test_a_message_past_the_limit_is_refused(connection: Raw) -> None:
    answer = connection.call("DoAction", action("list_schemas", {"catalog_name": "x" * LIMIT}))

    assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert connection.call("DoGet", numbers_ticket()).code is grpc.StatusCode.OK


def test_a_batch_past_the_limit_ends_an_upload(connection: Raw) -> None:
    rows = pa.RecordBatch.from_pydict({"x": pa.array(range(LIMIT // 4), pa.int64())})
    answer = connection.call(
        "DoExchange", *exchange_messages("double", Kind.SCALAR_FUNCTION, rows), headers=SCALAR_HEADERS
    )

    assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert connection.call("DoGet", numbers_ticket()).code is grpc.StatusCode.OK


def info(client: pf.FlightClient, name: str) -> pf.FlightInfo:
    return client.get_flight_info(pf.FlightDescriptor.for_path("wide", "public", name))


def test_large_batches_go_out_in_slices(connection: Raw, stock: pf.FlightClient) -> None:
    planned = info(stock, "rows").endpoints[0].ticket
    answer = connection.call("DoGet", planned.serialize())

    assert answer.code is grpc.StatusCode.OK
    assert len(answer.messages) > 100
    assert max(map(len, answer.messages)) <= LIMIT // 4
    assert stock.do_get(planned).read_all()["n"].to_pylist() == list(range(100_000))


def test_one_value_past_the_limit_is_said_so(connection: Raw, stock: pf.FlightClient) -> None:
    answer = connection.call("DoGet", info(stock, "wide").endpoints[0].ticket.serialize())

    assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"a message holds at most {LIMIT}" in answer.details
