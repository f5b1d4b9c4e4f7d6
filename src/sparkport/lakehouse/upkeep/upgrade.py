"""From an older table format to v3, where every row has an id that lasts: what UPDATE and DELETE need."""

from __future__ import annotations

from typing import Any

from sparkport.errors import InternalError, TableNotFound
from sparkport.lakehouse.iceberg.metadata import WAP, TableMetadata, load
from sparkport.lakehouse.iceberg.plan import plan
from sparkport.lakehouse.iceberg.row_groups import row_group_properties
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.spark.server import Work, translated
from sparkport.lakehouse.spark.sql import quoted
from sparkport.lakehouse.tables.storage import Storage
from sparkport.lakehouse.write.committer import Committer

__all__ = ["upgrade_table"]

_FORMAT = 3
_PROPERTIES = {"write.merge.mode": "merge-on-read"}
_READY_SECONDS = 60.0


def upgrade_table(storage: Storage, committer: Committer, table: TableName) -> dict[str, Any]:
    """Make a table v3 with row ids in all of its rows. Safe to repeat: what is done already is not done again.

    Changes by row id need MERGE to be merge-on-read: Spark finds no row ids in its copy-on-write plan. How Spark's own
    UPDATE and DELETE write the table stays as its owner wants it.
    """
    with committer.turn(table):
        before = _metadata(storage, table)
        name = quoted(storage.catalog_name, *table)
        asked = _PROPERTIES if storage.pointers.shadows is not None else {**_PROPERTIES, WAP: "true"}
        wanted = {key: value for key, value in asked.items() if before.properties.get(key) != value}
        wanted |= row_group_properties(before.properties, len(before.current_schema["fields"]))
        if before.format_version < _FORMAT:
            wanted["format-version"] = str(_FORMAT)
        if wanted:
            properties = ", ".join(f"'{key}' = '{value}'" for key, value in wanted.items())
            _sql(storage, table, f"ALTER TABLE {name} SET TBLPROPERTIES ({properties})")
        if not _has_row_ids(storage, _metadata(storage, table)):
            # Ids are given out by a commit, to all files that have none yet; one without rows will do.
            _sql(storage, table, f"INSERT INTO {name} SELECT * FROM {name} WHERE false")
        after = _metadata(storage, table)
        if not _has_row_ids(storage, after):
            raise InternalError(f"table '{table.name}' has rows without ids after it was upgraded")
    return {
        "table": str(table),
        "format_before": before.format_version,
        "format": after.format_version,
        "changed": before.metadata_location != after.metadata_location,
    }


def _metadata(storage: Storage, table: TableName) -> TableMetadata:
    location = storage.pointers.location(table)
    if location is None:
        raise TableNotFound(*table)
    return load(storage.files, location)


def _has_row_ids(storage: Storage, metadata: TableMetadata) -> bool:
    files = plan(storage.files, metadata, metadata.main_snapshot_id).files
    return all(file.first_row_id is not None for file in files)


def _sql(storage: Storage, table: TableName, text: str) -> None:
    with (
        storage.spark.session(timeout=_READY_SECONDS, limited=False, work=Work("upgrade", (table,))) as session,
        translated(f"upgrading '{table.name}'"),
    ):
        session.sql(text).collect()
