"""What a server that died in the middle of a commit has left, found and removed: shadows, metadata files, branches.

A metadata file is written before the catalog points to it. The server notes each in its staging folder first, so that
whoever starts next need not look through the warehouse, and cannot take another server's file in the making for dead.
Whatever the notes say: only what is called as a metadata file and truly is in the warehouse is removed, and only if
no catalog ever pointed to it. The last metadata of a table that was dropped or replaced is not recovery's.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from sparkport.errors import NotFound, SparkportError, Unavailable
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.pointers import Pointers
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.metadata import BRANCH, load
from sparkport.lakehouse.iceberg.shadows import began, is_shadow, remove_shadow
from sparkport.lakehouse.spark.staging import Noted, Staging
from sparkport.lakehouse.warehouse import Warehouse, is_metadata_file, true_path
from sparkport.lakehouse.write.wap_applier import drop_branches

__all__ = ["NotedFiles", "Recovery", "recover"]

logger = logging.getLogger(__name__)

_METADATA = ".metadata.json"

_SILENCE_SECONDS = 3600.0

_FIRST_SECONDS = 10.0
"""How long a server waits for it before it listens. Folders in a store can take much longer to be listed."""


class NotedFiles(FileSystem):
    """Notes each metadata file in a server's staging folder before it is written."""

    def __init__(self, staging: Staging) -> None:
        super().__init__()
        self._staging = staging

    def write_new(self, path: str, data: bytes) -> None:
        if path.endswith(_METADATA):
            self._staging.note(path)
        super().write_new(path, data)

    def published(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(SparkportError):  # what is published stays so; without the note it is looked up
                self._staging.note_published(path)


class Recovery:
    """Runs what cleans up after dead servers. What they left is in nobody's way, so nobody need wait for it."""

    def __init__(self, work: Callable[[threading.Event], None]) -> None:
        """``work`` gets the event that stops it."""
        self._work = work
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkport-recovery", daemon=True)

    def start(self) -> None:
        """Begin, and wait for the end only for a while."""
        self._thread.start()
        if not self.join(_FIRST_SECONDS):
            logger.info("what dead servers have left is removed in the background")

    def join(self, timeout: float) -> bool:
        """Whether it is over, or is so within some seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """What is left is for the next server. Safe to repeat."""
        self._stopping.set()
        self.join(30)

    def _run(self) -> None:
        try:
            self._work(self._stopping)
        except Exception:
            logger.exception("what dead servers have left was not removed")


def recover(
    files: FileSystem,
    pointers: Pointers,
    staging: Staging,
    *,
    ledger: Ledger,
    warehouse: Warehouse,
    stopping: threading.Event | None = None,
    silence_seconds: float = _SILENCE_SECONDS,
) -> None:
    """Clean up after servers that are dead. What cannot be cleaned up is in nobody's way: the server starts anyhow.

    A shadow that is removed because its server has not been heard of lately is at least ``silence_seconds`` old.
    """

    def remove_shadows() -> None:
        _remove_shadows(files, pointers, ledger, warehouse, stopping, older_than=silence_seconds)

    def forget(server: str, written: list[Noted]) -> None:
        # A commit that the database still holds may succeed after the server is dead: nothing is judged before that.
        pointers.fence(server)
        ledger.bury(server)
        remove_shadows()
        current = dict(pointers.cut().tables.items()) if written else {}
        places = {table: _true_folder(location) for table, location in current.items()}
        users = _by_folder(pointers.registered()) if written else {}
        folders = {_true_folder(noted.location) for noted in written} - {None}
        lists: dict[str, list[str]] = {}
        for noted in written:
            if stopping is not None and stopping.is_set():
                raise Unavailable("this server is stopped")
            folder = _true_folder(noted.location)
            if folder is None or not is_metadata_file(noted.location) or warehouse.inside(noted.location) is None:
                continue
            if folder not in lists:
                lists[folder] = _listed(files, folder)
            _remove_halves(files, noted.location, lists[folder])
            if (
                pointers.has_fence
                and not noted.published
                and (
                    _is_unused(files, noted.location, users.get(folder, ()), lists[folder])
                    or _is_shadow(files, noted.location)
                )
            ):
                with contextlib.suppress(SparkportError):
                    logger.info("removing metadata that nobody points to: %s", noted.location)
                    files.delete(noted.location)
        for table, place in places.items():
            if place in folders:
                with contextlib.suppress(SparkportError):
                    drop_branches(pointers, files, table, lambda name: name.startswith(f"{BRANCH}{server}_"))

    try:
        staging.clean(forget)
        remove_shadows()  # also where there was no folder
    except SparkportError as exc:
        logger.warning("what dead servers have left was not removed: %s", exc)


def _remove_shadows(
    files: FileSystem,
    pointers: Pointers,
    ledger: Ledger,
    warehouse: Warehouse,
    stopping: threading.Event | None,
    *,
    older_than: float,
) -> None:
    """Those of servers that can publish nothing any more: no look at any table is needed.

    A server whose staging folder nobody has, because its machine is gone, is never fenced off. After a while of silence
    its shadows go too; should it come back after all, it has to apply again what it has not published.
    """
    records = pointers.shadows
    if records is None:
        return
    for found in records.everyone():
        if stopping is not None and stopping.is_set():
            raise Unavailable("this server is stopped")
        if not found.is_left and (
            found.server == ledger.server
            or ledger.is_alive(found.server)
            or not _is_old(files, found.location, older_than)
        ):
            continue
        logger.info("removing what a dead server has not published: %s", found.location)
        location = records.remove(found.name, server=found.server)
        if location is not None and warehouse.inside(location) is not None:
            remove_shadow(files, location, unpublished=True)


def _is_old(files: FileSystem, location: str, seconds: float) -> bool:
    try:
        return began(load(files, location)) < time.time() - seconds
    except SparkportError as exc:  # what cannot be read keeps nobody from going on
        return isinstance(exc, NotFound)


def _is_shadow(files: FileSystem, location: str) -> bool:
    """The row of one that a dead server has noted is gone by now, if it ever was there."""
    try:
        return is_shadow(load(files, location))
    except SparkportError:
        return False


def _true_folder(location: str) -> str | None:
    return true_path(location.rpartition("/")[0])


def _by_folder(locations: Iterable[str]) -> dict[str, list[str]]:
    folders: dict[str, list[str]] = {}
    for location in locations:
        folder = _true_folder(location)
        if folder is not None:
            folders.setdefault(folder, []).append(location)
    return folders


def _listed(files: FileSystem, folder: str) -> list[str]:
    with contextlib.suppress(SparkportError):
        return [info.path for info in files.list(folder)]
    return []


def _remove_halves(files: FileSystem, location: str, listed: Sequence[str]) -> None:
    """Files under another name that were to be renamed to this one when they are whole."""
    folder, _, name = location.rpartition("/")
    aside = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{32}}\.tmp")
    for path in listed:
        parent, _, other = path.rpartition("/")
        if aside.fullmatch(other) and true_path(parent) == true_path(folder):
            with contextlib.suppress(SparkportError):
                files.delete(path)


def _is_unused(files: FileSystem, location: str, users: Collection[str], listed: Sequence[str]) -> bool:
    """Whether no catalog ever pointed to a metadata file that its server did not see published.

    ``users`` is what tables of any catalog point to in the same folder, which is one table's own for good. Without any
    the table was dropped, unless the file is all there is: then it never came to be.
    """
    name = location.rpartition("/")[2]
    there = [path.rpartition("/")[2] for path in listed]
    if name not in there:
        return False
    try:
        if users:
            return not any(_needs(files, pointer, name) for pointer in users)
    except SparkportError:  # a table whose metadata cannot be read: nobody can say what it needs
        return False
    return not any(other.endswith(_METADATA) for other in there if other != name)


def _needs(files: FileSystem, pointer: str, name: str) -> bool:
    """By the file's name, which has a random part: its folder can be spelled in several ways."""
    known = [pointer, *(str(entry.get("metadata-file")) for entry in load(files, pointer).metadata_log)]
    return any(path.rpartition("/")[2] == name for path in known)
