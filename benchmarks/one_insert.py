"""Lookups and changes in tables as one big INSERT leaves them: few files, each with as many row groups as it got.

Small row groups are compared with those that Iceberg makes by default, one of up to 128 MB; changes of a million rows
with Spark's own UPDATE and DELETE of the same rows by a condition, without our ids, checks and publishing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count as counting
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Result, compare, timed
from benchmarks.lakehouse import Lab, laboratory
from sparkport.client import col

__all__ = ["one_insert"]

_MILLION = 1_000_000
_DEFAULT_GROUP = 128 << 20


def one_insert(*, quick: bool) -> Iterator[Result]:
    with laboratory() as lab:
        for millions in (2,) if quick else (2, 10):
            rows, name = millions * _MILLION, f"{millions}M"
            _inserted(lab, f"small_{name}", rows)
            _inserted(lab, f"large_{name}", rows, group_bytes=_DEFAULT_GROUP)
            yield _lookup(lab, name, rows, rounds=10 if quick else 30)
            yield from _one_row(lab, name, rows, rounds=3 if quick else 6)
        yield from _a_million(lab, 2 * _MILLION if quick else 10 * _MILLION, rounds=1 if quick else 2)


def _inserted(lab: Lab, table: str, rows: int, *, group_bytes: int | None = None) -> None:
    ids = pa.array(np.arange(rows))
    names = pa.array([f"n{number}" for number in range(1000)]).take(pa.array(np.arange(rows) % 1000))
    found = pa.table({"id": ids, "v": ids.cast(pa.float64()), "name": names})
    lab.client.create_table(f"public.{table}", found.schema)
    if group_bytes is not None:
        lab.sql(
            f"ALTER TABLE LAKE.public.{table} "
            f"SET TBLPROPERTIES ('write.parquet.row-group-size-bytes' = '{group_bytes}')"
        )
    lab.client.insert(f"public.{table}", found)


def _lookup(lab: Lab, name: str, rows: int, *, rounds: int) -> Result:
    wanted = np.random.default_rng(1).integers(0, rows, 1_000).tolist()
    numbers = iter(wanted)

    def look(table: str) -> float:
        key = next(numbers)

        def found() -> None:
            got = lab.client.scan(f"public.{table}", filter=col("id") == key).read_all()
            assert got.column("id").to_pylist() == [key]

        return 1 / timed(found)

    return _seconds(
        f"lake lookup in {name} of one INSERT",
        lambda: look(f"small_{name}"),
        lambda: look(f"large_{name}"),
        rounds,
        0.5,
    )


def _one_row(lab: Lab, name: str, rows: int, *, rounds: int) -> Iterator[Result]:
    wanted = iter(np.random.default_rng(2).permutation(rows)[:1_000].tolist())

    def update(table: str) -> float:
        row = pa.table({"rowid": pa.array([next(wanted)], pa.int64()), "v": [0.5]})
        return 1 / timed(lambda: _changed(lab.client.update(f"public.{table}", row).count, 1))

    def delete(table: str) -> float:
        row_id = next(wanted)
        return 1 / timed(lambda: _changed(lab.client.delete(f"public.{table}", [row_id]).count, 1))

    changes: tuple[tuple[str, Callable[[str], float]], ...] = (("update", update), ("delete", delete))
    for verb, change in changes:
        title = f"lake {verb} 1 row of {name} of one INSERT"
        yield _seconds(
            title,
            lambda change=change: change(f"small_{name}"),
            lambda change=change: change(f"large_{name}"),
            rounds,
            0.9,
        )


def _a_million(lab: Lab, rows: int, *, rounds: int) -> Iterator[Result]:
    """Each round another million, where there are enough; the ids are those of a table's first rows."""
    places = counting()
    for table in ("ours", "spark"):
        _inserted(lab, table, rows)

    def piece() -> tuple[int, int]:
        start = next(places) * 100_000 % (rows // 2)
        return start, start + rows // 10

    def update() -> float:
        start, end = piece()
        ids = pa.array(np.arange(start, end))
        changed = pa.table({"rowid": ids, "v": ids.cast(pa.float64())})
        return 1 / timed(lambda: _changed(lab.client.update("public.ours", changed).count, end - start))

    def spark_update() -> float:
        start, end = piece()
        text = f"UPDATE LAKE.public.spark SET v = v + 1 WHERE id >= {start}L AND id < {end}L"
        return 1 / timed(lambda: lab.sql(text))

    yield _seconds(f"lake update {rows // 10:,} rows", update, spark_update, rounds, 2.0)
    ends = {"ours": rows, "spark": rows}

    def last(table: str) -> tuple[int, int]:
        ends[table] -= rows // 10
        return ends[table], ends[table] + rows // 10

    def delete() -> float:
        start, end = last("ours")
        ids = np.arange(start, end).tolist()
        return 1 / timed(lambda: _changed(lab.client.delete("public.ours", ids).count, end - start))

    def spark_delete() -> float:
        start, end = last("spark")
        text = f"DELETE FROM LAKE.public.spark WHERE id >= {start}L AND id < {end}L"
        return 1 / timed(lambda: lab.sql(text))

    yield _seconds(f"lake delete {rows // 10:,} rows", delete, spark_delete, rounds, 2.0)


def _changed(count: int, expected: int) -> None:
    assert count == expected, f"{count} rows changed, not {expected}"


def _seconds(name: str, ours: Any, baseline: Any, rounds: int, goal: float) -> Result:
    found = compare(ours, baseline, rounds=rounds)
    return Result(
        name=name,
        ours=f"{1e3 / found.ours:.0f} ms",
        baseline=f"{1e3 / found.baseline:.0f} ms",
        value=1 / found.ratio,
        goal=goal,
        at_least=False,
    )
