"""After each kind of statement plain Spark, PyIceberg and sparkport must return the same rows with the same ids."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of, version
from tests.support.lakehouse import Lake

from sparkport.catalog import ROW_ID, DMLOptions
from sparkport.catalog.ddl import (
    AddColumn,
    AddField,
    Alteration,
    ChangeType,
    DropColumn,
    DropField,
    DropNotNull,
    RenameColumn,
    RenameField,
    SetComment,
    SetDefault,
    SetNotNull,
)

pytestmark = pytest.mark.tier("fast")

_INNER = pa.struct([("a", pa.int32()), ("b", pa.string())])

PEOPLE = pa.table(
    {
        "id": pa.array(range(20), pa.int32()),
        "name": pa.array([None if i % 7 == 0 else f"n{i}" for i in range(20)]),
        "pair": pa.array([None if i % 5 == 0 else {"a": i, "b": f"b{i}"} for i in range(20)], _INNER),
    }
)

RETURNING = DMLOptions(returning=True)


def names(*values: str) -> pa.Table:
    return pa.table({"name": list(values)})


@pytest.fixture(scope="module")
def people(lake: Lake) -> Handle:
    return create(lake, "people", PEOPLE)


def test_rows_of_an_insert_are_the_same_for_all(people: Handle) -> None:
    before = people.agreed()
    assert people.insert(PEOPLE.slice(0, 3)).affected_rows == 3
    after = people.agreed()
    assert {row_id: after[row_id] for row_id in before} == before
    assert len(after) == len(before) + 3
    assert min(after.keys() - before.keys()) > max(before)


def test_an_update_by_repeated_and_missing_ids_keeps_the_ids_and_the_last_change(people: Handle) -> None:
    before = people.agreed()
    first, second, *_ = before
    changed = people.update([first, second, 10**9, first], names("once", "other", "nobody", "twice"))
    assert changed.affected_rows == 2
    after = people.agreed()
    expected = {row_id: dict(row) for row_id, row in before.items()}
    expected[first]["name"], expected[second]["name"] = "twice", "other"
    assert after == expected


def test_a_delete_by_repeated_and_missing_ids_counts_each_row_once(people: Handle) -> None:
    before = people.agreed()
    gone = list(before)[3:5]
    assert people.delete([*gone, gone[0], 10**9]).affected_rows == 2
    assert people.agreed() == {row_id: row for row_id, row in before.items() if row_id not in gone}


def test_statements_without_rows_change_nothing_and_make_no_version(people: Handle) -> None:
    before, location = people.agreed(), people.current.location
    assert people.insert(PEOPLE.slice(0, 0)).affected_rows == 0
    assert people.update([10**9], names("nobody")).affected_rows == 0
    assert people.delete([10**9]).affected_rows == 0
    assert people.delete([]).affected_rows == 0
    assert people.agreed() == before
    assert people.current.location == location


def test_returned_rows_are_those_that_all_see_afterwards(people: Handle) -> None:
    first, second, *_ = people.agreed()
    updated = people.update([second, first], names("ret2", "ret1"), options=RETURNING)
    assert updated.returning_data is not None
    rows = {row[ROW_ID]: row for row in updated.returning_data.read_all().to_pylist()}
    after = people.agreed()
    assert rows == {row_id: after[row_id] for row_id in (first, second)}
    deleted = people.delete([first], options=RETURNING)
    assert deleted.returning_data is not None
    assert deleted.returning_data.read_all().to_pylist() == [after[first]]
    inserted = people.insert(PEOPLE.slice(1, 1), options=DMLOptions(True, ("id", "name", "pair")))
    assert inserted.returning_data is not None
    assert inserted.returning_data.read_all().to_pylist() == PEOPLE.slice(1, 1).to_pylist()
    assert len(people.agreed()) == len(after)


def test_a_row_updated_again_and_again_then_deleted_is_not_resurrected(people: Handle) -> None:
    row_id = next(iter(people.agreed()))
    for text in ("one", "two", "three"):
        assert people.update([row_id], names(text)).affected_rows == 1
    assert people.agreed()[row_id]["name"] == "three"
    assert people.delete([row_id]).affected_rows == 1
    assert row_id not in people.agreed()
    assert people.update([row_id], names("ghost")).affected_rows == 0
    assert row_id not in people.agreed()


def test_compaction_by_spark_keeps_rows_ids_and_counts_as_one_version(people: Handle) -> None:
    before = people.agreed()
    earlier = people.sparkport(at=version(3))
    options = "map('rewrite-all', 'true', 'delete-file-threshold', '1')"
    people.sql(f"CALL {people.lake.catalog}.system.rewrite_data_files(table => 'public.people', options => {options})")
    assert people.agreed() == before
    assert people.sparkport(at=version(3)) == earlier
    row_id = next(iter(before))
    assert people.update([row_id], names("after compaction")).affected_rows == 1
    assert people.agreed() == {**before, row_id: {**before[row_id], "name": "after compaction"}}


@pytest.mark.tier("thorough")
def test_a_big_insert_of_several_row_groups_then_scattered_changes(lake: Lake) -> None:
    count = 1_100_000
    numbers = pa.table({"id": pa.array(range(count), pa.int64()), "half": pa.array(range(count), pa.int64())})
    big = create(lake, "big", numbers)
    rows = big.read()
    assert rows.column("id").equals(numbers.column("id"))
    ids = rows.column(ROW_ID)
    assert len(ids.unique()) == count
    picked = [0, 1_048_576, count - 1]
    row_ids = [ids[place].as_py() for place in picked]
    assert big.update(row_ids, pa.table({"half": pa.array([-1] * 3, pa.int64())})).affected_rows == 3
    assert big.delete([ids[500].as_py(), ids[1_050_000].as_py()]).affected_rows == 2
    with lake.spark() as spark:
        found = spark.sql(f"SELECT id, half, _row_id AS rowid FROM {big.sql_name} WHERE id <> half OR id < 1000")
        by_spark = found.toArrow().sort_by("id").to_pylist()
    ours = big.read().sort_by("id")
    assert ours.num_rows == count - 2
    assert [row for row in by_spark if row["id"] < 1000] == ours.slice(0, 999).to_pylist()
    assert {row["id"]: row["rowid"] for row in by_spark if row["half"] == -1} == dict(zip(picked, row_ids, strict=True))


def test_schema_changes_keep_rows_and_ids_and_old_versions_read_as_they_were(lake: Lake) -> None:
    table = create(lake, "evolving", PEOPLE)
    first = table.agreed()
    column_ids = {row["id"]: row_id for row_id, row in first.items()}
    steps: list[Alteration] = [
        RenameColumn("name", "label"),
        AddColumn(pa.field("extra", pa.float64())),
        ChangeType("id", pa.int64()),
        AddField(("pair",), pa.field("c", pa.int64())),
        RenameField(("pair", "a"), "z"),
        DropField(("pair", "b")),
        AddField(("pair",), pa.field("b", pa.string())),
        DropColumn("extra"),
        AddColumn(pa.field("extra", pa.string())),
        SetNotNull("id"),
        DropNotNull("id"),
        SetDefault("extra", "'x'"),
        SetComment("what it is", "label"),
        SetComment("a table"),
    ]
    history = {1: table.read(at=version(1))}
    for step in steps:
        table.alter(step)
        rows = table.agreed(pyiceberg=False)
        assert {row["id"]: row_id for row_id, row in rows.items()} == column_ids, step
        history[table.number] = table.read()
    last = table.agreed()
    assert {row["label"] for row in last.values()} == set(PEOPLE["name"].to_pylist())
    assert {row["extra"] for row in last.values()} == {None}
    assert [row["pair"] for row in last.values()][:2] == [None, {"z": 1, "c": None, "b": None}]
    some = {"id": [100], "label": ["new"], "pair": [{"z": 5, "c": 6, "b": "seven"}], "extra": ["now"]}
    schema = table.current.columns.declared
    assert table.insert(pa.table(some, schema=schema)).affected_rows == 1
    assert table.update([column_ids[0]], pa.table({"extra": ["changed"]})).affected_rows == 1
    after = table.agreed()
    assert after[column_ids[0]]["extra"] == "changed"
    assert [row["pair"] for row in after.values() if row["id"] == 100] == some["pair"]
    assert list(history) == list(range(1, 14))  # a default and a table's comment are no versions
    for number, rows in history.items():
        found = table.read(at=version(number))
        assert (number, found.schema.names) == (number, rows.schema.names)
        assert found.to_pylist() == rows.to_pylist()
    assert table.sparkport(at=version(1)) == first


def test_a_renamed_table_keeps_rows_ids_and_versions(lake: Lake) -> None:
    table = create(lake, "before", PEOPLE)
    rows = table.agreed()
    main_of(lake).rename_table(NOBODY, "before", "after")
    renamed = Handle(lake, "after")
    assert renamed.agreed() == rows
    assert renamed.sparkport(at=version(1)) == rows
    assert renamed.sparkport(at=version(0)) == {}
    row_id = next(iter(rows))
    assert renamed.update([row_id], names("renamed")).affected_rows == 1
    again = create(lake, "before", PEOPLE.slice(0, 2))
    assert len(again.agreed()) == 2
    assert renamed.agreed() == {**rows, row_id: {**rows[row_id], "name": "renamed"}}


def test_a_row_inserted_by_spark_has_the_id_that_spark_says(lake: Lake) -> None:
    table = create(lake, "mixed", PEOPLE.slice(0, 5))
    before = table.agreed()
    table.sql(
        "INSERT INTO {t} VALUES (100, 'by spark', named_struct('a', 1, 'b', 'x'))",
        "UPDATE {t} SET name = 'spark was here' WHERE id = 2",
        "DELETE FROM {t} WHERE id = 3",
    )
    after = table.agreed()
    kept = {row_id: row for row_id, row in before.items() if row["id"] not in (2, 3)}
    assert {row_id: row for row_id, row in after.items() if row["id"] in (0, 1, 4)} == kept
    assert after[table.ids()[2]]["name"] == "spark was here"
    assert table.ids()[2] == next(row_id for row_id, row in before.items() if row["id"] == 2)
    assert [len(table.sparkport(at=version(number))) for number in range(5)] == [0, 5, 6, 6, 5]
    assert table.update([table.ids()[100]], names("ours now")).affected_rows == 1
    assert table.agreed()[table.ids()[100]]["name"] == "ours now"
