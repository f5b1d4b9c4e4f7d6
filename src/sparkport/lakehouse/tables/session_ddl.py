"""What a session has created and altered itself, so that its transaction sees it.

DuckDB does not send its transaction with DDL: `CREATE TABLE t AS …` creates in one call and inserts in another, whose
transaction began before. A look at the catalog as it was then would not find the table.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from sparkport.catalog.context import CallContext
from sparkport.catalog.repeats import Recent
from sparkport.lakehouse.catalogs.journal_state import TableJournal
from sparkport.lakehouse.names import TableName

__all__ = ["SessionDdl"]

_SESSIONS = 10_000
_CHANGES = 1_000
_JOURNALS = 64


class _Log:
    """Each change with its number."""

    def __init__(self) -> None:
        self.moves: OrderedDict[tuple[TableName, str | None], tuple[int, str | None]] = OrderedDict()
        self.schemas: OrderedDict[str, tuple[int, Mapping[str, str] | None]] = OrderedDict()


class SessionDdl:
    """The moves of pointers by DDL, of the last sessions that made some. A table that does not exist is at None.

    A session is its caller's: of one caller no more than a tenth of them are kept.

    ``since`` is what ``now`` said when a transaction began: what was done before is in the catalog as it saw it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._logs: Recent[tuple[str | None, str | None], _Log] = Recent(at_most=_SESSIONS)
        self._journals: OrderedDict[tuple[TableName, str], TableJournal] = OrderedDict()

    def now(self) -> int:
        return self._number

    def note(self, ctx: CallContext, table: TableName, old: str | None, new: str | None) -> None:
        with self._lock:
            log = self._log(ctx)
            if log is not None:
                self._number += 1
                log.moves.pop((table, new), None)  # this is where it is now
                log.moves[(table, old)] = (self._number, new)
                while len(log.moves) > _CHANGES:
                    log.moves.popitem(last=False)

    def note_journal(self, ctx: CallContext, table: TableName, *, location: str, journal: TableJournal | None) -> None:
        """What a table's journal was in the instant of a change that ``note`` tells of."""
        key = (table, location)
        with self._lock:
            self._journals.pop(key, None)
            if journal is not None and self._log(ctx) is not None:
                self._journals[key] = journal
            while len(self._journals) > _JOURNALS:
                self._journals.popitem(last=False)

    def journal(self, table: TableName, location: str) -> TableJournal | None:
        """What a table's journal was when the caller brought it there, if that is kept."""
        with self._lock:
            return self._journals.get((table, location))

    def note_schema(self, ctx: CallContext, name: str, properties: Mapping[str, str] | None) -> None:
        with self._lock:
            log = self._log(ctx)
            if log is not None:
                self._number += 1
                log.schemas[name] = (self._number, properties)
                while len(log.schemas) > _CHANGES:
                    log.schemas.popitem(last=False)

    def follow(self, ctx: CallContext, table: TableName, location: str | None, *, since: int) -> str | None:
        """Where the caller's own changes have brought a table that was here."""
        with self._lock:
            for log in self._logs_of(ctx):
                while (move := log.moves.get((table, location))) is not None and move[0] > since:
                    since, location = move
            return location

    def moved_from(self, ctx: CallContext, table: TableName, *, since: int) -> str | None:
        """Where a table was when the caller itself changed it first; None if it has not, or has made it."""
        with self._lock:
            moves = [
                (number, old)
                for log in self._logs_of(ctx)
                for (name, old), (number, _) in log.moves.items()
                if name == table and number > since
            ]
        return min(moves, key=lambda move: move[0])[1] if moves else None

    def tables(self, ctx: CallContext, *, since: int) -> set[TableName]:
        """The tables that the caller has changed."""
        with self._lock:
            return {key[0] for log in self._logs_of(ctx) for key, move in log.moves.items() if move[0] > since}

    def schemas(
        self, ctx: CallContext, seen: Mapping[str, Mapping[str, str]], *, since: int
    ) -> dict[str, Mapping[str, str]]:
        """The schemas that a caller sees now, if it saw these when its transaction began."""
        schemas: dict[str, Mapping[str, str] | None] = dict(seen.items())
        with self._lock:
            for log in self._logs_of(ctx):
                schemas.update({name: note[1] for name, note in log.schemas.items() if note[0] > since})
        return {name: properties for name, properties in sorted(schemas.items()) if properties is not None}

    def _log(self, ctx: CallContext) -> _Log | None:
        """Where a call notes what it does; None without session and transaction: nobody would know it again."""
        key = (None, ctx.transaction_id) if ctx.transaction_id is not None else (ctx.session, None)
        if key == (None, None):
            return None
        log = self._logs.get(key) or _Log()
        self._logs.put(key, log, ctx.identity.subject)
        return log

    def _logs_of(self, ctx: CallContext) -> list[_Log]:
        found = [self._logs.get(key) for key in ((ctx.session, None), (None, ctx.transaction_id)) if any(key)]
        return [log for log in found if log is not None]
