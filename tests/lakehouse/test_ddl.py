"""Schemas and tables of the lakehouse: what a second server finds, what a listing notices, what names and ids mean."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of, version
from tests.support.lakehouse import Lake, lakehouse

from sparkport.catalog import AsOf, AsOfUnit, ScanRequest, as_scan
from sparkport.catalog.ddl import (
    AddColumn,
    Alteration,
    ChangeType,
    DropColumn,
    OnConflict,
    RenameColumn,
    SetComment,
    SetDefault,
    SetNotNull,
    TableDefinition,
)
from sparkport.catalog.defaults import default_of
from sparkport.client import connect
from sparkport.errors import (
    AlreadyExists,
    ConstraintViolation,
    TableNotFound,
    Unsupported,
    VersionNotFound,
)
from sparkport.lakehouse.names import TableName
from sparkport.testing import serving

pytestmark = pytest.mark.tier("thorough")

ROWS = pa.table({"id": pa.array([1, 2, None], pa.int32()), "big": pa.array([2**64 - 1, 0, None], pa.uint64())})


@pytest.mark.tier("fast")
def test_a_second_server_finds_all_that_was_declared(lake: Lake) -> None:
    table = create(lake, "declared", ROWS, checks=("id > 0",))
    table.alter(SetDefault("id", "7"), SetComment("numbers", "id"), SetComment("a table"))
    with lakehouse(lake.warehouse) as again:
        found = Handle(Lake(again), "declared")
        declared = found.table()
        assert declared.schema.equals(table.table().schema, check_metadata=True)
        assert declared.schema.field("big").type == pa.uint64()
        assert default_of(declared.schema.field("id")) == "7"
        assert (declared.comment, declared.checks) == ("a table", ("id > 0",))
        assert found.sparkport() == table.sparkport()
        assert again.catalog.version(NOBODY) == lake.opened.catalog.version(NOBODY)


@pytest.mark.tier("fast")
def test_the_catalog_version_follows_names_and_columns_and_not_rows(lake: Lake) -> None:
    catalog = lake.opened.catalog
    seen = [catalog.version(NOBODY).version]

    def changed(action: Callable[[], object]) -> bool:
        action()
        seen.append(catalog.version(NOBODY).version)
        return seen[-1] != seen[-2]

    assert changed(lambda: create(lake, "versioned", ROWS.slice(0, 0)))
    table = Handle(lake, "versioned")
    assert not changed(lambda: table.insert(ROWS))
    assert changed(lambda: table.alter(AddColumn(pa.field("more", pa.string()))))
    assert changed(lambda: table.alter(SetComment("said")))
    assert changed(lambda: main_of(lake).rename_table(NOBODY, "versioned", "renamed"))
    assert changed(lambda: main_of(lake).drop_table(NOBODY, "renamed"))
    assert changed(lambda: catalog.create_schema(NOBODY, "extra", comment="one more"))
    assert changed(lambda: catalog.drop_schema(NOBODY, "extra"))


def test_a_name_that_comes_back_does_not_bring_its_values_back(lake: Lake) -> None:
    table = create(lake, "again", ROWS)
    table.alter(DropColumn("big"), AddColumn(pa.field("big", pa.uint64())))
    assert {row["big"] for row in table.agreed(pyiceberg=False).values()} == {None}
    table.alter(RenameColumn("id", "key"), RenameColumn("big", "id"))
    rows = table.agreed(pyiceberg=False).values()
    assert [(row["key"], row["id"]) for row in rows] == [(1, None), (2, None), (None, None)]
    assert table.read(at=version(1)).drop_columns(["rowid"]).equals(ROWS)


@pytest.mark.tier("fast")
def test_what_cannot_be_done_is_refused_and_leaves_the_table_as_it_was(lake: Lake) -> None:
    table = create(lake, "firm", ROWS)
    location = lake.pointers.location(TableName("public", "firm"))
    with pytest.raises(ConstraintViolation, match="column 'id' has NULL values"):
        table.alter(SetNotNull("id"))
    with pytest.raises(Unsupported):
        table.alter(ChangeType("id", pa.string()))
    with pytest.raises(AlreadyExists):
        create(lake, "FIRM", ROWS)
    with pytest.raises(TableNotFound):
        main_of(lake).drop_table(NOBODY, "firmer")
    assert lake.pointers.location(TableName("public", "firm")) == location


def test_a_replaced_table_begins_anew_and_the_old_one_can_still_be_read_by_who_holds_it(lake: Lake) -> None:
    table = create(lake, "replaced", ROWS)
    held = table.table()
    definition = TableDefinition(name="replaced", columns=pa.schema([("other", pa.string())]))
    main_of(lake).create_table(NOBODY, definition, OnConflict.REPLACE)
    assert table.read().schema.names == ["other", "rowid"]
    assert table.read(at=version(0)).num_rows == 0
    with pytest.raises(VersionNotFound, match="the oldest is 0"):
        table.read(at=version(1))
    assert held.row_count(NOBODY) == 3


def test_a_snapshot_id_is_a_version_too(lake: Lake) -> None:
    table = create(lake, "snapshots", ROWS)
    snapshot = table.current.snapshot_id
    table.insert(ROWS)
    table.alter(RenameColumn("id", "key"))
    found = table.read(at=AsOf(AsOfUnit.VERSION, str(snapshot)))
    assert found.drop_columns(["rowid"]).equals(ROWS)


def test_versions_older_than_the_log_of_metadata_are_found_as_long_as_their_rows_are_kept(lake: Lake) -> None:
    table = create(lake, "long_ago", ROWS)
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.metadata.previous-versions-max' = '2')")
    history = {1: table.read()}
    moments = {1: _now()}

    def step(change: Callable[[], object]) -> None:
        change()
        number = table.number
        history[number], moments[number] = table.read(), _now()

    step(lambda: table.insert(ROWS))
    step(lambda: table.alter(AddColumn(pa.field("more", pa.int32(), metadata={"default": "7"}))))
    step(lambda: table.sql("INSERT INTO {t} VALUES (8, 9, 10)"))
    step(lambda: table.alter(RenameColumn("id", "key")))
    step(lambda: table.delete([next(iter(table.sparkport()))]))
    step(lambda: table.alter(DropColumn("big")))
    step(lambda: table.sql("DELETE FROM {t} WHERE key = 8"))
    assert list(history) == list(range(1, 9))
    assert len(table.current.metadata.metadata_log) == 2
    for number, rows in history.items():
        for at in (version(number), moments[number]):
            found = table.read(at=at)
            assert (at, found.schema.names, found.schema.types) == (at, rows.schema.names, rows.schema.types)
            assert found.to_pylist() == rows.to_pylist()
    assert table.read(at=version(0)).num_rows == 0
    assert table.table().schema_at(NOBODY, version(0)).names == ["id", "big", "rowid"]
    gone = [entry["snapshot-id"] for entry in table.current.metadata.snapshot_log[:2]]
    table.sql(
        f"CALL {lake.catalog}.system.expire_snapshots(table => 'public.long_ago', "
        f"snapshot_ids => array({', '.join(map(str, gone))}), older_than => TIMESTAMP '1980-01-01')"
    )
    for at in (version(1), version(2), version(3), moments[1], moments[3]):
        with pytest.raises(VersionNotFound, match="the oldest is"):
            table.read(at=at)
    with pytest.raises(VersionNotFound, match="the oldest is 4"):
        table.read(at=version(2))
    assert table.read(at=version(4)).to_pylist() == history[4].to_pylist()
    assert table.read(at=moments[4]).to_pylist() == history[4].to_pylist()


@pytest.mark.parametrize(
    "change",
    [
        DropColumn("id"),
        DropColumn("big"),
        RenameColumn("big", "large"),
        AddColumn(pa.field("more", pa.int32())),
        ChangeType("id", pa.int64()),
    ],
    ids=lambda change: f"{type(change).__name__} {getattr(change, 'name', '')}",
)
def test_a_scan_that_was_planned_before_an_alteration_reads_the_columns_of_its_plan(
    lake: Lake, change: Alteration
) -> None:
    name = "planned"
    main_of(lake).create_table(NOBODY, TableDefinition(name=name, columns=ROWS.schema), OnConflict.REPLACE)
    table = Handle(lake, name)
    table.insert(ROWS)
    (part,) = table.table().plan(NOBODY, ScanRequest(columns=("id", "big")))
    with serving(lake.opened.catalog) as server, connect(server.location) as client:
        scan = client.scan(f"public.{name}", columns=["id", "big"])
        table.alter(change)
        planned = as_scan(table.table().scan(NOBODY, part))
        assert pa.Table.from_batches(list(planned)).equals(ROWS)
        assert scan.read_all().equals(ROWS)


def _now() -> AsOf:
    """A moment after what was committed and before what comes: commits are told apart by the millisecond."""
    start = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= start + 1:
        pass
    return AsOf(AsOfUnit.TIMESTAMP, datetime.fromtimestamp((start + 1) / 1000, UTC).isoformat())
