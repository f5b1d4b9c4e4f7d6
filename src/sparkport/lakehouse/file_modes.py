"""Only its own user may read the files of a lakehouse, or that user's group too; never all users of the machine.

Only what is made from now on is concerned: how files that are there may be read is for their owner to say.
"""

from __future__ import annotations

import logging
from enum import Enum
from pathlib import Path

__all__ = ["FileMode"]

logger = logging.getLogger(__name__)


class FileMode(Enum):
    PRIVATE = "private"
    GROUP = "group"

    @property
    def umask(self) -> int:
        return 0o077 if self is FileMode.PRIVATE else 0o007

    @property
    def folder(self) -> int:
        """What is made in a shared folder belongs to the folder's group."""
        return 0o700 if self is FileMode.PRIVATE else 0o2770

    @property
    def file(self) -> int:
        return 0o666 & ~self.umask

    def make_folder(self, folder: Path) -> None:
        """Raises OSError. One that is there stays as it is."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if not folder.is_dir():
                raise
            return
        folder.chmod(self.folder)

    def warn_of(self, folder: Path) -> None:
        """Say so where more users can look into a folder than the setting wants."""
        mode = folder.stat().st_mode & 0o777
        if mode & self.umask:
            who = "other users" if mode & 0o007 else "its group"
            logger.warning("the warehouse '%s' is open to %s (mode %o): see file_mode", folder, who, mode)
