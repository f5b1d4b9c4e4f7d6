"""Snapshots and their files never change, so what was read of them once is kept; this bounds how much is."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["BoundedCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """The values used last, whose weights together stay below ``capacity``. Safe to use from several threads.

    Two threads that miss at once may both make the value: that is cheaper than to have all of them wait in line.
    """

    def __init__(self, capacity: int, *, weigh: Callable[[V], int] = lambda value: 1) -> None:
        self._capacity = capacity
        self._weigh = weigh
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def weight(self) -> int:
        return self._weight

    def get(self, key: K, make: Callable[[], V]) -> V:
        with self._lock:
            if (found := self._entries.get(key)) is not None:
                self._entries.move_to_end(key)
                return found[0]
        value = make()
        weight = max(self._weigh(value), 1)
        with self._lock:
            if (found := self._entries.get(key)) is not None:
                return found[0]
            if weight <= self._capacity:
                self._entries[key] = (value, weight)
                self._weight += weight
            while self._weight > self._capacity:
                _, (_, gone) = self._entries.popitem(last=False)
                self._weight -= gone
        return value
