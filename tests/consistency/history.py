"""What clients did and saw, as values: the record of a run that the checker judges afterwards."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = [
    "Append",
    "Clock",
    "Delete",
    "Insert",
    "Key",
    "NO_CLIENT",
    "Operation",
    "Outcome",
    "Read",
    "Recorder",
    "Rewrite",
    "Transaction",
    "Write",
]

Key = Hashable

NO_CLIENT = -1
"""The client of transactions that were done past the server."""


class Outcome(Enum):
    """``UNKNOWN``: the client does not know, as when the answer to its commit was lost."""

    OK = "ok"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Read:
    """What was there: for a list its elements, for a register its value, None where there is nothing; for a table
    that is a set all its values, each as often as it was there."""

    key: Key
    value: Any


@dataclass(frozen=True, slots=True)
class Append:
    """An element is appended to a key once in a history."""

    key: Key
    element: Hashable


@dataclass(frozen=True, slots=True)
class Write:
    """A value is written to a key once in a history, after the same transaction has read the key."""

    key: Key
    value: Hashable


@dataclass(frozen=True, slots=True)
class Insert:
    """A value is inserted into a table once in a history."""

    table: str
    value: int


@dataclass(frozen=True, slots=True)
class Delete:
    table: str
    value: int


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Somebody has put another content in a table's place, as by rolling it back or by making it anew.

    ``content`` is what is there then: for a set its values, for lists pairs of key and elements.
    """

    table: str
    content: frozenset[Any]


Operation = Read | Append | Write | Insert | Delete | Rewrite


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The four moments are on the clients' common clock: begin called and answered, end called and answered.

    Moments of 0 say nothing: no order between transactions follows from them.
    """

    id: int
    client: int = 0
    operations: tuple[Operation, ...] = ()
    outcome: Outcome = Outcome.OK
    begin_called: int = 0
    begun: int = 0
    end_called: int = 0
    ended: int = 0

    def __str__(self) -> str:
        return f"T{self.id}"


class Clock:
    """Moments that all threads agree on: one that is read after another has returned is greater."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def __call__(self) -> int:
        return next(self._numbers)


@dataclass(slots=True)
class Recorder:
    """Collects transactions from many threads."""

    clock: Clock = field(default_factory=Clock)
    transactions: list[Transaction] = field(default_factory=list)
    _ids: Clock = field(default_factory=Clock)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def new_id(self) -> int:
        return self._ids()

    def add(self, transaction: Transaction) -> None:
        with self._lock:
            self.transactions.append(transaction)

    def count_of_clients(self) -> int:
        """How many transactions clients have ended."""
        with self._lock:
            return sum(transaction.client != NO_CLIENT for transaction in self.transactions)
