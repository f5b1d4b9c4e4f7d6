"""Keeping tables quick: small files put together, old snapshots and files that nobody needs removed.

Spark does the work, by Iceberg's own procedures; the metadata shows what there is to do. Rows, row ids and the
numbers of versions stay as they are. Nothing waits for it: a commit in between makes a compaction try again, and only
then, for a bounded number of bytes, in the table's own queue of writers.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sparkport.catalog.repeats import KNOWN_SECONDS
from sparkport.errors import Conflict, InternalError, InvalidArgument, NotFound, TableNotFound
from sparkport.lakehouse.catalogs.ledger_rows import UNKNOWN
from sparkport.lakehouse.catalogs.pointers import Edit, Moved, Pointers
from sparkport.lakehouse.catalogs.rest_notes import old_fences
from sparkport.lakehouse.files import local_path, sync
from sparkport.lakehouse.iceberg.durable import sync_snapshot
from sparkport.lakehouse.iceberg.edits import drop_refs, set_properties
from sparkport.lakehouse.iceberg.manifests import read_manifest_list
from sparkport.lakehouse.iceberg.metadata import BRANCH, TableMetadata, load
from sparkport.lakehouse.iceberg.plan import plan
from sparkport.lakehouse.iceberg.row_groups import row_group_properties
from sparkport.lakehouse.iceberg.shadows import began, metadata_files
from sparkport.lakehouse.iceberg.version_numbers import NUMBER, numbered
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.spark.server import Work, translated
from sparkport.lakehouse.spark.sql import quoted
from sparkport.lakehouse.tables.storage import Storage
from sparkport.lakehouse.upkeep.in_use import CLOCK_SLACK, InUse
from sparkport.lakehouse.upkeep.maintenance_plan import (
    Compaction,
    MaintenanceSettings,
    compaction,
    expirable,
    forgotten_metadata,
    keeps_row_ids,
    settings_for,
)
from sparkport.lakehouse.warehouse import true_path
from sparkport.lakehouse.write.committer import Committer
from sparkport.lakehouse.write.wap_applier import drop_branches

__all__ = ["Maintenance", "Report", "STEPS", "drop_fences", "require_steps"]

logger = logging.getLogger(__name__)

STEPS = ("compact", "manifests", "expire", "orphans", "metadata")

_ROUNDS = 100
_ATTEMPTS = 5
_EXPIRED_AT_ONCE = 1_000
_READY_SECONDS = 60.0
_NO_LIMIT = 2**63 - 1
_MANIFEST_BYTES = 8 << 20
"""As long as Iceberg makes them, unless a table says otherwise."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was done to a table, in numbers, and the steps left out with the reason. ``more`` says that there is."""

    table: TableName
    counts: Mapping[str, int]
    skipped: Mapping[str, str]
    more: bool = False

    def joined(self, later: Report) -> Report:
        """With what a later run has done."""
        counts = Counter(self.counts) + Counter(later.counts)
        return Report(self.table, counts, {**self.skipped, **later.skipped}, self.more or later.more)

    def as_dict(self) -> dict[str, Any]:
        return {"table": str(self.table), **self.counts, "skipped": dict(self.skipped), "more": self.more}


def require_steps(steps: Collection[str]) -> None:
    unknown = sorted(set(steps) - set(STEPS))
    if unknown:
        raise InvalidArgument(f"'{unknown[0]}' is no step of maintenance; there are {', '.join(STEPS)}")


class Maintenance:
    """One table at a time, whoever asks."""

    def __init__(
        self,
        storage: Storage,
        committer: Committer,
        in_use: InUse,
        settings: MaintenanceSettings | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.storage = storage
        self.committer = committer
        self.in_use = in_use
        self.settings = settings or MaintenanceSettings()
        self._clock = clock
        self.finished: dict[TableName, float] = {}
        """When a table was last gone through here."""
        self._one = threading.Lock()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """What is under way ends after its present step."""
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def run(self, table: TableName, steps: Collection[str] = STEPS, *, thorough: bool = True) -> Report:
        """Do what is due. ``thorough`` is for one who asks for it: it also puts few files together, and all of them."""
        require_steps(steps)
        with self._one:
            report = _Run(self, table, thorough=thorough).do(steps)
            self.finished[table] = self._clock()
            return report

    def now(self) -> float:
        return self._clock()


class _Run:
    """Maintenance of one table."""

    def __init__(self, maintenance: Maintenance, table: TableName, *, thorough: bool) -> None:
        self._maintenance = maintenance
        self._storage = maintenance.storage
        self._in_use = maintenance.in_use
        self._table = table
        self._thorough = thorough
        self._counts: Counter[str] = Counter()
        self._skipped: dict[str, str] = {}
        self._more = False
        self._all_due = thorough
        metadata = self._metadata()
        self._synced = metadata.metadata_location
        settings = settings_for(maintenance.settings, metadata.properties)
        self._settings = replace(settings, small_files=2) if thorough else settings

    def do(self, steps: Collection[str]) -> Report:
        work = {
            "compact": self._compact,
            "manifests": self._manifests,
            "expire": self._expire,
            "orphans": self._orphans,
            "metadata": self._forget_metadata,
        }
        # Now and then even a few snapshots go; to ask Spark about each of them every minute is not worth it.
        self._all_due = self._thorough or "orphans" in steps
        for name, step in work.items():
            if name in steps and not self._maintenance.stopping:
                step()
                self._sync()
        counts = {name: count for name, count in self._counts.items() if count}
        if counts:
            logger.info("maintenance of '%s': %s", self._table, counts)
        return Report(self._table, counts, self._skipped, self._more)

    def _metadata(self) -> TableMetadata:
        location = self._storage.pointers.location(self._table)
        if location is None:
            raise TableNotFound(*self._table)
        return load(self._storage.files, location)

    def _sync(self) -> None:
        """Rows that were safe from a loss of power are to be so in their new files too, which Spark does not see to."""
        metadata = self._metadata()
        if metadata.metadata_location != self._synced:
            self._synced = metadata.metadata_location
            sync([metadata.metadata_location], below=metadata.location)
            if metadata.main_snapshot_id is not None:
                snapshot = metadata.snapshot(metadata.main_snapshot_id)
                sync_snapshot(self._storage.files, metadata.location, snapshot)

    # Small files

    def _compact(self) -> None:
        for _ in range(_ROUNDS):
            metadata = self._metadata()
            files = plan(self._storage.files, metadata, metadata.main_snapshot_id).files
            due = compaction(files, self._settings)
            self._more = due is not None and due.files > due.most_files
            if due is None or self._maintenance.stopping:
                return
            self._make_row_groups_small(metadata)
            by_values = any(file.equality_deletes for file in files)
            done = self._undisturbed(partial(self._rewrite, due, by_values=by_values))
            self._counts["compacted_files"] += done["rewritten_data_files_count"]
            self._counts["written_files"] += done["added_data_files_count"]
            if not (self._thorough and done["rewritten_data_files_count"]):
                return

    def _make_row_groups_small(self, metadata: TableMetadata) -> None:
        """Tables of earlier times say nothing of their row groups, and Spark would make one of each file."""
        wanted = row_group_properties(metadata.properties, len(metadata.current_schema["fields"]))
        if wanted:
            after = set_properties(metadata.json, wanted, previous=metadata.metadata_location)
            with contextlib.suppress(Moved):  # the next run will find it as it was
                self._storage.pointers.commit(
                    [Edit(self._table, dict(metadata.json), after, metadata.metadata_location)]
                )

    def _rewrite(self, due: Compaction, *, by_values: bool) -> Mapping[str, int]:
        options = {
            # Whether there are enough of them has been decided; what is limited here is how many are taken at once.
            "min-input-files": 2,
            "min-file-size-bytes": self._settings.small_file_bytes,
            "target-file-size-bytes": self._settings.target_file_bytes,
            # Large files are left alone, whatever their size: to split them would make nothing quicker.
            "max-file-size-bytes": _NO_LIMIT,
            "max-file-group-size-bytes": self._settings.max_bytes,
            "max-files-to-rewrite": due.most_files,
            "delete-ratio-threshold": self._settings.deleted_ratio,
            "remove-dangling-deletes": "true",
            "partial-progress.enabled": "false",
            **({"delete-file-threshold": 1} if by_values else {}),
        }
        pairs = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
        return self._call("rewrite_data_files", f"options => map({pairs})")[0]

    def _manifests(self) -> None:
        metadata = self._metadata()
        if metadata.main_snapshot_id is None:
            return
        listed = read_manifest_list(self._storage.files, metadata.snapshot(metadata.main_snapshot_id).manifest_list)
        least = sum(entry["manifest_length"] for entry in listed) // _MANIFEST_BYTES
        if len(listed) <= max(self._settings.max_manifests, 2 * least):  # a huge table needs many
            return
        if metadata.format_version >= 3 and not self._keeps_row_ids():
            self._skipped["manifests"] = "Spark's Iceberg would give its rows other row ids: it must be 1.12 or later"
            return
        done = self._undisturbed(lambda: self._call("rewrite_manifests", "use_caching => false")[0])
        self._counts["rewritten_manifests"] += done["rewritten_manifests_count"]

    def _keeps_row_ids(self) -> bool:
        """A Spark that was not started here may have any Iceberg."""
        with self._storage.spark.session(timeout=_READY_SECONDS) as session, translated("Iceberg's version"):
            rows = session.sql(f"SELECT {quoted(self._storage.catalog_name)}.system.iceberg_version()").collect()
        return keeps_row_ids(str(rows[0][0]))

    def _undisturbed(self, work: Callable[[], Mapping[str, int]]) -> Mapping[str, int]:
        """Beside the table's writers, and where one of them came in between, once more while they wait."""
        try:
            return work()
        except (Conflict, InternalError) as exc:
            logger.info("maintenance of '%s' is tried again: %s", self._table, exc)
        with self._maintenance.committer.turn(self._table):
            return work()

    # Old snapshots

    def _expire(self) -> None:
        self._drop_branches()
        if self._kept_by_owner("expire"):
            return
        while not self._maintenance.stopping:
            metadata = self._numbered()
            needed = self._in_use.snapshots(self._table, metadata)
            due = expirable(metadata, self._settings, now=self._maintenance.now(), needed=needed)
            if not due or (len(due) < self._settings.max_snapshots // 10 and not self._all_due):
                return
            if (reason := self._neighbour(metadata)) is not None:
                self._skipped["expire"] = reason  # files that this table needs no more would go
                return
            chosen = due[:_EXPIRED_AT_ONCE]
            # Only those that are named: a time of long ago keeps Spark from choosing others by its own rule.
            done = self._call(
                "expire_snapshots",
                f"snapshot_ids => array({', '.join(map(str, chosen))})",
                f"older_than => {_timestamp(0)}",
                "retain_last => 1",
            )
            self._counts["expired_snapshots"] += len(chosen)
            self._counts["removed_files"] += sum(value or 0 for value in done[0].values())
            if len(due) == len(chosen):
                return  # what has become old meanwhile can wait for the next run

    def _drop_branches(self) -> None:
        """Those that commits have left: a branch keeps its snapshots."""
        metadata = self._metadata()
        before = (self._maintenance.now() - self._settings.staged_seconds) * 1000
        left = {
            name
            for name, ref in metadata.refs.items()
            if name.startswith(BRANCH)
            and self._in_use.is_left_over(name, is_old=metadata.snapshot(ref["snapshot-id"]).timestamp_ms < before)
        }
        if left:
            drop_branches(self._storage.pointers, self._storage.files, self._table, lambda name: name in left)
            self._counts["dropped_branches"] += len(left)
        drop_fences(self._storage.pointers, self._metadata(), self._table, now=self._maintenance.now())

    def _numbered(self) -> TableMetadata:
        """The metadata with the version's number written down: it is counted from snapshots that are about to go."""
        for _ in range(_ATTEMPTS):
            metadata = self._metadata()
            note = numbered(dict(metadata.json))["properties"][NUMBER]
            if metadata.properties.get(NUMBER) == note:
                return metadata
            before, location = dict(metadata.json), metadata.metadata_location
            after = set_properties(before, {NUMBER: note}, previous=location)
            try:
                self._storage.pointers.commit([Edit(self._table, before, after, location)])
            except Moved:
                continue
        return self._metadata()

    # Files that nobody knows of

    def _orphans(self) -> None:
        metadata = self._metadata()
        reason = self._shared(metadata)
        if reason is not None:
            self._skipped["orphans"] = reason
        elif not self._kept_by_owner("orphans"):
            shadows = [began(shadow) - CLOCK_SLACK for shadow in self._shadows(metadata)]
            limit = _timestamp(min([self._maintenance.now() - self._settings.orphan_seconds, *shadows]))
            # Spark lists a local folder by Hadoop's file systems, which need not know a store that Iceberg does.
            listing = [] if local_path(metadata.location) is not None else ["prefix_listing => true"]
            orphans = self._call("remove_orphan_files", f"older_than => {limit}", *listing)
            self._counts["removed_orphans"] += len(orphans)

    def _forget_metadata(self) -> None:
        if self._kept_by_owner("metadata"):
            return
        metadata = self._metadata()
        folder = metadata.metadata_location.rpartition("/")[0]
        reason = self._shared(metadata)
        if reason is not None:
            self._skipped["metadata"] = reason
            return
        listed = self._storage.files.list(folder)
        present = {info.path for info in listed}
        # Asked for after listing: who begins now sees metadata that the listing has as the newest, or later.
        paths = (path for shadow in self._shadows(metadata) for path in metadata_files(shadow))
        shadows = {path.rpartition("/")[2] for path in paths}
        listed = [info for info in listed if info.path.rpartition("/")[2] not in shadows]
        needed = self._in_use.metadata_files(self._table)
        before = self._maintenance.now() - self._settings.metadata_seconds
        elsewhere = self._storage.ledger.needed_elsewhere(metadata.uuid)
        since = [entry["timestamp-ms"] / 1000 for entry in metadata.snapshot_log if entry["snapshot-id"] in elsewhere]
        if UNKNOWN in elsewhere and (reported := self._storage.ledger.oldest_report_elsewhere()) is not None:
            since.append(reported)
        before = min([before, *(moment - CLOCK_SLACK for moment in since)])
        for path in forgotten_metadata(listed, metadata, before=before, needed=needed):
            self._storage.files.delete(path)
            parent, _, name = path.rpartition("/")
            if (checksum := f"{parent}/.{name}.crc") in present:  # Hadoop's, beside files on a local disk
                self._storage.files.delete(checksum)
            self._counts["removed_metadata"] += 1

    def _shadows(self, metadata: TableMetadata) -> list[TableMetadata]:
        """What commits under way have made of the table, by whatever server."""
        records, found = self._storage.pointers.shadows, []
        folder = true_path(metadata.location)
        for location in [] if records is None else records.locations():
            if (true_path(location) or "").startswith(f"{folder}/"):
                with contextlib.suppress(NotFound):  # it is gone since
                    found.append(load(self._storage.files, location))
        return found

    def _shared(self, metadata: TableMetadata) -> str | None:
        """Why files in the table's folder that the table does not know may be somebody's all the same."""
        folder = self._storage.warehouse.inside(metadata.location)
        if folder is None:
            return "the table's folder is not in the warehouse"
        if not (self._storage.warehouse.inside(metadata.metadata_location) or "").startswith(f"{folder}/"):
            return "the table's metadata is not in the table's folder"
        if (reason := self._neighbour(metadata)) is not None:
            return reason
        known = {metadata.metadata_location, *(entry["metadata-file"] for entry in metadata.metadata_log)}
        if self._in_use.metadata_files(self._table).keys() - known:
            return "a transaction has been open for more than a hundred commits"
        return None

    def _neighbour(self, metadata: TableMetadata) -> str | None:
        """Another table in the folder: others may have given one metadata file two names, which share files then."""
        folder = true_path(metadata.location)
        for other, location in self._storage.pointers.cut().tables.items():
            if other != self._table and (true_path(location) or "").startswith(f"{folder}/"):
                return f"table '{'.'.join(other)}' has files in the same folder"
        return None

    def _kept_by_owner(self, step: str) -> bool:
        if self._metadata().properties.get("gc.enabled", "true").lower() == "false":
            self._skipped[step] = "the table's property gc.enabled is false"
            return True
        return False

    # Spark

    def _call(self, procedure: str, *arguments: str) -> list[dict[str, Any]]:
        name = quoted(*self._table).replace("\\", "\\\\").replace("'", "\\'")
        given = ", ".join([f"table => '{name}'", *arguments])
        work = Work(f"maintenance: {procedure}", (self._table,))
        with (
            self._storage.spark.session(timeout=_READY_SECONDS, limited=False, work=work) as session,
            translated(f"maintenance of '{self._table[1]}'"),
        ):
            rows = session.sql(f"CALL {quoted(self._storage.catalog_name)}.system.{procedure}({given})").collect()
            return [row.asDict() for row in rows]


def _timestamp(seconds: float) -> str:
    return f"TIMESTAMP '{datetime.fromtimestamp(seconds, UTC).isoformat(sep=' ', timespec='milliseconds')}'"


def drop_fences(pointers: Pointers, metadata: TableMetadata, table: TableName, *, now: float) -> None:
    """The tags that keep commits of a REST catalog from being made: after a day none of these comes any more."""
    before, location = dict(metadata.json), metadata.metadata_location
    tags, properties = old_fences(before, before=now - KNOWN_SECONDS)
    if properties:
        after = drop_refs(set_properties(before, dict.fromkeys(properties), previous=location), tags)
        with contextlib.suppress(Moved):  # the next run will find them
            pointers.commit([Edit(table, before, after, location)])
