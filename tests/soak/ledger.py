"""What a worker knows of its rows: each is surely there with a value, surely gone, or in doubt.

A change that was answered leaves a key in one state. One whose answer was lost leaves it in either, the old or the new,
and the worker leaves the key alone from then on: the change may still be made later.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum

__all__ = ["Answer", "Ledger", "State"]

State = str | None
"""A row's value, or None for no row."""

_GONE: frozenset[State] = frozenset({None})


class Answer(Enum):
    """What a worker knows of a change that it has asked for."""

    DONE = "done"
    REFUSED = "refused"
    LOST = "lost"


class Ledger:
    """The rows of one table, which one worker alone changes. ``held`` keeps the table as it is while it is compared.

    Of rows that are surely gone only the keys are kept, apart: in hours there are many, and a comparison MUST NOT take
    longer and longer.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        self._states: dict[int, frozenset[State]] = {}
        self._gone: set[int] = set()
        self._held = threading.RLock()

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._held:
            yield

    def note(self, changes: Mapping[int, State], answer: Answer) -> None:
        for key, new in changes.items():
            old = self._states.get(key, _GONE)
            states = {Answer.DONE: frozenset({new}), Answer.LOST: old | {new}, Answer.REFUSED: old}[answer]
            if states != _GONE:
                self._states[key] = states
                self._gone.discard(key)
            elif self._states.pop(key, None) is not None:
                self._gone.add(key)

    @property
    def there(self) -> dict[int, str]:
        """Keys that are surely there, with their values."""
        only = ((key, next(iter(states))) for key, states in self._states.items() if len(states) == 1)
        return {key: value for key, value in only if value is not None}

    @property
    def gone(self) -> int:
        return len(self._gone)

    @property
    def doubtful(self) -> int:
        return sum(len(states) > 1 for states in self._states.values())

    def some(self, dice: random.Random, most: int) -> list[int]:
        """Keys that are surely there, in no order."""
        known = sorted(self.there)
        return dice.sample(known, min(len(known), dice.randint(1, most)))

    def compare(
        self, rows: Iterable[tuple[int, State]], *, wanted: Callable[[int], bool] = lambda key: True
    ) -> list[str]:
        """Sentences about what is not as it must be; ``rows`` are all that there are of the keys that are wanted."""
        found = list(rows)
        values = {key: "NULL" if value is None else value for key, value in found}
        problems = [
            f"{self.table}: row {key} is there {times} times"
            for key, times in Counter(key for key, _ in found).items()
            if times > 1
        ]
        for key in sorted({key for key in self._states if wanted(key)} | values.keys()):
            value, states = values.get(key), self._states.get(key, _GONE)
            if value not in states:
                problems.append(f"{self.table}: {self._difference(key, states, value)}")
        return problems

    def _difference(self, key: int, states: frozenset[State], value: State) -> str:
        if value is None:
            return f"row {key} is lost"
        if states == _GONE:
            return f"row {key} is back again" if key in self._gone else f"row {key} was inserted by nobody"
        return f"row {key} is {value!r}, not {' or '.join(sorted(repr(state) for state in states))}"
