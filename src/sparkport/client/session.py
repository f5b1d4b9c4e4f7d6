"""Everything that can be asked of a server. ``Client`` adds the connection's life; a transaction can add its own end.

A session holds no state but its connection, so all methods MAY be called from several threads at once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from sparkport.catalog.row_ids import find_row_id_column
from sparkport.catalog.scan import AsOf
from sparkport.catalog.statement import Change
from sparkport.client.catalog import (
    CatalogVersion,
    FunctionInfo,
    Listing,
    SchemaInfo,
    TableInfo,
    decode_listing,
    table_info,
)
from sparkport.client.connection import Connection
from sparkport.client.errors import translated
from sparkport.client.follow import Follower
from sparkport.client.functions import call_in_out, call_scalar, call_table
from sparkport.client.names import NameLike, parse_name, quote
from sparkport.client.results import ScanResult
from sparkport.client.rows import BatchRows, Input, RowIds, Rows, as_input, as_row_id_input, with_row_ids
from sparkport.client.scan import as_of, open_scan, select
from sparkport.client.writes import KeyedResult, KeyedStatement, Returning, Statement, WriteResult
from sparkport.errors import InvalidArgument, SchemaNotFound
from sparkport.filters.expressions import Expression
from sparkport.filters.predicates import Predicate
from sparkport.protocol.flight import ActionType, FlightInfo
from sparkport.protocol.maps import MapReader, pack
from sparkport.protocol.targets import Kind, Target

__all__ = ["Session"]


class Session:
    """Names are ``table``, ``schema.table`` or ``catalog.schema.table``; tuples hold parts as they are."""

    _in_transaction = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # What there is

    def schemas(self) -> list[SchemaInfo]:
        return list(self._listing().schemas)

    def tables(self, schema: str | None = None) -> list[TableInfo]:
        """All tables, or those of one schema. Row counts are not in the listing: ``describe`` has them."""
        listing = self._listing()
        wanted = _wanted(listing, schema)
        return [table for table in listing.tables if table.schema_name in wanted]

    def functions(self, schema: str | None = None) -> list[FunctionInfo]:
        listing = self._listing()
        wanted = _wanted(listing, schema)
        return [function for function in listing.functions if function.schema_name in wanted]

    def describe(
        self,
        name: NameLike,
        *,
        as_of_version: int | str | None = None,
        as_of_timestamp: dt.datetime | str | None = None,
    ) -> TableInfo:
        """One table, also as it was."""
        return self._describe(self._target(name, Kind.TABLE), as_of(as_of_version, as_of_timestamp))

    def version(self) -> CatalogVersion:
        """The version of the catalog's listing."""
        answer = self._connection.single_action("catalog_version", pack({"catalog_name": self._connection.catalog}))
        with translated(self._connection.location, what="catalog version"):
            body = MapReader.from_msgpack(answer)
            return CatalogVersion(body.integer("catalog_version"), body.flag("is_fixed"))

    # Rows

    def scan(
        self,
        name: NameLike,
        *,
        columns: Sequence[str] | None = None,
        filter: Predicate | Expression | None = None,  # noqa: A002 - the word users expect
        row_id: bool = False,
        as_of_version: int | str | None = None,
        as_of_timestamp: dt.datetime | str | None = None,
    ) -> ScanResult:
        """The rows of a table that the filter keeps, with just these columns, in this order.

        The scan is planned here, so what is wrong with it is raised here; rows are fetched as they are read.
        ``row_id`` adds the row id as the last column. A filter that cannot be applied exactly is ``Unsupported``.
        """
        target = self._target(name, Kind.TABLE)
        at = as_of(as_of_version, as_of_timestamp)
        table = self._describe(target, at)
        selection = select(
            table.wire_schema, columns=columns, condition=filter, row_id=row_id, what=f"table '{table.full_name}'"
        )
        return open_scan(self._connection, target, selection, at=at)

    def insert(self, name: NameLike, rows: Rows, *, returning: Returning = False) -> WriteResult:
        """New rows, streamed. Columns are found by name; those that have a default may be left out."""
        return self._change(name, Change.INSERT, lambda: as_input(rows, lambda: self.describe(name).schema), returning)

    def update(
        self, name: NameLike, rows: Rows, *, row_ids: RowIds | None = None, returning: Returning = False
    ) -> WriteResult:
        """New values for some columns of rows that ``row_ids``, or a ``rowid`` column next to the values, name.

        Ids that are not there are skipped and not counted.
        """

        def given() -> Input:
            values = as_input(rows, lambda: self.describe(name).wire_schema)
            if row_ids is not None:
                return with_row_ids(values, row_ids)
            if find_row_id_column(values.schema) is None:
                raise InvalidArgument(
                    "UPDATE requires rowid column: give row_ids, or rows from a scan with row_id=True"
                )
            return values

        return self._change(name, Change.UPDATE, given, returning)

    def delete(self, name: NameLike, row_ids: RowIds, *, returning: Returning = False) -> WriteResult:
        """The rows with these ids. Those that are not there are skipped; with ``returning`` they are a Conflict."""
        return self._change(name, Change.DELETE, lambda: as_row_id_input(row_ids), returning)

    def upsert(
        self, name: NameLike, rows: Rows, *, key: Sequence[str] | None = None, returning: bool = False
    ) -> KeyedResult:
        """Update the rows whose key is there, insert the others; in one statement, by the primary key or by ``key``.

        ``rows`` may have some of the columns only, those of the key among them. Others are kept, and of new rows are
        their default or NULL.
        """
        return self._change_by_key(name, "upsert", rows, key, returning)

    def insert_missing(
        self, name: NameLike, rows: Rows, *, key: Sequence[str] | None = None, returning: bool = False
    ) -> KeyedResult:
        """Insert the rows whose key is not there."""
        return self._change_by_key(name, "insert_missing", rows, key, returning)

    def delete_matching(
        self, name: NameLike, rows: Rows, *, key: Sequence[str] | None = None, returning: bool = False
    ) -> KeyedResult:
        """Delete the rows of the table whose key is one of those in ``rows``."""
        return self._change_by_key(name, "delete_matching", rows, key, returning)

    # Functions

    def call(self, name: NameLike, *args: Any, rows: int | None = None) -> pa.ChunkedArray:
        """A scalar function, one value for each row.

        The arguments are one table or batch with a column per parameter, or a column (an array, a list) or a single
        value each. ``rows`` is for functions without arguments.
        """
        return call_scalar(self._connection, self._target(name, Kind.SCALAR_FUNCTION), args, rows=rows)

    def call_table(self, name: NameLike, *args: Any, **named: Any) -> ScanResult:
        """A table function."""
        return call_table(self._connection, self._target(name, Kind.TABLE_FUNCTION), args, named)

    def call_in_out(self, name: NameLike, args: Sequence[Any], rows: BatchRows, **named: Any) -> ScanResult:
        """A function from rows to rows. Its input is taken batch by batch, as the result is read."""
        return call_in_out(self._connection, self._target(name, Kind.TABLE_FUNCTION), args, named, rows)

    # History

    def snapshots(self, name: NameLike) -> pa.Table:
        """The versions of a table that can be read: when, by whom, and how many rows each has changed."""
        return self._history("snapshots", name).read_all()

    def changes(
        self, name: NameLike, first: int | str | dt.datetime, last: int | str | dt.datetime | None = None
    ) -> ScanResult:
        """Each change of a row in each version after ``first``, up to and with ``last``, or until now."""
        return self._history("changes", name, first, last)

    def follow(
        self,
        name: NameLike,
        from_version: int | None = None,
        *,
        table_id: str | None = None,
        poll_seconds: float = 1.0,
    ) -> Follower:
        """The changes of each version after ``from_version``, or after the one of now, as they are committed.

        Each version comes exactly once. A server that is away is waited for. ``table_id``, which each item has, makes
        sure that it is the same table still.
        """

        def head() -> tuple[str, int | None]:
            (row,) = self._history("head", name).read_all().to_pylist()
            return row["table_id"], row["version"]

        def changes(first: int, last: int, of: str) -> ScanResult:
            return self._history("changes", name, first, last, table_id=of)

        return Follower(head, changes, from_version=from_version, table_id=table_id, poll_seconds=poll_seconds)

    def _history(self, function: str, name: NameLike, *args: Any, **named: Any) -> ScanResult:
        target = self._target(name, Kind.TABLE)
        table = ".".join(quote(part) for part in (target.schema, target.name) if part)
        place = Target(target.catalog, "history", Kind.TABLE_FUNCTION, function)
        return call_table(self._connection, place, (table, *args), named)

    # Actions

    def actions(self) -> list[ActionType]:
        return self._connection.list_actions()

    def action(self, name: str, body: bytes = b"") -> list[bytes]:
        """Any action of the server by its name, the bodies as they are. Never tried twice."""
        return self._connection.action(name, body)

    def _change(self, name: NameLike, change: Change, rows: Callable[[], Input], returning: Returning) -> WriteResult:
        if isinstance(returning, str):
            raise InvalidArgument("returning must be True, False or a list of names, not one text")
        statement = Statement(
            connection=self._connection,
            target=self._target(name, Kind.TABLE),
            operation=change.value,
            rows=rows(),
            returning=returning,
            in_transaction=self._in_transaction,
        )
        return statement.run()

    def _change_by_key(
        self, name: NameLike, operation: str, rows: Rows, key: Sequence[str] | None, returning: bool
    ) -> KeyedResult:
        if isinstance(key, str):
            raise InvalidArgument("key must be a list of names, not one text")
        statement = KeyedStatement(
            connection=self._connection,
            target=self._target(name, Kind.TABLE),
            operation=operation,
            rows=as_input(rows, lambda: self.describe(name).schema),
            returning=returning,
            in_transaction=self._in_transaction,
            key=key,
        )
        return statement.run()

    def _target(self, name: NameLike, kind: Kind) -> Target:
        return parse_name(name).target(kind, self._connection.catalog)

    def _describe(self, target: Target, at: AsOf | None) -> TableInfo:
        body = {
            "descriptor": target.descriptor().encode(),
            "at_unit": "" if at is None else at.unit.value.upper(),
            "at_value": "" if at is None else at.value,
        }
        answer = self._connection.single_action("flight_info", pack(body))
        with translated(self._connection.location, what="description of a table"):
            return table_info(FlightInfo.decode(answer))

    def _listing(self) -> Listing:
        answer = self._connection.single_action("list_schemas", pack({"catalog_name": self._connection.catalog}))
        with translated(self._connection.location, what="catalog listing"):
            return decode_listing(answer)


def _wanted(listing: Listing, schema: str | None) -> set[str]:
    """The schemas asked for, case aside. One that is not there is an error, not an empty list."""
    names = {item.name for item in listing.schemas if schema is None or item.name.casefold() == schema.casefold()}
    if schema is not None and not names:
        raise SchemaNotFound(schema)
    return names
