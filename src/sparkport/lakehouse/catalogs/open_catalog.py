"""A catalog as a server holds it open: the database, the ledger of transactions in it, and the pointers to tables."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sparkport.errors import FailedPrecondition, SparkportError
from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.dropped_records import DroppedRecords
from sparkport.lakehouse.catalogs.journal_apart import ApartRecords
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.pointers import Pointers
from sparkport.lakehouse.catalogs.rest import RestPointers
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.catalogs.statement_records import StatementRecords
from sparkport.lakehouse.catalogs.view_records import SqlViewRecords, ViewRecords
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.mounts import network_file_system
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings

__all__ = ["OpenCatalog", "catalog_digest", "open_catalog"]


@dataclass(frozen=True, slots=True)
class OpenCatalog:
    """``close`` says that this server is gone, too. It is safe to repeat."""

    database: Database
    ledger: Ledger
    pointers: Pointers
    dropped: DroppedRecords
    apart: ApartRecords
    views: ViewRecords
    close: Callable[[], None]


def open_catalog(
    settings: LakehouseSettings, files: FileSystem, *, server: str, clock: Callable[[], float] = time.time
) -> OpenCatalog:
    is_rest = settings.catalog_type == "rest"  # such a catalog has no place for what becomes of transactions
    uri, name = _ledger_of(settings) if is_rest else (settings.database_uri, settings.catalog_name)

    def settle(transaction_id: str, tables: Sequence[TableName]) -> bool:
        return rest.settle(transaction_id, tables)

    with contextlib.ExitStack() as opened:
        database = open_database(uri, settings.file_mode)
        opened.callback(database.close)
        ledger = Ledger(database, name, server=server, clock=clock, resolve=settle if is_rest else None)
        opened.callback(ledger.stop)
        dropped, apart = DroppedRecords(database, name), ApartRecords(database, name)
        if is_rest:
            rest = RestPointers.from_settings(settings, files, ledger, StatementRecords(database, name))
            return OpenCatalog(database, ledger, rest, dropped, apart, rest.views, opened.pop_all().close)
        pointers = SqlPointers(database, name, files, ledger, server=server)
        opened.callback(_unfence, pointers, server)
        views = SqlViewRecords(database, name, files=files, warehouse=settings.warehouse_path)
        return OpenCatalog(database, ledger, pointers, dropped, apart, views, opened.pop_all().close)


def _unfence(pointers: Pointers, server: str) -> None:
    with contextlib.suppress(SparkportError):  # a row that is left does no harm
        pointers.fence(server)


def catalog_digest(settings: LakehouseSettings) -> str:
    """A catalog's digest, by where it is and not by who asks: a new password makes no other catalog."""
    parts = urlsplit(settings.database_uri)
    names = ("warehouse", "prefix")  # by which a REST server knows several catalogs
    chosen = [settings.properties.get(f"spark.sql.catalog.{settings.catalog_name}.{name}") for name in names]
    place = (parts.scheme, parts.hostname, parts.port, parts.path, settings.catalog_name, *chosen)
    return hashlib.sha256(repr(place).encode()).hexdigest()


def _ledger_of(settings: LakehouseSettings) -> tuple[str, str]:
    """The database of a REST catalog's ledger, and the catalog's name in it: others may keep theirs there too.

    Without one that was chosen, servers on one staging folder share it, on one machine.
    """
    digest = catalog_digest(settings)[:12]
    if settings.ledger_uri is not None:
        return settings.ledger_uri, f"{settings.catalog_name}@{digest}"
    folder = Path(settings.staging_path).resolve()
    file_system = network_file_system(folder)
    if file_system is not None:
        raise FailedPrecondition(
            f"the staging folder '{folder}' is on a network file system ({file_system}), where the SQLite database of "
            "the transactions could be damaged: set ledger_uri, to postgresql://host/database if several machines have "
            "servers on this catalog, or to sqlite:////path/on/a/local/disk.db for one"
        )
    return f"sqlite:///{folder}/transactions-{digest}.db", settings.catalog_name
