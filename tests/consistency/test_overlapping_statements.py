"""Statements that are open at the same time, which the state machine, one operation after another, cannot have."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.consistency.client import rows_of
from tests.consistency.engines import ENGINES, EngineUnderTest
from tests.support.tiers import on_engines

from sparkport.catalog.context import CallContext
from sparkport.catalog.scan import AsOf, AsOfUnit, ScanRequest, as_scan
from sparkport.catalog.statement import Change, ChangeableTable, MissingRows, Statement, StatementRequest
from sparkport.errors import Conflict, RowNotFound, TransactionNotActive, VersionNotFound

pytestmark = pytest.mark.tier("fast")

COLUMNS = pa.schema([("value", pa.int64()), ("other", pa.int64())])


class Setting:
    """One table with the rows 0, 1 and 2, whose values are 0."""

    def __init__(self, engine: EngineUnderTest) -> None:
        rows = pa.table({"value": [0, 0, 0], "other": [0, 0, 0]}, schema=COLUMNS)
        assert engine.catalog is not None
        self.flush = engine.flush
        self.catalog = engine.catalog
        self.name = engine.new_table("overlapping", rows)
        assert self.catalog.transactions is not None
        self.manager = self.catalog.transactions

    def table(self, ctx: CallContext) -> ChangeableTable:
        schema = self.catalog.schema(ctx, "public")
        assert schema is not None
        table = schema.table(ctx, self.name)
        assert isinstance(table, ChangeableTable)
        return table

    def open(self, transaction: str | None, request: StatementRequest) -> Statement:
        ctx = CallContext(transaction_id=transaction)
        return self.table(ctx).open_statement(ctx, request)

    def begin(self, *, auto_commit: bool) -> str:
        return self.manager.begin(CallContext(), auto_commit=auto_commit)

    def update(
        self,
        transaction: str | None,
        values: dict[int, int],
        *,
        column: str = "value",
        missing: MissingRows = MissingRows.SKIP,
    ) -> Statement:
        """A statement that has taken its rows and has not ended."""
        rows = rows_of(**{column: list(values.values())})
        request = StatementRequest(change=Change.UPDATE, columns=rows.schema, missing=missing)
        statement = self.open(transaction, request)
        statement.push(rows, pa.array(list(values), pa.int64()))
        return statement

    def delete(self, transaction: str | None, *row_ids: int) -> Statement:
        request = StatementRequest(change=Change.DELETE, columns=pa.schema([]))
        statement = self.open(transaction, request)
        statement.push(None, pa.array(row_ids, pa.int64()))
        return statement

    def insert(self, transaction: str | None, value: int) -> int:
        """The new row's id."""
        request = StatementRequest(change=Change.INSERT, columns=COLUMNS, returning=True)
        statement = self.open(transaction, request)
        back = statement.push(rows_of(value=[value], other=[0]), None)
        statement.finish()
        assert back is not None
        return int(back.column("rowid")[0].as_py())

    def values(self, column: str = "value", *, version: int | None = None) -> dict[int, int]:
        at = None if version is None else AsOf(AsOfUnit.VERSION, str(version))
        ctx = CallContext()
        table = self.table(ctx)
        parts = table.plan(ctx, ScanRequest(at=at))
        rows = [row for part in parts for batch in as_scan(table.scan(ctx, part)) for row in batch.to_pylist()]
        return {row["rowid"]: row[column] for row in rows}


@pytest.fixture(scope="module", params=on_engines(sorted(ENGINES)))
def engine(request: pytest.FixtureRequest) -> Iterator[EngineUnderTest]:
    with ENGINES[request.param]() as engine:
        yield engine


@pytest.fixture
def setting(engine: EngineUnderTest) -> Iterator[Setting]:
    setting = Setting(engine)
    yield setting
    for transaction in setting.manager.open_transactions():
        setting.manager.rollback(transaction.id)


def test_a_commit_of_the_same_transaction_does_not_hide_a_conflict_from_an_open_statement(setting: Setting) -> None:
    mine = setting.begin(auto_commit=True)
    slow = setting.update(mine, {0: 1})
    setting.update(None, {0: 5}).finish()
    setting.update(mine, {1: 1}).finish()  # moves the table to a state that has the other's change
    with pytest.raises(Conflict):
        slow.finish()
    assert setting.values() == {0: 5, 1: 1, 2: 0}


def test_two_open_statements_of_one_auto_commit_transaction_do_not_overwrite_each_other(setting: Setting) -> None:
    mine = setting.begin(auto_commit=True)
    first, second = setting.update(mine, {0: 1}), setting.update(mine, {0: 2})
    first.finish()
    with pytest.raises(Conflict):
        second.finish()
    assert setting.values()[0] == 1


def test_two_open_statements_of_one_deferred_transaction_do_not_overwrite_each_other(setting: Setting) -> None:
    mine = setting.begin(auto_commit=False)
    first, second = setting.update(mine, {0: 1}), setting.update(mine, {0: 2}, column="other")
    first.finish()
    with pytest.raises(Conflict, match="another statement of this transaction"):
        second.finish()


def test_an_open_update_does_not_bring_back_a_row_that_its_transaction_has_deleted(setting: Setting) -> None:
    mine = setting.begin(auto_commit=False)
    update = setting.update(mine, {0: 1})
    setting.delete(mine, 0).finish()
    with pytest.raises(Conflict):
        update.finish()
    setting.manager.commit(mine)
    assert setting.values() == {1: 0, 2: 0}


def test_open_statements_of_one_transaction_on_different_rows_all_count(setting: Setting) -> None:
    mine = setting.begin(auto_commit=False)
    statements = [setting.update(mine, {0: 1}), setting.update(mine, {1: 2}), setting.delete(mine, 2)]
    assert [statement.finish() for statement in statements] == [1, 1, 1]
    setting.manager.commit(mine)
    assert setting.values() == {0: 1, 1: 2}


def test_without_a_transaction_the_last_to_end_wins_and_keeps_the_columns_it_did_not_set(setting: Setting) -> None:
    first, second = setting.update(None, {0: 1}), setting.update(None, {0: 2}, column="other")
    second.finish()
    first.finish()
    assert (setting.values()[0], setting.values("other")[0]) == (1, 2)


def test_without_a_transaction_a_row_that_is_gone_by_the_end_is_skipped(setting: Setting) -> None:
    update = setting.update(None, {0: 1, 1: 1})
    setting.delete(None, 0).finish()
    assert update.finish() == 1
    assert setting.values() == {1: 1, 2: 0}


def test_without_a_transaction_a_row_that_is_gone_by_the_end_can_be_refused(setting: Setting) -> None:
    update = setting.update(None, {0: 1, 1: 1}, missing=MissingRows.REFUSE)
    setting.delete(None, 0).finish()
    with pytest.raises(RowNotFound):
        update.finish()
    assert setting.values() == {1: 0, 2: 0}


@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_statement_that_is_open_when_its_transaction_ends_changes_nothing(
    setting: Setting, auto_commit: bool
) -> None:
    mine = setting.begin(auto_commit=auto_commit)
    update = setting.update(mine, {0: 1})
    setting.manager.commit(mine)
    with pytest.raises(TransactionNotActive):
        update.finish()
    assert setting.values() == {0: 0, 1: 0, 2: 0}


def test_a_deferred_transaction_without_net_change_is_no_version(setting: Setting) -> None:
    mine = setting.begin(auto_commit=False)
    setting.delete(mine, setting.insert(mine, 7), 2).finish()
    setting.delete(None, 2).finish()
    setting.manager.commit(mine)
    setting.flush()
    assert setting.values(version=2) == {0: 0, 1: 0}
    with pytest.raises(VersionNotFound):
        setting.values(version=3)


def test_the_listing_counts_a_transactions_net_change(setting: Setting) -> None:
    mine = setting.begin(auto_commit=False)
    kept, dropped = setting.insert(mine, 7), setting.insert(mine, 8)
    setting.update(mine, {kept: 9, 0: 9}).finish()
    setting.delete(mine, dropped, 1).finish()
    (listed,) = setting.manager.open_transactions()
    assert listed.changed_rows == 3
