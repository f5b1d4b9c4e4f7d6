"""A new lakehouse made of a backup, where the old one was or anywhere else.

Rows, their ids, old versions and what waits in the journal are as they were; only the places are others. A local
warehouse is made aside and gets its name when it is whole, and the catalog's rows are written last of all.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkport.catalog.disk_errors import disk_error
from sparkport.errors import FailedPrecondition, InvalidArgument, Unsupported
from sparkport.lakehouse.backup.backup import Tell
from sparkport.lakehouse.backup.contents import Contents, write_contents
from sparkport.lakehouse.backup.copying import copy, in_parallel, read_whole
from sparkport.lakehouse.backup.place import BackedUp, BackupList, Place
from sparkport.lakehouse.backup.reach import Kind
from sparkport.lakehouse.backup.relocation import Relocation
from sparkport.lakehouse.backup.rewriting import Rewriting
from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.files import FileSystem, local_path, sync
from sparkport.lakehouse.iceberg.metadata import parse
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.warehouse import true_path

__all__ = ["RestoreReport", "find_backup", "restore"]

_COPIED = (Kind.DATA, Kind.EQUALITY_DELETES, Kind.STATISTICS)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    number: int
    made: str
    tables: int
    files: int
    bytes: int


def find_backup(source: str, settings: LakehouseSettings, number: int | None = None) -> tuple[Place, BackupList]:
    """A backup by its ``number``, or the newest; ``settings`` are for reaching the place alone."""
    place = Place(FileSystem(settings.storage_options(source)), source)
    place.require()
    if number is None:
        numbers = place.numbers()
        if not numbers:
            raise FailedPrecondition(f"no backup at '{place.root}' is whole")
        number = numbers[-1]
    return place, place.read(number)


def restore(place: Place, backup: BackupList, settings: LakehouseSettings, tell: Tell | None = None) -> RestoreReport:
    """``settings`` are those of the new lakehouse, of which nothing may be there yet."""
    if settings.catalog_type == "rest":
        raise Unsupported("a REST catalog cannot be restored to: its rows are not ours to write")
    files = FileSystem(settings.storage_options(place.root))
    _require_apart(settings.warehouse_path, place.root)
    _require_empty(files, settings)
    local = local_path(settings.warehouse_path)
    with contextlib.ExitStack() as ending:
        aside = None if local is None else ending.enter_context(_aside(local, settings))
        _Run(files, place, backup, settings, aside=aside, tell=tell or (lambda *_: None)).do()
    return RestoreReport(
        number=backup.number,
        made=backup.made,
        tables=sum(not pointer.is_view for pointer in backup.contents.pointers),
        files=len(backup.files),
        bytes=backup.size,
    )


def _require_apart(warehouse: str, source: str) -> None:
    here, there = true_path(warehouse), true_path(source)
    if here is None or there is None or f"{here}/".startswith(f"{there}/") or there.startswith(f"{here}/"):
        raise InvalidArgument("the new warehouse and the backup must be in different places, none in the other")


def _require_empty(files: FileSystem, settings: LakehouseSettings) -> None:
    root = settings.warehouse_path
    local = local_path(root)
    if local is not None and (local.is_symlink() or local.exists()):
        if not local.is_dir() or any(local.iterdir()):
            raise FailedPrecondition(f"'{root}' is not empty: restore makes a new warehouse, and overwrites none")
        if local.is_mount():
            raise FailedPrecondition(f"'{root}' is a mount point, whose name cannot be taken: choose a folder in it")
    elif local is None and files.list(root):
        raise FailedPrecondition(f"'{root}' is not empty: restore makes a new warehouse, and overwrites none")
    if not _is_own_database(settings):
        with contextlib.closing(open_database(settings.database_uri, settings.file_mode)) as database:
            _require_no_catalog(database, settings.catalog_name)


def _require_no_catalog(database: Database, name: str) -> None:
    cut = SqlPointers(database, name).cut()
    if cut.tables or cut.schemas:
        raise FailedPrecondition(
            f"the database has a catalog '{name}' already, with {len(cut.tables)} tables: restore makes a new one"
        )


def _is_own_database(settings: LakehouseSettings) -> bool:
    """Whether the catalog is the SQLite file in the new warehouse."""
    return settings.database_uri == f"sqlite:///{settings.warehouse_path}/catalog.db"


@contextlib.contextmanager
def _aside(target: Path, settings: LakehouseSettings) -> Iterator[Path]:
    """A folder beside the new warehouse, which takes its name at the end, and is removed if it does not come to it."""
    aside = target.with_name(f".{target.name}.restoring-{uuid.uuid4().hex[:8]}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        settings.file_mode.make_folder(aside)
        yield aside
    except OSError as exc:
        raise disk_error(exc, f"folder '{aside}'") from exc
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class _Run:
    def __init__(
        self,
        files: FileSystem,
        place: Place,
        backup: BackupList,
        settings: LakehouseSettings,
        *,
        aside: Path | None,
        tell: Tell,
    ) -> None:
        self._files = files
        self._place = place
        self._backup = backup
        self._settings = settings
        self._aside = aside
        self._tell = tell
        self._done = 0
        sources = {file.address: file.source for file in backup.files}
        self._relocation = Relocation(
            backup.warehouse, settings.warehouse_path, sources=sources, folders=list(self._folders())
        )
        self._addresses: dict[str, list[str]] = {}
        for address, place_before in sources.items():
            self._addresses.setdefault(place_before, []).append(address)
        self._sizes: dict[str, int] = {}
        self._written: set[str] = set()

    def do(self) -> None:
        rewriting = Rewriting(self._relocation, self._sizes)
        # Each before those that name it: they tell its size.
        self._each(_COPIED, self._copy)
        self._each([Kind.POSITION_DELETES], self._rewrite(rewriting.positions))
        self._each([Kind.DELETION_VECTORS], self._rewrite(rewriting.vectors))
        self._each([Kind.MANIFEST], self._rewrite(rewriting.manifest))
        self._each([Kind.MANIFEST_LIST], self._rewrite(rewriting.manifest_list))
        self._each([Kind.METADATA, Kind.OLD_METADATA, Kind.VIEW], self._rewrite(rewriting.metadata))
        sync(sorted(self._written), below=None if self._aside is None else str(self._aside))
        contents = self._backup.contents.relocated(self._relocation.file, self._relocation.folder)
        if _is_own_database(self._settings):
            self._write_catalog(f"sqlite:///{self._aside}/catalog.db", contents)
            self._publish()
        else:
            self._publish()
            self._write_catalog(self._settings.database_uri, contents)

    def _folders(self) -> Iterator[str]:
        """Where tables are that are not in their warehouse is said by their metadata alone."""
        by_address = {file.address: file for file in self._backup.files}
        for pointer in self._backup.contents.pointers:
            file = by_address[pointer.location]
            yield parse(self._read(file), file.address).location

    def _each(self, kinds: Sequence[Kind], work: Callable[[BackedUp], None]) -> None:
        def counted(file: BackedUp) -> None:
            work(file)
            self._done += 1
            self._tell("restoring files", self._done, len(self._backup.files))

        # Two addresses of one file lead to one place, which is written once.
        chosen = {self._relocation.file(file.address): file for file in self._backup.files if file.kind in kinds}
        in_parallel(counted, chosen.values())

    def _target(self, address: str) -> str:
        """Where a file is to be written for now."""
        target = self._relocation.file(address)
        if self._aside is not None:
            target = f"{self._aside}{target.removeprefix(self._settings.warehouse_path)}"
        self._written.add(target)
        return target

    def _read(self, file: BackedUp) -> bytes:
        return read_whole(self._files, self._place.path(file.name), file.sum)

    def _copy(self, file: BackedUp) -> None:
        copy(self._files, self._place.path(file.name), self._target(file.address), expected=file.sum)

    def _rewrite(self, work: Callable[[bytes, str], bytes]) -> Callable[[BackedUp], None]:
        def rewrite(file: BackedUp) -> None:
            data = self._read(file)
            if not self._relocation.is_identity:
                data = work(data, file.address)
            with self._files.create(self._target(file.address)) as written:
                written.write(data)
            for address in self._addresses[file.source]:
                self._sizes[address] = len(data)

        return rewrite

    def _write_catalog(self, uri: str, contents: Contents) -> None:
        name = self._settings.catalog_name
        with contextlib.closing(open_database(uri, self._settings.file_mode)) as database:
            _require_no_catalog(database, name)
            Ledger(database, name, server=f"restoring-{uuid.uuid4().hex}").stop()  # makes its tables
            write_contents(database, name, contents)

    def _publish(self) -> None:
        """Give a local warehouse its name."""
        if self._aside is None:
            return
        target = Path(self._settings.warehouse_path)
        try:
            self._aside.rename(target)  # takes the place of an empty folder
        except OSError as exc:
            raise FailedPrecondition(
                f"the restored warehouse cannot take the place of '{target}': {exc.strerror or exc}"
            ) from exc
        sync([str(target)])
