"""The parts that are histories: rounds of clients before a checker, at two servers beside all that can befall them, and
at one beside maintenance and plain Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.consistency.checker import check_lists, violations
from tests.consistency.engines import EngineUnderTest, lakehouse_engine
from tests.consistency.two_servers import WORKLOADS, Town, run_round, town
from tests.consistency.workloads import Load, append_to_lists
from tests.faults.parts import Item, Part, Place
from tests.faults.summary import Result

from sparkport.catalog.transaction import Isolation

__all__ = ["OneServer", "Rounds", "TwoServers"]

_CLIENTS = 6


@dataclass(frozen=True, slots=True)
class Rounds:
    """One round; ``number`` counts all of a part."""

    number: int
    workload: str
    isolation: Isolation
    seed: int

    def __str__(self) -> str:
        return f"{self.workload}, {self.isolation.value}, seed {self.seed}"


class TwoServers(Part):
    def __init__(self, rounds: int = 4, transactions: int = 8) -> None:
        self._rounds = rounds
        self._transactions = transactions
        self._town: Town | None = None

    def items(self, seed: int) -> Sequence[Rounds]:
        kinds = [(workload, isolation) for workload in WORKLOADS for isolation in Isolation]
        wanted = [(*kind, seed * 1_000 + number) for number in range(self._rounds) for kind in kinds]
        return [Rounds(number, *what) for number, what in enumerate(wanted, 1)]

    def run(self, item: Item, place: Place, catalog: str | None) -> Result:
        assert isinstance(item, Rounds)
        if self._town is None:
            uri = place.stack.enter_context(place.postgres.database())
            self._town = place.stack.enter_context(town(place.folder / "town", uri, spark=place.spark("postgresql")))
        load = Load(
            isolation=item.isolation,
            clients=_CLIENTS,
            transactions=self._transactions,
            writers=0.8,
            seed=item.seed,
            auto_commit="single" in item.workload,
        )
        found = run_round(self._town, item.workload, load)
        bad = [*found.anomalies, *found.missing]
        if bad:
            kept = place.kept(f"{item.number}-{item.seed}.history")
            kept.write_text("\n".join(map(repr, sorted(found.history, key=lambda entry: entry.begin_called))))
        return Result(
            what=str(item),
            said=str(found),
            problem=str(found) if bad else "",
            kills=found.kills,
            lost=found.lost,
            transactions=found.transactions,
            anomalies=len(bad),
        )


class OneServer(Part):
    """Lists over four tables, beside all of maintenance and a plain Spark that appends to the same rows."""

    def __init__(self, rounds: int = 5, transactions: int = 20) -> None:
        self._rounds = rounds
        self._transactions = transactions
        self._engine: EngineUnderTest | None = None

    def items(self, seed: int) -> Sequence[Rounds]:
        wanted = [(isolation, seed * 1_000 + number) for number in range(self._rounds) for isolation in Isolation]
        return [Rounds(number, "lists", *what) for number, what in enumerate(wanted, 1)]

    def run(self, item: Item, place: Place, catalog: str | None) -> Result:
        assert isinstance(item, Rounds)
        if self._engine is None:
            self._engine = place.stack.enter_context(lakehouse_engine())
        load = Load(
            isolation=item.isolation, transactions=self._transactions, writers=0.5, seed=item.seed, disturbed=True
        )
        history = append_to_lists(self._engine, load)
        found = violations(check_lists(history), item.isolation)
        told = f"{len(history)} transactions"
        return Result(
            what=str(item),
            said=told,
            problem="\n".join(map(str, found)),
            transactions=len(history),
            anomalies=len(found),
        )
