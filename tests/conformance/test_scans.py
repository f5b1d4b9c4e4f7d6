"""What every engine owes a reader: all rows, in order, with what was asked for, whoever else reads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.engines import Ability, EngineUnderTest
from tests.conformance.rows import NUMBERS, TYPES, numbers

from sparkport.catalog import ROW_ID, Expression, ScanRequest, data_schema, find_row_id_column
from sparkport.filters.expressions import Unsupported as Untranslatable
from sparkport.filters.predicates import col

pytestmark = pytest.mark.tier("fast")

needs = pytest.mark.needs

FILTERS: dict[str, tuple[Expression, str]] = {
    "equal": ((col("id") == 4321).expr, "id = 4321"),
    "range": ((col("id") >= 4990).expr, "id >= 4990"),
    "between": (col("id").between(998, 1003).expr, "id BETWEEN 998 AND 1003"),
    "is_null": (col("name").is_null().expr, "name IS NULL"),
    "is_not_null": (col("price").is_not_null().expr, "price IS NOT NULL"),
    "in": (col("id").isin([3, 4000, 99999]).expr, "id IN (3, 4000, 99999)"),
    "like": (col("name").like("n0499%").expr, "name LIKE 'n0499%'"),
    "or": (((col("id") < 2) | (col("price") > 1249.0)).expr, "id < 2 OR price > 1249.0"),
    "not": ((~(col("id") > 1)).expr, "NOT id > 1"),
    "nothing": ((col("id") < 0).expr, "id < 0"),
}


def matching(rows: pa.Table, sql: str) -> list[int]:
    with duckdb.connect() as database:
        database.register("t", rows)
        return [row[0] for row in database.execute(f"SELECT id FROM t WHERE {sql} ORDER BY id").fetchall()]


@pytest.mark.tier("fast")
def test_a_scan_gives_all_rows_in_the_order_of_insertion(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS})
    rows = ground.read(ScanRequest(columns=tuple(NUMBERS.column_names)))
    assert rows.to_pydict() == NUMBERS.to_pydict()


@pytest.mark.tier("fast")
def test_every_type_comes_through_untouched(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": TYPES})
    assert data_schema(ground.table().schema).types == TYPES.schema.types
    assert ground.read(ScanRequest(columns=tuple(TYPES.column_names))).to_pydict() == TYPES.to_pydict()


def test_a_scan_of_an_empty_table_gives_no_rows(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS.slice(0, 0)})
    assert ground.read().num_rows == 0


def test_a_projection_gives_the_asked_columns(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS})
    rows = ground.read(ScanRequest(columns=("price", "id")))
    assert sorted(rows.column_names) == ["id", "price"]
    assert rows.column("price").to_pylist() == NUMBERS.column("price").to_pylist()


def test_a_scan_of_no_columns_still_counts(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS})
    assert ground.count(ScanRequest(columns=())) == NUMBERS.num_rows


@pytest.mark.tier("fast")
@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_loses_no_row_and_invents_none(engine: EngineUnderTest, name: str) -> None:
    condition, sql = FILTERS[name]
    ground = engine.make({"t": NUMBERS})
    given = ground.read(ScanRequest(columns=tuple(NUMBERS.column_names), filter=condition))
    assert matching(given, sql) == matching(NUMBERS, sql)
    ids = given.column("id").to_pylist()
    assert ids == sorted(set(ids))
    assert set(ids) <= set(range(NUMBERS.num_rows))


def test_a_filter_on_a_column_that_was_not_asked_for_works(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS})
    rows = ground.read(ScanRequest(columns=("name",), filter=(col("id") == 4321).expr))
    assert "n04321" in rows.column("name").to_pylist()


def test_a_filter_with_no_columns_asked_for_counts_enough(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS})
    assert ground.count(ScanRequest(columns=(), filter=(col("id") >= 10).expr)) >= NUMBERS.num_rows - 10


def test_a_filter_that_nobody_can_translate_gives_all_rows(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS})
    assert ground.count(ScanRequest(filter=Untranslatable("a function from elsewhere"))) == NUMBERS.num_rows


def test_names_are_found_whatever_their_case(engine: EngineUnderTest) -> None:
    ground = engine.make({"Mixed": NUMBERS})
    assert ground.table("mIXED").name == "Mixed"


def test_readers_on_several_threads_each_get_everything(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS})
    request = ScanRequest(columns=("id",))
    with ThreadPoolExecutor(8) as pool:
        reads = list(pool.map(lambda _: ground.read(request), range(16)))
    assert all(rows.column("id").to_pylist() == list(range(NUMBERS.num_rows)) for rows in reads)


def test_the_row_count_when_known_is_right(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS})
    assert ground.table().row_count(ground.ctx) in (None, NUMBERS.num_rows)


# Row ids


@needs(Ability.ROW_IDS)
def test_row_ids_are_unique_and_never_null(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS})
    assert find_row_id_column(ground.table().schema) is not None
    ids = ground.read(ScanRequest(columns=(ROW_ID,))).column(ROW_ID)
    assert ids.null_count == 0
    assert len(pc.unique(ids)) == NUMBERS.num_rows


@needs(Ability.ROW_IDS)
def test_a_row_keeps_its_id_whatever_else_is_asked_for(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS})
    everything = ground.read(ScanRequest(columns=("id", ROW_ID)))
    known = dict(zip(everything["id"].to_pylist(), everything[ROW_ID].to_pylist(), strict=True))
    some = ground.read(ScanRequest(columns=("id", "name", ROW_ID), filter=(col("id") > 4000).expr))
    assert some.num_rows > 0
    assert all(known[row["id"]] == row[ROW_ID] for row in some.to_pylist())


@needs(Ability.ROW_IDS, Ability.INSERT)
def test_rows_keep_their_ids_when_others_are_inserted(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": NUMBERS})
    before = ground.read(ScanRequest(columns=("id", ROW_ID))).to_pylist()
    ground.insert(numbers(5000, 5100))
    after = ground.read(ScanRequest(columns=("id", ROW_ID))).to_pylist()
    assert after[: len(before)] == before
    assert len({row[ROW_ID] for row in after}) == 5100


@needs(Ability.INSERT)
def test_inserted_rows_come_after_those_that_were_there(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 10)})
    assert ground.insert(numbers(20, 25)) == 5
    assert ground.insert(numbers(10, 12)) == 2
    assert ground.read(ScanRequest(columns=("id",)))["id"].to_pylist() == [*range(10), *range(20, 25), 10, 11]


@needs(Ability.INSERT, Ability.PLANNED_MOMENT)
def test_a_planned_scan_reads_what_it_was_planned_for(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 10)})
    table = ground.table()
    parts = table.plan(ground.ctx, ScanRequest(columns=("id",)))
    ground.insert(numbers(10, 20))
    found = [row["id"] for part in parts for batch in table.scan(ground.ctx, part) for row in batch.to_pylist()]
    assert found == list(range(10))


@needs(Ability.INSERT)
def test_readers_see_each_insert_whole_or_not_at_all(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 100)})

    def write(start: int) -> int:
        return ground.insert(numbers(start, start + 100))

    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(write, start) for start in range(100, 1100, 100)]
        reads = [pool.submit(ground.count, ScanRequest(columns=("id",))) for _ in range(20)]
        assert [done.result() for done in writes] == [100] * 10
        assert all(done.result() % 100 == 0 for done in reads)
    assert ground.count(ScanRequest()) == 1100
