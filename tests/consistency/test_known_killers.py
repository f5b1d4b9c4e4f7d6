"""Histories that have broken other systems, each by its name: deferred transactions against one another and compaction.

All goes through the public client. Afterwards plain Spark must see the same rows, where there is one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pytest
from tests.consistency.engines import ENGINES, PATIENCE_SECONDS, EngineUnderTest, can_defer
from tests.support.tiers import on_engines

from sparkport.client import Client, Transaction
from sparkport.errors import Conflict

pytestmark = pytest.mark.tier("fast")

_TEN = dict.fromkeys(range(10), 0)

on_the_lakehouse = pytest.mark.parametrize("engine", on_engines(["lakehouse", "journal"]), indirect=True)


@pytest.fixture(scope="module", params=on_engines(sorted(ENGINES)))
def engine(request: pytest.FixtureRequest) -> Iterator[EngineUnderTest]:
    with ENGINES[request.param]() as engine:
        yield engine


@dataclass
class Setting:
    """One table with the keys 0 to 9, whose values are 0."""

    engine: EngineUnderTest
    client: Client
    table: str

    def begin(self, isolation: str = "snapshot") -> Mine:
        return Mine(self, self.client.transaction(isolation=isolation))

    @contextmanager
    def others(self) -> Iterator[Mine]:
        """A transaction of somebody else, which commits."""
        with self.client.transaction() as transaction:
            yield Mine(self, transaction)

    def compact(self) -> None:
        assert self.engine.compact is not None
        assert self.engine.compact(self.table) > 1, "there was nothing to compact"

    def split(self, first: int = 100) -> None:
        """Three rows more, in a file of their own, so that there is something to compact."""
        with self.others() as other:
            other.insert(dict.fromkeys(range(first, first + 3), 0))
        self.engine.flush()

    def rows(self) -> dict[int, int]:
        """What everybody sees, plain Spark too."""
        self.engine.flush()
        found = self.client.scan(f"public.{self.table}", row_id=True).read_all().to_pylist()
        if self.engine.plain_spark is not None:
            assert _sorted(self.engine.plain_spark.rows(self.table, "key, value, _row_id AS rowid")) == _sorted(found)
        assert len({row["rowid"] for row in found}) == len(found), "a row id is there twice"
        return _by_key(found)

    def ids(self) -> dict[int, int]:
        found = self.client.scan(f"public.{self.table}", row_id=True).read_all().to_pylist()
        return {row["key"]: row["rowid"] for row in found}


@dataclass
class Mine:
    """A transaction that speaks in keys."""

    setting: Setting
    transaction: Transaction

    @property
    def name(self) -> str:
        return f"public.{self.setting.table}"

    def found(self) -> dict[int, tuple[int, int]]:
        rows = self.transaction.scan(self.name, row_id=True).read_all().to_pylist()
        by_key = {row["key"]: (row["rowid"], row["value"]) for row in rows}
        assert len(by_key) == len(rows), f"a row is there twice: {rows}"
        return by_key

    def values(self) -> dict[int, int]:
        return {key: value for key, (_, value) in self.found().items()}

    def insert(self, rows: dict[int, int]) -> None:
        columns = {"key": list(rows), "value": list(rows.values())}
        assert self.transaction.insert(self.name, pa.table(columns)).count == len(rows)

    def update(self, rows: dict[int, int]) -> None:
        found = self.found()
        batch = pa.table({"value": list(rows.values()), "rowid": [found[key][0] for key in rows]})
        assert self.transaction.update(self.name, batch).count == len(rows)

    def delete(self, *keys: int) -> int:
        found = self.found()
        return self.transaction.delete(self.name, [found[key][0] if key in found else -key for key in keys]).count

    def commit(self) -> None:
        self.transaction.commit()

    def commits(self) -> bool:
        try:
            self.transaction.commit()
        except Conflict:
            return False
        return True


@pytest.fixture
def setting(engine: EngineUnderTest) -> Iterator[Setting]:
    if not can_defer(engine):
        pytest.skip("this engine commits each statement by itself")
    rows = pa.table({"key": pa.array(_TEN, pa.int64()), "value": pa.array(_TEN.values(), pa.int64())})
    with engine.connect() as client:
        yield Setting(engine, client, engine.new_table("killer", rows))


def at_once(*works: Callable[[], bool]) -> list[bool]:
    """What came of each, all begun at the same moment."""
    start = threading.Barrier(len(works), timeout=PATIENCE_SECONDS)

    def run(work: Callable[[], bool]) -> bool:
        start.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(run, work) for work in works]]


# Compaction against delete


@on_the_lakehouse
def test_a_delete_from_before_a_compaction_deletes_the_row_where_it_is_now(setting: Setting) -> None:
    setting.split()
    mine = setting.begin()
    assert mine.delete(1, 101) == 2
    setting.compact()
    mine.commit()
    assert setting.rows() == {key: 0 for key in [*range(10), 100, 102] if key != 1}


@on_the_lakehouse
def test_a_compaction_does_not_bring_back_what_others_have_deleted(setting: Setting) -> None:
    setting.split()
    mine = setting.begin()
    mine.update({2: 7})
    with setting.others() as other:
        other.delete(1, 100)
    setting.compact()
    mine.commit()
    setting.split(200)
    setting.compact()
    assert setting.rows() == {**{key: 0 for key in range(10) if key != 1}, 2: 7, 101: 0, 102: 0, 200: 0, 201: 0, 202: 0}


@on_the_lakehouse
def test_a_compaction_alone_is_no_conflict_and_keeps_row_ids(setting: Setting) -> None:
    setting.split()
    before = setting.ids()
    mine = setting.begin(isolation="serializable")
    mine.update({1: 7, 101: 8})
    setting.compact()
    assert mine.values()[1] == 7
    mine.commit()
    assert setting.ids() == before
    assert setting.rows() == {**_TEN, 1: 7, 100: 0, 101: 8, 102: 0}


@on_the_lakehouse
@pytest.mark.parametrize("first", ["update", "delete"])
def test_a_compaction_does_not_hide_a_conflict(setting: Setting, first: str) -> None:
    setting.split()
    mine = setting.begin()
    mine.update({1: 7})
    with setting.others() as other:
        if first == "update":
            other.update({1: 8})
        else:
            other.delete(1)
    setting.compact()
    with pytest.raises(Conflict, match="1 row"):
        mine.commit()
    assert setting.rows().get(1) == (8 if first == "update" else None)


@on_the_lakehouse
def test_a_compaction_at_the_same_time_as_deletes_loses_and_resurrects_nothing(setting: Setting) -> None:
    setting.split()
    deletes = [setting.begin() for _ in range(3)]
    for key, mine in enumerate(deletes):
        assert mine.delete(key) == 1

    def compacts() -> bool:
        setting.compact()
        return True

    assert at_once(compacts, *(mine.commits for mine in deletes)) == [True] * 4
    assert setting.rows() == dict.fromkeys([*range(3, 10), 100, 101, 102], 0)


# A delete of no rows, then an insert, by two at once


@pytest.mark.parametrize(("isolation", "winners"), [("snapshot", 2), ("serializable", 1)])
def test_two_that_delete_nothing_and_insert_the_same_key(setting: Setting, isolation: str, winners: int) -> None:
    """Inserts never conflict; that both found nothing there is write skew, which serializable does not allow."""
    both = [setting.begin(isolation), setting.begin(isolation)]
    for value, mine in enumerate(both, start=1):
        assert mine.delete(77) == 0
        mine.insert({77: value})
    done = at_once(*(mine.commits for mine in both))
    assert done.count(True) == winners
    found = setting.client.scan(f"public.{setting.table}").read_all().to_pylist()
    values = sorted(row["value"] for row in found if row["key"] == 77)
    assert values == [value for value, won in enumerate(done, start=1) if won]
    assert len(found) == 10 + winners


# Update against delete of one row


@pytest.mark.parametrize("first", ["update", "delete"])
def test_of_an_update_and_a_delete_of_one_row_the_first_to_commit_wins(setting: Setting, first: str) -> None:
    update, delete = setting.begin(), setting.begin()
    update.update({1: 7, 2: 7})
    assert delete.delete(1, 3) == 2
    winner, loser = (update, delete) if first == "update" else (delete, update)
    winner.commit()
    with pytest.raises(Conflict, match="1 row"):
        loser.commit()
    changed = {**_TEN, 1: 7, 2: 7} if first == "update" else {key: 0 for key in _TEN if key not in (1, 3)}
    assert setting.rows() == changed


def test_of_an_update_and_a_delete_of_one_row_at_once_exactly_one_wins(setting: Setting) -> None:
    update, delete = setting.begin(), setting.begin()
    update.update({1: 7, 2: 7})
    assert delete.delete(1, 3) == 2
    updated, deleted = at_once(update.commits, delete.commits)
    assert updated != deleted
    assert setting.rows() == ({**_TEN, 1: 7, 2: 7} if updated else {key: 0 for key in _TEN if key not in (1, 3)})


def test_two_that_delete_one_row_at_once_both_commit(setting: Setting) -> None:
    both = [setting.begin(), setting.begin()]
    for other, mine in enumerate(both, start=5):
        assert mine.delete(1, other) == 2
    assert at_once(*(mine.commits for mine in both)) == [True, True]
    assert setting.rows() == {key: 0 for key in _TEN if key not in (1, 5, 6)}


# Insert, update and delete of a new row, while main moves


def test_a_new_row_is_updated_and_another_deleted_while_others_commit(setting: Setting) -> None:
    mine = setting.begin()
    mine.insert({50: 1, 51: 1, 52: 1})
    with setting.others() as other:
        other.insert({60: 1, 61: 1})
    mine.update({50: 2})
    assert mine.delete(51) == 1
    with setting.others() as other:
        other.update({2: 5})
        other.delete(3)
    mine.update({50: 3, 1: 9})
    assert mine.values() == {**_TEN, 50: 3, 52: 1, 1: 9}
    mine.commit()
    expected = {**{key: 0 for key in _TEN if key != 3}, 1: 9, 2: 5, 50: 3, 52: 1, 60: 1, 61: 1}
    assert setting.rows() == expected
    with setting.others() as other:
        other.update({50: 4, 60: 4})
        assert other.delete(52, 61) == 2
    assert setting.rows() == {
        key: {50: 4, 60: 4}.get(key, value) for key, value in expected.items() if key not in (52, 61)
    }


@on_the_lakehouse
def test_a_new_row_is_updated_and_another_deleted_while_plain_spark_and_compaction_commit(setting: Setting) -> None:
    spark = setting.engine.plain_spark
    assert spark is not None
    mine = setting.begin()
    mine.insert({50: 1, 51: 1, 52: 1})
    spark.run("INSERT INTO {t} VALUES (60, 1), (61, 1)", setting.table)
    mine.update({50: 2})
    spark.run("UPDATE {t} SET value = 5 WHERE key = 2", setting.table)
    assert mine.delete(51) == 1
    setting.compact()
    mine.update({50: 3, 1: 9})
    mine.commit()
    assert setting.rows() == {**_TEN, 1: 9, 2: 5, 50: 3, 52: 1, 60: 1, 61: 1}


@on_the_lakehouse
def test_a_row_that_plain_spark_has_changed_is_a_conflict(setting: Setting) -> None:
    spark = setting.engine.plain_spark
    assert spark is not None
    mine = setting.begin()
    mine.update({1: 7})
    spark.run("UPDATE {t} SET value = 5 WHERE key = 1", setting.table)
    with pytest.raises(Conflict, match="1 row"):
        mine.commit()
    assert setting.rows() == {**_TEN, 1: 5}


def test_rows_that_come_and_go_in_one_transaction_leave_nothing(setting: Setting) -> None:
    mine = setting.begin()
    mine.insert({50: 1})
    with setting.others() as other:
        other.insert({60: 1})
    mine.update({50: 2})
    assert mine.delete(50) == 1
    assert mine.values() == _TEN
    mine.commit()
    assert setting.rows() == {**_TEN, 60: 1}


def _by_key(rows: list[dict[str, int]]) -> dict[int, int]:
    by_key = {row["key"]: row["value"] for row in rows}
    assert len(by_key) == len(rows), f"a row is there twice: {rows}"
    return by_key


def _sorted(rows: list[dict[str, int]]) -> list[tuple[int, int, int]]:
    return sorted((row["key"], row["value"], row["rowid"]) for row in rows)
