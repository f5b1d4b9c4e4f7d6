"""How long statements take, by who sent them, and how many came to which end."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["Latencies", "quantile"]


class Latencies:
    """Threads MAY share it. Only statements that were answered count: others last as long as somebody waits."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._recent: defaultdict[str, list[float]] = defaultdict(list)
        self._lock = threading.Lock()

    @contextmanager
    def timed(self, worker: str) -> Iterator[None]:
        """Nothing is noted of a block that raises."""
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        with self._lock:
            self._recent[worker].append(seconds)
            self.counts[f"{worker} statements"] += 1

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def taken(self) -> dict[str, list[float]]:
        """Those since the last time."""
        with self._lock:
            recent, self._recent = self._recent, defaultdict(list)
        return dict(recent)


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
