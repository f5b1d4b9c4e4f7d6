"""Deferred transactions on the lakehouse: what they cost beside bare statements, and how many go at once."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pyarrow as pa

from benchmarks.harness import Result, serving_in_child, timed
from benchmarks.lakehouse import WAREHOUSE, Lab, filled_by_spark, laboratory, lake_server
from sparkport.client import Client, connect

__all__ = ["transactions"]

_ROWS = 10_000
_CLIENTS = 16


def transactions(*, quick: bool) -> Iterator[Result]:
    rounds = 4 if quick else 10
    with laboratory() as here:
        for table in ("one", "two", "spark_one", "spark_two"):
            filled_by_spark(here, table, _ROWS, 1)
        fresh = itertools.count(1)
        yield from _statements(here, fresh, rounds)
        yield from _two_tables(here, fresh, rounds)
        yield _together(here, 3 if quick else 6)
        yield _many_tables(here, quick=quick)


def _new(number: int) -> pa.Table:
    return pa.table({"id": pa.array([_ROWS + number], pa.int64()), "v": [0.5], "name": ["new"]})


def _changed(number: int) -> pa.Table:
    return pa.table({"rowid": pa.array([number % _ROWS], pa.int64()), "v": [float(number)]})


def _statements(here: Lab, fresh: Iterator[int], rounds: int) -> Iterator[Result]:
    """The second statement of a transaction, against the same one that commits itself."""
    kinds: dict[str, tuple[Callable[[Client, int], object], ...]] = {
        "insert": (lambda client, number: client.insert("public.one", _new(number)),),
        "update": (lambda client, number: client.update("public.one", _changed(number)),),
    }
    for kind, (statement,) in kinds.items():
        ours, alone = [], []
        for _ in range(rounds):
            transaction = here.client.transaction()
            transaction.insert("public.one", _new(next(fresh)))
            number = next(fresh)
            ours.append(timed(lambda: statement(transaction, number)))  # type: ignore[arg-type]  # noqa: B023
            transaction.rollback()
            alone.append(timed(lambda: statement(here.client, number)))  # noqa: B023
        yield _result(f"tx statement, {kind} 1 row", median(ours), median(alone), 0.2)


def _two_tables(here: Lab, fresh: Iterator[int], rounds: int) -> Iterator[Result]:
    """An INSERT and an UPDATE of one row each, from begin to commit, against the two bare statements."""

    def ours(*, moved: bool) -> float:
        number = next(fresh)
        transaction = here.client.transaction()
        seconds = timed(lambda: transaction.insert("public.one", _new(number)))
        seconds += timed(lambda: transaction.update("public.two", _changed(number)))
        if moved:
            for table in ("one", "two"):
                here.client.insert(f"public.{table}", _new(next(fresh)))
        return seconds + timed(transaction.commit)

    def spark() -> float:
        number = next(fresh)
        return timed(lambda: here.sql(f"INSERT INTO LAKE.public.spark_one VALUES ({number}L, 0.5D, 'new')")) + timed(
            lambda: here.sql(f"UPDATE LAKE.public.spark_two SET v = {number} WHERE id = {number % _ROWS}")
        )

    measured = [(ours(moved=False), ours(moved=True), spark()) for _ in range(rounds + 2)][2:]
    plain, moved, bare = (median(column) for column in zip(*measured, strict=True))
    yield _result("tx over two tables", plain, bare, 1.5)
    yield _result("tx over two tables, main moved", moved, plain, 2.5)


def _together(here: Lab, each: int) -> Result:
    """Transactions of one row each by many clients, none in another's way, against one client."""

    def run(client: Client, first: int) -> None:
        for number in range(first, first + each):
            with client.transaction() as transaction:
                transaction.update("public.one", _changed(number))

    alone = each / timed(lambda: run(here.client, 0))
    clients = [connect(here.child.location) for _ in range(_CLIENTS)]
    try:
        with ThreadPoolExecutor(_CLIENTS) as pool:
            work = [(client, 100 + place * 100) for place, client in enumerate(clients)]
            together = _CLIENTS * each / timed(lambda: list(pool.map(lambda item: run(*item), work)))
    finally:
        for client in clients:
            client.close()
    return Result(
        name=f"tx of 1 row, {_CLIENTS} clients",
        ours=f"{together:.1f} /s",
        baseline=f"{alone:.1f} /s",
        value=together / alone,
        goal=4.0,
    )


def _many_tables(here: Lab, *, quick: bool) -> Result:
    """Begin and read one row, with a thousand tables in the catalog and with ten."""
    few, many = 10, 1_000
    schema = pa.schema([("id", pa.int64())])
    os.environ[WAREHOUSE] = here.settings.warehouse + "-many"
    with serving_in_child(lake_server) as child, connect(child.location) as client:
        for connected, count in ((here.client, few), (client, many)):
            for number in range(count):
                connected.create_table(f"public.t{number}", schema)
            connected.insert("public.t0", pa.table({"id": [1]}))

        def read(connected: Client) -> float:
            def once() -> None:
                with connected.transaction() as transaction:
                    assert transaction.scan("public.t0").read_all().num_rows == 1

            return timed(once)

        measured = [(read(client), read(here.client)) for _ in range(30 if quick else 60)][10:]
    ours, baseline = (median(column) for column in zip(*measured, strict=True))
    return _result(f"tx begin and read, {many:,} tables", ours, baseline, 3.0)


def _result(name: str, ours: float, baseline: float, goal: float) -> Result:
    return Result(
        name=name,
        ours=f"{1e3 * ours:.1f} ms",
        baseline=f"{1e3 * baseline:.1f} ms",
        value=ours / baseline,
        goal=goal,
        at_least=False,
    )
