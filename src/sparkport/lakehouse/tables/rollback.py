"""A table's rows as they were in an earlier version, by a new snapshot that has the files of the old one.

Nothing is rewritten, neither rows nor history. Rows come back with the lineage that they had: by it alone a later
change could not tell that they have gone back since it saw them. So the table notes the commit that took them back, see
``TableMetadata.descends_from``.
"""

from __future__ import annotations

import io
import uuid
from typing import Any

import fastavro

from sparkport.errors import FailedPrecondition
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.commits import AUTHORS, authors_note
from sparkport.lakehouse.iceberg.edits import Json, add_on_main
from sparkport.lakehouse.iceberg.metadata import ROLLED_BACK, TableMetadata
from sparkport.lakehouse.iceberg.totals import Totals
from sparkport.lakehouse.scan.version import TableVersion

__all__ = ["rolled_back"]

_ZEROS = ("records", "data-files", "files-size", "delete-files", "position-deletes", "equality-deletes")


def rolled_back(files: FileSystem, current: TableVersion, *, target: TableVersion, author: str) -> Json | None:
    """The metadata afterwards; None if the rows are those already."""
    metadata = current.metadata
    if not current.columns.takes_rows_of(target.columns):
        raise FailedPrecondition(
            f"table '{current.table.name}' had other columns in that version: rolling back is about rows; alter the "
            "table to what it was first"
        )
    if target.snapshot_id == current.snapshot_id:
        return None
    snapshot_id = metadata.unused_snapshot_id()
    path = f"{metadata.location.rstrip('/')}/metadata/snap-{snapshot_id}-1-{uuid.uuid4()}.avro"
    files.write_new(path, _manifest_list(files, metadata, target.snapshot_id))
    sequence = int(metadata.json.get("last-sequence-number", 0)) + 1
    old = None if target.snapshot_id is None else metadata.snapshot(target.snapshot_id)
    totals = {f"total-{word}": "0" for word in _ZEROS}
    if old is not None:
        totals = Totals(metadata).summary(old.id)
    snapshot: dict[str, Any] = {
        "snapshot-id": snapshot_id,
        "sequence-number": sequence,
        "summary": {
            "operation": "overwrite",
            ROLLED_BACK: str(target.snapshot_id or 0),
            AUTHORS: authors_note([author]),
            **totals,
        },
        "manifest-list": path,
        "schema-id": metadata.json["current-schema-id"],
    }
    if metadata.main_snapshot_id is not None:
        snapshot["parent-snapshot-id"] = metadata.main_snapshot_id
    if metadata.format_version >= 3:
        snapshot |= {"first-row-id": metadata.json.get("next-row-id", 0), "added-rows": 0}
    after = add_on_main(metadata.json, snapshot, previous=metadata.metadata_location)
    after["properties"] = {**after.get("properties", {}), ROLLED_BACK: str(sequence)}
    return after


def _manifest_list(files: FileSystem, metadata: TableMetadata, snapshot_id: int | None) -> bytes:
    """A copy of the old one: with the old snapshot its list may be removed one day."""
    source = metadata.main_snapshot_id if snapshot_id is None else snapshot_id
    assert source is not None, "a table that never had a row is as it was"
    data = files.read_bytes(metadata.snapshot(source).manifest_list)
    reader: Any = fastavro.reader(io.BytesIO(data))
    if snapshot_id is not None:
        if metadata.format_version >= 3 and any(_lacks_row_ids(manifest) for manifest in reader):
            raise FailedPrecondition(
                "that version is from before the table was upgraded to format v3: its rows have no row ids, without "
                "which they could not be changed; read it with AT (VERSION => …), and write what it has anew"
            )
        return data
    empty = io.BytesIO()
    fastavro.writer(empty, reader.writer_schema, [], metadata=_noted(reader.metadata))
    return empty.getvalue()


def _lacks_row_ids(manifest: Any) -> bool:
    """Files with deletes have none in any case."""
    return not manifest.get("content") and manifest.get("first_row_id") is None


def _noted(metadata: Any) -> dict[str, str]:
    return {key: value for key, value in metadata.items() if not key.startswith("avro.")}
