"""Maintenance by itself: one thread that looks at what has changed, now and then, and does what is due.

It cares for tables that this server writes to and, at its start, once for all tables that a sparkport has
written to: a server that died may have left something. A table whose property ``sparkport.maintenance`` is
``false`` is left alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sparkport.errors import SparkportError
from sparkport.lakehouse.iceberg.metadata import WAP, load
from sparkport.lakehouse.iceberg.version_numbers import NUMBER
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.upkeep.dropped_folders import DroppedFolders
from sparkport.lakehouse.upkeep.maintenance import STEPS, Maintenance

__all__ = ["MaintenanceThread"]

logger = logging.getLogger(__name__)

_SWITCH = "sparkport.maintenance"
_OFTEN = tuple(step for step in STEPS if step != "orphans")
_FIRST_ORPHANS_SECONDS = 60 * 60.0
_ORPHANS_SECONDS = 24 * 60 * 60.0
_STATEMENT_SECONDS = 48 * 60 * 60.0
_FORGET_SECONDS = 60 * 60.0
_DROPPED_SECONDS = 60 * 60.0


class MaintenanceThread:
    def __init__(
        self, maintenance: Maintenance, *, ready: Callable[[], bool], dropped: DroppedFolders | None = None
    ) -> None:
        """``ready`` says whether Spark can be asked; a look that finds it is not there is left out.

        Without ``dropped`` the folders of dropped tables stay.
        """
        self._maintenance = maintenance
        self._dropped = dropped
        self._dropped_due = 0.0
        self._storage = maintenance.storage
        self._committer = maintenance.committer
        self._ready = ready
        self._seen: dict[TableName, str] = {}
        self._orphans_due: dict[TableName, float] = {}
        self._forget_due = 0.0
        self._everything = True
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sparkport-maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; ``join`` waits for that. Safe to repeat."""
        self._stopping.set()
        self._maintenance.stop()

    def join(self, timeout: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout)

    @property
    def known(self) -> set[TableName]:
        """Tables that it keeps something in mind about."""
        return {*self._seen, *self._orphans_due}

    def look(self) -> None:
        """Maintain what has changed since the last look."""
        self._forget_statements()
        self._remove_dropped()
        tables = self._tables()
        for gone in self.known - set(tables):
            self._seen.pop(gone, None)
            self._orphans_due.pop(gone, None)
        for table in tables:
            if self._stopping.is_set():
                return
            try:
                self._maintain(table)
            except SparkportError as exc:
                logger.warning("maintenance of '%s' is put off: %s", table, exc.message)
        self._everything = False

    def _work(self) -> None:
        while not self._stopping.wait(self._maintenance.settings.interval_seconds):
            if not self._ready():
                continue
            try:
                self.look()
            except Exception:
                logger.exception("maintenance failed; it goes on with the next look")

    def _tables(self) -> list[TableName]:
        written = self._committer.written()
        return sorted({*written, *self._storage.pointers.cut().tables}) if self._everything else written

    def _maintain(self, table: TableName) -> None:
        location = self._storage.pointers.location(table)
        if location is None:  # dropped or renamed
            self._committer.forget(table)
            return
        if location == self._seen.get(table):
            return
        properties = load(self._storage.files, location).properties
        is_ours = NUMBER in properties or properties.get(WAP, "").lower() == "true"
        if not is_ours or properties.get(_SWITCH, "true").lower() == "false":
            return
        now = self._maintenance.now()
        due = self._orphans_due.setdefault(table, now + _FIRST_ORPHANS_SECONDS)
        report = self._maintenance.run(table, _OFTEN if now < due else STEPS, thorough=False)
        if now >= due:
            self._orphans_due[table] = now + _ORPHANS_SECONDS
        if not report.more:
            # What was done here is no change to look at; what others did meanwhile is seen the next time they write.
            self._seen[table] = self._storage.pointers.location(table) or location

    def _remove_dropped(self) -> None:
        if self._dropped is None:
            return
        now, grace = self._maintenance.now(), self._maintenance.settings.dropped_seconds
        try:
            if now < self._dropped_due:
                self._dropped.note(now)
                return
            self._dropped_due = now + min(_DROPPED_SECONDS, grace)
            self._dropped.remove(now, grace=grace)
        except SparkportError as exc:
            logger.warning("the removal of dropped tables' folders is put off: %s", exc.message)

    def _forget_statements(self) -> None:
        now = self._maintenance.now()
        if now >= self._forget_due:
            self._storage.pointers.forget_statements(now - _STATEMENT_SECONDS)
            self._forget_due = now + _FORGET_SECONDS
