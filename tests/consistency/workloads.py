"""What many clients do at once while their history is recorded: append to lists, fill sets, move money, skew writes.

All goes over real gRPC, against any engine that can be served, in deferred transactions or in ones whose single
statement commits itself. On request the engine is busy with its own work on the tables meanwhile, and somebody changes
them past the server.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
from tests.consistency.client import ContractClient
from tests.consistency.disturbances import Disturbance, Foreigner, appends_to_lists, keeps_rows_of_its_own, maintains
from tests.consistency.engines import PATIENCE_SECONDS, EngineUnderTest
from tests.consistency.history import Outcome, Recorder, Transaction
from tests.consistency.sessions import AutoCommitting, Calls, Deferring, OpenTransaction, Session

from sparkport.catalog.transaction import Isolation

__all__ = ["Load", "append_to_lists", "insert_and_delete", "skew_writes", "transfer_money"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``transactions`` are those that each client has to get through; tries that are aborted come on top.

    ``writers`` is the share of them that change something, the others only look. With ``auto_commit`` that is one
    statement, the last one. ``disturbed`` lets the engine and plain Spark work on the tables at the same time.
    """

    isolation: Isolation = Isolation.SNAPSHOT
    clients: int = 8
    transactions: int = 12
    keys: int = 4
    seed: int = 0
    writers: float = 1.0
    auto_commit: bool = False
    disturbed: bool = False


Body = Callable[[OpenTransaction], None]
Script = Callable[[Session, random.Random], None]


def append_to_lists(
    engine: EngineUnderTest, load: Load, *, more: Sequence[Callable[[Sequence[str]], Disturbance]] = ()
) -> list[Transaction]:
    """Each transaction reads whole tables and appends to a few keys in them."""
    empty = pa.table({"key": pa.array(range(load.keys), pa.int64()), "elements": pa.array([""] * load.keys)})
    tables = [engine.new_table("lists", empty) for _ in range(4)]

    def several(dice: random.Random) -> Body:
        share = 0.5 if dice.random() < load.writers else 0.0
        steps = [
            (dice.choice(tables), dice.randrange(load.keys), dice.random() < share) for _ in range(dice.randint(1, 4))
        ]

        def body(transaction: OpenTransaction) -> None:
            for number, (table, key, appends) in enumerate(steps):
                rows = transaction.lists(table)
                if appends:
                    transaction.append(table, rows, {key: transaction.number * 10 + number})

        return body

    def single(dice: random.Random) -> Body:
        read = dice.sample(tables, dice.randint(1, 2))
        keys = dice.sample(range(load.keys), dice.randint(1, 2)) if dice.random() < load.writers else []

        def body(transaction: OpenTransaction) -> None:
            rows = {table: transaction.lists(table) for table in read}
            if keys:
                elements = {key: transaction.number * 10 + number for number, key in enumerate(keys)}
                transaction.append(read[-1], rows[read[-1]], elements)

        return body

    def look(transaction: OpenTransaction) -> None:
        for table in tables:
            transaction.lists(table)

    others = _disturbances(engine, load, tables, appends_to_lists(load.keys))
    if engine.is_journalled:
        del others[1:]  # of changes of one row by plain Spark and here ours stay
    others += [make(tables) for make in more]
    return _run(engine, load, _mixed(load, single if load.auto_commit else several), look, others)


def insert_and_delete(
    engine: EngineUnderTest, load: Load, *, more: Sequence[Callable[[Sequence[str]], Disturbance]] = ()
) -> list[Transaction]:
    """Each transaction looks at tables that are sets, inserts values that never were there and deletes some it saw."""
    tables = [engine.new_table("sets", pa.table({"value": pa.array([], pa.int64())})) for _ in range(3)]

    def several(dice: random.Random) -> Body:
        chosen = dice.sample(tables, dice.randint(1, 2))
        counts = {table: (dice.randint(0, 2), dice.randint(0, 2)) for table in chosen}
        writes = dice.random() < load.writers

        def body(transaction: OpenTransaction) -> None:
            for place, table in enumerate(chosen):
                rows = transaction.values(table)
                inserts, deletes = counts[table] if writes else (0, 0)
                new = [transaction.number * 10 + place * 2 + number for number in range(inserts)]
                if new:
                    transaction.insert(table, new)
                old = sorted(rows)[: min(deletes, len(rows))]
                if old:
                    transaction.delete(table, rows, old)
                if new or old:
                    transaction.values(table)

        return body

    def single(dice: random.Random) -> Body:
        table, deletes, writes = dice.choice(tables[:2]), dice.random() < 0.4, dice.random() < load.writers

        def body(transaction: OpenTransaction) -> None:
            rows = transaction.values(table)
            if writes and deletes and rows:
                transaction.delete(table, rows, sorted(rows)[:1])
            elif writes:
                transaction.insert(table, [transaction.number * 10, transaction.number * 10 + 1])

        return body

    def look(transaction: OpenTransaction) -> None:
        for table in tables:
            transaction.values(table)

    others = [make(tables) for make in more]
    return _run(engine, load, _mixed(load, single if load.auto_commit else several), look, others)


def transfer_money(engine: EngineUnderTest, load: Load, *, opening: int = 100) -> list[Transaction]:
    """Accounts in two tables; each transaction sees all of them, most move money between two accounts.

    A statement that commits itself moves it inside a table.
    """
    tables = [engine.new_table("accounts", _registers(load.keys, opening)) for _ in range(2)]

    def body_of(dice: random.Random) -> Body:
        touched = [dice.choice(tables)] if load.auto_commit else tables
        places = [(table, key) for table in touched for key in range(load.keys)]
        source, target = dice.sample(places, 2)
        amount = dice.randint(1, 20) if dice.random() < load.writers else 0

        def body(transaction: OpenTransaction) -> None:
            rows = {table: transaction.registers(table) for table in tables}
            if not amount:
                return
            changes: dict[str, dict[int, int]] = {}
            for (table, key), more in ((source, -amount), (target, amount)):
                changes.setdefault(table, {})[key] = rows[table][key]["value"] + more
            for table, values in changes.items():
                transaction.write(table, rows[table], values)

        return body

    def look(transaction: OpenTransaction) -> None:
        for table in tables:
            transaction.registers(table)

    others = _disturbances(engine, load, tables, keeps_rows_of_its_own)
    return _run(engine, load, _mixed(load, body_of), look, others)


def skew_writes(engine: EngineUnderTest, load: Load, *, rounds: int = 8) -> list[Transaction]:
    """In each round two transactions read both rows, and when both have, each updates another one."""
    tables = [engine.new_table("skew", _registers(1, 0)) for _ in range(2)]
    meeting = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def script(session: Session, dice: random.Random) -> None:
        def body(transaction: OpenTransaction) -> None:
            rows = {table: transaction.registers(table) for table in tables}
            meeting.wait()
            mine = tables[session.number]
            transaction.write(mine, rows[mine], {0: rows[mine][0]["value"] + 1})

        for _ in range(rounds):
            session.run(body)
            meeting.wait()  # the next round begins when both have ended

    def look(transaction: OpenTransaction) -> None:
        for table in tables:
            transaction.registers(table)

    return _run(engine, replace(load, clients=2), script, look, [])


def _mixed(load: Load, body_of: Callable[[random.Random], Body]) -> Script:
    def script(session: Session, dice: random.Random) -> None:
        for _ in range(load.transactions):
            body = body_of(dice)
            if dice.random() < 0.15 and not load.auto_commit:
                session.run(body, roll_back=True)
            else:
                session.run_until_committed(body)

    return script


def _disturbances(
    engine: EngineUnderTest, load: Load, tables: Sequence[str], foreigner: Foreigner
) -> list[Disturbance]:
    if not load.disturbed:
        return []
    assert engine.maintain is not None, "there is nothing that could disturb the clients of this engine"
    assert engine.plain_spark is not None, "nobody can change the tables of this engine past the server"
    return [maintains(engine.maintain, tables), foreigner(engine.plain_spark, tables)]


def _run(
    engine: EngineUnderTest, load: Load, script: Script, look: Body, others: Sequence[Disturbance]
) -> list[Transaction]:
    """All clients at once, then one that looks at everything, so that what was lost is missed."""
    recorder = Recorder(engine.clock)
    over = threading.Event()

    def play(session: Session) -> None:
        script(session, random.Random(load.seed * 1_000 + session.number))

    with (
        _sessions(engine, load, recorder) as sessions,
        ThreadPoolExecutor(load.clients + len(others), thread_name_prefix="client") as pool,
    ):
        disturbing = [pool.submit(other, recorder, over, random.Random(load.seed)) for other in others]
        playing = [pool.submit(play, session) for session in sessions[:-1]]
        try:
            for future in playing:
                future.result()
        finally:
            over.set()
        for future in disturbing:
            future.result()
        assert sessions[-1].run(look) is Outcome.OK, "nobody else is there, but the last look was refused"
    return recorder.transactions


@contextmanager
def _sessions(engine: EngineUnderTest, load: Load, recorder: Recorder) -> Iterator[list[Session]]:
    """One for each client, and one more for the last look."""
    with ExitStack() as stack:

        def beginner() -> Callable[[], Calls]:
            begin = engine.begin
            if begin is not None:
                return lambda: begin(load.isolation, load.auto_commit)
            if load.auto_commit:
                contract = ContractClient(engine.location, timeout=PATIENCE_SECONDS)
                stack.callback(contract.close)
                return lambda: AutoCommitting(contract, load.isolation)
            client = stack.enter_context(engine.connect())
            return lambda: Deferring(client, load.isolation)

        yield [
            Session(beginner(), recorder, number, auto_commit=load.auto_commit, refusals=engine.refusals)
            for number in range(load.clients + 1)
        ]


def _registers(keys: int, value: int) -> pa.Table:
    columns = {"key": list(range(keys)), "value": [value] * keys, "writer": [0] * keys}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
