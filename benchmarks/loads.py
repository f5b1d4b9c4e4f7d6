"""Bulk loads: rows over the wire into a table, beside Spark, PyIceberg and DuckLake, which have the rows in process."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Result, timed
from benchmarks.lakehouse import Lab, laboratory
from benchmarks.peers import Peer, peer

__all__ = ["loads"]


def _narrow(count: int) -> pa.Table:
    numbers = np.arange(count)
    return pa.table({"id": numbers, "v": numbers * 0.5, "name": pa.array([f"n{at % 1000}" for at in range(count)])})


def _wide(count: int) -> pa.Table:
    """Sixteen columns, as many kinds as a table of orders has."""
    chance = np.random.default_rng(1)
    numbers = {f"n{at}": chance.integers(0, 10 ** (at + 2), count) for at in range(6)}
    days = {
        f"d{at}": pa.array(chance.integers(8_000, 11_000, count).astype(np.int32)).cast(pa.date32()) for at in range(3)
    }
    amounts = {
        f"a{at}": pa.array(chance.integers(0, 10**6, count)).cast(pa.decimal128(19, 0)).view(pa.decimal128(19, 2))
        for at in range(3)
    }
    words = [f"word{at}" for at in range(50)]
    texts = {f"t{at}": pa.array([words[k] for k in chance.integers(0, 50, count)]) for at in range(3)}
    comment = pa.array([f"{a} said {b} to nobody" for a, b in chance.integers(0, 10**6, (count, 2))])
    return pa.table({**numbers, **days, **amounts, **texts, "comment": comment})


def loads(*, quick: bool) -> Iterator[Result]:
    narrow, wide = (2_000_000, 500_000) if quick else (10_000_000, 3_000_000)
    with laboratory() as lab:
        folder = Path(lab.settings.warehouse).parent
        with peer(folder / "ducklake", 1_000, ducklake=True) as ducklake:
            for name, rows in (("narrow", _narrow(narrow)), ("wide", _wide(wide))):
                yield from _load(lab, ducklake, folder, name, rows, rounds=2 if quick else 3)


def _load(lab: Lab, ducklake: Peer, folder: Path, name: str, rows: pa.Table, *, rounds: int) -> Iterator[Result]:
    from pyiceberg.catalog.sql import SqlCatalog

    staged = folder / f"{name}.parquet"
    pq.write_table(rows, staged)
    catalog = SqlCatalog("peer", uri=f"sqlite:///{folder}/{name}.db", warehouse=f"file://{folder}/pyiceberg")
    catalog.create_namespace("public")
    theirs = catalog.create_table("public.t", rows.schema, properties={"format-version": "2"})
    for table in (name, f"{name}_spark"):
        lab.client.create_table(f"public.{table}", rows.schema)
    ducklake.sql(f"CREATE TABLE {name} AS FROM '{staged}' LIMIT 0")
    ducklake.sql(f"CREATE TABLE memory.{name} AS FROM '{staged}'")
    place = f"{lab.settings.catalog_name}.public.{name}_spark"
    works: dict[str, Callable[[], object]] = {
        "sparkport": lambda: lab.client.insert(f"public.{name}", rows),
        "Spark": lambda: lab.spark.read.parquet(str(staged)).writeTo(place).append(),
        "PyIceberg": lambda: theirs.append(rows),
        "DuckLake": lambda: ducklake.sql(f"INSERT INTO {name} FROM memory.{name}"),
    }
    times: dict[str, list[float]] = {work: [] for work in works}
    for _ in range(rounds):
        for work, run in works.items():
            times[work].append(timed(run))
    medians = {work: statistics.median(found) for work, found in times.items()}
    goals = {"Spark": 0.6, "PyIceberg": 2.0, "DuckLake": 4.0}
    for other, goal in goals.items():
        yield Result(
            name=f"lake load {rows.num_rows / 1e6:g}M x {rows.num_columns}, beside {other}",
            ours=f"{medians['sparkport']:.1f} s",
            baseline=f"{medians[other]:.1f} s",
            value=medians["sparkport"] / medians[other],
            goal=goal,
            at_least=False,
        )
    first, *_, last = times["sparkport"]
    yield Result(
        name=f"lake load {rows.num_rows / 1e6:g}M x {rows.num_columns}, the first beside the last",
        ours=f"{first:.1f} s",
        baseline=f"{last:.1f} s",
        value=first / last,
        goal=2.0,
        at_least=False,
    )
