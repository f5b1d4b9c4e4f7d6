"""What a PRIMARY KEY costs: the same INSERT into two equal tables, one of which has the key.

Keys that ascend are looked for in no file. Those that are scattered over the range of the table's own meet the bounds
of every file, so that the column of the key is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from benchmarks.harness import Result, compare, timed
from benchmarks.lakehouse import Lab, laboratory, lake_server

__all__ = ["keys"]

_COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.float64()), ("name", pa.string())])
_FILES = 4


def keys(*, quick: bool) -> Iterator[Result]:
    rows = 2_000_000 if quick else 10_000_000
    with laboratory(lake_server) as lab:
        _filled(lab, "plain", rows, [])
        _filled(lab, "keyed", rows, ["id"])
        sources = {"ascending": _ascending(rows), "scattered": _scattered(rows)}
        for count, goal, rounds in ((1, 1.3, 10), (100_000, 2.0, 4)):
            for how, ids in sources.items():
                yield _insert(lab, f"insert {count:,} {how} into {rows // 1_000_000}M", count, ids, goal, rounds)


def _filled(lab: Lab, table: str, rows: int, key: list[str]) -> None:
    """Even ids, so that there is room between them."""
    lab.client.create_table(f"public.{table}", _COLUMNS, primary_key=key)
    frame = lab.spark.range(rows).selectExpr(
        "id * 2 AS id", "CAST(id AS DOUBLE) AS v", "CONCAT('n', id % 1000) AS name"
    )
    frame.repartitionByRange(_FILES, "id").sortWithinPartitions("id").writeTo(
        f"{lab.settings.catalog_name}.public.{table}"
    ).append()


def _ascending(rows: int) -> Callable[[int], pa.Array]:
    following = 2 * rows

    def ids(count: int) -> pa.Array:
        nonlocal following
        following += count
        return pa.array(np.arange(following - count, following))

    return ids


def _scattered(rows: int) -> Callable[[int], pa.Array]:
    """Odd ones, each once."""
    odd = np.random.default_rng(7).permutation(rows) * 2 + 1
    given = 0

    def ids(count: int) -> pa.Array:
        nonlocal given
        given += count
        return pa.array(odd[given - count : given])

    return ids


def _insert(lab: Lab, name: str, count: int, ids: Callable[[int], pa.Array], goal: float, rounds: int) -> Result:
    names = pa.array(["new"] * count)

    def insert(table: str) -> float:
        new = pa.table([chosen := ids(count), chosen.cast(pa.float64()), names], names=_COLUMNS.names)
        return 1 / timed(lambda: lab.client.insert(f"public.{table}", new))

    found = compare(lambda: insert("keyed"), lambda: insert("plain"), rounds=rounds)
    return Result(
        name=f"lake keys: {name}",
        ours=f"{1e3 / found.ours:.0f} ms",
        baseline=f"{1e3 / found.baseline:.0f} ms",
        value=1 / found.ratio,
        goal=goal,
        at_least=False,
    )
