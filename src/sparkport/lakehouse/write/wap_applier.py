"""Apply by write-audit-publish, where a catalog has no place for shadows: Spark makes snapshots in the table, aside.

New rows are appended, changed ones merged by their ids. A table that has both gets two snapshots, one on the other, on
a branch of the table that lives until they are published; one alone needs no branch (write-audit-publish).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkport.errors import SparkportError, Unavailable
from sparkport.lakehouse.catalogs.pointers import Edit, Moved, Pointers
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.durable import sync_snapshot
from sparkport.lakehouse.iceberg.edits import drop_refs, move_main
from sparkport.lakehouse.iceberg.metadata import BRANCH, Snapshot, TableMetadata, load
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.spark.server import LostRace, NoTable, Sessions
from sparkport.lakehouse.spark.sql import quoted
from sparkport.lakehouse.spark.staging import Staging
from sparkport.lakehouse.write.applier import Staged
from sparkport.lakehouse.write.change_set import TablePlan
from sparkport.lakehouse.write.spark_writes import SparkWrites, check_snapshots
from sparkport.lakehouse.write.staged import (
    allow_staging,
    can_stage,
    current_metadata,
    landed,
    marked_snapshot,
    rows_and_columns,
    stageable,
    take_back,
)

__all__ = ["StagedSnapshot", "WapApplier", "drop_branches"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagedSnapshot(Staged):
    """A snapshot, or two on a branch, that Spark has made of a plan. ``mark`` is the branch's name or the WAP id."""

    applier: WapApplier
    plan: TablePlan
    mark: str
    is_branch: bool
    is_in_the_open: bool = False

    def fits(self, plan: TablePlan) -> bool:
        same_table = rows_and_columns(self.base) == rows_and_columns(plan.version.metadata)
        return same_table and plan.changes_the_same(self.plan)

    def edit(self) -> Edit | None:
        return self.applier.edit(self)

    def published(self) -> None:
        """The branch is gone with the commit."""
        self.applier.let_go(self)

    def discard(self) -> None:
        self.applier.discard(self)

    def take_back(self) -> None:
        self.applier.take_back(self)


class WapApplier:
    def __init__(
        self,
        *,
        catalog: str,
        pointers: Pointers,
        files: FileSystem,
        spark: Sessions,
        staging: Staging,
    ) -> None:
        self._catalog = catalog
        self._pointers = pointers
        self._files = files
        self._staging = staging
        self._writes = SparkWrites(spark, staging)
        self._in_use: dict[str, TableName] = {}

    def apply(self, plan: TablePlan) -> StagedSnapshot | None:
        if not can_stage(plan.version.metadata):
            allow_staging(self._pointers, plan.table, plan.version.metadata)
            return None
        is_branch = bool(plan.inserted and plan.changed)
        mark = (f"{BRANCH}{self._staging.server}_" if is_branch else "") + uuid.uuid4().hex
        staged = StagedSnapshot(applier=self, plan=plan, mark=mark, is_branch=is_branch)
        if is_branch:
            self._staging.note(plan.version.location)
        self._in_use[mark] = plan.table
        failure: SparkportError | None = None
        try:
            self._run(staged)
        except SparkportError as exc:
            failure = exc
        except BaseException:
            self.let_go(staged)
            raise
        return self._judged(staged, failure)

    def edit(self, staged: StagedSnapshot) -> Edit | None:
        if staged.is_in_the_open:
            return self._edit_in_the_open(staged)
        metadata = self._metadata(staged.table)
        if rows_and_columns(metadata) != rows_and_columns(staged.base):
            return None
        snapshots = _snapshots(metadata, staged)
        if snapshots is None:
            return None
        check_snapshots(staged.plan, [snapshot.get("summary", {}) for snapshot in snapshots])
        for snapshot in snapshots:
            sync_snapshot(self._files, metadata.location, metadata.snapshot(snapshot["snapshot-id"]))
        after = move_main(metadata.json, snapshots[-1]["snapshot-id"], previous=metadata.metadata_location)
        if staged.is_branch:
            after = drop_refs(after, [staged.mark])
        return Edit(staged.table, metadata.json, after, metadata.metadata_location)

    def discard(self, staged: StagedSnapshot) -> None:
        """Take the branch away; snapshots without one are found by maintenance."""
        if staged.is_branch:
            with contextlib.suppress(SparkportError):
                for table in self._places(staged):
                    drop_branches(self._pointers, self._files, table, lambda name: name == staged.mark)
        self.let_go(staged)

    def take_back(self, staged: StagedSnapshot) -> None:
        try:
            take_back(self._pointers, self._files, staged.table, staged.mark, staged.base.main_snapshot_id)
        finally:
            self.discard(staged)

    def uses(self, branch: str) -> bool:
        """Whether a branch of this server's is one of a commit under way; others that it left are of no use."""
        return branch in self._in_use

    def tables_in_use(self) -> set[TableName]:
        """Tables that commits under way have staged snapshots of."""
        return set(self._in_use.copy().values())

    def needed_in(self, metadata: TableMetadata) -> set[int]:
        """Snapshots of a table that wait for a commit under way: on no branch, and however old."""
        return {snapshot.id for snapshot in metadata.snapshots if snapshot.summary.get("wap.id") in self._in_use}

    # Spark

    def _run(self, staged: StagedSnapshot) -> None:
        plan = staged.plan
        aside = {"spark.wap.branch" if staged.is_branch else "spark.wap.id": staged.mark}
        with self._writes.session(plan, staged.mark, conf=aside) as steps:
            if staged.is_branch and staged.base.main_snapshot_id is not None:
                self._begin_branch(steps.session, staged)
            steps.run(self._target(plan))

    def _begin_branch(self, session: Any, staged: StagedSnapshot) -> None:
        """Spark would make it with the first snapshot, whose totals would then not go on from those before."""
        mark, main = quoted(staged.mark), staged.base.main_snapshot_id
        session.sql(f"ALTER TABLE {self._target(staged.plan)} CREATE BRANCH {mark} AS OF VERSION {main}").collect()

    def _target(self, plan: TablePlan) -> str:
        return quoted(self._catalog, *plan.table)

    # What came of it

    def _judged(self, staged: StagedSnapshot, failure: SparkportError | None) -> StagedSnapshot | None:
        try:
            metadata, ours = self._landed(staged)
            if metadata is not None and ours:
                if _is_in_place(metadata, ours, staged):
                    return replace(staged, is_in_the_open=True)
                self.take_back(staged)
                return None
        except BaseException:
            self.discard(staged)
            raise
        if failure is None:
            return staged
        self.discard(staged)
        has_changed = metadata is None or rows_and_columns(metadata) != rows_and_columns(staged.base)
        if isinstance(failure, Unavailable) or not (has_changed or isinstance(failure, LostRace | NoTable)):
            raise failure
        return None

    def _landed(self, staged: StagedSnapshot) -> tuple[TableMetadata | None, list[Snapshot]]:
        return landed(self._pointers, self._files, staged.table, staged.mark, staged.base.main_snapshot_id)

    def _edit_in_the_open(self, staged: StagedSnapshot) -> Edit | None:
        """What gives the table its property back; the statements are noted with it."""
        metadata, ours = self._landed(staged)
        if metadata is None or not _is_in_place(metadata, ours, staged):
            return None
        try:
            check_snapshots(staged.plan, [ours[0].summary])
            sync_snapshot(self._files, metadata.location, ours[0])
        except SparkportError:
            self.take_back(staged)
            raise
        return stageable(staged.table, metadata)

    def _places(self, staged: StagedSnapshot) -> list[TableName]:
        """Where the branch may be: the table of that name, and the one that had it, found by its folder."""
        folder = staged.plan.version.metadata_folder
        location = self._pointers.location(staged.table)
        if location is not None and location.startswith(folder):
            return [staged.table]
        moved = [table for table, place in self._pointers.cut().tables.items() if place.startswith(folder)]
        return moved if location is None else [staged.table, *moved]

    def let_go(self, staged: StagedSnapshot) -> None:
        self._in_use.pop(staged.mark, None)

    def _metadata(self, table: TableName) -> TableMetadata:
        return current_metadata(self._pointers, self._files, table)


def drop_branches(pointers: Pointers, files: FileSystem, table: TableName, chosen: Callable[[str], bool]) -> None:
    """Take branches away that are of no use any more; whoever else writes the table is not disturbed."""
    for _ in range(5):
        location = pointers.location(table)
        if location is None:
            return
        metadata = load(files, location)
        names = [name for name in metadata.refs if name.startswith(BRANCH) and chosen(name)]
        if not names:
            return
        after = drop_refs(metadata.json, names, previous=metadata.metadata_location)
        with contextlib.suppress(Moved):
            pointers.commit([Edit(table, metadata.json, after, metadata.metadata_location)])
            return


def _is_in_place(metadata: TableMetadata, ours: Sequence[Snapshot], staged: StagedSnapshot) -> bool:
    """Whether a snapshot in the open stands just where it was to be published, and there is nothing else to publish."""
    same_table = rows_and_columns(metadata)[:2] == rows_and_columns(staged.base)[:2]
    is_next = len(ours) == 1 and ours[0].parent_id == staged.base.main_snapshot_id
    return staged.plan.alone and same_table and is_next


def _snapshots(metadata: TableMetadata, staged: StagedSnapshot) -> list[Mapping[str, Any]] | None:
    """What Spark made, oldest first; None if it does not stand on ``main``."""
    by_id: dict[int, Mapping[str, Any]] = {item["snapshot-id"]: item for item in metadata.json["snapshots"]}
    head: Mapping[str, Any] | None
    if staged.is_branch:
        ref = metadata.refs.get(staged.mark)
        head = None if ref is None else by_id.get(ref["snapshot-id"])
    else:
        head = marked_snapshot(metadata, staged.table, staged.mark)
    snapshots: list[Mapping[str, Any]] = []
    while head is not None and head["snapshot-id"] != metadata.main_snapshot_id:
        snapshots.insert(0, head)
        parent = head.get("parent-snapshot-id")
        if parent is None and metadata.main_snapshot_id is None:
            return snapshots
        head = None if parent is None else by_id.get(parent)
        if len(snapshots) > 2:
            return None
    return snapshots if head is not None else None
