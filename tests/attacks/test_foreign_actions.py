"""An action works on the catalog that it belongs to, whatever catalog a caller names, and asks for rights there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import grpc
import pyarrow as pa
import pytest
from tests.attacks.callers import TOKENS, Caller, attach, create, guarded, rules
from tests.support.duckdb_client import AirportError

from sparkport.app import CustomAction, Server, lakehouse_actions
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"n": pa.array([1], pa.int64())})
OWN = {"subjects": "reader", "operations": "*", "resources": "mine"}


@pytest.fixture
def lake_server(attacked_lakehouse: Lakehouse) -> Iterator[Server]:
    """``reader`` may do everything in ``mine``, and only read ``public`` in ``lake``."""
    actions = lakehouse_actions(attacked_lakehouse)
    with serving(
        attacked_lakehouse.catalog,
        MemoryCatalog("mine"),
        authenticator=TOKENS,
        authorizer=rules(OWN),
        actions=actions,
    ) as running:
        yield running


def code(caller: Caller, action: str, body: Mapping[str, object], *headers: tuple[str, str]) -> grpc.StatusCode:
    with pytest.raises(AirportError) as failure:
        caller.act(action, json.dumps(body).encode(), *headers)
    return failure.value.code


@pytest.mark.tier("thorough")
def test_rights_in_another_catalog_run_no_action_of_this_one(
    attacked_lakehouse: Lakehouse, lake_server: Server
) -> None:
    hidden = create(attacked_lakehouse.catalog, ROWS, schema="hidden").partition(".")[2]
    table: dict[str, object] = {"schema_name": "hidden", "table_name": hidden}
    with attach(lake_server, "reader") as reader:
        for name in ("mine", "lake", "MINE", "*", ""):
            header = [("airport-catalog", name)] if name else []
            for action, body in (
                ("backup", {}),
                ("maintain", table),
                ("upgrade_table", table),
                ("set_table", {**table, "journal": True}),
                ("flush_journal", {}),
                ("journal_status", {}),
                ("unreadable_tables", {}),
                ("demo", {"items": 1}),
            ):
                found = code(reader, action, body, *header)
                assert found is grpc.StatusCode.PERMISSION_DENIED, (name, action)


def test_the_right_to_an_action_is_no_right_to_the_table(attacked_lakehouse: Lakehouse) -> None:
    catalog = attacked_lakehouse.catalog
    seen = create(catalog, ROWS).partition(".")[2]
    hidden = create(catalog, ROWS, schema="hidden").partition(".")[2]
    with (
        serving(
            catalog,
            authenticator=TOKENS,
            authorizer=rules({"subjects": "reader", "operations": "action", "resources": "lake.*.maintain"}),
            actions=lakehouse_actions(attacked_lakehouse),
        ) as server,
        attach(server, "reader") as reader,
        attach(server, "admin") as admin,
    ):
        denied = grpc.StatusCode.PERMISSION_DENIED
        assert code(reader, "maintain", {"schema_name": "public", "table_name": seen}) is denied
        assert code(reader, "maintain", {"table_name": seen.upper()}) is denied
        missing = code(reader, "maintain", {"schema_name": "hidden", "table_name": hidden})
        assert missing is code(reader, "maintain", {"schema_name": "none", "table_name": hidden})
        assert missing is grpc.StatusCode.NOT_FOUND
        assert code(reader, "demo", {"items": 1}) is denied
        assert code(reader, "maintain", {"schema_name": ["public"], "table_name": seen}) is (
            grpc.StatusCode.INVALID_ARGUMENT
        )
        (report,) = admin.act("maintain", json.dumps({"table_name": seen, "what": ["expire"]}).encode())
        assert json.loads(report)["table"] == f"public.{seen}"


def test_an_action_of_no_catalog_runs_in_one_that_is_there_and_that_the_caller_may_use() -> None:
    look = CustomAction("look", lambda ctx, body: [ctx.catalog.encode()])
    with (
        serving(
            MemoryCatalog("lake"),
            MemoryCatalog("mine"),
            authenticator=TOKENS,
            authorizer=rules(OWN),
            actions=[look],
        ) as server,
        attach(server, "reader") as reader,
    ):
        assert reader.act("look", b"", ("airport-catalog", "MINE")) == [b"mine"]
        for name in ("lake", "none", "*", "mine.x"):
            assert code(reader, "look", {}, ("airport-catalog", name)) in (
                grpc.StatusCode.PERMISSION_DENIED,
                grpc.StatusCode.NOT_FOUND,
            )


def test_a_token_without_rights_runs_no_action() -> None:
    with guarded(MemoryCatalog("lake")) as server, attach(server, "admin") as admin:
        server.register_action("look", lambda ctx, body: [b"seen"])
        assert admin.act("look", b"") == [b"seen"]
        stranger = Caller(admin.duckdb, admin.connection, [("authorization", "Bearer nobody-token")])
        for header in ([], [("airport-catalog", "lake")]):
            assert code(stranger, "look", {}, *header) is grpc.StatusCode.NOT_FOUND
