"""Finding what a call names, and whether the caller may know of it: the one place that asks the authorizer.

What a caller may not list does not exist for that caller; what may be listed but not used is PERMISSION_DENIED.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from sparkport.auth.model import AllowAll, Authorizer, Operation, Resource
from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import Function
from sparkport.catalog.jobs import Job
from sparkport.catalog.model import Catalog, Schema, find_by_name
from sparkport.catalog.repeats import Recent
from sparkport.catalog.spark_sql import SparkView
from sparkport.catalog.statement import Change, ChangeableTable
from sparkport.catalog.table import Table
from sparkport.errors import (
    AlreadyExists,
    CatalogNotFound,
    Conflict,
    FunctionNotFound,
    PermissionDenied,
    SchemaNotFound,
    TableNotFound,
    Unsupported,
)
from sparkport.handlers.builtin import BuiltinSchemas
from sparkport.handlers.operations import Operations
from sparkport.handlers.upserts import Upserts
from sparkport.handlers.user_agents import is_duckdb
from sparkport.policies.discretion import Discretion
from sparkport.policies.guard import GuardedTable, guarded
from sparkport.policies.view import view_of
from sparkport.protocol.targets import Target

__all__ = ["Directory", "HIDDEN_SCHEMA", "ResolvedTable", "warn_of_hidden_schema"]

logger = logging.getLogger(__name__)

HIDDEN_SCHEMA = "main"
"""A schema that DuckDB's client cannot see, because it takes the name to mean that none was given. Others see it."""

T = TypeVar("T")
F = TypeVar("F", bound=Function)


_CHANGES = {
    Change.INSERT: Operation.INSERT,
    Change.UPDATE: Operation.UPDATE,
    Change.DELETE: Operation.DELETE,
}


@dataclass(frozen=True, slots=True)
class ResolvedTable:
    """A table with the schema and the catalog that it is in; ``is_view``: a query of Spark's gives its rows."""

    catalog: Catalog
    schema: Schema
    table: Table
    is_view: bool = False


def warn_of_hidden_schema(catalog: str, schema: str) -> None:
    if schema.casefold() == HIDDEN_SCHEMA:
        logger.warning(
            "catalog '%s': DuckDB's client cannot see the schema '%s'; rename it: sparkport schema rename %s NEW",
            catalog,
            schema,
            schema,
        )


def _warn_of_hidden_schemas(catalog: Catalog) -> None:
    """A catalog that cannot be listed yet is served all the same."""
    try:
        names = [schema.name for schema in catalog.schemas(CallContext())]
    except Exception:
        logger.debug("the schemas of catalog '%s' cannot be listed", catalog.name, exc_info=True)
        return
    for name in names:
        warn_of_hidden_schema(catalog.name, name)


def _session(ctx: CallContext, catalog: Catalog) -> tuple[str | None, str]:
    return ctx.session, catalog.name


def _within(resource: Resource) -> str:
    """What a resource is called inside its catalog."""
    return ".".join(part for part in (resource.schema, resource.name) if part is not None)


class Directory:
    """The catalogs of a server, added and removed while it runs."""

    def __init__(
        self,
        catalogs: Iterable[Catalog] = (),
        authorizer: Authorizer | None = None,
        operations: Operations | None = None,
    ) -> None:
        self.authorizer = authorizer or AllowAll()
        self.operations = operations or Operations()
        self._lock = threading.Lock()
        self._catalogs: dict[str, Catalog] = {}
        self._builtin: dict[str, BuiltinSchemas] = {}
        self._listed_under: Recent[tuple[str | None, str], int] = Recent()
        for catalog in catalogs:
            self.add(catalog)

    def add(self, catalog: Catalog) -> None:
        builtin = BuiltinSchemas(self, catalog)
        with self._lock:
            if catalog.name.casefold() in self._catalogs:
                raise AlreadyExists(f"catalog '{catalog.name}' is already served")
            self._builtin = {**self._builtin, catalog.name.casefold(): builtin}
            self._catalogs = {**self._catalogs, catalog.name.casefold(): catalog}
        _warn_of_hidden_schemas(catalog)

    def remove(self, name: str) -> None:
        """Calls that are under way in it go on; new ones do not find it."""
        with self._lock:
            if name.casefold() not in self._catalogs:
                raise CatalogNotFound(f"catalog '{name}' not found")
            self._catalogs = {key: value for key, value in self._catalogs.items() if key != name.casefold()}

    def all_catalogs(self) -> list[Catalog]:
        """Whoever asks: for the server itself, not for a caller."""
        return list(self._catalogs.values())

    def catalogs(self, ctx: CallContext) -> list[Catalog]:
        return [item for item in self._catalogs.values() if self._allows(ctx, Operation.LIST, Resource(item.name))]

    def catalog(self, ctx: CallContext, name: str) -> Catalog:
        """An empty name means the call's own catalog, and where it has none, the only one there is."""
        visible = self.catalogs(ctx)
        wanted = name or ctx.catalog
        catalog = visible[0] if not wanted and len(visible) == 1 else find_by_name(visible, wanted)
        if catalog is None:
            hidden = self._catalogs.get(wanted.casefold()) if wanted else None
            if hidden is not None or (self._catalogs and not visible):
                ctx.record.asks(Operation.LIST.value, catalog="" if hidden is None else hidden.name, name="")
            known = ", ".join(f"'{item.name}'" for item in visible) or "none"
            raise CatalogNotFound(f"catalog '{wanted}' not found; known catalogs: {known}")
        self.operations.require_joinable(ctx, catalog)
        return catalog

    def schemas(self, ctx: CallContext, catalog: Catalog) -> Iterator[Schema]:
        self.operations.require_joinable(ctx, catalog)
        for schema in itertools.chain(catalog.schemas(ctx), self._builtin_of(catalog)):
            if self._allows(ctx, Operation.LIST, Resource(catalog.name, schema.name)):
                yield schema

    def schema(
        self,
        ctx: CallContext,
        catalog: Catalog,
        name: str,
        operation: Operation = Operation.LIST,
        item: str | None = None,
    ) -> Schema:
        """An empty name means the default schema. ``operation`` is what is wanted of it, or of ``item`` in it."""
        if name:
            schema = self._builtin_of(catalog).get(name) or catalog.schema(ctx, name)
        else:
            schema = next((item for item in catalog.schemas(ctx) if item.is_default), None)
        if schema is None:
            raise SchemaNotFound(name)
        if not self._allows(ctx, Operation.LIST, Resource(catalog.name, schema.name)):
            wanted = Resource(catalog.name, schema.name, item)
            ctx.record.asks(operation.value, catalog=catalog.name, name=_within(wanted))
            raise SchemaNotFound(name)
        return schema

    def tables(self, ctx: CallContext, catalog: Catalog, schema: Schema) -> Iterator[Table]:
        """The tables to list, each as the caller may see it; one that rules do not fit is left out."""
        for table in schema.tables(ctx):
            shown = self._steadily(partial(self._listed, ctx, catalog, schema, table))
            if shown is not None:
                yield shown

    def may_read(self, ctx: CallContext, catalog: Catalog, schema: Schema, table: Table) -> bool:
        """Of a table that is listed: how many rows it has is told to who may read them."""
        return self._allows(ctx, Operation.READ, Resource(catalog.name, schema.name, table.name))

    def functions(self, ctx: CallContext, catalog: Catalog, schema: Schema) -> Iterator[Function]:
        return self._visible(ctx, catalog, schema, schema.functions(ctx))

    def table(self, ctx: CallContext, target: Target, operation: Operation) -> ResolvedTable:
        catalog = self.catalog(ctx, target.catalog)
        schema = self.schema(ctx, catalog, target.schema, operation, target.name)
        table = schema.table(ctx, target.name)
        if table is None:
            raise TableNotFound(schema.name, target.name)
        resource, found = Resource(catalog.name, schema.name, table.name), table

        def permitted() -> Table:
            ctx.record.asks(operation.value, catalog=catalog.name, name=_within(resource))
            if not self._allows(ctx, Operation.LIST, resource):
                raise TableNotFound(schema.name, target.name)
            self.authorizer.require(ctx.identity, operation, resource)
            self._require_listed(ctx, catalog)
            shown = found
            if isinstance(found, SparkView) and operation is Operation.READ:
                shown = found.read_by(ctx.identity.subject, self._read_whole(ctx, catalog, found))
            return self._within_limits(ctx, shown, resource, operation)

        shown = self._steadily(permitted)
        ctx.record.accesses()
        return ResolvedTable(catalog, schema, shown, isinstance(found, SparkView))

    def _read_whole(self, ctx: CallContext, catalog: Catalog, view: SparkView) -> frozenset[tuple[str, str]]:
        """Of what a view reads, all that the caller may read, and not only parts of."""

        def reads(schema: str, name: str) -> bool:
            resource = Resource(catalog.name, schema, name)
            may = self.sees(ctx, catalog, schema, name) and self._allows(ctx, Operation.READ, resource)
            return may and self.authorizer.policy(ctx.identity, resource) is None

        return frozenset(table for table in view.reads(ctx) if reads(*table))

    def as_seen(self, ctx: CallContext, catalog: Catalog, schema: Schema, table: Table) -> Table:
        """A table that the caller has just made or changed, as it may see it."""
        return self._within_limits(ctx, table, Resource(catalog.name, schema.name, table.name), Operation.LIST)

    def require_creatable(self, ctx: CallContext, resource: Resource, columns: pa.Schema) -> None:
        """Refuse a new table of which its maker would not see all columns as they are: rules may not fit it at all."""
        policy = self.authorizer.policy(ctx.identity, resource)
        if policy is None:
            return
        view = view_of(str(resource.name), policy, columns)
        if view.is_empty or not view.schema.equals(columns):
            raise PermissionDenied(
                f"'{ctx.identity.subject}' may not create '{resource}' with these columns: a rule about rows or "
                "columns of a table of this name does not fit them, or hides some of them"
            )

    def changeable(self, ctx: CallContext, target: Target, change: Change, *, returning: bool) -> ResolvedTable:
        """The table of a row change. A caller who wants old rows back reads them, and needs the right to."""
        resolved = self.table(ctx, target, _CHANGES[change])
        if isinstance(resolved.table, GuardedTable) and not isinstance(resolved.table, ChangeableTable):
            raise Unsupported(f"table '{target.name}' cannot be changed by callers who see only a part of it")
        if returning and change is not Change.INSERT:
            self.require(
                ctx, Operation.READ, Resource(resolved.catalog.name, resolved.schema.name, resolved.table.name)
            )
            if isinstance(resolved.table, GuardedTable):
                resolved.table.require(Operation.READ)
        return resolved

    def require_repeat(self, ctx: CallContext, target: Target, change: Change) -> None:
        """Return when the caller may still do what it has done already: the transaction, or the table, may be gone."""
        with suppress(SchemaNotFound, TableNotFound):
            self.table(replace(ctx, transaction_id=None), target, _CHANGES[change])

    @contextmanager
    def changing(
        self, ctx: CallContext, target: Target, change: Change, *, returning: bool
    ) -> Iterator[tuple[CallContext, ResolvedTable]]:
        """The table of a row change, and the call in which to change it.

        What limits look at must be what is changed: without a transaction, others could change a row in between. So
        such a change gets a transaction of its own.
        """
        resolved = self.changeable(ctx, target, change, returning=returning)
        manager = resolved.catalog.transactions
        reads = isinstance(resolved.table, GuardedTable) and change is not Change.INSERT
        if not reads or manager is None or ctx.transaction_id is not None:
            yield ctx, resolved
            return
        with self.operations.new_transaction(ctx, manager) as inner:
            yield inner, self.changeable(inner, target, change, returning=returning)

    def function(self, ctx: CallContext, target: Target, *function_types: type[F]) -> F:
        catalog = self.catalog(ctx, target.catalog)
        schema = self.schema(ctx, catalog, target.schema, Operation.CALL, target.name)
        candidates = (schema.function(ctx, target.name, function_type) for function_type in function_types)
        function = next((item for item in candidates if item is not None), None)
        if function is None:
            raise FunctionNotFound(schema.name, target.name)
        resource = Resource(catalog.name, schema.name, function.name)
        if not self._allows(ctx, Operation.LIST, resource):
            ctx.record.asks(Operation.CALL.value, catalog=catalog.name, name=_within(resource))
            raise FunctionNotFound(schema.name, target.name)
        self.require(ctx, Operation.CALL, resource)
        return function

    def require_action(self, ctx: CallContext, name: str, owner: str | None = None) -> str:
        """The catalog in which a caller may run an action: its owner or, where it has none, the call's."""
        visible = self.catalogs(ctx)
        if owner is None and (ctx.catalog or len(visible) == 1):
            owner = self.catalog(ctx, "").name
        self.require(ctx, Operation.ACTION, Resource(owner or "", None, name))
        for catalog in visible:
            self.operations.require_joinable(ctx, catalog)
        return owner or ""

    def jobs(self, ctx: CallContext, catalog: Catalog) -> list[Job]:
        """The jobs under way on tables that the caller may all know of."""
        running = [] if catalog.jobs is None else catalog.jobs.running()
        return [job for job in running if all(self.sees(ctx, catalog, *table) for table in job.tables)]

    def require_end_of_job(self, ctx: CallContext, catalog: Catalog, job: Job) -> None:
        """Return when the job is the caller's own, or it may alter all its tables and so interrupt work on them."""
        if job.owner and job.owner == ctx.identity.subject:
            return
        self.require(ctx, Operation.ACTION, Resource(catalog.name, None, "end_job"))
        for schema, name in job.tables:
            self.require(ctx, Operation.ALTER, Resource(catalog.name, schema, name))

    def sees(self, ctx: CallContext, catalog: Catalog, schema: str, name: str) -> bool:
        """Whether the caller may know of a table, which need not be there any more."""
        places = (Resource(catalog.name), Resource(catalog.name, schema), Resource(catalog.name, schema, name))
        return all(self._allows(ctx, Operation.LIST, place) for place in places)

    def sees_whole(self, ctx: CallContext, catalog: Catalog, schema: str, name: str) -> bool:
        """Whether the caller may know of a table and of all its rows and columns: then also how many there are."""
        policy = self.authorizer.policy(ctx.identity, Resource(catalog.name, schema, name))
        return policy is None and self.sees(ctx, catalog, schema, name)

    def upserts(self, catalog: Catalog) -> Upserts:
        """Changes by key in a catalog."""
        return self._builtin_of(catalog).upserts

    def is_builtin(self, catalog: Catalog, schema: Schema) -> bool:
        """Whether the server has added the schema to the catalog."""
        return self._builtin_of(catalog).get(schema.name) is schema

    def _builtin_of(self, catalog: Catalog) -> BuiltinSchemas:
        """Also those of a catalog that has just been removed: a call that is under way goes on."""
        return self._builtin.get(catalog.name.casefold()) or BuiltinSchemas(self, catalog)

    def _within_limits(self, ctx: CallContext, table: Table, resource: Resource, operation: Operation) -> Table:
        """The table itself where no rule limits what the caller sees of it, else what keeps to the limits."""
        policy = self.authorizer.policy(ctx.identity, resource)
        if policy is None:
            return table
        if operation is Operation.ALTER:
            raise PermissionDenied(f"'{ctx.identity.subject}' sees only a part of '{resource}' and may not alter it")
        limited = guarded(table, policy)
        limited.require(operation)
        if ctx.transaction_id is not None:
            self.operations.limit(ctx.transaction_id, Discretion(table.name, limited.keys, limited.checks))
        return limited

    def _listed(self, ctx: CallContext, catalog: Catalog, schema: Schema, table: Table) -> Table | None:
        resource = Resource(catalog.name, schema.name, table.name)
        if not self._allows(ctx, Operation.LIST, resource):
            return None
        try:
            return self._within_limits(ctx, table, resource, Operation.LIST)
        except PermissionDenied:
            return None

    def listing(self, ctx: CallContext, catalog: Catalog) -> None:
        """The caller's session is about to be shown the catalog's columns, which it keeps."""
        if ctx.session_id is not None and is_duckdb(ctx):
            generation = self.authorizer.policy_generation
            self._listed_under.put(_session(ctx, catalog), generation, ctx.identity.subject)

    def _require_listed(self, ctx: CallContext, catalog: Catalog) -> None:
        """DuckDB lists columns once, and ends its whole process where it gets others than those.

        Columns that others add or drop are the table's affair; those that rules show or hide are ours.
        """
        known = self._listed_under.get(_session(ctx, catalog))
        if known is not None and known != self.authorizer.policy_generation:
            raise Conflict(
                "the rules about rows and columns have changed since the catalog was attached: DETACH it and ATTACH it "
                "again"
            )

    def _steadily(self, work: Callable[[], T]) -> T:
        """What is asked in several questions is asked of the same rules."""
        while True:
            generation = self.authorizer.generation
            result = work()
            if self.authorizer.generation == generation:
                return result

    def _visible(self, ctx: CallContext, catalog: Catalog, schema: Schema, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            name: str = item.name  # type: ignore[attr-defined]
            if self._allows(ctx, Operation.LIST, Resource(catalog.name, schema.name, name)):
                yield item

    def _allows(self, ctx: CallContext, operation: Operation, resource: Resource) -> bool:
        return self.authorizer.allows(ctx.identity, operation, resource)

    def require(self, ctx: CallContext, operation: Operation, resource: Resource) -> None:
        """Return when the caller may do this and it is on record; else raise."""
        ctx.record.asks(operation.value, catalog=resource.catalog, name=_within(resource))
        self.authorizer.require(ctx.identity, operation, resource)
        ctx.record.accesses()
