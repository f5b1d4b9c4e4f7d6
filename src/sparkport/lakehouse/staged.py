"""Snapshots that Spark has made and nobody sees yet: what single statements and transactions need to publish one."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkport.errors import InternalError, TableNotFound
from sparkport.lakehouse.columns import essence
from sparkport.lakehouse.edits import clear_main, move_main, set_properties
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.metadata import Snapshot, TableMetadata, load
from sparkport.lakehouse.pointers import Edit, Moved, Pointers, TableName

__all__ = [
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
    with contextlib.suppress(Moved):
        pointers.commit([stageable(table, found)])


def marking(mark: str) -> dict[str, str]:
    """What lets Spark put a mark on every snapshot that it makes in a session, wherever it lands."""
    return {f"spark.sql.iceberg.snapshot-property.{_MARK}": mark}


def in_the_open(metadata: TableMetadata, mark: str, base: int | None) -> list[Snapshot]:
    """Snapshots of ours that stand on ``main`` though they were to be made aside, oldest first.

    Spark does that when others took the table's property away, or put another table in its place, after we had looked.
    ``base`` is where ``main`` was then.
    """
    found: list[Snapshot] = []
    for snapshot in metadata.ancestors(metadata.main_snapshot_id):
        if snapshot.id == base:
            break
        if snapshot.summary.get(_MARK) == mark and "wap.id" not in snapshot.summary:  # else it has been published
            found.insert(0, snapshot)
    return found


def take_back(pointers: Pointers, files: FileSystem, table: TableName, mark: str, base: int | None) -> bool:
    """Put ``main`` back to where it was before such snapshots; False when there are none.

    Raises InternalError when others have built upon them.
    """
    while True:
        try:
            found = current_metadata(pointers, files, table)
        except TableNotFound:
            return False
        ours = in_the_open(found, mark, base)
        if not ours:
            return False
        if found.main_snapshot_id != ours[-1].id:
            raise InternalError(
                f"table '{table[1]}': rows of a change that was not made are in the table, and others have built upon "
                f"them: somebody took the property {_STAGING} away meanwhile"
            )
        logger.warning("table '%s.%s' lost its property %s: a change is taken back and made again", *table, _STAGING)
        earlier, previous = ours[0].parent_id, found.metadata_location
        after = clear_main(found.json, previous=previous)
        if earlier is not None:
            after = move_main(found.json, earlier, previous=previous)
        with contextlib.suppress(Moved):
            pointers.commit([Edit(table, found.json, after, previous)])
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


def marked_snapshot(metadata: TableMetadata, table: TableName, wap_id: str) -> Mapping[str, Any]:
    """What Spark made under this id. It makes nothing when no row was touched, which was not asked for then."""
    for snapshot in metadata.json["snapshots"]:
        if snapshot.get("summary", {}).get("wap.id") == wap_id:
            found: Mapping[str, Any] = snapshot
            return found
    raise InternalError(f"Spark made no snapshot of '{table[1]}'")


def rows_and_columns(metadata: TableMetadata) -> tuple[object, ...]:
    """What must not change between the decision and the publishing: the table, its columns, its rows."""
    return metadata.uuid, essence(metadata.current_schema["fields"]), metadata.main_snapshot_id


def check_counts(table: TableName, summary: Mapping[str, str], expected: Mapping[str, int]) -> None:
    """Spark must have done just what was decided."""
    for key, count in expected.items():
        found = summary.get(key, "0")
        if int(found) != count:
            raise InternalError(f"table '{table[1]}': Spark reports {found} for {key}, not {count}")
