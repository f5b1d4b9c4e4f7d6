"""What a server holds of queries and their rows: little, however long they are."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkport.catalog.context import CallContext
from sparkport.catalog.spark_sql import SparkQuery
from sparkport.lakehouse.query.queries import SparkQueries
from sparkport.lakehouse.query.run import QueryRun
from sparkport.lakehouse.settings import LakehouseSettings

pytestmark = pytest.mark.tier("fast")

COLUMNS = pa.schema([("a", pa.string())])


@pytest.fixture
def queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkQueries:
    """Queries with a Spark that says of each that it has one column."""

    @contextlib.contextmanager
    def opened(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(columns=COLUMNS)

    cut = SimpleNamespace(tables={}, journal=SimpleNamespace(pending=()))
    storage = SimpleNamespace(staging=SimpleNamespace(folder=tmp_path), pointers=SimpleNamespace(cut=lambda: cut))
    engine: Any = SimpleNamespace(storage=storage, flush_of=lambda tables, timeout, *, check: True)
    nothing: Any = SimpleNamespace()
    views: Any = SimpleNamespace(usable=lambda names: {})
    settings = LakehouseSettings(warehouse=str(tmp_path))
    made = SparkQueries(engine, nothing, nothing, settings=settings, default_schema="public", views=views)
    monkeypatch.setattr(made, "_opened", opened)
    monkeypatch.setattr(made, "places", SimpleNamespace(take=lambda ctx: contextlib.nullcontext()))
    return made


def test_long_arguments_are_not_kept(queries: SparkQueries) -> None:
    def ask(number: int) -> None:
        arguments = pa.scalar([f"{number}" + "a" * 500_000])
        query = SparkQuery(text="SELECT ? AS a", arguments=arguments, owner="ann", tables=frozenset())
        assert queries.columns(CallContext(), query) == COLUMNS

    ask(0)  # for the first one modules are loaded
    tracemalloc.start()
    try:
        for number in range(1, 31):
            ask(number)
        assert tracemalloc.get_traced_memory()[0] < 5_000_000
    finally:
        tracemalloc.stop()


def test_long_rows_come_in_small_batches(tmp_path: Path) -> None:
    """As Spark writes them: in row groups of a few megabytes."""
    rows = pa.table({"c0": [f"{number}" + "a" * 100_000 for number in range(1_000)]})

    def work(folder: Path) -> None:
        folder.mkdir()
        pq.write_table(rows, folder / "part-0.parquet", row_group_size=400, use_dictionary=False, compression="lz4")

    run = QueryRun(tmp_path, COLUMNS, is_ordered=True, work=work, stop=lambda: None)
    batches = [batch for batch in run if batch.num_rows]
    assert pa.Table.from_batches(batches).column("a").to_pylist() == rows.column("c0").to_pylist()
    assert max(batch.nbytes for batch in batches) < 32 << 20


def test_many_columns_without_values_come_in_small_batches(tmp_path: Path) -> None:
    columns = pa.schema([(f"c{at}", pa.string()) for at in range(1_000)])

    def work(folder: Path) -> None:
        folder.mkdir()
        pq.write_table(pa.table([pa.nulls(10_000, pa.string())] * 1_000, schema=columns), folder / "part-0.parquet")

    run = QueryRun(tmp_path, columns, is_ordered=True, work=work, stop=lambda: None)
    batches = [batch for batch in run if batch.num_rows]
    assert sum(batch.num_rows for batch in batches) == 10_000
    assert max(batch.nbytes for batch in batches) < 32 << 20
