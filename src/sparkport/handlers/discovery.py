"""What there is: listings, schemas, versions and statistics. Nothing here reads a row."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from sparkport.auth.model import Operation
from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import Function, ScalarFunction, TableFunction, TableInOutFunction
from sparkport.catalog.model import Catalog, CatalogVersion, Schema, find_by_name
from sparkport.catalog.scan import AsOf
from sparkport.catalog.table import ColumnStatistics, StatisticsTable, Table, VersionedTable
from sparkport.errors import Cancelled, InvalidArgument, Unsupported
from sparkport.handlers.directory import Directory, ResolvedTable
from sparkport.protocol.contents import SchemaListing, catalog_listing, flight_info, table_schema, without_statistics
from sparkport.protocol.flight import FlightDescriptor, FlightEndpoint, FlightInfo
from sparkport.protocol.maps import MapReader, pack
from sparkport.protocol.statistics import encode_statistics
from sparkport.protocol.targets import Kind, Target, Ticket, as_of, decode_arguments, decode_schema

__all__ = ["Discovery", "readable_schema"]

_log = logging.getLogger(__name__)

_LISTINGS_KEPT = 64

_KINDS: dict[Kind, tuple[type[Function], ...]] = {
    Kind.SCALAR_FUNCTION: (ScalarFunction,),
    Kind.TABLE_FUNCTION: (TableFunction, TableInOutFunction),
}


def readable_schema(ctx: CallContext, table: Table, at: AsOf | None) -> pa.Schema:
    """The schema that a scan of ``table`` streams, as of a version if one is asked for."""
    if at is None:
        return table_schema(table)
    if not isinstance(table, VersionedTable):
        raise Unsupported(f"table '{table.name}' keeps no versions: AT is not possible")
    # DuckDB asks for statistics without saying of which version, and loses or garbles rows that they do not hold for.
    return without_statistics(table_schema(table, table.schema_at(ctx, at)))


def _result_schema(ctx: CallContext, function: Function) -> pa.Schema:
    if isinstance(function, ScalarFunction):
        return pa.schema([pa.field("result", function.returns)])
    if isinstance(function, TableInOutFunction):
        return function.schema(ctx, None, None)
    if isinstance(function, TableFunction):
        return function.schema(ctx, None)
    raise Unsupported(f"function '{function.name}' is of no kind that can be listed")


def _statistics(ctx: CallContext, table: Table, column: str) -> ColumnStatistics | None:
    """What is known of a column. DuckDB asks while it plans: whatever goes wrong here must not fail the query."""
    if not isinstance(table, StatisticsTable):
        return None
    try:
        return table.column_statistics(ctx, column)
    except Cancelled:
        raise
    except Exception:
        _log.warning("no statistics for column '%s' of table '%s'", column, table.name, exc_info=True)
        return None


def _kind(function: Function) -> Kind:
    return Kind.SCALAR_FUNCTION if isinstance(function, ScalarFunction) else Kind.TABLE_FUNCTION


class Discovery:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._listings: OrderedDict[tuple[object, ...], tuple[Catalog, bytes]] = OrderedDict()

    # Actions

    def list_schemas(self, ctx: CallContext, body: MapReader) -> bytes:
        """The listing, made once for each version of the catalog and each caller that sees something else.

        A transaction has a view of its own: the version is that of now, and its tables may be of long ago.
        """
        asked = body.optional_text("catalog_name") or ""
        catalog = self._directory.catalog(ctx, asked)
        self._directory.listing(ctx, catalog)
        version = self._version(ctx, catalog)
        if ctx.transaction_id is not None:
            return catalog_listing(self._listing(ctx, catalog, asked), version)
        key = (id(catalog), asked, version, ctx.identity, self._directory.authorizer.generation)
        with self._lock:
            kept = self._listings.get(key)
            if kept is not None:
                self._listings.move_to_end(key)
                return kept[1]
        listing = catalog_listing(self._listing(ctx, catalog, asked), version)
        if self._version(ctx, catalog) != version:
            return listing  # it may show what came in between, under a version that can come back
        with self._lock:
            # The catalog is kept with it: while it is there no other can have its id.
            self._listings[key] = (catalog, listing)
            while len(self._listings) > _LISTINGS_KEPT:
                self._listings.popitem(last=False)
        return listing

    def catalog_version(self, ctx: CallContext, body: MapReader) -> bytes:
        version = self._version(ctx, self._directory.catalog(ctx, body.optional_text("catalog_name") or ""))
        return pack({"catalog_version": version.version, "is_fixed": version.fixed})

    def flight_info(self, ctx: CallContext, body: MapReader) -> bytes:
        target = Target.from_descriptor(FlightDescriptor.decode(body.raw("descriptor")))
        at = as_of(body.optional_text("at_unit"), body.optional_text("at_value"))
        return self._table_info(ctx, target, at).encode()

    def table_function_flight_info(self, ctx: CallContext, body: MapReader) -> bytes:
        target = Target.from_descriptor(FlightDescriptor.decode(body.raw("descriptor")))
        parameters = body.optional_raw("parameters")
        input_schema = body.optional_raw("table_input_schema")
        function = self._directory.function(ctx, target, *_KINDS[Kind.TABLE_FUNCTION])
        arguments = function.bind(decode_arguments(parameters))
        if isinstance(function, TableInOutFunction):
            if input_schema is None:
                raise InvalidArgument("body lacks the key 'table_input_schema'")
            schema = function.schema(ctx, arguments, decode_schema(input_schema, what="table_input_schema"))
            return flight_info(function, target, schema).encode()
        if not isinstance(function, TableFunction):
            raise InvalidArgument(f"function '{function.name}' returns no table")
        endpoint = FlightEndpoint(Ticket(target=target, arguments=parameters).encode())
        return flight_info(function, target, function.schema(ctx, arguments), endpoints=[endpoint]).encode()

    def column_statistics(self, ctx: CallContext, body: MapReader) -> bytes:
        target = Target.from_descriptor(FlightDescriptor.decode(body.raw("flight_descriptor")))
        table = self._directory.table(ctx, target, Operation.READ).table
        column = find_by_name(table.schema, body.text("column_name"))
        if column is None:
            raise InvalidArgument(f"table '{table.name}' has no column '{body.text('column_name')}'")
        return encode_statistics(column.type, _statistics(ctx, table, column.name))

    # RPCs

    def get_flight_info(self, ctx: CallContext, descriptor: FlightDescriptor) -> FlightInfo:
        return self._table_info(ctx, Target.from_descriptor(descriptor), None)

    def get_schema(self, ctx: CallContext, descriptor: FlightDescriptor) -> pa.Schema:
        return self._table_info(ctx, Target.from_descriptor(descriptor), None).schema

    def list_flights(self, ctx: CallContext, *, catalog: str | None, schema: str | None) -> Iterator[FlightInfo]:
        """Tables and functions, of all catalogs and schemas unless the caller narrows it down."""
        if catalog is not None:
            catalogs = [self._directory.catalog(ctx, catalog)]
        else:
            catalogs = [self._directory.catalog(ctx, "")] if ctx.catalog else self._directory.catalogs(ctx)
        for listed in catalogs:
            name = listed.name if catalog is None else catalog
            if schema is not None:
                yield from self._schema_infos(ctx, listed, self._directory.schema(ctx, listed, schema), name, scan=True)
                continue
            for item in self._directory.schemas(ctx, listed):
                yield from self._schema_infos(ctx, listed, item, name, scan=True)

    # Parts of them

    def _version(self, ctx: CallContext, catalog: Catalog) -> CatalogVersion:
        """Rules that were read again may show other columns: clients have to list anew then, too."""
        version = catalog.version(ctx)
        return replace(version, version=version.version + self._directory.authorizer.generation)

    def _listing(self, ctx: CallContext, catalog: Catalog, asked: str) -> Iterator[SchemaListing]:
        for schema in self._directory.schemas(ctx, catalog):
            infos = list(self._schema_infos(ctx, catalog, schema, asked, scan=False))
            yield SchemaListing(schema.name, schema.comment, schema.tags, schema.is_default, infos)

    def _schema_infos(
        self, ctx: CallContext, catalog: Catalog, schema: Schema, asked: str, *, scan: bool
    ) -> Iterator[FlightInfo]:
        for table in self._directory.tables(ctx, catalog, schema):
            target = Target(asked, schema.name, Kind.TABLE, table.name)
            endpoints = [FlightEndpoint(Ticket(target=target).encode())] if scan else []
            # Row counts are left out of the cached listing: it changes with names and schemas only.
            rows = table.row_count(ctx) if scan and self._directory.may_read(ctx, catalog, schema, table) else None
            yield flight_info(table, target, table_schema(table), endpoints=endpoints, total_records=rows)
        for function in self._directory.functions(ctx, catalog, schema):
            target = Target(asked, schema.name, _kind(function), function.name)
            yield flight_info(function, target, _result_schema(ctx, function))

    def _table_info(self, ctx: CallContext, target: Target, at: AsOf | None) -> FlightInfo:
        if target.kind is not Kind.TABLE:
            function = self._directory.function(ctx, target, *_KINDS[target.kind])
            return flight_info(function, target, _result_schema(ctx, function))
        resolved = self._directory.table(ctx, target, Operation.READ)
        named = _named(target, resolved)
        schema = readable_schema(ctx, resolved.table, at)
        endpoint = FlightEndpoint(Ticket(target=named, at=at).encode())
        rows = resolved.table.row_count(ctx) if at is None else None
        return flight_info(resolved.table, named, schema, endpoints=[endpoint], total_records=rows)


def _named(target: Target, resolved: ResolvedTable) -> Target:
    """The target with the names that the catalog uses, but the catalog's as the caller wrote it."""
    return Target(target.catalog, resolved.schema.name, Kind.TABLE, resolved.table.name)
