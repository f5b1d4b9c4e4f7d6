"""Whichever call reads or changes something, a line says so, and without that line it does not happen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.flight as pf
import pytest

from sparkport.app import CustomAction, ObserveSettings, Server
from sparkport.auth.model import Operation
from sparkport.catalog import CallContext, CatalogBuilder
from sparkport.catalog.functions import Parameter
from sparkport.client import Client, connect
from sparkport.errors import Unavailable
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"n": [1, 2, 3]})


@dataclass(slots=True)
class Stage:
    """A server with an audit, a table ``public.t`` with three rows, functions, and an action of its own."""

    server: Server
    client: Client
    file: Path

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def row_ids(self) -> list[int]:
        found: list[int] = self.client.scan("lake.public.t", row_id=True).read_all()["rowid"].to_pylist()
        return found

    def action(self, name: str, body: bytes) -> None:
        with pf.connect(self.server.location) as stock:
            options = pf.FlightCallOptions(headers=[(b"airport-catalog", b"lake")])
            list(stock.do_action(pf.Action(name, body), options))

    def put(self, operation: str, **more: object) -> None:
        body = {"operation": operation, "catalog_name": "lake", "schema_name": "public", "table_name": "t", **more}
        with pf.connect(self.server.location) as stock:
            descriptor = pf.FlightDescriptor.for_command(json.dumps(body).encode())
            writer, reader = stock.do_put(descriptor, ROWS.schema)
            writer.write_table(ROWS)
            writer.done_writing()
            reader.read()
            writer.close()


def double(ctx: CallContext, arguments: pa.RecordBatch) -> pa.Array:
    return arguments.column(0)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    own = (
        CatalogBuilder("own")
        .schema("public")
        .scalar_function("same", double, [Parameter("n", pa.int64())], pa.int64())
        .build()
    )
    touch = CustomAction("touch", lambda ctx, body: [b"done"], catalog="lake", table=Operation.ALTER)
    file = tmp_path / "audit.jsonl"
    observe = ObserveSettings(audit=file)
    with (
        serving(MemoryCatalog("lake"), own, actions=[touch], observe=observe) as server,
        connect(server.location, catalog="lake") as client,
    ):
        client.create_table("lake.public.t", ROWS.schema)
        client.insert("lake.public.t", ROWS)
        yield Stage(server, client, file)


def statistics(stage: Stage) -> None:
    descriptor = pf.FlightDescriptor.for_path("lake", "public", "t").serialize()
    body = {"flight_descriptor": descriptor, "column_name": "n", "type": "BIGINT"}
    stage.action("column_statistics", msgpack.packb(body))


DELETE = {"catalog_name": "lake", "schema_name": "public", "table_name": "t", "row_ids": [0]}
TABLE = {"schema_name": "public", "table_name": "t"}

CALLS: dict[str, tuple[str, str, Callable[[Stage], object]]] = {
    "scan": ("read", "lake.public.t", lambda s: s.client.scan("lake.public.t").read_all()),
    "insert": ("insert", "lake.public.t", lambda s: s.client.insert("lake.public.t", ROWS)),
    "update": ("update", "lake.public.t", lambda s: s.client.update("lake.public.t", ROWS, row_ids=s.row_ids()[:3])),
    "delete": ("delete", "lake.public.t", lambda s: s.client.delete("lake.public.t", s.row_ids()[:1])),
    "put insert": ("insert", "lake.public.t", lambda s: s.put("insert")),
    "put update": ("update", "lake.public.t", lambda s: s.put("update", row_ids=s.row_ids()[:3])),
    "delete action": ("delete", "lake.public.t", lambda s: s.action("delete", json.dumps(DELETE).encode())),
    "create schema": ("create", "lake.other", lambda s: s.client.create_schema("lake.other")),
    "create table": ("create", "lake.public.u", lambda s: s.client.create_table("lake.public.u", ROWS.schema)),
    "rename table": ("alter", "lake.public.t", lambda s: s.client.rename_table("lake.public.t", "v")),
    "add column": ("alter", "lake.public.t", lambda s: s.client.add_column("lake.public.t", pa.field("x", pa.int64()))),
    "comment": ("alter", "lake.public.t", lambda s: s.client.set_comment("lake.public.t", "hello")),
    "drop table": ("drop", "lake.public.t", lambda s: s.client.drop_table("lake.public.t")),
    "statistics": ("read", "lake.public.t", statistics),
    "call": ("call", "own.public.same", lambda s: s.client.call("own.public.same", pa.array([1, 2]))),
    "custom action": ("alter", "lake.public.t", lambda s: s.action("touch", json.dumps(TABLE).encode())),
}

every_call = pytest.mark.parametrize("name", CALLS)


@every_call
def test_every_call_that_reads_or_changes_has_a_line(stage: Stage, name: str) -> None:
    operation, place, call = CALLS[name]
    before = len(stage.entries())
    call(stage)
    begun = {(entry["operation"], entry["object"]) for entry in stage.entries()[before:] if entry["event"] == "begin"}
    assert (operation, place) in begun


@every_call
def test_no_call_reads_or_changes_without_its_line(stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    operation, _, call = CALLS[name]
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        if f'"operation": "{operation}"'.encode() in data:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    stored, listed = contents(stage), listing(stage)
    with monkeypatch.context() as patched:
        patched.setattr("sparkport.observe.audit.os.write", write)
        with pytest.raises((Unavailable, pf.FlightUnavailableError), match="the audit file cannot be written"):
            call(stage)
    assert contents(stage) == stored
    assert listing(stage) == listed


def contents(stage: Stage) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stage.client.scan("lake.public.t", row_id=True).read_all().to_pylist()
    return found


def listing(stage: Stage) -> list[str]:
    return sorted(f"{table.full_name} {table.schema} {table.comment}" for table in stage.client.tables())
