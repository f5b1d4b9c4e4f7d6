"""A catalog in memory: small, transactional, gone with the process. For examples, tests, and as the specification.

catalog = MemoryCatalog("lake")
users = catalog.create_table("main.users", pa.schema([("id", pa.int64())]))
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import Function
from sparkport.catalog.model import Catalog, CatalogVersion, Schema
from sparkport.catalog.table import DMLOptions, Table, find_row_id_column
from sparkport.errors import AlreadyExists, InvalidArgument, SchemaNotFound, TableNotFound
from sparkport.memory.store import Store, View
from sparkport.memory.table import MemoryTable
from sparkport.transactions.manager import Transactions, TransactionSettings

__all__ = ["MemoryCatalog", "MemorySchema"]

RESERVED_COLUMNS = frozenset(
    {"rowid", "_row_id", "_file", "_pos", "_spec_id", "_partition", "_deleted", "_last_updated_sequence_number"}
)


class MemorySchema(Schema):
    def __init__(self, name: str, *, comment: str | None = None, tags: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.comment = comment
        self.tags = dict(tags or {})
        self.is_default = name == "main"
        self._items: dict[str, Table | Function] = {}

    def tables(self, ctx: CallContext) -> Iterable[Table]:
        return [item for item in self._items.values() if isinstance(item, Table)]

    def functions(self, ctx: CallContext) -> Iterable[Function]:
        return [item for item in self._items.values() if isinstance(item, Function)]

    def table(self, ctx: CallContext, name: str) -> Table | None:
        item = self._items.get(name.casefold())
        return item if isinstance(item, Table) else None


class MemoryCatalog(Catalog):
    """Begins with one schema, ``main``. Methods that change it may be called while it is served."""

    def __init__(
        self,
        name: str = "lake",
        *,
        settings: TransactionSettings | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._store = Store(clock=clock)
        self._manager: Transactions[View] = Transactions(self._store, settings, clock=lambda: clock().timestamp())
        self.transactions = self._manager
        self._schemas: dict[str, MemorySchema] = {"main": MemorySchema("main")}
        self._version = 1

    def schemas(self, ctx: CallContext) -> Iterable[Schema]:
        return list(self._schemas.values())

    def schema(self, ctx: CallContext, name: str) -> Schema | None:
        return self._schemas.get(name.casefold())

    def version(self, ctx: CallContext) -> CatalogVersion:
        return CatalogVersion(self._version)

    def create_schema(
        self, name: str, *, comment: str | None = None, tags: Mapping[str, str] | None = None
    ) -> MemorySchema:
        with self._lock:
            if name.casefold() in self._schemas:
                raise AlreadyExists(f"schema '{name}' already exists")
            schema = self._schemas[name.casefold()] = MemorySchema(name, comment=comment, tags=tags)
            self._version += 1
            return schema

    def create_table(
        self, name: str, columns: pa.Schema, *, rows: pa.Table | None = None, comment: str | None = None
    ) -> MemoryTable:
        """A table by ``schema.name``, with rows in it if they are given: those are its version 1."""
        schema_name, _, table_name = name.rpartition(".")
        _check_columns(columns)
        table = MemoryTable(table_name, columns, store=self._store, transactions=self._manager, comment=comment)
        if rows is not None:
            table.insert(CallContext(), pa.RecordBatchReader.from_batches(columns, rows.to_batches()), DMLOptions())
        self._add(schema_name or "main", table)
        return table

    def add(self, schema: str, item: Table | Function) -> None:
        """A table or function of another kind, next to the memory tables."""
        self._add(schema, item)

    def drop_table(self, name: str) -> None:
        schema_name, _, table_name = name.rpartition(".")
        with self._lock:
            schema = self._schemas.get((schema_name or "main").casefold())
            if schema is None:
                raise SchemaNotFound(schema_name)
            if schema._items.pop(table_name.casefold(), None) is None:
                raise TableNotFound(schema.name, table_name)
            self._version += 1

    def _add(self, schema_name: str, item: Table | Function) -> None:
        with self._lock:
            schema = self._schemas.get(schema_name.casefold())
            if schema is None:
                raise SchemaNotFound(schema_name)
            if item.name.casefold() in schema._items:
                raise AlreadyExists(f"'{schema.name}.{item.name}' already exists")
            schema._items[item.name.casefold()] = item
            self._version += 1


def _check_columns(columns: pa.Schema) -> None:
    names = [name.casefold() for name in columns.names]
    for name in columns.names:
        if name.casefold() in RESERVED_COLUMNS:
            raise InvalidArgument(f"column name '{name}' is reserved")
        if names.count(name.casefold()) > 1:
            raise InvalidArgument(f"column '{name}' is given twice")
    if find_row_id_column(columns) is not None:
        raise InvalidArgument("a memory table has row ids of its own: give no row-id column")
