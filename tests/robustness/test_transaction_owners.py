"""A transaction is its owner's: to all others an id that they have got hold of is one that does not exist."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import pyarrow as pa
import pytest
from tests.contract.clients import JsonClient
from tests.support.flight_rpc import AirportError, Connection

from sparkport.app import CustomAction, Server
from sparkport.auth import AllowAll, Identity, Operation, Resource, Secret, StaticTokens
from sparkport.catalog.context import CallContext
from sparkport.client import Client, Transaction, connect
from sparkport.errors import NotFound, PermissionDenied, SparkportError
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

pytestmark = pytest.mark.tier("fast")

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
TOKENS = StaticTokens({Secret("a"): "alice", Secret("b"): "bob", Secret("g"): "guest"})


class NoTransactions(AllowAll):
    """A guest may do everything but begin and end transactions."""

    def allows(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
        return identity.subject != "guest" or operation is not Operation.TRANSACTION


@dataclass(frozen=True, slots=True)
class Caller:
    client: Client
    connection: Connection
    token: str

    def inside(self, transaction_id: str) -> Transaction:
        return self.client.resume_transaction(transaction_id)

    @property
    def json(self) -> JsonClient:
        return JsonClient(self.connection, [("authorization", f"Bearer {self.token}")])


@pytest.fixture
def server() -> Iterator[Server]:
    catalog = MemoryCatalog("lake")
    catalog.create_table("public.t", ROWS.schema).insert(CallContext(), ROWS.to_reader())
    action = CustomAction("own", lambda ctx, body: [str(ctx.transaction_id).encode()])
    with serving(catalog, authenticator=TOKENS, authorizer=NoTransactions(), actions=[action]) as running:
        yield running


def caller(server: Server, token: str) -> Iterator[Caller]:
    with connect(server.location, token=token, catalog="lake") as client:
        connection = Connection(server.location)
        yield Caller(client, connection, token)
        connection.close()


@pytest.fixture
def alice(server: Server) -> Iterator[Caller]:
    yield from caller(server, "a")


@pytest.fixture
def bob(server: Server) -> Iterator[Caller]:
    yield from caller(server, "b")


@pytest.fixture
def guest(server: Server) -> Iterator[Caller]:
    yield from caller(server, "g")


Use = Callable[[Caller, str], object]

USES: dict[str, Use] = {
    "scan": lambda who, tx: who.inside(tx).scan("public.t").read_all(),
    "scan of tx.transactions": lambda who, tx: who.inside(tx).scan("tx.transactions").read_all(),
    "describe": lambda who, tx: who.inside(tx).describe("public.t"),
    "list": lambda who, tx: who.inside(tx).tables(),
    "version": lambda who, tx: who.inside(tx).version(),
    "insert": lambda who, tx: who.inside(tx).insert("public.t", ROWS),
    "update": lambda who, tx: who.inside(tx).update("public.t", pa.table({"rowid": [0], "id": [5]})),
    "delete": lambda who, tx: who.inside(tx).delete("public.t", [0]),
    "insert, JSON": lambda who, tx: who.json.inside(tx).insert("public.t", ROWS),
    "delete, JSON": lambda who, tx: who.json.inside(tx).delete("public.t", [0]),
    "the other header": lambda who, tx: who.json.inside(tx, header="airport-transaction-id").insert("public.t", ROWS),
    "tx.begin": lambda who, tx: who.inside(tx).call("tx.begin", rows=1),
    "tx.commit": lambda who, tx: who.inside(tx).call("tx.commit", rows=1),
    "tx.rollback": lambda who, tx: who.inside(tx).call("tx.rollback", rows=1),
    "tx.status": lambda who, tx: who.inside(tx).call("tx.status", rows=1),
    "status": lambda who, tx: who.json.status(tx),
    "status in a named catalog": lambda who, tx: who.json.action(
        "get_transaction_status", {"transaction_id": tx, "catalog_name": "lake"}
    ),
    "commit": lambda who, tx: who.json.commit(tx),
    "rollback": lambda who, tx: who.json.rollback(tx),
}


def told(use: Use, who: Caller, transaction_id: str) -> tuple[str, str]:
    try:
        use(who, transaction_id)
    except AirportError as exc:
        return str(exc.code), exc.message.replace(transaction_id, "ID")
    except SparkportError as exc:
        return type(exc).__name__, exc.message.replace(transaction_id, "ID")
    return "OK", ""


@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended"])
@pytest.mark.parametrize("use", USES)
def test_anothers_transaction_answers_like_one_that_never_was(
    alice: Caller, bob: Caller, use: str, ended: bool
) -> None:
    tx = alice.json.begin(auto_commit=False)
    alice.json.inside(tx).insert("public.t", ROWS)
    if ended:
        alice.json.commit(tx)
    answer = told(USES[use], bob, tx)
    assert answer == told(USES[use], bob, str(uuid.uuid4()))
    assert answer[0] != "OK"
    assert "transaction 'ID' not found" in answer[1]
    assert alice.json.status(tx) == ("committed" if ended else "active")
    if not ended:
        assert alice.json.commit(tx) == "committed"


def test_one_that_commits_each_statement_is_its_owners_too(alice: Caller, bob: Caller) -> None:
    tx = alice.json.begin()
    with pytest.raises(NotFound, match="not found"):
        bob.inside(tx).insert("public.t", ROWS)
    assert alice.json.status(tx) == "active"
    alice.inside(tx).insert("public.t", ROWS)
    assert alice.json.status(tx) == "committed"


def test_a_listing_of_everything_and_actions_of_ones_own_are_guarded_too(alice: Caller, bob: Caller) -> None:
    tx = alice.json.begin(auto_commit=False)
    assert alice.inside(tx).action("own") == [tx.encode()]
    with pytest.raises(NotFound, match="not found"):
        bob.inside(tx).action("own")
    with pytest.raises(AirportError) as refused:
        list(bob.connection.unary_stream("ListFlights", b"", bob.json.inside(tx).headers))
    assert refused.value.code is grpc.StatusCode.NOT_FOUND
    assert alice.json.rollback(tx) == "aborted"


def test_everybody_sees_who_has_open_transactions(alice: Caller, bob: Caller) -> None:
    tx = alice.json.begin(auto_commit=False)
    assert bob.client.scan("tx.transactions").read_all().select(["id", "owner"]).to_pylist() == [
        {"id": tx, "owner": "alice"}
    ]


@pytest.mark.parametrize("function", ["begin", "commit", "rollback"])
def test_functions_need_the_right_that_actions_need(guest: Caller, alice: Caller, function: str) -> None:
    with pytest.raises(PermissionDenied, match="may not transaction 'lake'"):
        guest.inside(str(uuid.uuid4())).call(f"tx.{function}", rows=1)
    with pytest.raises(AirportError) as refused:
        guest.json.action("commit_transaction", {"transaction_id": str(uuid.uuid4()), "catalog_name": "lake"})
    assert refused.value.code is grpc.StatusCode.PERMISSION_DENIED
    assert alice.inside(alice.json.begin()).call(f"tx.{function}", rows=1).num_chunks > 0


def test_the_listing_names_no_tables_to_who_may_not_know_of_them() -> None:
    """Each has a schema; who may read ``tx.transactions`` sees that others have transactions open."""

    class OwnSchema(AllowAll):
        def allows(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
            return resource.schema in (None, identity.subject, "tx")

    catalog = MemoryCatalog("lake")
    for name in ("alice", "bob"):
        catalog.create_schema(CallContext(), name)
        catalog.create_table(f"{name}.own", ROWS.schema)
    with (
        serving(catalog, authenticator=TOKENS, authorizer=OwnSchema()) as running,
        connect(running.location, token="a", catalog="lake") as alice,
        connect(running.location, token="b", catalog="lake") as bob,
        alice.transaction() as transaction,
    ):
        transaction.insert("alice.own", ROWS)
        named = [client.scan("tx.transactions").read_all().to_pylist()[0] for client in (alice, bob)]
    assert [row["changed_tables"] for row in named] == [["own"], []]
    assert [row["owner"] for row in named] == ["alice", "alice"]
