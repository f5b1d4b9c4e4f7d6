"""Shadows in the catalog's database: who may publish one, what is left of one whose server died. It takes no Spark."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.lakehouse.fixtures import materialise
from tests.support.lakehouse import Start, die

from sparkport.errors import InvalidArgument, NotFound, Unavailable
from sparkport.lakehouse.backup.held import hold
from sparkport.lakehouse.catalogs.pointers import Edit, Moved
from sparkport.lakehouse.catalogs.shadow_records import ShadowRecords
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.durable import new_files
from sparkport.lakehouse.iceberg.edits import add_shadow
from sparkport.lakehouse.iceberg.metadata import TableMetadata, load
from sparkport.lakehouse.iceberg.shadows import is_shadow, new_snapshots, remove_shadow, write_seed
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName, shadow_catalog
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.upkeep.dropped_folders import DroppedFolders
from sparkport.lakehouse.upkeep.recovery import recover

pytestmark = pytest.mark.tier("fast")

pytest_plugins = ["tests.support.services"]

NAME = TableName("public", "t")
SHADOW = "0" * 32


@dataclass
class Staged:
    """A table as it was before its last snapshot, and a shadow that has that one."""

    lake: Lakehouse
    base: TableMetadata
    made: TableMetadata
    seed: str

    @property
    def folder(self) -> Path:
        return Path(self.base.location)

    @property
    def records(self) -> ShadowRecords:
        return records_of(self.lake)

    @property
    def new(self) -> set[str]:
        return {path for snapshot in new_snapshots(self.made) for path in new_files(FileSystem(), snapshot)}

    @property
    def files(self) -> set[str]:
        return {str(path) for path in self.folder.rglob("*") if path.is_file()}

    def add(self) -> None:
        self.records.add(SHADOW, self.seed)

    def advance(self) -> None:
        """As Spark does when it commits, and the applier that looks at it then."""
        self.lake.engine.storage.staging.note(self.made.metadata_location)
        with self.lake.store.database.transaction(write=True) as work:
            changed = work.change(
                "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ? "
                "WHERE metadata_location = ?",
                [self.made.metadata_location, self.seed, self.seed],
            )
        assert changed == 1

    def publish(self) -> None:
        ids = [snapshot.id for snapshot in new_snapshots(self.made)]
        after = add_shadow(self.base.json, self.made.json, ids, previous=self.base.metadata_location)
        edit = Edit(NAME, self.base.json, after, self.base.metadata_location, SHADOW)
        self.lake.engine.storage.pointers.commit([edit])


def records_of(lake: Lakehouse) -> ShadowRecords:
    records = lake.engine.storage.pointers.shadows
    assert records is not None
    return records


def staged(lake: Lakehouse) -> Staged:
    whole = materialise("changes", Path(lake.settings.warehouse_path)).metadata
    last = whole.snapshot(whole.main_snapshot_id or 0)
    earlier = [entry for entry in whole.json["snapshots"] if entry["snapshot-id"] != last.id]
    before = {
        **whole.json,
        "snapshots": earlier,
        "current-snapshot-id": last.parent_id,
        "refs": {"main": {"type": "branch", "snapshot-id": last.parent_id}},
        "snapshot-log": whole.json["snapshot-log"][:-1],
        "metadata-log": [],
        "last-sequence-number": last.sequence_number - 1,
        "properties": {**whole.properties, "write.wap.enabled": "true"},
    }
    files = lake.engine.storage.files
    for path in Path(whole.location, "metadata").glob("*.metadata.json"):
        path.unlink()
    base = write(files, before, whole.location, "00007-00000000-0000-0000-0000-000000000000")
    files.published([base.metadata_location])
    lake.engine.storage.pointers.create(NAME, base.metadata_location)
    seed = write_seed(files, base)
    copied = load(files, seed)
    after = {
        **copied.json,
        "snapshots": [*copied.json["snapshots"], *(e for e in whole.json["snapshots"] if e["snapshot-id"] == last.id)],
        "refs": whole.json["refs"],
        "current-snapshot-id": last.id,
        "last-sequence-number": last.sequence_number,
        "metadata-log": [{"timestamp-ms": copied.last_updated_ms, "metadata-file": seed}],
    }
    made = write(FileSystem(), after, whole.location, "00009-11111111-1111-1111-1111-111111111111")
    return Staged(lake, base, made, seed)


def write(files: FileSystem, metadata: dict[str, Any], folder: str, name: str) -> TableMetadata:
    location = f"{folder}/metadata/{name}.metadata.json"
    files.write_new(location, json.dumps(metadata).encode())
    return load(files, location)


# The copy


def test_a_shadow_begins_with_the_newest_snapshot_and_nothing_else(settings: LakehouseSettings, start: Start) -> None:
    found = staged(start(settings))
    seed, base = load(FileSystem(), found.seed), found.base
    assert is_shadow(seed)
    assert not is_shadow(base)
    assert [snapshot.id for snapshot in seed.snapshots] == [base.main_snapshot_id]
    assert seed.main_snapshot_id == base.main_snapshot_id
    assert (seed.metadata_log, len(seed.snapshot_log)) == ((), 1)
    same = ("table-uuid", "location", "next-row-id", "last-sequence-number", "schemas", "partition-specs")
    assert [seed.json.get(key) for key in same] == [base.json.get(key) for key in same]
    assert "write.wap.enabled" not in seed.properties
    assert seed.properties["gc.enabled"] == seed.properties["write.metadata.delete-after-commit.enabled"] == "false"
    assert new_snapshots(seed) == []


def test_a_table_without_rows_has_a_shadow_without_snapshots(tmp_path: Path) -> None:
    files = FileSystem()
    empty = materialise("changes", tmp_path).metadata
    json = {**empty.json, "snapshots": [], "refs": {}, "snapshot-log": [], "current-snapshot-id": -1}
    base = write(files, json, empty.location, "00008-00000000-0000-0000-0000-000000000000")
    seed = load(files, write_seed(files, base))
    assert new_snapshots(seed) == []
    first = {**seed.json, "snapshots": [*empty.json["snapshots"]][:1]}
    assert len(new_snapshots(TableMetadata(first))) == 1


# Publishing


def test_what_is_published_is_the_snapshot_and_the_row_is_gone(settings: LakehouseSettings, start: Start) -> None:
    found = staged(start(settings))
    found.add()
    found.advance()
    found.publish()
    pointers = found.lake.engine.storage.pointers
    after = load(FileSystem(), pointers.location(NAME) or "")
    assert after.main_snapshot_id == found.made.main_snapshot_id
    assert len(after.snapshot_log) == len(found.base.snapshot_log) + 1
    assert after.json["last-sequence-number"] == found.made.json["last-sequence-number"]
    assert not {"write.wap.enabled", "gc.enabled", "sparkport.shadow"} & after.properties.keys()
    assert found.records.location(SHADOW) is None
    assert found.records.remove(SHADOW) is None


def test_a_shadow_that_was_removed_is_not_published(settings: LakehouseSettings, start: Start) -> None:
    found = staged(start(settings))
    found.add()
    found.advance()
    assert found.records.remove(SHADOW) == found.made.metadata_location
    before = found.files
    with pytest.raises(Moved):
        found.publish()
    assert found.lake.engine.storage.pointers.location(NAME) == found.base.metadata_location
    assert found.files == before


def test_a_server_that_was_taken_for_dead_makes_no_shadow(settings: LakehouseSettings, start: Start) -> None:
    found = staged(start(settings))
    die(found.lake.engine.storage.staging)
    start(settings)
    with pytest.raises(Unavailable, match="taken this one for dead"):
        found.add()


# What dead servers leave


@pytest.mark.parametrize("how", ["died", "stopped"])
@pytest.mark.parametrize("table", ["there", "dropped", "renamed"])
@pytest.mark.parametrize("step", ["noted", "added", "advanced", "published"])
def test_the_next_server_removes_what_was_not_published(
    settings: LakehouseSettings, start: Start, step: str, table: str, how: str
) -> None:
    found = staged(start(settings))
    own = found.files - {found.seed, found.made.metadata_location} - found.new
    pointers = found.lake.engine.storage.pointers
    if step in ("noted", "added"):  # what Spark has not committed yet nobody knows
        Path(found.made.metadata_location).unlink()
    if step != "noted":
        found.add()
    if step in ("advanced", "published"):
        found.advance()
    if step == "published":
        found.publish()
        own |= {pointers.location(NAME) or "", *found.new}
    if table == "dropped":
        pointers.drop(NAME)
    elif table == "renamed":
        pointers.rename(NAME, TableName("public", "another"))
    if how == "died":
        die(found.lake.engine.storage.staging)
    else:
        found.lake.stop()
    second = start(settings)
    assert records_of(second).locations() == []
    if step in ("noted", "added"):
        own |= found.new  # no snapshot's: maintenance takes such files for orphans
    if how == "stopped" and step == "published":  # in order: it would have removed them itself
        own |= {found.seed, found.made.metadata_location}
    if how == "stopped" and step == "noted":
        own |= {found.seed}
    assert found.files == own
    for place in pointers_of(second):
        assert Path(place).exists()


def pointers_of(lake: Lakehouse) -> list[str]:
    return list(lake.engine.storage.pointers.cut().tables.values())


def test_shadows_of_servers_that_live_stay(settings: LakehouseSettings, start: Start) -> None:
    found = staged(start(settings))
    found.add()
    found.advance()
    before = found.files
    second = start(settings)
    assert records_of(second).locations() == [found.made.metadata_location]
    assert [record.is_left for record in records_of(second).everyone()] == [False]
    assert found.files == before
    found.publish()


@pytest.mark.parametrize("hours", [0, 2])
@pytest.mark.parametrize("silent", [False, True])
def test_old_shadows_of_servers_that_have_fallen_silent_go(
    settings: LakehouseSettings, start: Start, silent: bool, hours: int
) -> None:
    """Nobody has the staging folder that says that the server is dead."""
    found = staged(start(settings))
    found.add()
    found.advance()
    before, ledger = found.files, found.lake.engine.storage.ledger
    kept = before - found.new - {found.seed, found.made.metadata_location}
    ledger.beat({})
    if silent:
        with found.lake.store.database.transaction(write=True) as work:
            assert work.change("UPDATE sparkport_servers SET seen = seen - 3600 WHERE server = ?", [ledger.server])
    other = start(settings)
    assert found.files == before
    storage, silence = other.engine.storage, 3600.0 * (1 - hours)
    recover(
        storage.files,
        storage.pointers,
        storage.staging,
        ledger=storage.ledger,
        warehouse=storage.warehouse,
        silence_seconds=silence,
    )
    if silent and hours:
        assert found.files == kept
        with pytest.raises(Moved):
            found.publish()
    else:
        assert found.files == before
        found.publish()


def test_nothing_is_removed_by_a_row_that_leads_to_no_shadow(settings: LakehouseSettings, start: Start) -> None:
    """Whoever has put it there."""
    lake = start(settings)
    found = staged(lake)
    elsewhere = Path(settings.warehouse_path).parent / "elsewhere" / "metadata"
    elsewhere.mkdir(parents=True)
    shutil.copy(found.made.metadata_location, elsewhere)
    outside = str(elsewhere / Path(found.made.metadata_location).name)
    for name, location in (("a", found.base.metadata_location), ("b", outside), ("c", "/no/where")):
        with lake.store.database.transaction(write=True) as work:
            work.change(
                "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) "
                "VALUES (?, ?, ?, ?)",
                [shadow_catalog("lake"), "dead", name, location],
            )
    before = found.files
    second = start(settings)
    assert records_of(second).locations() == []
    assert found.files == before
    assert Path(outside).exists()


def test_files_outside_of_the_table_stay(tmp_path: Path) -> None:
    fixture = materialise("changes", tmp_path)
    other = materialise("evolved", tmp_path)
    files, base = FileSystem(), fixture.metadata
    seed = load(files, write_seed(files, base))
    foreign = {**other.metadata.json["snapshots"][-1], "snapshot-id": 1}
    json = {**seed.json, "snapshots": [*seed.json["snapshots"], foreign]}
    made = write(files, json, base.location, "00099-11111111-1111-1111-1111-111111111111")
    before = {path for path in tmp_path.rglob("*") if path.is_file()} - {Path(made.metadata_location)}
    remove_shadow(files, made.metadata_location, unpublished=True)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


# A shadow is no table


def test_a_shadow_is_not_listed(settings: LakehouseSettings, start: Start) -> None:
    found = staged(start(settings))
    found.add()
    pointers = found.lake.engine.storage.pointers
    assert list(pointers.cut().tables) == [NAME]
    assert pointers.registered() == [found.base.metadata_location]
    assert SHADOW not in {table.name for schema in pointers.cut().schemas for table in pointers.cut().tables if schema}
    with pytest.raises(NotFound) as missing, hold(LakehouseSettings(**{**_given(settings), "catalog_name": "lak"})):
        pass
    assert "sparkport_shadows" not in str(missing.value)


def _given(settings: LakehouseSettings) -> dict[str, Any]:
    return {"warehouse": settings.warehouse, "catalog_uri": settings.catalog_uri}


def test_the_folder_of_a_dropped_table_stays_while_a_shadow_is_there(settings: LakehouseSettings, start: Start) -> None:
    lake = start(settings)
    pointers = lake.engine.storage.pointers
    found = staged(lake)
    folder = Path(settings.warehouse_path) / "public" / "t-12345678"
    folder.parent.mkdir()
    shutil.move(found.folder, folder)
    for path in (folder / "metadata").glob("*.metadata.json"):
        path.write_text(path.read_text().replace(str(found.folder), str(folder)))
    base, seed = (str(folder / "metadata" / Path(place).name) for place in (found.base.metadata_location, found.seed))
    pointers.replace(NAME, base)
    dropped = DroppedFolders(
        lake.store.database,
        "lake",
        warehouse=settings.warehouse_path,
        files=FileSystem(),
        pinned=list,
        is_read=lambda _: False,
    )
    dropped.note(0)
    found.records.add(SHADOW, seed)
    pointers.drop(NAME)
    later = 10**12
    assert dropped.remove(later, grace=1) == []
    assert dropped.remove(later + 10, grace=1) == []
    found.records.remove(SHADOW)
    dropped.note(later + 20)
    assert dropped.remove(later + 30, grace=1) == [str(folder)]  # though what is left of a shadow says gc.enabled=false
    assert not folder.exists()


def test_only_sessions_that_write_know_the_catalog_of_shadows() -> None:
    settings = LakehouseSettings(warehouse="/w", properties={"s3.endpoint": "http://s", "cache-enabled": "true"})
    known = f"spark.sql.catalog.{shadow_catalog('lake')}"
    assert not [key for conf in (settings.session_conf(), settings.spark_conf()) for key in conf if "shadow" in key]
    conf = settings.writing_conf()
    assert conf[known] == conf["spark.sql.catalog.lake"]
    assert conf[f"{known}.s3.endpoint"] == "http://s"
    assert conf[f"{known}.uri"] == conf["spark.sql.catalog.lake.uri"]
    assert conf[f"{known}.cache-enabled"] == "false"
    rest = LakehouseSettings(warehouse="/w", catalog_uri="http://rest")
    assert rest.writing_conf() == rest.session_conf()
    with pytest.raises(InvalidArgument, match="no catalog can be called"):
        LakehouseSettings(catalog_name=shadow_catalog("lake"))


def test_one_who_is_no_server_has_no_shadows(settings: LakehouseSettings, start: Start) -> None:
    lake = start(settings)
    reading = SqlPointers(lake.store.database, "lake")
    with pytest.raises(Exception, match="belong to a server"):
        reading.shadows.add(SHADOW, "somewhere")
