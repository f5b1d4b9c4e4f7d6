"""The lakehouse's own actions over the wire, as the command uses them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.support.lakehouse import lakehouse

from sparkport.app import Server, lakehouse_actions
from sparkport.cli.main import main
from sparkport.client import Client, connect
from sparkport.errors import InvalidArgument, NotFound, Unsupported
from sparkport.lakehouse.backup.held import hold
from sparkport.lakehouse.verify.check import check
from sparkport.memory import MemoryCatalog

pytestmark = pytest.mark.tier("thorough")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        lakehouse(tmp_path_factory.mktemp("warehouse")) as opened,
        Server(opened.catalog, port=0, actions=lakehouse_actions(opened)) as server,
        connect(server.location) as connected,
    ):
        yield connected
        with hold(opened.settings) as catalog:
            assert check(catalog, deep=True).found == ()  # after all that was done to it


def run(client: Client, *arguments: str) -> int:
    return main([*arguments, "--location", client.location], {})


def test_the_demo_fills_related_tables_once(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(client, "demo", "--items", "400") == 0
    first = capsys.readouterr().out
    assert "demo.items: 400 rows ..." in first
    assert "SELECT" in first
    customers, orders, items = (client.scan(f"demo.{name}").read_all() for name in ("customers", "orders", "items"))
    assert (customers.num_rows, orders.num_rows, items.num_rows) == (20, 100, 400)
    assert set(orders["customer_id"].to_pylist()) <= set(customers["id"].to_pylist())
    totals: dict[int, Decimal] = {}
    for item in items.to_pylist():
        totals[item["order_id"]] = totals.get(item["order_id"], Decimal(0)) + item["quantity"] * item["price"]
    assert totals == dict(zip(orders["id"].to_pylist(), orders["total"].to_pylist(), strict=True))

    assert run(client, "demo", "--items", "800") == 0
    assert "demo.items is there already, with 400 rows" in capsys.readouterr().out
    assert run(client, "demo", "--items", "800", "--replace") == 0
    assert client.scan("demo.items").read_all().num_rows == 800


def test_maintain_and_upgrade_say_what_they_did(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(client, "demo", "--items", "40") == 0
    client.insert("demo.customers", client.scan("demo.customers").read_all())
    capsys.readouterr()
    assert run(client, "maintain", "demo.customers", "--step", "compact") == 0
    assert "small files put together" in capsys.readouterr().out
    assert run(client, "maintain", "demo.customers", "--step", "compact") == 0
    assert "there was nothing to do" in capsys.readouterr().out
    with pytest.raises(InvalidArgument, match="'what'"):
        client.action("maintain", b'{"schema_name": "demo", "table_name": "customers", "what": "compact"}')
    assert run(client, "table", "upgrade", "demo.customers") == 0
    assert "is of format v3 already" in capsys.readouterr().out


def test_open_transactions_are_listed(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transactions", client.location], {}) == 0
    assert "there are no open transactions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("maintain", b"[]"),
        ("maintain", b"{"),
        ("maintain", b"{}"),
        ("maintain", b'{"table_name": 3}'),
        ("demo", b'{"items": 0}'),
        ("demo", b'{"items": true}'),
        ("demo", b'{"replace": "yes"}'),
    ],
)
def test_a_wrong_body_is_refused(client: Client, action: str, body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        client.action(action, body)


def test_a_table_that_is_not_there_is_named(client: Client) -> None:
    with pytest.raises(NotFound, match=r"table 'public\.nothing' not found"):
        client.action("maintain", json.dumps({"table_name": "nothing"}).encode())


def test_a_table_of_another_catalog_is_not_taken_for_one_of_this(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    client.create_table("public.mine", pa.schema([("n", pa.int64())]), on_conflict="ignore")
    for arguments in (["maintain", "sea.public.mine"], ["table", "upgrade", "sea.public.mine"]):
        assert run(client, *arguments) == 1
        assert "catalog 'sea' is not 'lake'" in capsys.readouterr().err


def test_a_server_without_a_lakehouse_does_not_know_these_actions() -> None:
    with Server(MemoryCatalog("lake"), port=0) as server, connect(server.location) as client:
        of_journals = ("set_table", "flush_journal", "journal_status")
        for action in ("maintain", "upgrade_table", "unreadable_tables", "demo", *of_journals):
            with pytest.raises(Unsupported):
                client.action(action)
