"""The schema ``spark`` of a catalog, by the rights that the server gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkport.auth.model import Operation, Resource
from sparkport.catalog.context import CallContext
from sparkport.catalog.model import Catalog, Schema
from sparkport.catalog.names import require_name
from sparkport.catalog.spark_sql import SparkSql, SparkView
from sparkport.errors import CatalogNotFound, FailedPrecondition, InvalidArgument, PermissionDenied
from sparkport.handlers.jobs import end_job
from sparkport.policies.guard import GuardedTable
from sparkport.protocol.targets import Kind, Target
from sparkport.sparksql.functions import SPARK_SCHEMA, SparkSchema

if TYPE_CHECKING:
    from sparkport.handlers.directory import Directory

__all__ = ["spark_schema"]


def spark_schema(directory: Directory, catalog: Catalog, spark_sql: SparkSql) -> Schema:
    rights = _Rights(directory, catalog)
    return SparkSchema(
        spark_sql,
        may_use=rights.may_use,
        readable=rights.readable,
        creatable=rights.creatable,
        droppable=rights.droppable,
        jobs=lambda ctx: directory.jobs(ctx, catalog),
        end=lambda ctx, job_id: end_job(directory, ctx, catalog, job_id),
    )


class _Rights:
    def __init__(self, directory: Directory, catalog: Catalog) -> None:
        self._directory = directory
        self._catalog = catalog

    def may_use(self, ctx: CallContext) -> None:
        self._directory.require(ctx, Operation.SPARK_SQL, Resource(self._catalog.name, SPARK_SCHEMA, "sql"))

    def readable(self, ctx: CallContext, schema: str, name: str) -> bool:
        target = Target(self._catalog.name, schema, Kind.TABLE, name)
        found = self._directory.table(ctx, target, Operation.READ)
        if isinstance(found.table, GuardedTable):
            raise PermissionDenied(
                f"'{ctx.identity.subject}' sees only a part of '{schema}.{name}', and Spark reads whole tables: "
                "query it in DuckDB"
            )
        return found.is_view

    def creatable(self, ctx: CallContext, place: str) -> tuple[str, str]:
        """Where a view of this name goes, if the caller may make one there."""
        schema_name, name = self._parts(place)
        require_name(name, "view")
        schema = self._directory.schema(ctx, self._catalog, schema_name, Operation.CREATE, name)
        if self._directory.is_builtin(self._catalog, schema):
            raise PermissionDenied(f"schema '{schema.name}' is the server's own")
        self._directory.require(ctx, Operation.CREATE, Resource(self._catalog.name, schema.name, name))
        if schema.table(ctx, name) is not None:
            raise FailedPrecondition(f"'{schema.name}.{name}' is there already: drop it first")
        return schema.name, name

    def droppable(self, ctx: CallContext, place: str) -> tuple[str, str]:
        """The view of this name, if the caller may drop it."""
        schema, name = self._parts(place)
        found = self._directory.table(ctx, Target(self._catalog.name, schema, Kind.TABLE, name), Operation.DROP)
        if not isinstance(found.schema.table(ctx, found.table.name), SparkView):
            raise InvalidArgument(f"'{found.schema.name}.{found.table.name}' is a table, and not a view")
        return found.schema.name, found.table.name

    def _parts(self, place: str) -> tuple[str, str]:
        parts = place.split(".")
        if len(parts) > 3 or not all(parts):
            raise InvalidArgument(f"'{place}' is no name of a view: it is written schema.view")
        if len(parts) == 3 and parts[0].casefold() != self._catalog.name.casefold():
            raise CatalogNotFound(f"catalog '{parts[0]}' is not the one that is asked: '{self._catalog.name}'")
        return parts[-2] if len(parts) > 1 else "", parts[-1]
