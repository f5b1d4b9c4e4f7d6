"""The number of a table's version, counted in its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparkport.lakehouse.metadata import TableMetadata

__all__ = ["NUMBER", "number_of", "numbered"]

NUMBER = "sparkport.version"


def number_of(metadata: TableMetadata) -> int:
    """How many commits have moved ``main`` or changed the schema since the table was made."""
    return _number(metadata.json)


def numbered(metadata: dict[str, Any]) -> dict[str, Any]:
    """The same metadata with its number written down, for whoever counts on from here."""
    main = metadata.get("refs", {}).get("main", {}).get("snapshot-id")
    note = {"number": _number(metadata), "main": main, "schema": metadata["current-schema-id"]}
    return {**metadata, "properties": {**metadata.get("properties", {}), NUMBER: json.dumps(note)}}


def _number(metadata: Mapping[str, Any]) -> int:
    note = _note(metadata)
    log = [entry["snapshot-id"] for entry in metadata.get("snapshot-log") or ()]
    main = note.get("main")
    since = len(log) if main is None else len(log) - _last(log, main) - 1
    schema = metadata.get("current-schema-id", 0)
    return int(note.get("number", 0)) + since + (1 if schema != note.get("schema", 0) else 0)


def _note(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        note = json.loads((metadata.get("properties") or {}).get(NUMBER) or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def _last(log: list[int], snapshot_id: int) -> int:
    """Where a snapshot was put on ``main`` last; before all of the log, if that is so long ago."""
    return max((index for index, found in enumerate(log) if found == snapshot_id), default=-1)
