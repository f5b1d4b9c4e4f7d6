"""With ``direct_reads`` DuckDB clients read whole tables from the files themselves, and see the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pyarrow as pa
import pytest
from tests.lakehouse.handles import Handle, create
from tests.support.duckdb_client import Attached, DuckDBClient, ScanResult
from tests.support.filters import compare
from tests.support.lakehouse import Lake

from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.testing import serving

pytestmark = pytest.mark.tier("thorough")

_numbers = count()

TEN = pa.table({"id": pa.array(range(10), pa.int64()), "name": [f"n{number}" for number in range(10)]})


@pytest.fixture
def table(lake: Lake) -> Handle:
    return create(lake, f"direct{next(_numbers)}", TEN)


@pytest.fixture
def duckdb(lake: Lake, table: Handle) -> Iterator[Attached]:
    """A client of another server on the same tables, which has the setting."""
    settings = replace(lake.opened.settings, direct_reads=True)
    with (
        Lakehouse(settings, spark=lake.opened.spark) as direct,
        serving(direct.catalog) as server,
        DuckDBClient(server.location) as client,
    ):
        yield client.attach(lake.catalog)


def pairs(found: ScanResult) -> list[tuple[int, str]]:
    return sorted((row["id"], row["name"]) for row in found.rows.to_pylist())


@pytest.mark.tier("fast")
def test_whole_tables_are_read_from_the_files(duckdb: Attached, table: Handle) -> None:
    found = duckdb.scan(f"public.{table.name}", ["id", "name"])
    assert (found.calls, found.received_bytes) == (1, 0)
    assert pairs(found) == [(number, f"n{number}") for number in range(10)]


def test_row_ids_counts_and_filters_are_read_by_the_server(duckdb: Attached, table: Handle) -> None:
    name = f"public.{table.name}"
    filtered = [compare("id", "=", 7)]
    scans = (duckdb.scan(name, ["id", "rowid"]), duckdb.scan(name, ()), duckdb.scan(name, ["id"], filters=filtered))
    assert [found.calls for found in scans] == [0, 0, 0]


def test_tables_with_deleted_rows_are_read_by_the_server(duckdb: Attached, table: Handle) -> None:
    ids = table.ids()
    table.update([ids[3]], pa.table({"name": ["changed"]}))
    found = duckdb.scan(f"public.{table.name}", ["id", "name"])
    assert found.calls == 0
    assert pairs(found)[3] == (3, "changed")
    before = duckdb.scan(f"public.{table.name}", ["id", "name"], at=("VERSION", "1"))
    assert before.calls == 1
    assert pairs(before)[3] == (3, "n3")


def test_a_transaction_sees_its_own_rows(duckdb: Attached, table: Handle) -> None:
    name = f"public.{table.name}"
    with duckdb.transaction():
        duckdb.call_scalar("tx.begin", rows=1)
        assert duckdb.scan(name, ["id", "name"]).calls == 1
        duckdb.insert(name, pa.table({"id": pa.array([99], pa.int64()), "name": ["mine"]}))
        found = duckdb.scan(name, ["id", "name"])
        assert found.calls == 0
        assert pairs(found)[-1] == (99, "mine")
        duckdb.call_scalar("tx.rollback", rows=1)
    assert duckdb.scan(name, ["id", "name"]).calls == 1


def test_without_the_setting_the_server_reads(lake: Lake, table: Handle) -> None:
    with serving(lake.opened.catalog) as server, DuckDBClient(server.location) as client:
        assert client.attach(lake.catalog).scan(f"public.{table.name}").calls == 0
