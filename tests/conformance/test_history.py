"""Commits and changes: every version tells who made it and which rows it has changed, exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.deferred import begun, commit
from tests.conformance.engines import Ability, EngineUnderTest, Ground
from tests.conformance.rows import TYPES, numbers

from sparkport.auth.identity import Identity
from sparkport.catalog import ROW_ID, AsOf, AsOfUnit, ScanRequest
from sparkport.catalog.changes import ChangesTable
from sparkport.catalog.context import entered
from sparkport.catalog.ddl import AddColumn, AlterableTable, Alteration, DropColumn, RenameColumn
from sparkport.errors import InvalidArgument, VersionNotFound

needs = pytest.mark.needs

pytestmark = [pytest.mark.tier("fast"), needs(Ability.CHANGES, Ability.VERSIONS, Ability.INSERT)]

Row = dict[str, Any]


def version(number: int) -> AsOf:
    return AsOf(AsOfUnit.VERSION, str(number))


def table(ground: Ground) -> ChangesTable:
    found = ground.table()
    assert isinstance(found, ChangesTable)
    return found


def changes(ground: Ground, first: AsOf, last: AsOf | None, columns: tuple[str, ...] | None = None) -> list[Row]:
    of = table(ground)
    schema = of.changes_schema(ground.ctx, last)
    scan = of.changes(ground.ctx, first, last, ScanRequest(columns=columns))
    try:
        batches = list(scan)
    finally:
        scan.close()
    for batch in batches:
        assert all(batch.schema.field(name).type == schema.field(name).type for name in batch.schema.names)
    return [row for batch in batches for row in batch.to_pylist()]


def ids_of(ground: Ground, *ids: int) -> list[int]:
    rows = ground.read(ScanRequest(columns=("id", ROW_ID))).to_pylist()
    by_id = {row["id"]: row[ROW_ID] for row in rows}
    return [by_id[each] for each in ids]


def renamed(ground: Ground, row_id: int, name: str) -> None:
    assert ground.update([row_id], pa.table({"name": [name]})) == 1


def alter(ground: Ground, alteration: Alteration) -> None:
    found = ground.table()
    assert isinstance(found, AlterableTable)
    found.alter(ground.ctx, alteration)


def lived(engine: EngineUnderTest) -> Ground:
    """1: three rows. 2: one is updated. 3: one is deleted. 4: one is new."""
    ground = engine.make({"t": numbers(1, 4)})
    renamed(ground, ids_of(ground, 2)[0], "two")
    ground.delete(ids_of(ground, 3))
    ground.insert(numbers(4, 5))
    return ground


@pytest.mark.tier("fast")
@needs(Ability.COMMIT_VERSIONS)
def test_each_change_of_a_row_is_told_with_its_version(engine: EngineUnderTest) -> None:
    found = changes(lived(engine), version(0), version(4))
    told = [(row["version"], row["kind"], row["id"], row["name"]) for row in found]
    assert told == [
        (1, "insert", 1, "n00001"),
        (1, "insert", 2, "n00002"),
        (1, "insert", 3, "n00003"),
        (2, "update_before", 2, "n00002"),
        (2, "update_after", 2, "two"),
        (3, "delete", 3, "n00003"),
        (4, "insert", 4, "n00004"),
    ]
    row_ids = {row["id"]: row["row_id"] for row in found}
    assert len(set(row_ids.values())) == 4
    assert all(row["row_id"] == row_ids[row["id"]] for row in found)


@needs(Ability.COMMIT_VERSIONS)
def test_changes_begin_after_the_first_version_and_end_with_the_last(engine: EngineUnderTest) -> None:
    ground = lived(engine)
    assert {row["version"] for row in changes(ground, version(1), version(3))} == {2, 3}
    assert {row["version"] for row in changes(ground, version(3), None)} == {4}
    assert changes(ground, version(4), None) == []
    assert changes(ground, version(2), version(2)) == []


@needs(Ability.COMMIT_VERSIONS)
def test_changes_go_by_time_too(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 3)})
    moment = AsOf(AsOfUnit.TIMESTAMP, ground.moment().isoformat(sep=" "))
    ground.insert(numbers(3, 5))
    assert [row["id"] for row in changes(ground, moment, None)] == [3, 4]
    assert changes(ground, moment, moment) == []


@needs(Ability.COMMIT_VERSIONS)
def test_only_the_columns_asked_for_are_read(engine: EngineUnderTest) -> None:
    ground = lived(engine)
    (row,) = changes(ground, version(2), version(3), ("kind", "id"))
    assert (row["kind"], row["id"]) == ("delete", 3)
    assert "price" not in row


@needs(Ability.COMMIT_VERSIONS)
def test_a_range_that_ends_before_it_begins_is_an_invalid_argument(engine: EngineUnderTest) -> None:
    ground = lived(engine)
    with pytest.raises(InvalidArgument, match="later than the last"):
        changes(ground, version(3), version(2))


@pytest.mark.parametrize("number", [5, 10**12, -1])
def test_a_version_that_is_not_there_is_not_found(engine: EngineUnderTest, number: int) -> None:
    ground = lived(engine)
    with pytest.raises(VersionNotFound):
        changes(ground, version(number), None)
    with pytest.raises(VersionNotFound):
        changes(ground, version(0), version(number))


@needs(Ability.DDL)
def test_changes_have_the_columns_of_the_last_version(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(1, 3)})
    alter(ground, RenameColumn("name", "title"))
    renamed_id = ids_of(ground, 1)
    assert ground.update(renamed_id, pa.table({"title": ["one"]})) == 1
    alter(ground, AddColumn(pa.field("note", pa.string())))
    alter(ground, DropColumn("price"))
    found = changes(ground, version(0), None)
    assert [row["kind"] for row in found] == ["insert", "insert", "update_before", "update_after"]
    assert [sorted(row) for row in found] == [["id", "kind", "note", "row_id", "title", "version"]] * 4
    assert [row["title"] for row in found[-2:]] == ["n00001", "one"]
    earlier = changes(ground, version(0), version(1))
    assert [row["name"] for row in earlier] == ["n00001", "n00002"]


def test_columns_that_are_called_as_those_of_a_change_keep_their_names(engine: EngineUnderTest) -> None:
    rows = pa.table({"kind": ["good"], "Version": [7], "_kind": [True]})
    ground = engine.make({"t": rows})
    (row,) = changes(ground, version(0), None)
    assert (row["kind"], row["Version"], row["_kind"]) == ("good", 7, True)
    assert (row["__kind"], row["_version"]) == ("insert", 1)


def test_values_of_all_types_come_through(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": TYPES})
    found = changes(ground, version(0), None)
    expected = ground.read(ScanRequest(columns=tuple(TYPES.schema.names))).to_pylist()
    assert [{name: row[name] for name in TYPES.schema.names} for row in found] == expected


@pytest.mark.tier("fast")
@needs(Ability.COMMIT_VERSIONS)
def test_commits_tell_who_has_changed_what(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 10)})
    ground.ctx = replace(ground.ctx, identity=Identity("ann"))
    with entered(ground.ctx):
        renamed(ground, ids_of(ground, 1)[0], "one")
        ground.delete(ids_of(ground, 2, 3))
    alter(ground, AddColumn(pa.field("note", pa.string())))
    commits = table(ground).commits(ground.ctx)
    assert [commit.version for commit in commits] == [0, 1, 2, 3, 4]
    counts = [(commit.inserted, commit.updated, commit.deleted) for commit in commits[1:4]]
    assert counts == [(10, 0, 0), (0, 1, 0), (0, 0, 2)]
    assert [commit.rows for commit in commits[1:4]] == [10, 10, 8]
    assert [commit.authors for commit in commits[2:4]] == [("ann",), ("ann",)]
    assert (commits[0].operation, commits[4].operation) == ("create", "alter")
    times = [commit.committed for commit in commits[1:] if commit.committed is not None]
    assert len(times) == 4
    assert times == sorted(times)


@needs(Ability.COMMIT_VERSIONS, Ability.UPDATE_AND_DELETE)
def test_commits_that_change_and_insert_rows_are_told_with_all_rows_of_the_table(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(1, 11)})
    for number in (1, 2):
        within = begun(ground)
        renamed(within, ids_of(ground, number)[0], "new name")
        within.insert(numbers(50 * number, 50 * number + 2))
        commit(within)
    ground.delete(ids_of(ground, 2, 3, 4, 5, 6))
    within = begun(ground)
    within.delete(ids_of(ground, 7))
    within.insert(numbers(200, 203))
    commit(within)
    ground.insert(numbers(60, 61))
    told = [
        (each.operation, each.inserted, each.updated, each.deleted, each.rows)
        for each in table(ground).commits(ground.ctx)[2:]
    ]
    assert told == [
        ("overwrite", 2, 1, 0, 12),
        ("overwrite", 2, 1, 0, 14),
        ("delete", 0, 0, 5, 9),
        ("overwrite", 3, 0, 1, 11),
        ("append", 1, 0, 0, 12),
    ]
    assert ground.table().row_count(ground.ctx) == 12


# A random life, compared with whole scans of its versions


def differences(before: dict[int, Row], after: dict[int, Row]) -> Iterator[tuple[str, int, str]]:
    for row_id in before.keys() | after.keys():
        old, new = before.get(row_id), after.get(row_id)
        if old is None:
            yield "insert", row_id, str(new)
        elif new is None:
            yield "delete", row_id, str(old)
        elif old != new:
            yield "update_before", row_id, str(old)
            yield "update_after", row_id, str(new)


def rows_at(ground: Ground, number: int) -> dict[int, Row]:
    assert ROW_ID in ground.table().schema.names
    rows = ground.read(ScanRequest(at=version(number))).to_pylist()
    return {row.pop(ROW_ID): row for row in rows}


@needs(Ability.COMMIT_VERSIONS, Ability.ROW_IDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_changes_are_the_differences_of_two_scans(engine: EngineUnderTest, seed: int) -> None:
    chance = random.Random(seed)
    ground = engine.make({"t": numbers(0, 30)})
    for step in range(8):
        present = list(rows_at(ground, step + 1))
        chosen = sorted(chance.sample(present, min(len(present), chance.randint(1, 9))))
        match chance.choice(["insert", "update", "update", "delete"]):
            case "insert":
                ground.insert(numbers(100 * step + 100, 100 * step + 100 + chance.randint(1, 20)))
            case "update":
                ground.update(chosen, pa.table({"name": [f"{step}-{row_id}" for row_id in chosen]}))
            case "delete":
                ground.delete(chosen)
    found = changes(ground, version(0), None)
    for number in range(1, 10):
        told = [row for row in found if row["version"] == number]
        shown = sorted(
            (row["kind"], row["row_id"], str({name: row[name] for name in ("id", "name", "price")})) for row in told
        )
        assert shown == sorted(differences(rows_at(ground, number - 1), rows_at(ground, number))), number
