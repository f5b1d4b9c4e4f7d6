"""What can be done by key, what of each row becomes, and in which words that is told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from sparkport.auth.operations import Operation

__all__ = ["Counts", "KeyedChange", "KeyedRequest", "Outcome"]


class KeyedChange(Enum):
    """The value is the name by which clients ask for it."""

    UPSERT = "upsert"
    INSERT_MISSING = "insert_missing"
    DELETE_MATCHING = "delete_matching"

    @property
    def rights(self) -> tuple[Operation, ...]:
        """What a caller must be allowed to do. Who learns which keys there are, reads."""
        return _RIGHTS[self]


_RIGHTS = {
    KeyedChange.UPSERT: (Operation.INSERT, Operation.UPDATE, Operation.READ),
    KeyedChange.INSERT_MISSING: (Operation.INSERT, Operation.READ),
    KeyedChange.DELETE_MATCHING: (Operation.DELETE, Operation.READ),
}


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """What a client asks for. Without a ``key`` the table's own is meant."""

    change: KeyedChange
    schema: str
    table: str
    key: tuple[str, ...] | None = None


class Outcome(IntEnum):
    """What became of a row of the input, as ``merge_action`` of DuckDB's own MERGE INTO … RETURNING says it.

    ``NOTHING`` is what that does not return: a key that was there already, or was not.
    """

    NOTHING = 0
    INSERT = 1
    UPDATE = 2
    DELETE = 3


@dataclass(frozen=True, slots=True)
class Counts:
    """``inserted``, ``updated`` and ``deleted`` are rows of the table, ``untouched`` rows of the input."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    untouched: int = 0

    @property
    def changed(self) -> int:
        return self.inserted + self.updated + self.deleted
