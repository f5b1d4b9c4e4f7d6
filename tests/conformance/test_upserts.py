"""Changes by key: one statement, one commit, and the rows of the input told with what became of each."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.deferred import begun, commit
from tests.conformance.engines import Ability, EngineUnderTest, Ground

from sparkport.catalog import ROW_ID
from sparkport.catalog.ddl import MutableSchema
from sparkport.catalog.ddl import TableDefinition as Definition
from sparkport.catalog.keys import new_keys
from sparkport.catalog.transaction import Isolation
from sparkport.errors import (
    Conflict,
    ConstraintViolation,
    DuplicateKey,
    FailedPrecondition,
    InvalidArgument,
    SchemaMismatch,
    TableNotFound,
)
from sparkport.handlers.directory import Directory
from sparkport.handlers.upserts import Upserts
from sparkport.upserts.model import Counts, KeyedChange, KeyedRequest

pytestmark = [pytest.mark.tier("fast"), pytest.mark.needs(Ability.UPDATE_AND_DELETE, Ability.DDL)]

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("age", pa.int32())])
UPSERT, INSERT_MISSING, DELETE_MATCHING = KeyedChange
NEW = [{"id": 1, "name": "a", "age": 10}, {"id": 2, "name": "b", "age": 20}]


def made(
    engine: EngineUnderTest,
    rows: Sequence[Mapping[str, Any]] = NEW,
    *,
    primary: Sequence[str] = (),
    columns: pa.Schema = COLUMNS,
    checks: tuple[str, ...] = (),
) -> Ground:
    ground = engine.make({})
    schema = ground.catalog.schema(ground.ctx, "public")
    assert isinstance(schema, MutableSchema)
    keys, columns = new_keys(columns, primary=[primary] if primary else [])
    schema.create_table(ground.ctx, Definition(name="t", columns=columns, keys=keys, checks=checks))
    if rows:
        ground.insert(pa.Table.from_pylist([dict(row) for row in rows], columns))
    return ground


def change(
    ground: Ground,
    what: KeyedChange,
    rows: Sequence[Mapping[str, Any]] | pa.Table,
    *,
    key: Sequence[str] | None = ("id",),
    table: str = "t",
) -> tuple[list[dict[str, Any]], Counts]:
    given = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist([dict(row) for row in rows])
    statement = Upserts(Directory([ground.catalog]), ground.catalog).open(
        ground.ctx, KeyedRequest(what, "public", table, None if key is None else tuple(key)), given.schema
    )
    try:
        for batch in given.to_batches(max_chunksize=2):
            statement.push(batch)
        told = [row for batch in statement.finish() for row in batch.to_pylist()]
        assert statement.counts is not None
        return told, statement.counts
    finally:
        statement.close()


def actions(ground: Ground, what: KeyedChange, rows: Sequence[Mapping[str, Any]], **more: Any) -> list[str]:
    return [row["merge_action"] for row in change(ground, what, rows, **more)[0]]


def contents(ground: Ground) -> list[tuple[Any, ...]]:
    rows = ground.read().drop_columns([ROW_ID]).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


@pytest.mark.tier("fast")
def test_an_upsert_updates_what_is_there_and_inserts_the_rest(engine: EngineUnderTest) -> None:
    ground = made(engine)
    told, counts = change(ground, UPSERT, [{"id": 3, "name": "c"}, {"id": 2, "name": "B"}])
    assert told == [
        {"id": 3, "name": "c", "merge_action": "INSERT"},
        {"id": 2, "name": "B", "merge_action": "UPDATE"},
    ]
    assert counts == Counts(inserted=1, updated=1)
    assert contents(ground) == [(1, "a", 10), (2, "B", 20), (3, "c", None)]


def test_the_primary_key_is_taken_when_none_is_named(engine: EngineUnderTest) -> None:
    ground = made(engine, primary=["id"])
    assert actions(ground, UPSERT, [{"id": 2, "age": 21}, {"id": 9, "age": 9}], key=None) == ["UPDATE", "INSERT"]
    assert actions(ground, INSERT_MISSING, [{"id": 2, "age": 1}, {"id": 7, "age": 7}], key=None) == [
        "NOTHING",
        "INSERT",
    ]
    assert actions(ground, DELETE_MATCHING, [{"id": 1}, {"id": 8}], key=None) == ["DELETE", "NOTHING"]
    assert contents(ground) == [(2, "b", 21), (7, None, 7), (9, None, 9)]


@pytest.mark.tier("fast")
def test_all_of_it_is_refused_where_a_part_is_wrong(engine: EngineUnderTest) -> None:
    ground = made(engine, primary=["id"], checks=("age < 100",))
    before = contents(ground)
    with pytest.raises(ConstraintViolation):
        change(ground, UPSERT, [{"id": 1, "age": 11}, {"id": 2, "age": 100}])
    with pytest.raises(ConstraintViolation, match="NOT NULL"):
        change(ground, UPSERT, [{"id": 1, "age": 11}, {"id": None, "age": 1}])
    with pytest.raises(InvalidArgument, match=r"more than one row with the key \(id\) = \(4\)"):
        change(ground, UPSERT, [{"id": 1, "age": 11}, {"id": 4, "age": 1}, {"id": 4, "age": 2}])
    with pytest.raises(SchemaMismatch, match="'nick' is not in the table"):
        change(ground, UPSERT, [{"id": 1, "nick": "x"}])
    with pytest.raises(InvalidArgument, match="lacks column 'id'"):
        change(ground, UPSERT, [{"name": "x"}])
    with pytest.raises(InvalidArgument, match="no column 'nick' for a key"):
        change(ground, UPSERT, [{"id": 1}], key=["nick"])
    assert contents(ground) == before


def test_a_key_that_several_rows_have_is_refused_for_upsert_and_deleted_whole(engine: EngineUnderTest) -> None:
    ground = made(engine, [*NEW, {"id": 2, "name": "again", "age": 0}])
    with pytest.raises(FailedPrecondition, match=r"more than one row with the key \(id\) = \(2\)"):
        change(ground, UPSERT, [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}])
    told, counts = change(ground, DELETE_MATCHING, [{"id": 2}])
    assert told == [{"id": 2, "merge_action": "DELETE"}]
    assert counts == Counts(deleted=2)
    assert contents(ground) == [(1, "a", 10)]


def test_a_null_in_a_key_matches_nothing(engine: EngineUnderTest) -> None:
    ground = made(engine, [{"id": None, "name": "a", "age": 1}])
    rows = [{"id": None, "name": "b"}, {"id": None, "name": "c"}]
    given = pa.Table.from_pylist(rows, pa.schema([("id", pa.int64()), ("name", pa.string())]))
    assert [row["merge_action"] for row in change(ground, UPSERT, given)[0]] == ["INSERT", "INSERT"]
    assert [row["merge_action"] for row in change(ground, DELETE_MATCHING, given)[0]] == ["NOTHING", "NOTHING"]
    assert len(contents(ground)) == 3


def test_keys_of_several_columns_and_of_texts_compare_exactly(engine: EngineUnderTest) -> None:
    ground = made(engine)
    rows = [{"id": 1, "name": "A", "age": 1}, {"id": 1, "name": "a", "age": 2}, {"id": 2, "name": "a", "age": 3}]
    assert actions(ground, UPSERT, rows, key=["name", "ID"]) == ["INSERT", "UPDATE", "INSERT"]
    assert contents(ground) == [(1, "A", 1), (1, "a", 2), (2, "a", 3), (2, "b", 20)]


def test_a_table_without_a_primary_key_needs_one_named(engine: EngineUnderTest) -> None:
    ground = made(engine)
    with pytest.raises(FailedPrecondition, match="has no primary key"):
        change(ground, UPSERT, [{"id": 1}], key=None)
    with pytest.raises(TableNotFound):
        change(ground, UPSERT, [{"id": 1}], table="nobody")


def test_nothing_in_nothing_out(engine: EngineUnderTest) -> None:
    ground = made(engine)
    empty = COLUMNS.empty_table()
    for what in KeyedChange:
        assert change(ground, what, empty) == ([], Counts())
    assert actions(ground, UPSERT, [{"id": 1}, {"id": 5}]) == ["NOTHING", "INSERT"]
    assert contents(ground) == [(1, "a", 10), (2, "b", 20), (5, None, None)]


def test_a_deferred_transaction_sees_its_own_rows_and_can_take_all_back(engine: EngineUnderTest) -> None:
    ground = made(engine, primary=["id"])
    transaction = begun(ground)
    assert actions(transaction, UPSERT, [{"id": 2, "age": 21}, {"id": 3, "age": 30}]) == ["UPDATE", "INSERT"]
    assert actions(transaction, UPSERT, [{"id": 3, "age": 31}, {"id": 4, "age": 40}]) == ["UPDATE", "INSERT"]
    assert actions(transaction, DELETE_MATCHING, [{"id": 4}, {"id": 1}]) == ["DELETE", "DELETE"]
    assert actions(transaction, INSERT_MISSING, [{"id": 1, "age": 1}, {"id": 3, "age": 0}]) == ["INSERT", "NOTHING"]
    assert contents(ground) == [(1, "a", 10), (2, "b", 20)]
    commit(transaction)
    assert contents(ground) == [(1, None, 1), (2, "b", 21), (3, None, 31)]
    other = begun(ground)
    change(other, UPSERT, [{"id": 1, "age": 99}])
    assert other.catalog.transactions is not None
    assert other.ctx.transaction_id is not None
    other.catalog.transactions.rollback(other.ctx.transaction_id)
    assert contents(ground) == [(1, None, 1), (2, "b", 21), (3, None, 31)]


def test_two_transactions_cannot_both_insert_a_key_that_is_declared(engine: EngineUnderTest) -> None:
    ground = made(engine, primary=["id"])
    first, second = begun(ground), begun(ground)
    change(first, UPSERT, [{"id": 5, "age": 1}])
    change(second, UPSERT, [{"id": 5, "age": 2}])
    commit(first)
    with pytest.raises(DuplicateKey):
        commit(second)


def test_two_serializable_transactions_cannot_both_insert_a_key_that_is_not(engine: EngineUnderTest) -> None:
    ground = made(engine)
    first, second = (begun(ground, isolation=Isolation.SERIALIZABLE) for _ in range(2))
    change(first, UPSERT, [{"id": 5, "age": 1}])
    change(second, UPSERT, [{"id": 5, "age": 2}])
    commit(first)
    with pytest.raises(Conflict):
        commit(second)


@pytest.mark.parametrize("primary", [(), ("id",)], ids=["undeclared", "declared"])
def test_those_who_upsert_the_same_new_keys_at_once_insert_each_once(
    engine: EngineUnderTest, primary: Sequence[str]
) -> None:
    ground = made(engine, primary=primary)
    counted: list[Counts] = []
    failures: list[BaseException] = []

    def run(age: int) -> None:
        try:
            counted.append(change(ground, UPSERT, [{"id": number, "age": age} for number in (2, 5, 6)])[1])
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(age,)) for age in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sum(counts.inserted for counts in counted) == 2
    assert sum(counts.updated for counts in counted) == 7
    ages = {row[0]: row[2] for row in contents(ground)}
    assert sorted(ages) == [1, 2, 5, 6]
    assert len({ages[2], ages[5], ages[6]}) == 1
