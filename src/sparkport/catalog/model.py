"""The catalog as the server sees it: catalogs hold schemas, schemas hold tables and functions.

Implement ``Catalog`` and ``Schema`` to answer by query; use ``CatalogBuilder`` for fixed contents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeVar

from sparkport.catalog.context import CallContext
from sparkport.catalog.figures import Figure
from sparkport.catalog.functions import Function
from sparkport.catalog.jobs import Jobs
from sparkport.catalog.journal import Journal
from sparkport.catalog.readiness import Readiness
from sparkport.catalog.spark_sql import SparkSql
from sparkport.catalog.table import Table
from sparkport.catalog.transaction import TransactionManager
from sparkport.errors import InvalidArgument

__all__ = ["Catalog", "CatalogVersion", "Schema", "find_by_name"]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)
F = TypeVar("F", bound=Function)


def find_by_name(items: Iterable[T], name: str) -> T | None:
    """Look a name up without regard to case; the exact spelling wins, an ambiguous one is an error."""
    matches: list[T] = []
    for item in items:
        if item.name == name:
            return item
        # Folding makes up to three characters of one. A name of many megabytes is not copied in vain.
        if len(name) <= 3 * len(item.name) and item.name.casefold() == name.casefold():
            matches.append(item)
    if len(matches) > 1:
        raise InvalidArgument(f"name '{name}' is ambiguous: {', '.join(sorted(item.name for item in matches))}")
    return matches[0] if matches else None


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """Changes with names, schemas and comments, not with rows. ``fixed`` tells clients never to ask again."""

    version: int
    fixed: bool = False


class Schema(ABC):
    """A namespace of one level. Called from several threads at once."""

    name: str
    comment: str | None = None
    tags: Mapping[str, str] = MappingProxyType({})
    is_default: bool = False

    @abstractmethod
    def tables(self, ctx: CallContext) -> Iterable[Table]:
        """All tables, for listing. MAY be lazy."""

    def table(self, ctx: CallContext, name: str) -> Table | None:
        """One table. Override it where looking up is cheaper than listing."""
        return find_by_name(self.tables(ctx), name)

    def functions(self, ctx: CallContext) -> Iterable[Function]:
        return ()

    def function(self, ctx: CallContext, name: str, kind: type[F]) -> F | None:
        """One function of a kind: a scalar and a table function may share a name."""
        return find_by_name((item for item in self.functions(ctx) if isinstance(item, kind)), name)


class Catalog(ABC):
    """What is attached: ``ATTACH 'name' (TYPE airport, …)``. Called from several threads at once."""

    name: str
    transactions: TransactionManager | None = None
    journal: Journal | None = None
    scratch_folder: Path | None = None
    """Where statements may put what has no room in memory."""
    jobs: Jobs | None = None
    keeps_history: bool = False
    """Whether it has tables that tell what has happened to them: then the server adds a schema ``history``."""
    spark_sql: SparkSql | None = None

    @abstractmethod
    def schemas(self, ctx: CallContext) -> Iterable[Schema]:
        """All schemas, for listing. MAY be lazy."""

    def schema(self, ctx: CallContext, name: str) -> Schema | None:
        return find_by_name(self.schemas(ctx), name)

    def figures(self) -> Iterable[Figure]:
        """Numbers for those who watch the server; see ``Figure``."""
        return () if self.transactions is None else self.transactions.figures()

    def readiness(self) -> Readiness:
        """Whether reads and writes would work now. MUST NOT wait: probes ask every few seconds."""
        return Readiness()

    def committed_statement(self, statement: str, *, schema: str, table: str) -> int | None:
        """How many rows a statement changed that has been committed, for engines that keep that with their tables.

        ``schema`` and ``table`` are the names that it was sent with; the default schema's may be empty.
        """
        return None

    @abstractmethod
    def version(self, ctx: CallContext) -> CatalogVersion:
        """MUST change whenever the listing would; MUST be cheap: DuckDB asks at each transaction's start."""
