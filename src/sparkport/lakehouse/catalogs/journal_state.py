"""A table's part of the journal, and the journal of all tables, as values: what one instant of the database holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import takewhile

from sparkport.lakehouse.names import TableName

__all__ = [
    "Entry",
    "Flush",
    "JournalStatus",
    "JournalView",
    "NET",
    "NET_BEFORE",
    "NO_JOURNAL",
    "NO_TABLE",
    "TableJournal",
]

NET, NET_BEFORE = "net", "net before"

NO_TABLE = TableName("", "")
"""The name of one that is gone."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Entry:
    """What one commit did to one table, whose snapshot had this ``sequence`` number then."""

    revision: int
    sequence: int
    rows: int
    written_at: float
    body: bytes


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Flush:
    """What Spark has applied: all entries up to a revision, by snapshots with these sequence numbers.

    One whose entries came to nothing made no snapshot: ``last_sequence`` is that of the table then, and
    ``first_sequence`` the next, so that no snapshot is between them.
    """

    flushed: int
    first_sequence: int
    last_sequence: int
    flushed_at: float
    body: bytes


@dataclass(frozen=True, eq=False)
class TableJournal:
    """One table's part of the journal at one instant. ``entries`` and ``flushes`` are in their order.

    ``table`` is the name that it belongs to: others may give one metadata file two names, and then the tables share
    their uuid and nothing else.

    ``size`` is that of the entries, in bytes.
    """

    uuid: str
    table: TableName
    flushed: int = 0
    entries: tuple[Entry, ...] = ()
    flushes: tuple[Flush, ...] = ()
    size: int = 0
    known: dict[str, object] = field(default_factory=dict, repr=False)
    """What others have made of it, once, and what they made of the one before it."""

    @property
    def last(self) -> int:
        """The revision of the last change of rows that it knows of."""
        return self.entries[-1].revision if self.entries else self.flushed

    def followed_by(self, entries: Sequence[Entry]) -> TableJournal:
        before = self.known.get(NET) or self.known.get(NET_BEFORE)
        known = {} if before is None else {NET_BEFORE: before}
        size = self.size + _size(entries)
        return replace(self, entries=(*self.entries, *entries), size=size, known=known)

    def applied_by(self, sequence: int) -> TableJournal:
        """What a snapshot with this sequence number has in it, and nothing on top of it.

        Flushes go in their order: one that made no snapshot is in it if all that came before are.
        """
        flushes = tuple(takewhile(lambda flush: flush.last_sequence <= sequence, self.flushes))
        flushed = flushes[-1].flushed if flushes else 0
        return replace(self, flushed=flushed, entries=(), flushes=flushes, size=0, known={})

    def without_past(self) -> TableJournal:
        """For another table with the same uuid: flushes of this one mean nothing there."""
        return replace(self, flushes=(), known={})

    def up_to(self, revision: int) -> TableJournal:
        """As it was when that was the last change."""
        if self.last <= revision:
            return self
        entries = tuple(entry for entry in self.entries if entry.revision <= revision)
        return replace(self, entries=entries, size=_size(entries), known={})


def _size(entries: Iterable[Entry]) -> int:
    return sum(len(entry.body) for entry in entries)


@dataclass(frozen=True, slots=True, eq=False)
class JournalView:
    """The journal of all tables at one instant, by the tables' uuids."""

    revision: int
    by_uuid: Mapping[str, TableJournal]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JournalView) and other.revision == self.revision

    def __hash__(self) -> int:
        return self.revision

    @property
    def pending(self) -> list[TableJournal]:
        """Those that Spark has something to do for."""
        return [journal for journal in self.by_uuid.values() if journal.entries]


NO_JOURNAL = JournalView(0, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatus:
    """What waits for Spark in one table."""

    table: TableName
    entries: int
    rows: int
    bytes: int
    oldest: datetime | None
