"""Snapshots that Spark has made and nobody sees yet: what single statements and transactions need to publish one."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from sparkport.errors import InternalError, TableNotFound, Unavailable
from sparkport.lakehouse.catalogs.pointers import Edit, Moved, OutcomeUnknown, Pointers
from sparkport.lakehouse.columns.columns import essence
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.edits import clear_main, move_main, set_properties
from sparkport.lakehouse.iceberg.metadata import Snapshot, TableMetadata, load
from sparkport.lakehouse.names import TableName

__all__ = [
    "LeftInTheOpen",
    "allow_staging",
    "append_staged",
    "can_stage",
    "check_counts",
    "current_metadata",
    "in_the_open",
    "marked_snapshot",
    "marking",
    "merge_staged",
    "rows_and_columns",
    "stageable",
    "take_back",
]

logger = logging.getLogger(__name__)

_STAGING = "write.wap.enabled"
_MARK = "sparkport.mark"


def current_metadata(pointers: Pointers, files: FileSystem, table: TableName) -> TableMetadata:
    location = pointers.location(table)
    if location is None:
        raise TableNotFound(*table)
    return load(files, location)


def can_stage(metadata: TableMetadata) -> bool:
    """Whether Spark makes snapshots of the table aside. One that was made elsewhere it would write in the open."""
    return metadata.properties.get(_STAGING) == "true"


def stageable(table: TableName, found: TableMetadata) -> Edit:
    """What tells such a table to."""
    after = set_properties(found.json, {_STAGING: "true"}, previous=found.metadata_location)
    return Edit(table, found.json, after, found.metadata_location)


def allow_staging(pointers: Pointers, table: TableName, found: TableMetadata) -> None:
    """Tell such a table to; look at it again afterwards."""
    _change(pointers, stageable(table, found))


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


def marking(mark: str) -> dict[str, str]:
    """What lets Spark put a mark on every snapshot that it makes in a session, wherever it lands."""
    return {f"spark.sql.iceberg.snapshot-property.{_MARK}": mark}


def in_the_open(metadata: TableMetadata, mark: str, base: int | None) -> list[Snapshot]:
    """Snapshots of ours that stand on ``main`` though they were to be made aside, oldest first.

    Spark does that when others took the table's property away, or put another table in its place, after we had looked.
    ``base`` is where ``main`` was then. Others may also have published what was aside, as it is or as a copy. This MUST
    be asked before we publish it ourselves.
    """
    found: list[Snapshot] = []
    for snapshot in metadata.ancestors(metadata.main_snapshot_id):
        if snapshot.id == base:
            break
        if mark in (snapshot.summary.get(_MARK), snapshot.summary.get("published-wap-id")):
            found.insert(0, snapshot)
    return found


class LeftInTheOpen(InternalError):
    """Rows of a change that failed are in the table and cannot be taken back. It MUST NOT be tried again."""

    def __init__(self, table: TableName, why: str) -> None:
        super().__init__(
            f"table '{table[1]}': rows of a change that was not made are in the table, and {why}: "
            f"somebody took the property {_STAGING} away meanwhile"
        )


def take_back(pointers: Pointers, files: FileSystem, table: TableName, mark: str, base: int | None) -> bool:
    """Put ``main`` back to where it was before such snapshots; False when there are none.

    Raises LeftInTheOpen when that cannot be done, and OutcomeUnknown while the catalog gives no answer.
    """
    try:
        return _take_back(pointers, files, table, mark, base)
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
            found = current_metadata(pointers, files, table)
        except TableNotFound:
            return False
        ours = in_the_open(found, mark, base)
        if not ours:
            return False
        newest = list(islice(found.ancestors(found.main_snapshot_id), len(ours)))
        earlier, previous = ours[0].parent_id, found.metadata_location
        if newest[::-1] != ours:
            raise LeftInTheOpen(table, "others have built upon them")
        if earlier is not None and not found.has_snapshot(earlier):
            raise LeftInTheOpen(table, "what was before them has expired")
        logger.warning("table '%s.%s' lost its property %s: a change is taken back and made again", *table, _STAGING)
        after = clear_main(found.json, previous=previous)
        if earlier is not None:
            after = move_main(found.json, earlier, previous=previous)
        if _change(pointers, Edit(table, found.json, after, previous)):
            return True


def append_staged(session: Any, target: str, schema: str, paths: Sequence[str]) -> None:
    """Let Spark append the rows of staged files; ``schema`` in its DDL saves it a look at them."""
    frame = session.read.schema(schema).parquet(*paths)
    frame.writeTo(target).option("check-nullability", "false").append()


def merge_staged(session: Any, schema: str, path: str, sql: Callable[[str], str]) -> None:
    """Let Spark run a MERGE from a staged file; ``sql`` is given the name of the view that the file is."""
    view = f"staged_{uuid.uuid4().hex}"
    session.read.schema(schema).parquet(path).createOrReplaceTempView(view)
    try:
        session.sql(sql(view)).collect()
    finally:
        session.catalog.dropTempView(view)


def marked_snapshot(metadata: TableMetadata, table: TableName, wap_id: str) -> Mapping[str, Any] | None:
    """What Spark made aside under this id; None where others have expired it meanwhile, as nothing leads to it."""
    for snapshot in metadata.json["snapshots"]:
        if snapshot.get("summary", {}).get("wap.id") == wap_id:
            found: Mapping[str, Any] = snapshot
            return found
    logger.warning("the snapshot of a change of '%s.%s' is gone before it was published", *table)
    return None


def rows_and_columns(metadata: TableMetadata) -> tuple[object, ...]:
    """What must not change between the decision and the publishing: the table, its columns, its rows."""
    return metadata.uuid, essence(metadata.current_schema["fields"]), metadata.main_snapshot_id


def check_counts(table: TableName, summary: Mapping[str, str], expected: Mapping[str, int]) -> None:
    """Spark must have done just what was decided."""
    for key, count in expected.items():
        found = summary.get(key, "0")
        if int(found) != count:
            raise InternalError(f"table '{table[1]}': Spark reports {found} for {key}, not {count}")
