"""Updates and deletes through the catalog's interfaces: by row id, whole, and visible at once."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.conformance.engines import Ability, EngineUnderTest, Ground
from tests.conformance.rows import numbers

from sparkport.catalog import ROW_ID, DeletableTable, DMLOptions, ScanRequest, UpdatableTable

pytestmark = [pytest.mark.tier("fast"), pytest.mark.needs(Ability.UPDATE_AND_DELETE)]


def row_ids(ground: Ground, *wanted: int) -> list[int]:
    rows = ground.read(ScanRequest(columns=("id", ROW_ID))).to_pylist()
    found = {row["id"]: row[ROW_ID] for row in rows}
    return [found[number] for number in wanted]


def updatable(ground: Ground) -> UpdatableTable:
    table = ground.table()
    assert isinstance(table, UpdatableTable)
    return table


def deletable(ground: Ground) -> DeletableTable:
    table = ground.table()
    assert isinstance(table, DeletableTable)
    return table


def names(*values: str) -> pa.RecordBatchReader:
    rows = pa.table({"name": list(values)})
    return pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches())


@pytest.mark.tier("fast")
def test_an_update_changes_only_its_columns_of_only_its_rows(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 10)})
    before = ground.read(ScanRequest(columns=("id", "name", "price"))).to_pylist()
    result = updatable(ground).update(ground.ctx, row_ids(ground, 3, 8), names("three", "eight"))
    after = {row["id"]: row for row in ground.read(ScanRequest(columns=("id", "name", "price"))).to_pylist()}
    assert result.affected_rows == 2
    expected = {row["id"]: row for row in before}
    expected[3]["name"], expected[8]["name"] = "three", "eight"
    assert after == expected


@pytest.mark.tier("fast")
def test_an_updated_row_keeps_its_id(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 10)})
    before = row_ids(ground, 3)
    updatable(ground).update(ground.ctx, before, names("three"))
    assert row_ids(ground, 3) == before


@pytest.mark.tier("fast")
def test_a_delete_removes_only_its_rows(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 10)})
    result = deletable(ground).delete(ground.ctx, row_ids(ground, 0, 9))
    assert result.affected_rows == 2
    assert ground.read(ScanRequest(columns=("id",)))["id"].to_pylist() == list(range(1, 9))


@pytest.mark.tier("fast")
def test_the_id_of_a_deleted_row_is_not_given_again(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 10)})
    gone = row_ids(ground, 9)
    deletable(ground).delete(ground.ctx, gone)
    ground.insert(numbers(10, 20))
    assert not set(gone) & set(ground.read(ScanRequest(columns=(ROW_ID,)))[ROW_ID].to_pylist())


@pytest.mark.tier("fast")
def test_returning_gives_the_new_values_of_an_update_and_the_old_ones_of_a_delete(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 10)})
    options = DMLOptions(returning=True, returning_columns=("id", "name"))
    updated = updatable(ground).update(ground.ctx, row_ids(ground, 3), names("three"), options)
    deleted = deletable(ground).delete(ground.ctx, row_ids(ground, 3), options)
    assert updated.returning_data is not None
    assert deleted.returning_data is not None
    assert updated.returning_data.read_all().to_pylist() == [{"id": 3, "name": "three"}]
    assert deleted.returning_data.read_all().to_pylist() == [{"id": 3, "name": "three"}]
