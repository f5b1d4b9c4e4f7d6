"""What a server that died in the middle of a commit has left, found and removed: metadata files, branches, open rows.

A metadata file is written before the catalog points to it. The server notes each in its staging folder first, so that
whoever starts next need not look through the warehouse, and cannot take another server's file in the making for dead.
Whatever a journal says: only what is called as a metadata file and truly is in the warehouse is removed.
"""

from __future__ import annotations

import contextlib
import logging
import re

from sparkport.errors import SparkportError
from sparkport.lakehouse.apply import BRANCH, drop_branches
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.ledger import Ledger
from sparkport.lakehouse.metadata import load
from sparkport.lakehouse.places import Warehouse, is_metadata_file, true_path
from sparkport.lakehouse.pointers import Pointers
from sparkport.lakehouse.staging import Staging

__all__ = ["JournalledFiles", "recover"]

logger = logging.getLogger(__name__)

_METADATA = ".metadata.json"


class JournalledFiles(FileSystem):
    """Notes each metadata file in a server's journal before it is written."""

    def __init__(self, staging: Staging) -> None:
        super().__init__()
        self._staging = staging

    def write_new(self, path: str, data: bytes) -> None:
        if path.endswith(_METADATA):
            self._staging.note(path)
        super().write_new(path, data)


def recover(files: FileSystem, pointers: Pointers, staging: Staging, *, ledger: Ledger, warehouse: Warehouse) -> None:
    """Clean up after servers that are dead. What cannot be cleaned up is in nobody's way: the server starts anyhow."""

    def forget(server: str, written: list[str]) -> None:
        ledger.bury(server)
        current = dict(pointers.cut().tables) if written else {}
        places = {table: _true_folder(location) for table, location in current.items()}
        for location in written:
            folder = _true_folder(location)
            if folder is None:
                continue
            there = [table for table, place in places.items() if place == folder]
            if is_metadata_file(location) and warehouse.inside(location) is not None:
                _forget(files, location, [current[table] for table in there])
            for table in there:
                with contextlib.suppress(SparkportError):
                    drop_branches(pointers, files, table, lambda name: name.startswith(f"{BRANCH}{server}_"))

    try:
        staging.clean(forget)
    except SparkportError as exc:
        logger.warning("what dead servers have left was not removed: %s", exc)


def _true_folder(location: str) -> str | None:
    return true_path(location.rpartition("/")[0])


def _forget(files: FileSystem, location: str, current: list[str]) -> None:
    """``current`` is what the tables point to whose metadata is in the same folder, which is a table's own for good."""
    folder, _, name = location.rpartition("/")
    aside = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{32}}\.tmp")
    with contextlib.suppress(SparkportError):
        for found in files.list(folder):
            parent, _, other = found.path.rpartition("/")
            if aside.fullmatch(other) and true_path(parent) == true_path(folder):
                files.delete(found.path)
        if any(_needs(files, pointer, name) for pointer in current):
            return
        if files.exists(location):
            logger.info("removing metadata that nobody points to: %s", location)
            files.delete(location)


def _needs(files: FileSystem, pointer: str, name: str) -> bool:
    """By the file's name, of which a part was drawn by lot: its folder can be spelled in several ways."""
    known = [pointer, *(str(entry.get("metadata-file")) for entry in load(files, pointer).metadata_log)]
    return any(path.rpartition("/")[2] == name for path in known)
