"""Upsert of many rows, half of them new, against an insert of as many into a table of the same size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa

from benchmarks.harness import Result, compare, timed
from benchmarks.lakehouse import filled_by_spark, laboratory
from sparkport.client import KeyedResult

__all__ = ["upserts"]


def _rows(first: int, count: int) -> pa.Table:
    ids = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": ids, "v": ids.cast(pa.float64()), "name": pa.array([f"m{i % 1000}" for i in range(count)])})


def upserts(*, quick: bool) -> Iterator[Result]:
    count, rounds = (100_000, 2) if quick else (1_000_000, 3)
    with laboratory() as lab:
        numbers = itertools.count()

        def rate(act: str) -> float:
            """Into a new table with half of the ids: each round has the same to do."""
            table = f"upserted{next(numbers)}"
            filled_by_spark(lab, table, count // 2, 2)
            rows = _rows(0, count)
            if act == "insert":
                return count / timed(lambda: lab.client.insert(f"public.{table}", rows))
            done: list[KeyedResult] = []
            seconds = timed(lambda: done.append(lab.client.upsert(f"public.{table}", rows, key=["id"])))
            if (done[0].inserted, done[0].updated) != (count - count // 2, count // 2):
                raise RuntimeError(f"another number of rows was upserted: {done[0]}")
            return count / seconds

        measured = compare(lambda: rate("upsert"), lambda: rate("insert"), rounds=rounds)
    yield Result(
        name=f"upsert of {count:,} rows, half of them new, against an insert of them",
        ours=f"{measured.ours / 1e6:.2f}M rows/s",
        baseline=f"{measured.baseline / 1e6:.2f}M rows/s",
        value=measured.ratio,
        goal=0.5,
    )
