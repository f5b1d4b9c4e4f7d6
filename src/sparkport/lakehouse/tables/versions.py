"""Tables as their metadata files describe them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sparkport.errors import InternalError, NotFound, SparkportError, without_places
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.catalogs.journal_state import JournalView, TableJournal
from sparkport.lakehouse.catalogs.pointers import Cut, Pointers
from sparkport.lakehouse.journal.net import is_about
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion, VersionLoader

__all__ = ["TableVersions"]

logger = logging.getLogger(__name__)

_ENTRIES_KEPT = 200_000
"""Snapshots and log entries in all metadata that is kept: they are what makes it large."""

_SLOW_SECONDS = 1.0
_PAUSE_SECONDS = 60.0


class TableVersions:
    """What one metadata file says never changes, so it is kept. Called from several threads at once."""

    def __init__(self, pointers: Pointers, loader: VersionLoader) -> None:
        self._pointers = pointers
        self._loader = loader
        self._kept: BoundedCache[tuple[TableName, str], TableVersion] = BoundedCache(
            _ENTRIES_KEPT, weigh=_entries, name="tables"
        )
        self._left_out: dict[TableName, _LeftOut] = {}

    def current(self, table: TableName) -> TableVersion | None:
        """A table as it is now."""
        location, journal = self._pointers.place(table)
        if location is None:
            return None
        version = self.at(table, location)
        part = journal.by_uuid.get(version.uuid)
        if part is None or part.table == table:
            return version.with_journal(part)
        cut = self._pointers.cut()  # where that table is must be of the same instant
        place = cut.tables.get(table)
        return None if place is None else self.laid_over(self.at(table, place), cut.journal, cut.tables.get)

    def laid_over(
        self, version: TableVersion, journal: JournalView, locate: Callable[[TableName], str | None]
    ) -> TableVersion:
        """A table with its part of the journal. ``locate`` says where other tables are at that instant.

        The journal follows a table that others rename. Where the name that it knows is there, with the same uuid, this
        is another table.
        """
        part = journal.by_uuid.get(version.uuid)
        if part is None or part.table == version.table:
            return version.with_journal(part)
        if self._has_uuid(part, locate(part.table)):
            return replace(version, twin=part.table)
        if is_about(part, version.metadata):
            return version.with_journal(part)
        # It has parted from that one, which is gone: what waits for that is not its own, and may be journalled then.
        return replace(version, twin=part.table) if part.entries else version.with_journal(part.without_past())

    def _has_uuid(self, journal: TableJournal, place: str | None) -> bool:
        """Whether the name that a journal knows is that of its table still.

        One that is lost or damaged may be: what waits for it stays its own. While it cannot be seen, nothing is said.
        """
        try:
            return place is not None and self.at(journal.table, place).uuid == journal.uuid
        except (NotFound, InternalError):
            return True

    def at(self, table: TableName, location: str) -> TableVersion:
        """Without a journal."""
        return self._kept.get((table, location), lambda: self._loader.load(table, location))

    def listed(self, table: TableName, cut: Cut) -> TableVersion | None:
        """A table for a listing: one that cannot be read, or may not, must not hide all others.

        Nor may it hold them up: one that was slow to fail is not tried again for a while.
        """
        began, known = time.monotonic(), self._left_out.get(table)
        if known is not None and began < known.until:
            return None
        try:
            location = cut.tables.get(table)
            if location is None:  # dropped since the names were listed
                self._left_out.pop(table, None)
                return None
            version = self.laid_over(self.at(table, location), cut.journal, cut.tables.get)
            version.fingerprint  # noqa: B018 - looks at the columns, which may be of a type that is not known here
        except SparkportError as exc:
            now = time.monotonic()
            until = now + _PAUSE_SECONDS if now - began > _SLOW_SECONDS else now
            self._left_out[table] = _LeftOut(without_places(exc.message), until)
            if known is None or known.why != self._left_out[table].why:
                logger.warning("table '%s' is left out of the listing: %s", table, exc)
            return None
        self._left_out.pop(table, None)
        return version

    def left_out(self) -> dict[TableName, str]:
        """The tables that listings leave out, as far as one has been made, with the reasons."""
        names = set(self._pointers.cut().tables)
        return {table: item.why for table, item in sorted(self._left_out.copy().items()) if table in names}


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """``until`` it is not tried again."""

    why: str
    until: float


def _entries(version: TableVersion) -> int:
    metadata = version.metadata
    return 10 + len(metadata.snapshots) + len(metadata.snapshot_log) + len(metadata.metadata_log)
