"""Whatever is refused leaves a line, however the caller is told, and whichever part of a name it may not know of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as pf
import pytest
from tests.console.rig import Visitor

from sparkport.app import HttpSettings, ObserveSettings, Server
from sparkport.auth import RuleAuthorizer, Secret, StaticTokens
from sparkport.catalog import CatalogBuilder
from sparkport.catalog.context import CallContext
from sparkport.catalog.functions import Parameter
from sparkport.client import Client, connect
from sparkport.errors import NotFound
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"n": [1, 2, 3]})
TOKENS = StaticTokens({Secret("admin-token"): "admin", Secret("reader-token"): "reader", Secret("none-token"): "none"})
RULES = RuleAuthorizer.from_table(
    {
        "rules": [
            {"subjects": "admin", "operations": "*", "resources": "*"},
            {"subjects": "reader", "operations": ["read", "insert"], "resources": "lake.public.seen"},
            {"subjects": "reader", "operations": "list", "resources": "lake.public.listed"},
        ]
    }
)


@dataclass(slots=True)
class Stage:
    server: Server
    file: Path

    def refusals(self, user: str | None = "reader") -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [line for line in lines if line["event"] == "refused" and line.get("user") == user]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    lake = MemoryCatalog("lake")
    lake.create_schema(CallContext(), "hr")
    for name in ("public.seen", "public.listed", "public.secret", "hr.pay"):
        lake.create_table(name, ROWS.schema).insert(CallContext(), ROWS.to_reader())
    other = (
        CatalogBuilder("other")
        .schema("public")
        .scalar_function("same", lambda ctx, rows: rows.column(0), [Parameter("n", pa.int64())], pa.int64())
        .build()
    )
    file = tmp_path / "audit.jsonl"
    settings = {"authenticator": TOKENS, "authorizer": RULES, "observe": ObserveSettings(audit=file)}
    with serving(lake, other, http=HttpSettings(port=0), **settings) as server:  # type: ignore[arg-type]
        yield Stage(server, file)


@pytest.mark.parametrize(
    ("call", "operation", "place"),
    [
        (lambda client: client.insert("lake.public.secret", ROWS), "insert", "lake.public.secret"),
        (lambda client: client.insert("lake.hr.pay", ROWS), "insert", "lake.hr.pay"),
        (lambda client: client.call("lake.tx.begin", rows=1), "call", "lake.tx.begin"),
        (lambda client: client.call("other.public.same", pa.array([1])), "list", "other"),
        (lambda client: client.drop_table("lake.hr.pay"), "list", "lake.hr"),
        (lambda client: client.drop_table("lake.public.secret", if_exists=True), "drop", "lake.public.secret"),
    ],
    ids=["table", "schema", "function", "catalog", "drop", "drop if exists"],
)
def test_what_the_caller_may_not_know_of_is_refused_on_record(
    stage: Stage, call: Callable[[Client], object], operation: str, place: str
) -> None:
    with connect(stage.server.location, token="reader-token", catalog="lake") as client, suppress(NotFound):
        call(client)
    assert (operation, place) in {(line["operation"], line.get("object")) for line in stage.refusals()}


def test_a_caller_without_any_right_is_on_record(stage: Stage) -> None:
    with (
        pytest.raises(NotFound, match="not found"),
        connect(stage.server.location, token="none-token") as client,
    ):
        client.scan("public.seen").read_all()
    assert stage.refusals("none") != []


def test_rows_that_a_page_does_not_show_are_on_record(stage: Stage) -> None:
    assert stage.server.http_location is not None
    visitor = Visitor(stage.server.http_location)
    visitor.log_in("reader-token")
    assert visitor.get("/table?catalog=lake&schema=public&name=listed&show=rows").status == 200
    assert [(line["operation"], line["object"]) for line in stage.refusals()] == [("read", "lake.public.listed")]


def test_a_wrong_token_at_the_console_is_on_record_without_the_token(stage: Stage) -> None:
    assert stage.server.http_location is not None
    visitor = Visitor(stage.server.http_location)
    assert visitor.log_in("wr0ng-t0ken").status == 403
    (line,) = stage.refusals(None)
    assert (line["rpc"], line["action"], line["code"]) == ("Console", "login", "UNAUTHENTICATED")
    assert "t0ken" not in stage.file.read_text()


def _visitor(stage: Stage, token: str = "reader-token") -> Visitor:
    assert stage.server.http_location is not None
    visitor = Visitor(stage.server.http_location)
    visitor.log_in(token)
    return visitor


@pytest.mark.parametrize(
    ("query", "operation", "place"),
    [
        ("catalog=lake&schema=public&name=secret&show=rows", "read", "lake.public.secret"),
        ("catalog=lake&schema=public&name=secret", "list", "lake.public.secret"),
        ("catalog=lake&schema=public&name=SECRET&show=history", "list", "lake.public.secret"),
        ("catalog=lake&schema=hr&name=pay&show=rows", "read", "lake.hr.pay"),
        ("catalog=lake&schema=hr&name=pay", "list", "lake.hr.pay"),
        ("catalog=other&schema=public&name=x", "list", "other"),
    ],
)
def test_a_page_about_what_the_caller_may_not_know_of_is_on_record(
    stage: Stage, query: str, operation: str, place: str
) -> None:
    assert _visitor(stage).get(f"/table?{query}").status == 404
    (line,) = stage.refusals()
    assert (line["rpc"], line["operation"], line["object"]) == ("Console", operation, place)


@pytest.mark.parametrize(
    "query", ["catalog=lake&schema=public&name=nowhere&show=rows", "catalog=lake&schema=no&name=x"]
)
def test_a_page_about_what_is_not_there_is_no_refusal(stage: Stage, query: str) -> None:
    visitor = _visitor(stage)
    assert visitor.get(f"/table?catalog=lake&{query}").status == visitor.get("/nowhere").status == 404
    assert stage.refusals() == []


def test_pages_and_buttons_that_are_refused_are_on_record(stage: Stage) -> None:
    visitor = _visitor(stage)
    assert visitor.get("/settings").status == 403
    assert visitor.post("/end-job", {"form_token": "forged", "id": "1", "catalog": "lake"}).status == 403
    page, button = stage.refusals()
    assert (page["operation"], page["object"]) == ("page", "/settings")
    assert page["code"] == button["code"] == "PERMISSION_DENIED"


def test_pages_without_a_login_and_forms_of_other_sites_are_on_record(stage: Stage) -> None:
    assert stage.server.http_location is not None
    stranger = Visitor(stage.server.http_location)
    assert stranger.get("/tables").status == 303
    assert stranger.post("/maintain", {"a": "1"}, Origin="http://evil.example").status == 403
    told = [(line["code"], line["object"]) for line in stage.refusals(None)]
    assert told == [("UNAUTHENTICATED", "/tables"), ("PERMISSION_DENIED", "/maintain")]


def test_who_asks_for_metrics_without_the_right_is_on_record(stage: Stage) -> None:
    assert stage.server.http_location is not None
    visitor = Visitor(stage.server.http_location)
    assert visitor.get("/metrics").status == 401
    assert visitor.get("/metrics", Authorization="Bearer reader-token").status == 403
    assert visitor.get("/metrics", Authorization="Bearer admin-token").status == 200
    assert [(line["rpc"], line["code"]) for line in stage.refusals(None)] == [("Metrics", "UNAUTHENTICATED")]
    assert [(line["rpc"], line["code"]) for line in stage.refusals()] == [("Metrics", "PERMISSION_DENIED")]


def test_a_statement_that_is_sent_again_is_on_record(stage: Stage) -> None:
    body = {"operation": "insert", "catalog_name": "lake", "schema_name": "public", "table_name": "seen"}
    headers = [(b"authorization", b"Bearer reader-token"), (b"x-statement-id", b"again")]
    with pf.connect(stage.server.location) as stock:
        for _ in range(2):
            descriptor = pf.FlightDescriptor.for_command(json.dumps(body).encode())
            writer, reader = stock.do_put(descriptor, ROWS.schema, pf.FlightCallOptions(headers=headers))
            writer.write_table(ROWS)
            writer.done_writing()
            reader.read()
            writer.close()
    lines = [json.loads(line) for line in stage.file.read_text().splitlines()]
    assert [line["event"] for line in lines if line["operation"] == "insert"] == ["begin", "end", "begin", "end"]
    assert [line.get("changed") for line in lines if line["event"] == "end"] == [3, None]
