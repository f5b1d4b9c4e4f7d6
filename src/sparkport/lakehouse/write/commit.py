"""The commit of deferred transactions: conflicts by row lineage, one or two Spark statements per table, one instant.

Transactions that wait for the same tables are committed together where their rows do not meet. What each did to a
table is decided on the table as it is; Spark makes snapshots of it that nobody sees; then ``main`` of all tables moves
in one commit of the catalog, together with the state of the transactions. Where somebody else has moved ``main``
meanwhile, everything that this touches is decided and applied again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from sparkport.errors import (
    Conflict,
    NotFound,
    SparkportError,
    TableNotFound,
    TransactionNotActive,
    Unavailable,
    rows_changed,
)
from sparkport.lakehouse.catalogs.pointers import Moved, Pointers
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.iceberg.lineage import NO_IDS, Ids, Lineage, ascending, changed_since, positions_in
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.write.apply import Applier, Part, StagedSnapshot
from sparkport.lakehouse.write.changes import INSERTED, TableChange
from sparkport.lakehouse.write.staged import LeftInTheOpen
from sparkport.lakehouse.write.writer import Writers

__all__ = ["Committer", "Pending"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 8
_MOST_TOGETHER = 64
_AT_ONCE = 4


@dataclass(slots=True, eq=False)
class Pending:
    """A transaction that wants to be committed: what it changed, and under ``serializable`` what it read.

    ``recorded`` says whether its state is kept with the catalog; that of single statements is not. ``returned`` are
    tables of which rows were handed out before they were deleted: if one is gone by now, that is a conflict.
    """

    id: str
    changes: Mapping[TableName, TableChange]
    reads: Mapping[TableName, TableVersion | None] = field(default_factory=dict)
    statements: Mapping[str, int] = field(default_factory=dict)
    recorded: bool = True
    returned: frozenset[TableName] = frozenset()
    ids: dict[TableName, tuple[Ids, Ids]] = field(default_factory=dict)
    gone: dict[TableName, Ids] = field(default_factory=dict)
    done: bool = False
    error: BaseException | None = None
    locations: dict[TableName, str] = field(default_factory=dict)

    @property
    def tables(self) -> set[TableName]:
        return self.changes.keys() | self.reads.keys()

    def counted(self) -> Mapping[str, int]:
        """The statements with the rows that they have changed: those that others had deleted already are none."""
        gone = sum(map(len, self.gone.values()))
        return {key: count - gone for key, count in self.statements.items()}

    def changed_ids(self, table: TableName) -> tuple[Ids, Ids]:
        if table not in self.ids:
            self.ids[table] = self.changes[table].changed_ids()
        return self.ids[table]


class Committer:
    def __init__(
        self,
        *,
        pointers: Pointers,
        writers: Writers,
        applier: Applier,
        current: Callable[[TableName], TableVersion | None],
    ) -> None:
        self._pointers = pointers
        self._writers = writers
        self._applier = applier
        self._current = current
        self._waiting: list[Pending] = []
        self._busy: set[TableName] = set()
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="commit")

    def close(self) -> None:
        self._pool.shutdown()

    def commit(self, mine: Pending, remaining: Callable[[], float | None] = lambda: None) -> Mapping[TableName, str]:
        """Returns when it is committed, with the places of the tables' metadata; or raises, and nothing is changed.

        ``remaining``: seconds for which it may wait for its turn; one that has begun is brought to its end.
        """
        with self._changed:
            self._waiting.append(mine)
        while True:
            with self._changed:
                while not mine.done and not self._may_go(mine):
                    left = remaining()
                    if left is not None and left <= 0 and mine in self._waiting:
                        self._waiting.remove(mine)
                        self._changed.notify_all()
                        tables = ", ".join(sorted(f"'{table[1]}'" for table in mine.tables))
                        raise Unavailable(f"table {tables} is busy; try again")
                    self._changed.wait(left if mine in self._waiting else None)
                if mine.done:
                    break
                group = self._gather(mine)
                busy = {table for member in group for table in member.tables}
                self._busy |= busy
            try:
                self._commit_group(group)
            finally:
                with self._changed:
                    self._busy -= busy
                    self._waiting[:0] = [member for member in group if not member.done]
                    self._changed.notify_all()
        if mine.error is not None:
            raise mine.error
        return mine.locations

    def _may_go(self, member: Pending) -> bool:
        """Its tables are free, and nobody who came earlier waits for one of them and another."""
        if member.tables & self._busy:
            return False
        for earlier in self._waiting:
            if earlier is member:
                return True
            if earlier.tables & self._busy and earlier.tables & member.tables:
                return False
        return False

    def _gather(self, leader: Pending) -> list[Pending]:
        """The leader and those that wait for its tables; the rest is left to lead groups of its own."""
        group, tables = [leader], set(leader.tables)
        for member in self._waiting:
            meets = member is not leader and member.tables & tables and self._may_go(member)
            if meets and len(group) < _MOST_TOGETHER:
                group.append(member)
                tables |= member.tables
        self._waiting = [member for member in self._waiting if member not in group]
        return group

    def _commit_group(self, group: list[Pending]) -> None:
        try:
            with contextlib.ExitStack() as turns:
                for table in sorted({table for member in group for table in member.changes}):
                    turns.enter_context(self._writers.of(table).turn())
                _Group(group, self._pointers, self._applier, self._current, self._pool).run()
        except BaseException as exc:
            left = [member for member in group if not member.done]
            again = isinstance(exc, Exception) and not isinstance(exc, (Unavailable, LeftInTheOpen))
            if again and len(left) > 1:
                logger.info("a transaction of a group of %d failed; each is tried alone", len(left))
                for member in left:
                    self._commit_group([member])
                return
            for member in left:
                member.error, member.done = exc, True
            if not isinstance(exc, Exception):
                raise


class _Group:
    """One try to commit some transactions together. Those that cannot go with the others stay undone."""

    def __init__(
        self,
        members: Sequence[Pending],
        pointers: Pointers,
        applier: Applier,
        current: Callable[[TableName], TableVersion | None],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._members = list(members)
        self._pool = pool
        self._pointers = pointers
        self._applier = applier
        self._look = current
        self._staged: dict[TableName, StagedSnapshot] = {}

    def run(self) -> None:
        try:
            for _ in range(_ATTEMPTS):
                versions = {table: self._look(table) for member in self._members for table in member.tables}
                self._members = self._admitted(versions)
                if not self._members:
                    return
                with contextlib.suppress(TableNotFound):  # dropped or renamed meanwhile, as the next look will tell
                    if self._apply(versions) and self._publish(versions):
                        return
            tables = ", ".join(sorted(f"'{table[1]}'" for table in self._written()))
            raise Conflict(f"table {tables} is changed by others all the time; run the transaction again")
        finally:
            for staged in self._staged.values():
                self._applier.discard(staged)

    def _written(self) -> set[TableName]:
        return {table for member in self._members for table in member.changes}

    # Who may go

    def _admitted(self, versions: Mapping[TableName, TableVersion | None]) -> list[Pending]:
        """Those without a conflict, in their order. One that meets another of the group waits for the next."""
        admitted: list[Pending] = []
        taken: dict[TableName, Ids] = {}
        present = _Lineage(self._members, versions)
        for member in self._members:
            if any(table in taken for table in member.reads):
                continue
            ids = {table: ascending(*member.changed_ids(table)) for table in member.changes}
            if any(
                bool(np.any(positions_in(taken[table], found) >= 0)) for table, found in ids.items() if table in taken
            ):
                continue
            try:
                _check_reads(member, versions)
                for table, change in member.changes.items():
                    gone = _gone(change, member.changed_ids(table), versions[table], present)
                    if len(gone) and table in member.returned:
                        raise rows_changed(table[1], len(gone))
                    member.gone[table] = gone
            except SparkportError as exc:
                member.error, member.done = exc, True
                continue
            for table, found in ids.items():
                taken[table] = ascending(taken.get(table, NO_IDS), found)
            admitted.append(member)
        return admitted

    # Apply

    def _apply(self, versions: Mapping[TableName, TableVersion | None]) -> bool:
        """Make the snapshots that are not there yet; False when somebody was quicker."""
        wanted: dict[TableName, Part] = {}
        for table in sorted(self._written()):
            part = self._part(table, versions[table])
            staged = self._staged.get(table)
            if staged is not None and (part is None or not staged.fits(part)):
                self._applier.discard(self._staged.pop(table))
                staged = None
            if part is not None and staged is None:
                wanted[table] = part
        for table in [table for table in self._staged if table not in self._written()]:
            self._applier.discard(self._staged.pop(table))
        if not wanted:
            return True
        fault("commit.decided")
        done = _all(self._applier.apply, wanted.values(), self._pool)
        failed: BaseException | None = None
        for table, (staged, error) in zip(wanted, done, strict=True):
            failed = failed or error
            if staged is not None:
                self._staged[table] = staged
        if failed is not None:
            raise failed
        return all(table in self._staged for table in wanted)

    def _part(self, table: TableName, version: TableVersion | None) -> Part | None:
        if version is None:
            raise TableNotFound(*table)
        members = [member for member in self._members if table in member.changes]
        gone = ascending(*(member.gone[table] for member in members))
        changed = [ascending(*(member.changed_ids(table)[kind] for member in members)) for kind in (0, 1)]
        updated, deleted = (ids[positions_in(gone, ids) < 0] for ids in changed)
        part = Part(
            version=version,
            changes=tuple(member.changes[table] for member in members),
            inserted=sum(member.changes[table].counts.get(INSERTED, 0) for member in members),
            updated=len(updated),
            deleted=len(deleted),
            gone=gone,
            ids=ascending(updated, deleted),
            transactions=tuple(member.id for member in members),
        )
        return part if part.rows else None

    # Publish

    def _publish(self, versions: Mapping[TableName, TableVersion | None]) -> bool:
        """Move ``main`` of all tables at one instant; False when it has to be decided and applied again."""
        read = {table for member in self._members for table in member.reads if table not in self._staged}
        unchanged = {table: version.location for table in read if (version := versions[table]) is not None}
        statements = {key: count for member in self._members for key, count in member.counted().items()}
        for _ in range(_ATTEMPTS):
            edits = []
            for staged in self._staged.values():
                edit = self._applier.edit(staged)
                if edit is None:
                    # Others may have published it, which must not be done twice.
                    self._applier.take_back(self._staged.pop(staged.table))
                    return False
                edits.append(edit)
            ids = [member.id for member in self._members if member.recorded]
            fault("publish.before")
            try:
                moved = self._pointers.commit(edits, statements, unchanged=unchanged, transactions=ids)
            except Moved as exc:
                if exc.table in unchanged:
                    return False
                continue
            except TransactionNotActive as exc:
                lost = [member for member in self._members if member.id == exc.transaction_id]
                if not lost:
                    raise
                for member in lost:
                    member.error, member.done = exc, True
                self._members = [member for member in self._members if not member.done]
                return not self._members
            for staged in self._staged.values():
                self._applier.published(staged)
            self._staged.clear()
            fault("publish.after")
            for member in self._members:
                member.locations = {table: moved[table] for table in member.changes if table in moved}
                member.done = True
            return True
        return False


class _Lineage:
    """Which rows that the members changed are there now, and since when: read once per table."""

    def __init__(self, members: Iterable[Pending], versions: Mapping[TableName, TableVersion | None]) -> None:
        self._members = list(members)
        self._versions = versions
        self._found: dict[TableName, Lineage] = {}

    def of(self, table: TableName) -> Lineage:
        if table not in self._found:
            version = self._versions[table]
            changed = [
                found
                for member in self._members
                if table in member.changes and not _is_same(member.changes[table].version, version)
                for found in member.changed_ids(table)
            ]
            ids = ascending(*changed)
            self._found[table] = Lineage.of([]) if version is None or not len(ids) else version.lineage(ids)
        return self._found[table]


def _is_same(one: TableVersion, other: TableVersion | None) -> bool:
    return other is not None and one.uuid == other.uuid and one.snapshot_id == other.snapshot_id


def _gone(change: TableChange, ids: tuple[Ids, Ids], current: TableVersion | None, lineage: _Lineage) -> Ids:
    """The deleted rows that somebody else has deleted already. Raises Conflict where another was first."""
    pinned = change.version
    if current is None or current.uuid != pinned.uuid:
        raise NotFound(f"table '{pinned.name[1]}' has been dropped")
    if not current.columns.takes_rows_of(pinned.columns):
        raise Conflict(f"table '{pinned.name[1]}' has been altered; run the statement again")
    if not current.metadata.descends_from(pinned.snapshot_id, pinned.sequence_number):
        raise Conflict(f"table '{pinned.name[1]}' has been rolled back; run the statement again")
    updated, deleted = ids
    if current.snapshot_id == pinned.snapshot_id or not (len(updated) or len(deleted)):
        return NO_IDS
    present, limit = lineage.of(pinned.name), pinned.sequence_number
    changed, gone = changed_since(updated, present, limit)
    also_changed, deleted_by_others = changed_since(deleted, present, limit)
    if lost := len(changed) + len(gone) + len(also_changed):
        raise rows_changed(pinned.name[1], lost)
    return deleted_by_others


def _check_reads(member: Pending, versions: Mapping[TableName, TableVersion | None]) -> None:
    """Under serializable, a table that was read must be as it was; compaction leaves it so."""
    for table, seen in member.reads.items():
        current = versions[table]
        if seen is None and current is None:
            continue
        if seen is None or current is None or not current.same_rows_as(seen):
            raise Conflict(f"table '{table[1]}' was read by this transaction and has been changed since")


def _all(
    work: Callable[[Part], StagedSnapshot | None], parts: Collection[Part], pool: ThreadPoolExecutor
) -> Iterator[tuple[StagedSnapshot | None, BaseException | None]]:
    """Each done, several at a time; what came of it, or the error."""

    def tried(part: Part) -> tuple[StagedSnapshot | None, BaseException | None]:
        try:
            return work(part), None
        except BaseException as exc:
            return None, exc

    return map(tried, parts) if len(parts) == 1 else iter(list(pool.map(tried, parts)))
