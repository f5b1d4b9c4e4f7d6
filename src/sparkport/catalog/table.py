"""What a table is and what it can do: the small interfaces that engines and users implement.

A table inherits ``Table`` and one ability per thing it can do; the server looks at nothing else. Abilities are
abstract classes on purpose: a Protocol would only compare method names and could not tell these apart.
All methods are called from several threads at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import AsOf, DuckDBCall, Scannable, ScanRequest
from sparkport.errors import DuplicateKey

__all__ = [
    "ColumnStatistics",
    "DMLOptions",
    "DMLResult",
    "DeletableBatchTable",
    "DeletableTable",
    "DirectTable",
    "InsertableTable",
    "Key",
    "StatisticsTable",
    "Table",
    "UpdatableBatchTable",
    "UpdatableTable",
    "VersionedTable",
]


@dataclass(frozen=True, slots=True)
class DMLOptions:
    """``returning`` and no columns means all columns."""

    returning: bool = False
    returning_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DMLResult:
    """``returning_data`` is consumed and closed by the server; give it only when it was asked for."""

    affected_rows: int
    returning_data: pa.RecordBatchReader | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistics:
    """Bounds that hold for every row; leave None what is not known.

    ``minimum`` and ``maximum`` are Arrow scalars of the column's type, or Python values that Arrow makes such of.
    Python's dates and times know no infinity, no year 10000, no nanosecond and no 24:00: scalars do.
    """

    minimum: Any = None
    maximum: Any = None
    has_null: bool | None = None
    has_not_null: bool | None = None
    distinct_count: int | None = None
    max_string_length: int | None = None
    contains_unicode: bool | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """Columns, by their names in the table's schema, whose values no two rows share; ``primary`` takes no NULL."""

    columns: tuple[str, ...]
    primary: bool = False

    def __str__(self) -> str:
        kind = "PRIMARY KEY" if self.primary else "UNIQUE"
        return f"{kind} ({', '.join(self.columns)})"

    def is_violated(self, exc: DuplicateKey) -> bool:
        """Whether this is the key that an error is about."""
        return (self.columns, self.primary) == (exc.columns, exc.primary)


class Table(ABC):
    """Rows with a schema that can be scanned."""

    name: str
    comment: str | None = None
    tags: Mapping[str, str] = MappingProxyType({})
    checks: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns, the row-id column included where the table has row ids. MUST be cheap."""

    @abstractmethod
    def scan(self, ctx: CallContext, request: ScanRequest) -> Scannable:
        """Rows in insertion order. MUST NOT read more than it has to before the first batch."""

    def plan(self, ctx: CallContext, request: ScanRequest) -> Sequence[ScanRequest]:
        """Split a scan for parallel readers; together the parts give each row once."""
        return (request,)

    def schema_of(self, ctx: CallContext, request: ScanRequest) -> pa.Schema:
        """The schema of the rows that ``scan`` would read; another than ``schema`` if it was planned before a change.

        By it, rules about columns find what to mask.
        """
        return self.schema

    def row_count(self, ctx: CallContext) -> int | None:
        """An estimate for DuckDB's planner; None when it would cost more than a look-up."""
        return None


class StatisticsTable(Table):
    @abstractmethod
    def column_statistics(self, ctx: CallContext, column: str) -> ColumnStatistics | None:
        """What is known about a column without reading it; None when nothing is."""


class VersionedTable(Table):
    def schema_of(self, ctx: CallContext, request: ScanRequest) -> pa.Schema:
        return self.schema if request.at is None else self.schema_at(ctx, request.at)

    @abstractmethod
    def schema_at(self, ctx: CallContext, at: AsOf) -> pa.Schema:
        """The schema of that version. MUST raise VersionNotFound for one that is not there."""


class DirectTable(Table):
    @abstractmethod
    def duckdb_calls(self, ctx: CallContext, request: ScanRequest) -> Sequence[DuckDBCall] | None:
        """Functions that DuckDB runs itself instead of this scan, side by side; None where the server shall read.

        Together they MUST give the rows of ``scan``. Each MUST have the columns asked for, by the names and in the
        types of ``schema``; their order is free. Only asked for on behalf of DuckDB, and never with a row id: all other
        scans are read by ``scan``. A caller who may read the table gets to see the arguments, so they MUST NOT lead to
        anything that the table does not show.
        """


class InsertableTable(Table):
    @abstractmethod
    def insert(self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None) -> DMLResult:
        """Add ``rows``, which have the table's columns without row id. All or none. The server closes ``rows``."""


class UpdatableTable(Table):
    @abstractmethod
    def update(
        self, ctx: CallContext, row_ids: Sequence[int], rows: pa.RecordBatchReader, options: DMLOptions | None = None
    ) -> DMLResult:
        """Set the columns that ``rows`` has, of the rows named by ``row_ids`` in the same order. All or none."""


class DeletableTable(Table):
    @abstractmethod
    def delete(self, ctx: CallContext, row_ids: Sequence[int], options: DMLOptions | None = None) -> DMLResult:
        """Remove the rows. All or none."""


class UpdatableBatchTable(Table):
    @abstractmethod
    def update_batches(
        self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None
    ) -> DMLResult:
        """Like ``update``; the row id is a column of ``rows``, see ``find_row_id_column``. Preferred over it."""


class DeletableBatchTable(Table):
    @abstractmethod
    def delete_batches(
        self, ctx: CallContext, rows: pa.RecordBatchReader, options: DMLOptions | None = None
    ) -> DMLResult:
        """Like ``delete``; the row id is a column of ``rows``. Preferred over it."""
