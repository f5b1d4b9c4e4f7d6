"""The schema ``rows`` of every catalog with transactions: changes by key, as functions that take the rows.

    SELECT * FROM lake.rows.upsert('public.users', (SELECT …));
    SELECT * FROM lake.rows.upsert_by('public.users', ['email'], (SELECT …));

DuckDB's client takes neither named parameters beside a table, nor two functions of one name that take one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import Arguments, Function, InOutCall, Parameter, TableInOutFunction
from sparkport.catalog.model import Schema
from sparkport.catalog.names import split_name
from sparkport.catalog.table import Table
from sparkport.errors import InvalidArgument
from sparkport.upserts.model import KeyedChange, KeyedRequest

__all__ = ["KeyedStatement", "ROWS_SCHEMA", "RowsSchema"]

ROWS_SCHEMA = "rows"

_BY = "_by"
_TEXTS = {
    KeyedChange.UPSERT: "Update the rows whose key is there, insert the others",
    KeyedChange.INSERT_MISSING: "Insert the rows whose key is not there",
    KeyedChange.DELETE_MATCHING: "Delete the rows whose key is in the input",
}


class KeyedStatement(Protocol):
    """One statement under way. One thread drives it; always ``close`` it."""

    @property
    def output(self) -> pa.Schema: ...

    def push(self, batch: pa.RecordBatch) -> int:
        """How many bytes the rows take in ``finish``."""

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Make it happen; then the rows of the input, with what became of each."""

    def close(self) -> None: ...


Open = Callable[[CallContext, KeyedRequest, pa.Schema], KeyedStatement]


class RowsSchema(Schema):
    name = ROWS_SCHEMA
    comment = "Changes of rows by key"

    def __init__(self, opened: Open) -> None:
        """``opened`` begins a statement on rows of a schema, or raises for what the caller may not do."""
        self._functions = tuple(
            _KeyedFunction(change, with_key, opened) for change in KeyedChange for with_key in (False, True)
        )

    def tables(self, ctx: CallContext) -> Iterable[Table]:
        return ()

    def functions(self, ctx: CallContext) -> Iterable[Function]:
        return self._functions


class _KeyedFunction(TableInOutFunction):
    def __init__(self, change: KeyedChange, with_key: bool, opened: Open) -> None:
        self.name = change.value + (_BY if with_key else "")
        self.comment = _TEXTS[change] + ("; by the columns named" if with_key else "; by the primary key")
        key = [Parameter("key", pa.list_(pa.string()))] if with_key else []
        self.parameters = [Parameter("table_name", pa.string()), *key, Parameter("rows", table=True)]
        self._change = change
        self._with_key = with_key
        self._opened = opened

    def schema(self, ctx: CallContext, arguments: Arguments | None, input_schema: pa.Schema | None) -> pa.Schema:
        if arguments is None or input_schema is None:
            return pa.schema([pa.field("merge_action", pa.string())])
        statement = self._opened(ctx, self._request(arguments), input_schema)
        try:
            return statement.output
        finally:
            statement.close()

    def open(self, ctx: CallContext, arguments: Arguments, input_schema: pa.Schema) -> InOutCall:
        return _Call(self._opened(ctx, self._request(arguments), input_schema))

    def _request(self, arguments: Arguments) -> KeyedRequest:
        name = arguments.get("table_name")
        if not name:
            raise InvalidArgument(f"function '{self.name}' needs the name of a table")
        *schema, table = split_name(name)
        if len(schema) > 1:
            raise InvalidArgument(f"'{name}' names a table by more than its schema: write 'schema.table'")
        key = arguments.get("key")
        if self._with_key and (key is None or None in key):
            raise InvalidArgument(f"function '{self.name}': the key is NULL, or has a NULL for a column")
        return KeyedRequest(self._change, schema="".join(schema), table=table, key=None if key is None else tuple(key))


class _Call(InOutCall):
    def __init__(self, statement: KeyedStatement) -> None:
        self._statement = statement

    def push(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self._statement.push(batch)
        return ()

    def finish(self) -> Iterable[pa.RecordBatch]:
        return self._statement.finish()

    def close(self) -> None:
        self._statement.close()
