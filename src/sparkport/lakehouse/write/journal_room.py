"""How much may wait in the journal: tables that are set apart never take the room of all others.

They have half of it at most. So the others have the other half even when what is set apart held more than that before
it was found out, and what a server keeps in memory has a bound: one and a half times the limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sparkport.errors import Unavailable
from sparkport.lakehouse.catalogs.journal_apart import ApartRecords, Tied, tied
from sparkport.lakehouse.catalogs.pointers import Pointers
from sparkport.lakehouse.names import TableName

__all__ = ["JournalRoom", "LARGE"]

LARGE = 0.25
"""Of its limit: a journal that holds more is applied at once."""

_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Look:
    """What was set apart at a moment."""

    at: float
    groups: Mapping[TableName, Tied]


class JournalRoom:
    """Called from several threads at once. ``failure`` is why nothing at all can be applied, where that is so."""

    def __init__(self, pointers: Pointers, apart: ApartRecords) -> None:
        self.failure: str | None = None
        self._pointers = pointers
        self._apart = apart
        self._lock = threading.Lock()
        self._look = _Look(float("-inf"), {})

    def require(self, size: int, tables: Collection[TableName], *, limit: int, wake: Callable[[int], None]) -> None:
        """Raise Unavailable where a change of tables finds no room. ``wake`` is told how much waits to be applied."""
        journal = self._pointers.journal
        sizes = {} if journal is None else {part.table: part.size for part in journal.newest.pending}
        held = sum(sizes.values())
        if held + size <= LARGE * limit:
            return
        groups = self._set_apart()
        apart, share = sum(sizes.get(table, 0) for table in groups), limit // 2
        if (table := next((table for table in tables if table in groups), None)) is not None:
            if apart + size > share:
                raise Unavailable(
                    f"{_why(table, groups[table])}: what is set apart holds {apart:,} bytes of the journal, of "
                    f"{share:,} that it may"
                )
            return
        wake(held - apart + size)
        if held - apart + min(apart, share) + size > limit:
            reason = f": {self.failure}" if self.failure else "; Spark has not caught up yet"
            raise Unavailable(f"the journal holds {held:,} bytes that Spark has not applied, of {limit:,}{reason}")

    def _set_apart(self) -> Mapping[TableName, Tied]:
        """Tables that are set apart. A look is good for a moment: it goes to the database, and over all that waits."""
        with self._lock:
            if time.monotonic() - self._look.at < _LOOK_SECONDS:
                return self._look.groups
            journal, noted = self._pointers.journal, self._apart.all()
            groups = tied(journal.newest.pending, noted) if journal is not None and noted else []
            found = {table: group for group in groups if group.apart for table in group.tables}
            self._look = _Look(time.monotonic(), found)
            return found


def _why(table: TableName, group: Tied) -> str:
    """Whoever changes one table need not know of others that it is tied to."""
    for item in group.apart:
        if item.table == table:
            return f"table '{table}' is set apart, because its changes cannot be published: {item.reason}"
    return f"table '{table}' is set apart: commits that wait tie it to a table whose changes cannot be published"
