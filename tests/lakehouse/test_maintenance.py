"""Maintenance keeps rows, row ids and versions, and whatever somebody still reads; upgrades give row ids at once."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.lakehouse.maintained import AT_ONCE, NAME, SCHEMA, Rig, busy
from tests.lakehouse.transacting import at_point
from tests.support.lakehouse import Lake, lakehouse

from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import AsOf, AsOfUnit, ScanRequest, as_scan
from sparkport.catalog.statement import Change, ChangeableTable, StatementRequest
from sparkport.errors import FailedPrecondition, InvalidArgument, TableNotFound, VersionNotFound
from sparkport.lakehouse.catalogs.pointers import Edit
from sparkport.lakehouse.files import local_path
from sparkport.lakehouse.iceberg.durable import new_files
from sparkport.lakehouse.iceberg.edits import set_properties
from sparkport.lakehouse.iceberg.manifests import read_manifest_list
from sparkport.lakehouse.iceberg.metadata import load
from sparkport.lakehouse.iceberg.plan import plan
from sparkport.lakehouse.iceberg.row_groups import ROW_GROUP_BYTES, footer_of
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.upkeep.maintenance_thread import MaintenanceThread
from sparkport.lakehouse.upkeep.upgrade import upgrade_table

# The first compaction of a Spark takes long on a busy machine.
pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lakehouse(tmp_path_factory.mktemp("warehouse")) as opened:
        yield Lake(opened)


@pytest.fixture
def rig(lake: Lake) -> Rig:
    return Rig(lake.opened)


def test_manifests_are_put_together_and_rows_keep_their_ids(rig: Rig) -> None:
    """Up to Iceberg 1.11 they got others (apache/iceberg#16699); files that were compacted would not show it."""
    for number in range(4):
        rig.insert(number)
    before = rig.rows()
    assert len(_manifests(rig)) > AT_ONCE.max_manifests
    assert rig.maintenance().run(NAME, ("manifests",)).counts["rewritten_manifests"] >= 4
    assert len(_manifests(rig)) == 1
    assert rig.rows() == before
    assert rig.change(Change.UPDATE, [{"id": 2, "v": "new"}], [before[2][2]]) == 1
    with rig.spark() as spark:
        seen = spark.sql("SELECT id, v, _row_id FROM lake.public.events").collect()
    assert sorted(map(tuple, seen)) == rig.rows() == [*before[:2], (2, "new", before[2][2]), before[3]]


def test_an_iceberg_that_would_change_row_ids_puts_no_manifests_together(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark that was started elsewhere may have one."""
    monkeypatch.setattr("sparkport.lakehouse.upkeep.maintenance.keeps_row_ids", lambda version: False)
    for number in range(4):
        rig.insert(number)
    before = rig.metadata.metadata_location
    report = rig.maintenance().run(NAME, ("manifests",))
    assert "1.12" in report.skipped["manifests"]
    assert rig.metadata.metadata_location == before


def _manifests(rig: Rig) -> Sequence[object]:
    main = rig.metadata.snapshot(rig.metadata.main_snapshot_id or 0)
    return list(read_manifest_list(rig.engine.storage.files, main.manifest_list))


def test_commits_that_put_manifests_together_keep_row_ids(rig: Rig) -> None:
    before = rig.metadata
    after = set_properties(before.json, {"commit.manifest.min-count-to-merge": "2"}, previous=before.metadata_location)
    rig.engine.storage.pointers.commit([Edit(NAME, before.json, after, before.metadata_location)])
    known: dict[int, int] = {}
    for number in range(5):
        rig.insert(number, number + 10)
        ids = {key: row_id for key, _, row_id in rig.rows()}
        assert ids | known == ids
        known = ids
    assert len(_manifests(rig)) < 5


@pytest.mark.tier("fast")
def test_all_steps_keep_rows_row_ids_and_version_numbers(rig: Rig) -> None:
    before, number = busy(rig), rig.number
    report = rig.maintenance().run(NAME)
    assert report.counts["compacted_files"] >= 6
    assert report.counts["expired_snapshots"] >= 8
    assert rig.data_files == 1
    assert rig.rows() == before
    assert len(rig.metadata.snapshots) == 1
    after = rig.number
    assert after > number  # compaction is a commit like others
    rig.insert(100)
    assert rig.number == after + 1
    # New rows never get the id of another.
    ids = [row[2] for row in rig.rows()]
    assert len(ids) == len(set(ids))
    with rig.spark() as spark:
        seen = spark.sql("SELECT id, v, _row_id FROM lake.public.events").collect()
    assert sorted(map(tuple, seen)) == rig.rows()


def test_a_second_run_finds_nothing_to_do(rig: Rig) -> None:
    busy(rig)
    rig.maintenance().run(NAME)
    location = rig.metadata.metadata_location
    assert rig.maintenance().run(NAME, ("compact", "manifests", "expire")).counts == {}
    assert rig.metadata.metadata_location == location


def test_an_update_after_compaction_finds_its_row(rig: Rig) -> None:
    before = busy(rig)
    rig.maintenance().run(NAME)
    row_id = next(row[2] for row in before if row[0] == 7)
    assert rig.change(Change.UPDATE, [{"id": 7, "v": "late"}], [row_id]) == 1
    assert (7, "late", row_id) in rig.rows()


def test_compaction_makes_small_row_groups_where_a_table_says_nothing_of_them(rig: Rig) -> None:
    assert rig.metadata.properties[ROW_GROUP_BYTES] == str(576 << 10)
    before = rig.metadata
    after = set_properties(before.json, {ROW_GROUP_BYTES: None}, previous=before.metadata_location)
    rig.engine.storage.pointers.commit([Edit(NAME, dict(before.json), after, before.metadata_location)])
    for start in range(0, 180_000, 60_000):
        rows = [{"id": number, "v": uuid.uuid4().hex} for number in range(start, start + 60_000)]
        assert rig.change(Change.INSERT, rows) == 60_000
    assert ROW_GROUP_BYTES not in rig.metadata.properties
    rig.maintenance().run(NAME, ("compact",))
    assert rig.metadata.properties[ROW_GROUP_BYTES] == str(576 << 10)
    (file,) = plan(rig.engine.storage.files, rig.metadata, rig.metadata.main_snapshot_id).files
    footer = footer_of(file)
    assert footer is not None
    assert len(footer.starts) > 1
    row_id = 90_000  # in the middle of row groups with ids of their own
    assert rig.change(Change.UPDATE, [{"id": 7, "v": "late"}], [row_id]) == 1
    assert rig.change(Change.DELETE, [], [row_id + 1]) == 1
    found = {row[2]: row for row in rig.rows()}
    assert found[row_id] == (7, "late", row_id)
    assert len(found) == 179_999


def test_a_transaction_goes_on_reading_what_it_began_with(rig: Rig) -> None:
    before = busy(rig)
    manager = rig.engine.transactions
    ctx = CallContext(transaction_id=manager.begin(CallContext()))
    for number in range(200, 206):
        rig.insert(number)
    rig.maintenance().run(NAME)
    assert len(rig.rows()) == len(before) + 6
    assert rig.rows(ctx) == before
    manager.rollback(ctx.transaction_id or "")
    expired = rig.maintenance().run(NAME, ("expire",)).counts["expired_snapshots"]
    assert expired == 1
    assert len(rig.metadata.snapshots) == 1


def test_so_many_transactions_that_they_are_not_looked_into_are_kept_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.opened.in_use, "looked_into", 0)
    before = busy(rig)
    ctx = CallContext(transaction_id=rig.engine.transactions.begin(CallContext()))
    rig.insert(300)
    rig.maintenance().run(NAME)
    assert rig.rows(ctx) == before
    rig.engine.transactions.rollback(ctx.transaction_id or "")


def test_a_running_scan_goes_on(rig: Rig) -> None:
    before = busy(rig)
    scan = as_scan(rig.table().scan(CallContext(), ScanRequest()))
    try:
        rig.insert(400)
        rig.maintenance().run(NAME)
        found = [tuple(row.values()) for batch in scan for row in batch.to_pylist()]
        assert sorted(found) == before
    finally:
        scan.close()


def test_tags_and_branches_keep_their_snapshots(rig: Rig) -> None:
    rig.insert(1)
    with rig.spark() as spark:
        spark.sql("ALTER TABLE lake.public.events CREATE TAG kept")
        spark.sql("ALTER TABLE lake.public.events CREATE BRANCH side")
        spark.sql("INSERT INTO lake.public.events.branch_side VALUES (50L, 'side')")
    for number in range(2, 6):
        rig.insert(number)
    rig.maintenance().run(NAME)
    with rig.spark() as spark:
        assert spark.sql("SELECT id FROM lake.public.events VERSION AS OF 'kept'").collect() == [(1,)]
        side = spark.sql("SELECT id FROM lake.public.events VERSION AS OF 'side' ORDER BY id").collect()
        assert side == [(1,), (50,)]
    assert len(rig.metadata.snapshots) == 3


def test_versions_within_the_retention_stay(rig: Rig) -> None:
    rig.insert(1)
    rig.insert(2)
    rig.insert(3)
    rig.maintenance(replace(AT_ONCE, retention_seconds=3600)).run(NAME)
    version_1 = AsOf(AsOfUnit.VERSION, "1")
    assert [row[0] for row in rig.rows(at=version_1)] == [1]
    rig.maintenance().run(NAME, ("expire",))
    with pytest.raises(VersionNotFound):
        rig.rows(at=version_1)


def test_what_was_staged_and_never_published_is_removed(rig: Rig) -> None:
    """As servers of earlier versions did, and those on REST catalogs do."""
    rig.insert(1)
    with rig.engine.storage.spark.session({"spark.wap.id": "lost"}) as session:
        session.sql("ALTER TABLE lake.public.events SET TBLPROPERTIES ('write.wap.enabled' = 'true')").collect()
        session.sql("INSERT INTO lake.public.events VALUES (99L, 'lost')").collect()
    assert len(rig.metadata.snapshots) == 2
    data = list(rig.folder.glob("data/*.parquet"))
    hour = replace(AT_ONCE, staged_seconds=3600, retention_seconds=3600)
    rig.maintenance(hour).run(NAME, ("expire",))
    assert len(rig.metadata.snapshots) == 2
    rig.maintenance(hour, later=3700).run(NAME, ("expire",))
    assert len(rig.metadata.snapshots) == 1
    assert len(list(rig.folder.glob("data/*.parquet"))) == len(data) - 1
    assert [row[0] for row in rig.rows()] == [1]


def test_what_a_commit_of_hours_is_made_on_stays(rig: Rig) -> None:
    rig.insert(1)
    manager = rig.engine.transactions
    ctx = CallContext(transaction_id=manager.begin(CallContext(), auto_commit=False))
    rig.change(Change.INSERT, [{"id": 2, "v": "late"}], ctx=ctx)
    seen: list[set[int]] = []

    def hours_later() -> None:
        base = rig.metadata.main_snapshot_id
        with rig.spark() as spark:
            spark.sql("INSERT INTO lake.public.events VALUES (3, 'theirs')").collect()
        rig.maintenance(replace(AT_ONCE, staged_seconds=3600), later=7200).run(NAME, ("expire",))
        assert base is not None
        seen.extend(({base}, rig.opened.in_use.reported()[rig.metadata.uuid]))
        assert rig.metadata.has_snapshot(base)  # Spark reads it

    with at_point("apply.before", hours_later):
        manager.commit(ctx.transaction_id or "")
    assert seen[0] <= seen[1]  # other servers are told, too
    assert [row[0] for row in rig.rows()] == [1, 2, 3]
    assert rig.engine.applier.tables_in_use() == set()


def test_tables_that_are_gone_are_forgotten_in_the_background(rig: Rig) -> None:
    thread = MaintenanceThread(rig.maintenance(), ready=lambda: True)
    rig.insert(1)
    thread.look()
    assert NAME in thread.known
    rig.schema.drop_table(CallContext(), NAME[1])
    for _ in range(2):
        thread.look()
    assert NAME not in {*thread.known, *rig.engine.committer.written()}


@pytest.mark.tier("fast")
def test_files_of_nobody_and_forgotten_metadata_are_removed(rig: Rig) -> None:
    with rig.spark() as spark:
        spark.sql("ALTER TABLE lake.public.events SET TBLPROPERTIES ('write.metadata.previous-versions-max' = '3')")
    for number in range(4):
        rig.insert(number)
    orphan = rig.folder / "data" / "left.parquet"
    orphan.write_bytes(b"x")
    young = rig.folder / "data" / "young.parquet"
    young.write_bytes(b"x")
    week = time.time() - 7 * 24 * 3600
    os.utime(orphan, (week, week))
    before = rig.rows()
    report = rig.maintenance().run(NAME, ("orphans", "metadata"))
    assert report.counts["removed_orphans"] == 1
    assert not orphan.exists()
    assert young.exists()
    assert report.counts["removed_metadata"] == 2
    kept = {path.name for path in rig.folder.glob("metadata/*.metadata.json")}
    assert len(kept) == 4
    assert {path.name[1:-4] for path in rig.folder.glob("metadata/.*.metadata.json.crc")} <= kept
    assert rig.rows() == before


def test_files_are_kept_where_the_owner_says_so(rig: Rig) -> None:
    rig.insert(1)
    rig.insert(2)
    with rig.spark() as spark:
        spark.sql("ALTER TABLE lake.public.events SET TBLPROPERTIES ('gc.enabled' = 'false')")
    report = rig.maintenance().run(NAME, ("expire", "orphans", "metadata"))
    assert report.counts == {}
    assert set(report.skipped) == {"expire", "orphans", "metadata"}


def test_inserts_and_updates_meanwhile_lose_nothing(rig: Rig) -> None:
    rig.insert(*range(20))
    ids = {row[0]: row[2] for row in rig.rows()}
    failed: list[BaseException] = []

    def inserting() -> None:
        try:
            for number in range(100, 112):
                rig.insert(number)
        except BaseException as exc:
            failed.append(exc)

    def updating() -> None:
        try:
            for number in range(8):
                assert rig.change(Change.UPDATE, [{"id": number, "v": "up"}], [ids[number]]) == 1
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=inserting), threading.Thread(target=updating)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        rig.maintenance(replace(AT_ONCE, staged_seconds=3600)).run(NAME, ("compact", "expire"))
    for thread in threads:
        thread.join()
    assert failed == []
    rows = rig.rows()
    assert [row[0] for row in rows] == [*range(20), *range(100, 112)]
    assert [row[1] for row in rows[:8]] == ["up"] * 8
    assert all(row[2] == ids[row[0]] for row in rows[:20])


def test_the_background_looks_at_changed_tables_only(rig: Rig) -> None:
    thread = MaintenanceThread(rig.maintenance(), ready=lambda: True)
    for number in range(4):
        rig.insert(number)
    thread.look()
    assert rig.data_files == 1
    location = rig.metadata.metadata_location
    thread.look()
    assert rig.metadata.metadata_location == location
    with rig.spark() as spark:
        spark.sql("ALTER TABLE lake.public.events SET TBLPROPERTIES ('sparkport.maintenance' = 'false')")
    for number in range(4):
        rig.insert(number)
    thread.look()
    assert rig.data_files == 5


def test_what_compaction_has_written_is_synced(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.insert(1)
    rig.insert(2)
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.readlink(f"/proc/self/fd/{descriptor}")))
    rig.maintenance().run(NAME, ("compact",))
    metadata = rig.metadata
    written = list(new_files(rig.engine.storage.files, metadata.snapshot(metadata.main_snapshot_id or 0)))
    assert len(written) >= 3
    assert {str(local_path(path)) for path in (metadata.metadata_location, *written)} <= synced


def test_few_files_are_left_alone_in_the_background(rig: Rig) -> None:
    rig.insert(1)
    rig.insert(2)
    assert rig.maintenance().run(NAME, ("compact",), thorough=False).counts == {}
    assert rig.maintenance().run(NAME, ("compact",)).counts["compacted_files"] == 2


def test_one_run_in_the_background_rewrites_no_more_than_it_may(rig: Rig) -> None:
    for number in range(5):
        rig.insert(number)
    before = rig.rows()
    files = plan(rig.engine.storage.files, rig.metadata, rig.metadata.main_snapshot_id).files
    bounded = rig.maintenance(replace(AT_ONCE, max_bytes=sum(file.size for file in files[:3])))
    report = bounded.run(NAME, ("compact",), thorough=False)
    assert (report.counts["compacted_files"], report.more, rig.data_files) == (3, True, 3)
    assert not rig.maintenance().run(NAME, ("compact",), thorough=False).more
    assert rig.data_files == 1
    assert rig.rows() == before


def test_a_table_that_is_not_there_and_a_step_that_is_none_are_errors(rig: Rig) -> None:
    with pytest.raises(TableNotFound):
        rig.maintenance().run(TableName("public", "nothing"))
    with pytest.raises(InvalidArgument, match="'polish' is no step"):
        rig.maintenance().run(NAME, ("polish",))


@pytest.mark.parametrize("version", [1, 2])
def test_an_upgraded_table_takes_updates_at_once(lake: Lake, version: int) -> None:
    name = TableName("public", f"old{version}")
    with lake.spark() as spark:
        spark.sql(
            f"CREATE TABLE lake.public.old{version} (id BIGINT, v STRING) USING iceberg "
            f"TBLPROPERTIES ('format-version' = '{version}')"
        )
        spark.sql(f"INSERT INTO lake.public.old{version} VALUES (1L, 'a'), (2L, 'b')")
        spark.sql(f"INSERT INTO lake.public.old{version} VALUES (3L, 'c')")
    ctx, catalog = CallContext(), lake.opened.catalog
    schema = catalog.schema(ctx, "public")
    assert schema is not None
    listing = catalog.version(ctx)
    update = StatementRequest(change=Change.UPDATE, columns=SCHEMA)
    old = schema.table(ctx, name.name)
    assert isinstance(old, ChangeableTable)
    with pytest.raises(FailedPrecondition, match=f"sparkport table upgrade public.old{version}"):
        old.open_statement(ctx, update)

    engine = lake.opened.engine
    assert upgrade_table(engine.storage, engine.committer, name)["changed"]
    assert not upgrade_table(engine.storage, engine.committer, name)["changed"]

    assert catalog.version(ctx) != listing
    table = schema.table(ctx, name.name)
    assert isinstance(table, ChangeableTable)
    rows = [row for batch in as_scan(table.scan(ctx, ScanRequest())) for row in batch.to_pylist()]
    ids = {row["id"]: row["rowid"] for row in rows}
    assert len(set(ids.values()) - {None}) == 3
    statement = table.open_statement(ctx, update)
    statement.push(pa.RecordBatch.from_pylist([{"id": 2, "v": "new"}], SCHEMA), pa.array([ids[2]], pa.int64()))
    assert statement.finish() == 1
    with lake.spark() as spark:
        seen = spark.sql(f"SELECT id, v, _row_id FROM lake.public.old{version}").collect()
    assert sorted(map(tuple, seen)) == [(1, "a", ids[1]), (2, "new", ids[2]), (3, "c", ids[3])]


def test_plain_spark_and_sparkport_agree_on_who_changed_rows_of_an_upgraded_table_last(lake: Lake) -> None:
    """Compaction keeps the number of the commit that wrote a row; up to Iceberg 1.11 Spark told that of the compaction
    (apache/iceberg#17039)."""
    name, sql_name = TableName("public", "lineage"), "lake.public.lineage"
    with lake.spark() as spark:
        spark.sql(
            f"CREATE TABLE {sql_name} (id BIGINT, v STRING) USING iceberg TBLPROPERTIES ('format-version' = '2')"
        ).collect()
        for number in range(3):
            spark.sql(f"INSERT INTO {sql_name} VALUES ({number}L, 'a')").collect()
        spark.sql(
            "CALL lake.system.rewrite_data_files(table => 'public.lineage', options => map('rewrite-all', 'true'))"
        ).collect()
    engine = lake.opened.engine
    assert upgrade_table(engine.storage, engine.committer, name)["changed"]
    location = engine.storage.pointers.location(name)
    assert location is not None
    metadata = load(engine.storage.files, location)
    (file,) = plan(engine.storage.files, metadata, metadata.main_snapshot_id).files
    assert file.sequence_number < file.file_sequence_number
    with lake.spark() as spark:
        seen = spark.sql(f"SELECT DISTINCT _last_updated_sequence_number FROM {sql_name}").toArrow()
    assert seen.column(0).to_pylist() == [file.sequence_number]
