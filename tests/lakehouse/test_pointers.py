"""A catalog's pointers in SQLite and PostgreSQL: moved on condition, together or not at all, shared with others."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.lakehouse import impatient_database

from sparkport.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    SchemaNotFound,
    TableNotFound,
    Unavailable,
)
from sparkport.lakehouse.catalogs.database import Database, SqliteDatabase
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.pointers import Move, Moved
from sparkport.lakehouse.catalogs.postgres import PostgresDatabase
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.iceberg.edits import new_table
from sparkport.lakehouse.names import TableName

pytestmark = pytest.mark.tier("fast")

pytest_plugins = ["tests.support.services"]

A: TableName = TableName("public", "a")
B: TableName = TableName("public", "b")


# Names


def test_a_new_catalog_is_empty(database: Database) -> None:
    cut = SqlPointers(database, "lake").cut()
    assert (dict(cut.tables), dict(cut.schemas)) == ({}, {})


def test_schemas_keep_their_properties(pointers: SqlPointers) -> None:
    pointers.create_schema("other", {"comment": "für später", "tag.x": ""})
    schemas = pointers.cut().schemas
    assert list(schemas) == ["other", "public"]
    assert {"comment": "für später", "tag.x": ""}.items() <= schemas["other"].items()


def test_a_schema_is_created_and_dropped_once(pointers: SqlPointers) -> None:
    with pytest.raises(AlreadyExists, match="public"):
        pointers.create_schema("public", {})
    pointers.drop_schema("public")
    with pytest.raises(SchemaNotFound):
        pointers.drop_schema("public")
    assert not pointers.cut().schemas


def test_a_schema_with_tables_is_not_dropped(pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    with pytest.raises(FailedPrecondition, match="not empty"):
        pointers.drop_schema("public")
    assert A in pointers.cut().tables
    assert "public" in pointers.cut().schemas


def test_tables_are_created_listed_and_dropped(pointers: SqlPointers) -> None:
    pointers.create(B, "b0")
    pointers.create(A, "a0")
    assert list(pointers.cut().tables.items()) == [(A, "a0"), (B, "b0")]
    assert pointers.location(A) == "a0"
    with pytest.raises(AlreadyExists, match=r"public\.a"):
        pointers.create(A, "other")
    assert pointers.drop(A) == "a0"
    assert pointers.location(A) is None
    with pytest.raises(TableNotFound):
        pointers.drop(A)


def test_a_table_is_renamed_with_its_pointer(pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    pointers.create_schema("other", {})
    pointers.rename(A, TableName("other", "c"))
    assert dict(pointers.cut().tables) == {("other", "c"): "a0"}
    with pytest.raises(TableNotFound):
        pointers.rename(A, B)


def test_a_table_is_not_renamed_onto_another(pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    pointers.create(B, "b0")
    with pytest.raises(AlreadyExists, match=r"public\.b"):
        pointers.rename(A, B)
    assert dict(pointers.cut().tables) == {A: "a0", B: "b0"}


def test_a_schema_is_renamed_with_its_tables_and_properties_over_an_empty_one(pointers: SqlPointers) -> None:
    pointers.create_schema("main", {"comment": "old"})
    pointers.create(TableName("main", "a"), "a0")
    assert pointers.rename_schema("main", "public") == {"a": "a0"}
    cut = pointers.cut()
    assert dict(cut.tables) == {A: "a0"}
    assert {name: found.get("comment") for name, found in cut.schemas.items()} == {"public": "old"}
    with pytest.raises(SchemaNotFound):
        pointers.rename_schema("main", "other")


def test_a_schema_is_not_renamed_onto_one_with_tables(pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    pointers.create_schema("main", {})
    pointers.create(TableName("main", "a"), "m0")
    with pytest.raises(AlreadyExists, match="schema 'public' already exists, and is not empty"):
        pointers.rename_schema("main", "public")
    assert dict(pointers.cut().tables) == {A: "a0", ("main", "a"): "m0"}


def test_a_writer_finds_its_table_gone_when_the_schema_was_renamed_meanwhile(pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    pointers.rename_schema("public", "shop")
    with pytest.raises(Moved):
        pointers.swap([Move(A, "a0", "a1")])
    assert pointers.location(TableName("shop", "a")) == "a0"


def test_catalogs_in_one_database_do_not_see_each_other(database: Database, pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    other = SqlPointers(database, "other")
    assert not other.cut().tables
    other.create(A, "other0")
    other.swap([Move(A, "other0", "other1")], {"s": 1})
    assert (pointers.location(A), pointers.statement("s")) == ("a0", None)


def test_names_with_quotes_and_marks_are_only_names(pointers: SqlPointers) -> None:
    odd = TableName("public", 'it\'s 100% "odd" ?; --')
    pointers.create(odd, "o0")
    pointers.swap([Move(odd, "o0", "o1")])
    assert dict(pointers.cut().tables) == {odd: "o1"}


def test_views_are_not_taken_for_tables(database: Database, pointers: SqlPointers) -> None:
    with database.transaction(write=True) as work:
        work.change(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
            "VALUES ('lake', 'public', 'v', 'view0', 'VIEW')"
        )
    assert not pointers.cut().tables
    assert pointers.location(TableName("public", "v")) is None
    with pytest.raises(TableNotFound):
        pointers.drop(TableName("public", "v"))


# Moves


def test_several_pointers_move_together(pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    pointers.create(B, "b0")
    pointers.swap([Move(B, "b0", "b1"), Move(A, "a0", "a1")], {"first": 3, "second": 0})
    assert dict(pointers.cut().tables) == {A: "a1", B: "b1"}
    assert [pointers.statement(key) for key in ("first", "second", "third")] == [3, 0, None]


def test_a_foreign_move_stops_all_moves_and_statements(pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    pointers.create(B, "b0")
    pointers.swap([Move(B, "b0", "foreign")])
    with pytest.raises(Moved) as caught:
        pointers.swap([Move(A, "a0", "a1"), Move(B, "b0", "b1")], {"lost": 1})
    assert caught.value.table == B
    assert dict(pointers.cut().tables) == {A: "a0", B: "foreign"}
    assert pointers.statement("lost") is None


def test_a_dropped_table_counts_as_moved(pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    pointers.drop(A)
    with pytest.raises(Moved):
        pointers.swap([Move(A, "a0", "a1")])


def test_a_statement_is_committed_once(pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    pointers.swap([Move(A, "a0", "a1")], {"once": 7})
    with pytest.raises(AlreadyExists):
        pointers.swap([Move(A, "a1", "a2")], {"once": 7})
    assert (pointers.location(A), pointers.statement("once")) == ("a1", 7)


def test_old_statements_are_forgotten(pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    pointers.swap([Move(A, "a0", "a1")], {"old": 1})
    assert pointers.forget_statements(before=0) == 0
    assert pointers.forget_statements(before=1e12) == 1
    assert pointers.statement("old") is None


def test_the_table_before_is_noted_as_iceberg_does(database: Database, pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    pointers.swap([Move(A, "a0", "a1")])
    with database.transaction() as work:
        rows = work.query("SELECT metadata_location, previous_metadata_location, iceberg_type FROM iceberg_tables")
    assert rows == [("a1", "a0", "TABLE")]


# Many at once


def _run_all(workers: list[Callable[[], Any]]) -> list[Any]:
    start = threading.Barrier(len(workers))

    def run(worker: Callable[[], Any]) -> Any:
        start.wait(timeout=30)
        return worker()

    with ThreadPoolExecutor(len(workers)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(run, worker) for worker in workers]]


def _count_up(pointers: SqlPointers, tables: tuple[TableName, ...], successes: int) -> int:
    """Add one to the number that each pointer is, all together, until it has worked so often; the failures."""
    failures = done = 0
    while done < successes:
        seen = pointers.cut().tables
        try:
            pointers.swap([Move(table, seen[table], str(int(seen[table]) + 1)) for table in tables])
            done += 1
        except Moved:
            failures += 1
    return failures


def test_no_update_is_lost_among_threads(pointers: SqlPointers) -> None:
    for table in (A, B):
        pointers.create(table, "0")
    workers = [
        lambda: _count_up(pointers, (A,), 10),
        lambda: _count_up(pointers, (B,), 10),
        lambda: _count_up(pointers, (A, B), 10),
        lambda: _count_up(pointers, (B, A), 10),
    ]
    _run_all(workers)
    assert dict(pointers.cut().tables) == {A: "30", B: "30"}


def test_a_cut_is_one_instant(pointers: SqlPointers) -> None:
    """Two pointers are always moved together, so nobody may ever see them apart."""
    for table in (A, B):
        pointers.create(table, "0")
    done = threading.Event()

    def look() -> set[tuple[str, str]]:
        found = set()
        while not done.is_set():
            tables = pointers.cut().tables
            found.add((tables[A], tables[B]))
        return found

    def move() -> set[tuple[str, str]]:
        try:
            _count_up(pointers, (A, B), 60)
        finally:
            done.set()
        return set()

    seen = set().union(*_run_all([look, look, move]))
    assert seen
    assert all(a == b for a, b in seen)


def test_of_many_who_create_the_same_thing_one_succeeds(pointers: SqlPointers) -> None:
    def attempt(create: Callable[[], None]) -> bool:
        try:
            create()
        except AlreadyExists:
            return False
        return True

    tables = _run_all([lambda: attempt(lambda: pointers.create(A, "a0"))] * 6)
    schemas = _run_all([lambda: attempt(lambda: pointers.create_schema("same", {"comment": "x"}))] * 6)
    assert (sum(tables), sum(schemas)) == (1, 1)


def test_of_many_who_rename_onto_one_name_one_succeeds(pointers: SqlPointers) -> None:
    names = [TableName("public", f"t{number}") for number in range(6)]
    for name in names:
        pointers.create(name, f"{name.name}-0")

    def attempt(name: TableName) -> bool:
        try:
            pointers.rename(name, A)
        except AlreadyExists:
            return False
        return True

    won = _run_all([lambda name=name: attempt(name) for name in names])  # type: ignore[misc]
    assert sum(won) == 1
    assert pointers.location(A) == f"t{won.index(True)}-0"
    assert len(pointers.cut().tables) == 6


def test_several_servers_can_open_a_new_catalog_at_once(uri: str) -> None:
    def open_catalog() -> None:
        with closing(open_database(uri)) as opened:
            SqlPointers(opened, "lake").cut()

    assert _run_all([open_catalog] * 6) == [None] * 6


def _process(uri: str, successes: int) -> None:
    with closing(open_database(uri)) as opened:
        _count_up(SqlPointers(opened, "lake"), (A, B), successes)


@pytest.mark.tier("thorough")
def test_no_update_is_lost_among_processes(uri: str, pointers: SqlPointers) -> None:
    for table in (A, B):
        pointers.create(table, "0")
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_process, args=(uri, 15)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert dict(pointers.cut().tables) == {A: "45", B: "45"}


# Others who use the same tables


@contextmanager
def _pyiceberg(uri: str, warehouse: Path) -> Iterator[Any]:
    module = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = module.SqlCatalog(
        "lake", uri=uri.replace("postgresql:", "postgresql+psycopg:"), warehouse=f"file://{warehouse}"
    )
    try:
        yield catalog
    finally:
        catalog.close()


def _write_metadata(folder: Path) -> str:
    metadata = new_table(
        str(folder), [{"id": 1, "name": "x", "type": "long", "required": False}], last_column_id=1, properties={}
    )
    location = folder / "metadata" / "00000-x.metadata.json"
    location.parent.mkdir(parents=True)
    location.write_text(json.dumps(metadata))
    return str(location)


def test_pyiceberg_sees_our_schemas_and_tables(uri: str, pointers: SqlPointers, tmp_path: Path) -> None:
    location = _write_metadata(tmp_path / "a")
    pointers.create(A, location)
    with _pyiceberg(uri, tmp_path) as catalog:
        assert catalog.list_namespaces() == [("public",)]
        assert catalog.list_tables("public") == [A]
        table = catalog.load_table(A)
        assert (table.metadata_location, table.metadata.format_version) == (location, 3)
        catalog.rename_table(A, B)
    assert dict(pointers.cut().tables) == {B: location}


def test_we_see_what_pyiceberg_made_before_us(uri: str, tmp_path: Path) -> None:
    import pyarrow as pa

    with _pyiceberg(uri, tmp_path) as catalog, closing(open_database(uri)) as opened:
        catalog.create_namespace("public", {"comment": "theirs"})
        first = catalog.create_table(A, schema=pa.schema([("x", pa.int64())]))
        pointers = SqlPointers(opened, "lake")
        cut = pointers.cut()
        assert dict(cut.tables) == {A: first.metadata_location}
        assert cut.schemas["public"]["comment"] == "theirs"
        pointers.create(B, _write_metadata(tmp_path / "b"))
        assert sorted(catalog.list_tables("public")) == [A, B]


def test_their_commit_stops_ours_and_they_see_ours(uri: str, pointers: SqlPointers, tmp_path: Path) -> None:
    import pyarrow as pa

    with _pyiceberg(uri, tmp_path) as catalog:
        table = catalog.create_table(A, schema=pa.schema([("x", pa.int64())]))
        before = table.metadata_location
        with table.transaction() as change:
            change.set_properties(theirs="1")
        with pytest.raises(Moved):
            pointers.swap([Move(A, before, "ours")])
        copy = tmp_path / "00002-copy.metadata.json"
        copy.write_text(Path(table.metadata_location.removeprefix("file://")).read_text())
        pointers.swap([Move(A, table.metadata_location, str(copy))])
        assert catalog.load_table(A).metadata_location == str(copy)


def test_a_catalog_of_the_older_schema_is_upgraded(database: Database) -> None:
    with database.transaction(write=True) as work:
        work.change(
            "CREATE TABLE iceberg_tables (catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, "
            "table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), "
            "previous_metadata_location VARCHAR(1000), PRIMARY KEY (catalog_name, table_namespace, table_name))"
        )
        work.change("INSERT INTO iceberg_tables VALUES ('lake', 'public', 'a', 'a0', NULL)")
    pointers = SqlPointers(database, "lake")
    pointers.create(B, "b0")
    assert dict(pointers.cut().tables) == {A: "a0", B: "b0"}


# Trouble


def test_a_pointer_that_is_too_long_is_refused(pointers: SqlPointers) -> None:
    """SQLite has no limit of its own."""
    pointers.create(A, "a0")
    try:
        pointers.swap([Move(A, "a0", "x" * 2000)])
    except InvalidArgument:
        assert pointers.location(A) == "a0"
    else:
        assert pointers.location(A) == "x" * 2000


def test_an_unknown_kind_of_database_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="mysql"):
        open_database("mysql://host/db")


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"no database at all" * 100)
    uri = f"sqlite:///{tmp_path}/catalog.db"
    with closing(open_database(uri)) as opened, pytest.raises(Unavailable, match="opened"):
        SqlPointers(opened, "lake")


def test_a_folder_in_the_place_of_the_database_is_unavailable(tmp_path: Path) -> None:
    with closing(open_database(f"sqlite:///{tmp_path}")) as opened, pytest.raises(Unavailable):
        SqlPointers(opened, "lake")


def test_a_server_that_is_not_there_is_unavailable() -> None:
    pytest.importorskip("psycopg")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # taken but not listening: connections are refused
        address = f"postgresql://nobody@127.0.0.1:{unused.getsockname()[1]}/none"
        with closing(open_database(address)) as opened, pytest.raises(Unavailable):
            SqlPointers(opened, "lake")


def test_a_server_that_never_answers_is_unavailable() -> None:
    pytest.importorskip("psycopg")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/none"
        with closing(PostgresDatabase(address, patience=1)) as opened, pytest.raises(Unavailable):
            SqlPointers(opened, "lake")


def test_a_lock_that_is_held_too_long_is_unavailable(uri: str, pointers: SqlPointers, database: Database) -> None:
    pointers.create(A, "a0")
    with closing(impatient_database(uri)) as other:
        waiting = SqlPointers(other, "lake")
        with database.transaction(write=True) as work:
            work.change("UPDATE iceberg_tables SET metadata_location = 'held'")
            assert waiting.location(A) == "a0"  # readers do not wait
            with pytest.raises(Unavailable):
                waiting.swap([Move(A, "a0", "a1")])
        waiting.swap([Move(A, "held", "a2")])
    assert pointers.location(A) == "a2"


def test_a_read_only_postgres_is_read_but_not_written(postgres_uri: str, postgres: Any) -> None:
    with closing(open_database(postgres_uri)) as opened:
        SqlPointers(opened, "lake").create(A, "a0")
    postgres.execute(f"ALTER DATABASE {postgres_uri.rpartition('/')[2]} SET default_transaction_read_only = on")
    with closing(open_database(postgres_uri)) as opened, pytest.raises(Unavailable, match="ReadOnly"):
        SqlPointers(opened, "lake")


def test_a_read_only_sqlite_is_unavailable() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "catalog.db")
        with closing(SqliteDatabase(path)) as opened:
            SqlPointers(opened, "lake").create(A, "a0")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        with _without_privileges(), closing(SqliteDatabase(path)) as opened, pytest.raises(Unavailable):
            SqlPointers(opened, "lake")
        Path(folder).chmod(0o755)


def test_a_catalog_that_a_newer_server_has_used_is_refused(database: Database) -> None:
    SqlPointers(database, "lake").create(A, "a0")
    with database.transaction(write=True) as work:
        work.change("UPDATE sparkport_meta SET schema_version = schema_version + 1")
    with pytest.raises(FailedPrecondition, match="newer sparkport"):
        SqlPointers(database, "lake")
    assert SqlPointers(database, "another").location(A) is None


def test_sqlite_keeps_few_descriptors_however_many_threads_used_it(tmp_path: Path) -> None:
    """A stock limit of 1,024 descriptors is soon reached by hundreds of threads with three each."""
    with closing(SqliteDatabase(tmp_path / "catalog.db")) as opened, ThreadPoolExecutor(64) as threads:
        SqlPointers(opened, "lake").create(A, "a0")
        all_live, one_by_one = threading.Barrier(64), threading.Lock()

        def read(_: int) -> str:
            all_live.wait(30)
            with one_by_one, opened.transaction() as work:
                return str(work.query("SELECT metadata_location FROM iceberg_tables")[0][0])

        assert set(threads.map(read, range(64))) == {"a0"}
        kept = [link for link in Path("/proc/self/fd").iterdir() if _target(link).startswith(str(tmp_path))]
        assert len(kept) <= 12


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


@contextmanager
def _without_privileges() -> Iterator[None]:
    """Root may write what is read-only."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_connections_that_the_server_ends_are_replaced(postgres_uri: str, postgres: Any) -> None:
    with closing(open_database(postgres_uri)) as opened:
        pointers = SqlPointers(opened, "lake")
        pointers.create(A, "a0")
        name = postgres_uri.rpartition("/")[2]
        postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        with contextlib.suppress(Unavailable):  # who was cut off is told so
            pointers.location(A)
        assert pointers.location(A) == "a0"
