"""A catalog of tables that Spark has written some day, without a Spark: for tests of files and rows of the database."""

from __future__ import annotations

import uuid
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.lakehouse.fixtures import NAMES, materialise

from sparkport.lakehouse.backup.backup import BackupReport, back_up
from sparkport.lakehouse.backup.held import hold
from sparkport.lakehouse.backup.restore import find_backup, restore
from sparkport.lakehouse.catalogs.journal_state import Entry, TableJournal
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.metadata import load
from sparkport.lakehouse.journal.net import FIRST_ID, RowChange, entry_body
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.verify.check import CheckReport, check

__all__ = ["add_table", "backed_up", "checked", "journal_rows", "rows_of", "small_lake", "to_new"]

SERVED = tuple(name for name in NAMES if name != "replaced")


def small_lake(warehouse: Path, names: tuple[str, ...] = SERVED, **how: Any) -> LakehouseSettings:
    settings = LakehouseSettings(warehouse=str(warehouse), **how)
    warehouse.mkdir(parents=True, exist_ok=True)
    with closing(open_database(settings.database_uri)) as database:
        SqlPointers(database, "lake").create_schema("public", {})
    for name in names:
        add_table(settings, name)
    return settings


def add_table(settings: LakehouseSettings, fixture: str, name: str | None = None, folder: Path | None = None) -> Path:
    """The folder of the table."""
    found = materialise(fixture, folder or Path(settings.warehouse_path) / "public")
    metadata = found.folder / "metadata" / f"00001-{uuid.uuid4()}.metadata.json"
    (found.folder / "metadata.json").rename(metadata)
    with closing(open_database(settings.database_uri)) as database:
        SqlPointers(database, "lake").create(TableName("public", name or fixture), str(metadata))
    return found.folder


def journal_rows(settings: LakehouseSettings, name: str) -> None:
    """A new row that waits in the table's journal."""
    with closing(open_database(settings.database_uri)) as database:
        pointers = SqlPointers(database, "lake")
        table = TableName("public", name)
        location = pointers.location(table)
        assert location is not None
        metadata = load(FileSystem(), location)
        body = entry_body(np.array([FIRST_ID]), np.array([RowChange.INSERTED], np.int8), [], [])
        with pointers.journal.changing() as work:
            _, revision = pointers.journal.advance(work)
            entry = Entry(revision, metadata.json["last-sequence-number"], 1, 1.0, body)
            pointers.journal.append(work, TableJournal(metadata.uuid, table), entry)


def backed_up(settings: LakehouseSettings, target: Path | str, **how: Any) -> BackupReport:
    with hold(settings, str(target)) as catalog:
        return back_up(catalog, str(target), **how)


def to_new(source: Path | str, warehouse: Path | str, number: int | None = None, **how: Any) -> LakehouseSettings:
    settings = LakehouseSettings(warehouse=str(warehouse), **how)
    restore(*find_backup(str(source), settings, number), settings)
    return settings


def checked(settings: LakehouseSettings, table: str | None = None, *, deep: bool = False) -> CheckReport:
    with hold(settings) as catalog:
        return check(catalog, None if table is None else TableName("public", table), deep=deep)


def rows_of(settings: LakehouseSettings, name: str, properties: dict[str, str] | None = None) -> pa.Table:
    """By PyIceberg."""
    from pyiceberg.table import StaticTable

    with closing(open_database(settings.database_uri)) as database:
        location = SqlPointers(database, settings.catalog_name).location(TableName("public", name))
    assert location is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return StaticTable.from_metadata(location, properties or {}).scan().to_arrow()
