"""A catalog in the hands of one who is no server: opened by its settings alone, beside any servers that run on it.

What is read here for a while must not be removed meanwhile. So the holder says in the catalog's database, as servers
do, that it is alive and needs every version there is: maintenance by any server then leaves them alone. A removal that
was decided before that, or by another tool, cannot be stopped. Whoever reads has to notice it, and begin again.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkport.errors import NotFound, Unsupported
from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.ledger_rows import ALL_SINCE
from sparkport.lakehouse.catalogs.open_catalog import catalog_digest
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.names import is_shadow_catalog
from sparkport.lakehouse.settings import LakehouseSettings

__all__ = ["HeldCatalog", "hold"]

_EVERYTHING = {ALL_SINCE: frozenset({0})}


@dataclass(frozen=True, slots=True)
class HeldCatalog:
    """``warehouse`` is its absolute place; ``digest`` tells one catalog from another."""

    name: str
    warehouse: str
    digest: str
    database: Database
    files: FileSystem


@contextlib.contextmanager
def hold(settings: LakehouseSettings, *others: str) -> Iterator[HeldCatalog]:
    """A catalog that is there already; NotFound for one that is not. ``others``: places beside its warehouse."""
    if settings.catalog_type == "rest":
        raise Unsupported(
            "the catalog is a REST catalog, which does not tell all its tables at one instant: use its own backup"
        )
    if settings.catalog_type == "sqlite" and not Path(settings.database_uri.removeprefix("sqlite:///")).is_file():
        raise NotFound(f"there is no catalog at {settings.database_uri.removeprefix('sqlite:///')}")
    files = FileSystem(settings.storage_options(*others))
    with contextlib.ExitStack() as opened:
        database = open_database(settings.database_uri, settings.file_mode)
        opened.callback(database.close)
        _require_catalog(database, settings.catalog_name)
        SqlPointers(database, settings.catalog_name, files)  # refuses what a newer sparkport has made
        ledger = Ledger(database, settings.catalog_name, server=f"reading-{uuid.uuid4().hex}")
        opened.callback(ledger.stop)
        ledger.beat(_EVERYTHING)
        ledger.start(lambda: _EVERYTHING)
        yield HeldCatalog(
            name=settings.catalog_name,
            warehouse=settings.warehouse_path,
            digest=catalog_digest(settings),
            database=database,
            files=files,
        )


def _require_catalog(database: Database, name: str) -> None:
    """A name that was misspelt must not become a catalog without tables."""
    with database.transaction() as work:
        rows = work.query(
            "SELECT catalog_name FROM iceberg_namespace_properties UNION SELECT catalog_name FROM iceberg_tables"
        )
    names = sorted({str(found) for (found,) in rows if not is_shadow_catalog(found)})
    if name not in names:
        raise NotFound(f"the database has no catalog '{name}'; it has: {', '.join(names) or 'none'}")
