"""Where a warehouse's own files are. What is removed is removed by its true place, however somebody has spelled it.

Names of tables come from clients, and places of tables from whoever wrote their metadata. Neither says what a file is.
"""

from __future__ import annotations

import os
import re
import uuid

from sparkport.lakehouse.files import local_path, plain_path

__all__ = ["Warehouse", "is_metadata_file", "is_table_folder", "new_folder", "true_path"]

_PART_CHARACTERS = 60
_PART = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_FOLDER = re.compile(rf"{_PART}/{_PART}-[0-9a-f]{{8}}")
_METADATA_FILE = re.compile(r"\d{5,}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.metadata\.json")


def new_folder(schema: str, table: str) -> str:
    """A place in the warehouse that no other table has: readable, and whatever the names are, of safe characters.

    None begins with a dot or an underscore: Spark takes what does for hidden.
    """
    return f"{_part(schema)}/{_part(table)}-{uuid.uuid4().hex[:8]}"


def is_table_folder(inside: str) -> bool:
    """Whether a place in the warehouse is one that ``new_folder`` makes."""
    return _FOLDER.fullmatch(inside) is not None


def is_metadata_file(path: str) -> bool:
    """Whether a file is called as those are that we write a table's metadata to, and is where they are."""
    folder, _, name = path.rpartition("/")
    return folder.endswith("/metadata") and _METADATA_FILE.fullmatch(name) is not None


def true_path(path: str) -> str | None:
    """The one address of a place, links followed; None for an address that does not say clearly what it means."""
    local = local_path(path)
    if local is not None:
        if "\0" in path or not local.is_absolute():
            return None
        return os.path.realpath(local)
    plain = plain_path(path)
    _, _, key = plain.partition("://")
    return plain if key and not {"", ".", ".."} & set(key.split("/")) else None


class Warehouse:
    """The folder, local or in a store, that tables are made in."""

    def __init__(self, root: str) -> None:
        self.root = true_path(root)

    def inside(self, path: str) -> str | None:
        """The way from the root to a place below it; None for any other place, and for what is hidden there."""
        place = true_path(path)
        if self.root is None or place is None or not place.startswith(f"{self.root}/"):
            return None
        inside = place[len(self.root) + 1 :]
        return None if inside.startswith(".") else inside


def _part(name: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:_PART_CHARACTERS].strip("_-")
    return safe or "x"
