"""Minutes of single rows by eight clients: does the server stay as it is, does the flush keep up, is all of it there?

``BENCH_MINUTES`` says how many. What was measured on the way goes to ``benchmarks/results/journal-soak.csv``.
"""

from __future__ import annotations

import csv
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Result
from benchmarks.journal_lab import Ours, held, journal_laboratory, tables
from benchmarks.lakehouse import Lab
from sparkport.client import Client, connect

__all__ = ["soak"]

_ROWS = 100_000
_CLIENTS = 8
_RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True, slots=True)
class _Sample:
    second: float
    resident_megabytes: float
    lag: float
    journalled_rows: int
    done: int


def soak(*, quick: bool) -> Iterator[Result]:
    minutes = float(os.environ.get("BENCH_MINUTES", 1 if quick else 10))
    with journal_laboratory(maintenance=True) as lab:
        tables(lab, "on", _ROWS, files=1, journal=True)
        ours = Ours(lab, "on", _ROWS)
        workers = [_Worker(ours, place) for place in range(_CLIENTS)]
        samples = _run(lab, workers, 60 * minutes)
        _write(samples)
        lab.client.flush_journal()
        yield from _steady(samples, minutes)
        yield _files(lab)
        yield _nothing_lost(lab, ours, workers)


class _Worker:
    """Inserts rows, changes rows that were there before, and changes rows of its own by the ids it was given."""

    def __init__(self, ours: Ours, place: int) -> None:
        self._ours, self._place = ours, place
        self.inserted = 0
        self.updated: dict[int, float] = {}
        self.own: list[int] = []
        self.own_sum = 0.0
        self.done = 0

    def run(self, location: str, end: float) -> None:
        with connect(location) as client:
            while time.perf_counter() < end:
                self._step(client)
                self.done += 1

    def _step(self, client: Client) -> None:
        turn, value = self.done % 3, float(self.done)
        if turn == 0:
            row = pa.table({"id": [_ROWS + self._place], "v": [value], "name": ["new"]})
            got = client.insert(self._ours.items, row, returning=["rowid"]).rows
            assert got is not None
            self.own.append(got.column("rowid").to_pylist()[0])
            self.own_sum += value
            self.inserted += 1
        elif turn == 2 and self.done % 2:  # a row of its own, from half the time ago; each is changed once
            place = len(self.own) // 2 - 1
            self._update(client, self.own[place], value)
            self.own_sum += value - 3 * place
        else:
            at = (self.done * _CLIENTS + self._place) % _ROWS
            self._update(client, int(self._ours.row_ids[at]), value)
            self.updated[at] = value

    def _update(self, client: Client, row_id: int, value: float) -> None:
        row = pa.table({"rowid": pa.array([row_id], pa.int64()), "v": [value]})
        count = client.update(self._ours.items, row).count
        if count != 1:
            raise AssertionError(f"{count} rows with the id {row_id}")


def _run(lab: Lab, workers: list[_Worker], seconds: float) -> list[_Sample]:
    samples: list[_Sample] = []
    begin = time.perf_counter()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            found = held(lab.client)
            done = sum(worker.done for worker in workers)
            resident = lab.child.resident_bytes() / 1e6
            samples.append(_Sample(time.perf_counter() - begin, resident, found.lag, found.rows, done))

    with ThreadPoolExecutor(_CLIENTS + 1) as pool:
        watching = pool.submit(watch)
        try:
            running = [pool.submit(worker.run, lab.child.location, begin + seconds) for worker in workers]
            for future in running:
                future.result()
        finally:
            ended.set()
        watching.result()
    return samples


def _write(samples: list[_Sample]) -> None:
    _RESULTS.mkdir(exist_ok=True)
    with (_RESULTS / "journal-soak.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(_Sample))
        writer.writerows(astuple(sample) for sample in samples)


def _steady(samples: list[_Sample], minutes: float) -> Iterator[Result]:
    fifth = len(samples) // 5
    early, late = (
        median(sample.resident_megabytes for sample in part) for part in (samples[fifth : 2 * fifth], samples[-fifth:])
    )
    yield Result(
        name=f"journal memory, {minutes:g} min of 1-row changes",
        ours=f"{late:.0f} MB",
        baseline=f"{early:.0f} MB",
        value=late / early,
        goal=1.1,
        at_least=False,
    )
    rate = samples[-1].done / samples[-1].second
    yield Result(
        name="journal lag of the flush, at most",
        ours=f"{max(sample.lag for sample in samples):.1f} s",
        baseline=f"at {rate:.0f} changes/s",
        value=max(sample.lag for sample in samples),
        goal=5.0,
        at_least=False,
    )


def _files(lab: Lab) -> Result:
    """Between two rounds of maintenance, a minute apart, there is a file or two for each flush."""
    files = len(lab.files("on_items"))
    return Result(
        name="journal data files at the end",
        ours=str(files),
        baseline="",
        value=float(files),
        goal=150.0,
        at_least=False,
    )


def _nothing_lost(lab: Lab, ours: Ours, workers: list[_Worker]) -> Result:
    """Count and sum, as we have them and as Spark alone reads them from the table."""
    changed: dict[int, float] = {}
    for worker in workers:
        changed.update(worker.updated)
    rows = _ROWS + sum(worker.inserted for worker in workers)
    total = sum(range(_ROWS)) + sum(value - at for at, value in changed.items())
    total += sum(worker.own_sum for worker in workers)
    read = lab.client.scan(ours.items, columns=["v"]).read_all().column("v")
    (spark,) = lab.sql("SELECT count(*), sum(v) FROM LAKE.public.on_items")
    wrong = [found for found in ((len(read), pc.sum(read).as_py()), tuple(spark)) if found != (rows, total)]
    return Result(
        name="journal rows lost",
        ours=f"{sum(worker.done for worker in workers):,} changes",
        baseline="" if not wrong else f"{wrong[0]} not {(rows, total)}",
        value=float(len(wrong)),
        goal=0.0,
        at_least=False,
    )
