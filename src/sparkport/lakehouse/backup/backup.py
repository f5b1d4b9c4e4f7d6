"""A consistent copy of a whole lakehouse while it is being written to: one instant of the catalog, and its files.

The catalog's rows are read in one transaction of its database, so all tables, and the journal, are of one instant. The
files that they lead to never change, and are copied after that. One that is gone by then was removed by somebody who
could not be told to wait: then a new instant is taken, and what has been copied already is not copied again.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata

from sparkport.errors import FailedPrecondition, InvalidArgument, NotFound, SparkportError, Unavailable
from sparkport.lakehouse.backup.contents import Contents, read_contents
from sparkport.lakehouse.backup.copying import Sum, copy, in_parallel, link_or_copy
from sparkport.lakehouse.backup.held import HeldCatalog
from sparkport.lakehouse.backup.place import BackedUp, BackupList, Place, name_of
from sparkport.lakehouse.backup.reach import Kind, Reached, reach
from sparkport.lakehouse.backup.turns import turn
from sparkport.lakehouse.files import FileSystem, plain_path
from sparkport.lakehouse.warehouse import true_path

__all__ = ["BackupReport", "Tell", "back_up"]

logger = logging.getLogger(__name__)

Tell = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and how much there is, 0 if that is not known."""

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    number: int
    tables: int
    files: int
    bytes: int
    new_files: int
    new_bytes: int
    forgotten: tuple[int, ...]
    removed_files: int

    def as_dict(self) -> dict[str, object]:
        return {
            "number": self.number,
            "tables": self.tables,
            "files": self.files,
            "bytes": self.bytes,
            "new_files": self.new_files,
            "new_bytes": self.new_bytes,
            "forgotten": list(self.forgotten),
            "removed_files": self.removed_files,
        }


def back_up(
    catalog: HeldCatalog,
    target: str,
    *,
    keep: int | None = None,
    link: bool = True,
    tell: Tell | None = None,
) -> BackupReport:
    """A new backup at ``target``, of which the last ``keep`` stay.

    With ``link`` files on the same file system get a second name instead of being copied.
    """
    if keep is not None and keep < 1:
        raise InvalidArgument("at least one backup must be kept")
    place = Place(catalog.files, target)
    _require_apart(catalog.warehouse, place.root)
    with turn(catalog.files, place.root):
        place.prepare(catalog.name, catalog.digest)
        run = _Run(catalog, place, link=link, tell=tell or (lambda *_: None))
        contents, files = run.copied()
        place.sync(sorted(run.new))
        numbers = place.numbers()
        made = BackupList(
            number=(numbers[-1] if numbers else 0) + 1,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            version=_version(),
            catalog=catalog.name,
            warehouse=catalog.warehouse,
            contents=contents,
            files=files,
        )
        place.write(made)
        forgotten, removed = _tidy(place, run.lists, made, keep)
    return BackupReport(
        number=made.number,
        tables=sum(not pointer.is_view for pointer in contents.pointers),
        files=len({file.name for file in files}),
        bytes=made.size,
        new_files=len(run.new),
        new_bytes=sum(run.new.values()),
        forgotten=forgotten,
        removed_files=removed,
    )


def _version() -> str:
    """For people who look for what made a backup."""
    try:
        return metadata.version("sparkport")
    except metadata.PackageNotFoundError:
        return "0+source"


def _require_apart(warehouse: str, target: str) -> None:
    here, there = true_path(warehouse), true_path(target)
    if there is None:
        raise InvalidArgument(f"'{target}' is no address of a folder")
    if here is not None and f"{there}/".startswith(f"{here}/"):
        raise InvalidArgument(f"'{target}' is in the warehouse, and would be lost with it: choose another place")
    if here is not None and here.startswith(f"{there}/"):
        raise InvalidArgument(f"the warehouse is in '{target}': choose another place")


def _tidy(
    place: Place, lists: Mapping[int, BackupList], made: BackupList, keep: int | None
) -> tuple[tuple[int, ...], int]:
    """The backups that went, and how many files with them."""
    numbers = place.numbers()
    unread = [number for number in numbers if number not in lists and number != made.number]
    gone = tuple(numbers[:-keep]) if keep is not None else ()
    if unread:
        # What they use is not known, so nothing is unused for certain.
        logger.warning("backup %s at '%s' cannot be read: nothing is removed there", unread[0], place.root)
        return (), 0
    for number in gone:
        place.forget(number)
    kept = [made, *(backup for number, backup in lists.items() if number not in gone)]
    return gone, place.clean({file.name for backup in kept for file in backup.files})


class _Run:
    """``new`` are the sizes of files that had to be put there, ``lists`` the backups that were there before."""

    def __init__(self, catalog: HeldCatalog, place: Place, *, link: bool, tell: Tell) -> None:
        self._catalog = catalog
        self._files: FileSystem = catalog.files
        self._place = place
        self._put = link_or_copy if link else copy
        self._tell = tell
        self.new: dict[str, int] = {}
        self.lists: dict[int, BackupList] = {}
        for number in place.numbers():
            try:
                self.lists[number] = place.read(number)
            except FailedPrecondition:
                raise
            except SparkportError as exc:
                logger.warning("%s", exc)
        present = place.present()
        # One that no list names may be half of one.
        self._sums: dict[str, Sum] = {
            file.name: file.sum
            for backup in self.lists.values()
            for file in backup.files
            if present.get(file.name) == file.sum[0]
        }

    def copied(self) -> tuple[Contents, list[BackedUp]]:
        for attempt in range(1, _ATTEMPTS + 1):
            contents = read_contents(self._catalog.database, self._catalog.name)
            try:
                return contents, self._copy_all(self._reached(contents))
            except NotFound as exc:
                logger.info("a file was removed while it was to be copied, a new instant is taken: %s", exc)
                missing = exc
            now = read_contents(self._catalog.database, self._catalog.name)
            if set(now.pointers) == set(contents.pointers):
                raise FailedPrecondition(
                    f"the lakehouse is damaged, see sparkport check: {missing.message}"
                ) from missing
            self._tell(f"tables have changed, attempt {attempt + 1}", 0, 0)
        raise Unavailable(
            f"files are removed faster than they are copied, or one is missing (see sparkport check): {missing.message}"
        ) from missing

    def _reached(self, contents: Contents) -> list[Reached]:
        pointers = list(contents.pointers)
        # What a pointer leads to must be there, though it may be the old metadata of another.
        named = {pointer.location: Kind.VIEW if pointer.is_view else Kind.METADATA for pointer in pointers}
        found = [Reached(location, kind) for location, kind in named.items()]
        known = set(named)
        for number, pointer in enumerate(pointers):
            self._tell("reading metadata of tables", number, len(pointers))
            if not pointer.is_view:
                found += reach(self._files, pointer.location, known)
        return found

    def _copy_all(self, reached: Iterable[Reached]) -> list[BackedUp]:
        """A file that has several addresses is copied once."""
        wanted: dict[str, list[Reached]] = defaultdict(list)
        for item in reached:
            wanted[plain_path(item.address)].append(item)
        done: list[BackedUp] = []

        def work(source: str) -> None:
            items = wanted[source]
            with contextlib.ExitStack() as forgiven:
                if all(item.optional for item in items):
                    forgiven.enter_context(contextlib.suppress(NotFound))
                name, total = self._copy_one(source, items[0].address)
                done.extend(BackedUp(item.address, source, item.kind, name, total) for item in items)
            self._tell("copying files", len(done), len(wanted))

        in_parallel(work, list(wanted))
        return sorted(done, key=lambda file: file.address)

    def _copy_one(self, source: str, address: str) -> tuple[str, Sum]:
        name = name_of(source, self._files.stat(address))
        if name not in self._sums:
            self._sums[name] = self._put(self._files, address, self._place.path(name))
            self.new[name] = self._sums[name][0]
        return name, self._sums[name]
