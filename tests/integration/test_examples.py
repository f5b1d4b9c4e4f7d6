"""The examples are served and called, so that what users copy works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from examples import dynamic_catalog, functions, serve_arrow_tables

from sparkport.catalog import Catalog
from sparkport.client import Client, connect
from sparkport.errors import InvalidArgument, NotFound
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")


def client_of(catalog: Catalog) -> Iterator[Client]:
    with serving(catalog) as server, connect(server.location) as client:
        yield client


@pytest.fixture
def shop() -> Iterator[Client]:
    yield from client_of(serve_arrow_tables.catalog)


@pytest.fixture
def tools() -> Iterator[Client]:
    yield from client_of(functions.catalog)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for year in ("y2024", "y2025"):
        (tmp_path / year).mkdir()
        pq.write_table(pa.table({"day": [1, 2], "rain": [0.5, 0.0]}), tmp_path / year / "weather.parquet")
    return tmp_path


@pytest.fixture
def files(root: Path) -> Iterator[Client]:
    yield from client_of(dynamic_catalog.Folders(root))


def test_arrow_tables_are_listed_and_read(shop: Client) -> None:
    assert {table.name for table in shop.tables()} == {"users", "orders"}
    assert shop.scan("public.users").read_all().to_pydict() == serve_arrow_tables.users.to_pydict()
    assert shop.scan("public.orders", columns=["amount"]).read_all().to_pydict() == {"amount": [9.5, 20.0, 3.25]}


def test_the_scalar_function_works_on_columns(tools: Client) -> None:
    assert tools.call("public.with_tax", [100.0, 50.0, None], [0.5, 0.0, 0.1]).to_pylist() == [150.0, 50.0, None]


def test_the_table_function_makes_rows_of_its_arguments(tools: Client) -> None:
    assert tools.call_table("public.countdown", 3).read_all().to_pydict() == {"n": [3, 2, 1]}
    assert tools.call_table("public.countdown", 5, step=2).read_all().to_pydict() == {"n": [5, 3, 1]}


def test_the_table_function_streams_in_batches(tools: Client) -> None:
    rows = tools.call_table("public.countdown", functions.BATCH + 5).read_all()
    assert rows["n"].to_pylist() == list(range(functions.BATCH + 5, 0, -1))


def test_the_table_function_refuses_a_step_that_never_ends(tools: Client) -> None:
    with pytest.raises(InvalidArgument, match="step must be at least 1"):
        tools.call_table("public.countdown", 5, step=0).read_all()


def test_the_in_out_function_keeps_its_sum_between_batches(tools: Client) -> None:
    batches = [pa.record_batch({"price": [1.0, 2.0]}), pa.record_batch({"price": [4.0]})]
    rows = pa.Table.from_batches(batches)
    for _ in range(2):
        result = tools.call_in_out("public.running_total", [], rows).read_all()
        assert result.to_pydict() == {"total": [1.0, 3.0, 7.0]}


def test_folders_are_schemas_and_files_are_tables(files: Client) -> None:
    assert [(table.schema_name, table.name) for table in files.tables()] == [("y2024", "weather"), ("y2025", "weather")]
    assert files.scan("y2025.weather", columns=["rain"]).read_all().to_pydict() == {"rain": [0.5, 0.0]}


def test_a_new_file_is_a_new_table_and_a_new_version(files: Client, root: Path) -> None:
    before = files.version()
    pq.write_table(pa.table({"n": [7]}), root / "y2024" / "extra.parquet")
    assert files.version() != before
    assert files.scan("y2024.extra").read_all().to_pydict() == {"n": [7]}


def test_a_file_that_is_gone_is_no_table_any_more(files: Client, root: Path) -> None:
    (root / "y2025" / "weather.parquet").unlink()
    assert [table.schema_name for table in files.tables()] == ["y2024"]
    with pytest.raises(NotFound, match=r"table 'y2025\.weather' not found"):
        files.scan("y2025.weather").read_all()


def test_the_dynamic_example_reads_its_folder_from_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", str(root))
    with serving(dynamic_catalog.catalog()) as server, connect(server.location) as client:
        assert [schema.name for schema in client.schemas()] == ["y2024", "y2025"]
