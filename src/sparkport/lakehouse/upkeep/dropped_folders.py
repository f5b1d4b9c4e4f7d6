"""Removing the folders of dropped tables, some time after the drop. Off unless it is asked for.

Dropping a table takes its name from the catalog and leaves its files, which others may know by other ways. So only what
sparkport has made itself is removed, in a folder that can have no other table's name, and only when nothing that can be
seen from here uses it: no table of any catalog in the database, by its pointer, its place or one of its files; no
transaction; no scan; and nobody who has written there since. What cannot be seen from here is a table that another
catalog has been given, which is why the owner of the warehouse has to ask for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from sparkport.errors import NotFound
from sparkport.lakehouse.catalogs.database import Database, Rows
from sparkport.lakehouse.files import FileInfo, FileSystem, local_path, plain_path
from sparkport.lakehouse.iceberg.manifests import read_manifest, read_manifest_list
from sparkport.lakehouse.iceberg.metadata import Snapshot, TableMetadata, load
from sparkport.lakehouse.iceberg.shadows import is_shadow
from sparkport.lakehouse.names import is_shadow_catalog
from sparkport.lakehouse.warehouse import Warehouse, is_table_folder, true_path

__all__ = ["DroppedFolders"]

logger = logging.getLogger(__name__)

_TABLE = """CREATE TABLE IF NOT EXISTS sparkport_folders (
    catalog_name VARCHAR(255) NOT NULL, folder VARCHAR(1000) NOT NULL, dropped_at DOUBLE PRECISION,
    PRIMARY KEY (catalog_name, folder))"""

_POINTERS = "iceberg_tables WHERE metadata_location IS NOT NULL"  # of all catalogs, and of views too
_METADATA = ".metadata.json"
_CLOCK_SLACK = 300.0
_LISTS_AT_ONCE = 2_000


class DroppedFolders:
    """``pinned`` are the metadata files that transactions use; ``is_read`` says by a uuid whether a table is read."""

    def __init__(
        self,
        database: Database,
        catalog: str,
        *,
        warehouse: str,
        files: FileSystem,
        pinned: Callable[[], Collection[str]],
        is_read: Callable[[str], bool],
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._warehouse = Warehouse(warehouse)
        self._files = files
        self._pinned = pinned
        self._is_read = is_read
        self._elsewhere = _Elsewhere(files)
        database.create_table(_TABLE)

    def note(self, now: float) -> None:
        """Remember the folders of tables that are there, and since when those of others have been without one."""
        with self._database.transaction() as work:
            pointers = work.query(f"SELECT catalog_name, metadata_location FROM {_POINTERS}")
            known: dict[str, float | None] = dict(self._known(work.query))
        served = {self._folder(location) for catalog, location in pointers if catalog == self._catalog}
        places = [_place(location) for _, location in pointers]
        held = {folder for folder in known if _any_below(places, folder)}
        new = served - known.keys() - {None}
        back = {folder for folder in held if known[folder] is not None}
        gone = {folder for folder, since in known.items() if since is None} - held
        if not (new or back or gone):
            return
        with self._database.transaction(write=True) as work:
            for folder in new:
                added = "INSERT INTO sparkport_folders VALUES (?, ?, NULL) ON CONFLICT DO NOTHING"
                work.change(added, [self._catalog, folder])
            for folder in back | gone:
                since = None if folder in back else now
                changed = "UPDATE sparkport_folders SET dropped_at = ? WHERE catalog_name = ? AND folder = ?"
                work.change(changed, [since, self._catalog, folder])

    def remove(self, now: float, *, grace: float) -> list[str]:
        """Remove what has been without a table for so many seconds; the folders that are gone."""
        self.note(now)
        with self._database.transaction() as work:
            known = self._known(work.query)
        due = [(folder, since) for folder, since in known if since is not None and since <= now - grace]
        removed = []
        for folder, since in due:
            reason = self._in_use(folder, since)
            if reason is None:
                logger.info("removing '%s', the folder of a table that was dropped", folder)
                self._delete(folder)
                removed.append(folder)
            elif not reason:
                self._forget(folder)
            else:
                logger.info("the folder '%s' of a dropped table stays: %s", folder, reason)
                if reason == _WRITTEN:
                    self._forget(folder, since=now)
        return removed

    def _known(self, query: Callable[..., Rows]) -> list[tuple[str, float | None]]:
        sql = "SELECT folder, dropped_at FROM sparkport_folders WHERE catalog_name = ? ORDER BY folder"
        return [(str(folder), since) for folder, since in query(sql, [self._catalog])]

    def _folder(self, location: str) -> str | None:
        """The folder that a table's metadata is in, when it is one that sparkport makes in this warehouse."""
        folder, separator, _ = _place(location).rpartition("/metadata/")
        return folder if separator and self._is_ours(folder) else None

    def _is_ours(self, folder: str) -> bool:
        """Whether a folder is one that sparkport makes in this warehouse, and truly there: not a link to another."""
        inside = self._warehouse.inside(folder)
        return inside is not None and is_table_folder(inside) and true_path(folder) == folder

    def _in_use(self, folder: str, since: float) -> str | None:
        """Why a folder has to stay; empty if it must never be removed, None if it can go."""
        if not self._is_ours(folder):
            return ""
        if _any_below(map(_place, self._pinned()), folder):
            return "a transaction sees the table"
        listed = self._files.list(folder)
        if any(info.modified is None or info.modified > since + _CLOCK_SLACK for info in listed):
            return _WRITTEN
        metadata = self._newest(listed)
        if metadata is not None:
            if _place(metadata.location) != folder or _kept(metadata):
                return ""
            if self._is_read(metadata.uuid):
                return "it is being read"
        with self._database.transaction() as work:  # the last look, and as late as can be
            pointers = work.query(f"SELECT catalog_name, metadata_location, iceberg_type FROM {_POINTERS}")
        if _any_below((_place(location) for _, location, _ in pointers), folder):
            return "a table is there again"
        # Shadows have no files elsewhere that their tables have not.
        tables = [at for name, at, entry_type in pointers if entry_type != "VIEW" and not is_shadow_catalog(name)]
        return self._elsewhere.user(folder, tables)

    def _newest(self, listed: Iterable[FileInfo]) -> TableMetadata | None:
        paths = [info.path for info in listed if info.path.endswith(_METADATA) and "/metadata/" in info.path]
        newest_first = sorted(paths, key=lambda path: path.rpartition("/")[2], reverse=True)
        found = (load(self._files, path) for path in newest_first)
        return next((metadata for metadata in found if not is_shadow(metadata)), None)

    def _delete(self, folder: str) -> None:
        """Metadata goes first: what is left of a table that is half gone cannot be registered anywhere."""
        listed = [info.path for info in self._files.list(folder) if plain_path(info.path).startswith(f"{folder}/")]
        for path in sorted(listed, key=lambda path: not path.endswith(_METADATA)):
            self._files.delete(path)
        if local_path(folder) is not None:
            self._files.delete_tree(folder)
        self._forget(folder)

    def _forget(self, folder: str, *, since: float | None = None) -> None:
        """Its row goes, or begins anew."""
        with self._database.transaction(write=True) as work:
            if since is None:
                sql = "DELETE FROM sparkport_folders WHERE catalog_name = ? AND folder = ?"
                work.change(sql, [self._catalog, folder])
            else:
                sql = "UPDATE sparkport_folders SET dropped_at = ? WHERE catalog_name = ? AND folder = ?"
                work.change(sql, [since, self._catalog, folder])


_WRITTEN = "somebody has written there since"


class _Elsewhere:
    """Files that tables have outside of their own folders: what was added to them by Iceberg's add_files, or what was
    there before a table was given another place. Each snapshot is looked at once."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._snapshots: dict[tuple[str, int], frozenset[str]] = {}

    def user(self, folder: str, pointers: Iterable[str]) -> str | None:
        """What uses files in a folder; None for nothing."""
        read = 0
        seen: dict[tuple[str, int], frozenset[str]] = {}
        manifests: dict[tuple[str, str], set[str]] = {}
        for pointer in pointers:
            try:
                metadata = load(self._files, pointer)
            except NotFound:
                return f"it is not known what files a table has: '{pointer}' is missing"
            place = _place(metadata.location)
            if _any_below([place], folder) or place == folder or folder.startswith(f"{place.rstrip('/')}/"):
                return f"a table has its place at '{place}'"
            for snapshot in metadata.snapshots:
                key = (metadata.uuid, snapshot.id)
                if key not in self._snapshots:
                    read += 1
                    if read > _LISTS_AT_ONCE:
                        return "there is more to look at than is done at once"
                    self._snapshots[key] = self._outside(snapshot, place, manifests)
                seen[key] = self._snapshots[key]
                if _any_below(seen[key], folder):
                    return f"files in it are used by the table at '{place}'"
        self._snapshots = seen  # without those that have been expired
        return None

    def _outside(self, snapshot: Snapshot, place: str, manifests: dict[tuple[str, str], set[str]]) -> frozenset[str]:
        """``manifests`` are those that have been looked at: snapshots share most of theirs."""
        outside: set[str] = set()
        for listed in read_manifest_list(self._files, snapshot.manifest_list):
            key = (place, listed["manifest_path"])
            if key not in manifests:
                paths = [key[1], *(file.path for file in read_manifest(self._files, listed))]
                elsewhere = (path for path in paths if not plain_path(path).startswith(f"{place}/"))
                manifests[key] = {_place(path) for path in elsewhere}
            outside |= manifests[key]
        return frozenset(outside)


def _place(location: str) -> str:
    """Where something truly is; an address that cannot be resolved stays as it is."""
    return true_path(location) or plain_path(location)


def _any_below(paths: Iterable[str], folder: str) -> bool:
    return any(path.startswith(f"{folder}/") for path in paths)


def _kept(metadata: TableMetadata) -> bool:
    """Whether its owner has said that files of the table are not to be removed."""
    switches = ("gc.enabled", "sparkport.maintenance")
    return any(metadata.properties.get(switch, "true").lower() == "false" for switch in switches)
