"""What every benchmark stands on: servers in processes of their own, and rounds that measure both sides in turn.

The machine is shared and its speed changes from minute to minute, so a number alone says little. Ours and its baseline
are measured one right after the other, in changing order, and each round gives a ratio; the median of those is compared
with the goal.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

__all__ = ["Child", "Measured", "Result", "Start", "compare", "peak_memory", "serving_in_child", "timed"]

MEGABYTE = 1_000_000

_START_SECONDS = 60.0

Start = Callable[[], AbstractContextManager[str]]
"""Starts a server for the length of a block; the value is its location. Must be importable by name."""


@dataclass(frozen=True, slots=True)
class Child:
    """A server in another process."""

    location: str
    pid: int

    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"process {self.pid} tells no resident memory")


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over all rounds; ``ratio`` is the median of the rounds' own ratios."""

    ours: float
    baseline: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the table. ``value`` is what is compared with the goal: a ratio, or megabytes."""

    name: str
    ours: str
    baseline: str
    value: float
    goal: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal


@contextmanager
def serving_in_child(start: Start) -> Iterator[Child]:
    """Run a server in a fresh process until the block ends."""
    spawn = multiprocessing.get_context("spawn")
    ours, its = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(start, its), daemon=True)
    process.start()
    its.close()
    try:
        if not ours.poll(_START_SECONDS):
            raise RuntimeError(f"no server after {_START_SECONDS:.0f} s")
        yield Child(ours.recv(), process.pid or 0)
    finally:
        ours.close()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(start: Start, connection: Connection) -> None:
    with start() as location:
        connection.send(location)
        with contextlib.suppress(EOFError):  # the parent closes its end, or is gone
            connection.recv()


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def compare(ours: Callable[[], float], baseline: Callable[[], float], *, rounds: int) -> Measured:
    """Both give a rate, the higher the better. The first call of each is for warming up and not counted."""
    ours()
    baseline()
    pairs: list[tuple[float, float]] = []
    for number in range(rounds):
        if number % 2:
            theirs, mine = baseline(), ours()
        else:
            mine, theirs = ours(), baseline()
        pairs.append((mine, theirs))
    return Measured(
        median(mine for mine, _ in pairs),
        median(theirs for _, theirs in pairs),
        median(mine / theirs for mine, theirs in pairs),
    )


@contextmanager
def peak_memory(child: Child, *, interval: float = 0.02) -> Iterator[Callable[[], int]]:
    """By how many bytes the child's memory has grown at most since the block began."""
    before = child.resident_bytes()
    peak = before
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(interval):
            peak = max(peak, child.resident_bytes())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: peak - before
    finally:
        done.set()
        watcher.join()
