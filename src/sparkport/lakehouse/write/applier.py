"""What the committer asks of whoever makes a table's plan happen, beside the table and seen by nobody."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from sparkport.lakehouse.catalogs.pointers import Edit
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.write.change_set import TablePlan

__all__ = ["Applier", "Staged", "apply_all"]


class Staged(ABC):
    """A plan that was applied. Exactly one of ``published``, ``discard`` and ``take_back`` ends it."""

    is_in_the_open: bool
    """It can be seen already, just where it was to be published. Whoever gives it up MUST take it back."""

    plan: TablePlan

    @property
    def table(self) -> TableName:
        return self.plan.table

    @property
    def base(self) -> TableMetadata:
        """The table as it was when the plan was decided."""
        return self.plan.version.metadata

    @abstractmethod
    def fits(self, plan: TablePlan) -> bool:
        """Whether it is what this plan would be applied as."""

    @abstractmethod
    def edit(self) -> Edit | None:
        """The change of the table's metadata that publishes; None when it is no longer the table it was made for."""

    @abstractmethod
    def published(self) -> None: ...

    @abstractmethod
    def discard(self) -> None:
        """Never raises."""

    @abstractmethod
    def take_back(self) -> None:
        """Discard it, also where it has landed in the open. This MUST be done before it is published."""


class Applier(Protocol):
    def apply(self, plan: TablePlan) -> Staged | None:
        """None when the table was changed by others meanwhile."""

    def uses(self, branch: str) -> bool:
        """Whether a branch of this server's is one of a commit under way; others that it left are of no use."""

    def tables_in_use(self) -> set[TableName]:
        """Tables that commits under way are about."""

    def needed_in(self, metadata: TableMetadata) -> set[int]:
        """Snapshots of a table that commits under way need, though no branch leads to them, and however old."""


def apply_all(
    applier: Applier, plans: Collection[TablePlan], pool: ThreadPoolExecutor
) -> Iterable[Staged | BaseException | None]:
    """Each done, several at a time; what came of it, or the error."""

    def tried(plan: TablePlan) -> Staged | BaseException | None:
        try:
            return applier.apply(plan)
        except BaseException as exc:
            return exc

    return map(tried, plans) if len(plans) == 1 else list(pool.map(tried, plans))
