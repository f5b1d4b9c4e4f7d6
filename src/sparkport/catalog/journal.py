"""How the server speaks to a catalog that keeps a journal; most catalogs have none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sparkport.catalog.context import CallContext

__all__ = ["Journal", "JournalledTable", "Sees"]

Sees = Callable[[str, str], bool]
"""Whether somebody may know of a table, by the names of its schema and itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalledTable:
    """What the journal holds for a table, as ``tx.journal`` shows it; ``oldest`` is when the first of it came.

    ``failure`` is why it could not be published the last time. ``waits_for`` are the schemas and names of other tables
    that could not be, and that commits tie it to.
    """

    schema_name: str
    table_name: str
    entries: int
    rows: int
    bytes: int
    oldest: datetime | None
    failure: str | None = None
    waits_for: Sequence[tuple[str, str]] = ()

    def why(self, sees: Sees) -> str | None:
        """Why it is set apart, to somebody who may know of this table and need not know of all others."""
        if self.failure is not None or not self.waits_for:
            return self.failure
        names = ", ".join(f"'{schema}.{name}'" for schema, name in self.waits_for if sees(schema, name))
        return f"commits that wait tie it to {names or 'a table that is not shown'}, which could not be published"


class Journal(ABC):
    """Small changes that are committed and wait to be published. Called from several threads at once.

    Whether the caller may ask is decided before; names are as the catalog has them.
    """

    @abstractmethod
    def set_journal(self, ctx: CallContext, schema_name: str, table_name: str, *, on: bool) -> None:
        """Journal the changes of a table from now on, or no more. MUST be safe to repeat."""

    @abstractmethod
    def flush(self, ctx: CallContext) -> int:
        """Publish what the journal holds, and return when that is done: how many rows it was.

        Where a table cannot be published, all others MUST be; then it raises, and names the tables that ``ctx.sees``.
        """

    @abstractmethod
    def waiting(self) -> Sequence[JournalledTable]:
        """The tables for which the journal holds something."""
