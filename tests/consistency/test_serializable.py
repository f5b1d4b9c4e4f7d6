"""What counts as a read under ``serializable``, and that statements which commit themselves keep to it as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pytest
from tests.consistency.client import CallFailed, ContractClient, rows_of
from tests.consistency.engines import ENGINES, EngineUnderTest, can_defer
from tests.support.tiers import on_engines

from sparkport.errors import Code

pytestmark = pytest.mark.tier("fast")

_TWO = pa.table({"key": pa.array([0, 1], pa.int64()), "value": pa.array([0, 0], pa.int64())})


@pytest.fixture(scope="module", params=on_engines(sorted(ENGINES)))
def engine(request: pytest.FixtureRequest) -> Iterator[EngineUnderTest]:
    with ENGINES[request.param]() as engine:
        yield engine


@dataclass
class Setting:
    """Two tables, each with the rows 0 and 1 under these row ids."""

    client: ContractClient
    read: str
    written: str

    def begin(self, *, auto_commit: bool = False) -> str:
        return self.client.begin(auto_commit=auto_commit, isolation="serializable")

    def write(self, transaction: str | None, table: str, row_id: int = 0) -> int:
        return self.client.exchange("update", table, rows_of(value=[1], rowid=[row_id]), transaction)

    def values(self, table: str) -> dict[int, int]:
        return {row["rowid"]: row["value"] for row in self.client.read(table).to_pylist()}


@pytest.fixture
def setting(engine: EngineUnderTest) -> Iterator[Setting]:
    if not can_defer(engine):
        pytest.skip("this engine commits each statement by itself")
    client = ContractClient(engine.location)
    yield Setting(client, engine.new_table("read", _TWO), engine.new_table("written", _TWO))
    client.close()


@contextmanager
def aborted() -> Iterator[None]:
    with pytest.raises(CallFailed) as failure:
        yield
    assert failure.value.code is Code.ABORTED


def test_who_has_only_written_can(setting: Setting) -> None:
    mine = setting.begin()
    setting.write(mine, setting.written, 0)
    setting.write(None, setting.written, 1)
    setting.client.commit(mine)
    assert setting.values(setting.written) == {0: 1, 1: 1}


def test_a_version_is_the_same_for_ever_so_to_have_read_one_is_no_reason(setting: Setting) -> None:
    mine = setting.begin()
    setting.client.read(setting.read, mine, version=1)
    setting.write(mine, setting.written)
    setting.write(None, setting.read)
    setting.client.commit(mine)
    assert setting.values(setting.written) == {0: 1, 1: 0}


def test_a_statement_that_commits_itself_is_refused_as_well(setting: Setting) -> None:
    mine = setting.begin(auto_commit=True)
    setting.client.read(setting.read, mine)
    setting.write(None, setting.read)
    with aborted():
        setting.write(mine, setting.written)
    assert setting.client.status(mine) == "aborted"
    assert setting.values(setting.written) == {0: 0, 1: 0}


def test_after_its_own_commit_a_table_is_read_as_it_is_then(setting: Setting) -> None:
    mine = setting.begin(auto_commit=True)
    setting.client.read(setting.written, mine)
    assert setting.write(mine, setting.written, 0) == 1
    assert setting.write(mine, setting.written, 1) == 1
    assert setting.values(setting.written) == {0: 1, 1: 1}


def test_a_delete_that_commits_itself_counts_the_rows_that_were_left_to_delete(setting: Setting) -> None:
    mine = setting.begin(auto_commit=True)
    setting.client.delete(setting.written, [0])
    assert setting.client.exchange("delete", setting.written, rows_of(rowid=[0, 1]), mine) == 1
    assert setting.values(setting.written) == {}


def test_a_delete_that_commits_itself_and_owes_rows_is_aborted_when_one_is_gone(setting: Setting) -> None:
    mine = setting.begin(auto_commit=True)
    setting.client.delete(setting.written, [0])
    with aborted():
        setting.client.exchange("delete", setting.written, rows_of(rowid=[0, 1]), mine, returning=True)
    assert setting.values(setting.written) == {1: 0}
