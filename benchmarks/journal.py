"""The journal: small changes with it, without it, and beside those who do the same work in another way.

Contestants take turns, each for some seconds and one statement after the other, so that the journal's own flushes,
one a second, fall into the time of the journal. Before the next one's turn the journal is flushed. Maintenance, which
a server does beside its work, is done between the kinds of work, where it is in nobody's way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from benchmarks.chart import Timing
from benchmarks.harness import Result, compare, timed
from benchmarks.journal_lab import Ours, Throughput, held, journal_laboratory, maintain, tables, together
from benchmarks.lakehouse import Lab
from benchmarks.peers import Contestant, InProcess, PyIceberg, Spark, SqliteCommits, Work, key, new_order, peer
from sparkport.client import Client, col

__all__ = ["clients", "reads", "statements"]

_ON, _OFF = "sparkport, journal on", "sparkport, journal off"
_DUCKLAKE, _SPARK, _PYICEBERG, _DUCKDB = "DuckLake, in process", "Spark alone", "PyIceberg", "DuckDB, a file"
_BARE = "SQLite's commit and a call"

_OF_SPARK = {
    Work.INSERT: 1 / 12,
    Work.UPDATE: 1 / 20,
    Work.DELETE: 1 / 20,
    Work.TRANSACTION: 1 / 15,
    Work.LOOKUP: 1.3,
}
"""What the journal may take of the same without it."""

_TITLES = {
    Work.INSERT: "insert 1 row",
    Work.UPDATE: "update 1 row of {}M",
    Work.DELETE: "delete 1 row of {}M",
    Work.TRANSACTION: "two-table transaction",
    Work.LOOKUP: "lookup by key in {}M",
}


def statements(*, quick: bool) -> Iterator[Result | Timing]:
    rows, rounds, seconds = (1_000_000, 2, 1.5) if quick else (10_000_000, 3, 3.0)
    with journal_laboratory() as lab, _contestants(lab, rows) as contestants:
        for work in Work:
            title = _TITLES[work].format(rows // 1_000_000)
            entered = {who: item for who, item in contestants.items() if _enters(who, work)}
            for name in ("on", "off", "spark"):
                maintain(lab.client, f"{name}_items")
            found = _in_turn(lab.client, entered, work, rounds, seconds)
            yield _ratio(title, found, _OFF, _OF_SPARK[work])
            if work is Work.INSERT:
                yield _ratio(title, found, _BARE, 3.0)
            yield _ratio(title, found, _DUCKLAKE, 1.0)
            for who, slices in found.items():
                if who != _BARE:
                    yield Timing(title, who, median(median(times) for times in slices))


class _Bare(InProcess):
    """What nobody who answers a call after a durable commit can do without."""

    def __init__(self, client: Client, commits: SqliteCommits) -> None:
        super().__init__(1)
        self._client, self._commits = client, commits

    def once(self, work: Work, number: int) -> None:
        self._client.action("nothing")
        self._commits.commit()


@contextmanager
def _contestants(lab: Lab, rows: int) -> Iterator[Mapping[str, Contestant]]:
    folder = Path(lab.settings.warehouse).parent
    for name in ("on", "off", "spark"):
        tables(lab, name, rows, journal=name == "on")
    on = Ours(lab, "on", rows)
    on.once(Work.INSERT, 0)
    size = held(lab.client).bytes
    with ExitStack() as stack:
        yield {
            _ON: on,
            _OFF: Ours(lab, "off", rows),
            _SPARK: Spark(lab, rows),
            _DUCKLAKE: stack.enter_context(peer(folder / "ducklake", rows, ducklake=True)),
            _PYICEBERG: PyIceberg(folder / "pyiceberg", rows),
            _DUCKDB: stack.enter_context(peer(folder / "duckdb", rows, ducklake=False)),
            _BARE: _Bare(lab.client, SqliteCommits(folder / "bare.db", size)),
        }


def _enters(who: str, work: Work) -> bool:
    return work is Work.INSERT if who == _BARE else who != _PYICEBERG or work is not Work.TRANSACTION


def _in_turn(
    client: Client, contestants: Mapping[str, Contestant], work: Work, rounds: int, seconds: float
) -> dict[str, list[list[float]]]:
    """The times of each in each round, after one short turn that does not count."""
    found: dict[str, list[list[float]]] = {who: [] for who in contestants}
    for number in range(rounds + 1):
        order = list(contestants)
        for who in order[::-1] if number % 2 else order:
            client.flush_journal()
            if number:
                found[who].append(contestants[who].slice(work, seconds, 3))
            else:
                contestants[who].slice(work, 0.3, 1)
    return found


def _ratio(title: str, found: Mapping[str, list[list[float]]], baseline: str, goal: float) -> Result:
    ours, theirs = ([median(times) for times in found[who]] for who in (_ON, baseline))
    slow = float(np.percentile([one for times in found[_ON] for one in times], 95))
    return Result(
        name=f"journal {title} / {baseline.removeprefix('sparkport, ')}",
        ours=f"{1e3 * median(ours):.1f} (p95 {1e3 * slow:.0f}) ms",
        baseline=f"{1e3 * median(theirs):.1f} ms",
        value=median(mine / other for mine, other in zip(ours, theirs, strict=True)),
        goal=round(goal, 3),
        at_least=False,
    )


def clients(*, quick: bool) -> Iterator[Result]:
    """Many clients at once, none in another's way."""
    rows, rounds, seconds = 100_000, 1 if quick else 3, 4.0 if quick else 10.0
    numbers = count(1)
    with journal_laboratory() as lab, ExitStack() as stack:
        folder = Path(lab.settings.warehouse).parent
        ducklake = stack.enter_context(peer(folder / "ducklake", rows, ducklake=True))
        for name in ("on", "off"):
            tables(lab, name, rows, files=1, journal=name == "on")
        on, off = Ours(lab, "on", rows), Ours(lab, "off", rows)
        runs: list[Throughput] = []

        def run(ours: Ours, work: Work, many: int) -> float:
            lab.client.flush_journal()
            found = together(lab.child.location, many, seconds, lambda client: ours.on(client, work, next(numbers)))
            if ours is on:
                runs.append(found)
            return found.rate

        failures: list[int] = []

        def theirs() -> float:
            lab.client.flush_journal()
            rate, failed = ducklake.together(Work.INSERT, seconds, 16)
            failures.append(failed)
            return rate

        for many, work, goal in ((64, Work.INSERT, 6.0), (16, Work.TRANSACTION, 20.0)):
            found = compare(
                lambda work=work, many=many: run(on, work, many),  # type: ignore[misc]
                lambda work=work, many=many: run(off, work, many),  # type: ignore[misc]
                rounds=rounds,
            )
            yield _rates(f"journal {work.value}, {many} clients / off", found.ours, found.baseline, found.ratio, goal)
        found = compare(lambda: run(on, Work.INSERT, 16), theirs, rounds=rounds)
        name = f"journal insert 1 row, 16 clients / DuckLake ({sum(failures)} failed)"
        yield _rates(name, found.ours, found.baseline, found.ratio, 4.0)
        lab.client.flush_journal()
        failed = [text for item in runs for text in item.failed]
        there = lab.client.scan(on.orders, columns=["id"]).read_all().num_rows
        yield Result(
            name="journal changes by many, failed or lost",
            ours=f"{len(failed)} failed",
            baseline=f"{sum(item.done for item in runs)} done",
            value=float(len(failed) + abs(sum(item.done for item in runs) - there)),
            goal=0.0,
            at_least=False,
        )


def _rates(name: str, ours: float, baseline: float, ratio: float, goal: float) -> Result:
    return Result(name=name, ours=f"{ours:.0f} /s", baseline=f"{baseline:.1f} /s", value=ratio, goal=goal)


def reads(*, quick: bool) -> Iterator[Result]:
    """A journal that nobody flushes, with as many changes as one statement may have."""
    rows, rounds = (1_000_000, 5) if quick else (10_000_000, 7)
    with journal_laboratory(seconds=3600.0) as lab:
        for name in ("changed", "unchanged"):
            tables(lab, name, rows, journal=True)
        _journalled_changes(Ours(lab, "changed", rows))
        before = held(lab.client).rows
        flight = fl.connect(lab.child.location)

        def scan(name: str) -> float:
            ticket = flight.get_flight_info(fl.FlightDescriptor.for_path("public", name)).endpoints[0].ticket
            got: list[int] = []
            seconds = timed(lambda: got.extend(chunk.data.num_rows for chunk in flight.do_get(ticket)))
            assert sum(got) == rows
            return rows / seconds

        found = compare(lambda: scan("changed_items"), lambda: scan("unchanged_items"), rounds=rounds)
        yield Result(
            name=f"journal scan of {rows // 1_000_000}M, {before:,} changes in it",
            ours=f"{found.ours / 1e6:.1f}M rows/s",
            baseline=f"{found.baseline / 1e6:.1f}M rows/s",
            value=found.ratio,
            goal=0.8,
        )
        numbers = count(20_001)  # of rows that are not changed; those that are need not be looked for in a file

        def lookup(name: str) -> float:
            wanted = key(next(numbers), rows)

            def look() -> None:
                assert lab.client.scan(f"public.{name}", filter=col("id") == wanted).read_all().num_rows == 1

            return 1 / timed(look)

        found = compare(lambda: lookup("changed_items"), lambda: lookup("unchanged_items"), rounds=20 * rounds)
        yield Result(
            name=f"journal lookup in {rows // 1_000_000}M, {before:,} changes in it",
            ours=f"{1e3 / found.ours:.1f} ms",
            baseline=f"{1e3 / found.baseline:.1f} ms",
            value=1 / found.ratio,
            goal=1.3,
            at_least=False,
        )
        if held(lab.client).rows != before:
            raise RuntimeError("the journal was flushed meanwhile, so the numbers are of something else")


def _journalled_changes(ours: Ours) -> None:
    """4,000 rows updated, 3,000 deleted and 3,000 inserted: as many rows as before, all over the table."""
    step = 500
    for start in range(0, 10_000, step):
        chosen = ours.row_ids[[key(number, ours.rows) for number in range(start, start + step)]]
        if start < 4_000:
            ours.client.update(ours.items, pa.table({"rowid": pa.array(chosen), "v": [0.5] * step}))
        elif start < 7_000:
            ours.client.delete(ours.items, chosen.tolist())
        else:
            ours.client.insert(ours.items, pa.concat_tables(new_order(ours.rows + number) for number in range(step)))
