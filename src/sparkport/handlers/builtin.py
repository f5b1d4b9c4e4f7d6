"""The schemas that the server adds to every catalog it serves, such as ``tx``: what SQL in DuckDB has no words for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparkport.auth.model import Operation, Resource
from sparkport.catalog.context import CallContext
from sparkport.catalog.dropped import DroppedTable, RestoringCatalog
from sparkport.catalog.journal import Journal
from sparkport.catalog.model import Catalog, Schema
from sparkport.catalog.names import split_name
from sparkport.catalog.table import Table
from sparkport.catalog.transaction import TransactionManager
from sparkport.errors import InvalidArgument, PermissionDenied
from sparkport.handlers.spark_schema import spark_schema
from sparkport.handlers.upserts import Upserts
from sparkport.history.functions import HISTORY_SCHEMA, HistorySchema
from sparkport.policies.guard import GuardedTable
from sparkport.protocol.targets import Kind, Target
from sparkport.sparksql.functions import SPARK_SCHEMA
from sparkport.transactions.functions import TX_SCHEMA, TransactionSchema
from sparkport.transactions.journal import JournalPart, MayUse
from sparkport.upserts.functions import ROWS_SCHEMA, RowsSchema

if TYPE_CHECKING:
    from sparkport.handlers.directory import Directory

__all__ = ["BuiltinSchemas", "RESERVED_SCHEMAS"]

logger = logging.getLogger(__name__)

RESERVED_SCHEMAS = frozenset({TX_SCHEMA, HISTORY_SCHEMA, ROWS_SCHEMA, SPARK_SCHEMA})
"""No schema may be created by these names."""


class BuiltinSchemas:
    """Those of one catalog. A schema of the catalog's own that has the name of one of them hides it."""

    def __init__(self, directory: Directory, catalog: Catalog) -> None:
        self._directory = directory
        self._catalog = catalog
        self.upserts = Upserts(directory, catalog)
        self._by_name = {schema.name: schema for schema in self._made() if not self._is_hidden(schema.name)}

    def __iter__(self) -> Iterator[Schema]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Schema | None:
        return self._by_name.get(name.casefold())

    def _made(self) -> Iterator[Schema]:
        if self._catalog.transactions is not None:
            yield self._transactions(self._catalog.transactions)
            yield RowsSchema(self.upserts.open)
        if self._catalog.keeps_history:
            yield self._history()
        if self._catalog.spark_sql is not None:
            yield spark_schema(self._directory, self._catalog, self._catalog.spark_sql)

    def _is_hidden(self, name: str) -> bool:
        if self._catalog.schema(CallContext(), name) is None:
            return False
        if name == TX_SCHEMA:
            raise InvalidArgument(f"catalog '{self._catalog.name}' has a schema '{TX_SCHEMA}', a reserved name")
        logger.warning(
            "catalog '%s' has a schema '%s' of its own, which hides the server's: rename it: "
            "sparkport schema rename %s NEW",
            self._catalog.name,
            name,
            name,
        )
        return True

    def _history(self) -> Schema:
        catalog = self._catalog
        if not isinstance(catalog, RestoringCatalog):
            return HistorySchema(self._told_of, self._alterable)

        def dropped(ctx: CallContext) -> Iterator[DroppedTable]:
            for table in catalog.dropped_tables(ctx):
                if self._directory.sees(ctx, catalog, table.schema, table.name):
                    yield table

        def restore(ctx: CallContext, name: str) -> str:
            target = self._target(name)
            schema = self._directory.schema(ctx, catalog, target.schema, Operation.CREATE, target.name)
            place = Resource(catalog.name, schema.name, target.name)
            for operation in (Operation.CREATE, Operation.READ):
                self._directory.require(ctx, operation, place)
            if self._directory.authorizer.policy(ctx.identity, place) is not None:
                raise PermissionDenied(f"'{ctx.identity.subject}' sees only a part of '{place}' and may not restore it")
            catalog.restore_table(ctx, schema.name, target.name)
            return f"{schema.name}.{target.name}"

        return HistorySchema(self._told_of, self._alterable, dropped=dropped, restore=restore)

    def _target(self, name: str) -> Target:
        """A table of this catalog by the text that a function was given."""
        parts = split_name(name)
        if len(parts) == 3 and parts[0].casefold() == self._catalog.name.casefold():
            parts = parts[1:]
        if len(parts) > 2:
            raise InvalidArgument(f"'{name}' is no table of catalog '{self._catalog.name}': write 'schema.table'")
        return Target(self._catalog.name, "" if len(parts) == 1 else parts[0], Kind.TABLE, parts[-1])

    def _told_of(self, ctx: CallContext, name: str) -> Table:
        """A table whose history the caller may know: one that it may read the whole of."""
        table = self._directory.table(ctx, self._target(name), Operation.READ).table
        if isinstance(table, GuardedTable):
            raise PermissionDenied(
                f"'{ctx.identity.subject}' sees only a part of '{name}': its history tells of all rows and columns"
            )
        return table

    def _alterable(self, ctx: CallContext, name: str) -> Table:
        return self._directory.table(ctx, self._target(name), Operation.ALTER).table

    def _transactions(self, manager: TransactionManager) -> Schema:
        directory, catalog = self._directory, self._catalog

        def may_use(ctx: CallContext) -> None:
            directory.require(ctx, Operation.TRANSACTION, Resource(catalog.name))

        return TransactionSchema(
            manager,
            may_use=may_use,
            sees=lambda ctx, schema, name: directory.sees(ctx, catalog, schema, name),
            sees_whole=lambda ctx, schema, name: directory.sees_whole(ctx, catalog, schema, name),
            commit=lambda transaction_id: directory.operations.commit(manager, transaction_id),
            ended=lambda transaction_id: directory.operations.ended(manager, transaction_id),
            journal=None if catalog.journal is None else self._journal_part(catalog.journal, may_use),
        )

    def _journal_part(self, journal: Journal, may_use: MayUse) -> JournalPart:
        directory, catalog = self._directory, self._catalog

        def alterable(ctx: CallContext, schema: str, name: str) -> tuple[str, str]:
            table = directory.table(ctx, Target(catalog.name, schema, Kind.TABLE, name), Operation.ALTER)
            return table.schema.name, table.table.name

        def sees(ctx: CallContext, schema: str, name: str) -> bool:
            return directory.sees_whole(ctx, catalog, schema, name)  # how many rows wait is told of all of them

        return JournalPart(journal, catalog=catalog.name, may_use=may_use, alterable=alterable, sees=sees)
