"""What many clients do at once while their history is recorded: append to lists, move money, and skew writes.

All goes over real gRPC in deferred transactions, against any engine that can be served. Rows are found by key and
changed by the row id that the same transaction read, as every client of the contract has to.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from tests.consistency.client import CallFailed, ContractClient
from tests.consistency.engines import EngineUnderTest
from tests.consistency.history import Append, Operation, Outcome, Read, Recorder, Transaction, Write

from sparkport.catalog.transaction import Isolation
from sparkport.errors import Code
from sparkport.testing import serving

__all__ = ["Load", "append_to_lists", "skew_writes", "transfer_money"]

_TRIES = 10
_NO_ANSWER = frozenset({Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED})
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``transactions`` are those that each client has to get through; tries that are aborted come on top."""

    isolation: Isolation = Isolation.SNAPSHOT
    clients: int = 8
    transactions: int = 12
    keys: int = 4
    seed: int = 0


@dataclass(slots=True)
class _Open:
    """A transaction under way: each method is a call of the contract, and an entry in the record."""

    client: ContractClient
    id: str
    number: int
    operations: list[Operation] = field(default_factory=list)

    def rows(self, table: str) -> dict[int, dict[str, Any]]:
        return {row["key"]: row for row in self.client.read(table, self.id).to_pylist()}

    def lists(self, table: str) -> dict[int, dict[str, Any]]:
        rows = self.rows(table)
        self.operations += [Read((table, key), _elements(row["elements"])) for key, row in sorted(rows.items())]
        return rows

    def append(self, table: str, row: dict[str, Any], element: int) -> None:
        text = ",".join([*filter(None, [row["elements"]]), str(element)])
        self._update(table, row["rowid"], {"key": row["key"], "elements": text})
        self.operations.append(Append((table, row["key"]), element))

    def registers(self, table: str) -> dict[int, dict[str, Any]]:
        rows = self.rows(table)
        self.operations += [Read((table, key), (row["value"], row["writer"])) for key, row in sorted(rows.items())]
        return rows

    def write(self, table: str, row: dict[str, Any], value: int) -> None:
        self._update(table, row["rowid"], {"key": row["key"], "value": value, "writer": self.number})
        self.operations.append(Write((table, row["key"]), (value, self.number)))

    def _update(self, table: str, row_id: int, row: dict[str, Any]) -> None:
        changed = self.client.update(table, [row_id], pa.RecordBatch.from_pylist([row]), self.id)
        assert changed == 1, f"row {row_id} of {table} was read in this transaction, but {changed} rows were updated"


@dataclass(slots=True)
class _Session:
    """One client and its part of the record."""

    client: ContractClient
    recorder: Recorder
    number: int
    isolation: Isolation

    def run(self, body: Callable[[_Open], None], *, roll_back: bool = False) -> Outcome:
        """One try. Only a conflict may refuse it; anything else is an error of the server's."""
        clock = self.recorder.clock
        begin_called = clock()
        transaction_id = self.client.begin(auto_commit=False, isolation=self.isolation.value)
        begun = clock()
        transaction = _Open(self.client, transaction_id, self.recorder.new_id())
        end_called = 0
        try:
            body(transaction)
            end_called = clock()
            if roll_back:
                self.client.rollback(transaction_id)
                outcome = Outcome.ABORTED
            else:
                self.client.commit(transaction_id)
                outcome = Outcome.OK
        except CallFailed as failure:
            if failure.code is not Code.ABORTED and failure.code not in _NO_ANSWER:
                raise
            unknown = failure.code in _NO_ANSWER and end_called > 0
            outcome = Outcome.UNKNOWN if unknown else Outcome.ABORTED
        self.recorder.add(
            Transaction(
                id=transaction.number,
                client=self.number,
                operations=tuple(transaction.operations),
                outcome=outcome,
                begin_called=begin_called,
                begun=begun,
                end_called=end_called or clock(),
                ended=clock(),
            )
        )
        return outcome

    def run_until_committed(self, body: Callable[[_Open], None]) -> Outcome:
        """Tries again after a conflict, not for ever: under serializable somebody can be unlucky for long."""
        outcomes = (self.run(body) for _ in range(_TRIES))
        return next((outcome for outcome in outcomes if outcome is not Outcome.ABORTED), Outcome.ABORTED)


Script = Callable[[_Session, random.Random], None]


def append_to_lists(engine: EngineUnderTest, load: Load) -> list[Transaction]:
    """Each transaction reads whole tables and appends to a few keys in them."""
    tables = ("lists_a", "lists_b", "lists_c")
    empty = pa.table({"key": pa.array(range(load.keys), pa.int64()), "elements": pa.array([""] * load.keys)})
    for table in tables:
        engine.create_table(table, empty)

    def body_of(dice: random.Random) -> Callable[[_Open], None]:
        steps = [
            (dice.choice(tables), dice.randrange(load.keys), dice.random() < 0.5) for _ in range(dice.randint(1, 4))
        ]

        def body(transaction: _Open) -> None:
            for number, (table, key, appends) in enumerate(steps):
                rows = transaction.lists(table)
                if appends:
                    transaction.append(table, rows[key], transaction.number * 10 + number)

        return body

    def look(transaction: _Open) -> None:
        for table in tables:
            transaction.lists(table)

    return _run(engine, load, _mixed(load, body_of), look)


def transfer_money(engine: EngineUnderTest, load: Load, *, opening: int = 100) -> list[Transaction]:
    """Accounts in two tables; each transaction sees all of them, most move money between two."""
    tables = ("accounts_a", "accounts_b")
    for table in tables:
        engine.create_table(table, _registers(load.keys, opening))

    def body_of(dice: random.Random) -> Callable[[_Open], None]:
        accounts = [(table, key) for table in tables for key in range(load.keys)]
        source, target = dice.sample(accounts, 2)
        amount = 0 if dice.random() < 0.25 else dice.randint(1, 20)

        def body(transaction: _Open) -> None:
            rows = {(table, key): row for table in tables for key, row in transaction.registers(table).items()}
            if amount:
                transaction.write(source[0], rows[source], rows[source]["value"] - amount)
                transaction.write(target[0], rows[target], rows[target]["value"] + amount)

        return body

    def look(transaction: _Open) -> None:
        for table in tables:
            transaction.registers(table)

    return _run(engine, load, _mixed(load, body_of), look)


def skew_writes(engine: EngineUnderTest, load: Load, *, rounds: int = 8) -> list[Transaction]:
    """In each round two transactions read both rows, and when both have, each updates another one."""
    tables = ("skew_a", "skew_b")
    for table in tables:
        engine.create_table(table, _registers(1, 0))
    meeting = threading.Barrier(2, timeout=_PATIENCE_SECONDS)

    def script(session: _Session, dice: random.Random) -> None:
        def body(transaction: _Open) -> None:
            rows = {table: transaction.registers(table)[0] for table in tables}
            meeting.wait()
            mine = tables[session.number]
            transaction.write(mine, rows[mine], rows[mine]["value"] + 1)

        for _ in range(rounds):
            session.run(body)
            meeting.wait()  # the next round begins when both have ended

    def look(transaction: _Open) -> None:
        for table in tables:
            transaction.registers(table)

    return _run(engine, Load(isolation=load.isolation, clients=2, seed=load.seed), script, look)


def _mixed(load: Load, body_of: Callable[[random.Random], Callable[[_Open], None]]) -> Script:
    def script(session: _Session, dice: random.Random) -> None:
        for _ in range(load.transactions):
            body = body_of(dice)
            if dice.random() < 0.15:
                session.run(body, roll_back=True)
            else:
                session.run_until_committed(body)

    return script


def _run(engine: EngineUnderTest, load: Load, script: Script, look: Callable[[_Open], None]) -> list[Transaction]:
    """All clients at once, then one that looks at everything, so that what was lost is missed."""
    recorder = Recorder()

    def play(session: _Session) -> None:
        script(session, random.Random(load.seed * 1_000 + session.number))

    with serving(engine.catalog) as server, _clients(server.location, load.clients + 1) as clients:
        sessions = [_Session(client, recorder, number, load.isolation) for number, client in enumerate(clients)]
        with ThreadPoolExecutor(load.clients, thread_name_prefix="client") as pool:
            for future in [pool.submit(play, session) for session in sessions[:-1]]:
                future.result()
        assert sessions[-1].run(look) is Outcome.OK, "nobody else is there, but the last look was refused"
    return recorder.transactions


@contextmanager
def _clients(location: str, count: int) -> Iterator[Sequence[ContractClient]]:
    clients = [ContractClient(location, timeout=_PATIENCE_SECONDS) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


def _registers(keys: int, value: int) -> pa.Table:
    columns = {"key": list(range(keys)), "value": [value] * keys, "writer": [0] * keys}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def _elements(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)
