"""One statement, one commit: whatever ends it early, and wherever, nothing has changed and nothing is left open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.clients import JsonClient, change, command, open_exchange
from tests.contract.conftest import EVENTS, Lake, events
from tests.contract.own_tables import (
    Deletes,
    DeletesBatches,
    Inserts,
    OwnTable,
    Updates,
    UpdatesBatches,
    own_table,
    served,
)
from tests.support.flight_rpc import AirportError, Connection, batch_messages
from tests.support.lockstep import Exchange, MessageExchange

from sparkport.lakehouse.tables.statement import LakeStatement
from sparkport.memory.statement import MemoryStatement
from sparkport.transactions.manager import Transactions

pytestmark = pytest.mark.tier("fast")

WAIT = 20.0
TABLE = "analytics.events"
LOOSE = pa.schema([column.with_nullable(True) for column in EVENTS])
UPDATE = pa.schema([("name", pa.string()), ("rowid", pa.int64())])
DELETE = pa.schema([("rowid", pa.int64())])

HOW = ["fail", "cancel", "vanish", "deadline"]
WHERE = {"first": 0, "middle": 1, "last": 2}


def batch(operation: str, number: int, *, bad: bool = False) -> pa.RecordBatch:
    """The statement's batch of that number; a bad one has a null where none may be."""
    if operation == "insert":
        row = {**events(10 + number).to_pylist()[0], **({"id": None} if bad else {})}
        return pa.RecordBatch.from_pylist([row], LOOSE)
    row_id = None if bad else number
    if operation == "update":
        return pa.RecordBatch.from_pylist([{"name": "changed", "rowid": row_id}], UPDATE)
    return pa.RecordBatch.from_pylist([{"rowid": row_id}], DELETE)


@dataclass
class Watch:
    """Tells when the server has opened a statement, taken a batch, let go of the statement, and rolled back."""

    opened: threading.Event = field(default_factory=threading.Event)
    pushed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: threading.Event = field(default_factory=threading.Event)
    rolled_back: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()

    def after(owner: type, name: str, tell: Callable[[], Any]) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            try:
                return original(*arguments, **named)
            finally:
                tell()

        monkeypatch.setattr(owner, name, wrapped)

    for statement in (MemoryStatement, LakeStatement):
        after(statement, "__init__", watch.opened.set)
        after(statement, "push", watch.pushed.release)
        after(statement, "abort", watch.ended.set)
    for ending in ("failed", "rollback"):
        after(Transactions, ending, watch.rolled_back.set)
    return watch


@contextmanager
def connected(lake_location: str, how: str) -> Iterator[Connection]:
    connection = Connection(lake_location, timeout=0.2 if how == "deadline" else 30.0)
    yield connection
    connection.close()


def end_early(connection: Connection, call: Exchange | MessageExchange, how: str) -> None:
    """Never by the end of input: that would be a statement like any other."""
    messages = call.messages if isinstance(call, Exchange) else call
    if how == "cancel":
        messages.cancel()
    elif how == "vanish":
        connection.close()
    elif how == "deadline":
        with pytest.raises(AirportError, match="DEADLINE_EXCEEDED"):
            _drain(messages)


def _drain(messages: MessageExchange) -> None:
    while messages.receive() is not None:
        pass


def exchange_until(
    connection: Connection, operation: str, last: int, how: str, *, watch: Watch, returning: bool, headers: Any = ()
) -> None:
    schema = batch(operation, 0).schema
    try:
        exchange = open_exchange(connection, operation, TABLE, schema, returning=returning, headers=headers)
    except AirportError:
        assert how == "deadline"  # over before it began, on a slow machine
        return
    try:
        for number in range(last + 1):
            bad = how == "fail" and number == last
            exchange.write(batch(operation, number, bad=bad))
            if bad:
                with pytest.raises(AirportError, match="INVALID_ARGUMENT"):
                    exchange.read()
                return
            if how != "deadline":
                assert watch.pushed.acquire(timeout=WAIT)
                if returning:
                    exchange.read()
        end_early(connection, exchange, how)
    finally:
        exchange.messages.cancel()
        exchange.close()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("returning", [False, True], ids=["plain", "returning"])
@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
def test_an_exchange_that_ends_early_changes_nothing(
    lake: Lake, watch: Watch, operation: str, returning: bool, where: str, how: str
) -> None:
    before = lake.rows()
    with connected(lake.server.location, how) as connection:
        exchange_until(connection, operation, WHERE[where], how, watch=watch, returning=returning)
        assert not watch.opened.is_set() or watch.ended.wait(WAIT)
    assert lake.rows() == before
    assert change(lake.connection, operation, TABLE, _all(operation))[0] == 3


def _all(operation: str) -> pa.Table:
    return pa.Table.from_batches([batch(operation, number) for number in range(3)])


@pytest.mark.parametrize("how", ["fail", "cancel", "vanish"])
@pytest.mark.parametrize("auto_commit", [True, False], ids=["auto-commit", "deferred"])
@pytest.mark.parametrize("returning", [False, True], ids=["plain", "returning"])
@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
def test_it_aborts_the_transaction_it_is_in(
    lake: Lake, watch: Watch, operation: str, returning: bool, auto_commit: bool, how: str
) -> None:
    before = lake.rows()
    transaction = lake.json.begin(auto_commit=auto_commit)
    headers = [("airport-transaction-id", transaction)]
    with connected(lake.server.location, how) as connection:
        exchange_until(connection, operation, 1, how, watch=watch, returning=returning, headers=headers)
        assert watch.rolled_back.wait(WAIT)
    assert lake.rows() == before
    assert lake.json.status(transaction) == "aborted"
    manager = lake.catalog.transactions
    assert manager is not None
    assert manager.open_transactions() == []


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("operation", ["insert", "update"])
def test_a_put_that_ends_early_changes_nothing(lake: Lake, watch: Watch, operation: str, where: str, how: str) -> None:
    before = lake.rows()
    last = WHERE[where]
    with connected(lake.server.location, how) as connection:
        more = {"row_ids": [0, 1, 2]} if operation == "update" else {}
        call = JsonClient(connection).open_put(command(operation, TABLE, **more), LOOSE)
        try:
            for number in range(last + 1):
                bad = how == "fail" and number == last
                for message in batch_messages(batch("insert", number, bad=bad)):
                    call.send(message)
                if not bad and how != "deadline":
                    assert watch.pushed.acquire(timeout=WAIT)
            if how == "fail":
                with pytest.raises(AirportError, match="NOT NULL constraint failed"):
                    call.receive()
            else:
                end_early(connection, call, how)
            assert not watch.opened.is_set() or watch.ended.wait(WAIT)
        finally:
            call.cancel()
            call.close()
    assert lake.rows() == before


# A user's table

OWN = [
    (Inserts, "insert", pa.schema([("id", pa.int64()), ("name", pa.string())])),
    (Updates, "update", UPDATE),
    (UpdatesBatches, "update", UPDATE),
    (Deletes, "delete", DELETE),
    (DeletesBatches, "delete", DELETE),
]


def own_batch(schema: pa.Schema, number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": number, "name": "changed", "rowid": number}], schema)


@pytest.mark.parametrize("how", ["cancel", "vanish"])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("ability", "operation", "schema"), OWN)
def test_returning_of_a_users_table_that_ends_early_rolls_back(
    ability: type[OwnTable], operation: str, schema: pa.Schema, where: str, how: str
) -> None:
    with served(own_table([ability]), manager=True) as own, connected(own.location, how) as connection:
        assert own.manager is not None
        before = {row_id: dict(row) for row_id, row in own.table.rows.items()}
        exchange = open_exchange(connection, operation, "public.own", schema, returning=True)
        try:
            for number in range(WHERE[where] + 1):
                exchange.write(own_batch(schema, number))
                exchange.read()
            end_early(connection, exchange, how)
            assert own.manager.rolled_back.wait(WAIT)
        finally:
            exchange.messages.cancel()
            exchange.close()
        assert own.manager.log == [("begin", "tx1"), ("rollback", "tx1")]
        assert (own.table.rows, own.table.staged) == (before, {})


@pytest.mark.parametrize("how", ["cancel", "vanish"])
@pytest.mark.parametrize(("ability", "operation", "schema"), [OWN[0], OWN[2], OWN[4]])
def test_a_users_table_that_reads_when_the_client_goes_is_told_and_changes_nothing(
    ability: type[OwnTable], operation: str, schema: pa.Schema, how: str
) -> None:
    with served(own_table([ability])) as own, connected(own.location, how) as connection:
        before = {row_id: dict(row) for row_id, row in own.table.rows.items()}
        exchange = open_exchange(connection, operation, "public.own", schema)
        try:
            exchange.write(own_batch(schema, 0))
            assert own.table.entered.acquire(timeout=WAIT)
            end_early(connection, exchange, how)
            assert own.table.left.acquire(timeout=WAIT)
        finally:
            exchange.messages.cancel()
            exchange.close()
        assert own.calls == [], "the table saw an end of input that was none"
        assert own.table.rows == before


def test_a_users_table_that_swallows_the_failure_of_its_input_is_not_believed() -> None:
    class Forgiving(Inserts):
        def insert(self, ctx: Any, rows: pa.RecordBatchReader, options: Any = None) -> Any:
            with suppress(Exception):
                rows.read_all()
            return super().insert(ctx, pa.table({"id": [1], "name": ["x"]}).to_reader(), options)

    class Wrapping(Inserts):
        def insert(self, ctx: Any, rows: pa.RecordBatchReader, options: Any = None) -> Any:
            try:
                return super().insert(ctx, rows, options)
            except Exception as exc:
                raise RuntimeError("something else") from exc

    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    for kind in (Forgiving, Wrapping):
        with served(kind(), manager=True) as own:
            headers = [("x-transaction-id", own.json.begin())]
            with open_exchange(own.connection, "insert", "public.own", schema, headers=headers) as exchange:
                exchange.write(own_batch(schema, 0))
                for message in batch_messages(pa.record_batch({"id": [1], "name": ["x"]})):
                    exchange.messages.send(message[:-3])
                with pytest.raises(AirportError, match="INVALID_ARGUMENT"):
                    exchange.read()
            assert len(own.table.rows) == 5
            assert own.json.status("tx1") == "aborted"


@pytest.mark.parametrize("how", ["cancel", "vanish"])
def test_after_the_end_of_input_the_status_tells_whether_it_happened(how: str) -> None:
    may_go_on = threading.Event()

    class Slow(Inserts):
        def insert(self, ctx: Any, rows: pa.RecordBatchReader, options: Any = None) -> Any:
            result = super().insert(ctx, rows, options)
            assert may_go_on.wait(WAIT)
            return result

    with served(Slow(), manager=True) as own, connected(own.location, how) as connection:
        assert own.manager is not None
        schema = OWN[0][2]
        transaction = own.json.begin()
        headers = [("x-transaction-id", transaction)]
        exchange = open_exchange(connection, "insert", "public.own", schema, headers=headers)
        try:
            exchange.write(own_batch(schema, 0))
            exchange.done_writing()
            assert own.table.left.acquire(timeout=WAIT)
            end_early(connection, exchange, how)
            may_go_on.set()
            assert own.manager.ended.wait(WAIT)
        finally:
            exchange.close()
        happened = len(own.table.rows) == 6
        assert own.json.status(transaction) == ("committed" if happened else "aborted")
        assert own.table.staged == {}
