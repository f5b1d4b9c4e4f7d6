"""The memory engine's heart: one counter of commits, and the rules by which a transaction becomes one of them.

Every commit gets the next number. A transaction reads as of the number at which it began; what it writes waits in
overlays. Committing takes the one lock, looks whether any row it changed has been changed since (the first committer
wins), and makes all its changes under one new number, which readers see at one instant.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pyarrow as pa

from sparkport.catalog.constraints import checks_after
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import AddColumn, AddField, Alteration, ChangeType, SetComment, SetDefault
from sparkport.catalog.defaults import require_default
from sparkport.catalog.evolve import evolve_schema
from sparkport.catalog.transaction import Isolation, OpenTransaction, TransactionState
from sparkport.errors import Conflict, NotFound, rows_changed
from sparkport.memory.data import Author, Definition, TableData
from sparkport.memory.overlay import Overlay
from sparkport.memory.rows import Segment
from sparkport.transactions.manager import Transaction

__all__ = ["Store", "TableData", "View", "conflict", "require_kept", "require_same"]


@dataclass(slots=True, eq=False)
class View:
    """What a transaction sees: the commit it began at, later ones for tables that it wrote in auto-commit."""

    commit: int
    pins: dict[TableData, int] = field(default_factory=dict)
    overlays: dict[TableData, Overlay] = field(default_factory=dict)
    read: set[TableData] = field(default_factory=set)

    def pinned(self, table: TableData) -> int:
        """Never before the table's creation: who has come to see it at all sees it as it was made."""
        return max(self.pins.get(table, self.commit), table.created)

    def follow(self, table: TableData, ctx: CallContext) -> int:
        """The commit to see a table at, moved on by what the caller itself has altered since."""
        pinned = self.pinned(table)
        if table in self.overlays:
            return pinned
        moved = table.own_alterations(pinned, ctx)
        if moved > pinned:
            self.pins[table] = moved
        return moved


class Store:
    """All tables of a memory catalog. Implements ``transactions.Engine``."""

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.lock = threading.RLock()
        self._clock = clock
        self._commit = 0
        self._listings: list[int] = []

    @property
    def commit(self) -> int:
        """The number of the last commit: a reader as of it sees that commit whole, and none later."""
        return self._commit

    def listed_at(self, commit: int) -> int:
        """The number of the last commit, up to this one, that changed names, columns or comments."""
        index = bisect_right(self._listings, commit)
        return self._listings[index - 1] if index else 0

    def create(
        self,
        name: str,
        columns: pa.Schema,
        *,
        comment: str | None = None,
        tags: Mapping[str, str] | None = None,
        checks: tuple[str, ...] = (),
    ) -> TableData:
        """A table that has no place in any schema yet."""
        with self.lock:
            number = self._commit + 1
            definition = Definition(number, columns, comment=comment, tags=dict(tags or {}), checks=checks)
            table = TableData(name, [definition], [(number, self._clock())])
            self._commit = number
            return table

    @contextmanager
    def changing_names(self) -> Iterator[int]:
        """The number of a commit of schemas and tables, which is made at the end of the block."""
        with self.lock:
            number = self._commit + 1
            yield number
            self._listings.append(number)
            self._commit = number

    def alter(self, table: TableData, change: Alteration, author: Author) -> None:
        """Nothing to do is no commit. A comment on the table is no version of it: neither rows nor columns change."""
        before = table.newest
        while not self._alter(table, change, author, before):
            before = table.newest

    def _alter(self, table: TableData, change: Alteration, author: Author, before: Definition) -> bool:
        """Whether ``before`` was still the newest. Expressions are computed before the lock, which others wait for."""
        require_kept(table)
        columns = evolve_schema(before.columns, change)
        about_table = isinstance(change, SetComment) and change.column is None
        if columns is before.columns and not about_table:
            return True
        if isinstance(change, AddColumn | ChangeType | SetDefault):
            for column in columns:
                require_default(column)
        if isinstance(change, AddField):
            require_default(change.field)
        checks = checks_after(change, before.checks, columns)
        with self.lock:
            require_kept(table)
            if table.newest is not before:
                return False
            with self.changing_names() as number:
                altered = before.altered(change, columns, commit=number, author=author)
                table.definitions.append(replace(altered, checks=checks))
                if not about_table:
                    table.commits.append((number, self._clock()))
        return True

    def apply(self, changes: dict[TableData, Overlay]) -> int:
        """Make changes that were checked before, under the lock that is still held; the new commit's number."""
        number = self._commit + 1
        now = self._clock()
        for table, overlay in changes.items():
            rows = table.newest.rows
            rows.end(overlay.replaced, number)
            for batch, segment in overlay.segments():
                rows.append(Segment(batch, number, segment.first_id, segment.row_ids))
            table.commits.append((number, now))
        self._commit = number
        return number

    def conflicts(self, table: TableData, overlay: Overlay, since: int) -> tuple[int, set[int]]:
        """How many changed rows were changed by others after ``since``, and which deleted ones are gone already."""
        changed, gone = 0, set()
        for row_id in overlay.replaced:
            place = table.newest.rows.newest(row_id)
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

    def begun(self, transaction: Transaction[View]) -> None:
        """Nothing of it lasts."""

    def recorded(self, transaction_id: str) -> TransactionState | None:
        return None

    def recorded_owner(self, transaction_id: str) -> str | None:
        return None

    def open_elsewhere(self) -> Sequence[OpenTransaction]:
        return ()

    def publish(self, transaction: Transaction[View]) -> None:
        view = transaction.state
        changes: dict[TableData, Overlay] = {}
        with self.lock:
            self.check_reads(transaction)
            for table, overlay in view.overlays.items():
                require_same(table, view.pinned(table))
                changed, gone = self.conflicts(table, overlay, view.pinned(table))
                if changed:
                    raise conflict(table, changed)
                if overlay.changed_rows() > len(gone):  # what changes nothing is no commit
                    changes[table] = overlay
            if changes:
                self.apply(changes)

    def abort(self, transaction: Transaction[View]) -> TransactionState:
        return TransactionState.ABORTED

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
            if table.dropped or table.last_commit() > view.pinned(table):
                raise Conflict(f"table '{table.name}' was read by this transaction and has been changed since")


def require_kept(table: TableData) -> None:
    if table.dropped:
        raise NotFound(f"table '{table.name}' has been dropped")


def require_same(table: TableData, commit: int) -> None:
    """Rows that were made for the table as it was at ``commit`` must still fit it."""
    require_kept(table)
    if not table.newest.same_rows(table.at(commit)):
        raise Conflict(f"table '{table.name}' has been altered; run the statement again")


def conflict(table: TableData, rows: int) -> Conflict:
    return rows_changed(table.name, rows)
