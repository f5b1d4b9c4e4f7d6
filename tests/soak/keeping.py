"""What goes on beside the soak's clients on their tables: a plain Spark that writes, maintenance, a comparison."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from pyspark.errors import PySparkException
from tests.consistency.engines import ALL_OF_MAINTENANCE
from tests.consistency.resolving import Clients
from tests.consistency.two_servers import Town
from tests.soak.latencies import Latencies
from tests.soak.ledger import Answer, Ledger, State
from tests.soak.workers import Worker
from tests.support.lakehouse import maintenance_of
from tests.support.plain_spark import LostRace, PlainSpark

from sparkport.client import connect
from sparkport.errors import Conflict, SparkportError, Unavailable
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.upkeep.maintenance import STEPS

__all__ = ["Keeper", "SparkWorker"]

logger = logging.getLogger(__name__)

_TIMEOUT = 120.0
_TRIES = 5
_COMPARE_SECONDS = 60.0
_PAUSE_SECONDS = 5.0


class SparkWorker(Worker):
    """Changes a table past the servers; a client of theirs sees it at once."""

    name = "spark client"
    tables = ("soak_spark",)

    def __init__(
        self, locations: Callable[[], Sequence[str]], latencies: Latencies, *, seed: int, spark: PlainSpark
    ) -> None:
        super().__init__(locations, latencies, seed=seed)
        self._spark = spark
        self._clients = Clients(locations)

    def close(self) -> None:
        self._clients.close()
        self._spark.close()

    def step(self) -> None:
        (ledger,) = self.ledgers.values()
        with ledger.held():
            self._change(ledger)
            found = self._clients.at(self.location).scan(f"public.{ledger.table}").read_all()
            self.compare(ledger, found)

    def _change(self, ledger: Ledger) -> None:
        some = ledger.some(self.dice, 8) if ledger.there else []
        keys = ", ".join(map(str, some))
        choice = self.dice.random()
        if (choice < 0.5 and len(ledger.there) < 60) or not some:
            changes = self.new_rows()
            values = ", ".join(f"({key}, '{value}')" for key, value in changes.items())
            sql = f"INSERT INTO {{t}} VALUES {values}"
        elif choice < 0.7:
            value = self.new_value()
            changes = dict.fromkeys(some, value)
            sql = f"UPDATE {{t}} SET v = '{value}' WHERE id IN ({keys})"
        else:
            changes = dict.fromkeys(some)
            sql = f"DELETE FROM {{t}} WHERE id IN ({keys})"
        answer = Answer.LOST
        try:
            with self.latencies.timed(self.name):
                self._spark.run(sql, ledger.table)
            answer = Answer.DONE
        except LostRace:
            answer = Answer.REFUSED
        except PySparkException as exc:
            logger.warning("plain Spark failed: %s", exc)
        finally:
            ledger.note(changes, answer)
            if answer is not Answer.DONE:
                self.latencies.count(f"{self.name} {answer.value}")


class Keeper:
    """Maintains the clients' tables one after another, and now and then compares all rows with the ledgers.

    It does one after the other: plain Spark does not know that files are read which maintenance removes.
    """

    def __init__(self, town: Town, ledgers: Sequence[Ledger], latencies: Latencies, *, spark: PlainSpark) -> None:
        self.problems: list[str] = []
        self.comparisons = 0
        self._town = town
        self._ledgers = ledgers
        self._latencies = latencies
        self._spark = spark
        self._maintenance = maintenance_of(town.third, ALL_OF_MAINTENANCE)

    def run(self, over: threading.Event) -> None:
        compared = time.monotonic()
        for ledger in itertools.cycle(self._ledgers):
            if over.wait(_PAUSE_SECONDS):
                return
            try:
                self._maintain(ledger.table)
                if time.monotonic() - compared >= _COMPARE_SECONDS:
                    compared = time.monotonic()
                    self.compare_all()
            except Exception as exc:
                logger.exception("keeping %s failed", ledger.table)
                self.problems.append(f"keeping {ledger.table}: {type(exc).__name__}: {str(exc)[:300]}")

    def compare_all(self) -> None:
        """By both servers, if they are there, and after a flush by plain Spark."""
        for ledger in self._ledgers:
            with ledger.held():
                for location in self._town.locations():
                    self._by_server(ledger, location)
                self._flush()
                rows = [(row["id"], row["v"]) for row in self._spark.rows(ledger.table)]
                self._note(ledger, rows, "plain Spark")
        self.comparisons += 1

    def _by_server(self, ledger: Ledger, location: str) -> None:
        with connect(location, timeout=_TIMEOUT) as client:
            try:
                found = client.scan(f"public.{ledger.table}").read_all()
            except Unavailable:
                if location == self._town.locations()[0]:
                    raise
                return  # this one is killed now and then
        self._note(ledger, zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True), location)

    def _note(self, ledger: Ledger, rows: Iterable[tuple[int, State]], who: str) -> None:
        self.problems += [f"{problem}, by {who}" for problem in ledger.compare(rows)]

    def _flush(self) -> None:
        """Tried again where an answer was lost on purpose."""
        for attempt in range(1, _TRIES + 1):
            try:
                with connect(self._town.rigs[0].location, timeout=_TIMEOUT) as client:
                    client.flush_journal()
                return
            except SparkportError:
                if attempt == _TRIES:
                    raise

    def _maintain(self, table: str) -> None:
        try:
            self._maintenance.run(TableName("public", table), STEPS)
            self._latencies.count("maintenance")
        except (Conflict, Unavailable) as exc:
            self._latencies.count("maintenance that gave way")
            logger.info("maintenance of %s gave way: %s", table, exc)
