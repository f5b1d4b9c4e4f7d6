"""What has happened to a table: its commits, and the rows that each has changed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

import pyarrow as pa

from sparkport.catalog.casting import decoded_type
from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import AsOf, Scan, ScanRequest
from sparkport.catalog.table import Table

__all__ = ["ChangeKind", "ChangesTable", "TableCommit", "TableHead", "change_columns", "changes_schema"]


class ChangeKind(Enum):
    """What a row of a change says. An update is two rows: the row as it was, and the row as it is."""

    INSERT = "insert"
    UPDATE_BEFORE = "update_before"
    UPDATE_AFTER = "update_after"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """One version of a table and the commit that made it. None where nobody has noted it.

    ``version`` is the number that ``AT (VERSION => n)`` takes. Commits that came at the same time may be one version:
    it has several ``authors``, ``statements`` or ``transactions`` then. ``rows`` are those of the whole table then.
    """

    version: int | None
    operation: str
    committed: datetime | None = None
    authors: tuple[str, ...] | None = None
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    bytes: int | None = None
    rows: int | None = None
    transactions: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    snapshot: int | None = None


@dataclass(frozen=True, slots=True)
class TableHead:
    """Where a table is. ``id`` is its own, whatever it is called: another table of the same name has another one.

    ``version`` is None where others have taken away what it would be counted from.
    """

    id: str
    version: int | None


class ChangesTable(Table):
    """All methods tell of all rows: a table that hides some of them from a caller MUST NOT offer them to it."""

    @abstractmethod
    def head(self, ctx: CallContext) -> TableHead:
        """The table as it is published now. MUST be cheap: followers ask again and again."""

    @abstractmethod
    def commits(self, ctx: CallContext) -> Sequence[TableCommit]:
        """The versions that can still be read, oldest first. MUST read metadata only."""

    @abstractmethod
    def changes_schema(self, ctx: CallContext, end: AsOf | None) -> pa.Schema:
        """The columns of ``changes``: those of ``changes_schema`` for the table as it is at the end."""

    @abstractmethod
    def changes(self, ctx: CallContext, start: AsOf, end: AsOf | None, request: ScanRequest) -> Scan:
        """Each change of a row in each version after ``start``, up to and with ``end``; None for the newest.

        Versions come in their order; within one, rows as they were come before rows as they are. MUST raise
        VersionNotFound where one of the versions is not there, and never leave a change out: what cannot be told is an
        error.
        """


def change_columns(columns: Iterable[str]) -> tuple[str, str, str]:
    """What the columns for kind, row id and version are called, next to columns of these names."""
    taken = {name.casefold() for name in columns}

    def free(name: str) -> str:
        while name in taken:
            name = f"_{name}"
        return name

    return free("kind"), free("row_id"), free("version")


def changes_schema(columns: pa.Schema) -> pa.Schema:
    """The columns of changes to a table that has these columns, without a row id. An enum is told as its values."""
    kind, row_id, version = change_columns(columns.names)
    shown = [pa.field(column.name, decoded_type(column.type), metadata=_extension(column)) for column in columns]
    return pa.schema(
        [
            pa.field(kind, pa.string(), nullable=False),
            pa.field(row_id, pa.int64(), nullable=False),
            pa.field(version, pa.int64(), nullable=False),
            *shown,
        ]
    )


def _extension(column: pa.Field) -> dict[bytes, bytes] | None:
    """Of what is said about a column only its type: a change fills in no default and keeps no constraint."""
    kept = {key: value for key, value in (column.metadata or {}).items() if key.startswith(b"ARROW:extension")}
    return kept or None
