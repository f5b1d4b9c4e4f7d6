"""Backups in an object store, of warehouses in one, and catalogs in PostgreSQL: each way there and back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.lakehouse.small import add_table, backed_up, checked, journal_rows, rows_of, small_lake, to_new
from tests.support.s3 import ObjectStore, object_store

from sparkport.errors import FailedPrecondition, InvalidArgument
from sparkport.lakehouse.backup.contents import read_contents
from sparkport.lakehouse.backup.turns import turn
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.settings import LakehouseSettings

pytestmark = pytest.mark.tier("fast")

pytest_plugins = ["tests.support.services"]

TABLES = ("partitioned", "positions_v2")


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as made:
        yield made


@pytest.fixture
def lake(tmp_path: Path, store: ObjectStore) -> LakehouseSettings:
    return small_lake(tmp_path / "warehouse", TABLES[:1], properties=store.properties)


def files_of(settings: LakehouseSettings) -> FileSystem:
    return FileSystem(settings.storage_options())


@pytest.mark.tier("thorough")
def test_there_and_back_through_a_store(lake: LakehouseSettings, store: ObjectStore, tmp_path: Path) -> None:
    journal_rows(lake, "partitioned")
    place = f"s3://{store.bucket}/there/and back's 50%"
    one = backed_up(lake, place)
    assert one.new_files == one.files
    add_table(lake, "positions_v2")
    two = backed_up(lake, place)
    assert 0 < two.new_files < two.files
    assert backed_up(lake, place, keep=2).forgotten == (1,)
    local = to_new(place, tmp_path / "local", properties=store.properties)
    assert checked(local, deep=True).found == ()
    remote = to_new(
        place,
        f"s3://{store.bucket}/new one",
        catalog_uri=f"sqlite:///{tmp_path}/remote.db",
        properties=store.properties,
    )
    assert checked(remote, deep=True).found == ()
    for name in TABLES:
        assert rows_of(remote, name, store.properties).equals(rows_of(lake, name)), name
    with pytest.raises(FailedPrecondition, match="not empty"):
        to_new(
            place,
            f"s3://{store.bucket}/new one",
            catalog_uri=f"sqlite:///{tmp_path}/other.db",
            properties=store.properties,
        )
    backed_up(remote, tmp_path / "of the store")
    home = to_new(tmp_path / "of the store", tmp_path / "home", properties=store.properties)
    assert checked(home, deep=True).found == ()
    for name in TABLES:
        assert rows_of(home, name).equals(rows_of(lake, name)), name
    victim = next(key for key in store.keys("new one/public/partitioned/data") if key.endswith(".parquet"))
    store.client().delete_object(Bucket=store.bucket, Key=victim)
    assert [finding.path for finding in checked(remote).found] == [f"s3://{store.bucket}/{victim}"]


def test_a_store_needs_a_database_that_is_told(lake: LakehouseSettings, store: ObjectStore, tmp_path: Path) -> None:
    backed_up(lake, tmp_path / "backups")
    with pytest.raises(InvalidArgument, match="catalog_uri"):
        to_new(tmp_path / "backups", f"s3://{store.bucket}/none", properties=store.properties)


def test_in_a_store_too_there_is_one_at_a_time_and_a_dead_one_makes_way(
    lake: LakehouseSettings, store: ObjectStore
) -> None:
    files, root = files_of(lake), f"s3://{store.bucket}/turns"
    inside, done = threading.Event(), threading.Event()

    def first() -> None:
        with turn(files, root, beat=0.05, silence=2.0):
            inside.set()
            done.wait(30)

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(30)
    with pytest.raises(FailedPrecondition, match="another backup"), turn(files, root, beat=0.05, silence=2.0):
        pass
    done.set()
    thread.join()
    assert store.keys("turns") == []
    files.write_new(f"{root}/lock", b"of one that was killed")
    with turn(files, root, beat=0.05, silence=0.3):
        assert store.keys("turns") == ["turns/lock"]
    assert store.keys("turns") == []


def test_a_catalog_in_postgresql_is_restored_into_one(postgres_uri: str, tmp_path: Path) -> None:
    lake = small_lake(tmp_path / "warehouse", TABLES, catalog_uri=postgres_uri)
    journal_rows(lake, "partitioned")
    place = tmp_path / "backups"
    backed_up(lake, place)
    with pytest.raises(FailedPrecondition, match="has a catalog 'lake' already"):
        to_new(place, tmp_path / "new", catalog_uri=postgres_uri)
    copied = to_new(place, tmp_path / "copy", catalog_uri=postgres_uri, catalog_name="copy")
    small = to_new(place, tmp_path / "small")
    assert checked(copied, deep=True).found == ()
    assert checked(small, deep=True).found == ()
    with (
        closing(open_database(postgres_uri)) as database,
        closing(open_database(small.database_uri)) as sqlite,
    ):
        theirs, ours = (read_contents(database, name) for name in ("copy", "lake"))
        in_sqlite = read_contents(sqlite, "lake")
    for table in ("sparkport_journal", "sparkport_journal_entries", "iceberg_namespace_properties"):
        assert theirs.rows[table] == ours.rows[table] == in_sqlite.rows[table]
    assert ours.rows["sparkport_journal_entries"]
    assert all(pointer.location.startswith(f"{tmp_path}/copy/") for pointer in theirs.pointers)
    assert all(pointer.location.startswith(f"{tmp_path}/warehouse/") for pointer in ours.pointers)
