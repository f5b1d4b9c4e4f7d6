"""The part of a scan that a ticket names: the metadata that the scan was planned on, and a range of its files.

It is empty for a scan that was not planned, ``NAME\\n`` for all files, or ``NAME\\nSTART-END``. Where a journal was
laid over the table, ``\\nFLUSHED-LAST`` follows: which of its revisions were applied, and which was the last. Tickets
come back from clients, so whatever is in one is checked.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sparkport.errors import InvalidArgument

__all__ = ["TicketPart"]

# A name has no folder in it: a ticket reads metadata of its table and no other file.
_METADATA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.metadata\.json(\.gz)?")
_FILES = re.compile(rb"(?:(\d{1,9})-(\d{1,9}))?")
_REVISIONS = re.compile(rb"(\d{1,18})-(\d{1,18})")


class TicketPart(NamedTuple):
    """``name`` is that of a file of metadata, None for the newest; ``files`` are places in its plan, None for all.

    ``journal`` says which state of the journal was laid over it.
    """

    name: str | None
    files: range | None
    journal: tuple[int, int] | None = None

    @classmethod
    def parse(cls, part: bytes) -> TicketPart:
        if not part:
            return cls(None, None)
        name, *rest = part.split(b"\n")
        files = _FILES.fullmatch(rest[0]) if 1 <= len(rest) <= 2 else None
        revisions = _REVISIONS.fullmatch(rest[1]) if len(rest) == 2 else None
        if files is None or (len(rest) == 2 and revisions is None):
            raise _foreign()
        return cls(
            name.decode(errors="replace"),
            range(*map(int, files.groups())) if rest[0] else None,
            None if revisions is None else (int(revisions[1]), int(revisions[2])),
        )

    def dump(self) -> bytes:
        places = "" if self.files is None else f"{self.files.start}-{self.files.stop}"
        journal = "" if self.journal is None else f"\n{self.journal[0]}-{self.journal[1]}"
        return f"{self.name}\n{places}{journal}".encode()

    def location_in(self, folder: str) -> str:
        """Where the metadata is, if that is one of the folder's own files."""
        if self.name is None or _METADATA_NAME.fullmatch(self.name) is None:
            raise _foreign()
        return folder + self.name


def _foreign() -> InvalidArgument:
    return InvalidArgument("ticket has a part that this table did not make")
