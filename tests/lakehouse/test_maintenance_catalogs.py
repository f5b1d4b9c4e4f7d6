"""Maintenance on the other catalogs and in an object store: the same rows, the same care, nothing left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.lakehouse.maintained import NAME, Rig
from tests.support.postgres import PostgresCluster
from tests.support.s3 import ObjectStore, object_store
from tests.support.spark import shared_spark

from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import AsOf, AsOfUnit, ScanRequest, as_scan
from sparkport.catalog.statement import Change
from sparkport.lakehouse.files import local_path
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings

pytest_plugins = ["tests.support.services"]
pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]  # the first start of all downloads jars

KINDS = ("postgresql", "rest", "s3")
_WEEK = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Place:
    """A lakehouse, and how the age of a file in it is changed."""

    opened: Lakehouse
    age: Callable[[str, float], None]


@pytest.fixture(scope="module")
def places(
    postgres: PostgresCluster, rest_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Place]]:
    folder = tmp_path_factory.mktemp("places")
    with ExitStack() as stack:
        store = stack.enter_context(object_store())
        uris = [stack.enter_context(postgres.database()) for _ in range(2)]
        settings = {
            "postgresql": LakehouseSettings(warehouse=str(folder / "pg"), catalog_uri=uris[0], sessions=2),
            "rest": LakehouseSettings(warehouse=str(folder / "rest"), catalog_uri=rest_uri, sessions=2),
            "s3": LakehouseSettings(
                warehouse=f"s3://{store.bucket}/warehouse",
                catalog_uri=uris[1],
                staging=str(folder / "staging"),
                sessions=2,
                properties=store.properties,
            ),
        }
        found = {kind: stack.enter_context(Lakehouse(settings[kind], spark=shared_spark())) for kind in KINDS}
        yield {kind: Place(found[kind], _in_store(store) if kind == "s3" else _on_disk) for kind in KINDS}


def _on_disk(path: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(local_path(path) or Path(path), (then, then))


def _in_store(store: ObjectStore) -> Callable[[str, float], None]:
    from moto.s3.models import s3_backends

    def age(path: str, seconds: float) -> None:
        key = path.removeprefix(f"s3://{store.bucket}/")
        found = [account["aws"].buckets[store.bucket].keys[key] for account in s3_backends.values()]
        assert len(found) == 1
        found[0].last_modified = datetime.fromtimestamp(time.time() - seconds, UTC)

    return age


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, places: dict[str, Place]) -> Place:
    return places[request.param]


@pytest.fixture
def rig(place: Place) -> Rig:
    return Rig(place.opened)


def test_all_steps_keep_rows_and_remove_what_nobody_needs(rig: Rig) -> None:
    for number in range(3):
        rig.insert(number, number + 10)
    ids = {row[0]: row[2] for row in rig.rows()}
    rig.change(Change.UPDATE, [{"id": 1, "v": "new"}], [ids[1]])
    rig.change(Change.DELETE, [], [ids[2]])
    before, number = rig.rows(), rig.number
    report = rig.maintenance().run(NAME)
    assert report.skipped == {}
    assert report.counts["compacted_files"] >= 3
    assert report.counts["expired_snapshots"] >= 5
    assert (rig.data_files, len(rig.metadata.snapshots)) == (1, 1)
    assert len(_names(rig, ".parquet")) == 1
    assert rig.rows() == before
    after = rig.number
    assert after > number
    rig.insert(100)
    assert rig.number == after + 1
    with rig.spark() as spark:
        seen = spark.sql("SELECT id, v, _row_id FROM lake.public.events").collect()
    assert sorted(map(tuple, seen)) == rig.rows()


def test_numbers_of_versions_stay_when_others_expire_snapshots(rig: Rig) -> None:
    for number in range(5):
        rig.insert(number)
    before = rig.number
    with rig.spark() as spark:
        spark.sql(
            "CALL lake.system.expire_snapshots(table => 'public.events', "
            "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 2)"
        ).collect()
    assert rig.number == before
    rig.insert(100)
    assert rig.number == before + 1
    two_before = AsOf(AsOfUnit.VERSION, str(before - 1))
    scan = as_scan(rig.table().scan(CallContext(), ScanRequest(at=two_before)))
    assert sorted(row["id"] for batch in scan for row in batch.to_pylist()) == [0, 1, 2, 3]


def test_snapshots_of_a_transaction_a_scan_and_a_tag_stay(rig: Rig) -> None:
    rig.insert(1)
    with rig.spark() as spark:
        spark.sql("ALTER TABLE lake.public.events CREATE TAG kept").collect()
    rig.insert(2)
    manager = rig.engine.transactions
    ctx = CallContext(transaction_id=manager.begin(CallContext()))
    pinned = rig.rows(ctx)  # a REST catalog's transaction sees a table as it is at the first look
    rig.insert(3)
    read = rig.rows()
    scan = as_scan(rig.table().scan(CallContext(), ScanRequest()))
    try:
        for number in range(4, 6):
            rig.insert(number)
        rig.maintenance().run(NAME)
        assert len(rig.metadata.snapshots) == 4
        assert rig.rows(ctx) == pinned
        assert sorted(tuple(row.values()) for batch in scan for row in batch.to_pylist()) == read
    finally:
        scan.close()
        manager.rollback(ctx.transaction_id or "")
    assert rig.maintenance().run(NAME, ("expire",)).counts["expired_snapshots"] == 2
    with rig.spark() as spark:
        assert spark.sql("SELECT id FROM lake.public.events VERSION AS OF 'kept'").collect() == [(1,)]
    assert [row[0] for row in rig.rows()] == [1, 2, 3, 4, 5]


def test_files_of_nobody_and_forgotten_metadata_go(rig: Rig, place: Place) -> None:
    with rig.spark() as spark:
        spark.sql("ALTER TABLE lake.public.events SET TBLPROPERTIES ('write.metadata.previous-versions-max' = '2')")
    for number in range(3):
        rig.insert(number)
    old, young = (f"{rig.metadata.location}/data/{name}.parquet" for name in ("left", "young"))
    beside = f"{rig.metadata.location}2/data/other.parquet"  # of a table whose name begins in the same way
    for path in (old, young, beside):
        rig.engine.storage.files.write_new(path, b"x")
    place.age(old, _WEEK)
    place.age(beside, _WEEK)
    before, written = rig.rows(), len(_names(rig, ".metadata.json"))
    report = rig.maintenance().run(NAME, ("orphans", "metadata"))
    assert report.skipped == {}
    assert report.counts["removed_orphans"] == 1
    assert [rig.engine.storage.files.exists(path) for path in (old, young, beside)] == [False, True, True]
    assert written >= 5
    assert report.counts["removed_metadata"] == written - 3
    assert len(_names(rig, ".metadata.json")) == 3
    assert rig.rows() == before


def _names(rig: Rig, suffix: str) -> list[str]:
    return [info.path for info in rig.engine.storage.files.list(rig.metadata.location) if info.path.endswith(suffix)]
