"""All RPCs as plain method calls on values: what ``wire`` serves, and what a test can call without a socket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from sparkport.auth.model import Operation, Resource
from sparkport.catalog.context import CallContext
from sparkport.errors import AlreadyExists, InvalidArgument, Unsupported
from sparkport.handlers.ddl import ALTERATIONS, Ddl
from sparkport.handlers.directory import Directory
from sparkport.handlers.discovery import Discovery
from sparkport.handlers.functions import Functions
from sparkport.handlers.jobs import JobActions
from sparkport.handlers.json_contract import JsonContract
from sparkport.handlers.keyed_changes import KeyedChanges
from sparkport.handlers.reads import Reads
from sparkport.handlers.transactions import TransactionActions
from sparkport.handlers.writes import Writes
from sparkport.protocol.actions import ACTIONS
from sparkport.protocol.flight import ActionType, FlightDescriptor, FlightInfo
from sparkport.protocol.maps import MapReader, is_json
from sparkport.protocol.streams import Outgoing, Upload
from sparkport.protocol.targets import Kind, Target
from sparkport.upserts.model import KeyedChange

__all__ = ["ActionFunction", "CustomAction", "Handlers"]

ActionFunction = Callable[[CallContext, bytes], Iterable[bytes]]
"""An action of a user's own: the raw body in, results out."""

_Handler = Callable[[CallContext, MapReader], bytes | None]


@dataclass(frozen=True, slots=True)
class CustomAction:
    """An action beyond the protocol's. ``catalog`` is the one it belongs to, whatever catalog the call names.

    One without is offered in every catalog: MUST stay within ``ctx.catalog``, in which the caller may run it.
    ``table`` is the right that is asked for, besides the action's own, on the table that a JSON body names by
    ``schema_name`` and ``table_name``; ``fills`` a schema in which the caller must be allowed to create and drop.
    """

    name: str
    function: ActionFunction
    description: str = ""
    catalog: str | None = None
    table: Operation | None = None
    fills: str | None = None


class Handlers:
    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self._discovery = Discovery(directory)
        self._reads = Reads(directory)
        self._functions = Functions(directory)
        operations, log = directory.operations, directory.operations.statements
        self._writes = Writes(directory, operations, log)
        self._json = JsonContract(directory, operations, log)
        self._keyed = KeyedChanges(directory, operations)
        self._transactions = TransactionActions(directory, operations)
        self._jobs = JobActions(directory)
        self._ddl = Ddl(directory)
        self._custom: dict[str, CustomAction] = {}
        self._actions: dict[str, _Handler] = {
            "catalog_version": self._discovery.catalog_version,
            "column_statistics": self._discovery.column_statistics,
            "create_schema": self._ddl.create_schema,
            "create_table": self._ddl.create_table,
            "create_transaction": self._transactions.create_for_duckdb,
            "drop_schema": self._ddl.drop_schema,
            "drop_table": self._ddl.drop_table,
            "endpoints": self._reads.endpoints,
            "flight_info": self._discovery.flight_info,
            "list_schemas": self._discovery.list_schemas,
            "rename_schema": self._ddl.rename_schema,
            "rename_table": self._ddl.rename_table,
            "table_function_flight_info": self._discovery.table_function_flight_info,
            **{action: self._ddl.alter(action) for action in ALTERATIONS},
        }
        self._json_actions: dict[str, _Handler] = {
            "commit_transaction": self._transactions.commit,
            "create_transaction": self._transactions.create,
            "end_job": self._jobs.end,
            "delete": self._json.delete,
            "get_transaction_status": self._transactions.status,
            "rollback_transaction": self._transactions.rollback,
        }
        self._exchanges: dict[str, Callable[[CallContext, Upload], Iterator[Outgoing]]] = {
            "delete": self._writes.delete,
            "insert": self._writes.insert,
            "scalar_function": self._functions.scalar,
            "table_function_in_out": self._functions.table_in_out,
            "update": self._writes.update,
            **{change.value: partial(self._keyed.exchange, change=change) for change in KeyedChange},
        }

    @property
    def handled_actions(self) -> frozenset[str]:
        return frozenset(self._actions) | frozenset(self._json_actions)

    def register_action(self, action: CustomAction) -> None:
        if action.name in self.handled_actions or action.name in self._custom:
            raise AlreadyExists(f"action '{action.name}' is already there")
        self._custom = {**self._custom, action.name: action}

    def list_actions(self, ctx: CallContext) -> Iterator[ActionType]:
        for spec in ACTIONS:
            yield ActionType(spec.name, spec.description)
        for action in self._custom.values():
            yield ActionType(action.name, action.description)

    def do_action(self, ctx: CallContext, name: str, body: bytes) -> Iterator[bytes]:
        custom = self._custom.get(name)
        if custom is not None or name in self.handled_actions:
            ctx.record.action = name
        if custom is not None:
            yield from custom.function(self.permitted(ctx, name, body), body)
            return
        if name not in self.handled_actions:
            raise Unsupported(f"action '{name}' is not implemented")
        handlers, form = (self._json_actions, "JSON") if is_json(body) else (self._actions, "msgpack")
        handler = handlers.get(name)
        if handler is None:
            raise InvalidArgument(f"action '{name}' takes no {form} body")
        answer = handler(ctx, MapReader.from_body(body))
        if answer is not None:
            yield answer

    def has_action(self, name: str) -> bool:
        return name in self._custom or name in self.handled_actions

    def permitted(self, ctx: CallContext, name: str, body: bytes) -> CallContext:
        """The call in the catalog that a custom action works on, where the caller may run it; raises where not."""
        action = self._custom[name]
        ctx = replace(ctx, catalog=self.directory.require_action(ctx, action.name, action.catalog))
        ctx = replace(ctx, sees=partial(self._sees, ctx))
        if action.fills is not None:
            for operation in (Operation.CREATE, Operation.DROP):
                self.directory.require(ctx, operation, Resource(ctx.catalog, action.fills))
        if action.table is not None:
            asked = MapReader.from_json(body)
            schema, name = asked.optional_text("schema_name") or "", asked.text("table_name")
            # As everybody sees the table: the action does not run inside the caller's transaction.
            outside = replace(ctx, transaction_id=None)
            self.directory.table(outside, Target(ctx.catalog, schema, Kind.TABLE, name), action.table)
        return ctx

    def _sees(self, ctx: CallContext, schema: str, name: str) -> bool:
        catalogs = [catalog for catalog in self.directory.catalogs(ctx) if catalog.name == ctx.catalog]
        return any(self.directory.sees_whole(ctx, catalog, schema, name) for catalog in catalogs)

    def list_flights(self, ctx: CallContext) -> Iterator[FlightInfo]:
        return self._discovery.list_flights(
            ctx,
            catalog=ctx.headers.get("airport-list-flights-filter-catalog"),
            schema=ctx.headers.get("airport-list-flights-filter-schema"),
        )

    def get_flight_info(self, ctx: CallContext, descriptor: FlightDescriptor) -> FlightInfo:
        return self._discovery.get_flight_info(ctx, descriptor)

    def get_schema(self, ctx: CallContext, descriptor: FlightDescriptor) -> pa.Schema:
        return self._discovery.get_schema(ctx, descriptor)

    def do_get(self, ctx: CallContext, ticket: bytes) -> Iterator[Outgoing]:
        return self._reads.do_get(ctx, ticket)

    def do_put(self, ctx: CallContext, upload: Upload) -> Iterator[bytes]:
        return self._json.do_put(ctx, upload)

    def do_exchange(self, ctx: CallContext, upload: Upload) -> Iterator[Outgoing]:
        operation = ctx.headers.get("airport-operation")
        if operation is None:
            raise InvalidArgument("the header 'airport-operation' is missing")
        exchange = self._exchanges.get(operation)
        if exchange is None:
            raise Unsupported(f"exchange operation '{operation}' is not implemented")
        ctx.record.action = operation
        return exchange(ctx, upload)
