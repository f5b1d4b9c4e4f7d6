"""What a server that died in the middle of a commit has left, found and removed: metadata files, branches, open rows.

A metadata file is written before the catalog points to it. The server notes each in its staging folder first, so that
whoever starts next need not look through the warehouse, and cannot take another server's file in the making for dead.
"""

from __future__ import annotations

import contextlib
import logging

from sparkport.errors import SparkportError
from sparkport.lakehouse.apply import BRANCH, drop_branches
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.ledger import Ledger
from sparkport.lakehouse.metadata import load
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


def recover(files: FileSystem, pointers: Pointers, staging: Staging, ledger: Ledger) -> None:
    """Clean up after servers that are dead. What cannot be cleaned up is in nobody's way: the server starts anyhow."""

    def forget(server: str, written: list[str]) -> None:
        ledger.bury(server)
        current = dict(pointers.cut().tables) if written else {}
        for location in written:
            _forget(files, location, list(current.values()))
        folders = {_folder(location) for location in written}
        for table, location in current.items():
            if _folder(location) in folders:
                with contextlib.suppress(SparkportError):
                    drop_branches(pointers, files, table, lambda name: name.startswith(f"{BRANCH}{server}_"))

    try:
        staging.clean(forget)
    except SparkportError as exc:
        logger.warning("what dead servers have left was not removed: %s", exc)


def _folder(location: str) -> str:
    return location.rpartition("/")[0]


def _forget(files: FileSystem, location: str, current: list[str]) -> None:
    folder, _, name = location.rpartition("/")
    with contextlib.suppress(SparkportError):
        for found in files.list(folder):
            if found.path.rpartition("/")[2].startswith(f".{name}."):
                files.delete(found.path)
        # By its folder, which is the table's own for good, while its name may have changed since.
        if any(_needs(files, pointer, location) for pointer in current if pointer.rpartition("/")[0] == folder):
            return
        if files.exists(location):
            logger.info("removing metadata that nobody points to: %s", location)
            files.delete(location)


def _needs(files: FileSystem, pointer: str, location: str) -> bool:
    if pointer == location:
        return True
    return any(entry.get("metadata-file") == location for entry in load(files, pointer).metadata_log)
