"""Which name stands for what, since when and until when: so that a transaction finds the tables of its own moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from sparkport.catalog.context import CallContext
from sparkport.memory.data import Author

__all__ = ["Binding", "Names"]

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Binding(Generic[T]):
    """A name for commits from ``since`` on and before ``until``."""

    name: str
    item: T
    since: int
    author: Author
    until: int | None = None

    def is_bound_at(self, commit: int) -> bool:
        return self.since <= commit and (self.until is None or commit < self.until)


class Names(Generic[T]):
    """Names without regard to case. Changed under the store's lock; readers need none: bindings are only added."""

    def __init__(self) -> None:
        self._bindings: dict[str, list[Binding[T]]] = {}

    def at(self, commit: int) -> Iterator[Binding[T]]:
        """All that are bound at a commit, in the order in which names were first given."""
        for bindings in list(self._bindings.values()):
            for binding in reversed(bindings):
                if binding.is_bound_at(commit):
                    yield binding
                    break

    def current(self, name: str) -> Binding[T] | None:
        bindings = self._bindings.get(name.casefold())
        return bindings[-1] if bindings and bindings[-1].until is None else None

    def find(self, name: str, commit: int, ctx: CallContext) -> Binding[T] | None:
        """What a name means to a caller whose view is of ``commit``, the caller's own later changes included."""
        current = self.current(name)
        if current is not None and (current.since <= commit or current.author.is_caller(ctx)):
            return current
        bindings = self._bindings.get(name.casefold(), [])
        return next((binding for binding in reversed(bindings) if binding.is_bound_at(commit)), None)

    def ended(self) -> Iterator[Binding[T]]:
        """All that stood for something else, or for nothing, afterwards."""
        for bindings in list(self._bindings.values()):
            yield from (binding for binding in list(bindings) if binding.until is not None)

    def bind(self, name: str, item: T, commit: int, author: Author) -> None:
        self._bindings.setdefault(name.casefold(), []).append(Binding(name, item, commit, author))
