"""A catalog in memory: small, transactional, gone with the process. For examples, tests, and as the specification.

catalog = MemoryCatalog("lake")
users = catalog.create_table("public.users", pa.schema([("id", pa.int64())]))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from sparkport.catalog.constraints import require_checks
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableSchema, OnConflict, TableDefinition, check_new_names
from sparkport.catalog.defaults import require_default
from sparkport.catalog.dropped import DroppedTable, RestoringCatalog
from sparkport.catalog.functions import Function
from sparkport.catalog.keys import new_keys
from sparkport.catalog.model import CatalogVersion, Schema
from sparkport.catalog.names import require_name, require_schema_name, require_schema_texts
from sparkport.catalog.table import DMLOptions, Table
from sparkport.errors import AlreadyExists, FailedPrecondition, NotFound, SchemaNotFound, TableNotFound, Unsupported
from sparkport.memory.data import Author, TableData
from sparkport.memory.names import Binding, Names
from sparkport.memory.store import Store, View
from sparkport.memory.table import MemoryTable
from sparkport.transactions.manager import Transactions, TransactionSettings

__all__ = ["MemoryCatalog", "MemorySchema"]

Item = TableData | Table | Function
"""A table of this engine, which gives each call its own view, or something else that is handed out as it is."""


class MemorySchema(MutableSchema):
    def __init__(
        self,
        name: str,
        *,
        store: Store,
        transactions: Transactions[View],
        comment: str | None = None,
        tags: Mapping[str, str] | None = None,
        is_default: bool = False,
    ) -> None:
        self.name = name
        self.comment = comment
        self.tags = dict(tags or {})
        self.is_default = is_default
        self._store = store
        self._transactions = transactions
        self._names: Names[Item] = Names()
        self._dropped = False

    def tables(self, ctx: CallContext) -> Iterable[Table]:
        bindings = self._names.at(seen_commit(ctx, self._store, self._transactions))
        return [table for binding in bindings if (table := self._table(ctx, binding)) is not None]

    def functions(self, ctx: CallContext) -> Iterable[Function]:
        bindings = self._names.at(seen_commit(ctx, self._store, self._transactions))
        return [binding.item for binding in bindings if isinstance(binding.item, Function)]

    def table(self, ctx: CallContext, name: str) -> Table | None:
        binding = self._names.find(name, seen_commit(ctx, self._store, self._transactions), ctx)
        return None if binding is None else self._table(ctx, binding)

    def create_table(
        self, ctx: CallContext, definition: TableDefinition, on_conflict: OnConflict = OnConflict.ERROR
    ) -> Table:
        data = self._new(definition)
        with self._store.lock:
            taken = self._names.current(definition.name)
            if taken is not None and isinstance(taken.item, Table | TableData) and on_conflict is OnConflict.IGNORE:
                return self._current(taken)
            self._bind(data, definition.name, Author.from_context(ctx), replace=on_conflict is OnConflict.REPLACE)
            return self._open(data, definition.name)

    def drop_table(self, ctx: CallContext, name: str) -> None:
        with self._store.lock:
            self._require_kept()
            binding = self._found(name)
            with self._store.changing_names() as commit:
                _end(binding, commit, self._store.now(), ctx)

    def rename_table(self, ctx: CallContext, name: str, new_name: str) -> Table:
        require_name(new_name, "table")
        with self._store.lock:
            self._require_kept()
            binding = self._found(name)
            taken = self._names.current(new_name)
            if taken is not None and taken is not binding:
                raise AlreadyExists(f"'{self.name}.{taken.name}' already exists")
            if not isinstance(binding.item, TableData):
                raise Unsupported(f"table '{self.name}.{binding.name}' cannot be renamed")
            with self._store.changing_names() as commit:
                binding.until = commit
                binding.item.name = new_name
                self._names.bind(new_name, binding.item, commit, Author.from_context(ctx))
            return self._open(binding.item, new_name)

    def dropped_tables(self) -> Iterator[DroppedTable]:
        for binding, data in self._dropped_ones():
            if data.dropped_at is not None:
                yield DroppedTable(self.name, binding.name, data.dropped_at, data.dropped_by)

    def _dropped_ones(self) -> Iterator[tuple[Binding[Item], TableData]]:
        """Not under names that they had before, and not as they were dropped and restored before."""
        for binding in self._names.ended():
            if isinstance(binding.item, TableData) and binding.until == binding.item.dropped_in:
                yield binding, binding.item

    def restore_table(self, ctx: CallContext, name: str) -> None:
        with self._store.lock:
            self._require_kept()
            taken = self._names.current(name)
            if taken is not None:
                raise AlreadyExists(f"table '{self.name}.{taken.name}' already exists: rename or drop it first")
            dropped = [
                (binding.name, data)
                for binding, data in self._dropped_ones()
                if binding.name.casefold() == name.casefold()
            ]
            if not dropped:
                raise NotFound(f"no table '{self.name}.{name}' was dropped that could be restored")
            exact, data = max(dropped, key=lambda each: (each[1].dropped_at is not None, each[1].dropped_at))
            data.dropped, data.dropped_in, data.dropped_at = False, None, None
            with self._store.changing_names() as commit:
                self._names.bind(exact, data, commit, Author.from_context(ctx))

    def new_table(self, definition: TableDefinition, rows: pa.Table | None) -> MemoryTable:
        """A table that is seen only when its rows are in it, and follows the newest state for whoever holds it."""
        data = self._new(definition)
        table = self._open(data, definition.name)
        if rows is not None:
            reader = pa.RecordBatchReader.from_batches(definition.columns, rows.to_batches())
            table.insert(CallContext(), reader, DMLOptions())
        self._bind(data, definition.name, Author())
        return table

    def add(self, item: Table | Function) -> None:
        self._bind(item, item.name, Author())

    def renamed(self, name: str, *, is_default: bool) -> MemorySchema:
        """The same tables under another name. Through this one they can be read as they were, and no longer changed."""
        schema = MemorySchema(
            name,
            store=self._store,
            transactions=self._transactions,
            comment=self.comment,
            tags=self.tags,
            is_default=is_default,
        )
        schema._names = self._names
        self._dropped = True
        return schema

    def is_empty(self) -> bool:
        return next(self._names.at(self._store.commit), None) is None

    def close(self, commit: int) -> None:
        """Drop all that is in it, in a commit that is under way."""
        self._dropped = True
        for binding in self._names.at(commit):
            _end(binding, commit, self._store.now())

    def _new(self, definition: TableDefinition) -> TableData:
        check_new_names(definition.columns)
        for column in definition.columns:
            require_default(column)
        require_checks(definition.checks, definition.columns)
        return self._store.create(
            definition.name,
            definition.columns,
            comment=definition.comment,
            tags=definition.tags,
            checks=definition.checks,
            keys=definition.keys,
        )

    def _bind(self, item: Item, name: str, author: Author, *, replace: bool = False) -> None:
        with self._store.lock:
            self._require_kept()
            taken = self._names.current(name)
            if taken is not None and not (replace and isinstance(taken.item, Table | TableData)):
                raise AlreadyExists(f"table '{self.name}.{taken.name}' already exists")
            with self._store.changing_names() as commit:
                if taken is not None:
                    _end(taken, commit, self._store.now())
                self._names.bind(name, item, commit, author)

    def _found(self, name: str) -> Binding[Item]:
        binding = self._names.current(name)
        if binding is None or isinstance(binding.item, Function):
            raise TableNotFound(self.name, name)
        return binding

    def _require_kept(self) -> None:
        if self._dropped:
            raise SchemaNotFound(self.name)

    def _current(self, binding: Binding[Item]) -> Table:
        table = self._table(CallContext(), binding)
        if table is None:
            raise TableNotFound(self.name, binding.name)
        return table

    def _table(self, ctx: CallContext, binding: Binding[Item]) -> Table | None:
        """The table as the call sees it."""
        if isinstance(binding.item, TableData):
            return self._open(binding.item, binding.name).seen_by(ctx)
        return binding.item if isinstance(binding.item, Table) else None

    def _open(self, data: TableData, name: str) -> MemoryTable:
        return MemoryTable(data, name=name, store=self._store, transactions=self._transactions)


class MemoryCatalog(RestoringCatalog):
    """Begins with one schema, the default one. Methods that change it may be called while it is served."""

    keeps_history = True

    def __init__(
        self,
        name: str = "lake",
        *,
        default_schema: str = "public",
        settings: TransactionSettings | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = name
        self._default_schema = default_schema
        self._store = Store(clock=clock)
        self.transactions: Transactions[View] = Transactions(self._store, settings, clock=lambda: clock().timestamp())
        self._names: Names[MemorySchema] = Names()
        self.new_schema(default_schema)

    def schemas(self, ctx: CallContext) -> Iterable[Schema]:
        return [binding.item for binding in self._names.at(seen_commit(ctx, self._store, self.transactions))]

    def schema(self, ctx: CallContext, name: str) -> Schema | None:
        binding = self._names.find(name, seen_commit(ctx, self._store, self.transactions), ctx)
        return None if binding is None else binding.item

    def version(self, ctx: CallContext) -> CatalogVersion:
        return CatalogVersion(self._store.listed_at(seen_commit(ctx, self._store, self.transactions)))

    def dropped_tables(self, ctx: CallContext) -> Sequence[DroppedTable]:
        schemas = [binding.item for binding in self._names.at(self._store.commit)]
        found = [table for schema in schemas for table in schema.dropped_tables()]
        return sorted(found, key=lambda table: table.dropped, reverse=True)

    def restore_table(self, ctx: CallContext, schema: str, name: str) -> None:
        binding = self._names.current(schema)
        if binding is None:
            raise SchemaNotFound(schema)
        binding.item.restore_table(ctx, name)

    def create_schema(
        self, ctx: CallContext, name: str, *, comment: str | None = None, tags: Mapping[str, str] | None = None
    ) -> MemorySchema:
        require_schema_name(name)
        require_schema_texts(comment, tags)
        schema = MemorySchema(
            name,
            store=self._store,
            transactions=self.transactions,
            comment=comment,
            tags=tags,
            is_default=name.casefold() == self._default_schema.casefold(),
        )
        with self._store.lock:
            if self._names.current(name) is not None:
                raise AlreadyExists(f"schema '{name}' already exists")
            with self._store.changing_names() as commit:
                self._names.bind(name, schema, commit, Author.from_context(ctx))
        return schema

    def drop_schema(self, ctx: CallContext, name: str) -> None:
        with self._store.lock:
            binding = self._names.current(name)
            if binding is None:
                raise SchemaNotFound(name)
            with self._store.changing_names() as commit:
                binding.until = commit
                binding.item.close(commit)

    def rename_schema(self, ctx: CallContext, name: str, new_name: str) -> MemorySchema:
        require_schema_name(new_name)
        with self._store.lock:
            binding = self._names.current(name)
            if binding is None:
                raise SchemaNotFound(name)
            if binding.item.is_default:
                raise FailedPrecondition(f"schema '{binding.name}' is the default one: it keeps its name")
            taken = self._names.current(new_name)
            if taken is not None and taken is not binding and not taken.item.is_empty():
                raise AlreadyExists(f"schema '{taken.name}' already exists, and is not empty")
            with self._store.changing_names() as commit:
                for ending in {binding, *(() if taken is None else (taken,))}:
                    ending.until = commit
                is_default = taken is not None and taken.item.is_default
                schema = binding.item.renamed(new_name, is_default=is_default)
                self._names.bind(new_name, schema, commit, Author.from_context(ctx))
        return schema

    # For programs that set a catalog up

    def new_schema(
        self, name: str, *, comment: str | None = None, tags: Mapping[str, str] | None = None
    ) -> MemorySchema:
        return self.create_schema(CallContext(), name, comment=comment, tags=tags)

    def create_table(
        self,
        name: str,
        columns: pa.Schema,
        *,
        rows: pa.Table | None = None,
        comment: str | None = None,
        checks: tuple[str, ...] = (),
        primary_key: Sequence[str] = (),
        unique: Sequence[Sequence[str]] = (),
    ) -> MemoryTable:
        """A table by ``schema.name``, with rows in it if they are given: those are its version 1."""
        schema, table_name = self._place(name)
        keys, columns = new_keys(columns, primary=[primary_key] if primary_key else [], unique=unique)
        definition = TableDefinition(name=table_name, columns=columns, checks=checks, keys=keys, comment=comment)
        return schema.new_table(definition, rows)

    def add(self, schema: str, item: Table | Function) -> None:
        """A table or function of another kind, next to the memory tables."""
        self._place(f"{schema}.")[0].add(item)

    def drop_table(self, name: str) -> None:
        schema, table_name = self._place(name)
        schema.drop_table(CallContext(), table_name)

    def _place(self, name: str) -> tuple[MemorySchema, str]:
        schema_name, _, table_name = name.rpartition(".")
        binding = self._names.current(schema_name or self._default_schema)
        if binding is None:
            raise SchemaNotFound(schema_name)
        return binding.item, table_name


def seen_commit(ctx: CallContext, store: Store, transactions: Transactions[View]) -> int:
    """The commit whose names a call sees: that of its transaction's beginning, or now."""
    with transactions.use(ctx) as transaction:
        return store.commit if transaction is None else transaction.state.commit


def _end(binding: Binding[Item], commit: int, now: datetime, ctx: CallContext | None = None) -> None:
    binding.until = commit
    if isinstance(binding.item, TableData):
        binding.item.dropped = True
        binding.item.dropped_in = commit
        binding.item.dropped_at = now
        binding.item.dropped_by = None if ctx is None else ctx.identity.subject
