"""The memory engine's heart: one counter of commits, and the rules by which a transaction becomes one of them.

Every commit gets the next number. A transaction reads as of the number at which it began; what it writes waits in
overlays. Committing takes the one lock, looks whether any row it changed has been changed since (the first committer
wins), and makes all its changes under one new number, which readers see at one instant.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sparkport.catalog.transaction import Isolation
from sparkport.errors import Conflict
from sparkport.memory.overlay import Overlay
from sparkport.memory.rows import Rows, Segment
from sparkport.transactions.manager import Transaction

__all__ = ["Store", "TableData", "View", "conflict"]


@dataclass(slots=True, eq=False)
class TableData:
    """A table's rows, and its history: the commits that changed it, the first of them its creation."""

    name: str
    rows: Rows = field(default_factory=Rows)
    commits: list[tuple[int, datetime]] = field(default_factory=list)
    _next_id: int = 0
    _id_lock: threading.Lock = field(default_factory=threading.Lock)

    def allocate(self, count: int) -> int:
        """The first of ``count`` new row ids; ids of rows that are never committed stay unused."""
        with self._id_lock:
            first = self._next_id
            self._next_id += count
            return first

    def last_commit(self) -> int:
        return self.commits[-1][0]


@dataclass(slots=True, eq=False)
class View:
    """What a transaction sees: the commit it began at, later ones for tables that it wrote in auto-commit."""

    commit: int
    pins: dict[TableData, int] = field(default_factory=dict)
    overlays: dict[TableData, Overlay] = field(default_factory=dict)
    read: set[TableData] = field(default_factory=set)

    def pinned(self, table: TableData) -> int:
        return self.pins.get(table, self.commit)


class Store:
    """All tables of a memory catalog. Implements ``transactions.Engine``."""

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.lock = threading.RLock()
        self._clock = clock
        self._commit = 0

    @property
    def commit(self) -> int:
        """The number of the last commit: a reader as of it sees that commit whole, and none later."""
        return self._commit

    def create(self, name: str) -> TableData:
        with self.lock:
            table = TableData(name)
            table.commits.append((self._commit + 1, self._clock()))
            self._commit += 1
            return table

    def apply(self, changes: dict[TableData, Overlay]) -> int:
        """Make changes that were checked before, under the lock that is still held; the new commit's number."""
        number = self._commit + 1
        now = self._clock()
        for table, overlay in changes.items():
            table.rows.end(overlay.replaced, number)
            for batch, segment in overlay.segments():
                table.rows.append(Segment(batch, number, segment.first_id, segment.row_ids))
            table.commits.append((number, now))
        self._commit = number
        return number

    def conflicts(self, table: TableData, overlay: Overlay, since: int) -> tuple[int, set[int]]:
        """How many changed rows were changed by others after ``since``, and which deleted ones are gone already."""
        changed, gone = 0, set()
        for row_id in overlay.replaced:
            place = table.rows.newest(row_id)
            if place is None:
                continue
            segment, offset = place
            ended = segment.ended.get(offset)
            if ended is not None and ended > since and row_id in overlay.deleted:
                gone.add(row_id)
            elif segment.made > since or ended is not None:
                changed += 1
        return changed, gone

    # transactions.Engine

    def pin(self) -> View:
        return View(self._commit)

    def publish(self, transaction: Transaction[View]) -> None:
        view = transaction.state
        changes: dict[TableData, Overlay] = {}
        with self.lock:
            self.check_reads(transaction)
            for table, overlay in view.overlays.items():
                changed, gone = self.conflicts(table, overlay, view.pinned(table))
                if changed:
                    raise conflict(table, changed)
                if overlay.changed_rows() > len(gone):  # what changes nothing is no commit
                    changes[table] = overlay
            if changes:
                self.apply(changes)

    def discard(self, transaction: Transaction[View]) -> None:
        transaction.state.overlays.clear()

    def changes(self, transaction: Transaction[View]) -> tuple[tuple[str, ...], int]:
        with transaction.lock:
            overlays = list(transaction.state.overlays.items())
        rows = sum(overlay.changed_rows() for _, overlay in overlays)
        return tuple(sorted(table.name for table, _ in overlays)), rows

    def check_reads(self, transaction: Transaction[View]) -> None:
        """Under serializable, a table that was read must be as it was."""
        if transaction.isolation is not Isolation.SERIALIZABLE:
            return
        view = transaction.state
        for table in view.read:
            if table.last_commit() > view.pinned(table):
                raise Conflict(f"table '{table.name}' was read by this transaction and has been changed since")


def conflict(table: TableData, rows: int) -> Conflict:
    noun = "row" if rows == 1 else "rows"
    return Conflict(f"table '{table.name}': {rows} {noun} changed by another transaction; run this one again")
