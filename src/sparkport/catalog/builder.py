"""Catalogs with fixed contents, said in one expression: what most users start with.

catalog = (
    CatalogBuilder("shop")
    .schema("public")
    .table("users", arrow_table)
    .scan_table("events", schema, scan_events)
    .scalar_function("double", lambda ctx, args: pc.multiply(args["x"], 2), [Parameter("x", pa.int64())], pa.int64())
    .build()
)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import (
    Arguments,
    Function,
    InOutCall,
    Parameter,
    ScalarFunction,
    Stability,
    TableFunction,
    TableInOutFunction,
)
from sparkport.catalog.model import Catalog, CatalogVersion, Schema
from sparkport.catalog.scan import Scannable, ScanRequest
from sparkport.catalog.static import ArrowTable, ScanFunction, ScanTable
from sparkport.catalog.table import Table
from sparkport.catalog.transaction import TransactionManager
from sparkport.errors import InvalidArgument

__all__ = ["CatalogBuilder", "SchemaBuilder", "StaticCatalog", "StaticSchema"]


@dataclass(frozen=True)
class _Scalar(ScalarFunction):
    name: str
    function: Callable[[CallContext, pa.RecordBatch], pa.Array]
    returns: pa.DataType
    parameters: Sequence[Parameter] = ()
    stability: Stability = Stability.CONSISTENT
    comment: str | None = None

    def call(self, ctx: CallContext, arguments: pa.RecordBatch) -> pa.Array:
        return self.function(ctx, arguments)


@dataclass(frozen=True)
class _TableFunction(TableFunction):
    name: str
    function: Callable[[CallContext, Arguments, ScanRequest], Scannable]
    columns: pa.Schema | Callable[[Arguments | None], pa.Schema]
    parameters: Sequence[Parameter] = ()
    comment: str | None = None

    def schema(self, ctx: CallContext, arguments: Arguments | None) -> pa.Schema:
        return self.columns if isinstance(self.columns, pa.Schema) else self.columns(arguments)

    def scan(self, ctx: CallContext, arguments: Arguments, request: ScanRequest) -> Scannable:
        return self.function(ctx, arguments, request)


@dataclass(slots=True)
class _MapCall(InOutCall):
    function: Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]

    def push(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        return self.function(batch)


@dataclass(frozen=True)
class _InOutFunction(TableInOutFunction):
    name: str
    function: Callable[
        [CallContext, Arguments, pa.Schema], InOutCall | Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]
    ]
    columns: pa.Schema | Callable[[Arguments | None, pa.Schema | None], pa.Schema]
    parameters: Sequence[Parameter] = ()
    comment: str | None = None

    def schema(self, ctx: CallContext, arguments: Arguments | None, input_schema: pa.Schema | None) -> pa.Schema:
        return self.columns if isinstance(self.columns, pa.Schema) else self.columns(arguments, input_schema)

    def open(self, ctx: CallContext, arguments: Arguments, input_schema: pa.Schema) -> InOutCall:
        call = self.function(ctx, arguments, input_schema)
        return call if isinstance(call, InOutCall) else _MapCall(call)


@dataclass(frozen=True)
class StaticSchema(Schema):
    name: str
    items: tuple[Table | Function, ...]
    comment: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    is_default: bool = False

    def tables(self, ctx: CallContext) -> Iterable[Table]:
        return [item for item in self.items if isinstance(item, Table)]

    def functions(self, ctx: CallContext) -> Iterable[Function]:
        return [item for item in self.items if isinstance(item, Function)]


@dataclass(frozen=True)
class StaticCatalog(Catalog):
    name: str
    contents: tuple[StaticSchema, ...]
    fixed_version: CatalogVersion
    transactions: TransactionManager | None = None

    def schemas(self, ctx: CallContext) -> Iterable[Schema]:
        return self.contents

    def version(self, ctx: CallContext) -> CatalogVersion:
        return self.fixed_version


class SchemaBuilder:
    """Adds to one schema; ``schema`` and ``build`` lead back to the catalog."""

    def __init__(
        self, parent: CatalogBuilder, name: str, comment: str | None, tags: Mapping[str, str], default: bool
    ) -> None:
        self._parent = parent
        self._name = name
        self._comment = comment
        self._tags = dict(tags)
        self._default = default
        self._items: list[Table | Function] = []

    def add(self, *items: Table | Function) -> SchemaBuilder:
        """Tables and functions of your own classes."""
        self._items.extend(items)
        return self

    def table(self, name: str, rows: pa.Table | Table, *, comment: str | None = None) -> SchemaBuilder:
        """An Arrow table, served from memory; or a table of your own under its own name."""
        if isinstance(rows, Table):
            if rows.name != name:
                raise InvalidArgument(f"table is named '{rows.name}', not '{name}'")
            return self.add(rows)
        return self.add(ArrowTable(name, rows, comment=comment))

    def scan_table(
        self,
        name: str,
        schema: pa.Schema,
        scan: ScanFunction,
        *,
        comment: str | None = None,
        row_count: int | None = None,
    ) -> SchemaBuilder:
        """A table whose rows come from ``scan(ctx, request)``, which gets the columns and the filter asked for."""
        return self.add(ScanTable(name, schema, scan, comment=comment, rows=row_count))

    def scalar_function(
        self,
        name: str,
        function: Callable[[CallContext, pa.RecordBatch], pa.Array],
        parameters: Sequence[Parameter],
        returns: pa.DataType,
        *,
        stability: Stability = Stability.CONSISTENT,
        comment: str | None = None,
    ) -> SchemaBuilder:
        return self.add(_Scalar(name, function, returns, tuple(parameters), stability, comment))

    def table_function(
        self,
        name: str,
        function: Callable[[CallContext, Arguments, ScanRequest], Scannable],
        parameters: Sequence[Parameter],
        schema: pa.Schema | Callable[[Arguments | None], pa.Schema],
        *,
        comment: str | None = None,
    ) -> SchemaBuilder:
        return self.add(_TableFunction(name, function, schema, tuple(parameters), comment))

    def in_out_function(
        self,
        name: str,
        function: Callable[
            [CallContext, Arguments, pa.Schema], InOutCall | Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]
        ],
        parameters: Sequence[Parameter],
        schema: pa.Schema | Callable[[Arguments | None, pa.Schema | None], pa.Schema],
        *,
        comment: str | None = None,
    ) -> SchemaBuilder:
        """``function`` opens a call: it returns an ``InOutCall``, or a plain function from a batch to batches."""
        if sum(parameter.table for parameter in parameters) != 1:
            raise InvalidArgument(f"in-out function '{name}' needs exactly one table parameter")
        return self.add(_InOutFunction(name, function, schema, tuple(parameters), comment))

    def schema(
        self, name: str, *, comment: str | None = None, tags: Mapping[str, str] | None = None, default: bool = False
    ) -> SchemaBuilder:
        return self._parent.schema(name, comment=comment, tags=tags, default=default)

    def build(self) -> StaticCatalog:
        return self._parent.build()

    def _finish(self, *, default: bool) -> StaticSchema:
        return StaticSchema(self._name, tuple(self._items), self._comment, self._tags, self._default or default)


class CatalogBuilder:
    """``fixed`` promises clients that the listing never changes, so that they ask for it once."""

    def __init__(
        self, name: str = "lake", *, transactions: TransactionManager | None = None, fixed: bool = False
    ) -> None:
        self._name = name
        self._transactions = transactions
        self._fixed = fixed
        self._schemas: dict[str, SchemaBuilder] = {}

    def schema(
        self, name: str, *, comment: str | None = None, tags: Mapping[str, str] | None = None, default: bool = False
    ) -> SchemaBuilder:
        """Begin a schema, or go on with one that was begun."""
        builder = self._schemas.get(name.casefold())
        if builder is None:
            builder = self._schemas[name.casefold()] = SchemaBuilder(self, name, comment, tags or {}, default)
        return builder

    def build(self) -> StaticCatalog:
        """The first schema is the default unless another one says so."""
        builders = list(self._schemas.values())
        chosen = any(builder._default for builder in builders)
        schemas = tuple(builder._finish(default=not chosen and index == 0) for index, builder in enumerate(builders))
        for schema in schemas:
            _check_names(schema)
        return StaticCatalog(
            self._name, schemas, CatalogVersion(_fingerprint(schemas), self._fixed), self._transactions
        )


def _check_names(schema: StaticSchema) -> None:
    seen: set[tuple[bool, str]] = set()
    for item in schema.items:
        key = (isinstance(item, Table), item.name.casefold())
        if key in seen:
            raise InvalidArgument(f"schema '{schema.name}' already has a '{item.name}'")
        seen.add(key)


def _fingerprint(schemas: Iterable[StaticSchema]) -> int:
    """Equal contents, equal version: a restart with the same contents keeps clients' caches good."""
    digest = hashlib.sha256()
    ctx = CallContext()
    for schema in schemas:
        digest.update(repr((schema.name, schema.comment, sorted(schema.tags.items()), schema.is_default)).encode())
        for table in schema.tables(ctx):
            digest.update(repr(("table", table.name, table.comment)).encode() + table.schema.serialize().to_pybytes())
        for function in schema.functions(ctx):
            digest.update(repr((type(function).__name__, function.name, function.comment)).encode())
            digest.update(function.input_schema().serialize().to_pybytes())
    return int.from_bytes(digest.digest()[:6], "big")
