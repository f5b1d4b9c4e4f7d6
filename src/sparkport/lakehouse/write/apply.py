"""A table's part of a commit, made by Spark as a snapshot that nobody sees until it is published.

New rows are appended, changed ones merged by their ids. A table that has both gets two snapshots, one on the other, on
a branch of the table that lives until they are published; one alone needs no branch (write-audit-publish).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparkport.errors import InternalError, SparkportError, Unavailable
from sparkport.lakehouse.catalogs.pointers import Edit, Moved, Pointers
from sparkport.lakehouse.columns.types import spark_type
from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.durable import sync_snapshot
from sparkport.lakehouse.iceberg.edits import drop_refs, move_main
from sparkport.lakehouse.iceberg.lineage import Ids
from sparkport.lakehouse.iceberg.metadata import TableMetadata, load
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.spark.server import LostRace, Sessions, translated
from sparkport.lakehouse.spark.sql import quoted
from sparkport.lakehouse.spark.staging import StagedRows, Staging
from sparkport.lakehouse.write.changes import TableChange
from sparkport.lakehouse.write.merge_sql import (
    DELETED_COUNT,
    IS_DELETED,
    MERGED_ID,
    UPDATED_COUNT,
    merge_sql,
    merged_column,
)
from sparkport.lakehouse.write.staged import (
    allow_staging,
    append_staged,
    can_stage,
    check_counts,
    current_metadata,
    marked_snapshot,
    marking,
    merge_staged,
    rows_and_columns,
    take_back,
)

__all__ = ["Applier", "BRANCH", "Part", "StagedSnapshot"]

BRANCH = "sparkport_"
"""What the names of our branches begin with; the rest is the server's id and a number."""

_MARK_CHARACTERS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """What happens to one table: the net changes of some transactions, decided on ``version``.

    ``ids`` are the rows of the table that change, ascending, ``gone`` those to be deleted that are not there any more.
    """

    version: TableVersion
    changes: tuple[TableChange, ...]
    inserted: int
    updated: int
    deleted: int
    gone: Ids
    ids: Ids
    transactions: tuple[str, ...]

    @property
    def rows(self) -> int:
        return self.inserted + self.updated + self.deleted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagedSnapshot:
    """A snapshot, or two, that Spark has made of a part. ``branch`` if they are on one, else ``wap_id``."""

    table: TableName
    part: Part
    mark: str
    is_branch: bool
    state: tuple[object, ...]

    def fits(self, part: Part) -> bool:
        return (
            self.part.transactions == part.transactions
            and np.array_equal(self.part.gone, part.gone)
            and self.state == rows_and_columns(part.version.metadata)
        )


class Applier:
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
        self._spark = spark
        self._staging = staging
        self._prefix = f"{BRANCH}{staging.server}_"
        self._in_use: set[str] = set()
        self._tables_in_use: dict[str, TableName] = {}

    def apply(self, part: Part) -> StagedSnapshot | None:
        """None when the table was changed by others meanwhile."""
        table = part.version.name
        if not can_stage(part.version.metadata):
            allow_staging(self._pointers, table, part.version.metadata)
            return None
        is_branch = bool(part.inserted and (part.updated or part.deleted))
        mark = (self._prefix if is_branch else "") + uuid.uuid4().hex
        staged = StagedSnapshot(
            table=table, part=part, mark=mark, is_branch=is_branch, state=rows_and_columns(part.version.metadata)
        )
        conf = {"spark.wap.branch" if is_branch else "spark.wap.id": mark, **marking(mark)}
        known = ",".join(part.transactions)[:_MARK_CHARACTERS]
        conf["spark.sql.iceberg.snapshot-property.sparkport.transactions"] = known
        if is_branch:
            self._staging.note(part.version.location)
        self._in_use.add(mark)
        self._tables_in_use[mark] = table
        try:
            with self._written(part) as (new, changed), self._spark.session(conf) as session:
                fault("apply.before")
                with translated(f"changing '{table[1]}'"):
                    if new is not None:
                        self._append(session, part, new)
                    if new is not None and changed is not None:
                        fault("apply.between")
                    if changed is not None:
                        self._merge(session, part, changed)
                fault("apply.after")
        except SparkportError as exc:
            if self.take_back(staged):
                return None
            if isinstance(exc, Unavailable):
                raise
            if isinstance(exc, LostRace) or rows_and_columns(self._metadata(table)) != staged.state:
                return None
            raise
        except BaseException:
            self._let_go(staged)
            raise
        if self._was_in_the_open(staged):
            self.discard(staged)
            return None
        return staged

    def edit(self, staged: StagedSnapshot) -> Edit | None:
        """The change of the table's metadata that publishes; None when it is no longer the table it was made for."""
        found = self._metadata(staged.table)
        if rows_and_columns(found) != staged.state:
            return None
        snapshots = _snapshots(found, staged)
        if snapshots is None:
            return None
        self._check(staged, snapshots)
        for snapshot in snapshots:
            sync_snapshot(self._files, found.location, found.snapshot(snapshot["snapshot-id"]))
        after = move_main(found.json, snapshots[-1]["snapshot-id"], previous=found.metadata_location)
        if staged.is_branch:
            after = drop_refs(after, [staged.mark])
        return Edit(staged.table, found.json, after, found.metadata_location)

    def discard(self, staged: StagedSnapshot) -> None:
        """Take the branch away; snapshots without one are found by maintenance. Never raises."""
        if staged.is_branch:
            with contextlib.suppress(SparkportError):
                for table in self._places(staged):
                    drop_branches(self._pointers, self._files, table, lambda name: name == staged.mark)
        self._let_go(staged)

    def take_back(self, staged: StagedSnapshot) -> bool:
        """Discard snapshots; whether they had landed in the open. This MUST be asked before they are published."""
        try:
            return self._was_in_the_open(staged)
        finally:
            self.discard(staged)

    def _was_in_the_open(self, staged: StagedSnapshot) -> bool:
        base = staged.part.version.metadata.main_snapshot_id
        return take_back(self._pointers, self._files, staged.table, staged.mark, base)

    def _places(self, staged: StagedSnapshot) -> list[TableName]:
        """Where the branch may be: the table of that name, and the one that had it, found by its folder."""
        folder = staged.part.version.metadata_folder
        location = self._pointers.location(staged.table)
        if location is not None and location.startswith(folder):
            return [staged.table]
        moved = [table for table, place in self._pointers.cut().tables.items() if place.startswith(folder)]
        return moved if location is None else [staged.table, *moved]

    def published(self, staged: StagedSnapshot) -> None:
        """The branch is gone with the commit."""
        self._let_go(staged)

    def _let_go(self, staged: StagedSnapshot) -> None:
        self._in_use.discard(staged.mark)
        self._tables_in_use.pop(staged.mark, None)

    def uses(self, branch: str) -> bool:
        """Whether a branch of this server's is one of a commit under way; others that it left are of no use."""
        return branch in self._in_use

    def tables_in_use(self) -> set[TableName]:
        """Tables that commits under way have staged snapshots of."""
        return set(self._tables_in_use.copy().values())

    def staged_in(self, metadata: TableMetadata) -> set[int]:
        """Snapshots of a table that wait for a commit under way: on no branch, and however old."""
        return {found.id for found in metadata.snapshots if found.summary.get("wap.id") in self._in_use}

    # Parts of it

    @contextlib.contextmanager
    def _written(self, part: Part) -> Iterator[tuple[StagedRows | None, StagedRows | None]]:
        """The net changes as Parquet: new rows, and changed ones."""
        with contextlib.ExitStack() as left:
            new = changed = None
            first = part.changes[0]
            if part.inserted:
                body = [pa.field(name, kind) for name, kind in zip(first.names, first.stored.types, strict=True)]
                new = self._staging.new(pa.schema(body))
                left.callback(new.discard)
                for change in part.changes:
                    for batch in change.new_rows():
                        new.append(batch)
            if part.updated or part.deleted:
                schema = _merged_schema(first)
                changed = self._staging.new(schema)
                left.callback(changed.discard)
                for change in part.changes:
                    for batch in change.changed_rows(schema, without=part.gone):
                        changed.append(batch)
            for rows in (new, changed):
                if rows is not None:
                    rows.finish()
            fault("stage.after")
            yield new, changed

    def _append(self, session: Any, part: Part, rows: StagedRows) -> None:
        target = quoted(self._catalog, *part.version.name)
        append_staged(session, target, _spark_schema(part.version), [str(rows.path)])

    def _merge(self, session: Any, part: Part, rows: StagedRows) -> None:
        head = f"{MERGED_ID} bigint, {IS_DELETED} boolean, "
        names = list(part.changes[0].names) if part.updated else None
        target, deletes = quoted(self._catalog, *part.version.name), bool(part.deleted)

        def sql(view: str) -> str:
            return merge_sql(target, quoted(view), part.version, part.ids, names=names, deletes=deletes)

        kinds = (spark_type(field["type"]) for field in part.version.columns.fields)
        body = ", ".join(f"{merged_column(at)} {kind}" for at, kind in enumerate(kinds))
        merge_staged(session, head + body, str(rows.path), sql)

    def _metadata(self, table: TableName) -> TableMetadata:
        return current_metadata(self._pointers, self._files, table)

    def _check(self, staged: StagedSnapshot, snapshots: list[Mapping[str, Any]]) -> None:
        """Spark must have done just what was decided."""
        part = staged.part
        expected: list[dict[str, int]] = [{"added-records": part.inserted}] if part.inserted else []
        if part.updated or part.deleted:
            expected.append({UPDATED_COUNT: part.updated, DELETED_COUNT: part.deleted})
        if len(snapshots) != len(expected):
            raise InternalError(f"Spark made {len(snapshots)} snapshots of '{staged.table[1]}', not {len(expected)}")
        for snapshot, counts in zip(snapshots, expected, strict=True):
            check_counts(staged.table, snapshot.get("summary", {}), counts)


def drop_branches(pointers: Pointers, files: FileSystem, table: TableName, chosen: Callable[[str], bool]) -> None:
    """Take branches away that are of no use any more; whoever else writes the table is not disturbed."""
    for _ in range(5):
        location = pointers.location(table)
        if location is None:
            return
        found = load(files, location)
        names = [name for name in found.refs if name.startswith(BRANCH) and chosen(name)]
        if not names:
            return
        after = drop_refs(found.json, names, previous=found.metadata_location)
        with contextlib.suppress(Moved):
            pointers.commit([Edit(table, found.json, after, found.metadata_location)])
            return


def _snapshots(metadata: TableMetadata, staged: StagedSnapshot) -> list[Mapping[str, Any]] | None:
    """What Spark made, oldest first; None if it does not stand on ``main``."""
    by_id: dict[int, Mapping[str, Any]] = {item["snapshot-id"]: item for item in metadata.json["snapshots"]}
    head: Mapping[str, Any] | None
    if staged.is_branch:
        ref = metadata.refs.get(staged.mark)
        head = None if ref is None else by_id.get(ref["snapshot-id"])
    else:
        head = marked_snapshot(metadata, staged.table, staged.mark)
    found: list[Mapping[str, Any]] = []
    while head is not None and head["snapshot-id"] != metadata.main_snapshot_id:
        found.insert(0, head)
        parent = head.get("parent-snapshot-id")
        if parent is None and metadata.main_snapshot_id is None:
            return found
        head = None if parent is None else by_id.get(parent)
        if len(found) > 2:
            return None
    return found if head is not None else None


def _spark_schema(version: TableVersion) -> str:
    return ", ".join(f"{quoted(str(field['name']))} {spark_type(field['type'])}" for field in version.columns.fields)


def _merged_schema(change: TableChange) -> pa.Schema:
    body = [pa.field(merged_column(at), kind) for at, kind in enumerate(change.stored.types)]
    return pa.schema([pa.field(MERGED_ID, pa.int64()), pa.field(IS_DELETED, pa.bool_()), *body])
