"""Snapshots that Spark has made and nobody sees yet: what single statements and transactions need to publish one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from sparkport.errors import InternalError
from sparkport.lakehouse.columns import essence
from sparkport.lakehouse.edits import set_properties
from sparkport.lakehouse.metadata import TableMetadata
from sparkport.lakehouse.pointers import Edit, Moved, Pointers, TableName

__all__ = ["allow_staging", "can_stage", "check_counts", "rows_and_columns"]

_STAGING = "write.wap.enabled"


def can_stage(metadata: TableMetadata) -> bool:
    """Whether Spark makes snapshots of the table aside. One that was made elsewhere it would write in the open."""
    return metadata.properties.get(_STAGING) == "true"


def allow_staging(pointers: Pointers, table: TableName, found: TableMetadata) -> None:
    """Tell such a table to; look at it again afterwards."""
    after = set_properties(found.json, {_STAGING: "true"}, previous=found.metadata_location)
    with contextlib.suppress(Moved):
        pointers.commit([Edit(table, found.json, after, found.metadata_location)])


def rows_and_columns(metadata: TableMetadata) -> tuple[object, ...]:
    """What must not change between the decision and the publishing: the table, its columns, its rows."""
    return metadata.uuid, essence(metadata.current_schema["fields"]), metadata.main_snapshot_id


def check_counts(table: TableName, summary: Mapping[str, str], expected: Mapping[str, int]) -> None:
    """Spark must have done just what was decided."""
    for key, count in expected.items():
        found = summary.get(key, "0")
        if int(found) != count:
            raise InternalError(f"table '{table[1]}': Spark reports {found} for {key}, not {count}")
