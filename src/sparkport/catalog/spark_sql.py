"""How the server has a query in Spark's SQL run by a catalog that has a Spark; most catalogs have none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import Scan
from sparkport.catalog.table import Table
from sparkport.errors import Unsupported

__all__ = ["SparkQuery", "SparkSql", "SparkView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkQuery:
    """A query, its arguments (a list, a MAP or a STRUCT), who asks, and the tables that the caller may read.

    ``tables`` are (schema, name) as the catalog has them. No other table exists for the query.
    """

    text: str
    arguments: pa.Scalar | None
    owner: str
    tables: frozenset[tuple[str, str]]


class SparkSql(ABC):
    """Called from several threads at once.

    An implementation MUST refuse with InvalidArgument, before anything runs, whatever is not one query, and whatever
    could read or run anything but ``tables``. A table that it does not know, or that is not among ``tables``, is
    TableNotFound; what Spark says of the query is InvalidArgument, in one line. All that was committed before the call
    MUST be seen.
    """

    @abstractmethod
    def named(self, ctx: CallContext, text: str) -> Iterable[tuple[str, str]]:
        """The tables that a query may mean, as (schema, name); MAY name more, and MUST NOT leave one out."""

    @abstractmethod
    def columns(self, ctx: CallContext, query: SparkQuery) -> pa.Schema:
        """What the query gives, by Spark's analysis. MUST NOT run it. It is asked for several times for one query."""

    @abstractmethod
    def scan(self, ctx: CallContext, query: SparkQuery, columns: pa.Schema) -> Scan:
        """The query's rows, as it runs; Conflict if they are of other ``columns`` by now."""

    @abstractmethod
    def explain(self, ctx: CallContext, query: SparkQuery) -> str:
        """How Spark would run it."""

    def create_view(self, ctx: CallContext, schema: str, name: str, query: SparkQuery) -> None:
        """A view of this query, which is checked like one that is run; AlreadyExists if anything has the name."""
        raise Unsupported("this catalog has no views")

    def drop_view(self, ctx: CallContext, schema: str, name: str) -> None:
        """TableNotFound if there is no view of this name."""
        raise Unsupported("this catalog has no views")


class SparkView(Table):
    """A table whose rows a query of Spark's gives. Who reads it must be allowed to read all that the query reads."""

    @abstractmethod
    def reads(self, ctx: CallContext) -> Iterable[tuple[str, str]]:
        """The tables and views, as (schema, name), that it may read, at any depth."""

    @abstractmethod
    def read_by(self, owner: str, tables: frozenset[tuple[str, str]]) -> Table:
        """The view as a caller reads it for whom no others than these tables exist."""
