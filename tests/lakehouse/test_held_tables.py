"""Commits on the condition that tables which were only read have not moved, in SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.lakehouse import impatient_database

from sparkport.errors import InternalError, TransactionNotActive, Unavailable
from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.ledger import Ledger
from sparkport.lakehouse.catalogs.pointers import Edit, Move, Moved
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.iceberg.edits import new_table
from sparkport.lakehouse.names import TableName

pytestmark = pytest.mark.tier("fast")

pytest_plugins = ["tests.support.services"]

A: TableName = TableName("public", "a")
B: TableName = TableName("public", "b")


def _write(folder: Path) -> str:
    fields = [{"id": 1, "name": "x", "type": "long", "required": False}]
    location = folder / "metadata" / "00000-x.metadata.json"
    location.parent.mkdir(parents=True)
    location.write_text(json.dumps(new_table(str(folder), fields, last_column_id=1, properties={})))
    return str(location)


def test_a_table_that_is_held_stays_as_it_is(database: Database, pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    pointers.create(B, "b0")
    pointers.swap([Move(A, "a0", "a1")], unchanged={A: "a0", B: "b0"})
    assert pointers.commit([], unchanged={A: "a1", B: "b0"}) == {}
    with database.transaction() as work:
        rows = work.query("SELECT metadata_location, previous_metadata_location FROM iceberg_tables ORDER BY 1")
    assert rows == [("a1", "a0"), ("b0", None)]


@pytest.mark.parametrize("held", [{B: "b9"}, {A: "a9"}, {TableName("public", "dropped"): "d0"}])
def test_nothing_moves_when_a_held_table_is_elsewhere(pointers: SqlPointers, held: dict[TableName, str]) -> None:
    pointers.create(A, "a0")
    pointers.create(B, "b0")
    for moves in ([Move(A, "a0", "a1"), Move(B, "b0", "b1")], []):
        with pytest.raises(Moved) as caught:
            pointers.swap(moves, {"lost": 1}, unchanged=held)
        assert [caught.value.table] == list(held)
    assert dict(pointers.cut().tables) == {A: "a0", B: "b0"}
    assert pointers.statement("lost") is None


def test_a_held_table_is_held_until_the_end(uri: str, pointers: SqlPointers) -> None:
    pointers.create(A, "a0")
    pointers.create(B, "b0")
    refused: list[Exception] = []

    def interfere() -> None:
        with closing(impatient_database(uri)) as other:
            try:
                with other.transaction(write=True) as work:
                    work.change("UPDATE iceberg_tables SET metadata_location = 'foreign' WHERE table_name = 'b'")
            except Unavailable as exc:
                refused.append(exc)

    on_fault("pointer.before", interfere)
    try:
        pointers.swap([Move(A, "a0", "a1")], unchanged={B: "b0"})
    finally:
        on_fault("pointer.before", None)
    assert len(refused) == 1
    assert dict(pointers.cut().tables) == {A: "a1", B: "b0"}


def test_a_commit_that_was_not_made_leaves_no_files(database: Database, tmp_path: Path) -> None:
    ledger = Ledger(database, "lake")
    pointers = SqlPointers(database, "lake", ledger=ledger)
    edits = []
    for table in (A, B):
        location = _write(tmp_path / table.name)
        pointers.create(table, location)
        metadata = json.loads(Path(location).read_text())
        edits.append(Edit(table, metadata, metadata, location))
    before = set(tmp_path.rglob("*.json"))
    broken = Edit(A, {}, {**edits[0].after, "location": "/dev/null"}, edits[0].location)
    attempts: list[tuple[type[Exception], Callable[[], object]]] = [
        (InternalError, lambda: SqlPointers(database, "lake").commit(edits, transactions=["t"])),
        (TransactionNotActive, lambda: pointers.commit(edits, transactions=["never"])),
        (Moved, lambda: pointers.commit(edits, unchanged={A: "elsewhere"})),
        (Exception, lambda: pointers.commit([edits[1], broken])),
    ]
    for kind, attempt in attempts:
        with pytest.raises(kind):
            attempt()
        assert set(tmp_path.rglob("*.json")) == before
    assert dict(pointers.cut().tables) == {edit.table: edit.location for edit in edits}


def test_movers_and_holders_of_the_same_tables_never_wait_for_ever(pointers: SqlPointers) -> None:
    """In whatever order they name the tables; PostgreSQL would end one of two who wait for each other."""
    tables = [TableName("public", f"t{number}") for number in range(6)]
    for table in tables:
        pointers.create(table, "0")

    def work(order: list[TableName]) -> None:
        done = 0
        while done < 10:
            seen = pointers.cut().tables
            try:
                pointers.swap(
                    [Move(table, seen[table], str(int(seen[table]) + 1)) for table in order[:3]],
                    unchanged={table: seen[table] for table in order[3:]},
                )
            except Moved:
                continue
            done += 1

    with ThreadPoolExecutor(4) as pool:
        orders = [tables, tables[::-1], tables[3:] + tables[:3], tables[1::2] + tables[::2]]
        for future in [pool.submit(work, order) for order in orders]:
            future.result(timeout=60)
    assert sum(int(location) for location in pointers.cut().tables.values()) == 3 * 10 * len(orders)


def test_what_was_decided_on_two_tables_is_as_if_one_came_after_the_other(pointers: SqlPointers) -> None:
    """Each moves one table on the condition of the other: no two may have seen the same, and nobody waits for ever."""
    for table in (A, B):
        pointers.create(table, "0")

    def work(mine: TableName, other: TableName) -> list[int]:
        seen: list[int] = []
        while len(seen) < 15:
            tables = pointers.cut().tables
            try:
                pointers.swap([Move(mine, tables[mine], str(int(tables[mine]) + 1))], unchanged={other: tables[other]})
            except Moved:
                continue
            seen.append(int(tables[A]) + int(tables[B]))
        return seen

    with ThreadPoolExecutor(4) as pool:
        parts = [pool.submit(work, *order) for order in ((A, B), (B, A)) * 2]
        seen = [number for part in parts for number in part.result(timeout=60)]
    assert sorted(seen) == list(range(60))
