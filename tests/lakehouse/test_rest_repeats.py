"""Statements and transactions on a REST catalog whose answers are lost, late or doubled, and what their repeats do.

Two servers that know nothing of each other have the catalog in common. Between the one and the catalog stands what can
happen to a commit on its way.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from tests.lakehouse.handles import NOBODY, Handle, create, main_of
from tests.lakehouse.rest_between import Between, between
from tests.lakehouse.transacting import THREE, Tx, at_point, by_key, names, people
from tests.support.lakehouse import Lake
from tests.support.spark import shared_spark

from sparkport.catalog.statement import Change, StatementRequest
from sparkport.catalog.transaction import TransactionState
from sparkport.errors import AlreadyExists, Unavailable
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings

pytest_plugins = ["tests.support.services"]
pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]  # the first start of all downloads jars

COMMITTED, ABORTED = TransactionState.COMMITTED, TransactionState.ABORTED
OLD: dict[int, str | None] = {0: "n0", 1: "n1", 2: "n2"}


class Site:
    """The one server, the other, and what is between the first and the catalog."""

    def __init__(self, near: Lake, other: Lake, net: Between) -> None:
        self.near, self.other, self.net = near, other, net


@pytest.fixture(scope="module")
def site(rest_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("rest")
    with ExitStack() as stack:
        net, uri = stack.enter_context(between(rest_uri))
        lakes = [stack.enter_context(_opened(folder / name, at)) for name, at in (("near", uri), ("other", rest_uri))]
        yield Site(Lake(lakes[0]), Lake(lakes[1]), net)


def _opened(folder: Path, uri: str) -> Lakehouse:
    settings = LakehouseSettings(warehouse=str(folder), catalog_uri=uri, sessions=2)
    return Lakehouse(settings, spark=shared_spark())


@pytest.fixture
def table(site: Site) -> Handle:
    site.net.plan = []
    return create(site.near, f"t_{uuid.uuid4().hex[:8]}", THREE)


Ids = Mapping[int, int]


def _insert(table: Handle, ids: Ids, key: str) -> int:
    return _run(table, Change.INSERT, people((10, "new")), [], key)


def _update(table: Handle, ids: Ids, key: str) -> int:
    return _run(table, Change.UPDATE, names("changed"), [ids[0]], key)


def _delete(table: Handle, ids: Ids, key: str) -> int:
    return _run(table, Change.DELETE, None, [ids[1]], key)


def _run(table: Handle, change: Change, rows: pa.Table | None, ids: list[int], key: str) -> int:
    schema = pa.schema([]) if rows is None else rows.schema
    statement = table.table().open_statement(NOBODY, StatementRequest(change=change, columns=schema, statement=key))
    try:
        batch = None if rows is None else rows.to_batches()[0]
        statement.push(batch, pa.array(ids, pa.int64()) if ids else None)
        return statement.finish()
    finally:
        statement.abort()


CHANGES: dict[str, tuple[Callable[[Handle, Ids, str], int], dict[int, str | None]]] = {
    "insert": (_insert, {**OLD, 10: "new"}),
    "update": (_update, {**OLD, 0: "changed"}),
    "delete": (_delete, {0: "n0", 2: "n2"}),
}


def rows_of(table: Handle) -> dict[int, str | None]:
    rows = table.agreed(pyiceberg=False)
    assert len(by_key(rows)) == len(rows)  # a row that is there twice would be hidden
    return by_key(rows)


def known(lake: Lake, table: Handle, key: str) -> int | None:
    return lake.opened.catalog.committed_statement(key, schema="public", table=table.name)


def repeat(run: Callable[[], int], lake: Lake, table: Handle, key: str) -> int | None:
    """As a client that got no answer does it: its handler asks first."""
    count = known(lake, table, key)
    return run() if count is None else count


# Repeats that overlap


@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize("point", ["apply.before", "apply.after", "publish.before"])
def test_a_repeat_at_another_server_does_nothing_when_the_first_lands_while_it_is_at_spark(
    site: Site, table: Handle, change: str, point: str
) -> None:
    run, expected = CHANGES[change]
    ids, elsewhere, key = table.ids(), Handle(site.other, table.name), uuid.uuid4().hex
    assert known(site.other, table, key) is None
    with at_point(point, lambda: run(table, ids, key)), suppress(AlreadyExists):
        assert run(elsewhere, ids, key) == 1
    assert rows_of(table) == expected
    assert (known(site.near, table, key), known(site.other, table, key)) == (1, 1)


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_commit_that_lands_while_its_repeat_is_at_spark_is_made_once(site: Site, table: Handle, change: str) -> None:
    """No answer came, and nobody could be asked; the client repeats, and the first lands in the middle of that."""
    run, expected = CHANGES[change]
    ids, elsewhere, key = table.ids(), Handle(site.other, table.name), uuid.uuid4().hex
    site.net.plan = ["late", "cut"]
    with pytest.raises(Unavailable):
        run(table, ids, key)
    site.net.is_cut = False
    landed: list[int] = []
    with at_point("apply.after", lambda: landed.extend(site.net.deliver())), suppress(AlreadyExists):
        assert run(elsewhere, ids, key) == 1
    assert landed == [200]
    assert rows_of(table) == expected
    assert known(site.other, table, key) == 1


# Lost, late and doubled answers


@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize("what", ["lost", "twice", "proxy"])
def test_a_statement_that_was_committed_says_so_whatever_became_of_the_answer(
    site: Site, table: Handle, what: str, change: str
) -> None:
    run, expected = CHANGES[change]
    ids, key = table.ids(), uuid.uuid4().hex
    site.net.plan = [what]
    assert run(table, ids, key) == 1
    assert rows_of(table) == expected
    assert repeat(lambda: run(table, ids, key), site.near, table, key) == 1
    assert rows_of(table) == expected
    assert list(table.current.metadata.refs) == ["main"]


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_statement_whose_commit_comes_late_is_done_by_its_repeat_alone(
    site: Site, table: Handle, change: str
) -> None:
    run, expected = CHANGES[change]
    ids, key = table.ids(), uuid.uuid4().hex
    site.net.plan = ["late"]
    with pytest.raises(Unavailable, match="will not be"):
        run(table, ids, key)
    assert rows_of(table) == OLD
    assert repeat(lambda: run(table, ids, key), site.near, table, key) == 1
    assert site.net.deliver() == [409]
    assert rows_of(table) == expected


@pytest.mark.parametrize("what", ["lost", "late", "twice", "proxy"])
def test_a_transaction_of_two_tables_has_one_outcome_whatever_became_of_the_answer(
    site: Site, table: Handle, what: str
) -> None:
    other = create(site.near, f"u_{uuid.uuid4().hex[:8]}", THREE)
    tx, ids = Tx(site.near), table.ids()
    table.insert(people((10, "new")), tx.ctx)
    table.update([ids[0]], names("changed"), tx.ctx)
    other.delete([other.ids()[2]], tx.ctx)
    site.net.plan = [what]
    if what == "late":
        with pytest.raises(Unavailable):
            tx.commit()
        assert site.net.deliver() == [409]
    else:
        tx.commit()
    made = what != "late"
    assert tx.status is (COMMITTED if made else ABORTED)
    assert rows_of(table) == ({**OLD, 0: "changed", 10: "new"} if made else OLD)
    assert rows_of(other) == ({0: "n0", 1: "n1"} if made else OLD)


def test_a_statement_asks_no_other_table(site: Site, table: Handle) -> None:
    hidden = create(site.near, f"hidden_{uuid.uuid4().hex[:8]}", THREE)
    site.net.forbidden = hidden.name
    try:
        site.net.looks.clear()
        key = uuid.uuid4().hex
        assert known(site.near, table, key) is None
        assert _insert(table, {}, key) == 1
        tx = Tx(site.near)
        table.insert(people((11, "new")), tx.ctx)
        tx.commit()
        asked = {path.partition("?")[0].rpartition("/tables/")[2] for path in site.net.looks if "/tables/" in path}
        assert asked == {table.name}
        assert hidden.name not in [found.name for found in main_of(site.near).tables(NOBODY)]
    finally:
        site.net.forbidden = ""
    assert rows_of(table) == {**OLD, 10: "new", 11: "new"}


def test_what_a_server_says_of_itself_costs_the_catalog_a_list_and_no_table(site: Site, table: Handle) -> None:
    """It says so all the time, and there may be very many tables."""
    tx = Tx(site.near)
    table.insert(people((10, "new")), tx.ctx)
    site.net.looks.clear()
    needed = site.near.opened.in_use.reported()
    asked = {path for path in list(site.net.looks) if "/tables/" in path}
    tx.rollback()
    assert table.current.uuid in needed  # the transaction sees it
    assert asked == set()
