"""The folder of a dropped table goes after a time, and stays as long as anybody uses it. It takes no Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.lakehouse.fixtures import materialise, rewrite_avro
from tests.support.s3 import object_store

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableSchema, TableDefinition
from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.pointers import Edit
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.edits import new_table, set_properties
from sparkport.lakehouse.iceberg.metadata import load
from sparkport.lakehouse.iceberg.metadata_files import write_metadata
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer
from sparkport.lakehouse.upkeep.dropped_folders import DroppedFolders
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings

pytestmark = pytest.mark.tier("fast")

pytest_plugins = ["tests.support.services"]

FIELDS: list[dict[str, Any]] = [{"id": 1, "name": "x", "type": "long", "required": False}]
NAME: TableName = TableName("public", "t")
DAY = 86_400.0


class Warehouse:
    """Tables without Spark, and a clock that can be put forward."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder = folder
        self.database = database
        self.files = FileSystem()
        self.pointers = SqlPointers(database, "lake", self.files)
        self.pinned: list[str] = []
        self.read: set[str] = set()
        self.later = 0.0
        self.dropped = self.another_server()

    def another_server(self) -> DroppedFolders:
        return DroppedFolders(
            self.database,
            "lake",
            warehouse=str(self.folder),
            files=self.files,
            pinned=lambda: self.pinned,
            is_read=lambda uuid: uuid in self.read,
        )

    def create(self, table: TableName = NAME, *, folder: str = "t-0123abcd") -> Path:
        place = self.folder / "public" / folder
        metadata = new_table(str(place), FIELDS, last_column_id=1, properties={})
        self.pointers.create(table, write_metadata(self.files, metadata, None))
        (place / "data").mkdir()
        (place / "data" / "rows.parquet").write_bytes(b"rows")
        self.look()
        return place

    def drop(self, table: TableName = NAME) -> str:
        location = self.pointers.drop(table)
        self.look()
        return location

    def look(self) -> None:
        self.dropped.note(self.now)

    @property
    def now(self) -> float:
        return time.time() + self.later

    def removed_after(self, seconds: float) -> list[str]:
        self.later += seconds
        return self.dropped.remove(self.now, grace=DAY)


@pytest.fixture(params=["sqlite", "postgresql"])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Warehouse]:
    folder = tmp_path / "warehouse"
    folder.mkdir()
    uri = f"sqlite:///{folder}/catalog.db" if request.param == "sqlite" else request.getfixturevalue("postgres_uri")
    with closing(open_database(uri)) as database:
        yield Warehouse(folder, database)


def test_a_dropped_tables_folder_goes_when_its_time_is_over(warehouse: Warehouse) -> None:
    place = warehouse.create()
    other = warehouse.create(TableName("public", "other"), folder="other-0123abcd")
    assert warehouse.removed_after(10 * DAY) == []  # a table may be as old as it likes
    warehouse.drop()
    assert warehouse.removed_after(DAY - 60) == []
    assert (place / "data" / "rows.parquet").exists()
    assert warehouse.removed_after(120) == [str(place)]
    assert not place.exists()
    assert (other / "data" / "rows.parquet").exists()
    assert warehouse.removed_after(10 * DAY) == []


def test_what_was_dropped_while_no_server_looked_is_found_by_the_next(warehouse: Warehouse) -> None:
    place = warehouse.create()
    warehouse.pointers.drop(NAME)
    warehouse.dropped = warehouse.another_server()
    assert warehouse.removed_after(10 * DAY) == []  # its time begins when it is seen
    assert warehouse.removed_after(DAY + 1) == [str(place)]


def test_a_renamed_table_keeps_its_folder_and_a_replaced_ones_goes(warehouse: Warehouse) -> None:
    place = warehouse.create()
    warehouse.pointers.rename(NAME, TableName("public", "renamed"))
    warehouse.look()
    assert warehouse.removed_after(2 * DAY) == []
    new = new_table(str(warehouse.folder / "public" / "t-4567abcd"), FIELDS, last_column_id=1, properties={})
    warehouse.pointers.replace(TableName("public", "renamed"), write_metadata(warehouse.files, new, None))
    warehouse.look()
    assert warehouse.removed_after(2 * DAY) == [str(place)]
    assert (warehouse.folder / "public" / "t-4567abcd").exists()


@pytest.mark.parametrize("catalog", ["lake", "another"])
def test_a_table_that_is_registered_again_keeps_its_folder(warehouse: Warehouse, catalog: str) -> None:
    place = warehouse.create()
    location = warehouse.drop()
    warehouse.later += DAY / 2
    pointers = SqlPointers(warehouse.database, catalog, warehouse.files)
    pointers.create(TableName("elsewhere", "back"), f"file://{location}")
    assert warehouse.removed_after(2 * DAY) == []
    pointers.drop(TableName("elsewhere", "back"))
    assert warehouse.removed_after(60) == []  # and its time begins anew
    assert place.exists()
    assert warehouse.removed_after(DAY + 1) == [str(place)]


def test_transactions_and_scans_keep_it(warehouse: Warehouse) -> None:
    place = warehouse.create()
    location = warehouse.drop()
    uuid = load(warehouse.files, location).uuid
    warehouse.pinned = [location]
    assert warehouse.removed_after(2 * DAY) == []
    warehouse.pinned, warehouse.read = [], {uuid}
    assert warehouse.removed_after(2 * DAY) == []
    warehouse.read = set()
    assert warehouse.removed_after(1) == [str(place)]


def test_a_folder_that_somebody_writes_to_stays(warehouse: Warehouse) -> None:
    place = warehouse.create()
    warehouse.later = -2 * DAY
    warehouse.drop()
    assert warehouse.removed_after(2 * DAY) == []
    assert place.exists()
    assert warehouse.removed_after(DAY + 1) == [str(place)]


def test_the_owner_can_keep_it(warehouse: Warehouse) -> None:
    place = warehouse.create()
    before = load(warehouse.files, warehouse.pointers.location(NAME) or "")
    after = set_properties(before.json, {"gc.enabled": "false"}, previous=before.metadata_location)
    warehouse.pointers.commit([Edit(NAME, before.json, after, before.metadata_location)])
    warehouse.drop()
    assert warehouse.removed_after(9 * DAY) == []
    assert place.exists()


def test_files_that_another_table_has_taken_over_stay(warehouse: Warehouse) -> None:
    place = warehouse.create()
    found = materialise("changes", warehouse.folder / "public")
    taken = str(place / "data" / "rows.parquet")

    def take(record: dict[str, Any]) -> dict[str, Any]:
        record["data_file"]["file_path"] = taken
        return record

    for manifest in (found.folder / "metadata").glob("*-m*.avro"):
        manifest.write_bytes(rewrite_avro(manifest.read_bytes(), take))
    warehouse.pointers.create(TableName("public", "changes"), found.metadata.metadata_location)
    warehouse.drop()
    assert warehouse.removed_after(2 * DAY) == []
    warehouse.pointers.drop(TableName("public", "changes"))
    assert warehouse.removed_after(2 * DAY) == [str(place)]
    assert found.folder.exists()


@pytest.mark.parametrize("folder", ["t", "t-0123abc", "deep/t-0123abcd", "t-0123abcd-more"])
def test_only_folders_that_sparkport_makes_are_removed(warehouse: Warehouse, folder: str) -> None:
    place = warehouse.create(folder=folder)
    warehouse.drop()
    assert warehouse.removed_after(9 * DAY) == []
    assert place.exists()


def test_a_table_that_lives_around_the_folder_keeps_it(warehouse: Warehouse) -> None:
    place = warehouse.create()
    warehouse.drop()
    around = new_table(str(warehouse.folder / "public"), FIELDS, last_column_id=1, properties={})
    warehouse.pointers.create(TableName("public", "around"), write_metadata(warehouse.files, around, None))
    assert warehouse.removed_after(9 * DAY) == []
    assert place.exists()


def test_a_folder_in_an_object_store_goes_and_its_neighbours_stay(tmp_path: Path) -> None:
    with object_store() as store, closing(open_database(f"sqlite:///{tmp_path}/catalog.db")) as database:
        warehouse = f"s3://{store.bucket}/w"
        given = LakehouseSettings(warehouse=warehouse, catalog_uri="sqlite:////none.db", properties=store.properties)
        files = FileSystem(given.storage_options())
        pointers = SqlPointers(database, "lake", files)
        dropped = DroppedFolders(
            database, "lake", warehouse=warehouse, files=files, pinned=list, is_read=lambda uuid: False
        )
        for name in ("t-0123abcd", "t-0123abcd2"):
            metadata = new_table(f"{warehouse}/public/{name}", FIELDS, last_column_id=1, properties={})
            pointers.create(TableName("public", name), write_metadata(files, metadata, None))
            files.write_new(f"{warehouse}/public/{name}/data/rows.parquet", b"rows")
        dropped.note(time.time())
        pointers.drop(TableName("public", "t-0123abcd"))
        now = time.time()
        dropped.note(now)
        assert dropped.remove(now + DAY, grace=DAY) == [f"{warehouse}/public/t-0123abcd"]
        assert store.keys("w/public/t-0123abcd/") == []
        assert len(store.keys("w/public/t-0123abcd2/")) == 2


def test_a_lakehouse_does_so_only_when_it_is_asked_for(tmp_path: Path) -> None:
    """``look`` is what its thread does once a minute; nothing that it finds here needs Spark."""
    for seconds, stays in ((0.0, True), (1e-6, False)):
        settings = LakehouseSettings(warehouse=str(tmp_path / f"{seconds}"))
        spark, maintenance = SparkServer(settings), MaintenanceSettings(dropped_seconds=seconds)
        lake = Lakehouse(settings, spark=spark, maintenance=maintenance)
        try:
            schema = lake.catalog.schema(CallContext(), "public")
            assert isinstance(schema, MutableSchema)
            schema.create_table(CallContext(), TableDefinition(name="t", columns=pa.schema([("x", pa.int64())])))
            place = Path(load(lake.engine.storage.files, lake.engine.storage.pointers.location(NAME) or "").location)
            assert lake.upkeep is not None
            lake.upkeep.look()
            schema.drop_table(CallContext(), "t")
            lake.upkeep.look()
            assert place.exists()
            lake.upkeep.look()
            assert place.exists() is stays
        finally:
            lake.stop()


def test_a_transaction_of_a_lakehouse_keeps_what_it_sees(tmp_path: Path) -> None:
    settings = LakehouseSettings(warehouse=str(tmp_path))
    lake = Lakehouse(settings, spark=SparkServer(settings), maintenance=MaintenanceSettings(dropped_seconds=1e-6))
    try:
        schema = lake.catalog.schema(CallContext(), "public")
        assert isinstance(schema, MutableSchema)
        schema.create_table(CallContext(), TableDefinition(name="t", columns=pa.schema([("x", pa.int64())])))
        location = lake.engine.storage.pointers.location(NAME) or ""
        assert lake.upkeep is not None
        lake.upkeep.look()
        transaction = lake.engine.transactions.begin(CallContext())
        schema.drop_table(CallContext(), "t")
        assert lake.in_use.all_metadata_files() == {location}
        for _ in range(3):
            lake.upkeep.look()
        assert Path(location).exists()
        lake.engine.transactions.rollback(transaction)
        lake.upkeep.look()
        assert not Path(location).exists()
    finally:
        lake.stop()
