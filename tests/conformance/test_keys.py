"""PRIMARY KEY and UNIQUE: no two rows share a key, whatever way they come."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.deferred import begun, commit
from tests.conformance.engines import Ability, EngineUnderTest, Ground

from sparkport.catalog import ROW_ID, DeletableTable, ScanRequest, UpdatableTable
from sparkport.catalog.ddl import AlterableTable, ChangeType, DropColumn, DropNotNull, MutableSchema, RenameColumn
from sparkport.catalog.ddl import TableDefinition as Definition
from sparkport.catalog.keys import Key, new_keys
from sparkport.errors import DuplicateKey, InvalidArgument

pytestmark = [pytest.mark.tier("fast"), pytest.mark.needs(Ability.UPDATE_AND_DELETE, Ability.DDL)]

COLUMNS = pa.schema([("id", pa.int32()), ("a", pa.int64()), ("b", pa.string()), ("note", pa.string())])


def keyed(
    engine: EngineUnderTest,
    primary: Sequence[str] = ("id",),
    unique: Sequence[Sequence[str]] = (),
    columns: pa.Schema = COLUMNS,
) -> Ground:
    ground = engine.make({})
    schema = ground.catalog.schema(ground.ctx, "public")
    assert isinstance(schema, MutableSchema)
    keys, columns = new_keys(columns, primary=[primary] if primary else [], unique=unique)
    schema.create_table(ground.ctx, Definition(name="t", columns=columns, keys=keys))
    return ground


def rows(ground: Ground, *rows: Mapping[str, Any]) -> pa.Table:
    columns = pa.schema([column for column in ground.table().schema if column.name != ROW_ID])
    return pa.Table.from_pylist([dict(row) for row in rows], columns)


def insert(ground: Ground, *new: Mapping[str, Any]) -> int:
    return ground.insert(rows(ground, *new))


def ids(ground: Ground) -> dict[int, int]:
    read = ground.read(ScanRequest(columns=("id", ROW_ID))).to_pylist()
    return {row["id"]: row[ROW_ID] for row in read}


def update(ground: Ground, changes: Mapping[int, Mapping[str, Any]]) -> int:
    """By the values of ``id``; all set the same columns."""
    there = ids(ground)
    names = list(next(iter(changes.values())))
    columns = pa.schema([ground.table().schema.field(name) for name in names])
    new = pa.Table.from_pylist([dict(change) for change in changes.values()], columns)
    return ground.update([there[number] for number in changes], new)


def delete(ground: Ground, *wanted: int) -> None:
    table = ground.table()
    assert isinstance(table, DeletableTable)
    table.delete(ground.ctx, [ids(ground)[number] for number in wanted])


def test_a_table_knows_its_keys(engine: EngineUnderTest) -> None:
    ground = keyed(engine, unique=[["a"], ["b", "note"]])
    assert ground.table().keys == (Key(("id",), True), Key(("a",)), Key(("b", "note")))


@pytest.mark.tier("fast")
def test_a_second_row_with_a_key_is_refused_and_changes_nothing(engine: EngineUnderTest) -> None:
    ground = keyed(engine)
    insert(ground, {"id": 1, "note": "first"})
    with pytest.raises(DuplicateKey, match=r"table 't': duplicate key \(id = 1\) violates PRIMARY KEY \(id\)"):
        insert(ground, {"id": 2}, {"id": 1, "note": "second"})
    assert [row["note"] for row in ground.read().to_pylist()] == ["first"]


def test_a_statement_that_has_a_key_twice_is_refused(engine: EngineUnderTest) -> None:
    ground = keyed(engine, primary=(), unique=[["a", "b"]])
    with pytest.raises(DuplicateKey, match=r"\(a = 1, b = 'x'\) violates UNIQUE \(a, b\)"):
        insert(ground, {"id": 1, "a": 1, "b": "x"}, {"id": 2, "a": 1, "b": "y"}, {"id": 3, "a": 1, "b": "x"})
    assert ground.read().num_rows == 0


def test_values_meet_only_when_all_of_a_key_are_the_same(engine: EngineUnderTest) -> None:
    ground = keyed(engine, primary=("id", "a"))
    insert(ground, {"id": 1, "a": 1}, {"id": 1, "a": 2}, {"id": 2, "a": 3})
    insert(ground, {"id": 2, "a": 1}, {"id": 1, "a": 3})
    with pytest.raises(DuplicateKey, match=r"\(id = 1, a = 3\)"):
        insert(ground, {"id": 3, "a": 3}, {"id": 1, "a": 3})
    assert ground.read().num_rows == 5


def test_null_in_a_unique_key_meets_nothing(engine: EngineUnderTest) -> None:
    ground = keyed(engine, primary=(), unique=[["a", "b"]])
    insert(ground, {"id": 1, "a": 1}, {"id": 2, "a": 1}, {"id": 3})
    insert(ground, {"id": 4, "a": 1}, {"id": 5})
    assert ground.read().num_rows == 5


@pytest.mark.tier("fast")
def test_an_update_may_not_take_the_key_of_another(engine: EngineUnderTest) -> None:
    ground = keyed(engine)
    insert(ground, {"id": 1}, {"id": 2}, {"id": 3})
    with pytest.raises(DuplicateKey, match=r"id = 3"):
        update(ground, {1: {"id": 3}})
    update(ground, {1: {"id": 4}})
    insert(ground, {"id": 1})
    assert sorted(ids(ground)) == [1, 2, 3, 4]


def test_an_update_of_a_part_of_a_key_counts(engine: EngineUnderTest) -> None:
    ground = keyed(engine, primary=("id",), unique=[["a", "b"]])
    insert(ground, {"id": 1, "a": 1, "b": "x"}, {"id": 2, "a": 2, "b": "x"})
    with pytest.raises(DuplicateKey, match=r"UNIQUE \(a, b\)"):
        update(ground, {2: {"a": 1}})
    update(ground, {2: {"a": 1, "b": "y"}})
    update(ground, {2: {"note": "no key"}})


def test_keys_may_change_places_in_one_statement(engine: EngineUnderTest) -> None:
    ground = keyed(engine)
    insert(ground, {"id": 1, "note": "one"}, {"id": 2, "note": "two"})
    update(ground, {1: {"id": 2}, 2: {"id": 1}})
    found = {row["id"]: row["note"] for row in ground.read(ScanRequest(columns=("id", "note"))).to_pylist()}
    assert found == {1: "two", 2: "one"}


def test_a_key_that_is_deleted_can_be_used_again(engine: EngineUnderTest) -> None:
    ground = keyed(engine)
    insert(ground, {"id": 1})
    delete(ground, 1)
    insert(ground, {"id": 1})
    inside = begun(ground)
    delete(inside, 1)
    insert(inside, {"id": 1, "note": "again"})
    commit(inside)
    assert [row["note"] for row in ground.read().to_pylist()] == ["again"]


def test_many_keys_at_once_are_found_wherever_they_are(engine: EngineUnderTest) -> None:
    """Among neighbours and strays, in old and in new rows, and not where they were deleted or have changed."""
    ground = keyed(engine, primary=("a",))

    def many(*numbers: int) -> int:
        return insert(ground, *({"id": place, "a": number} for place, number in enumerate(numbers)))

    many(*range(0, 2_000, 2))
    many(*(number * 10**10 + 3 for number in range(-100, 100)))
    for taken in (998, 3 - 10**12, 3 + 99 * 10**10):
        with pytest.raises(DuplicateKey, match=f"a = {taken}"):
            many(*range(1, 2_000, 40), taken)
    there = {row["a"]: row[ROW_ID] for row in ground.read(ScanRequest(columns=("a", ROW_ID))).to_pylist()}
    table = ground.table()
    assert isinstance(table, DeletableTable)
    table.delete(ground.ctx, [there[998], there[3 + 10**10]])
    update_one = pa.table({"a": pa.array([7], pa.int64())})
    assert isinstance(table, UpdatableTable)
    table.update(ground.ctx, [there[1_000]], update_one.to_reader())
    assert many(998, 1_000, 3 + 10**10, *range(101, 200, 2)) == 53
    with pytest.raises(DuplicateKey, match="a = 7"):
        many(*range(301, 400, 2), 7)
    with pytest.raises(DuplicateKey, match="a = 1000"):
        many(*range(301, 400, 2), 1_000)


def test_a_transaction_is_checked_when_it_is_committed(engine: EngineUnderTest) -> None:
    ground = keyed(engine)
    insert(ground, {"id": 1, "note": "there"})
    inside = begun(ground)
    insert(inside, {"id": 2})
    insert(inside, {"id": 1})
    with pytest.raises(DuplicateKey, match=r"id = 1"):
        commit(inside)
    assert [row["note"] for row in ground.read().to_pylist()] == ["there"]


@pytest.mark.tier("fast")
def test_the_first_of_two_transactions_with_a_key_wins(engine: EngineUnderTest) -> None:
    ground = keyed(engine)
    first, second = begun(ground), begun(ground)
    insert(first, {"id": 7, "note": "first"})
    insert(second, {"id": 7, "note": "second"})
    commit(first)
    with pytest.raises(DuplicateKey, match=r"id = 7"):
        commit(second)
    assert [row["note"] for row in ground.read().to_pylist()] == ["first"]


def test_a_transaction_that_changes_other_columns_does_not_meet_itself(engine: EngineUnderTest) -> None:
    ground = keyed(engine)
    insert(ground, {"id": 1}, {"id": 2})
    inside = begun(ground)
    update(inside, {1: {"note": "changed"}})
    update(inside, {2: {"id": 3}})
    update(inside, {3: {"id": 2}})
    insert(inside, {"id": 3})
    commit(inside)
    assert sorted(ids(ground)) == [1, 2, 3]


def test_of_many_who_insert_one_key_at_once_one_wins(engine: EngineUnderTest) -> None:
    ground = keyed(engine)
    outcomes: list[str] = []
    start = threading.Barrier(6)

    def run(number: int) -> None:
        start.wait()
        try:
            insert(ground, {"id": 5, "note": str(number)}, {"id": 100 + number})
            outcomes.append("done")
        except DuplicateKey:
            outcomes.append("refused")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["done", *["refused"] * 5]
    assert ground.read().num_rows == 2


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (pa.string(), "æ", "b"),
        (pa.decimal128(20, 2), Decimal("1.10"), Decimal("1.11")),
        (pa.date32(), date(2026, 1, 1), date(2026, 1, 2)),
        (pa.timestamp("ns"), 1, 2),
        (pa.time64("us"), 5, 6),
        (pa.binary(), b"\x00\x01", b"\x00"),
        (pa.bool_(), True, False),
        (pa.uint64(), 2**64 - 1, 2**64 - 2),
        (pa.uuid(), b"0123456789abcdef", b"0123456789abcdeg"),
        (pa.dictionary(pa.int8(), pa.string()), "x", "y"),
    ],
    ids=str,
)
def test_keys_of_many_types(engine: EngineUnderTest, kind: pa.DataType, first: Any, second: Any) -> None:
    columns = pa.schema([("k", kind), ("n", pa.int32())])
    ground = keyed(engine, primary=("k",), columns=columns)

    def one(value: Any) -> pa.Table:
        values = pa.array([value], kind.value_type).dictionary_encode() if pa.types.is_dictionary(kind) else None
        values = values.cast(kind) if values is not None else pa.array([value], kind)
        return pa.table([values, pa.array([1], pa.int32())], schema=ground.table().schema.remove(2))

    ground.insert(one(first))
    ground.insert(one(second))
    with pytest.raises(DuplicateKey):
        ground.insert(one(first))


def test_a_renamed_column_stays_in_its_key(engine: EngineUnderTest) -> None:
    ground = keyed(engine, unique=[["a", "b"]])
    table = ground.table()
    assert isinstance(table, AlterableTable)
    table.alter(ground.ctx, RenameColumn("id", "number"))
    table.alter(ground.ctx, RenameColumn("b", "c"))
    assert ground.table().keys == (Key(("number",), True), Key(("a", "c")))
    insert(ground, {"number": 1})
    with pytest.raises(DuplicateKey, match=r"\(number = 1\) violates PRIMARY KEY \(number\)"):
        insert(ground, {"number": 1})


def test_a_column_of_a_key_goes_only_with_its_key(engine: EngineUnderTest) -> None:
    ground = keyed(engine, unique=[["a", "b"]])
    table = ground.table()
    assert isinstance(table, AlterableTable)
    with pytest.raises(InvalidArgument, match=r"column 'a' is part of UNIQUE \(a, b\)"):
        table.alter(ground.ctx, DropColumn("a"))
    with pytest.raises(InvalidArgument, match="PRIMARY KEY, which takes no NULL"):
        table.alter(ground.ctx, DropNotNull("id"))
    table.alter(ground.ctx, DropColumn("a", cascade=True))
    assert ground.table().keys == (Key(("id",), True),)


def test_a_key_holds_after_its_column_has_got_a_wider_type(engine: EngineUnderTest) -> None:
    ground = keyed(engine)
    insert(ground, {"id": 1})
    table = ground.table()
    assert isinstance(table, AlterableTable)
    table.alter(ground.ctx, ChangeType("id", pa.int64()))
    with pytest.raises(DuplicateKey):
        insert(ground, {"id": 1})
    insert(ground, {"id": 2**40})
