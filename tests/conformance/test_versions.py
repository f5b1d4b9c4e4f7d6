"""Time travel: 0 is the table as it was created, and every commit counts one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from tests.conformance.engines import Ability, EngineUnderTest, Ground
from tests.conformance.rows import numbers

from sparkport.catalog import ROW_ID, AsOf, AsOfUnit, ScanRequest, Table, VersionedTable, data_schema
from sparkport.errors import InvalidArgument, VersionNotFound

needs = pytest.mark.needs

pytestmark = [pytest.mark.tier("fast"), needs(Ability.VERSIONS, Ability.INSERT)]


def version(number: int | str) -> AsOf:
    return AsOf(AsOfUnit.VERSION, str(number))


def time(moment: datetime) -> AsOf:
    return AsOf(AsOfUnit.TIMESTAMP, moment.isoformat(sep=" "))


def ids(ground: Ground, at: AsOf | None) -> list[int]:
    found: list[int] = ground.read(ScanRequest(columns=("id",), at=at))["id"].to_pylist()
    return found


def grown(engine: EngineUnderTest) -> Ground:
    """Version 0 is empty, 1 has ten rows, 2 twenty, 3 thirty."""
    ground = engine.make({"t": numbers(0, 10)})
    ground.insert(numbers(10, 20))
    ground.insert(numbers(20, 30))
    return ground


def refused(table: Table, ground: Ground, at: AsOf) -> None:
    assert isinstance(table, VersionedTable)
    table.schema_at(ground.ctx, at)


@pytest.mark.tier("fast")
@pytest.mark.needs(Ability.COMMIT_VERSIONS)
def test_version_0_is_the_table_as_created_and_each_commit_counts_one(engine: EngineUnderTest) -> None:
    ground = grown(engine)
    assert [len(ids(ground, version(number))) for number in range(4)] == [0, 10, 20, 30]


@pytest.mark.needs(Ability.COMMIT_VERSIONS)
def test_an_old_version_stays_as_it_was_while_the_table_grows(engine: EngineUnderTest) -> None:
    ground = grown(engine)
    before = ids(ground, version(2))
    ground.insert(numbers(30, 40))
    assert ids(ground, version(2)) == before == list(range(20))


@pytest.mark.tier("fast")
def test_a_row_has_the_same_id_in_every_version(engine: EngineUnderTest) -> None:
    ground = grown(engine)
    columns = ("id", ROW_ID)
    old = ground.read(ScanRequest(columns=columns, at=version(1))).to_pylist()
    new = ground.read(ScanRequest(columns=columns)).to_pylist()
    assert old == new[:10]


@pytest.mark.tier("fast")
@pytest.mark.needs(Ability.COMMIT_VERSIONS)
def test_a_timestamp_means_the_last_commit_not_after_it(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 10)})
    first = ground.moment()
    ground.insert(numbers(10, 20))
    second = ground.moment()
    assert len(ids(ground, time(first))) == 10
    assert len(ids(ground, time(second))) == 20
    assert len(ids(ground, time(second + timedelta(days=365)))) == 20


def test_a_timestamp_without_a_zone_is_utc(engine: EngineUnderTest) -> None:
    ground = engine.make({"t": numbers(0, 10)})
    first = ground.moment()
    ground.insert(numbers(10, 20))
    assert len(ids(ground, time(first.replace(tzinfo=None)))) == 10


def test_the_schema_of_a_version_is_told(engine: EngineUnderTest) -> None:
    ground = grown(engine)
    schema = ground.versioned().schema_at(ground.ctx, version(1))
    assert data_schema(schema).names == ["id", "name", "price"]


@pytest.mark.parametrize("number", [4, 999_999, -1])
def test_a_version_that_is_not_there_is_not_found_and_the_oldest_is_named(engine: EngineUnderTest, number: int) -> None:
    ground = grown(engine)
    with pytest.raises(VersionNotFound, match="oldest is 0"):
        refused(ground.table(), ground, version(number))
    with pytest.raises(VersionNotFound, match="oldest is 0"):
        ids(ground, version(number))


def test_a_time_before_the_table_was_made_is_not_found_and_the_oldest_is_named(engine: EngineUnderTest) -> None:
    ground = grown(engine)
    with pytest.raises(VersionNotFound, match="oldest"):
        refused(ground.table(), ground, time(datetime(1990, 1, 1)))


@pytest.mark.parametrize("at", [version("soon"), AsOf(AsOfUnit.TIMESTAMP, "yesterday-ish")], ids=["version", "time"])
def test_nonsense_is_an_invalid_argument(engine: EngineUnderTest, at: AsOf) -> None:
    ground = grown(engine)
    with pytest.raises(InvalidArgument):
        refused(ground.table(), ground, at)


@pytest.mark.needs(Ability.COMMIT_VERSIONS)
def test_versions_are_read_on_several_threads_while_rows_arrive(engine: EngineUnderTest) -> None:
    ground = grown(engine)
    with ThreadPoolExecutor(6) as pool:
        writes = [pool.submit(ground.insert, numbers(start, start + 10)) for start in range(30, 80, 10)]
        reads = [pool.submit(ids, ground, version(2)) for _ in range(12)]
        assert all(done.result() == list(range(20)) for done in reads)
        assert [done.result() for done in writes] == [10] * 5
    assert len(ids(ground, None)) == 80  # inserts that arrive together may share a version
