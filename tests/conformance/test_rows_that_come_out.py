"""Two updates of one row at once, each of other columns: what comes out keeps the table's conditions and keys."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.conformance.deferred import begun, commit
from tests.conformance.engines import Ability, EngineUnderTest, Ground

from sparkport.catalog import ROW_ID, ScanRequest
from sparkport.catalog.ddl import MutableSchema, TableDefinition
from sparkport.catalog.keys import new_keys
from sparkport.catalog.statement import Change, ChangeableTable, Statement, StatementRequest
from sparkport.errors import Conflict, ConstraintViolation, DuplicateKey

pytestmark = [pytest.mark.tier("fast"), pytest.mark.needs(Ability.UPDATE_AND_DELETE, Ability.DDL)]

COLUMNS = pa.schema([("id", pa.int64()), ("low", pa.int64()), ("high", pa.int64())])


def made(engine: EngineUnderTest, *, checks: tuple[str, ...] = (), unique: bool = False) -> Ground:
    """Rows (1, 1, 10) and (2, 2, 20)."""
    ground = engine.make({})
    schema = ground.catalog.schema(ground.ctx, "public")
    assert isinstance(schema, MutableSchema)
    keys, columns = new_keys(COLUMNS, primary=[["id"]], unique=[["low", "high"]] if unique else [])
    schema.create_table(ground.ctx, TableDefinition(name="t", columns=columns, checks=checks, keys=keys))
    ground.insert(pa.table([[1, 2], [1, 2], [10, 20]], schema=columns))
    return ground


def row_id(ground: Ground, key: int = 1) -> int:
    found = ground.read(ScanRequest(columns=("id", ROW_ID))).to_pylist()
    return next(int(row[ROW_ID]) for row in found if row["id"] == key)


def values(**columns: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: pa.array([value], pa.int64()) for name, value in columns.items()})


def sent(ground: Ground, *, change: Change = Change.UPDATE, returning: bool = False, **columns: int) -> Statement:
    """An update of row 1 of which all rows are here, and which is not at its end."""
    table, new = ground.table(), values(**columns)
    assert isinstance(table, ChangeableTable)
    request = StatementRequest(change=change, columns=new.schema, returning=returning)
    statement = table.open_statement(ground.ctx, request)
    statement.push(new, pa.array([row_id(ground)], pa.int64()))
    return statement


def update(ground: Ground, key: int = 1, **columns: int) -> int:
    return ground.update([row_id(ground, key)], pa.Table.from_batches([values(**columns)]))


def rows(ground: Ground) -> dict[int, tuple[int, int]]:
    return {row["id"]: (row["low"], row["high"]) for row in ground.read().to_pylist()}


@pytest.mark.tier("fast")
@pytest.mark.parametrize("change", [Change.UPDATE, Change.UPSERT], ids=lambda change: change.value)
def test_a_check_over_two_columns_holds_for_the_row_that_two_updates_make(
    engine: EngineUnderTest, change: Change
) -> None:
    ground = made(engine, checks=("low < high",))
    first = sent(ground, change=change, low=5)
    assert update(ground, high=3) == 1
    with pytest.raises(ConstraintViolation, match="CHECK constraint failed on table t with expression: low < high"):
        first.finish()
    assert rows(ground) == {1: (1, 3), 2: (2, 20)}


@pytest.mark.parametrize("change", [Change.UPDATE, Change.UPSERT], ids=lambda change: change.value)
def test_two_updates_of_other_columns_are_both_made_where_the_check_holds(
    engine: EngineUnderTest, change: Change
) -> None:
    ground = made(engine, checks=("low < high",))
    first = sent(ground, change=change, low=5)
    assert update(ground, high=8) == 1
    assert update(ground, key=2, high=9) == 1
    assert first.finish() == 1
    assert rows(ground) == {1: (5, 8), 2: (2, 9)}


def test_a_row_that_became_good_meanwhile_was_refused_when_it_was_sent(engine: EngineUnderTest) -> None:
    ground = made(engine, checks=("low < high",))
    with pytest.raises(ConstraintViolation, match="CHECK constraint failed"):
        sent(ground, low=15)
    update(ground, high=30)
    assert update(ground, low=15) == 1
    assert rows(ground)[1] == (15, 30)


@pytest.mark.tier("fast")
def test_a_key_over_two_columns_holds_for_the_row_that_two_updates_make(engine: EngineUnderTest) -> None:
    ground = made(engine, unique=True)
    first = sent(ground, low=2)
    assert update(ground, high=20) == 1
    with pytest.raises(DuplicateKey, match=r"\(low, high\)"):
        first.finish()
    assert rows(ground) == {1: (1, 20), 2: (2, 20)}


def test_a_transaction_meets_the_other_update_as_a_conflict(engine: EngineUnderTest) -> None:
    ground = made(engine, checks=("low < high",))
    transaction = begun(ground)
    update(transaction, low=5)
    update(ground, high=3)
    with pytest.raises(Conflict):
        commit(transaction)
    assert rows(ground)[1] == (1, 3)


def test_rows_that_were_given_back_are_those_that_come_out(engine: EngineUnderTest) -> None:
    """Else a client was told of a row that there never was."""
    ground = made(engine)
    first = sent(ground, returning=True, low=5)
    update(ground, high=3)
    with pytest.raises(Conflict):
        first.finish()
    assert rows(ground)[1] == (1, 3)
