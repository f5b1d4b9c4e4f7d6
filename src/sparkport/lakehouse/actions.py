"""What can be asked of a served lakehouse beyond tables: JSON in, JSON out, one result per line of progress.

Every result is an object; the last one is the report, those before it have the one key ``progress``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sparkport.catalog.context import CallContext
from sparkport.errors import InvalidArgument, SchemaNotFound, TableNotFound
from sparkport.lakehouse.demo import DEMO_SCHEMA, ITEMS, fill_demo, statements_to_try
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.upkeep.maintenance import STEPS
from sparkport.lakehouse.upkeep.upgrade import upgrade_table

__all__ = ["LakehouseAction", "LakehouseActions"]

_MOST_ITEMS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LakehouseAction:
    """``alters`` the table that the body names, or ``fills`` a schema: what the caller must be allowed to do."""

    name: str
    function: Callable[[CallContext, bytes], Iterator[bytes]]
    description: str
    alters: bool = False
    fills: str | None = None


class LakehouseActions:
    def __init__(self, lakehouse: Lakehouse) -> None:
        self._lakehouse = lakehouse

    def all(self) -> list[LakehouseAction]:
        return [
            LakehouseAction(
                "maintain",
                self._maintain,
                "Compact a table, expire its snapshots, remove files that nobody needs",
                alters=True,
            ),
            LakehouseAction(
                "upgrade_table", self._upgrade, "Give an older table format v3, and its rows ids", alters=True
            ),
            LakehouseAction("demo", self._demo, "Fill the schema demo with tables to try", fills=DEMO_SCHEMA),
        ]

    def _maintain(self, ctx: CallContext, body: bytes) -> Iterator[bytes]:
        asked = _object(body)
        steps = asked.get("what") or list(STEPS)
        if not isinstance(steps, list) or not all(isinstance(step, str) for step in steps):
            raise InvalidArgument("body key 'what' must be a list of texts")
        yield _json(self._lakehouse.maintenance.run(self._table(asked), steps).as_dict())

    def _upgrade(self, ctx: CallContext, body: bytes) -> Iterator[bytes]:
        yield _json(upgrade_table(self._lakehouse.engine, self._table(_object(body))))

    def _demo(self, ctx: CallContext, body: bytes) -> Iterator[bytes]:
        asked = _object(body)
        items, replace = asked.get("items", ITEMS), asked.get("replace", False)
        if not isinstance(items, int) or isinstance(items, bool) or not 1 <= items <= _MOST_ITEMS:
            raise InvalidArgument(f"body key 'items' must be a number from 1 to {_MOST_ITEMS}")
        if not isinstance(replace, bool):
            raise InvalidArgument("body key 'replace' must be true or false")
        catalog = self._lakehouse.catalog
        for line in fill_demo(catalog, items=items, replace=replace):
            ctx.check()
            yield _json({"progress": line})
        yield _json({"statements": list(statements_to_try(catalog.name))})

    def _table(self, asked: dict[str, Any]) -> TableName:
        """The table by its names as the catalog has them."""
        catalog = self._lakehouse.catalog
        schema_name = _text(asked, "schema_name", catalog.default_schema)
        table_name = _text(asked, "table_name")
        schema = catalog.schema(CallContext(), schema_name)
        if schema is None:
            raise SchemaNotFound(schema_name)
        table = schema.table(CallContext(), table_name)
        if table is None:
            raise TableNotFound(schema.name, table_name)
        return schema.name, table.name


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except (ValueError, RecursionError) as exc:
        raise InvalidArgument("the body is not JSON") from exc
    if not isinstance(value, dict):
        raise InvalidArgument("the body must be a JSON object")
    return value


def _text(asked: dict[str, Any], key: str, default: str = "") -> str:
    value = asked.get(key) or default
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"body key '{key}' must be a text")
    return value


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
