"""Callers with tokens of their own and rules that tell them apart, and tickets in their hands."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as pf
from tests.support.duckdb_client import Attached, DuckDBClient
from tests.support.filters import filter_json
from tests.support.flight_rpc import BatchReader, Connection
from tests.support.listing import raw, unpack

from sparkport.app import Server
from sparkport.auth import Authorizer, RuleAuthorizer, Secret, StaticTokens
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableCatalog, MutableSchema, TableDefinition
from sparkport.catalog.statement import ChangeableTable
from sparkport.testing import serving

__all__ = ["RULES", "TOKENS", "Caller", "attach", "create", "guarded", "rules"]

TOKENS = StaticTokens({Secret(f"{name}-token"): name for name in ("admin", "reader", "other", "nobody")})
"""``admin`` may do everything, ``reader`` and ``other`` may read in ``public``, ``nobody`` may do nothing."""

RULES: list[Mapping[str, object]] = [
    {"subjects": "admin", "operations": "*", "resources": "*"},
    {"subjects": ["reader", "other"], "operations": "read", "resources": "lake.public"},
]


def rules(*more: Mapping[str, object]) -> RuleAuthorizer:
    return RuleAuthorizer.from_table({"rules": [*RULES, *more]})


@contextmanager
def guarded(catalog: MutableCatalog, *others: MutableCatalog, authorizer: Authorizer | None = None) -> Iterator[Server]:
    with serving(catalog, *others, authenticator=TOKENS, authorizer=authorizer or rules()) as server:
        yield server


def create(catalog: MutableCatalog, rows: pa.Table, *, schema: str = "public", name: str | None = None) -> str:
    """A new table with these rows; its name with the schema's."""
    ctx = CallContext()
    found = catalog.schema(ctx, schema) or catalog.create_schema(ctx, schema)
    assert isinstance(found, MutableSchema)
    definition = TableDefinition(name=name or f"t{uuid.uuid4().hex}", columns=rows.schema)
    table = found.create_table(ctx, definition)
    assert isinstance(table, ChangeableTable)
    if rows.num_rows:
        table.insert(ctx, rows.to_reader())
    return f"{schema}.{definition.name}"


@contextmanager
def attach(server: Server, name: str) -> Iterator[Caller]:
    with DuckDBClient(server.location, token=f"{name}-token", watchdog=120.0) as client:
        connection = Connection(server.location, timeout=120.0)
        try:
            yield Caller(client.attach("lake"), connection, [("authorization", f"Bearer {name}-token")])
        finally:
            connection.close()


class Caller:
    def __init__(self, duckdb: Attached, connection: Connection, headers: list[tuple[str, str]]) -> None:
        self.duckdb = duckdb
        self.connection = connection
        self.headers = headers

    def tickets(self, table: str) -> list[bytes]:
        """What a scan of all columns is planned into."""
        entry = self.duckdb.table(table)
        parameters = {
            "json_filters": filter_json(entry.columns),
            "column_ids": list(range(len(entry.columns))),
            "table_function_parameters": "",
            "table_function_input_schema": "",
            "at_unit": "",
            "at_value": "",
        }
        body = {"descriptor": entry.descriptor.serialize(), "parameters": parameters}
        answer = unpack(self.duckdb.action("endpoints", body, *self.duckdb.flight_headers(entry)))
        return [pf.FlightEndpoint.deserialize(raw(item)).ticket.ticket for item in answer]

    def get(self, ticket: bytes) -> list[dict[str, Any]]:
        """The rows without their ids, in the order of their first column."""
        reader = BatchReader()
        batches = [reader.take(message) for message in self.connection.do_get(ticket, self.headers)]
        found = [row for batch in batches if batch is not None for row in batch.to_pylist()]
        for row in found:
            row.pop("rowid", None)
        return sorted(found, key=lambda row: str(next(iter(row.values()), None)))

    def act(self, name: str, body: bytes = b"{}", *more: tuple[str, str]) -> list[bytes]:
        return self.connection.do_action(name, body, [*self.headers, *more])
