"""Files outside of what is a warehouse's own are never removed, whatever a name, a note or foreign metadata says."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.lakehouse import maintenance_of

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableSchema, TableDefinition
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.edits import new_table
from sparkport.lakehouse.iceberg.metadata_files import write_metadata
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.upkeep.dropped_folders import DroppedFolders
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings
from sparkport.lakehouse.warehouse import Warehouse, new_folder

pytestmark = pytest.mark.tier("fast")

COLUMNS = pa.schema([("id", pa.int64())])
FIELDS = [{"id": 1, "name": "id", "type": "long", "required": False}]
DAY = 86_400.0


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    folder = tmp_path / "warehouse"
    folder.mkdir()
    return folder


@pytest.fixture
def opened(warehouse: Path) -> Iterator[Lakehouse]:
    """Without Spark: it is not asked for anything."""
    made = Lakehouse(LakehouseSettings(warehouse=str(warehouse)))
    try:
        yield made
    finally:
        made.stop()


def metadata_name() -> str:
    return f"00001-{uuid.uuid4()}.metadata.json"


def written(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("precious")
    return path


def test_a_forged_note_removes_nothing_but_metadata_of_the_warehouse_that_nobody_points_to(
    warehouse: Path, tmp_path: Path
) -> None:
    first = Lakehouse(LakehouseSettings(warehouse=str(warehouse)))
    schema = first.catalog.schema(CallContext(), "public")
    assert isinstance(schema, MutableSchema)
    schema.create_table(CallContext(), TableDefinition(name="t", columns=COLUMNS))
    pointer = Path(first.engine.storage.pointers.location(TableName("public", "t")) or "")
    (staging,) = (path for path in (warehouse / ".staging").iterdir() if path.is_dir())
    catalog = (staging / "catalog.txt").read_text()
    first.stop()

    orphan = written(pointer.with_name(metadata_name()))
    (warehouse / "link").symlink_to(tmp_path)
    (warehouse / "public" / "alias").symlink_to(pointer.parents[1])
    outside = written(tmp_path / "other" / "metadata" / metadata_name())
    victims = [
        outside,
        written(tmp_path / "secret.txt"),
        written(warehouse / "public" / "t" / "data" / "rows.parquet"),
        written(warehouse / "public" / "t" / "metadata" / "snap-1.avro"),
        written(warehouse / "public" / "t" / "metadata" / "version-hint.text"),
        written(warehouse / "public" / "t" / metadata_name()),
        written(pointer.with_name(f".{pointer.name}.crc")),
        pointer,
        warehouse / "catalog.db",
    ]
    told = [
        *map(str, victims),
        *(f"file:{path}" for path in victims),
        *(f"file://{path}" for path in victims),
        f"{warehouse}/../other/metadata/{outside.name}",
        f"{warehouse}/link/other/metadata/{outside.name}",
        f"{warehouse}/public/alias/metadata/{pointer.name}",
        f"{pointer.parent}/../metadata/{pointer.name}",
        f"{pointer.parent}/./{pointer.name}",
        f"{pointer.parent}//{pointer.name}",
        "relative/metadata/" + metadata_name(),
        f"{warehouse}/public/\0/metadata/{metadata_name()}",
    ]
    dead = warehouse / ".staging" / ("0" * 32)
    dead.mkdir()
    (dead / "catalog.txt").write_text(catalog)
    (dead / "metadata.txt").write_text("\n".join(told))
    lines = [*map(json.dumps, told), "17", "[]", "{", "", '"cut off', json.dumps(str(orphan))]
    (dead / "metadata.jsonl").write_text("\n".join(lines))

    Lakehouse(LakehouseSettings(warehouse=str(warehouse))).stop()
    assert not dead.exists()
    assert [path for path in victims if not path.exists()] == []
    assert not orphan.exists()


@pytest.mark.parametrize(
    ("schema", "folder"),
    [("..", "t-0123abcd"), ("public", "..-0123abcd"), ("public", "link-0123abcd"), (".staging", "t-0123abcd")],
)
def test_a_dropped_table_takes_no_folder_along_that_is_elsewhere(
    warehouse: Path, tmp_path: Path, schema: str, folder: str
) -> None:
    (warehouse / "public").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place = warehouse / schema / folder
    if folder.startswith("link"):
        place.symlink_to(elsewhere)
    location = write_metadata(FileSystem(), new_table(str(place), FIELDS, last_column_id=1, properties={}), None)
    precious = written(place / "data" / "rows.parquet")
    with closing(open_database(f"sqlite:///{tmp_path}/catalog.db")) as database:
        pointers = SqlPointers(database, "lake", FileSystem())
        pointers.create(TableName("public", "t"), location)
        dropped = DroppedFolders(
            database,
            "lake",
            warehouse=str(warehouse),
            files=FileSystem(),
            pinned=lambda: (),
            is_read=lambda table_uuid: False,
        )
        now = precious.stat().st_mtime
        dropped.note(now)
        with database.transaction(write=True) as work:  # and what somebody may have written there
            row = "INSERT INTO sparkport_folders VALUES ('lake', ?, NULL) ON CONFLICT DO NOTHING"
            for spelled in (str(place), str(elsewhere), "/", str(warehouse), f"{warehouse}/../elsewhere"):
                work.change(row, [spelled])
        pointers.drop(TableName("public", "t"))
        dropped.note(now)
        assert dropped.remove(now + 10 * DAY, grace=DAY) == []
        assert dropped.remove(now + 20 * DAY, grace=DAY) == []
    assert precious.exists()
    assert Path(location).exists()


def test_a_dropped_tables_folder_stays_when_another_table_has_it_under_another_spelling(
    warehouse: Path, tmp_path: Path
) -> None:
    files = FileSystem()
    place = warehouse / new_folder("public", "t")
    (warehouse / "alias").symlink_to(place)
    with closing(open_database(f"sqlite:///{tmp_path}/catalog.db")) as database:
        pointers = SqlPointers(database, "lake", files)
        own = write_metadata(files, new_table(str(place), FIELDS, last_column_id=1, properties={}), None)
        precious = written(place / "data" / "rows.parquet")
        metadata = new_table(f"{warehouse}/alias", FIELDS, last_column_id=1, properties={})
        other = write_metadata(files, {**metadata, "location": str(tmp_path / "other")}, None)
        pointers.create(TableName("public", "t"), own)
        dropped = DroppedFolders(
            database, "lake", warehouse=str(warehouse), files=files, pinned=lambda: (), is_read=lambda _: False
        )
        now = precious.stat().st_mtime
        dropped.note(now)
        pointers.drop(TableName("public", "t"))
        dropped.note(now)
        # Its metadata is elsewhere, and says by another way that the table is in this folder.
        Path(other).write_text(json.dumps(metadata))
        SqlPointers(database, "another", files).create(TableName("public", "u"), other)
        assert dropped.remove(now + 10 * DAY, grace=DAY) == []
        assert precious.exists()
        SqlPointers(database, "another", files).drop(TableName("public", "u"))
        assert dropped.remove(now + 20 * DAY, grace=DAY) == [str(place)]


@pytest.mark.parametrize(
    "location", ["/", "{tmp}", "{warehouse}", "{warehouse}/.staging", "{warehouse}/../x", "relative"]
)
def test_a_table_that_says_it_lies_elsewhere_gets_nothing_removed_there(
    opened: Lakehouse, warehouse: Path, tmp_path: Path, location: str
) -> None:
    """A foreign table, or one of a catalog that answers with odd places: Spark is not even asked."""
    place = location.format(tmp=tmp_path, warehouse=warehouse)
    files = opened.engine.storage.files
    metadata = new_table(str(tmp_path / "foreign"), FIELDS, last_column_id=1, properties={})
    pointer = Path(write_metadata(files, metadata, None))
    pointer.write_text(json.dumps({**metadata, "location": place}))
    opened.engine.storage.pointers.create(TableName("public", "foreign"), str(pointer))
    old = written(pointer.with_name(f"00000-{uuid.uuid4()}.metadata.json"))
    os.utime(old, (0, 0))
    at_once = MaintenanceSettings(metadata_seconds=0, orphan_seconds=0)
    maintenance = maintenance_of(opened, at_once)
    report = maintenance.run(TableName("public", "foreign"), ("orphans", "metadata"))
    assert set(report.skipped) == {"orphans", "metadata"}
    assert report.counts == {}
    assert old.exists()


def test_what_is_inside_a_warehouse_is_told_by_true_places(warehouse: Path, tmp_path: Path) -> None:
    (warehouse / "out").symlink_to(tmp_path)
    own = Warehouse(str(warehouse))
    assert own.inside(f"{warehouse}/public/t-0123abcd") == "public/t-0123abcd"
    assert own.inside(f"file:{warehouse}/public//x/../t") == "public/t"
    outside = ["", "/", "public", f"{warehouse}", f"{warehouse}/", f"{warehouse}-2/t", f"{warehouse}/.staging/x"]
    outside += [f"{warehouse}/..", f"{warehouse}/out/x", f"{warehouse}/a/../../x", f"{warehouse}/a\0b"]
    assert [path for path in outside if own.inside(path) is not None] == []
    store = Warehouse("s3://bucket/wh")
    assert store.inside("s3a://bucket/wh/public/t") == "public/t"
    foreign = ["s3://bucket/wh", "s3://bucket/wh/", "s3://bucket/wh2/t", "s3://other/wh/t", "/wh/t"]
    foreign += ["s3://bucket/wh/../x", "s3://bucket/wh/a/../../x", "s3://bucket/wh/./x", "s3://bucket/wh//x"]
    assert [path for path in foreign if store.inside(path) is not None] == []
