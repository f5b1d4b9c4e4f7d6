"""Writing table metadata: each file is new, complete and numbered one above the last."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from sparkport.lakehouse.faults import fault
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.version_numbers import numbered

__all__ = ["next_location", "write_metadata"]


def write_metadata(fs: FileSystem, metadata: dict[str, Any], previous: str | None) -> str:
    """Write the metadata that comes after ``previous``; where it is."""
    location = next_location(metadata["location"], previous)
    fault("metadata.before")
    fs.write_new(location, json.dumps(numbered(metadata)).encode())
    fault("metadata.after")
    return location


def next_location(table: str, previous: str | None) -> str:
    """A new file's name in the folder of a ``table``."""
    number = 0
    if previous is not None:
        match = re.match(r"v?(\d+)", previous.rpartition("/")[2])
        number = int(match.group(1)) + 1 if match else 1
    return f"{table}/metadata/{number:05d}-{uuid.uuid4()}.metadata.json"
