"""The memory engine's heart: one counter of commits, and the rules by which a transaction becomes one of them.

Every commit gets the next number. A transaction reads as of the number at which it began; what it writes waits in
overlays. Committing takes the one lock, looks whether any row it changed has been changed since (the first committer
wins), and makes all its changes under one new number, which readers see at one instant.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pyarrow as pa

from sparkport.catalog.constraints import checks_after
from sparkport.catalog.context import CallContext, current_call
from sparkport.catalog.ddl import AddColumn, AddField, Alteration, ChangeType, SetComment, SetDefault
from sparkport.catalog.defaults import require_default
from sparkport.catalog.evolve import evolve_schema
from sparkport.catalog.key_values import KeyValues, duplicate_key
from sparkport.catalog.keys import keys_after
from sparkport.catalog.table import Key
from sparkport.catalog.transaction import Isolation, OpenTransaction, TransactionState
from sparkport.catalog.versions import open_transactions_refusal
from sparkport.errors import Conflict, FailedPrecondition, NotFound, rows_changed
from sparkport.memory.data import Author, Commit, Definition, TableData
from sparkport.memory.overlay import Overlay
from sparkport.memory.rows import Place, Segment, gather
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
        """Never before the table's creation: a transaction that sees the table at all sees it as it was created."""
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

    def now(self) -> datetime:
        return self._clock()

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
        keys: tuple[Key, ...] = (),
    ) -> TableData:
        """A table that has no place in any schema yet."""
        with self.lock:
            number = self._commit + 1
            definition = Definition(number, columns, comment=comment, tags=dict(tags or {}), checks=checks, keys=keys)
            table = TableData(name, [definition], [Commit(number, self._clock(), is_alteration=True)])
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
        keys = keys_after(change, before.keys, before.columns, columns)
        with self.lock:
            require_kept(table)
            if table.newest is not before:
                return False
            with self.changing_names() as number:
                altered = before.altered(change, columns, commit=number, author=author)
                table.definitions.append(replace(altered, checks=checks, keys=keys))
                if not about_table:
                    table.commits.append(Commit(number, self._clock(), is_alteration=True))
        return True

    def apply(self, changes: dict[TableData, Overlay]) -> int:
        """Make changes that were checked before, under the lock that is still held; the new commit's number."""
        number = self._commit + 1
        commit = Commit(number, self._clock(), *_on_behalf())
        for table, overlay in changes.items():
            rows = table.newest.rows
            rows.end(overlay.replaced, number)
            for batch, segment in overlay.segments():
                rows.append(Segment(batch, number, segment.first_id, segment.row_ids))
            table.commits.append(commit)
        self._commit = number
        return number

    def rollback(self, table: TableData, commit: int, transactions: Iterable[Transaction[View]]) -> int:
        """Make the rows those of a commit again, under their ids; the number of the commit that does it."""
        with self.lock:
            require_kept(table)
            deferred = [item.state for item in transactions if not item.auto_commit]
            used = sum(table in view.read or table in view.overlays for view in deferred)
            if used:
                raise open_transactions_refusal(table.name, used)
            if not table.newest.columns.equals(table.at(commit).columns):
                raise FailedPrecondition(
                    f"table '{table.name}' had other columns in that version: rolling back is about rows; alter the "
                    "table to what it was first"
                )
            before, now = self._places(table, commit), self._places(table, self._commit)
            ended = {row_id for row_id, place in now.items() if before.get(row_id) != place}
            restored = {row_id: place for row_id, place in before.items() if now.get(row_id) != place}
            if not ended and not restored:
                return table.last_commit()
            number = self._commit + 1
            rows = table.newest.rows
            rows.end(ended, number)
            if restored:
                batch = gather(list(restored.values()), table.newest.columns)
                rows.append(Segment(batch, number, row_ids=pa.array(list(restored), pa.int64())))
            table.commits.append(Commit(number, self._clock(), *_on_behalf(), is_rollback=True))
            self._commit = number
            return number

    def _places(self, table: TableData, commit: int) -> dict[int, Place]:
        """Where the rows are that a reader at a commit sees, by their ids."""
        return {
            row_id: (segment, offset)
            for segment in table.at(commit).rows.segments(commit)
            for offset, row_id in enumerate(segment.ids().to_pylist())
            if segment.ended.get(offset, commit + 1) > commit
        }

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
            elif segment.created > since or ended is not None:
                changed += 1
        return changed, gone

    def check_keys(self, table: TableData, overlay: Overlay) -> None:
        """No row that is added or changed may have the key of another; the lock is held."""
        definition, now = table.newest, self._commit
        for key in definition.keys:
            added, moved = _added(definition, key, overlay)
            if not added:
                continue
            values = KeyValues.joined(added)
            repeated = values.repeated()
            if repeated is not None:
                raise duplicate_key(table.name, key, [value[0] for value in repeated])
            for segment in definition.rows.segments(now):
                columns = [segment.batch.column(name) for name in key.columns]
                places = values.places_in(columns)
                for place in [] if places is None else places.to_pylist():
                    is_alive = segment.ended.get(place, now + 1) > now
                    if is_alive and segment.ids()[place].as_py() not in moved:
                        raise duplicate_key(table.name, key, [column[place] for column in columns])

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
                self.check_keys(table, overlay)
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


def _added(definition: Definition, key: Key, overlay: Overlay) -> tuple[list[KeyValues], set[int]]:
    """The key's values of new rows and of those that get others; and rows that do not have theirs any more."""
    added, moved = [], set(overlay.deleted)
    for batch, segment in overlay.segments():
        if segment.row_ids is None:
            added.append(KeyValues([batch.column(name) for name in key.columns]))
            continue
        changed = []
        for place, row_id in enumerate(segment.row_ids.to_pylist()):
            old = definition.rows.newest(row_id)
            if old is None or any(
                not batch.column(name)[place].equals(old[0].batch.column(name)[old[1]]) for name in key.columns
            ):
                changed.append(place)
                moved.add(row_id)
        if changed:
            chosen = pa.array(changed, pa.int64())
            added.append(KeyValues([batch.column(name).take(chosen) for name in key.columns]))
    return added, moved


def _on_behalf() -> tuple[str | None, str | None, str | None]:
    """Who commits: the caller, its transaction and its statement, where a call is served."""
    call = current_call()
    return (None, None, None) if call is None else (call.identity.subject, call.transaction_id, call.statement_id)


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
