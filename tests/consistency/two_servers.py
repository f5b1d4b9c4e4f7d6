"""Two servers on one PostgreSQL, beside all that can befall them: kills, lost answers, maintenance and strangers.

Clients of both fill sets or append to lists. Whoever hears nothing asks until it knows; afterwards the history goes
before its checker, and no file that anybody's pointer leads to may be missing.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.consistency.checker import Anomaly, violations
from tests.consistency.disturbances import Disturbance, maintains
from tests.consistency.engines import ALL_OF_MAINTENANCE, EngineUnderTest, Size
from tests.consistency.epochs import check_rewritten_lists
from tests.consistency.foreign import Stranger
from tests.consistency.history import NO_CLIENT, Clock, Outcome, Recorder, Transaction
from tests.consistency.resolving import Clients, Gate, ResolvingDeferred, ResolvingStatement
from tests.consistency.sessions import Calls
from tests.consistency.set_checker import check_sets
from tests.consistency.workloads import Load, append_to_lists, insert_and_delete
from tests.faults.cases import planned
from tests.faults.files import missing_files, pointer_of
from tests.faults.rig import Rig
from tests.support.lakehouse import maintenance_of
from tests.support.plain_spark import PlainSpark

from sparkport.catalog.transaction import Isolation
from sparkport.errors import Code, InternalError, Unavailable
from sparkport.lakehouse.faults import POINTS, Fault
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer
from sparkport.lakehouse.upkeep.maintenance import STEPS

__all__ = ["Round", "Town", "WORKLOADS", "run_round", "town"]

logger = logging.getLogger(__name__)

WORKLOADS = ("sets", "sets, single statements", "lists")

_REFUSALS = frozenset({Code.ABORTED, Code.NOT_FOUND, Code.FAILED_PRECONDITION})
"""A transaction goes with its server; a table that is made anew is not there for a moment."""

_MET_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Round:
    """What came out of one round."""

    history: Sequence[Transaction]
    anomalies: Sequence[Anomaly]
    missing: Sequence[str]
    befell: Counter[str]

    @property
    def transactions(self) -> int:
        return sum(found.client != NO_CLIENT for found in self.history)

    @property
    def kills(self) -> int:
        return self.befell["server"]

    @property
    def lost(self) -> int:
        return self.befell["lost"]

    def __str__(self) -> str:
        outcomes = Counter(found.outcome.value for found in self.history if found.client != NO_CLIENT)
        told = ", ".join(f"{number} {name}" for name, number in sorted((*outcomes.items(), *self.befell.items())))
        problems = [str(anomaly) for anomaly in self.anomalies[:5]] + [f"missing: {path}" for path in self.missing[:5]]
        return "\n  ".join([told, *problems])


@dataclass(slots=True)
class Town:
    """The two servers, and a third process of ours that maintains; ``dropped`` is what nobody may remove.

    Of the servers only the ``mortal`` ones are killed; the others lose answers only.
    """

    rigs: Sequence[Rig]
    mortal: Sequence[Rig]
    third: Lakehouse
    catalog_uri: str
    dropped: list[str] = field(default_factory=list)
    befell: Counter[str] = field(default_factory=Counter)
    missing: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def locations(self) -> list[str]:
        return [rig.location for rig in self.rigs]

    def dropping(self, table: str) -> None:
        location = pointer_of(self.rigs[0].warehouse, table, catalog_uri=self.catalog_uri)
        if location is not None:
            self.dropped.append(location)

    def look_for_missing(self) -> None:
        warehouse = self.rigs[0].warehouse
        self.missing += missing_files(warehouse, catalog_uri=self.catalog_uri, dropped=tuple(self.dropped))

    def befalls(self, tables: Sequence[str]) -> Disturbance:
        """Again and again one of the servers dies at some point, or loses an answer there."""

        def disturb(recorder: Recorder, over: threading.Event, dice: random.Random) -> None:
            while not over.wait(dice.uniform(0.2, 1.0)):
                rig = dice.choice(self.rigs)
                point, action = dice.choice(POINTS), dice.choice(("server", "lost", "lost"))
                fault = Fault(point, action if rig in self.mortal else "lost")
                rig.arm(*planned(fault))
                for _ in range(int(_MET_SECONDS / 0.05)):
                    if over.wait(0.05) or not rig.is_armed:
                        break
                if rig.disarm():
                    continue
                self.befell[fault.action] += 1
                if fault.action == "server":
                    rig.ended()
                    rig.start()
                    self.look_for_missing()

        return disturb

    def maintains(self, tables: Sequence[str]) -> Disturbance:
        maintenance = maintenance_of(self.third, ALL_OF_MAINTENANCE)

        def maintain(table: str) -> int:
            try:
                report = maintenance.run(TableName("public", table), STEPS)
            except (InternalError, Unavailable) as exc:
                # Its files may be those of a table that the stranger has just expired, rolled back or dropped.
                self.befell["maintenance that gave up"] += 1
                logger.warning("maintenance of %s gave up: %s", table, exc)
                return 0
            self.befell["maintenance"] += 1
            return len(report.counts)

        return maintains(maintain, tables)

    @contextmanager
    def engine(self, gate: Gate | None = None) -> Iterator[EngineUnderTest]:
        with closing(Clients(self.locations)) as clients:

            def begin(isolation: Isolation, auto_commit: bool) -> Calls:
                first = next(self._numbers)
                if auto_commit:
                    return ResolvingStatement(clients, isolation, first=first)
                return ResolvingDeferred(clients, isolation, first=first, gate=gate)

            size = Size(transactions=3, writers=0.8, rounds=1, examples=1, steps=1)
            yield EngineUnderTest(
                location=self.rigs[0].location,
                size=size,
                begin=begin,
                refusals=_REFUSALS,
                clock=Clock() if gate is None else gate.clock,
                _numbers=self._numbers,
            )


@contextmanager
def town(
    folder: Path, catalog_uri: str, *, spark: SparkServer, mortal: Sequence[str] = ("one", "two")
) -> Iterator[Town]:
    with ExitStack() as stack:
        named = {name: Rig(folder, spark=spark.url, catalog_uri=catalog_uri, name=name) for name in ("one", "two")}
        rigs = list(named.values())
        for rig in rigs:
            stack.callback(rig.close)
            rig.start()
        settings = LakehouseSettings(warehouse=str(rigs[0].warehouse), catalog_uri=catalog_uri, sessions=2)
        third = stack.enter_context(Lakehouse(settings, spark=spark))
        yield Town(rigs, [named[name] for name in mortal], third, catalog_uri)


def run_round(place: Town, workload: str, load: Load) -> Round:
    for rig in place.rigs:
        rig.start()
    place.befell.clear()
    place.missing.clear()
    lists = workload == "lists"
    gate = Gate() if lists else None
    with closing(PlainSpark(place.third)) as spark, place.engine(gate) as engine:
        stranger = Stranger(
            spark,
            keys=range(load.keys) if lists else (),
            remade=(3,) if lists else (2,),
            closed=nullcontext if gate is None else gate.closed,
            dropping=place.dropping,
        )
        more: list[Callable[[Sequence[str]], Disturbance]] = [stranger.on, place.befalls, place.maintains]
        history = append_to_lists(engine, load, more=more) if lists else insert_and_delete(engine, load, more=more)
        place.befell.update({f"stranger's {name}": number for name, number in stranger.counts.items()})
    found = check_rewritten_lists(history) if lists else check_sets(history)
    place.look_for_missing()
    unknown = [entry for entry in history if entry.outcome is Outcome.UNKNOWN and entry.client != NO_CLIENT]
    logger.info("%d outcomes were not resolved", len(unknown))
    return Round(history, violations(found, load.isolation), list(place.missing), Counter(place.befell))
