"""A lakehouse with the journal in a child process, and what the benchmarks of the journal ask it besides statements."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.lakehouse import SPARK, WAREHOUSE, Lab, filled_by_spark, laboratory
from benchmarks.peers import InProcess, Work, key, new_order
from sparkport.catalog.context import CallContext
from sparkport.client import Client, col, connect
from sparkport.errors import SparkportError
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.settings import LakehouseSettings

__all__ = ["Held", "Ours", "Throughput", "held", "journal_laboratory", "maintain", "tables", "together"]

_JOURNAL = "BENCH_JOURNAL"
_MAINTENANCE = "BENCH_MAINTENANCE"


@contextmanager
def journal_server() -> Iterator[str]:
    """The action ``nothing`` is the least that a call can do, ``bench_holds`` is for the benchmark alone."""
    from sparkport.app import CustomAction, Lakehouse, MaintenanceSettings, Server, lakehouse_actions

    settings = LakehouseSettings(warehouse=os.environ[WAREHOUSE], spark=os.environ[SPARK], sessions=8)
    journal = JournalSettings(**json.loads(os.environ[_JOURNAL]))
    maintenance = MaintenanceSettings() if os.environ[_MAINTENANCE] else None
    with Lakehouse(settings, journal=journal, maintenance=maintenance) as lakehouse:

        def nothing(ctx: CallContext, body: bytes) -> list[bytes]:
            return [b""]

        def holds(ctx: CallContext, body: bytes) -> list[bytes]:
            found = lakehouse.journal.status()
            ages = [(datetime.now(UTC) - item.oldest).total_seconds() for item in found if item.oldest is not None]
            held = Held(sum(item.rows for item in found), sum(item.bytes for item in found), max(ages, default=0.0))
            return [json.dumps(asdict(held)).encode()]

        actions = [CustomAction("nothing", nothing), CustomAction("bench_holds", holds)]
        actions += lakehouse_actions(lakehouse)
        with Server(lakehouse.catalog, port=0, actions=actions) as server:
            yield server.location


@contextmanager
def journal_laboratory(*, maintenance: bool = False, **settings: float) -> Iterator[Lab]:
    os.environ[_JOURNAL] = json.dumps(settings)
    os.environ[_MAINTENANCE] = "on" if maintenance else ""
    with laboratory(journal_server) as lab:
        yield lab


@dataclass(frozen=True, slots=True)
class Held:
    """What the journal holds, and for how many seconds its oldest entry has waited."""

    rows: int
    bytes: int
    lag: float


def held(client: Client) -> Held:
    (answer,) = client.action("bench_holds")
    return Held(**json.loads(answer))


def maintain(client: Client, table: str) -> None:
    """As the background does with a table that is changed for some minutes."""
    client.action("maintain", json.dumps({"schema_name": "public", "table_name": table, "what": ["compact"]}).encode())


def tables(lab: Lab, name: str, rows: int, *, files: int = 4, journal: bool) -> None:
    """``items`` with rows, and ``orders`` without."""
    filled_by_spark(lab, f"{name}_items", rows, files)
    lab.client.create_table(f"public.{name}_orders", new_order(0).schema)
    if journal:
        for table in (f"{name}_items", f"{name}_orders"):
            lab.client.set_journal(f"public.{table}", True)


class Ours(InProcess):
    """Through the Python client over the wire. Rows are changed by their ids, which a client has read before."""

    def __init__(self, lab: Lab, name: str, rows: int) -> None:
        super().__init__(rows)
        self.client = lab.client
        self.items, self.orders = f"public.{name}_items", f"public.{name}_orders"
        found = lab.client.scan(self.items, columns=["id"], row_id=True).read_all()
        self.row_ids = np.empty(rows, np.int64)
        self.row_ids[found.column(0).to_numpy()] = found.column(1).to_numpy()

    def once(self, work: Work, number: int) -> None:
        self.on(self.client, work, number)

    def on(self, client: Client, work: Work, number: int) -> None:
        if work is Work.INSERT:
            _one(client.insert(self.orders, new_order(number)).count)
        elif work is Work.UPDATE:
            _one(client.update(self.items, self._changed(number)).count)
        elif work is Work.DELETE:
            _one(client.delete(self.items, [self._row_id(number)]).count)
        elif work is Work.TRANSACTION:
            with client.transaction() as transaction:
                _one(transaction.insert(self.orders, new_order(number)).count)
                _one(transaction.update(self.items, self._changed(number)).count)
        else:
            wanted = key(number, self.rows)
            _one(client.scan(self.items, filter=col("id") == wanted).read_all().num_rows)

    def _changed(self, number: int) -> pa.Table:
        return pa.table({"rowid": pa.array([self._row_id(number)], pa.int64()), "v": [float(number)]})

    def _row_id(self, number: int) -> int:
        return int(self.row_ids[key(number, self.rows)])


def _one(count: int) -> None:
    if count != 1:
        raise AssertionError(f"{count} rows, not one")


@dataclass(frozen=True, slots=True)
class Throughput:
    rate: float
    done: int
    failed: list[str]


def together(location: str, clients: int, seconds: float, do: Callable[[Client], object]) -> Throughput:
    """Many clients, each with a connection of its own, one statement after the other for so long."""

    def run(client: Client) -> tuple[int, list[str]]:
        done, failed = 0, []
        while time.perf_counter() < end:
            try:
                do(client)
                done += 1
            except SparkportError as exc:
                failed.append(str(exc))
        return done, failed

    with ExitStack() as stack, ThreadPoolExecutor(clients) as pool:
        connected = [stack.enter_context(connect(location)) for _ in range(clients)]
        list(pool.map(lambda client: client.action("nothing"), connected))
        begin = time.perf_counter()
        end = begin + seconds
        found: Sequence[Any] = list(pool.map(run, connected))
        took = time.perf_counter() - begin
    done = sum(count for count, _ in found)
    return Throughput(done / took, done, [text for _, failed in found for text in failed])
