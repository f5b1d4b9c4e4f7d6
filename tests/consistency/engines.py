"""The engines whose consistency is put to the test; a new one needs an entry here and nothing else."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from tests.consistency.history import Clock
from tests.consistency.sessions import Calls
from tests.support.lakehouse import lakehouse, maintenance_of
from tests.support.plain_spark import PlainSpark

from sparkport.catalog.model import Catalog
from sparkport.catalog.transaction import Isolation
from sparkport.client import Client, connect
from sparkport.errors import Code, Unsupported
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings
from sparkport.memory import MemoryCatalog
from sparkport.testing import serving

__all__ = [
    "ALL_OF_MAINTENANCE",
    "ENGINES",
    "EngineFactory",
    "EngineUnderTest",
    "PATIENCE_SECONDS",
    "Size",
    "can_defer",
    "journal_engine",
    "lakehouse_engine",
    "memory_engine",
]

PATIENCE_SECONDS = 100.0

ALL_OF_MAINTENANCE = MaintenanceSettings(
    small_files=2,
    retention_seconds=0,
    grace_seconds=0,
    max_manifests=2,
    # What is younger may belong to a commit that is under way.
    staged_seconds=90,
    metadata_seconds=90,
)
"""Compaction, manifests, expiry, orphans and old metadata, as soon as may be. Spark refuses to look for orphans of
less than a day, so that of these none is found in a warehouse of today."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is asked of an engine in a quick run: a statement costs a microsecond here and a Spark job there.

    ``transactions`` are those of each client in a workload, of which a share are ``writers``; in ``rounds`` two
    clients skew their writes.
    """

    transactions: int
    writers: float
    rounds: int
    examples: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnderTest:
    """An engine that is being served.

    ``maintain`` is the engine's own work on a table, which no client may notice, and says how many files it has
    replaced; ``compact`` is the part of it that replaces them. ``plain_spark`` is somebody who changes tables past the
    server. None where there is no such thing. ``flush`` brings rows where their ids stay.
    Where tables are ``is_journalled`` versions count flushes, and of changes of one row by others and here ours stay.
    Where clients have their own way to begin transactions, as at one of several servers, that is ``begin``;
    ``refusals`` are the codes that they may meet then.
    """

    location: str
    size: Size
    catalog: Catalog | None = None
    begin: Callable[[Isolation, bool], Calls] | None = None
    refusals: frozenset[Code] = frozenset({Code.ABORTED})
    clock: Clock = field(default_factory=Clock)
    maintain: Callable[[str], int] | None = None
    compact: Callable[[str], int] | None = None
    plain_spark: PlainSpark | None = None
    flush: Callable[[], object] = lambda: None
    is_journalled: bool = False
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_table(self, name: str, rows: pa.Table) -> str:
        """A table with these rows, in the schema ``public``. The name that it got was never there before."""
        name = f"{name}_{next(self._numbers)}"
        with self.connect() as client:
            client.create_table(f"public.{name}", rows.schema)
            if rows.num_rows:
                client.insert(f"public.{name}", rows)
                self.flush()
        return name

    def connect(self) -> Client:
        return connect(self.location, timeout=PATIENCE_SECONDS)


EngineFactory = Callable[[], AbstractContextManager[EngineUnderTest]]


def can_defer(engine: EngineUnderTest) -> bool:
    """Whether transactions over several statements can be had, as a client finds it out."""
    with engine.connect() as client:
        try:
            client.transaction().rollback()
        except Unsupported:
            return False
    return True


@contextmanager
def memory_engine() -> Iterator[EngineUnderTest]:
    catalog = MemoryCatalog("lake")
    with serving(catalog) as server:
        size = Size(transactions=10, writers=0.8, rounds=8, examples=8, steps=40)
        yield EngineUnderTest(catalog=catalog, location=server.location, size=size)


@contextmanager
def lakehouse_engine(journal: JournalSettings | None = None) -> Iterator[EngineUnderTest]:
    with (
        tempfile.TemporaryDirectory(prefix="sparkport-lake-", ignore_cleanup_errors=True) as folder,
        lakehouse(Path(folder), journal=journal) as opened,
        serving(opened.catalog) as server,
        closing(PlainSpark(opened)) as plain_spark,
    ):
        maintenance = maintenance_of(opened, ALL_OF_MAINTENANCE)

        def maintain(table: str) -> int:
            opened.journal.flush(PATIENCE_SECONDS)
            return maintenance.run(TableName("public", table)).counts.get("compacted_files", 0)

        def compact(table: str) -> int:
            opened.journal.flush(PATIENCE_SECONDS)
            return maintenance.run(TableName("public", table), ("compact",)).counts.get("compacted_files", 0)

        yield EngineUnderTest(
            catalog=opened.catalog,
            location=server.location,
            size=Size(transactions=6, writers=0.25, rounds=2, examples=3, steps=14)
            if journal is None
            else Size(transactions=10, writers=0.6, rounds=8, examples=3, steps=30),
            maintain=maintain,
            compact=compact,
            plain_spark=plain_spark,
            is_journalled=journal is not None,
            flush=lambda: None if journal is None else opened.journal.flush(PATIENCE_SECONDS),
        )


def journal_engine() -> AbstractContextManager[EngineUnderTest]:
    """All tables are journalled. Flushes come as fast as they can, so that they meet everything."""
    return lakehouse_engine(JournalSettings(new_tables=True, seconds=0.05))


ENGINES: dict[str, EngineFactory] = {
    "memory": memory_engine,
    "lakehouse": lakehouse_engine,
    "journal": journal_engine,
}
