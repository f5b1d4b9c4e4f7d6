"""Apply by shadows: a copy of the table's metadata is changed, and its new snapshots become the table's.

New rows of plain tables are put there by ourselves, see ``appends.py``; all else is Spark's work. Nobody sees a shadow,
builds upon it or expires anything of it. Whatever others do to the table meanwhile, Spark goes on undisturbed; what was
made is published only if the table still is what was copied.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass

from sparkport.errors import InternalError, SparkportError, TableNotFound, Unavailable
from sparkport.lakehouse.catalogs.pointers import Edit, Pointers
from sparkport.lakehouse.catalogs.shadow_records import ShadowRecords
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.durable import sync_snapshot
from sparkport.lakehouse.iceberg.edits import add_shadow
from sparkport.lakehouse.iceberg.metadata import TableMetadata, load
from sparkport.lakehouse.iceberg.shadows import metadata_files, new_snapshots, remove_shadow, write_seed
from sparkport.lakehouse.names import TableName, shadow_catalog
from sparkport.lakehouse.spark.server import LostRace, NoTable, Sessions
from sparkport.lakehouse.spark.sql import quoted
from sparkport.lakehouse.spark.staging import Staging
from sparkport.lakehouse.write.appends import Appends, PreparedAppend
from sparkport.lakehouse.write.applier import Staged
from sparkport.lakehouse.write.change_set import TablePlan
from sparkport.lakehouse.write.spark_writes import SparkWrites, check_snapshots, notes_of
from sparkport.lakehouse.write.staged import current_metadata, rows_and_columns

__all__ = ["Shadow", "ShadowApplier"]


@dataclass(slots=True, kw_only=True, eq=False)
class Shadow(Staged):
    """``location`` is where its metadata is."""

    is_in_the_open = False
    applier: ShadowApplier
    plan: TablePlan
    name: str
    location: str
    was_tried: bool = False

    def fits(self, plan: TablePlan) -> bool:
        same_table = _what_was_copied(self.base) == _what_was_copied(plan.version.metadata)
        return same_table and plan.changes_the_same(self.plan)

    def edit(self) -> Edit | None:
        return self.applier.edit(self)

    def published(self) -> None:
        self.applier.published(self)

    def discard(self) -> None:
        self.applier.discard(self)

    def take_back(self) -> None:
        self.applier.discard(self)


class ShadowApplier:
    def __init__(
        self,
        *,
        catalog: str,
        pointers: Pointers,
        files: FileSystem,
        spark: Sessions,
        staging: Staging,
    ) -> None:
        if pointers.shadows is None:
            raise InternalError("this catalog has no place for shadows")
        self._catalog = shadow_catalog(catalog)
        self._pointers = pointers
        self._records: ShadowRecords = pointers.shadows
        self._files = files
        self._staging = staging
        self._writes = SparkWrites(spark, staging)
        self._appends = Appends(files, staging)
        self._in_use: dict[str, Shadow] = {}

    def apply(self, plan: TablePlan) -> Shadow | None:
        """None where the table is another by now: what was read of it may be gone too."""
        name = uuid.uuid4().hex
        try:
            with self._appends.prepared(plan, name=name, notes=notes_of(plan, name)) as append:
                return self._apply(plan, name, append)
        except SparkportError as exc:
            if isinstance(exc, Unavailable) or not (isinstance(exc, LostRace | NoTable) or self._has_changed(plan)):
                raise
            return None

    def _apply(self, plan: TablePlan, name: str, append: PreparedAppend | None) -> Shadow:
        seed = write_seed(self._files, plan.version.metadata, None if append is None else append.append.after)
        shadow = Shadow(applier=self, plan=plan, name=name, location=seed)
        self._in_use[shadow.name] = shadow
        try:
            self._records.add(shadow.name, seed)
            if append is not None and not plan.changed:
                fault("apply.before")
                append.write()
                fault("apply.after")
            else:
                if append is not None:
                    append.write()
                self._run(shadow, appends=append is None)
            self._look(shadow)
        except BaseException:
            self.discard(shadow)
            raise
        return shadow

    def edit(self, shadow: Shadow) -> Edit | None:
        """Others may have changed properties, branches and tags meanwhile: these stay as they are.

        A second try may be due to another server, which has taken this one for dead and the shadow away.
        """
        if shadow.was_tried and self._records.location(shadow.name) is None:
            return None
        shadow.was_tried = True
        metadata = current_metadata(self._pointers, self._files, shadow.table)
        if _what_was_copied(metadata) != _what_was_copied(shadow.base):
            return None
        made = load(self._files, shadow.location)
        snapshots = new_snapshots(made)
        if any(snapshot.schema_id not in (None, *metadata.schemas) for snapshot in snapshots):
            return None
        ids = [snapshot.id for snapshot in snapshots]
        after = add_shadow(metadata.json, made.json, ids, previous=metadata.metadata_location)
        return Edit(shadow.table, metadata.json, after, metadata.metadata_location, shadow.name)

    def published(self, shadow: Shadow) -> None:
        """Its row is gone with the commit. Never raises."""
        remove_shadow(self._files, shadow.location, unpublished=False)
        self._in_use.pop(shadow.name, None)

    def discard(self, shadow: Shadow) -> None:
        """If its row is there its snapshots are not published, nor will be by a commit that was sent and not answered.

        While the database is silent nobody knows; whoever cleans up after this server finds what is left.
        """
        with contextlib.suppress(SparkportError):
            location = self._records.remove(shadow.name)
            remove_shadow(self._files, location or shadow.location, unpublished=location is not None)
        self._in_use.pop(shadow.name, None)

    def uses(self, branch: str) -> bool:
        """None has one: those that there are were left by earlier versions."""
        return False

    def tables_in_use(self) -> set[TableName]:
        return {shadow.table for shadow in self._in_use.copy().values()}

    def needed_in(self, metadata: TableMetadata) -> set[int]:
        """What Spark reads."""
        bases = [shadow.base for shadow in self._in_use.copy().values() if shadow.base.uuid == metadata.uuid]
        return {base.main_snapshot_id for base in bases if base.main_snapshot_id is not None}

    def _run(self, shadow: Shadow, *, appends: bool) -> None:
        with self._writes.session(shadow.plan, shadow.name, appends=appends) as steps:
            steps.run(quoted(self._catalog, self._records.server, shadow.name))

    def _look(self, shadow: Shadow) -> None:
        """Whether Spark has done just what was decided, and that it will not be lost."""
        location = self._records.location(shadow.name)
        if location is None:
            raise NoTable(f"the shadow of '{shadow.table}' is gone")
        seed, shadow.location = shadow.location, location
        made = load(self._files, location)
        for path in metadata_files(made):
            if path != seed:
                self._staging.note(path)  # nothing leads to it once the row is gone
        snapshots = new_snapshots(made)
        check_snapshots(shadow.plan, [snapshot.summary for snapshot in snapshots])
        for snapshot in snapshots:
            sync_snapshot(self._files, made.location, snapshot)

    def _has_changed(self, plan: TablePlan) -> bool:
        try:
            metadata = current_metadata(self._pointers, self._files, plan.table)
        except TableNotFound:
            return True
        return _what_was_copied(metadata) != _what_was_copied(plan.version.metadata)


def _what_was_copied(metadata: TableMetadata) -> tuple[object, ...]:
    """What must not change until a shadow is published: its row ids and sequence numbers are those that come next."""
    numbers = ("last-sequence-number", "next-row-id", "default-spec-id")
    return *rows_and_columns(metadata), *(metadata.json.get(key) for key in numbers)
