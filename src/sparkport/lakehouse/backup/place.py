"""The folder, local or in a store, that backups are in: files that all of them share, and a list for each.

    sparkport-backups.json      what this is, and of which catalog
    files/3f/9c…                a file of some table, under a name that depends on where it was, its size and its age
    backups/000007.json.gz      the catalog's rows, and the files of the tables with their sums

A backup is there when its list is, which is written last, whole. So one that was begun and not ended is none, and
what it left is removed after the next one. Files are never changed: a backup that shares them cannot spoil another.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkport.errors import FailedPrecondition, InternalError, NotFound
from sparkport.lakehouse.backup.contents import Contents
from sparkport.lakehouse.backup.copying import Sum
from sparkport.lakehouse.backup.reach import Kind
from sparkport.lakehouse.files import FileInfo, FileSystem, local_path, sync

__all__ = ["BackedUp", "BackupList", "FORMAT", "Place", "name_of"]

FORMAT = 1
"""Of the lists, and of the folder. What a newer sparkport has written is not read as if it were ours."""

_LIST = re.compile(r"(\d{6,})\.json\.gz")
_NAME = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class BackedUp:
    """``address`` is how tables call the file, ``source`` its plain path, and ``name`` what it is called here."""

    address: str
    source: str
    kind: Kind
    name: str
    sum: Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupList:
    """One backup. ``made`` is when, in ISO format; ``warehouse`` is where it was."""

    number: int
    made: str
    version: str
    catalog: str
    warehouse: str
    contents: Contents
    files: Sequence[BackedUp]

    @property
    def size(self) -> int:
        """In bytes, each file once."""
        return sum({file.name: file.sum[0] for file in self.files}.values())

    def dump(self) -> bytes:
        return gzip.compress(
            json.dumps(
                {
                    "format": FORMAT,
                    "number": self.number,
                    "made": self.made,
                    "version": self.version,
                    "catalog": self.catalog,
                    "warehouse": self.warehouse,
                    "contents": self.contents.as_json(),
                    "files": [
                        [file.address, file.source, file.kind.value, file.name, *file.sum] for file in self.files
                    ],
                }
            ).encode(),
            compresslevel=6,
        )


class Place:
    """``files`` are the file systems of both sides."""

    def __init__(self, files: FileSystem, root: str) -> None:
        local = local_path(root)
        self.root = root.rstrip("/") if local is None else str(local.absolute())
        self._files = files
        self._marker = f"{self.root}/sparkport-backups.json"

    def prepare(self, catalog: str, digest: str) -> None:
        """Make it a place of backups of this catalog, unless it is one. FailedPrecondition for any other place."""
        if not self._files.exists(self._marker):
            if found := [info.path for info in self._files.list(self.root) if not info.path.endswith("/lock")]:
                raise FailedPrecondition(f"'{self.root}' is no place of backups, and not empty: it has '{found[0]}'")
            marker = {"format": FORMAT, "catalog": catalog, "digest": digest}
            self._files.write_new(self._marker, json.dumps(marker).encode())
        if self._read_marker()["digest"] != digest:
            raise FailedPrecondition(f"'{self.root}' has the backups of another catalog: choose a place of its own")

    def require(self) -> None:
        """NotFound where there are no backups."""
        self._read_marker()

    def _read_marker(self) -> dict[str, Any]:
        try:
            marker: dict[str, Any] = json.loads(self._files.read_bytes(self._marker))
            _require_format(marker["format"], self._marker)
        except NotFound as exc:
            raise NotFound(f"there are no backups at '{self.root}'") from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise InternalError(f"'{self._marker}' cannot be read: {exc}") from exc
        return marker

    def numbers(self) -> list[int]:
        listed = (info.path.rpartition("/")[2] for info in self._files.list(f"{self.root}/backups"))
        return sorted(int(match.group(1)) for name in listed if (match := _LIST.fullmatch(name)))

    def path(self, name: str) -> str:
        """Where a file is that all backups share."""
        return f"{self.root}/files/{name[:2]}/{name[2:]}"

    def list_path(self, number: int) -> str:
        return f"{self.root}/backups/{number:06d}.json.gz"

    def read(self, number: int) -> BackupList:
        path = self.list_path(number)
        try:
            return _parse(json.loads(gzip.decompress(self._files.read_bytes(path))), path)
        except NotFound as exc:
            there = ", ".join(map(str, self.numbers())) or "none"
            raise NotFound(f"there is no backup {number} at '{self.root}'; there is {there}") from exc
        except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError, zlib.error) as exc:
            raise InternalError(f"the backup's list '{path}' is damaged: {exc}") from exc

    def write(self, backup: BackupList) -> None:
        """From now on it is a backup. AlreadyExists for a number that somebody else has taken."""
        self._files.write_new(self.list_path(backup.number), backup.dump())

    def present(self) -> dict[str, int]:
        """The sizes of the shared files, by their names."""
        return {name: info.size for info in self._listed() if (name := _name_in(info.path)) is not None}

    def _listed(self) -> list[FileInfo]:
        return self._files.list(f"{self.root}/files")

    def sync(self, names: Sequence[str]) -> None:
        """Files that have been put here, and their folders, survive a loss of power."""
        sync([self.path(name) for name in names], below=self.root)

    def forget(self, number: int) -> None:
        self._files.delete(self.list_path(number))

    def clean(self, used: Mapping[str, object] | set[str]) -> int:
        """Remove what no backup uses, and what is left of one that was begun; how many files that were."""
        unused = [info.path for info in self._listed() if _name_in(info.path) not in used]
        for path in unused:
            self._files.delete(path)
        return len(unused)


def name_of(source: str, info: FileInfo) -> str:
    """What a file is called among the shared ones: another if it is not the same file any more."""
    return hashlib.sha256(f"{source}\0{info.size}\0{info.modified!r}".encode()).hexdigest()[:40]


def _name_in(path: str) -> str | None:
    *_, folder, name = path.split("/")
    return folder + name if _NAME.fullmatch(folder + name) else None


def _require_format(found: Any, path: str) -> None:
    if not isinstance(found, int) or found > FORMAT:
        raise FailedPrecondition(
            f"'{path}' was written by a newer sparkport, which this one cannot read: format {found}, not {FORMAT}"
        )


def _parse(value: Mapping[str, Any], path: str) -> BackupList:
    _require_format(value["format"], path)
    files = [
        BackedUp(str(address), str(source), Kind(kind), name, (int(size), str(digest)))
        for address, source, kind, name, size, digest in value["files"]
    ]
    if any(not _NAME.fullmatch(file.name) for file in files):
        raise ValueError("a file's name is none of ours")
    return BackupList(
        number=int(value["number"]),
        made=str(value["made"]),
        version=str(value["version"]),
        catalog=str(value["catalog"]),
        warehouse=str(value["warehouse"]),
        contents=Contents.from_json(value["contents"]),
        files=files,
    )
