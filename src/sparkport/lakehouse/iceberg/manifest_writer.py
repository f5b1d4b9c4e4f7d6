"""Manifests and lists of them as Iceberg's format asks for them, for data files that were added to a plain table."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro

from sparkport.lakehouse.iceberg.file_metrics import FileMetrics
from sparkport.lakehouse.iceberg.metadata import TableMetadata

__all__ = ["AddedFile", "added_manifest", "manifest_list"]

_ADDED = 1


@dataclass(frozen=True, slots=True)
class AddedFile:
    path: str
    rows: int
    size: int
    metrics: FileMetrics


def _field(name: str, kind: Any, field_id: int) -> dict[str, Any]:
    return {"name": name, "type": kind, "field-id": field_id}


def _optional(name: str, kind: Any, field_id: int) -> dict[str, Any]:
    return {**_field(name, ["null", kind], field_id), "default": None}


def _map(name: str, field_id: int, key: int, value: int, kind: str) -> dict[str, Any]:
    pair = {
        "type": "record",
        "name": f"k{key}_v{value}",
        "fields": [_field("key", "int", key), _field("value", kind, value)],
    }
    return _optional(name, {"type": "array", "items": pair, "logicalType": "map"}, field_id)


def _list(name: str, field_id: int, element: int, kind: str) -> dict[str, Any]:
    return _optional(name, {"type": "array", "items": kind, "element-id": element}, field_id)


_DATA_FILE = [
    _field("content", "int", 134),
    _field("file_path", "string", 100),
    _field("file_format", "string", 101),
    _field("partition", {"type": "record", "name": "r102", "fields": []}, 102),
    _field("record_count", "long", 103),
    _field("file_size_in_bytes", "long", 104),
    _map("column_sizes", 108, 117, 118, "long"),
    _map("value_counts", 109, 119, 120, "long"),
    _map("null_value_counts", 110, 121, 122, "long"),
    _map("nan_value_counts", 137, 138, 139, "long"),
    _map("lower_bounds", 125, 126, 127, "bytes"),
    _map("upper_bounds", 128, 129, 130, "bytes"),
    _optional("key_metadata", "bytes", 131),
    _list("split_offsets", 132, 133, "long"),
    _list("equality_ids", 135, 136, "int"),
    _optional("sort_order_id", "int", 140),
]
_ONLY_V3 = [
    _optional("first_row_id", "long", 142),
    _optional("referenced_data_file", "string", 143),
    _optional("content_offset", "long", 144),
    _optional("content_size_in_bytes", "long", 145),
]
_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field("contains_null", "boolean", 509),
        _optional("contains_nan", "boolean", 518),
        _optional("lower_bound", "bytes", 510),
        _optional("upper_bound", "bytes", 511),
    ],
}
_LISTED = [
    _field("manifest_path", "string", 500),
    _field("manifest_length", "long", 501),
    _field("partition_spec_id", "int", 502),
    _field("content", "int", 517),
    _field("sequence_number", "long", 515),
    _field("min_sequence_number", "long", 516),
    _field("added_snapshot_id", "long", 503),
    _field("added_files_count", "int", 504),
    _field("existing_files_count", "int", 505),
    _field("deleted_files_count", "int", 506),
    _field("added_rows_count", "long", 512),
    _field("existing_rows_count", "long", 513),
    _field("deleted_rows_count", "long", 514),
    _optional("partitions", {"type": "array", "items": _SUMMARY, "element-id": 508}, 507),
    _optional("key_metadata", "bytes", 519),
]


def _entry_schema(version: int) -> Any:
    fields = [*_DATA_FILE, *(_ONLY_V3 if version >= 3 else ())]
    return fastavro.parse_schema(
        {
            "type": "record",
            "name": "manifest_entry",
            "fields": [
                _field("status", "int", 0),
                _optional("snapshot_id", "long", 1),
                _optional("sequence_number", "long", 3),
                _optional("file_sequence_number", "long", 4),
                _field("data_file", {"type": "record", "name": "r2", "fields": fields}, 2),
            ],
        }
    )


def _listed_schema(version: int) -> Any:
    fields = [*_LISTED, *([_optional("first_row_id", "long", 520)] if version >= 3 else ())]
    return fastavro.parse_schema({"type": "record", "name": "manifest_file", "fields": fields})


_ENTRY = {version: _entry_schema(version) for version in (2, 3)}
_MANIFEST = {version: _listed_schema(version) for version in (2, 3)}


def added_manifest(metadata: TableMetadata, snapshot_id: int, files: Sequence[AddedFile]) -> bytes:
    """A manifest of files that a snapshot adds. Sequence numbers and row ids are inherited from the list that it is in.

    The table has no partitions.
    """
    version, spec_id = metadata.format_version, int(metadata.json["default-spec-id"])
    about = {
        "schema": json.dumps(metadata.current_schema),
        "partition-spec": "[]",
        "partition-spec-id": str(spec_id),
        "format-version": str(version),
        "content": "data",
    }
    return _avro(_ENTRY[version], [_entry(file, snapshot_id) for file in files], about)


def manifest_list(version: int, manifests: Sequence[Mapping[str, Any]], *, about: Mapping[str, int | None]) -> bytes:
    """``about`` are the snapshot's own numbers: its id, its parent's, its sequence number and its first row id."""
    notes = {key: str(value) for key, value in about.items() if value is not None}
    return _avro(_MANIFEST[version], manifests, {**notes, "format-version": str(version)})


def _entry(file: AddedFile, snapshot_id: int) -> dict[str, Any]:
    metrics = file.metrics
    return {
        "status": _ADDED,
        "snapshot_id": snapshot_id,
        "data_file": {
            "content": 0,
            "file_path": file.path,
            "file_format": "PARQUET",
            "partition": {},
            "record_count": file.rows,
            "file_size_in_bytes": file.size,
            "column_sizes": _pairs(metrics.column_sizes),
            "value_counts": _pairs(metrics.value_counts),
            "null_value_counts": _pairs(metrics.null_counts),
            "nan_value_counts": _pairs(metrics.nan_counts),
            "lower_bounds": _pairs(metrics.lower_bounds),
            "upper_bounds": _pairs(metrics.upper_bounds),
            "split_offsets": list(metrics.split_offsets),
            "sort_order_id": 0,
        },
    }


def _pairs(by_id: Mapping[int, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in by_id.items()]


def _avro(schema: Any, records: Sequence[Mapping[str, Any]], about: Mapping[str, str]) -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, schema, records, codec="deflate", metadata=dict(about))
    return stream.getvalue()
