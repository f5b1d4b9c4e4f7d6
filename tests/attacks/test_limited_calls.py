"""Every action and every RPC that there is, asked by somebody who sees a part of a table: a new one is asked too."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from tests.attacks.callers import Caller, attach
from tests.attacks.limited import PEOPLE, Limited, limited, secrets_in
from tests.support.duckdb_client import AirportError
from tests.support.filters import filter_json
from tests.support.listing import create_table_body, pack, raw, unpack

from sparkport.memory import MemoryCatalog
from sparkport.protocol.actions import ACTIONS

pytestmark = pytest.mark.tier("fast")

COLUMN = pa.schema([pa.field("salary", pa.int64())]).serialize().to_pybytes()


def bodies(place: Limited, caller: Caller) -> list[bytes]:
    """All keys that any action reads, with the hidden column wherever a column is named, in both forms."""
    schema, name = place.table.split(".")
    descriptor = caller.duckdb.table(place.table).descriptor.serialize()
    parameters = {
        "json_filters": filter_json(["id"]),
        "column_ids": [0, 1, 2, 3],
        "table_function_parameters": "",
        "table_function_input_schema": "",
        "at_unit": "",
        "at_value": "",
    }
    names = {"catalog_name": "lake", "catalog": "lake", "schema_name": schema, "schema": schema}
    body: dict[str, Any] = {
        **create_table_body(schema, name, PEOPLE.schema.serialize().to_pybytes()),
        **names,
        "name": name,
        "table_name": name,
        "type": "BIGINT",
        "descriptor": descriptor,
        "flight_descriptor": descriptor,
        "parameters": parameters,
        "at_unit": "",
        "at_value": "",
        "on_conflict": "ignore",
        "ignore_not_found": False,
        "column_schema": COLUMN,
        "column_path": ["salary"],
        "column_name": "salary",
        "removed_column": "salary",
        "old_name": "salary",
        "new_name": "seen",
        "new_table_name": "mine",
        "new_schema_name": "mine",
        "expression": "CAST(salary AS VARCHAR)",
        "comment": "mine",
        "tags": {},
    }
    ids = list(place.ids().values())
    asked = {**names, "table_name": name, "row_ids": ids, "returning": True, "transaction_id": "x"}
    columns = [{**asked, "returning_columns": ["id", "salary"]}, {**asked, "row_ids": ids[1:2]}]
    older = {**body, "parameters": {**parameters, "column_ids": [0, 4]}}
    return [pack(body), pack(older), *(json.dumps(item).encode() for item in (asked, *columns))]


def contents(data: bytes) -> list[bytes]:
    """What an answer says, also where it is packed and compressed in itself."""
    found = [data]
    try:
        value = unpack(data)
    except Exception:
        return found
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], int):
        packed = zstandard.ZstdDecompressor().decompress(raw(value[1]), max_output_size=value[0])
        found += contents(packed)
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, str | bytes):
                found += contents(raw(item)) if raw(item) != data else []
            elif isinstance(item, dict | list):
                found += contents(pack(item))
    return found


def test_the_contents_of_a_listing_are_looked_into() -> None:
    with limited(MemoryCatalog("lake")) as place, attach(place.server, "admin") as caller:
        (answer,) = caller.act("list_schemas", pack({"catalog_name": "lake"}))
        assert any("salary" in secrets_in(part) for part in contents(answer))


@pytest.mark.parametrize("action", [spec.name for spec in ACTIONS])
def test_no_action_tells_or_changes_what_is_not_seen(action: str) -> None:
    others = {"subjects": "reader", "operations": ["alter", "create", "call", "action"]}
    with limited(MemoryCatalog("lake"), others) as place, attach(place.server, "reader") as caller:
        for body in bodies(place, caller):
            try:
                answers = caller.act(action, body)
            except AirportError as exc:
                # What the caller wrote itself may be repeated to it.
                told = str(exc).replace("'salary'", "").replace("CAST(salary AS VARCHAR)", "")
                assert secrets_in(told) == []
                continue
            for answer in answers:
                for part in contents(answer):
                    assert secrets_in(part) == []
        kept = [row for row in place.all_rows() if row["region"] != "EU"]
        assert kept == [row for row in PEOPLE.to_pylist() if row["region"] != "EU"]
