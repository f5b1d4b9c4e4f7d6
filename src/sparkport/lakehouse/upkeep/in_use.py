"""What maintenance must leave alone: open transactions, running scans and commits under way use it."""

from __future__ import annotations

import logging
import re
import time
from functools import partial

from sparkport.errors import NotFound, SparkportError
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.catalogs.ledger_rows import ALL_SINCE
from sparkport.lakehouse.iceberg.metadata import BRANCH, TableMetadata, load
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.read import Reader
from sparkport.lakehouse.tables.engine import LakeEngine

__all__ = ["CLOCK_SLACK", "InUse"]

logger = logging.getLogger(__name__)

CLOCK_SLACK = 300.0
_PINS_LOOKED_INTO = 64
_PINS_KEPT = 100_000
"""How many pins are kept, with their snapshots alone: every beat asks for all of them, and few are read."""
_TELLING_SLACK = 15.0
_BRANCH = re.compile(rf"{BRANCH}([0-9a-f]{{32}})_\w+")


class InUse:
    """Called from several threads at once."""

    def __init__(self, engine: LakeEngine, reader: Reader, *, looked_into: int = _PINS_LOOKED_INTO) -> None:
        self.looked_into = looked_into
        """Of so many pins of a table it is found out which snapshot each needs."""
        self._storage = engine.storage
        self._transactions = engine.transactions
        self._versions = engine.versions
        self._applier = engine.applier
        self._reader = reader
        self._pinned: BoundedCache[tuple[TableName, str], tuple[str, int | None]] = BoundedCache(_PINS_KEPT)

    def reported(self) -> dict[str, set[int]]:
        """Snapshots that are not the newest and that open transactions, scans or commits need, by the table's uuid."""
        self._transactions.expire()
        needed = self._reader.all_reading()
        newest = self._storage.pointers.cut().known_locations.items()
        views = [transaction.state for transaction in self._transactions.everyone()]
        # Those that began between the same two commits share a cut, and there may be very many of them.
        cuts = {id(view.cut): view.cut for view in views}.values()
        old: set[tuple[TableName, str | None]] = set().union(*(cut.known_locations.items() - newest for cut in cuts))
        old |= {item for view in views if view.pins for item in list(view.pins.items())} - newest
        for table, place in old:
            try:
                uuid, snapshot_id = self._pinned.get((table, place or ""), partial(self._snapshot_of, table, place))
            except NotFound:
                continue  # its metadata is gone, and with it all that could be read by it
            except SparkportError as exc:
                logger.warning("what transactions need of '%s' is not known: %s", table, exc)
                needed[ALL_SINCE] = {int(min(transaction.begun for transaction in self._transactions.everyone()))}
                continue
            if snapshot_id is not None:
                needed.setdefault(uuid, set()).add(snapshot_id)
        for table in self._applier.tables_in_use():
            try:
                version = self._versions.current(table)
            except SparkportError as exc:
                logger.warning("what commits have staged of '%s' is not known: %s", table, exc)
                continue
            if version is not None:
                needed.setdefault(version.uuid, set()).update(self._applier.needed_in(version.metadata))
        return needed

    def _snapshot_of(self, table: TableName, location: str | None) -> tuple[str, int | None]:
        if location is None:
            return "", None
        version = self._versions.at(table, location)
        return version.uuid, version.snapshot_id

    def snapshots(self, table: TableName, metadata: TableMetadata) -> set[int]:
        ledger = self._storage.ledger
        # Asked for before what is needed elsewhere: in between others may only have reported more.
        reported = ledger.oldest_report_elsewhere()
        needed = self._reader.reading(metadata.uuid) | ledger.needed_elsewhere(metadata.uuid)
        if reported is not None:
            needed |= self._newest_since(metadata, reported - _TELLING_SLACK)
        needed |= self._applier.needed_in(metadata)
        pinned = self.metadata_files(table)
        pinned.pop(metadata.metadata_location, None)
        if len(pinned) > self.looked_into:
            # So many that it is cheaper to keep all that was the table since the first of them began.
            return needed | self._newest_since(metadata, min(pinned.values()) - CLOCK_SLACK)
        for location in pinned:
            try:
                snapshot_id = load(self._storage.files, location).main_snapshot_id
            except NotFound:
                continue  # of a table that is gone
            if snapshot_id is not None:
                needed.add(snapshot_id)
        return needed

    def _newest_since(self, metadata: TableMetadata, since: float) -> set[int]:
        """The snapshots that were the table at some time after this one."""
        log = metadata.snapshot_log
        ends = [*(entry["timestamp-ms"] / 1000 for entry in log[1:]), time.time()]
        return {entry["snapshot-id"] for entry, end in zip(log, ends, strict=False) if end >= since}

    def metadata_files(self, table: TableName) -> dict[str, float]:
        """Metadata files that open transactions see the table by, and since when."""
        self._transactions.expire()
        since: dict[str, float] = {}
        for transaction in self._transactions.everyone():
            view = transaction.state
            for location in (view.pins.get(table), view.cut.known_locations.get(table)):
                if location is not None:
                    since[location] = min(transaction.begun, since.get(location, transaction.begun))
        return since

    def all_metadata_files(self) -> set[str]:
        """Metadata files that open transactions see any table by."""
        self._transactions.expire()
        locations: set[str] = set()
        for transaction in self._transactions.everyone():
            view = transaction.state
            seen = (*view.pins.values(), *view.cut.known_locations.values())
            locations.update(location for location in seen if location is not None)
        return locations

    def is_read(self, table_uuid: str) -> bool:
        """Whether a scan reads a table, here or by another server, or a transaction of another server needs it."""
        return bool(self._reader.reading(table_uuid) or self._storage.ledger.needed_elsewhere(table_uuid))

    def is_left_over(self, branch: str, *, is_old: bool) -> bool:
        """Whether a branch was made for a commit that is over or will never be.

        Servers that share a REST catalog need not know of each other, so a branch of another has to be old, too.
        """
        match = _BRANCH.fullmatch(branch)
        if match is None:
            return False  # somebody else's, whatever it is called
        if match.group(1) == self._storage.ledger.server:
            return not self._applier.uses(branch)
        return is_old and not self._storage.ledger.is_alive(match.group(1))
