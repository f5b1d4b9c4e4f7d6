"""The engines whose consistency is put to the test; a new one needs an entry here and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from sparkport.catalog.model import Catalog
from sparkport.memory import MemoryCatalog

__all__ = ["ENGINES", "EngineFactory", "EngineUnderTest", "memory_engine"]


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """``create_table`` makes a table in the schema ``main`` of the catalog, with these rows in it."""

    catalog: Catalog
    create_table: Callable[[str, pa.Table], None]


EngineFactory = Callable[[], AbstractContextManager[EngineUnderTest]]


@contextmanager
def memory_engine() -> Iterator[EngineUnderTest]:
    catalog = MemoryCatalog("lake")

    def create_table(name: str, rows: pa.Table) -> None:
        catalog.create_table(f"main.{name}", rows.schema, rows=rows)

    yield EngineUnderTest(catalog, create_table)


ENGINES: dict[str, EngineFactory] = {"memory": memory_engine}
