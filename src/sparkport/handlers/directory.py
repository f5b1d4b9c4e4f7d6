"""Finding what a call names, and whether the caller may know of it: the one place that asks the authorizer.

What a caller may not list does not exist for that caller; what may be listed but not used is PERMISSION_DENIED.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from sparkport.auth.model import AllowAll, Authorizer, Operation, Resource
from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import Function
from sparkport.catalog.model import Catalog, Schema, find_by_name
from sparkport.catalog.statement import Change
from sparkport.catalog.table import Table
from sparkport.errors import (
    AlreadyExists,
    CatalogNotFound,
    FunctionNotFound,
    InvalidArgument,
    SchemaNotFound,
    TableNotFound,
)
from sparkport.handlers.operations import Operations
from sparkport.protocol.targets import Target
from sparkport.transactions.functions import TX_SCHEMA, TransactionSchema

__all__ = ["Directory", "Found", "HIDDEN_SCHEMA", "warn_of_hidden_schema"]

logger = logging.getLogger(__name__)

HIDDEN_SCHEMA = "main"
"""A schema that is served to other clients, but that DuckDB's cannot see: to it the name means that none was given."""

T = TypeVar("T")
F = TypeVar("F", bound=Function)


_CHANGES = {
    Change.INSERT: Operation.INSERT,
    Change.UPDATE: Operation.UPDATE,
    Change.DELETE: Operation.DELETE,
}


@dataclass(frozen=True, slots=True)
class Found:
    """A table where it lives."""

    catalog: Catalog
    schema: Schema
    table: Table


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
        for catalog in catalogs:
            self.add(catalog)

    def add(self, catalog: Catalog) -> None:
        if catalog.transactions is not None and catalog.schema(CallContext(), TX_SCHEMA) is not None:
            raise InvalidArgument(f"catalog '{catalog.name}' has a schema '{TX_SCHEMA}', a reserved name")
        with self._lock:
            if catalog.name.casefold() in self._catalogs:
                raise AlreadyExists(f"catalog '{catalog.name}' is already served")
            self._catalogs = {**self._catalogs, catalog.name.casefold(): catalog}
        _warn_of_hidden_schemas(catalog)

    def remove(self, name: str) -> None:
        """Calls that are under way in it go on; new ones do not find it."""
        with self._lock:
            if name.casefold() not in self._catalogs:
                raise CatalogNotFound(f"catalog '{name}' not found")
            self._catalogs = {key: value for key, value in self._catalogs.items() if key != name.casefold()}

    def catalogs(self, ctx: CallContext) -> list[Catalog]:
        return [item for item in self._catalogs.values() if self._allows(ctx, Operation.LIST, Resource(item.name))]

    def catalog(self, ctx: CallContext, name: str) -> Catalog:
        """An empty name means the call's own catalog, and where it has none, the only one there is."""
        visible = self.catalogs(ctx)
        wanted = name or ctx.catalog
        found = visible[0] if not wanted and len(visible) == 1 else find_by_name(visible, wanted)
        if found is None:
            known = ", ".join(f"'{item.name}'" for item in visible) or "none"
            raise CatalogNotFound(f"catalog '{wanted}' not found; known catalogs: {known}")
        self.operations.require_joinable(ctx, found)
        return found

    def schemas(self, ctx: CallContext, catalog: Catalog) -> Iterator[Schema]:
        self.operations.require_joinable(ctx, catalog)
        for schema in itertools.chain(catalog.schemas(ctx), self._tx_schemas(catalog)):
            if self._allows(ctx, Operation.LIST, Resource(catalog.name, schema.name)):
                yield schema

    def schema(self, ctx: CallContext, catalog: Catalog, name: str) -> Schema:
        """An empty name means the default schema."""
        if name.casefold() == TX_SCHEMA and catalog.transactions is not None:
            schema: Schema | None = self._tx_schemas(catalog)[0]
        elif name:
            schema = catalog.schema(ctx, name)
        else:
            schema = next((item for item in catalog.schemas(ctx) if item.is_default), None)
        if schema is None or not self._allows(ctx, Operation.LIST, Resource(catalog.name, schema.name)):
            raise SchemaNotFound(name)
        return schema

    def tables(self, ctx: CallContext, catalog: Catalog, schema: Schema) -> Iterator[Table]:
        return self._visible(ctx, catalog, schema, schema.tables(ctx))

    def functions(self, ctx: CallContext, catalog: Catalog, schema: Schema) -> Iterator[Function]:
        return self._visible(ctx, catalog, schema, schema.functions(ctx))

    def table(self, ctx: CallContext, target: Target, operation: Operation) -> Found:
        catalog = self.catalog(ctx, target.catalog)
        schema = self.schema(ctx, catalog, target.schema)
        table = schema.table(ctx, target.name)
        if table is None or not self._allows(ctx, Operation.LIST, Resource(catalog.name, schema.name, table.name)):
            raise TableNotFound(schema.name, target.name)
        self._require(ctx, operation, Resource(catalog.name, schema.name, table.name))
        return Found(catalog, schema, table)

    def changeable(self, ctx: CallContext, target: Target, change: Change, *, returning: bool) -> Found:
        """The table of a row change. Whoever wants old rows back reads them, and may undo the change afterwards."""
        found = self.table(ctx, target, _CHANGES[change])
        if returning and change is not Change.INSERT:
            self._require(ctx, Operation.READ, Resource(found.catalog.name, found.schema.name, found.table.name))
        return found

    def function(self, ctx: CallContext, target: Target, *kinds: type[F]) -> F:
        catalog = self.catalog(ctx, target.catalog)
        schema = self.schema(ctx, catalog, target.schema)
        found = (schema.function(ctx, target.name, kind) for kind in kinds)
        function = next((item for item in found if item is not None), None)
        if function is None or not self._allows(
            ctx, Operation.LIST, Resource(catalog.name, schema.name, function.name)
        ):
            raise FunctionNotFound(schema.name, target.name)
        self._require(ctx, Operation.CALL, Resource(catalog.name, schema.name, function.name))
        return function

    def require_action(self, ctx: CallContext, name: str, owner: str | None = None) -> str:
        """The catalog in which a caller may run an action: its owner or, where it has none, the call's."""
        visible = self.catalogs(ctx)
        if owner is None and (ctx.catalog or len(visible) == 1):
            owner = self.catalog(ctx, "").name
        self._require(ctx, Operation.ACTION, Resource(owner or "", None, name))
        for catalog in visible:
            self.operations.require_joinable(ctx, catalog)
        return owner or ""

    def _tx_schemas(self, catalog: Catalog) -> list[Schema]:
        manager = catalog.transactions
        if manager is None:
            return []
        return [
            TransactionSchema(
                manager,
                may_use=lambda ctx: self._require(ctx, Operation.TRANSACTION, Resource(catalog.name)),
                ended=lambda transaction_id: self.operations.ended(manager, transaction_id),
            )
        ]

    def _visible(self, ctx: CallContext, catalog: Catalog, schema: Schema, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            name: str = item.name  # type: ignore[attr-defined]
            if self._allows(ctx, Operation.LIST, Resource(catalog.name, schema.name, name)):
                yield item

    def _allows(self, ctx: CallContext, operation: Operation, resource: Resource) -> bool:
        return self.authorizer.allows(ctx.identity, operation, resource)

    def _require(self, ctx: CallContext, operation: Operation, resource: Resource) -> None:
        self.authorizer.require(ctx.identity, operation, resource)
