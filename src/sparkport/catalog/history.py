"""What a table has been and what it takes up, from its metadata alone: for those who look after it, not for queries."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from datetime import datetime

from sparkport.catalog.context import CallContext
from sparkport.catalog.table import Table

__all__ = ["HistoryTable", "TableHistory", "TableSnapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """One state that the table was in. Numbers are of the whole table as it was then; None where nobody noted them.

    ``version`` is the number that ``AT (VERSION => n)`` takes; ``added_rows`` and ``removed_rows`` what the commit did.
    """

    id: int
    version: int | None
    committed: datetime
    operation: str
    rows: int | None
    bytes: int | None
    files: int | None
    delete_files: int | None
    added_rows: int | None = None
    removed_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHistory:
    """``snapshots`` are those that the table has been and that are kept, oldest first; the last is the table now.

    ``kept`` counts all that are kept, also those that are on no branch or on another. ``compacted`` is when the same
    rows were last written to other files.
    """

    snapshots: tuple[TableSnapshot, ...]
    kept: int
    compacted: datetime | None = None
    format: str = ""
    partitioned_by: tuple[str, ...] = ()

    @property
    def current(self) -> TableSnapshot | None:
        return self.snapshots[-1] if self.snapshots else None


class HistoryTable(Table):
    @abstractmethod
    def history(self, ctx: CallContext, most: int | None = None) -> TableHistory:
        """With ``most``, no more snapshots than that, spread over the table's life, the newest among them, and MAY
        leave their versions out: lists ask for very many tables at once.

        MUST read metadata only, and no more of it than the table's description. Row numbers are of all rows: a table
        that hides some of them from a caller MUST NOT offer this to that caller.
        """
