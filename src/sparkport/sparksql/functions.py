"""The schema ``spark`` of every catalog with a Spark: how a query of DuckDB's has another one run by the cluster.

SELECT * FROM lake.spark.sql('SELECT … FROM public.orders WHERE day > ?', [DATE '2026-01-01']);
SELECT * FROM lake.spark.explain('SELECT …');
FROM lake.spark.jobs;
SELECT lake.spark.cancel('…');
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import Arguments, Function, Parameter, ScalarFunction, Stability, TableFunction
from sparkport.catalog.jobs import Job
from sparkport.catalog.model import Schema
from sparkport.catalog.scan import Scan, ScanRequest
from sparkport.catalog.spark_sql import SparkQuery, SparkSql
from sparkport.catalog.static import scan_arrow
from sparkport.catalog.table import Table
from sparkport.errors import InvalidArgument, NotFound, PermissionDenied, TableNotFound

__all__ = ["SPARK_SCHEMA", "SparkSchema"]

SPARK_SCHEMA = "spark"

MayUse = Callable[[CallContext], None]
Readable = Callable[[CallContext, str, str], bool]
"""Raises unless the caller may read all of a table; True for a view."""
Place = Callable[[CallContext, str], tuple[str, str]]

_EXPLAINED = pa.schema([pa.field("plan", pa.string(), nullable=False)])
_JOBS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("owner", pa.string()),
        pa.field("purpose", pa.string(), nullable=False),
        pa.field("query", pa.string()),
        pa.field("tables", pa.list_(pa.string()), nullable=False),
        pa.field("since", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("progress", pa.float64()),
    ]
)


class _Queries:
    """Texts as queries of a caller: with the tables that it may read, and none if it may not ask at all."""

    def __init__(self, spark_sql: SparkSql, may_use: MayUse, readable: Readable) -> None:
        self.spark_sql = spark_sql
        self._may_use = may_use
        self._readable = readable

    def run(self, ctx: CallContext, arguments: Arguments) -> tuple[SparkQuery, _Refusals]:
        self._may_use(ctx)
        text = arguments.get("query")
        if not isinstance(text, str):
            raise InvalidArgument("the query must be a text")
        allowed: set[tuple[str, str]] = set()
        refused: dict[tuple[str, str], PermissionDenied] = {}
        names_views = False
        for schema, name in self.spark_sql.named(ctx, text):
            try:
                names_views |= self._readable(ctx, schema, name)
                allowed.add((schema, name))
            except (InvalidArgument, NotFound):  # a view that cannot be read by anybody may be named by chance
                continue
            except PermissionDenied as exc:
                refused[schema.casefold(), name.casefold()] = exc
        self._may_use(ctx)  # what the call was about, for the audit
        query = SparkQuery(
            text=text,
            arguments=arguments.values.get("args"),
            owner=ctx.identity.subject,
            tables=frozenset(allowed),
        )
        return query, _Refusals(refused, text, names_views=names_views)


class _Refusals:
    """For a table that is there and that the caller may not read, Spark can only say that it is not there.

    What a view reads may be news to the caller: where a query names one, a missing table is not named, even if the
    query does so. Any word in it can be an alias, made up to have a guess confirmed.
    """

    def __init__(self, refused: dict[tuple[str, str], PermissionDenied], text: str, *, names_views: bool) -> None:
        self._refused = refused
        self._words = set(re.findall(r"\w+", text.casefold()))
        self._names_views = names_views

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, TableNotFound):
            denied = self._refused.get((exc.schema.casefold(), exc.table.casefold()))
            if denied is not None:
                raise denied from exc
            if self._names_views or not set(re.findall(r"\w+", exc.table.casefold())) <= self._words:
                raise NotFound("a table that the query or a view of it reads is not there, or not for you") from exc


_QUERY = Parameter("query", pa.string())
_ARGS = Parameter("args")


class _OfQuery(TableFunction):
    """A function of a query and its arguments.

    DuckDB knows functions of one name by the number of their arguments. Its client gives a named one that may be of any
    type the type of the first, a text; other clients do not.
    """

    def __init__(self, queries: _Queries, *, takes_args: bool) -> None:
        self._queries = queries
        self.parameters = (_QUERY, _ARGS if takes_args else replace(_ARGS, named=True))

    def bind(self, row: pa.RecordBatch | None) -> Arguments:
        """Both ways to give arguments, whichever of the functions is meant."""
        if row is not None and row.num_columns > 1:
            return super(_OfQuery, type(self)(self._queries, takes_args=True)).bind(row)
        return super(_OfQuery, type(self)(self._queries, takes_args=False)).bind(row)


class _Sql(_OfQuery):
    name = "sql"
    comment = "Run a query in Spark's SQL on the cluster"

    def schema(self, ctx: CallContext, arguments: Arguments | None) -> pa.Schema:
        if arguments is None:
            return pa.schema([pa.field("result", pa.string())])
        query, refusals = self._queries.run(ctx, arguments)
        with refusals:
            return self._queries.spark_sql.columns(ctx, query)

    def scan(self, ctx: CallContext, arguments: Arguments, request: ScanRequest) -> Scan:
        query, refusals = self._queries.run(ctx, arguments)
        with refusals:
            columns = self._queries.spark_sql.columns(ctx, query)
        return self._queries.spark_sql.scan(ctx, query, columns)


class _Explain(_OfQuery):
    name = "explain"
    comment = "How Spark would run a query"

    def schema(self, ctx: CallContext, arguments: Arguments | None) -> pa.Schema:
        return _EXPLAINED

    def scan(self, ctx: CallContext, arguments: Arguments, request: ScanRequest) -> Scan:
        query, refusals = self._queries.run(ctx, arguments)
        with refusals:
            text = self._queries.spark_sql.explain(ctx, query)
        return scan_arrow(pa.Table.from_pylist([{"plan": text}], _EXPLAINED), request)


class _Jobs(Table):
    """What Spark does at the moment, on tables that the caller may all know of. Queries are told to who asked them."""

    name = "jobs"
    comment = "What Spark does at the moment"

    def __init__(self, jobs: Callable[[CallContext], Sequence[Job]]) -> None:
        self._jobs = jobs

    @property
    def schema(self) -> pa.Schema:
        return _JOBS

    def scan(self, ctx: CallContext, request: ScanRequest) -> Scan:
        rows = [
            {
                "id": job.id,
                "owner": job.owner or None,
                "purpose": job.purpose,
                "query": job.query if job.owner == ctx.identity.subject else None,
                "tables": [".".join(table) for table in job.tables],
                "since": job.began,
                "progress": job.progress,
            }
            for job in self._jobs(ctx)
        ]
        return scan_arrow(pa.Table.from_pylist(rows, _JOBS), request)


class _Cancel(ScalarFunction):
    name = "cancel"
    comment = "End a job: one's own, or any that the caller may end"
    parameters = (Parameter("id", pa.string()),)
    returns = pa.string()
    stability = Stability.VOLATILE

    def __init__(self, end: Callable[[CallContext, str], None]) -> None:
        self._end = end

    def call(self, ctx: CallContext, arguments: pa.RecordBatch) -> pa.Array:
        ids = arguments.column(0).to_pylist()
        for job_id in ids:
            if job_id is not None:
                self._end(ctx, job_id)
        return pa.array(ids, pa.string())


class _CreateView(ScalarFunction):
    name = "create_view"
    comment = "Make a view of a query in Spark's SQL"
    parameters = (Parameter("name", pa.string()), Parameter("query", pa.string()))
    returns = pa.string()
    stability = Stability.VOLATILE

    def __init__(self, queries: _Queries, creatable: Place) -> None:
        self._queries = queries
        self._creatable = creatable

    def call(self, ctx: CallContext, arguments: pa.RecordBatch) -> pa.Array:
        return pa.array([self._create(ctx, **row) for row in arguments.to_pylist()], pa.string())

    def _create(self, ctx: CallContext, name: str | None, query: str | None) -> str:
        schema, view = self._creatable(ctx, name or "")
        checked, refusals = self._queries.run(ctx, Arguments({"query": pa.scalar(query, pa.string())}))
        with refusals:
            self._queries.spark_sql.create_view(ctx, schema, view, checked)
        return f"{schema}.{view}"


class _DropView(ScalarFunction):
    name = "drop_view"
    comment = "Drop a view"
    parameters = (Parameter("name", pa.string()),)
    returns = pa.string()
    stability = Stability.VOLATILE

    def __init__(self, spark_sql: SparkSql, droppable: Place) -> None:
        self._spark_sql = spark_sql
        self._droppable = droppable

    def call(self, ctx: CallContext, arguments: pa.RecordBatch) -> pa.Array:
        return pa.array([self._drop(ctx, name or "") for name in arguments.column(0).to_pylist()], pa.string())

    def _drop(self, ctx: CallContext, name: str) -> str:
        schema, view = self._droppable(ctx, name)
        self._spark_sql.drop_view(ctx, schema, view)
        return f"{schema}.{view}"


class SparkSchema(Schema):
    name = SPARK_SCHEMA
    comment = "Queries in Spark's SQL, run on the cluster"

    def __init__(
        self,
        spark_sql: SparkSql,
        *,
        may_use: MayUse,
        readable: Readable,
        creatable: Place,
        droppable: Place,
        jobs: Callable[[CallContext], Sequence[Job]],
        end: Callable[[CallContext, str], None],
    ) -> None:
        """``may_use`` raises for callers who may not run queries, ``readable`` where one may not read a whole table.

        ``creatable`` and ``droppable`` say which view is meant by a name, and raise for callers who may not.
        """
        queries = _Queries(spark_sql, may_use, readable)
        self._tables: tuple[Table, ...] = (_Jobs(jobs),)
        self._functions: tuple[Function, ...] = (
            *(function(queries, takes_args=takes) for function in (_Sql, _Explain) for takes in (False, True)),
            _Cancel(end),
            _CreateView(queries, creatable),
            _DropView(spark_sql, droppable),
        )

    def tables(self, ctx: CallContext) -> Iterable[Table]:
        return self._tables

    def functions(self, ctx: CallContext) -> Iterable[Function]:
        return self._functions
