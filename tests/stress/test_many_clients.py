"""Two hundred clients at once: what the server acknowledged is exactly what is there, and nothing is left behind."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from tests.consistency.client import CallFailed, ContractClient, rows_of

from sparkport.app import Limits
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.stress]

CLIENTS = 200
CHANNELS = 20
TABLES = ("a", "b")
_SECONDS = float(os.environ.get("SPARKPORT_STRESS_SECONDS", "5"))
_PATIENCE_SECONDS = 60.0
_COLUMNS = pa.schema([("owner", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])

Rows = dict[int, tuple[int, int, int]]
"""Owner, key and value by row id."""


@dataclass(slots=True)
class Worker:
    """One client. It changes only rows of its own, so it knows at each moment what must be there."""

    client: ContractClient
    number: int
    acknowledged: dict[str, Rows] = field(default_factory=lambda: {table: {} for table in TABLES})
    done: Counter[str] = field(default_factory=Counter)
    _keys: int = 0

    def run(self, until: float) -> None:
        dice = random.Random(self.number)
        ways: list[Callable[[random.Random], None]] = [self.alone, self.alone, self.auto_commit, self.deferred]
        while time.monotonic() < until:
            dice.choice(ways)(dice)

    def alone(self, dice: random.Random) -> None:
        self.change(dice, self.acknowledged, None)

    def auto_commit(self, dice: random.Random) -> None:
        transaction = self.client.begin()
        for _ in range(dice.randint(1, 2)):
            self.change(dice, self.acknowledged, transaction)
        self.client.commit(transaction)

    def deferred(self, dice: random.Random) -> None:
        """All of it or nothing: what was changed counts from the commit on."""
        transaction = self.client.begin(auto_commit=False)
        rows = {table: dict(found) for table, found in self.acknowledged.items()}
        for _ in range(dice.randint(1, 3)):
            self.change(dice, rows, transaction)
        if dice.random() < 0.3:
            self.client.rollback(transaction)
            self.done["rolled back"] += 1
            return
        self.client.commit(transaction)
        self.acknowledged = rows
        self.done["committed"] += 1

    def change(self, dice: random.Random, rows: dict[str, Rows], transaction: str | None) -> None:
        table = dice.choice(TABLES)
        mine = rows[table]
        some = dice.sample(sorted(mine), min(len(mine), dice.randint(1, 3)))
        kind = dice.choice(("insert", "update", "delete")) if some else "insert"
        if kind == "insert":
            new = [(self.number, self._keys + index, dice.randrange(1_000)) for index in range(dice.randint(1, 4))]
            self._keys += len(new)
            mine.update(zip(self.client.insert(table, _batch(new), transaction), new, strict=True))
        elif kind == "update":
            changed = [(*mine[row_id][:2], dice.randrange(1_000)) for row_id in some]
            assert self.client.update(table, some, _batch(changed), transaction) == len(some)
            mine.update(zip(some, changed, strict=True))
        else:
            assert self.client.delete(table, some, transaction) == len(some)
            for row_id in some:
                del mine[row_id]
        self.done[kind] += 1


def _batch(rows: list[tuple[int, int, int]]) -> pa.RecordBatch:
    owners, keys, values = zip(*rows, strict=True)
    return rows_of(owner=owners, key=keys, value=values)


def _rows(table: pa.Table) -> Rows:
    found = {row["rowid"]: (row["owner"], row["key"], row["value"]) for row in table.to_pylist()}
    assert len(found) == table.num_rows, "a row id is there twice"
    return found


def test_what_was_acknowledged_to_two_hundred_clients_is_exactly_what_is_there() -> None:
    threads_before = set(threading.enumerate())
    catalog = MemoryCatalog("lake")
    for table in TABLES:
        catalog.create_table(table, _COLUMNS)
    with serving(catalog, limits=Limits(max_concurrent_calls=512)) as server:
        channels = [ContractClient(server.location, timeout=_PATIENCE_SECONDS) for _ in range(CHANNELS)]
        workers = [Worker(channels[number % CHANNELS], number) for number in range(CLIENTS)]
        until = time.monotonic() + _SECONDS
        failures: Counter[str] = Counter()
        with ThreadPoolExecutor(CLIENTS, thread_name_prefix="client") as pool:
            for future in [pool.submit(worker.run, until) for worker in workers]:
                failure = future.exception()
                if isinstance(failure, CallFailed):
                    failures[str(failure)] += 1
                elif failure is not None:
                    raise failure
        total = sum((worker.done for worker in workers), Counter())
        logger.info("%s", ", ".join(f"{number} {what}" for what, number in sorted(total.items())))
        assert not failures
        for table in TABLES:
            expected = {row_id: row for worker in workers for row_id, row in worker.acknowledged[table].items()}
            assert _rows(channels[0].read(table)) == expected
        assert all(total[kind] for kind in ("insert", "update", "delete", "committed", "rolled back"))
        for channel in channels:
            channel.close()
    assert catalog.transactions is not None
    assert not catalog.transactions.open_transactions()
    left = set(threading.enumerate()) - threads_before
    for thread in left:
        thread.join(timeout=_PATIENCE_SECONDS)
    assert not [thread.name for thread in left if thread.is_alive()]
