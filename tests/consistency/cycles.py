"""Cycles of dependencies between transactions, by the kind of edges in them.

After Adya: ``ww`` (overwrote its version), ``wr`` (read its version) and ``rw`` (read what it overwrote). A cycle with
one ``rw`` is read skew. Snapshot isolation allows cycles only with two ``rw`` in a row, which is write skew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from enum import Enum
from typing import TypeVar

__all__ = ["CycleKind", "Edge", "find_cycles"]

N = TypeVar("N", bound=Hashable)

Edge = tuple[int, int, str]
"""From, to, and ``ww``, ``wr`` or ``rw``."""


class CycleKind(Enum):
    DIRTY_WRITE = "G0"
    CIRCULAR_INFORMATION = "G1c"
    READ_SKEW = "G-single"
    NONADJACENT = "G-nonadjacent"
    WRITE_SKEW = "G2-item"


def find_cycles(edges: Iterable[Edge]) -> Iterator[tuple[CycleKind, tuple[int, ...]]]:
    """Each set of transactions once, with the worst kind of cycle that they are in."""
    graph = _Graph(edges)
    seen: set[frozenset[int]] = set()
    for kind, cycle in graph.cycles():
        if frozenset(cycle) not in seen:
            seen.add(frozenset(cycle))
            yield kind, cycle


class _Graph:
    def __init__(self, edges: Iterable[Edge]) -> None:
        self._by_kind: dict[str, dict[int, set[int]]] = {"ww": {}, "wr": {}, "rw": {}}
        self._nodes: set[int] = set()
        for source, target, kind in edges:
            self._nodes |= {source, target}
            self._by_kind[kind].setdefault(source, set()).add(target)

    def cycles(self) -> Iterator[tuple[CycleKind, tuple[int, ...]]]:
        writes, dependencies = self._next("ww"), self._next("ww", "wr")
        everything = self._next("ww", "wr", "rw")
        yield from self._closing(CycleKind.DIRTY_WRITE, "ww", writes)
        yield from self._closing(CycleKind.CIRCULAR_INFORMATION, "wr", dependencies)
        yield from self._closing(CycleKind.READ_SKEW, "rw", dependencies)
        yield from self._nonadjacent()
        yield from self._closing(CycleKind.WRITE_SKEW, "rw", everything)

    def _closing(
        self, kind: CycleKind, first: str, follow: Callable[[int], Iterable[int]]
    ) -> Iterator[tuple[CycleKind, tuple[int, ...]]]:
        """Cycles of one edge of the kind ``first`` and a shortest way back by ``follow``."""
        both = lambda node: (*follow(node), *self._by_kind[first].get(node, ()))  # noqa: E731
        component = _components(sorted(self._nodes), both)
        for source, targets in sorted(self._by_kind[first].items()):
            for target in sorted(targets):
                if component[source] == component[target]:
                    way = _shortest(target, {source}, follow)
                    if way is not None:
                        yield kind, (source, *way[:-1])

    def _nonadjacent(self) -> Iterator[tuple[CycleKind, tuple[int, ...]]]:
        """Ways round with several ``rw``, never two in a row: a node is a transaction and whether ``rw`` led to it."""
        plain = self._next("ww", "wr")

        def follow(node: tuple[int, bool]) -> list[tuple[int, bool]]:
            found = [(target, False) for target in plain(node[0])]
            return found if node[1] else found + [(target, True) for target in self._next("rw")(node[0])]

        nodes = [(node, after) for node in sorted(self._nodes) for after in (False, True)]
        component = _components(nodes, follow)
        for source, targets in sorted(self._by_kind["rw"].items()):
            for target in sorted(targets):
                if component[(source, False)] == component[(target, True)]:
                    way = _shortest((target, True), {(source, False)}, follow)
                    if way is not None:
                        yield CycleKind.NONADJACENT, (source, *dict.fromkeys(node for node, _ in way[:-1]))

    def _next(self, *kinds: str) -> Callable[[int], list[int]]:
        def follow(node: int) -> list[int]:
            return sorted({target for kind in kinds for target in self._by_kind[kind].get(node, ())})

        return follow


def _shortest(start: N, goals: set[N], follow: Callable[[N], Iterable[N]]) -> list[N] | None:
    """A shortest way from ``start`` to a goal, both included."""
    came_from: dict[N, N | None] = {start: None}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        if node in goals:
            way = [node]
            while (before := came_from[way[-1]]) is not None:
                way.append(before)
            return way[::-1]
        for target in follow(node):
            if target not in came_from:
                came_from[target] = node
                waiting.append(target)
    return None


def _components(nodes: Iterable[N], follow: Callable[[N], Iterable[N]]) -> dict[N, int]:
    """The strongly connected component of each node (Kosaraju): what is in no other's component is in no cycle."""
    nodes = list(nodes)
    forward = {node: list(follow(node)) for node in nodes}
    backward: dict[N, list[N]] = {node: [] for node in nodes}
    for node, targets in forward.items():
        for target in targets:
            backward[target].append(node)
    finished: list[N] = []
    visited: set[N] = set()
    for root in nodes:
        if root in visited:
            continue
        visited.add(root)
        stack = [(root, iter(forward[root]))]
        while stack:
            node, targets_left = stack[-1]
            for target in targets_left:
                if target not in visited:
                    visited.add(target)
                    stack.append((target, iter(forward[target])))
                    break
            else:
                finished.append(node)
                stack.pop()
    component: dict[N, int] = {}
    for number, root in enumerate(reversed(finished)):
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if node not in component:
                component[node] = number
                waiting.extend(backward[node])
    return component
