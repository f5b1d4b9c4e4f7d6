"""Schemas and tables of the lakehouse: what a second server finds, what a listing notices, what names and ids mean."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of, version
from tests.support.lakehouse import Lake, lakehouse

from sparkport.catalog import AsOf, AsOfUnit
from sparkport.catalog.ddl import (
    AddColumn,
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
from sparkport.errors import AlreadyExists, ConstraintViolation, TableNotFound, Unsupported, VersionNotFound

ROWS = pa.table({"id": pa.array([1, 2, None], pa.int32()), "big": pa.array([2**64 - 1, 0, None], pa.uint64())})


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


def test_what_cannot_be_done_is_refused_and_leaves_the_table_as_it_was(lake: Lake) -> None:
    table = create(lake, "firm", ROWS)
    location = lake.pointers.location(("main", "firm"))
    with pytest.raises(ConstraintViolation, match="column 'id' has NULL values"):
        table.alter(SetNotNull("id"))
    with pytest.raises(Unsupported):
        table.alter(ChangeType("id", pa.string()))
    with pytest.raises(AlreadyExists):
        create(lake, "FIRM", ROWS)
    with pytest.raises(TableNotFound):
        main_of(lake).drop_table(NOBODY, "firmer")
    assert lake.pointers.location(("main", "firm")) == location


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
    snapshot = table.table()._version.snapshot_id
    table.insert(ROWS)
    table.alter(RenameColumn("id", "key"))
    found = table.read(at=AsOf(AsOfUnit.VERSION, str(snapshot)))
    assert found.drop_columns(["rowid"]).equals(ROWS)
