"""DDL whose answer was lost, and what the next server makes of what a dead one has left. Spark is not asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.lakehouse.transacting import at_point
from tests.support.lakehouse import Start, die

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import AddColumn, AlterableTable, MutableSchema, OnConflict, TableDefinition
from sparkport.errors import SparkportError, Unavailable
from sparkport.handlers.ddl import Ddl
from sparkport.handlers.directory import Directory
from sparkport.lakehouse.catalogs.pointers import Move
from sparkport.lakehouse.catalogs.postgres import PostgresDatabase
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.files import FileInfo, FileSystem
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.upkeep import recovery
from sparkport.protocol.maps import MapReader, pack

pytestmark = pytest.mark.tier("fast")

pytest_plugins = ["tests.support.services"]

COLUMNS = pa.schema([("id", pa.int64())])
NAME = TableName("public", "t")


@pytest.fixture
def lake(settings: LakehouseSettings, start: Start) -> Lakehouse:
    return start(settings)


def public(lake: Lakehouse) -> MutableSchema:
    found = lake.catalog.schema(CallContext(), "public")
    assert isinstance(found, MutableSchema)
    return found


def create(lake: Lakehouse, name: str = "t", on_conflict: OnConflict = OnConflict.ERROR) -> None:
    public(lake).create_table(CallContext(), TableDefinition(name=name, columns=COLUMNS), on_conflict)


def add_column(lake: Lakehouse) -> None:
    table = public(lake).table(CallContext(), "t")
    assert isinstance(table, AlterableTable)
    table.alter(CallContext(), AddColumn(pa.field("more", pa.int64())))


def pointer(lake: Lakehouse) -> Path:
    return Path((lake.engine.storage.pointers.location(NAME) or "").removeprefix("file:"))


@contextmanager
def lost_answer() -> Iterator[None]:
    """The database commits, and nobody is told."""

    def lose() -> None:
        on_fault("pointer.after", None)
        raise Unavailable("the connection is lost")

    for point in ("pointer.after", "settle.before"):
        on_fault(point, lose)
    try:
        yield
    finally:
        for point in ("pointer.after", "settle.before"):
            on_fault(point, None)


def test_a_table_whose_creation_was_not_answered_is_there(lake: Lakehouse) -> None:
    with lost_answer():
        create(lake)
    assert pointer(lake).exists()
    assert public(lake).table(CallContext(), "t") is not None


def test_a_table_whose_replacement_was_not_answered_is_the_new_one(lake: Lakehouse) -> None:
    create(lake)
    old = pointer(lake)
    with lost_answer():
        create(lake, on_conflict=OnConflict.REPLACE)
    assert pointer(lake).exists()
    assert pointer(lake) != old


def test_a_creation_that_failed_for_good_leaves_no_file(lake: Lakehouse) -> None:
    create(lake)
    with pytest.raises(SparkportError):
        lake.engine.storage.pointers.create(NAME, "elsewhere")
    files = list(Path(lake.settings.warehouse_path.removeprefix("file:")).rglob("*.metadata.json"))
    assert [str(path) for path in files] == [str(pointer(lake))]


@pytest.mark.parametrize("action", ["drop", "rename", "rename schema", "add column", "drop column"])
def test_a_repeat_of_ddl_that_was_done_without_an_answer_is_a_success(lake: Lakehouse, action: str) -> None:
    ddl = Ddl(Directory([lake.catalog]))
    ctx = replace(CallContext(), session_id="one")
    catalog = lake.catalog.name
    body: dict[str, object] = {"catalog": catalog, "schema": "public", "name": "t", "ignore_not_found": False}
    create(lake)
    add_column(lake)
    lake.engine.storage.pointers.create_schema("old", {})

    def do() -> None:
        if action == "drop":
            ddl.drop_table(ctx, reader({"catalog_name": catalog, "schema_name": "public", **body}))
        elif action == "rename":
            ddl.rename_table(ctx, reader({**body, "new_table_name": "new"}))
        elif action == "rename schema":
            ddl.rename_schema(ctx, reader({**body, "schema": "old", "new_schema_name": "other"}))
        elif action == "add column":
            third = pa.schema([("third", pa.int64())]).serialize().to_pybytes()
            ddl.alter("add_column")(ctx, reader({**body, "column_schema": third}))
        else:
            ddl.alter("remove_column")(ctx, reader({**body, "removed_column": "more"}))

    with lost_answer(), pytest.raises(Unavailable):
        do()
    do()
    if action in ("add column", "drop column"):
        table = public(lake).table(CallContext(), "t")
        assert table is not None
        assert ("third" in table.schema.names, "more" in table.schema.names) == ((action == "add column"),) * 2
    elif action == "rename schema":
        assert {"public", "other"} == lake.engine.storage.pointers.cut().schemas.keys()
    else:
        assert lake.engine.storage.pointers.location(NAME) is None


def reader(body: dict[str, object]) -> MapReader:
    return MapReader.from_msgpack(pack(body), what="body")


@pytest.mark.parametrize("way", ["drop", "replace"])
def test_a_table_whose_metadata_is_gone_can_be_dropped_and_replaced(lake: Lakehouse, way: str) -> None:
    create(lake)
    pointer(lake).unlink()
    if way == "drop":
        public(lake).drop_table(CallContext(), "T")
        assert lake.engine.storage.pointers.location(NAME) is None
    else:
        create(lake, on_conflict=OnConflict.REPLACE)
        assert pointer(lake).exists()


@pytest.mark.parametrize("end", ["dropped", "replaced", "altered", "registered elsewhere"])
def test_recovery_leaves_all_that_was_ever_published(settings: LakehouseSettings, start: Start, end: str) -> None:
    first = start(settings)
    create(first)
    add_column(first)
    last = pointer(first)
    if end == "dropped":
        public(first).drop_table(CallContext(), "t")
    elif end == "replaced":
        create(first, on_conflict=OnConflict.REPLACE)
    elif end == "altered":
        add = AddColumn(pa.field("third", pa.int64()))
        table = public(first).table(CallContext(), "t")
        assert isinstance(table, AlterableTable)
        table.alter(CallContext(), add)
    else:
        other = SqlPointers(first.store.database, "other")
        other.create(NAME, str(last))
        public(first).drop_table(CallContext(), "t")
    before = set(last.parent.glob("*"))
    die(first.engine.storage.staging)
    start(settings)
    assert set(last.parent.glob("*")) == before
    assert not first.engine.storage.staging.folder.exists()


def test_recovery_removes_what_was_never_published(settings: LakehouseSettings, start: Start) -> None:
    first = start(settings)
    create(first)
    known = pointer(first)

    def stop() -> None:
        raise KeyboardInterrupt

    on_fault("metadata.after", stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            create(first, "never")
        with pytest.raises(KeyboardInterrupt):
            add_column(first)
    finally:
        on_fault("metadata.after", None)
    die(first.engine.storage.staging)
    start(settings)
    files = list(Path(settings.warehouse_path.removeprefix("file:")).rglob("*.metadata.json"))
    assert files == [known]


def test_recovery_waits_for_a_commit_that_the_database_still_holds(
    postgres_uri: str, tmp_path: Path, start: Start
) -> None:
    settings = LakehouseSettings(warehouse=str(tmp_path / "warehouse"), catalog_uri=postgres_uri)
    first = start(settings)
    create(first)
    pointers = first.engine.storage.pointers
    assert isinstance(pointers, SqlPointers)
    old = pointers.location(NAME) or ""
    new = old.replace("00000-", "00001-")
    first.engine.storage.files.write_new(new, Path(old.removeprefix("file:")).read_bytes())
    die(first.engine.storage.staging)

    def start_another() -> None:
        with _impatient():
            start(settings)
        assert first.engine.storage.staging.folder.exists()
        assert Path(new.removeprefix("file:")).exists()

    # Sent, and not committed yet: a synchronous standby may be away.
    with at_point("pointer.before", start_another):
        pointers.swap([Move(NAME, old, new)])
    third = start(settings)
    assert pointer(third) == Path(new.removeprefix("file:"))
    assert pointer(third).exists()
    assert not first.engine.storage.staging.folder.exists()


def test_a_server_that_was_taken_for_dead_changes_nothing_any_more(settings: LakehouseSettings, start: Start) -> None:
    first = start(settings)
    create(first)
    die(first.engine.storage.staging)
    second = start(settings)
    with pytest.raises(Unavailable, match="taken this one for dead"):
        public(first).drop_table(CallContext(), "t")
    with pytest.raises(Unavailable, match="taken this one for dead"):
        first.engine.storage.pointers.create(TableName("public", "late"), "somewhere")
    add_column(second)


@contextmanager
def _impatient() -> Iterator[None]:
    """Databases that are opened meanwhile wait for a lock for a moment only."""
    defaults: Any = PostgresDatabase.__init__.__kwdefaults__
    before = defaults["patience"]
    defaults["patience"] = 0.5
    try:
        yield
    finally:
        defaults["patience"] = before


def test_a_server_listens_while_what_a_dead_one_left_takes_long_to_be_listed(
    settings: LakehouseSettings, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = start(settings)
    create(dead)
    add_column(dead)
    die(dead.engine.storage.staging)
    listing, go_on = threading.Event(), threading.Event()
    listed = FileSystem.list

    def slowly(files: FileSystem, folder: str) -> list[FileInfo]:
        listing.set()
        assert go_on.wait(60)
        return list(listed(files, folder))

    monkeypatch.setattr(recovery, "_FIRST_SECONDS", 0.1)
    monkeypatch.setattr(FileSystem, "list", slowly)
    lake = start(settings)
    assert listing.wait(60)
    assert [table.name for table in public(lake).tables(CallContext())] == ["t"]
    another = start(settings)  # which need not wait for it either
    assert dead.engine.storage.staging.folder.exists()
    go_on.set()
    assert lake.recovery.join(60)
    assert not dead.engine.storage.staging.folder.exists()
    assert another.engine.storage.staging.folder.exists()
    assert pointer(lake).exists()
