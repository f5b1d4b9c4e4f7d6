"""The lakehouse against Spark, DuckDB and PyIceberg on the same tables, in the same run.

One Spark serves all: the server under measurement uses it as a Connect server that runs already, and the baselines
use it directly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.flight as fl

from benchmarks.harness import Child, Result, Start, compare, peak_memory, serving_in_child, timed
from sparkport.client import Client, col, connect
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.metadata import load
from sparkport.lakehouse.iceberg.plan import plan
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer
from sparkport.protocol.filter_writer import dump_filters
from sparkport.protocol.flight import FlightEndpoint
from sparkport.protocol.maps import pack, unpack
from sparkport.protocol.targets import Kind, Target

__all__ = [
    "Lab",
    "SPARK",
    "WAREHOUSE",
    "changes",
    "filled_by_spark",
    "inserts",
    "laboratory",
    "lake_server",
    "memory",
    "scans",
    "start",
]

WAREHOUSE = "BENCH_WAREHOUSE"
SPARK = "BENCH_SPARK"

_COLUMNS = "id BIGINT, v DOUBLE, name STRING"


@contextmanager
def lake_server() -> Iterator[str]:
    from sparkport.app import Lakehouse, Server

    settings = LakehouseSettings(warehouse=os.environ[WAREHOUSE], spark=os.environ[SPARK], sessions=8)
    with Lakehouse(settings) as lakehouse, Server(lakehouse.catalog, port=0) as server:
        yield server.location


@dataclass
class Lab:
    """A server in a child, and Spark and the files beside it."""

    child: Child
    client: Client
    settings: LakehouseSettings
    spark: Any

    def sql(self, text: str) -> Any:
        return self.spark.sql(text.replace("LAKE", self.settings.catalog_name)).collect()

    def files(self, table: str) -> list[str]:
        database = open_database(self.settings.database_uri)
        try:
            location = SqlPointers(database, self.settings.catalog_name).location(TableName("public", table))
        finally:
            database.close()
        fs = FileSystem()
        metadata = load(fs, location or "")
        return [file.path for file in plan(fs, metadata, metadata.main_snapshot_id).files]


@contextmanager
def laboratory(server: Start = lake_server) -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="sparkport-bench-"))
    settings = LakehouseSettings(warehouse=str(folder / "warehouse"), driver_memory="6g", sessions=2)
    spark = SparkServer(settings)
    spark.start()
    try:
        spark.wait_ready(180)
        os.environ[WAREHOUSE], os.environ[SPARK] = settings.warehouse, spark.url
        with (
            serving_in_child(server) as child,
            connect(child.location) as client,
            spark.sessions(settings.session_conf()).session() as session,
        ):
            yield Lab(child, client, settings, session)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _rows(count: int) -> pa.Table:
    ids = pa.array(range(count), pa.int64())
    return pa.table({"id": ids, "v": ids.cast(pa.float64()), "name": pa.array([f"n{i % 1000}" for i in range(count)])})


def filled_by_spark(lab: Lab, table: str, rows: int, files: int) -> None:
    lab.client.create_table(
        f"public.{table}", pa.schema([("id", pa.int64()), ("v", pa.float64()), ("name", pa.string())])
    )
    frame = lab.spark.range(rows).selectExpr("id", "CAST(id AS DOUBLE) AS v", "CONCAT('n', id % 1000) AS name")
    frame.repartitionByRange(files, "id").sortWithinPartitions("id").writeTo(
        f"{lab.settings.catalog_name}.public.{table}"
    ).append()


def scans(*, quick: bool) -> Iterator[Result]:
    count, rounds = (2_000_000, 2) if quick else (10_000_000, 3)
    with laboratory() as lab:
        filled_by_spark(lab, "scanned", count, 16)
        lab.client.delete("public.scanned", list(range(0, count, count // 1000)))
        flight = fl.connect(lab.child.location)
        descriptor = fl.FlightDescriptor.for_path("public", "scanned")

        def ours() -> float:
            ticket = flight.get_flight_info(descriptor).endpoints[0].ticket
            seconds = timed(lambda: sum(chunk.data.num_rows for chunk in flight.do_get(ticket)))
            return count / seconds

        def spark() -> float:
            query = f"SELECT *, _row_id FROM {lab.settings.catalog_name}.public.scanned"
            return count / timed(lambda: lab.spark.sql(query).toArrow())

        paths = lab.files("scanned")

        def in_process() -> float:
            read = "SELECT *, file_row_number FROM read_parquet(?, file_row_number = true)"
            relation = duckdb.connect().sql(read, params=[paths])
            return count / timed(lambda: sum(batch.num_rows for batch in relation.to_arrow_reader(65_536)))

        def pyiceberg() -> float:
            from pyiceberg.catalog.sql import SqlCatalog

            catalog = SqlCatalog(lab.settings.catalog_name, uri=lab.settings.database_uri)
            return count / timed(lambda: catalog.load_table("public.scanned").scan().to_arrow())

        baselines = (
            ("Spark toArrow", spark, 10.0),
            ("DuckDB in process", in_process, 0.5),
            ("PyIceberg", pyiceberg, 1.0),
        )
        for name, baseline, goal in baselines:
            found = compare(ours, baseline, rounds=1 if baseline is spark else rounds)
            yield Result(
                name=f"lake scan / {name}",
                ours=f"{found.ours / 1e6:.1f}M rows/s",
                baseline=f"{found.baseline / 1e6:.1f}M rows/s",
                value=found.ratio,
                goal=goal,
            )
        yield from _point(lab, count, 200 if quick else 1_000)


def _point(lab: Lab, count: int, files: int) -> Iterator[Result]:
    filled_by_spark(lab, "looked_up", count, files)
    wanted = count // 3
    paths = lab.files("looked_up")
    holding = next(
        path
        for path in paths
        if duckdb.connect()
        .execute("SELECT count(*) FROM read_parquet(?) WHERE id = ?", [path, wanted])
        .fetchall()[0][0]
    )
    con = duckdb.connect()

    def plain() -> object:
        return con.execute("SELECT * FROM read_parquet(?) WHERE id = ?", [holding, wanted]).fetchall()

    rounds = 20 if count < 10_000_000 else 40
    flight = fl.connect(lab.child.location)
    lookups: list[tuple[str, Callable[[], object], Callable[[], object], int]] = [
        # Planning and scanning are two calls; the client asks for the table's description before.
        (", bare Flight", lambda: _looked_up(flight, wanted), lambda: _empty_call(flight), 2),
        (
            "",
            lambda: lab.client.scan("public.looked_up", filter=col("id") == wanted).read_all(),
            lab.client.version,
            3,
        ),
    ]
    for name, lookup, empty, calls in lookups:
        found = _in_turn([lookup, empty, plain], rounds)
        ours, overhead, baseline = (median(times) for times in zip(*found, strict=True))
        yield Result(
            name=f"lake point lookup{name}",
            ours=f"{ours * 1e3:.1f} ms",
            baseline=f"{baseline * 1e3:.1f} + {calls * overhead * 1e3:.1f} ms",
            value=max(0.0, median((mine - calls * call) / theirs for mine, call, theirs in found)),
            goal=2.0,
            at_least=False,
        )


def _in_turn(actions: Sequence[Callable[[], object]], rounds: int) -> list[tuple[float, ...]]:
    """Seconds of each action in each round, after a few that do not count."""
    measured = [tuple(timed(action) for action in actions) for _ in range(rounds + 3)]
    return measured[3:]


def _empty_call(flight: fl.FlightClient) -> object:
    return list(flight.do_action(fl.Action("catalog_version", pack({"catalog_name": ""}))))


def _looked_up(flight: fl.FlightClient, wanted: int) -> pa.Table:
    """What a client does that knows the table: plan, then read what the plan says."""
    schema = pa.schema([("id", pa.int64())])
    parameters = {
        "json_filters": dump_filters((col("id") == wanted).expr, schema),
        "column_ids": [0, 1, 2],
        "table_function_parameters": b"",
        "table_function_input_schema": "",
        "at_unit": "",
        "at_value": "",
    }
    target = Target("", "public", Kind.TABLE, "looked_up")
    body = pack({"descriptor": target.descriptor().encode(), "parameters": parameters})
    (answer,) = flight.do_action(fl.Action("endpoints", body))
    (endpoint,) = unpack(answer.body.to_pybytes())
    found = flight.do_get(fl.Ticket(FlightEndpoint.decode(endpoint).ticket)).read_all()
    assert found.column("id").to_pylist() == [wanted]
    return found


def inserts(*, quick: bool) -> Iterator[Result]:
    rows = _rows(1)
    with laboratory() as lab:
        for table in ("small", "small_spark"):
            lab.client.create_table(f"public.{table}", rows.schema)
        one = rows.slice(0, 1)
        found = compare(
            lambda: 1 / timed(lambda: lab.client.insert("public.small", one)),
            lambda: 1 / timed(lambda: lab.sql("INSERT INTO LAKE.public.small_spark VALUES (1L, 1.0D, 'n')")),
            rounds=8 if quick else 20,
        )
        yield Result(
            name="lake insert 1 row",
            ours=f"{1e3 / found.ours:.0f} ms",
            baseline=f"{1e3 / found.baseline:.0f} ms",
            value=1 / found.ratio,
            goal=0.5,
            at_least=False,
        )
        yield _many_clients(lab, one, 64)


def _many_clients(lab: Lab, one: pa.Table, clients: int) -> Result:
    alone = 10 / timed(lambda: [lab.client.insert("public.small", one) for _ in range(10)])
    each = 5

    def run(_: int) -> None:
        with connect(lab.child.location) as client:
            for _ in range(each):
                client.insert("public.small", one)

    with ThreadPoolExecutor(clients) as pool:
        together = clients * each / timed(lambda: list(pool.map(run, range(clients))))
    return Result(
        name=f"lake insert 1 row, {clients} clients",
        ours=f"{together:.0f} /s",
        baseline=f"{alone:.1f} /s",
        value=together / alone,
        goal=15.0,
    )


def changes(*, quick: bool) -> Iterator[Result]:
    large = 10_000_000 if quick else 50_000_000
    with laboratory() as lab:
        filled_by_spark(lab, "few", 1_000_000, 2)
        filled_by_spark(lab, "many", large, large // 500_000)
        wanted = iter(range(1, 1_000_000, 1_000))

        def update(table: str) -> float:
            row = pa.table({"rowid": pa.array([next(wanted)], pa.int64()), "v": [0.5]})
            return 1 / timed(lambda: lab.client.update(f"public.{table}", row))

        found = compare(lambda: update("many"), lambda: update("few"), rounds=4 if quick else 8)
        yield Result(
            name=f"lake update 1 row of {large // 1_000_000}M",
            ours=f"{1e3 / found.ours:.0f} ms",
            baseline=f"{1e3 / found.baseline:.0f} ms",
            value=1 / found.ratio,
            goal=2.0,
            at_least=False,
        )


def memory(*, quick: bool) -> Iterator[Result]:
    inserted, scanned = (2_000_000, 5_000_000) if quick else (20_000_000, 50_000_000)
    schema = pa.schema([("id", pa.int64()), ("v", pa.float64()), ("name", pa.string())])
    block = _rows(1_000_000)

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(inserted // block.num_rows):
            yield from block.to_batches(max_chunksize=65_536)

    with laboratory() as lab:
        lab.client.create_table("public.streamed", schema)
        filled_by_spark(lab, "wide", scanned, 20)

        def work() -> None:
            lab.client.insert("public.streamed", pa.RecordBatchReader.from_batches(schema, batches()))
            assert sum(batch.num_rows for batch in lab.client.scan("public.wide")) == scanned

        before = lab.child.resident_bytes()
        with peak_memory(lab.child) as grown:
            work()
        peak = before + grown()
        yield Result(
            name="lake memory, insert and scan",
            ours=f"{peak / 1e6:.0f} MB",
            baseline="",
            value=peak / 1e6,
            goal=1_000.0,
            at_least=False,
        )
    with laboratory() as lab:
        yield _update_memory(lab, 2_000_000 if quick else 10_000_000)


def _update_memory(lab: Lab, rows: int) -> Result:
    """Of one statement that updates every row of a table."""
    filled_by_spark(lab, "updated", rows, 10)
    schema = pa.schema([("rowid", pa.int64()), ("v", pa.float64())])

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, 50_000):
            ids = pa.array(range(start, start + 50_000), pa.int64())
            yield pa.record_batch([ids, ids.cast(pa.float64())], schema=schema)

    before = lab.child.resident_bytes()
    with peak_memory(lab.child) as grown:
        result = lab.client.update("public.updated", pa.RecordBatchReader.from_batches(schema, batches()))
    assert result.count == rows
    peak = before + grown()
    return Result(
        name=f"lake memory, update {rows // 1_000_000}M rows",
        ours=f"{peak / 1e6:.0f} MB",
        baseline="",
        value=peak / 1e6,
        goal=600.0,
        at_least=False,
    )


def start(*, quick: bool) -> Iterator[Result]:
    """From the command to the first row, on a warehouse that is there, while Spark is still starting."""
    with laboratory() as lab:
        lab.client.create_table("public.there", _rows(1).schema)
        lab.client.insert("public.there", _rows(10))
        port = 40_000 + uuid.uuid4().int % 10_000
        command = [
            sys.executable,
            "-m",
            "sparkport.cli",
            "serve",
            "--port",
            str(port),
            "--http-port",
            "0",
            "--warehouse",
            lab.settings.warehouse,
        ]
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while True:
                try:
                    with connect(f"grpc://127.0.0.1:{port}") as client:
                        assert client.scan("public.there").read_all().num_rows == 10
                    break
                except Exception:
                    if time.perf_counter() - begin > 60:
                        raise
                    time.sleep(0.05)
            seconds = time.perf_counter() - begin
        finally:
            process.terminate()
            process.wait(60)
        yield Result(
            name="lake first row after start",
            ours=f"{seconds:.1f} s",
            baseline="",
            value=seconds,
            goal=3.0,
            at_least=False,
        )
