"""Where files of a backup are to be, by how they were called: their tables may be restored to another place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from sparkport.errors import InternalError
from sparkport.lakehouse.files import plain_path

__all__ = ["Relocation"]

_OUTSIDE = "outside"
"""The folder of the new warehouse for what was not in the old one."""


class Relocation:
    """``sources`` are the plain paths of known files, by their addresses; ``folders`` those of all tables."""

    def __init__(self, old: str, new: str, *, sources: Mapping[str, str], folders: Iterable[str]) -> None:
        self.root = new
        old = plain_path(old)
        self._prefixes = {old: new}
        for folder in sorted({plain_path(folder) for folder in folders}):
            if not f"{folder}/".startswith(f"{old}/"):
                self._prefixes[folder] = f"{new}/{_OUTSIDE}/{_digest(folder)}"
        # The longest first: a table's own folder is nearer than one that it is in.
        self._order = sorted(self._prefixes, key=len, reverse=True)
        self._known = {address: self._moved(source) for address, source in sources.items()}

    @property
    def is_identity(self) -> bool:
        """Whether every file stays where it was, and so nothing has to be rewritten."""
        return all(address == new for address, new in self._known.items())

    def file(self, address: str) -> str:
        """The new address of a file, also of one that is not in the backup and is named all the same."""
        known = self._known.get(address)
        return self._moved(plain_path(address)) if known is None else known

    def folder(self, address: str) -> str:
        """The new address of a folder of tables; one that has nothing to do with them stays."""
        place = plain_path(address)
        prefix = next((prefix for prefix in self._order if f"{place}/".startswith(f"{prefix}/")), None)
        return address if prefix is None else self._inside(self._prefixes[prefix] + place[len(prefix) :])

    def _moved(self, source: str) -> str:
        prefix = next((prefix for prefix in self._order if source.startswith(f"{prefix}/")), None)
        if prefix is not None:
            return self._inside(self._prefixes[prefix] + source[len(prefix) :])
        folder, _, name = source.rpartition("/")
        return self._inside(f"{self.root}/{_OUTSIDE}/{_digest(folder)}/{name}")

    def _inside(self, path: str) -> str:
        """Whoever wrote the list of a backup, nothing is written beside the new warehouse."""
        if {".", ".."} & set(path[len(self.root) :].split("/")):
            raise InternalError(f"the backup names a file by a path that leads elsewhere: '{path}'")
        return path


def _digest(folder: str) -> str:
    return hashlib.sha256(folder.encode()).hexdigest()[:12]
