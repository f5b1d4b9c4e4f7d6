"""Runs the function calls that a server puts into endpoints, and is as strict with the result as DuckDB's client is."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa
from tests.support.listing import raw, unpack

from sparkport.filters.sql import quote_text

__all__ = ["CALL", "run_call"]

CALL = b"data:application/x-msgpack-duckdb-function-call;base64,"


def run_call(location: bytes, schema: pa.Schema, names: Sequence[str]) -> pa.Table:
    """The rows of a call in the table's schema; columns that were not asked for are NULL."""
    body = unpack(base64.b64decode(location.removeprefix(CALL), validate=True))
    assert set(body) == {"function_name", "data"}
    with pa.ipc.open_stream(raw(body["data"])) as reader:
        row = reader.read_all()
    assert row.num_rows == 1, "a call has one row of arguments"
    positional = [name for name in row.column_names if name.startswith("arg_")]
    assert positional == [f"arg_{number}" for number in range(len(positional))]
    parts = [_literal(row[name][0]) for name in positional]
    parts += [f"{name} = {_literal(row[name][0])}" for name in row.column_names if name not in positional]
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT * FROM {raw(body['function_name']).decode()}({', '.join(parts)})")
        wanted = connection.from_arrow(schema.empty_table())
        listed, there = (dict(zip(rows.columns, rows.types, strict=True)) for rows in (wanted, found))
        for name in names:
            assert name in there, f"DuckDB invalidates itself: the call has no column {name}"
            assert there[name] == listed[name], f"DuckDB fails: column {name} is {there[name]}, listed {listed[name]}"
        rows = found.select(*map(duckdb.ColumnExpression, names)).to_arrow_table()
    columns = [
        rows.column(field.name).cast(field.type) if field.name in names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _literal(value: Any) -> str:
    """An Arrow scalar as SQL."""
    if not value.is_valid:
        return "NULL"
    kind = value.type
    if pa.types.is_map(kind):
        entries = (f"{_literal(item['key'])}: {_literal(item['value'])}" for item in value.values)
        return f"MAP {{{', '.join(entries)}}}"
    if pa.types.is_list(kind):
        return f"[{', '.join(map(_literal, value.values))}]"
    if pa.types.is_struct(kind):
        return f"{{{', '.join(f'{field.name}: {_literal(value[field.name])}' for field in kind)}}}"
    if pa.types.is_string(kind):
        return quote_text(value.as_py())
    return str(value.as_py()).lower()
