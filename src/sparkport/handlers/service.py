"""All RPCs as plain method calls on values: what ``wire`` serves, and what a test can call without a socket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from sparkport.catalog.context import CallContext
from sparkport.errors import AlreadyExists, InvalidArgument, Unsupported
from sparkport.handlers.directory import Directory
from sparkport.handlers.discovery import Discovery
from sparkport.handlers.functions import Functions
from sparkport.handlers.reads import Reads
from sparkport.protocol.actions import ACTIONS
from sparkport.protocol.flight import ActionType, FlightDescriptor, FlightInfo
from sparkport.protocol.maps import MapReader, is_json, pack
from sparkport.protocol.streams import Outgoing, Upload

__all__ = ["ActionFunction", "CustomAction", "Handlers"]

ActionFunction = Callable[[CallContext, bytes], Iterable[bytes]]
"""An action of a user's own: the raw body in, results out."""

_Handler = Callable[[CallContext, MapReader], bytes]


@dataclass(frozen=True, slots=True)
class CustomAction:
    name: str
    function: ActionFunction
    description: str = ""


class Handlers:
    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self._discovery = Discovery(directory)
        self._reads = Reads(directory)
        self._functions = Functions(directory)
        self._custom: dict[str, CustomAction] = {}
        self._actions: dict[str, _Handler] = {
            "catalog_version": self._discovery.catalog_version,
            "column_statistics": self._discovery.column_statistics,
            "create_transaction": self._create_transaction,
            "endpoints": self._reads.endpoints,
            "flight_info": self._discovery.flight_info,
            "list_schemas": self._discovery.list_schemas,
            "table_function_flight_info": self._discovery.table_function_flight_info,
        }
        self._specs = {spec.name: spec for spec in ACTIONS}
        self._exchanges: dict[str, Callable[[CallContext, Upload], Iterator[Outgoing]]] = {
            "scalar_function": self._functions.scalar,
            "table_function_in_out": self._functions.table_in_out,
        }

    @property
    def handled_actions(self) -> frozenset[str]:
        return frozenset(self._actions)

    def register_action(self, action: CustomAction) -> None:
        if action.name in self._actions or action.name in self._custom:
            raise AlreadyExists(f"action '{action.name}' is already there")
        self._custom = {**self._custom, action.name: action}

    def list_actions(self, ctx: CallContext) -> Iterator[ActionType]:
        for spec in ACTIONS:
            yield ActionType(spec.name, spec.description)
        for action in self._custom.values():
            yield ActionType(action.name, action.description)

    def do_action(self, ctx: CallContext, name: str, body: bytes) -> Iterator[bytes]:
        custom = self._custom.get(name)
        if custom is not None:
            self.directory.require_action(ctx, name)
            yield from custom.function(ctx, body)
            return
        handler = self._actions.get(name)
        if handler is None:
            raise Unsupported(f"action '{name}' is not implemented")
        spec = self._specs[name]
        if is_json(body) and not spec.json:
            raise InvalidArgument(f"action '{name}' takes a msgpack body")
        yield handler(ctx, MapReader.from_body(body))

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
        raise Unsupported("DoPut is not implemented")

    def do_exchange(self, ctx: CallContext, upload: Upload) -> Iterator[Outgoing]:
        operation = ctx.headers.get("airport-operation")
        if operation is None:
            raise InvalidArgument("the header 'airport-operation' is missing")
        exchange = self._exchanges.get(operation)
        if exchange is None:
            raise Unsupported(f"exchange operation '{operation}' is not implemented")
        return exchange(ctx, upload)

    def _create_transaction(self, ctx: CallContext, body: MapReader) -> bytes:
        self.directory.catalog(ctx, body.optional_text("catalog_name") or "")
        return pack({"identifier": None})
