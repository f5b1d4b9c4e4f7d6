"""What is to be committed at one instant, whoever asks for it, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sparkport.errors import Conflict
from sparkport.lakehouse.catalogs.database import Work
from sparkport.lakehouse.catalogs.journal_records import JournalRecords
from sparkport.lakehouse.catalogs.journal_state import TableJournal
from sparkport.lakehouse.catalogs.pointers import Edit
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.write.change_set import ChangeSet
from sparkport.lakehouse.write.conflicts import Decision

__all__ = [
    "CommitRequest",
    "Committed",
    "FlushedElsewhere",
    "Flushing",
    "Member",
    "NotFlushed",
    "quoted_names",
]


class NotFlushed(Conflict):
    """Rows that a commit changes have been changed by the journal. Never leaves the engine."""

    def __init__(self, table: TableName) -> None:
        super().__init__(f"table '{table.name}' has changes that Spark has not applied yet; try again")


class FlushedElsewhere(Conflict):
    """Another has applied what the journal held. Never leaves the engine."""


class Flushing(Protocol):
    """Entries of the journal on their way into the tables."""

    def part(self, records: JournalRecords, edits: Sequence[Edit]) -> Callable[[Work], None]:
        """What the transaction that publishes does to the journal; it raises JournalMoved where others were first."""

    def failed(self, table: TableName, why: BaseException) -> None:
        """It is this table that keeps all of them from being applied."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommitRequest:
    """What is to be committed at one instant: a statement's change, or all that a transaction did.

    ``reads`` are the tables that must be as they were seen, under serializable. ``statement`` is noted with the number
    of rows that it changed; ``transaction`` is one whose state is kept with the catalog. ``remaining`` says for how
    many seconds it may wait for its turn and for Spark; one that has begun is brought to its end. ``flush``: it
    applies what the journal holds. ``author`` is who asked for it, where that is known.
    """

    changes: Mapping[TableName, ChangeSet]
    reads: Mapping[TableName, TableVersion | None] = field(default_factory=dict)
    statement: str | None = None
    transaction: str | None = None
    remaining: Callable[[], float | None] = lambda: None
    flush: Flushing | None = None
    author: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """Where the metadata of the changed tables is, how many rows changed, and the journal since, by uuids."""

    locations: Mapping[TableName, str]
    rows: int
    journals: Mapping[str, TableJournal] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Member:
    """A request in the queue. ``is_turn``: somebody wants the tables for something else than a commit."""

    request: CommitRequest
    tables: Collection[TableName]
    is_turn: bool = False
    decisions: Mapping[TableName, Decision] = field(default_factory=dict)
    outcome: Committed | BaseException | None = None

    @property
    def changes(self) -> Mapping[TableName, ChangeSet]:
        return self.request.changes

    @property
    def rows(self) -> int:
        """Of what was decided: rows that others had deleted already do not count."""
        inserted = sum(change.inserted for change in self.changes.values())
        return inserted + sum(decision.rows for decision in self.decisions.values())

    def writes(self, table: TableName) -> bool:
        """An UPDATE that sets no column changes nothing."""
        change, decision = self.changes[table], self.decisions[table]
        updates = bool(len(decision.updated) and change.columns)
        return bool(change.inserted or updates or len(decision.deleted))


def quoted_names(tables: Iterable[TableName]) -> str:
    return ", ".join(sorted(f"'{table.name}'" for table in tables))
