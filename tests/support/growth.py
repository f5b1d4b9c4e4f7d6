"""How the work of a function grows with its input, for tests that nobody can buy much of it with few bytes.

Measured is the processor time of this thread, the least of a few runs, and only the ratio of a long input to a short
one counts: a slow or busy machine is slow for both.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from typing import TypeVar

from sparkport.errors import SparkportError

__all__ = ["FACTOR", "growth"]

T = TypeVar("T")

FACTOR = 16
"""How much longer the long input is. A linear function takes 16 times as long for it, a quadratic one 256 times."""

_RUNS = 5
_LEAST_SECONDS = 0.002
"""What is quicker than this says little: then the short input counts as if it had taken so long."""


def growth(work: Callable[[T], object], make: Callable[[int], T], size: int) -> float:
    """How many times as long ``work`` takes for an input of ``FACTOR * size``; what it raises is an answer too."""
    short, long = make(size), make(FACTOR * size)
    return _seconds(work, long) / max(_seconds(work, short), _LEAST_SECONDS)


def _seconds(work: Callable[[T], object], value: T) -> float:
    best = float("inf")
    for _ in range(_RUNS):
        gc.collect()
        began = time.thread_time()
        with contextlib.suppress(SparkportError, ValueError):
            work(value)
        best = min(best, time.thread_time() - began)
        if best < _LEAST_SECONDS:
            break
    return best
