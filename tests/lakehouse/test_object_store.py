"""A warehouse in an object store: rows, metadata and old versions are there, and everybody reads them from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.s3 import SECRET_KEY, ObjectStore, object_store
from tests.support.spark_cluster import ready_or_skip

from sparkport.client import Client, connect
from sparkport.config import load
from sparkport.errors import AlreadyExists, InvalidArgument, NotFound, Unavailable
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.testing import serving

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]  # the first start of all downloads jars

ITEMS = pa.table({"id": pa.array(range(5), pa.int64()), "name": [f"n{number}" for number in range(5)]})


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as made:
        yield made


@pytest.fixture(scope="module")
def lake(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("beside")
    settings = LakehouseSettings(
        warehouse=f"s3://{store.bucket}/some/warehouse",
        catalog_uri=f"sqlite:///{folder}/catalog.db",
        spark="local[2]",
        driver_memory="1g",
        staging=str(folder / "staging"),
        sessions=2,
        properties=store.properties,
    )
    with Lakehouse(settings) as opened:
        ready_or_skip(opened.spark)
        yield opened


@pytest.fixture(scope="module")
def client(lake: Lakehouse) -> Iterator[Client]:
    with serving(lake.catalog) as server, connect(server.location) as connected:
        yield connected


def rows(client: Client, name: str, **how: Any) -> list[tuple[Any, ...]]:
    found = client.scan(name, columns=["id", "name"], **how).read_all()
    return sorted(tuple(row.values()) for row in found.to_pylist())


def spark_rows(lake: Lakehouse, name: str, suffix: str = "") -> list[tuple[Any, ...]]:
    """By plain Spark."""
    with lake.engine.storage.spark.session(timeout=60) as session:
        found = session.sql(f"SELECT id, name FROM lake.public.{name} {suffix}").collect()
    return sorted(tuple(row) for row in found)


def row_ids(client: Client, name: str) -> dict[int, int]:
    found = client.scan(name, columns=["id"], row_id=True).read_all()
    return dict(zip(found["id"].to_pylist(), found["rowid"].to_pylist(), strict=True))


def test_rows_are_inserted_changed_deleted_and_read_as_they_were(
    client: Client, lake: Lakehouse, store: ObjectStore
) -> None:
    client.create_table("public.items", ITEMS.schema)
    assert rows(client, "public.items") == []
    assert client.insert("public.items", ITEMS).count == 5
    ids = row_ids(client, "public.items")
    assert client.update("public.items", pa.table({"name": ["new"]}), row_ids=[ids[1]]).count == 1
    assert client.delete("public.items", [ids[0], ids[4]]).count == 2
    now = [(1, "new"), (2, "n2"), (3, "n3")]
    assert rows(client, "public.items") == spark_rows(lake, "items") == now
    assert row_ids(client, "public.items") == {number: ids[number] for number in (1, 2, 3)}
    before = sorted(tuple(row.values()) for row in ITEMS.to_pylist())
    assert rows(client, "public.items", as_of_version=1) == before
    kept = store.keys("some/warehouse/public/items-")
    assert {key.rpartition(".")[2] for key in kept} == {"avro", "json", "parquet", "puffin"}


def test_what_plain_spark_writes_is_read_here(client: Client, lake: Lakehouse) -> None:
    with lake.engine.storage.spark.session(timeout=60) as session:
        session.sql("CREATE TABLE lake.public.theirs (id BIGINT, name STRING) USING iceberg").collect()
        session.sql("INSERT INTO lake.public.theirs VALUES (7, 'seven'), (8, NULL)").collect()
    assert rows(client, "public.theirs") == [(7, "seven"), (8, None)]


def test_a_dropped_table_is_gone_for_everybody(client: Client, lake: Lakehouse) -> None:
    client.create_table("public.short", ITEMS.schema)
    client.drop_table("public.short")
    with pytest.raises(NotFound):
        rows(client, "public.short")
    with lake.engine.storage.spark.session(timeout=60) as session:
        assert "short" not in {row.tableName for row in session.sql("SHOW TABLES IN lake.public").collect()}


# Secrets


def test_the_key_is_neither_in_the_settings_text_nor_on_sparks_command_line(lake: Lakehouse) -> None:
    process = lake.spark.process_id
    assert process is not None
    command = Path(f"/proc/{process}/cmdline").read_bytes().decode()
    assert "SparkConnectServer" in command
    assert SECRET_KEY not in command
    assert SECRET_KEY not in repr(lake.settings)
    named = command.split("\0")
    assert not Path(named[named.index("--properties-file") + 1]).exists()


def test_properties_of_the_settings_file_are_shown_to_nobody(tmp_path: Path) -> None:
    file = tmp_path / "sparkport.toml"
    file.write_text(f'[properties]\ns3.secret-access-key = "{SECRET_KEY}"\n"s3.path-style-access" = true\n')
    loaded = load({}, {}, file=file)
    assert SECRET_KEY not in repr(loaded)
    given = {key: value.reveal() for key, value in (loaded.properties or {}).items()}
    assert given == {"s3.secret-access-key": SECRET_KEY, "s3.path-style-access": "true"}
    file.write_text(f'[properties]\ns3.secret-access-key = ["{SECRET_KEY}"]\n')
    with pytest.raises(InvalidArgument) as caught:
        load({}, {}, file=file)
    assert SECRET_KEY not in str(caught.value)


# Files by themselves


@pytest.fixture
def files(lake: Lakehouse) -> FileSystem:
    return FileSystem(lake.settings.storage_options())


def test_a_file_is_written_once_read_in_parts_listed_and_deleted(files: FileSystem, store: ObjectStore) -> None:
    folder = f"s3://{store.bucket}/files"
    files.write_new(f"{folder}/a/one", b"0123456789")
    with pytest.raises(AlreadyExists):
        files.write_new(f"{folder}/a/one", b"other")
    assert files.read_bytes(f"{folder}/a/one") == b"0123456789"
    assert files.read_range(f"{folder}/a/one", 2, length=3) == b"234"
    files.write_new(f"{folder}/b", b"b")
    assert [(info.path, info.size) for info in files.list(folder)] == [(f"{folder}/a/one", 10), (f"{folder}/b", 1)]
    assert all(info.modified is not None for info in files.list(folder))
    files.delete(f"{folder}/b")
    files.delete(f"{folder}/b")
    files.delete_tree(f"{folder}/a")
    assert files.list(folder) == []
    with pytest.raises(NotFound):
        files.read_bytes(f"{folder}/b")


def test_a_store_that_nobody_answers_for_is_unavailable(store: ObjectStore) -> None:
    nowhere = LakehouseSettings(
        warehouse=f"s3://{store.bucket}/x",
        catalog_uri="sqlite:////nowhere/catalog.db",
        properties={**store.properties, "s3.endpoint": "http://127.0.0.1:9"},
    )
    with pytest.raises(Unavailable):
        FileSystem(nowhere.storage_options()).read_bytes(f"s3://{store.bucket}/x")


# Settings


def test_sqlite_cannot_be_in_an_object_store() -> None:
    with pytest.raises(InvalidArgument, match="catalog_uri"):
        LakehouseSettings(warehouse="s3://bucket/warehouse")


def test_spark_elsewhere_needs_a_staging_folder_that_it_can_reach() -> None:
    with pytest.raises(InvalidArgument, match="staging must be set"):
        LakehouseSettings(warehouse="s3://b/w", catalog_uri="sqlite:////c.db", spark="spark://head:7077")
    with pytest.raises(InvalidArgument, match="a folder"):
        LakehouseSettings(staging="s3://b/staging")


def test_a_local_warehouse_needs_nothing_of_all_this() -> None:
    plain = LakehouseSettings(warehouse="file:///data/warehouse")
    assert plain.warehouse_path == "/data/warehouse"
    assert plain.staging_path == "/data/warehouse/.staging"
    assert plain.storage_options() == {}
    assert not any("aws" in package for package in plain.packages())
    assert not any("io-impl" in key for key in plain.session_conf())
