"""Where each table's current metadata is: the one thing in a lakehouse that changes in place, and so the one to guard.

What every kind of catalog can do with it is here; ``sql_pointers.py`` and ``rest.py`` do it.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkport.errors import InternalError, SparkportError, TableNotFound, Unavailable, Unsupported
from sparkport.lakehouse.catalogs.database import Work
from sparkport.lakehouse.catalogs.journal_records import JournalRecords
from sparkport.lakehouse.catalogs.journal_state import NO_JOURNAL, JournalView
from sparkport.lakehouse.catalogs.looked_up import LookedUp
from sparkport.lakehouse.catalogs.shadow_records import ShadowRecords
from sparkport.lakehouse.names import TableName

__all__ = ["Cut", "Edit", "JournalMoved", "Move", "Moved", "OutcomeUnknown", "OverlaidTables", "Pointers"]


@dataclass(frozen=True, slots=True)
class Move:
    """A table's pointer from one metadata file to the next."""

    table: TableName
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A table's metadata as it was seen and as it shall be; ``before`` is None for a table to be created.

    ``location`` is where ``before`` was read from: a SQL catalog's condition, which a REST catalog does not need.
    ``shadow`` is the name of the one whose snapshots ``after`` has: it MUST be there until then, and is no more after.
    """

    table: TableName
    before: Mapping[str, Any] | None
    after: Mapping[str, Any]
    location: str | None = None
    shadow: str | None = None


class Moved(Exception):
    """Somebody else moved a pointer first; look again and decide again. Never leaves the engine."""

    def __init__(self, table: TableName) -> None:
        super().__init__(f"table '{table}' has been moved by another writer")
        self.table = table


class JournalMoved(Moved):
    """The journal has changed in a way that concerns a commit: decide again."""


class OutcomeUnknown(Unavailable):
    """A commit was sent, and nobody can say now whether it was made.

    ``settle`` finds out: True if it was made, False if it was not and can no longer be. It raises Unavailable while
    that is not known. Safe to repeat.
    """

    def __init__(self, message: str, settle: Callable[[], bool]) -> None:
        super().__init__(message)
        self.settle = settle


class OverlaidTables(Mapping[TableName, str]):
    """Where tables are, some of them elsewhere than a cut says or, if that is None, not there; looked up as needed."""

    def __init__(self, tables: Mapping[TableName, str], pins: Mapping[TableName, str | None]) -> None:
        self._tables = tables
        self._pins = dict(pins)
        gone = {table for table, location in pins.items() if location is None}
        self._names = dict.fromkeys(sorted({*tables, *pins} - gone))

    def __getitem__(self, table: TableName) -> str:
        location = self._pins[table] if table in self._pins else self._tables[table]
        if location is None:
            raise KeyError(table)
        return location

    def __contains__(self, table: object) -> bool:
        return table in self._names

    def __iter__(self) -> Iterator[TableName]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class Cut:
    """All tables and schemas of a catalog at one instant."""

    tables: Mapping[TableName, str]
    schemas: Mapping[str, Mapping[str, str]]
    journal: JournalView = NO_JOURNAL

    @property
    def known_locations(self) -> Mapping[TableName, str]:
        """A REST catalog's cut is filled as it is looked at; nobody has seen the rest yet."""
        return self.tables.known if isinstance(self.tables, LookedUp) else self.tables


class Pointers(ABC):
    """Called from several threads at once."""

    journal: JournalRecords | None = None
    """None where the catalog has no place for one."""

    shadows: ShadowRecords | None = None
    """The same."""

    @abstractmethod
    def cut(self) -> Cut: ...

    @abstractmethod
    def location(self, table: TableName) -> str | None:
        """Where a table's metadata is now."""

    def place(self, table: TableName) -> tuple[str | None, JournalView]:
        """That and the journal, at one instant."""
        return self.location(table), NO_JOURNAL

    def location_in(self, work: Work, table: TableName, *, hold: bool = False) -> str | None:
        """Where a table's metadata is, as a transaction of the database sees it; ``hold``: and stays until its end."""
        raise InternalError("this catalog has no database")

    @abstractmethod
    def create_schema(self, name: str, properties: Mapping[str, str]) -> None: ...

    @abstractmethod
    def drop_schema(self, name: str) -> None:
        """MUST be empty."""

    def drop_schema_with_tables(self, name: str) -> dict[TableName, str]:
        """Where the metadata of its tables was. One by one here; at one instant where the catalog can."""
        dropped = {table: self.drop(table) for table in self.cut().tables if table.schema == name}
        if name in self.cut().schemas:
            self.drop_schema(name)
        return dropped

    def rename_schema(self, name: str, new: str) -> dict[str, str]:
        """Where the metadata of its tables is. An empty schema of the new name makes way."""
        raise Unsupported(
            f"this catalog cannot rename a schema: create '{new}', bring its tables there by "
            f"ALTER TABLE {name}.t RENAME TO {new}.t in Spark, and drop '{name}'"
        )

    @abstractmethod
    def create(self, table: TableName, location: str) -> None: ...

    @abstractmethod
    def drop(self, table: TableName) -> str:
        """Where its metadata was."""

    def replace(self, table: TableName, location: str) -> str:
        """Another table under the same name; where the metadata of the old one was.

        The old table steps aside until the new one is there, and comes back if that fails.
        """
        old = self.location(table)
        if old is None:
            raise TableNotFound(*table)
        aside = TableName(table.schema, f"{table.name}_replaced_{uuid.uuid4().hex[:8]}")
        self.rename(table, aside)
        try:
            self.create(table, location)
        except SparkportError:
            if self.location(table) != location:
                self.rename(aside, table)
                raise
        self.drop(aside)
        return old

    @abstractmethod
    def rename(self, table: TableName, new: TableName) -> None: ...

    @abstractmethod
    def commit(
        self,
        changes: Sequence[Edit],
        statements: Mapping[str, int] | None = None,
        *,
        unchanged: Mapping[TableName, str] | None = None,
        transactions: Sequence[str] = (),
        with_journal: Callable[[Work], None] | None = None,
    ) -> dict[TableName, str]:
        """Make all changes or, raising ``Moved``, none; where the metadata of the changed tables is afterwards.

        ``statements`` are noted as committed in the same instant; AlreadyExists, and nothing is changed, when one of
        them is known by then. Tables in ``unchanged`` must be where they are said to be in that instant, else
        ``Moved``. ``transactions`` must be active in that instant too, else TransactionNotActive; they become
        committed. ``with_journal`` runs first in the same transaction of the database, where there is a journal; what
        it raises ends it. OutcomeUnknown where the catalog gives no answer; all other errors mean that nothing is
        changed.
        """

    has_fence = True
    """Whether ``fence`` makes sure of it. Without one nothing that a dead server has written can be judged."""

    @abstractmethod
    def fence(self, server: str) -> None:
        """Make sure that nothing is committed from now on that a dead server may have sent before it died.

        Raises Unavailable while that cannot be said.
        """

    def registered(self) -> list[str]:
        """Where the metadata of all tables is, and of no shadow, that may share files with those of this catalog."""
        return list(self.cut().tables.values())

    @abstractmethod
    def statement(self, key: str, table: TableName | None = None) -> int | None:
        """The number of rows that a committed statement changed; None for one that is not known.

        Some catalogs know most of them by ``table``, the one that the statement changed.
        """

    @abstractmethod
    def forget_statements(self, before: float) -> int:
        """Forget the records, beside the tables, of statements committed before a time; how many they were."""
