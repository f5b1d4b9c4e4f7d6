"""Tables whose rows DuckDB reads itself: the server answers a scan with function calls."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.duckdb_calls import CALL
from tests.support.duckdb_client import AirportError, Attached, DuckDBClient
from tests.support.filters import compare
from tests.support.listing import raw, unpack

from sparkport.app import Server
from sparkport.catalog import CallContext, CatalogBuilder, DirectTable, DuckDBCall, ScanRequest, row_id_field
from sparkport.client import connect
from sparkport.errors import InvalidArgument
from sparkport.protocol.call_locations import call_location
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"id": pa.array(range(3_000), pa.int64()), "name": [f"n{number}" for number in range(3_000)]})


class ParquetFiles(DirectTable):
    """Three files, which have a column more than the table and their columns in another order."""

    def __init__(self, name: str, folder: Path, *, row_id: bool = False) -> None:
        self.name = name
        self.asked: list[ScanRequest] = []
        self.scanned: list[ScanRequest] = []
        self.schema = ROWS.schema if not row_id else ROWS.schema.insert(0, row_id_field())
        self._paths = [str(folder / f"{number}.parquet") for number in range(3)]
        for number, path in enumerate(self._paths):
            rows = ROWS.slice(1_000 * number, 1_000)
            pq.write_table(rows.append_column("hidden", rows["id"]).select(["hidden", "name", "id"]), path)

    schema: pa.Schema = ROWS.schema

    def duckdb_calls(self, ctx: CallContext, request: ScanRequest) -> Sequence[DuckDBCall] | None:
        self.asked.append(request)
        if request.at is not None:
            return None
        return [DuckDBCall("read_parquet", [path], hive_partitioning=False) for path in self._paths]

    def scan(self, ctx: CallContext, request: ScanRequest) -> pa.Table:
        self.scanned.append(request)
        return ROWS.append_column("rowid", ROWS["id"])


@pytest.fixture
def plain(tmp_path: Path) -> ParquetFiles:
    return ParquetFiles("plain", tmp_path)


@pytest.fixture
def with_ids(tmp_path: Path) -> ParquetFiles:
    return ParquetFiles("with_ids", tmp_path, row_id=True)


@pytest.fixture
def server(plain: ParquetFiles, with_ids: ParquetFiles) -> Iterator[Server]:
    with serving(CatalogBuilder("lake").schema("public").add(plain, with_ids).build()) as server:
        yield server


@pytest.fixture
def lake(server: Server) -> Iterator[Attached]:
    with DuckDBClient(server.location) as client:
        yield client.attach("lake")


def test_duckdb_reads_the_files_itself(lake: Attached, plain: ParquetFiles) -> None:
    found = lake.scan("plain")
    assert found.rows.sort_by("id").to_pydict() == ROWS.to_pydict()
    assert (found.endpoints, found.calls, plain.scanned) == (3, 3, [])


def test_columns_are_found_by_name(lake: Attached) -> None:
    found = lake.scan("plain", ["name"])
    assert sorted(found.rows["name"].to_pylist()) == sorted(ROWS["name"].to_pylist())


def test_the_table_is_told_columns_and_filter(lake: Attached, plain: ParquetFiles) -> None:
    lake.scan("plain", ["id"], filters=[compare("id", "=", 7)])
    (request,) = plain.asked
    assert request.columns == ("id",)
    assert request.filter is not None


def test_a_scan_for_row_ids_is_read_by_the_server(lake: Attached, with_ids: ParquetFiles) -> None:
    found = lake.scan("with_ids", ["id", "rowid"])
    assert found.rows["rowid"].to_pylist() == ROWS["id"].to_pylist()
    assert (found.calls, with_ids.asked) == (0, [])


def test_the_other_columns_of_a_table_with_row_ids_are_read_by_duckdb(lake: Attached) -> None:
    found = lake.scan("with_ids", ["id"])
    assert sorted(found.rows["id"].to_pylist()) == ROWS["id"].to_pylist()
    assert found.calls == 3


def test_a_count_of_a_table_with_row_ids_is_read_by_the_server(lake: Attached) -> None:
    found = lake.scan("with_ids", ())
    assert (found.full.num_rows, found.calls) == (3_000, 0)


def test_other_clients_get_their_rows_from_the_server(server: Server, plain: ParquetFiles) -> None:
    with connect(server.location) as client:
        assert client.scan("public.plain").read_all().to_pydict() == ROWS.to_pydict()
    assert plain.asked == []


def test_no_calls_are_no_rows(plain: ParquetFiles, monkeypatch: pytest.MonkeyPatch, lake: Attached) -> None:
    monkeypatch.setattr(plain, "duckdb_calls", lambda ctx, request: [])
    found = lake.scan("plain")
    assert (found.rows.num_rows, found.endpoints) == (0, 0)


def test_an_argument_without_an_arrow_type_names_itself(
    plain: ParquetFiles, monkeypatch: pytest.MonkeyPatch, lake: Attached
) -> None:
    monkeypatch.setattr(plain, "duckdb_calls", lambda ctx, request: [DuckDBCall("read_csv", "x", sep=object())])
    with pytest.raises(AirportError, match="'read_csv': argument 'sep' has no Arrow type"):
        lake.scan("plain")


def test_a_call_is_one_row_of_typed_arguments() -> None:
    call = DuckDBCall("f", "text", ["a", "b"], flag=True, number=pa.scalar(3, pa.int32()))
    location = call_location(call).encode()
    body = unpack(base64.b64decode(location.removeprefix(CALL)))
    assert raw(body["function_name"]) == b"f"
    with pa.ipc.open_stream(raw(body["data"])) as reader:
        row = reader.read_all()
    assert row.to_pylist() == [{"arg_0": "text", "arg_1": ["a", "b"], "flag": True, "number": 3}]
    assert row.schema.types == [pa.string(), pa.list_(pa.string()), pa.bool_(), pa.int32()]


def test_a_call_needs_a_function_and_sound_names() -> None:
    with pytest.raises(InvalidArgument, match="name of a function"):
        DuckDBCall("")
    with pytest.raises(InvalidArgument, match="'arg_0' cannot name an argument"):
        DuckDBCall("f", arg_0=1)
