"""The one way to write: change sets queue up by table, are decided on the table as it is, applied, and published.

Commits that wait for the same tables go together where their rows do not meet; see ``commit_group.py``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from sparkport.catalog.figures import Distribution
from sparkport.catalog.steps import step
from sparkport.errors import AlreadyExists, Conflict, InternalError, NotFound, Unavailable
from sparkport.lakehouse.catalogs.pointers import Pointers
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.write.applier import Applier
from sparkport.lakehouse.write.commit_group import FINAL, CommitGroup
from sparkport.lakehouse.write.commit_request import CommitRequest, Committed, Member, quoted_names

__all__ = ["Committer", "done_elsewhere"]

logger = logging.getLogger(__name__)

_MOST_TOGETHER = 64
_AT_ONCE = 4


class Committer:
    """The queue. Whoever comes to the head of it commits for all that can go along."""

    def __init__(
        self, *, pointers: Pointers, applier: Applier, current: Callable[[TableName], TableVersion | None]
    ) -> None:
        self._pointers = pointers
        self._applier = applier
        self._current = current
        self._waiting: list[Member] = []
        self._busy: set[TableName] = set()
        self._written: dict[TableName, None] = {}
        self._changed = threading.Condition()
        self.group_sizes = Distribution((1, 2, 4, 8, 16, 32, 64))
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="commit")

    def close(self) -> None:
        self._pool.shutdown()

    def commit(self, request: CommitRequest) -> Committed:
        """Returns when it is committed; or raises, and nothing is changed."""
        mine = Member(request, request.changes.keys() | request.reads.keys())
        with self._changed:
            self._waiting.append(mine)
        while True:
            with self._changed:
                if mine.outcome is None:
                    with step("wait"):
                        self._wait(mine)
                if mine.outcome is not None:
                    break
                group = self._gather(mine)
                busy = {table for member in group for table in member.tables}
                self._busy |= busy
                self._written.update(dict.fromkeys(table for member in group for table in member.changes))
            self.group_sizes.add(len(group))
            try:
                self._commit_group(group)
            finally:
                with self._changed:
                    self._busy -= busy
                    self._waiting[:0] = [member for member in group if member.outcome is None]
                    self._changed.notify_all()
        return self._outcome(mine)

    @contextlib.contextmanager
    def turn(self, *tables: TableName) -> Iterator[None]:
        """Keep this server's writers of tables waiting while the block runs."""
        mine = Member(CommitRequest(changes={}), set(tables), is_turn=True)
        with self._changed:
            self._waiting.append(mine)
            self._wait(mine)
            self._waiting.remove(mine)
            self._busy.update(tables)
        try:
            yield
        finally:
            with self._changed:
                self._busy.difference_update(tables)
                self._changed.notify_all()

    def waiting(self) -> int:
        """How many wait for their turn."""
        with self._changed:
            return len(self._waiting)

    def written(self) -> list[TableName]:
        """Tables that this server has written to."""
        with self._changed:
            return list(self._written)

    def forget(self, table: TableName) -> None:
        """A table has been dropped."""
        with self._changed:
            self._written.pop(table, None)

    # The queue

    def _wait(self, mine: Member) -> None:
        """Until it is done, or its turn; ``_changed`` is held."""
        try:
            while mine.outcome is None and not self._may_go(mine):
                is_waiting = mine in self._waiting  # else it goes along with another, who brings it to its end
                left = mine.request.remaining() if is_waiting else None
                if left is not None and left <= 0:
                    raise Unavailable(f"table {quoted_names(mine.tables)} is busy; try again")
                self._changed.wait(left)
        except BaseException:
            with contextlib.suppress(ValueError):
                self._waiting.remove(mine)
            self._changed.notify_all()
            raise

    def _may_go(self, member: Member) -> bool:
        """Its tables are free, and nobody who came earlier waits for one of them and another, or for it alone."""
        if not self._busy.isdisjoint(member.tables):
            return False
        for earlier in self._waiting:
            if earlier is member:
                return True
            must_wait = earlier.is_turn or not self._busy.isdisjoint(earlier.tables)
            if must_wait and any(table in member.tables for table in earlier.tables):
                return False
        return False

    def _gather(self, leader: Member) -> list[Member]:
        """The leader and those that wait for its tables; the rest is left to lead groups of its own."""
        group, tables = [leader], set(leader.tables)
        for member in self._waiting:
            if leader.request.flush is not None or member.request.flush is not None:
                continue  # rows that the journal had are published by themselves: it is known then which they are
            meets = member is not leader and not tables.isdisjoint(member.tables) and self._may_go(member)
            if meets and not member.is_turn and len(group) < _MOST_TOGETHER:
                group.append(member)
                tables.update(member.tables)
        self._waiting = [member for member in self._waiting if member not in group]
        return group

    def _commit_group(self, group: Sequence[Member]) -> None:
        attempt = CommitGroup(group, self._pointers, self._applier, self._current, self._pool)
        try:
            attempt.run()
        except BaseException as exc:
            left = [member for member in attempt.members if member.outcome is None]
            again = isinstance(exc, Exception) and not isinstance(exc, FINAL)
            if again and len(left) > 1:
                logger.info("a commit of a group of %d failed; each is tried alone", len(left))
                for member in left:
                    self._commit_group([member])
                return
            for member in left:
                member.outcome = exc
            if not isinstance(exc, Exception):
                raise
            if not left:
                logger.warning("something went wrong after a commit, which is made: %s", exc)

    def _outcome(self, mine: Member) -> Committed:
        outcome = mine.outcome
        if isinstance(outcome, (AlreadyExists, Conflict, NotFound)) or (
            isinstance(outcome, Committed) and not outcome.locations
        ):
            # Those who were first may have been this very statement, at another server.
            outcome = done_elsewhere(self._pointers, mine.request) or outcome
        if isinstance(outcome, Committed):
            return outcome
        raise outcome or InternalError("a commit ended without an outcome")


def done_elsewhere(pointers: Pointers, request: CommitRequest) -> Committed | None:
    """What a statement has done already, by another server or an earlier try."""
    if request.statement is None:
        return None
    known = (pointers.statement(request.statement, table) for table in request.changes)
    rows = next((rows for rows in known if rows is not None), None)
    if rows is None:
        return None
    cut = pointers.cut()
    places = {table: place for table in request.changes if (place := cut.tables.get(table)) is not None}
    uuids = {change.base.uuid for change in request.changes.values()}
    return Committed(places, rows, {uuid: cut.journal.by_uuid[uuid] for uuid in uuids & cut.journal.by_uuid.keys()})
