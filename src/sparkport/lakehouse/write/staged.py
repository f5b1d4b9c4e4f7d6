"""Snapshots that Spark has made and nobody sees yet: what single statements and transactions need to publish one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from sparkport.errors import InternalError, TableNotFound, Unavailable
from sparkport.lakehouse.catalogs.pointers import Edit, Moved, OutcomeUnknown, Pointers
from sparkport.lakehouse.columns.columns import essence
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.edits import clear_main, move_main, set_properties
from sparkport.lakehouse.iceberg.metadata import MARK, WAP, Snapshot, TableMetadata, load
from sparkport.lakehouse.names import TableName

__all__ = [
    "LeftInTheOpen",
    "allow_staging",
    "can_stage",
    "current_metadata",
    "in_the_open",
    "landed",
    "marked_snapshot",
    "rows_and_columns",
    "stageable",
    "take_back",
]

logger = logging.getLogger(__name__)


def current_metadata(pointers: Pointers, files: FileSystem, table: TableName) -> TableMetadata:
    location = pointers.location(table)
    if location is None:
        raise TableNotFound(*table)
    return load(files, location)


def can_stage(metadata: TableMetadata) -> bool:
    """Whether Spark makes snapshots of the table aside. One that was made elsewhere it would write in the open."""
    return metadata.properties.get(WAP) == "true"


def stageable(table: TableName, metadata: TableMetadata) -> Edit:
    """What tells such a table to."""
    after = set_properties(metadata.json, {WAP: "true"}, previous=metadata.metadata_location)
    return Edit(table, metadata.json, after, metadata.metadata_location)


def allow_staging(pointers: Pointers, table: TableName, metadata: TableMetadata) -> None:
    """Tell such a table to; look at it again afterwards."""
    _change(pointers, stageable(table, metadata))


def _change(pointers: Pointers, edit: Edit) -> bool:
    """Whether a change beside the rows was made: False when somebody was quicker.

    If that is not known, that says nothing of the statement that asked for it, so it is plain Unavailable.
    """
    try:
        pointers.commit([edit])
    except Moved:
        return False
    except OutcomeUnknown as exc:
        raise Unavailable(exc.message) from exc
    return True


def in_the_open(metadata: TableMetadata, mark: str, base: int | None) -> list[Snapshot]:
    """Snapshots of ours that stand on ``main`` though they were to be made aside, oldest first.

    Spark does that when others took the table's property away, or put another table in its place, after we had looked.
    ``base`` is where ``main`` was then. Others may also have published what was aside, as it is or as a copy. This MUST
    be asked before we publish it ourselves.
    """
    ours: list[Snapshot] = []
    for snapshot in metadata.ancestors(metadata.main_snapshot_id):
        if snapshot.id == base:
            break
        if mark in (snapshot.summary.get(MARK), snapshot.summary.get("published-wap-id")):
            ours.insert(0, snapshot)
    return ours


class LeftInTheOpen(InternalError):
    """Rows of a change that failed are in the table and cannot be taken back. It MUST NOT be tried again."""

    def __init__(self, table: TableName, why: str) -> None:
        super().__init__(
            f"table '{table.name}': rows of a change that was not made are in the table, and {why}: "
            f"somebody took the property {WAP} away meanwhile"
        )


def landed(
    pointers: Pointers, files: FileSystem, table: TableName, mark: str, base: int | None
) -> tuple[TableMetadata | None, list[Snapshot]]:
    """The table as it is, None if there is none, and what of a change is in the open.

    Raises OutcomeUnknown while the catalog gives no answer.
    """
    with _unknown_while_silent(pointers, files, table, mark, base):
        try:
            metadata = current_metadata(pointers, files, table)
        except TableNotFound:
            return None, []
        return metadata, in_the_open(metadata, mark, base)


def take_back(pointers: Pointers, files: FileSystem, table: TableName, mark: str, base: int | None) -> bool:
    """Put ``main`` back to where it was before such snapshots; False when there are none.

    Raises LeftInTheOpen when that cannot be done, and OutcomeUnknown while the catalog gives no answer.
    """
    with _unknown_while_silent(pointers, files, table, mark, base):
        return _take_back(pointers, files, table, mark, base)


@contextlib.contextmanager
def _unknown_while_silent(
    pointers: Pointers, files: FileSystem, table: TableName, mark: str, base: int | None
) -> Iterator[None]:
    try:
        yield
    except Unavailable as exc:

        def settle() -> bool:
            try:
                _take_back(pointers, files, table, mark, base)
            except LeftInTheOpen:
                return True
            return False

        raise OutcomeUnknown(exc.message, settle) from exc


def _take_back(pointers: Pointers, files: FileSystem, table: TableName, mark: str, base: int | None) -> bool:
    while True:
        try:
            metadata = current_metadata(pointers, files, table)
        except TableNotFound:
            return False
        ours = in_the_open(metadata, mark, base)
        if not ours:
            return False
        newest = list(islice(metadata.ancestors(metadata.main_snapshot_id), len(ours)))
        earlier, previous = ours[0].parent_id, metadata.metadata_location
        if newest[::-1] != ours:
            raise LeftInTheOpen(table, "others have built upon them")
        if earlier is not None and not metadata.has_snapshot(earlier):
            raise LeftInTheOpen(table, "what was before them has expired")
        logger.warning("table '%s' lost its property %s: a change is taken back and made again", table, WAP)
        after = clear_main(metadata.json, previous=previous)
        if earlier is not None:
            after = move_main(metadata.json, earlier, previous=previous)
        if _change(pointers, Edit(table, metadata.json, after, previous)):
            return True


def marked_snapshot(metadata: TableMetadata, table: TableName, wap_id: str) -> Mapping[str, Any] | None:
    """What Spark made aside under this id; None where others have expired it meanwhile, as nothing leads to it."""
    for snapshot in metadata.json["snapshots"]:
        if snapshot.get("summary", {}).get("wap.id") == wap_id:
            staged: Mapping[str, Any] = snapshot
            return staged
    logger.warning("the snapshot of a change of '%s' is gone before it was published", table)
    return None


def rows_and_columns(metadata: TableMetadata) -> tuple[object, ...]:
    """What must not change between the decision and the publishing: the table, its columns, its rows."""
    return metadata.uuid, essence(metadata.current_schema["fields"]), metadata.main_snapshot_id
