"""The parts of ``make test-faults``: which cases each has, and where and how they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Protocol

from tests.faults.cases import Case, run
from tests.faults.database import HeldCommit, database_cases, held_commits, hold_commit, troubled
from tests.faults.poisoned import ARGUMENTS, Poisoning, poisonings, run_poisoned
from tests.faults.rig import Rig, Rows, as_rows
from tests.faults.schemas import SchemaWalk, schema_walks, walk
from tests.faults.summary import Result
from tests.faults.transactions import TRANSACTIONS, run_transaction
from tests.support.lakehouse import Lake
from tests.support.postgres import PostgresCluster, postgres_cluster

from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer

__all__ = ["Database", "Faults", "HeldCommits", "Item", "Part", "Place", "Poisoned", "Schemas"]


class Item(Protocol):
    @property
    def number(self) -> int: ...


class Place:
    """Servers, Spark and PostgreSQL, each started when it is first needed."""

    def __init__(self, folder: Path, stack: ExitStack, *, maintenance: bool, seed: int) -> None:
        self.folder = folder
        self.stack = stack
        self.maintenance = maintenance
        self.seed = seed
        self._sparks: dict[str, SparkServer] = {}
        self._rigs: dict[tuple[bool, str], Rig] = {}

    def kept(self, name: str) -> Path:
        """Where to put what somebody will want to look at."""
        folder = Path("build", "faults")
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    @cached_property
    def postgres(self) -> PostgresCluster:
        """The sessions of killed servers stay in the Spark that outlives them, for an hour, with their connections."""
        return self.stack.enter_context(postgres_cluster(connections=1_000))

    def spark(self, catalog: str) -> SparkServer:
        """One that outlives servers, with the driver of the catalog's database.

        Its own catalog has a name that no server's has: its settings hold in all sessions.
        """
        if catalog not in self._sparks:
            settings = LakehouseSettings(
                warehouse=str(self.folder / f"spark-{catalog}"),
                catalog_uri="postgresql://127.0.0.1/none" if catalog == "postgresql" else None,
                catalog_name="nobodys",
                driver_memory="1g",
            )
            spark = self._sparks[catalog] = SparkServer(settings)
            self.stack.callback(spark.stop)
            spark.start()
            spark.wait_ready(240)
        return self._sparks[catalog]

    def rig(self, catalog: str, *, own_spark: bool) -> Rig:
        if (own_spark, catalog) not in self._rigs:
            uri = self.stack.enter_context(self.postgres.database()) if catalog == "postgresql" else None
            made = Rig(
                self.folder / f"{catalog}{'-own' if own_spark else ''}",
                spark=None if own_spark else self.spark(catalog).url,
                catalog_uri=uri,
                maintenance=self.maintenance,
            )
            self.stack.callback(made.close)
            self._rigs[own_spark, catalog] = made
        return self._rigs[own_spark, catalog]

    def plain_spark(self, rig: Rig) -> Callable[[str], Rows]:
        """Reads a table as somebody who knows nothing of us."""

        def rows(table: str) -> Rows:
            settings = LakehouseSettings(warehouse=str(rig.warehouse), catalog_uri=rig.catalog_uri)
            spark = self.spark("postgresql" if rig.catalog_uri else "sqlite")
            with spark.sessions(settings.session_conf()).session(timeout=120) as session:
                return as_rows(session.sql(f"SELECT id, v FROM lake.{table}").toArrow())

        return rows


def run_case(case: Case, rig: Rig, place: Place) -> Result:
    """Every fifth is looked at by plain Spark, too."""
    work = run_transaction if case.operation in TRANSACTIONS else run
    try:
        outcome = work(case, rig, spark_rows=place.plain_spark(rig) if case.number % 5 == 0 else None)
    except Exception as exc:
        tail = rig.log_tail(5)
        rig.close()
        raise AssertionError(f"{type(exc).__name__}: {exc}\n{tail}") from exc
    kills = {"server": 1, "spark": 1, "both": 2}.get(case.fault.action, 0)
    said = "acknowledged" if outcome.acknowledged else "happened" if outcome.happened else "did not happen at first"
    return Result(what=str(case), said=said, kills=kills, lost=int(case.loses_answer))


class Part(ABC):
    @abstractmethod
    def items(self, seed: int) -> Sequence[Item]: ...

    @abstractmethod
    def run(self, item: Item, place: Place, catalog: str | None) -> Result:
        """``catalog`` is where the pointers shall be, where a part leaves that open."""


class Faults(Part):
    """Cases of one fault each."""

    def __init__(self, choose: Callable[[int], list[Case]], catalog: str | None = None) -> None:
        self._choose = choose
        self._catalog = catalog

    def items(self, seed: int) -> Sequence[Case]:
        return self._choose(seed)

    def run(self, item: Item, place: Place, catalog: str | None) -> Result:
        assert isinstance(item, Case)
        rig = place.rig(self._catalog or catalog or "sqlite", own_spark=item.own_spark)
        return run_case(item, rig, place)


class Database(Part):
    """PostgreSQL failing in every way, under a server of its own."""

    def __init__(self) -> None:
        self._rig: Rig | None = None

    def items(self, seed: int) -> Sequence[Item]:
        return database_cases(seed)

    def run(self, item: Item, place: Place, catalog: str | None) -> Result:
        assert isinstance(item, Case)
        if self._rig is None:
            spark = place.spark("postgresql").url
            self._rig = place.stack.enter_context(troubled(place.folder / "troubled", place.postgres, spark=spark))
        return run_case(item, self._rig, place)


class Poisoned(Part):
    """A table that cannot be published among healthy ones, under a server that journals."""

    def __init__(self) -> None:
        self._rigs: dict[str, Rig] = {}

    def items(self, seed: int) -> Sequence[Item]:
        return poisonings(seed)

    def run(self, item: Item, place: Place, catalog: str | None) -> Result:
        assert isinstance(item, Poisoning)
        kind = catalog or item.catalog
        if kind not in self._rigs:
            uri = place.stack.enter_context(place.postgres.database()) if kind == "postgresql" else None
            spark = place.spark(kind).url
            rig = Rig(place.folder / f"poisoned-{kind}", spark=spark, catalog_uri=uri, arguments=ARGUMENTS)
            self._rigs[kind] = rig
            place.stack.callback(rig.close)
        commits, kills = run_poisoned(item, self._rigs[kind])
        return Result(what=str(item), said="all that was acknowledged is there", kills=kills, transactions=commits)


class HeldCommits(Part):
    def items(self, seed: int) -> Sequence[Item]:
        return held_commits()

    def run(self, item: Item, place: Place, catalog: str | None) -> Result:
        assert isinstance(item, HeldCommit)
        folder = place.folder / f"held-{item.number}"
        hold_commit(item, folder, place.postgres, spark=place.spark("postgresql").url)
        return Result(what=str(item), said="happened", kills=2, lost=1)


class Schemas(Part):
    """Columns that others change while rows wait in the journal."""

    def items(self, seed: int) -> Sequence[Item]:
        return schema_walks(seed)

    def run(self, item: Item, place: Place, catalog: str | None) -> Result:
        assert isinstance(item, SchemaWalk)
        settings = LakehouseSettings(warehouse=str(place.folder / f"schemas-{item.number}"))
        journal = JournalSettings(new_tables=True, seconds=3_600.0)
        with Lakehouse(settings, spark=place.spark("sqlite"), journal=journal) as opened:
            walk(item, Lake(opened))
        return Result(what=str(item), said="happened")
