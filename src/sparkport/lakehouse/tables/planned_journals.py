"""States of the journal that tickets were made for: a flush between planning and reading must not take them away."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import replace

from sparkport.lakehouse.catalogs.journal_state import Entry, TableJournal
from sparkport.lakehouse.catalogs.pointers import Pointers

__all__ = ["PlannedJournals"]

_MOST_STATES = 1_000
_MOST_BYTES = 64 << 20


class PlannedJournals:
    """The last ones, by the table's uuid and the two revisions that a ticket names."""

    def __init__(self, pointers: Pointers) -> None:
        self._pointers = pointers
        self._lock = threading.Lock()
        self._states: OrderedDict[tuple[str, int, int], TableJournal] = OrderedDict()
        self._users: Counter[Entry] = Counter()
        self._bytes = 0

    def keep(self, journal: TableJournal) -> None:
        key = (journal.uuid, journal.flushed, journal.last)
        with self._lock:
            if key in self._states:
                self._states.move_to_end(key)
                return
            self._states[key] = replace(journal, known={})  # what was made of it takes more room than it does
            self._hold(journal)
            while len(self._states) > 1 and (len(self._states) > _MOST_STATES or self._bytes > _MOST_BYTES):
                self._let_go(self._states.popitem(last=False)[1])

    def _hold(self, journal: TableJournal) -> None:
        """Most entries are in many states, and take their room once."""
        for entry in journal.entries:
            self._bytes += 0 if entry in self._users else len(entry.body)
            self._users[entry] += 1

    def _let_go(self, journal: TableJournal) -> None:
        for entry in journal.entries:
            self._users[entry] -= 1
            if not self._users[entry]:
                del self._users[entry]
                self._bytes -= len(entry.body)

    def find(self, uuid: str, flushed: int, last: int) -> TableJournal | None:
        """Also one that another server has planned with, as long as it is in the journal."""
        with self._lock:
            known = self._states.get((uuid, flushed, last))
        if known is not None:
            return known
        journal = self._pointers.cut().journal.by_uuid.get(uuid)
        if journal is None or journal.flushed != flushed:
            return None
        state = journal.up_to(last)
        return state if state.last == last else None
