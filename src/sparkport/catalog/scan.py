"""What a reader asks of a table, and what the table hands back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa

from sparkport.errors import InvalidArgument
from sparkport.filters.expressions import Expression

__all__ = ["AsOf", "AsOfUnit", "DuckDBCall", "Scan", "ScanRequest", "Scannable", "as_scan"]


class AsOfUnit(Enum):
    VERSION = "version"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class AsOf:
    """A point in a table's history, as the user wrote it: ``AT (VERSION => 3)``."""

    unit: AsOfUnit
    value: str

    def __str__(self) -> str:
        return f"{self.unit.value} {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """One scan. ``columns`` are names of the table's columns, the row id among them if it is wanted.

    A table MUST return every row that ``filter`` keeps and MAY return more: the caller filters again.
    ``columns`` of None means all. ``part`` is whatever the table's own ``plan`` put there.
    """

    columns: tuple[str, ...] | None = None
    filter: Expression | None = None
    at: AsOf | None = None
    part: bytes = b""

    def with_part(self, part: bytes) -> ScanRequest:
        return replace(self, part=part)

    def selects(self, name: str) -> bool:
        return self.columns is None or name in self.columns


@dataclass(frozen=True, slots=True, init=False)
class DuckDBCall:
    """A table function that the caller's own DuckDB runs to get the rows of a scan, or of a part of it.

    ``DuckDBCall("read_parquet", ["/data/a.parquet"], hive_partitioning=False)``. Arguments are Python values, or Arrow
    scalars where the type matters: DuckDB does not cast them.
    """

    function: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]

    def __init__(self, function: str, /, *arguments: Any, **named: Any) -> None:
        if not function:
            raise InvalidArgument("a call needs the name of a function")
        if wrong := [name for name in named if name.startswith("arg_")]:
            raise InvalidArgument(f"'{wrong[0]}' cannot name an argument: positional ones go by such names")
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "named", MappingProxyType(named))


def _nothing() -> None:
    return None


@dataclass(slots=True)
class Scan:
    """Batches on their way out. The server iterates once and MUST call ``close`` once, whatever happens.

    A batch carries at least the columns asked for, found by name; further ones are left out by the server.
    ``total_rows``, when known, moves DuckDB's progress bar, or else ``progress``, which says what part of 1 is done;
    a batch without rows MAY come only to move it. ``close`` may be called from another thread
    than the one that iterates, to stop a scan whose reader has gone.
    """

    batches: Iterable[pa.RecordBatch]
    total_rows: int | None = None
    close: Callable[[], None] = field(default=_nothing)
    progress: Callable[[], float | None] = _nothing

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.batches)


Scannable: TypeAlias = "Scan | pa.RecordBatchReader | pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]"


def as_scan(value: Scannable) -> Scan:
    """Whatever a table's ``scan`` returned, as a ``Scan``."""
    if isinstance(value, Scan):
        return value
    if isinstance(value, pa.Table):
        return Scan(value.to_batches(), total_rows=value.num_rows)
    if isinstance(value, pa.RecordBatch):
        return Scan([value], total_rows=value.num_rows)
    close = getattr(value, "close", None)
    return Scan(value, close=close if callable(close) else _nothing)
