"""Snapshots and their files never change, so what was read of them once is kept; this bounds how much is."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from sparkport.catalog.figures import Figure

__all__ = ["BoundedCache", "cache_figures"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """The values used last, whose weights together stay below ``capacity``. Safe to use from several threads.

    Two threads that miss at once may both make the value: that is cheaper than to have all of them wait in line.
    """

    def __init__(self, capacity: int, *, weigh: Callable[[V], int] = lambda value: 1, name: str = "") -> None:
        """One that has a ``name`` is told of in ``cache_figures``."""
        self._capacity = capacity
        self._hits = self._misses = 0
        if name:
            _named[name] = self
        self._weigh = weigh
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self._entries

    def get(self, key: K, make: Callable[[], V]) -> V:
        with self._lock:
            if (entry := self._entries.get(key)) is not None:
                self._entries.move_to_end(key)
                self._hits += 1
                return entry[0]
            self._misses += 1
        value = make()
        weight = max(self._weigh(value), 1)
        with self._lock:
            if (entry := self._entries.get(key)) is not None:
                return entry[0]
            if weight <= self._capacity:
                self._entries[key] = (value, weight)
                self._weight += weight
            while self._weight > self._capacity:
                _, (_, gone) = self._entries.popitem(last=False)
                self._weight -= gone
        return value

    def figures(self, name: str) -> Iterator[Figure]:
        labels = {"cache": name}
        yield Figure("cache_hits", "What a cache had", self._hits, labels, total=True)
        yield Figure("cache_misses", "What a cache did not have", self._misses, labels, total=True)
        yield Figure("cache_entries", "What is in a cache", len(self._entries), labels)
        yield Figure("cache_fill_ratio", "How full a cache is", self._weight / self._capacity, labels)


_named: WeakValueDictionary[str, BoundedCache[Any, Any]] = WeakValueDictionary()


def cache_figures() -> Iterator[Figure]:
    """Of the process: snapshots' files are the same for all who read them."""
    for name, cache in sorted(_named.items()):
        yield from cache.figures(name)
