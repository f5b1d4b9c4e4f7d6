"""The parts that all of a lakehouse stands on."""

from __future__ import annotations

from dataclasses import dataclass

from sparkport.lakehouse.catalogs.dropped_records import DroppedRecords
from sparkport.lakehouse.catalogs.journal_apart import ApartRecords
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.pointers import Pointers
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.spark.server import Sessions
from sparkport.lakehouse.spark.staging import Staging
from sparkport.lakehouse.warehouse import Warehouse

__all__ = ["Storage"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Storage:
    """``catalog_name`` is what Spark knows the catalog by.

    ``direct_reads``: clients that can may get a snapshot's files, to read them themselves.
    """

    catalog_name: str
    pointers: Pointers
    ledger: Ledger
    apart: ApartRecords
    files: FileSystem
    warehouse: Warehouse
    spark: Sessions
    staging: Staging
    direct_reads: bool = False
    dropped: DroppedRecords | None = None
