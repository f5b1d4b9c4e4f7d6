"""Numbers that parts of the server have about themselves, in a form that knows of no monitoring system.

Whoever has some answers ``figures()``, which MUST be quick and MUST NOT wait for a disk or another machine: it is asked
every few seconds.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Distribution", "Figure"]


class Distribution:
    """How often values of which size came. Safe to use from several threads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def add(self, value: float) -> None:
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def buckets(self) -> tuple[list[tuple[str, int]], float]:
        """For each bound how many were not above it, with ``+Inf`` for all, and the sum."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        running, found = 0, []
        for bound, count in zip((*map(_written, self._bounds), "+Inf"), counts, strict=True):
            running += count
            found.append((bound, running))
        return found, total


@dataclass(frozen=True, slots=True)
class Figure:
    """``total`` says that it only ever grows. Labels MUST have few values, none of them chosen by clients."""

    name: str
    help: str
    value: float | Distribution
    labels: Mapping[str, str] = field(default_factory=dict)
    total: bool = False

    @classmethod
    def by_label(
        cls, name: str, help_text: str, label: str, values: Mapping[str, float], *, total: bool = False
    ) -> Iterable[Figure]:
        return [cls(name, help_text, value, {label: key}, total) for key, value in values.items()]


def _written(bound: float) -> str:
    return repr(float(bound))
