"""How the server speaks to a catalog that keeps a journal; most catalogs have none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sparkport.catalog.context import CallContext

__all__ = ["Journal", "JournalledTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalledTable:
    """What the journal holds for a table, as ``tx.journal`` shows it; ``oldest`` is when the first of it came."""

    schema_name: str
    table_name: str
    entries: int
    rows: int
    bytes: int
    oldest: datetime | None


class Journal(ABC):
    """Small changes that are committed and wait to be published. Called from several threads at once.

    Whether the caller may ask is decided before; names are as the catalog has them.
    """

    @abstractmethod
    def set_journal(self, ctx: CallContext, schema_name: str, table_name: str, *, on: bool) -> None:
        """Journal the changes of a table from now on, or no more. MUST be safe to repeat."""

    @abstractmethod
    def flush(self, ctx: CallContext) -> int:
        """Publish what the journal holds, and return when that is done: how many rows it was."""

    @abstractmethod
    def waiting(self) -> Sequence[JournalledTable]:
        """The tables for which the journal holds something."""
