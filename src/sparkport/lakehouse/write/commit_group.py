"""One commit: what goes together is decided by row lineage, applied, and published at one instant.

An applier makes a snapshot of what happens to a table that nobody sees; then ``main`` of all tables moves in one commit
of the catalog, together with the state of the transactions. Where somebody else has moved ``main`` meanwhile, all that
this touches is decided and applied again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sparkport.catalog.context import CallContext, entered
from sparkport.catalog.steps import step
from sparkport.errors import Conflict, SparkportError, TableNotFound, TransactionNotActive, Unavailable
from sparkport.lakehouse.catalogs.database import Work
from sparkport.lakehouse.catalogs.pointers import Edit, JournalMoved, Moved, Pointers
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.iceberg.lineage import NO_IDS, Ids, Lineage, ascending, positions_in
from sparkport.lakehouse.journal.net import FIRST_ID, touches_since
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import JOURNAL, TableVersion
from sparkport.lakehouse.write.applier import Applier, Staged, apply_all
from sparkport.lakehouse.write.change_set import ChangeSet, TablePlan
from sparkport.lakehouse.write.checks import require_checks_hold
from sparkport.lakehouse.write.commit_request import (
    Committed,
    FlushedElsewhere,
    Flushing,
    Member,
    NotFlushed,
    quoted_names,
)
from sparkport.lakehouse.write.conflicts import check_reads, decide, read_lineages
from sparkport.lakehouse.write.keys import AddedKey, GroupKeys, adds_since
from sparkport.lakehouse.write.staged import LeftInTheOpen

__all__ = ["CommitGroup", "FINAL"]

logger = logging.getLogger(__name__)

FINAL = (LeftInTheOpen, Unavailable)
"""What nothing may be tried again after: rows are in a table, or might get there."""

_ATTEMPTS = 8

_Versions = Mapping[TableName, TableVersion | None]


class CommitGroup:
    """One try to commit some requests together. Those that cannot go with the others stay without an outcome.

    ``members`` are those that it is about by now: what goes wrong concerns them, and nobody else.
    """

    def __init__(
        self,
        members: Sequence[Member],
        pointers: Pointers,
        applier: Applier,
        current: Callable[[TableName], TableVersion | None],
        pool: ThreadPoolExecutor,
    ) -> None:
        self.members = list(members)
        self._pool = pool
        self._pointers = pointers
        self._applier = applier
        self._current = current
        self._staged: dict[TableName, Staged] = {}
        self._added: Mapping[TableName, Sequence[AddedKey]] = {}
        self._looked_at: Mapping[TableName, TableVersion] = {}

    def run(self) -> None:
        try:
            for _ in range(_ATTEMPTS):
                versions = {table: self._version(table) for member in self.members for table in member.tables}
                self.members = self._admitted(versions)
                if not self.members:
                    return
                with contextlib.suppress(TableNotFound):  # it was dropped or renamed, as the next look will show
                    with step("apply"):
                        applied = self._apply(versions)
                    if applied:
                        with step("publish"):
                            published = self._publish(versions)
                        if published:
                            return
                self._take_back_from_the_open()
            raise Conflict(f"table {quoted_names(self._changed_tables())} is changed by others all the time; try again")
        finally:
            for staged in self._staged.values():
                if staged.is_in_the_open:
                    staged.take_back()
                else:
                    staged.discard()

    def _version(self, table: TableName) -> TableVersion | None:
        with self._about(table):
            version = self._current(table)
        return version.without_journal() if version is not None and self._flushing else version

    @property
    def _flushing(self) -> list[Flushing]:
        return [member.request.flush for member in self.members if member.request.flush is not None]

    @contextlib.contextmanager
    def _about(self, table: TableName) -> Iterator[None]:
        """What goes wrong in the block is about this table alone; a flush is told so."""
        try:
            yield
        except Exception as exc:
            for flush in self._flushing:
                flush.failed(table, exc)
            raise

    def _take_back_from_the_open(self) -> None:
        """Before anything is decided again: the rows would look like another's."""
        for staged in [staged for staged in self._staged.values() if staged.is_in_the_open]:
            self._staged.pop(staged.table).take_back()

    def _changed_tables(self) -> set[TableName]:
        return {table for member in self.members for table in member.changes}

    # Who may go

    def _admitted(self, versions: _Versions) -> list[Member]:
        """Those without a conflict, in their order. One that meets another of the group waits for the next."""
        group, keys = _Admission(), GroupKeys([member.changes for member in self.members], versions, self._looked_at)
        # What goes wrong here is not known to be about all of them: each is tried alone then.
        lineages = self._lineages([change for member in self.members for change in member.changes.values()], versions)
        for member in self.members:
            if group.meets(member):
                continue
            try:
                check_reads(member.request.reads, versions)
                member.decisions = {t: decide(change, versions[t], lineages) for t, change in member.changes.items()}
                self._require_flushed(member, versions)
                if member.request.flush is None:
                    with entered(CallContext()):  # that the leader's call was cancelled is not about this member
                        require_checks_hold(member.changes, member.decisions, versions, lineages)
                    if not keys.admit(member.changes, member.decisions):
                        continue
            except SparkportError as exc:
                member.outcome = exc
                continue
            request = member.request
            is_noted = request.flush is not None or request.transaction is not None or request.reads
            if not is_noted and not any(map(member.writes, request.changes)):
                member.outcome = Committed({}, member.rows)
                continue
            group.admit(member)
        self._added = keys.added
        self._looked_at = {table: version for table in keys.added if (version := versions[table]) is not None}
        return group.members

    def _lineages(self, changes: Sequence[ChangeSet], versions: _Versions) -> Mapping[TableName, Lineage]:
        if not self._flushing:
            return read_lineages(changes, versions)
        found: dict[TableName, Lineage] = {}
        for change in changes:  # one for each table
            with self._about(change.base.table):
                found |= read_lineages([change], versions)
        return found

    def _require_flushed(self, member: Member, versions: _Versions) -> None:
        """Spark changes rows as they are in its snapshot: those that the journal has changed must be there first."""
        for table, decision in member.decisions.items():
            version = versions[table]
            if member.request.flush is None and version is not None and version.journal is not None:
                touched = ascending(decision.updated, decision.deleted)
                if touches_since(version.journal, 0, touched) or (len(touched) and touched[-1] >= FIRST_ID):
                    raise NotFlushed(table)
                if member.changes[table].names_moved_rows(version):
                    raise NotFlushed(table)

    # Apply

    def _apply(self, versions: _Versions) -> bool:
        """Make the snapshots that are not there yet; False when somebody was quicker."""
        plans = {table: self._plan(table, versions) for table in sorted(self._changed_tables())}
        for table, staged in list(self._staged.items()):
            plan = plans.get(table)
            if plan is None or not staged.fits(plan):
                self._staged.pop(table).take_back()
        wanted = [plan for table, plan in plans.items() if plan is not None and table not in self._staged]
        if not wanted:
            return True
        fault("commit.decided")
        failures: list[BaseException] = []
        for plan, outcome in zip(wanted, apply_all(self._applier, wanted, self._pool), strict=True):
            if isinstance(outcome, Staged):
                self._staged[plan.table] = outcome
            elif outcome is not None:
                failures.append(outcome)
                for flush in self._flushing:
                    flush.failed(plan.table, outcome)
        if failures:
            raise next(exc for kind in (*FINAL, BaseException) for exc in failures if isinstance(exc, kind))
        return all(plan.table in self._staged for plan in wanted)

    def _plan(self, table: TableName, versions: _Versions) -> TablePlan | None:
        version = versions[table]
        if version is None:
            raise TableNotFound(*table)
        members = [member for member in self.members if table in member.changes and member.writes(table)]
        if not members:
            return None
        decisions = [member.decisions[table] for member in members]
        change_sets = tuple(member.changes[table] for member in members)
        return TablePlan(
            version=version,
            change_sets=change_sets,
            columns=next((change.columns for change in change_sets if change.columns), ()),
            updated=ascending(*(decision.updated for decision in decisions)),
            deleted=ascending(*(decision.deleted for decision in decisions)),
            statements=tuple(_statements(members)),
            transactions=tuple(_transactions(members)),
            authors=_authors(members),
            timeout=_longest(members),
            in_order=any(member.request.flush is not None for member in members),
            alone=len(self._changed_tables()) == 1
            and version.journal is None
            and not version.is_journalled
            and not any(m.request.transaction or m.request.reads or m.request.flush for m in self.members),
        )

    # Publish

    def _publish(self, versions: _Versions) -> bool:
        """Move ``main`` of all tables at one instant; False when it has to be decided and applied again."""
        read = {table for member in self.members for table in member.request.reads if table not in self._staged}
        unchanged = {table: version.location for table in read if (version := versions[table]) is not None}
        for _ in range(_ATTEMPTS):
            edits = self._edits()
            if edits is None:
                return False
            fault("publish.before")
            try:
                locations = self._commit(edits, unchanged, self._journal_part(edits, versions))
            except Moved as exc:
                if isinstance(exc, JournalMoved) and any(member.request.flush for member in self.members):
                    raise FlushedElsewhere(f"another has applied the journal of '{exc.table.name}'") from exc
                if exc.table in unchanged or isinstance(exc, JournalMoved):
                    return False
                continue
            except TransactionNotActive as exc:
                ended = [member for member in self.members if member.request.transaction == exc.transaction_id]
                if not ended:
                    raise
                for member in ended:
                    member.outcome = exc
                self.members = [member for member in self.members if member.outcome is None]
                return not self.members
            # First of all: whatever goes wrong from here on, it is done.
            for member in self.members:
                changed = {table: locations[table] for table in member.changes if table in locations}
                member.outcome = Committed(changed, member.rows)
            for staged in self._staged.values():
                staged.published()
            self._staged.clear()
            fault("publish.after")
            return True
        return False

    def _edits(self) -> list[Edit] | None:
        edits = []
        for staged in self._staged.values():
            with self._about(staged.table):
                edit = staged.edit()
            if edit is None:
                # Others may have published it, which must not be done twice.
                self._staged.pop(staged.table).take_back()
                return None
            edits.append(edit)
        return edits

    def _journal_part(self, edits: Sequence[Edit], versions: _Versions) -> Callable[[Work], None] | None:
        """What is done about the journal in the transaction that publishes."""
        records = self._pointers.journal
        if records is None:
            return None
        if flushing := self._flushing:
            return flushing[0].part(records, edits)
        switched_on = {edit.table for edit in edits if edit.after.get("properties", {}).get(JOURNAL) == "true"}
        decided = {table: version for table, version in versions.items() if version is not None}
        if not switched_on and all(v.journal is None and not v.is_journalled for v in decided.values()):
            return None
        ids = {t: ascending(*(i for m in self.members for i in _ids(m, t))) for t in decided}
        read = {table for member in self.members for table in member.request.reads}

        def check(work: Work) -> None:
            view, _ = records.advance(work)
            for table, version in decided.items():
                now = view.by_uuid.get(version.uuid)
                if now is None or now.table == version.twin:
                    continue
                if now.last > version.revision and (table in read or touches_since(now, version.revision, ids[table])):
                    raise JournalMoved(table)
                if adds_since(now, version.revision, version, self._added.get(table, ())):
                    raise JournalMoved(table)

        return check

    def _commit(
        self, edits: Sequence[Edit], unchanged: Mapping[TableName, str], part: Callable[[Work], None] | None
    ) -> Mapping[TableName, str]:
        statements, transactions = _statements(self.members), _transactions(self.members)
        try:
            return self._pointers.commit(
                edits, statements, unchanged=unchanged, transactions=transactions, with_journal=part
            )
        except Unavailable as exc:
            if not any(staged.is_in_the_open for staged in self._staged.values()):
                raise
            # Everybody sees the rows, so it is done.
            logger.warning("a change of %s is not noted for a repeat: %s", quoted_names(self._staged), exc)
            return {edit.table: edit.location for edit in edits if edit.location is not None}
        except SparkportError:
            self._take_back_from_the_open()
            raise


class _Admission:
    """Members that go together: no row, no statement and no read of one meets a change of another."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._ids: dict[TableName, Ids] = {}
        self._columns: dict[TableName, tuple[str, ...]] = {}
        self._statements: set[str] = set()

    def meets(self, member: Member) -> bool:
        if member.request.statement in self._statements or any(table in self._ids for table in member.request.reads):
            return True
        return any(self._meets(table, change) for table, change in member.changes.items() if table in self._ids)

    def _meets(self, table: TableName, change: ChangeSet) -> bool:
        # One MERGE sets the same columns in all rows that it updates.
        if change.columns and self._columns[table] not in ((), change.columns):
            return True
        return any(bool(np.any(positions_in(self._ids[table], ids) >= 0)) for ids in (change.updated, change.deleted))

    def admit(self, member: Member) -> None:
        self.members.append(member)
        if member.request.statement is not None:
            self._statements.add(member.request.statement)
        for table, change in member.changes.items():
            self._ids[table] = ascending(self._ids.get(table, NO_IDS), change.updated, change.deleted)
            self._columns[table] = self._columns.get(table) or change.columns


def _ids(member: Member, table: TableName) -> tuple[Ids, ...]:
    decision = member.decisions.get(table)
    return () if decision is None else (decision.updated, decision.deleted)


def _statements(members: Iterable[Member]) -> dict[str, int]:
    """With the rows that each has changed."""
    return {member.request.statement: member.rows for member in members if member.request.statement is not None}


def _transactions(members: Iterable[Member]) -> list[str]:
    return [member.request.transaction for member in members if member.request.transaction is not None]


def _authors(members: Iterable[Member]) -> tuple[str, ...]:
    authors = {member.request.author: None for member in members}
    return tuple(author for author in authors if author is not None)


def _longest(members: Iterable[Member]) -> float | None:
    """Who waits together waits as long as the most patient: none may fail because of another."""
    left = [member.request.remaining() for member in members]
    known = [seconds for seconds in left if seconds is not None]
    return max(known) if len(known) == len(left) else None
