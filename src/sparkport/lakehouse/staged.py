"""Snapshots that Spark has made and nobody sees yet: what single statements and transactions need to publish one."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkport.errors import InternalError, TableNotFound
from sparkport.lakehouse.columns import essence
from sparkport.lakehouse.edits import set_properties
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.metadata import TableMetadata, load
from sparkport.lakehouse.pointers import Edit, Moved, Pointers, TableName

__all__ = [
    "allow_staging",
    "append_staged",
    "can_stage",
    "check_counts",
    "current_metadata",
    "marked_snapshot",
    "merge_staged",
    "rows_and_columns",
]

_STAGING = "write.wap.enabled"


def current_metadata(pointers: Pointers, files: FileSystem, table: TableName) -> TableMetadata:
    location = pointers.location(table)
    if location is None:
        raise TableNotFound(*table)
    return load(files, location)


def can_stage(metadata: TableMetadata) -> bool:
    """Whether Spark makes snapshots of the table aside. One that was made elsewhere it would write in the open."""
    return metadata.properties.get(_STAGING) == "true"


def allow_staging(pointers: Pointers, table: TableName, found: TableMetadata) -> None:
    """Tell such a table to; look at it again afterwards."""
    after = set_properties(found.json, {_STAGING: "true"}, previous=found.metadata_location)
    with contextlib.suppress(Moved):
        pointers.commit([Edit(table, found.json, after, found.metadata_location)])


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
