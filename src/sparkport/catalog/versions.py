"""What can be done with a table's versions besides reading them: to go back to one, and to keep one by a name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from sparkport.catalog.context import CallContext
from sparkport.catalog.names import require_name
from sparkport.catalog.scan import AsOf
from sparkport.catalog.table import VersionedTable
from sparkport.errors import FailedPrecondition, InvalidArgument

__all__ = [
    "RevertibleTable",
    "TableTag",
    "TaggedTable",
    "not_a_version",
    "open_transactions_refusal",
    "require_tag_name",
]

_OWN = "sparkport_"
"""What names begin with that the server itself gives to snapshots."""


class RevertibleTable(VersionedTable):
    @abstractmethod
    def rollback(self, ctx: CallContext, at: AsOf) -> int | None:
        """Make the rows those of a version again, under their ids, by a new commit; the number of the version then.

        History is never rewritten: what came in between can be read as before. MUST be refused with FailedPrecondition
        while an open deferred transaction has read or changed the table, and where the version has other columns.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTag:
    """A version that is kept by a name. ``version`` is None where nobody knows its number. A branch may move on."""

    name: str
    version: int | None
    snapshot: int | None = None
    is_branch: bool = False


class TaggedTable(VersionedTable):
    """``AT (VERSION => 'name')`` MUST read a tag's version. Versions with a tag MUST NOT expire."""

    @abstractmethod
    def version_tags(self, ctx: CallContext) -> Sequence[TableTag]:
        """By name. MUST read metadata only."""

    @abstractmethod
    def tag(self, ctx: CallContext, name: str, at: AsOf) -> None:
        """MUST raise AlreadyExists if the name stands for another version. Safe to repeat."""

    @abstractmethod
    def untag(self, ctx: CallContext, name: str) -> None:
        """MUST raise NotFound for a name that is none. The version stays until it expires as others do."""

    @abstractmethod
    def branch(self, ctx: CallContext, name: str, at: AsOf) -> None:
        """A name for a version that other engines may commit to; it is read in the columns that the table has.

        MUST raise AlreadyExists if the name stands for anything else. Safe to repeat.
        """

    @abstractmethod
    def drop_branch(self, ctx: CallContext, name: str) -> None:
        """With what was committed to it alone. MUST raise NotFound for a name that is none."""


def require_tag_name(name: str, kind: str = "tag") -> None:
    """Raise InvalidArgument unless a version can be called this: what looks like a number would be taken for one."""
    require_name(name, kind)
    text = name.strip()
    try:
        int(text)
    except ValueError:
        pass
    else:
        raise InvalidArgument(f"a {kind} cannot be called '{name}', which is a version's number")
    if text != name:
        raise InvalidArgument(f"a {kind} cannot be called '{name}': it begins or ends with a space")
    if name.casefold() == "main" or name.casefold().startswith(_OWN):
        raise InvalidArgument(f"a {kind} cannot be called '{name}': such names are the server's own")


def not_a_version(table: str, text: str) -> InvalidArgument:
    return InvalidArgument(f"'{text}' is not a version of table '{table}': neither a number nor a tag or branch")


def open_transactions_refusal(table: str, count: int) -> FailedPrecondition:
    return FailedPrecondition(
        f"table '{table}' cannot be rolled back: {count} open transactions have read or changed it; let them end, or "
        "roll them back (FROM tx.transactions)"
    )
