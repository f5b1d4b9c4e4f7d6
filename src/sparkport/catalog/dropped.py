"""Tables that were dropped and are still there, for those who want them back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableCatalog

__all__ = ["DroppedTable", "RestoringCatalog"]


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """``author`` has dropped or replaced it; None where that is not known."""

    schema: str
    name: str
    dropped: datetime
    author: str | None = None


class RestoringCatalog(MutableCatalog):
    @abstractmethod
    def dropped_tables(self, ctx: CallContext) -> Sequence[DroppedTable]:
        """Those that can be restored, the last that was dropped first. A name may be there more than once."""

    @abstractmethod
    def restore_table(self, ctx: CallContext, schema: str, name: str) -> None:
        """Bring the last table back that was dropped under a name, with its rows, its versions and its own id.

        MUST raise AlreadyExists if the name is taken, SchemaNotFound if its schema is gone, and NotFound if there is no
        such table or its files are gone.
        """
