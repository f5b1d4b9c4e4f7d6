"""Two servers on one catalog: each sees what the other does, keeps off what is the other's, and survives its death."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.faults.rig import Rig
from tests.lakehouse.handles import Handle, create
from tests.lakehouse.maintained import AT_ONCE
from tests.lakehouse.transacting import THREE, by_key, names, people
from tests.lakehouse.transacting import Tx as AnyTx
from tests.support.lakehouse import Lake, die, maintenance_of
from tests.support.spark import shared_spark

from sparkport.auth.identity import Identity
from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableSchema, TableDefinition
from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.client import Client, connect
from sparkport.errors import Conflict, FailedPrecondition, TransactionNotActive, Unavailable
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer
from sparkport.lakehouse.upkeep.maintenance import Maintenance
from sparkport.testing import serving

pytest_plugins = ["tests.support.services"]
pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]  # the first start of all downloads jars

ACTIVE, COMMITTED, ABORTED = TransactionState.ACTIVE, TransactionState.COMMITTED, TransactionState.ABORTED
ANNA = CallContext(identity=Identity("anna"))
Tx = partial(AnyTx, who=ANNA)
"""A deferred transaction of Anna's at one of the servers."""


@dataclass(frozen=True, slots=True)
class Place:
    """A catalog and the Spark that its servers share."""

    folder: Path
    catalog_uri: str | None
    spark: SparkServer

    def server(self, staging: str = ".staging", *, clock: Callable[[], float] = time.time) -> Lakehouse:
        warehouse = self.folder / "warehouse"
        settings = LakehouseSettings(
            warehouse=str(warehouse), catalog_uri=self.catalog_uri, staging=str(warehouse / staging), sessions=2
        )
        return Lakehouse(settings, spark=self.spark, clock=clock)


class Clock:
    ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@dataclass(frozen=True, slots=True)
class Pair:
    place: Place
    one: Lake
    two: Lake
    clocks: dict[Lake, Clock]

    def table(self) -> tuple[Handle, Handle]:
        """A new table with three rows, in the hands of each."""
        made = create(self.one, f"t_{uuid.uuid4().hex[:8]}", THREE)
        return made, Handle(self.two, made.name)

    def state(self, tx: AnyTx) -> list[TransactionState | None]:
        """What each says."""
        return [lake.opened.engine.transactions.status(tx.id) for lake in (self.one, self.two)]

    @contextmanager
    def ahead(self, lake: Lake, seconds: float = 120) -> Iterator[None]:
        """A server's clock says that nobody else has been heard of for long."""
        clock = self.clocks[lake]
        clock.ahead = seconds
        try:
            yield
        finally:
            clock.ahead = 0.0


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("two")
        if request.param == "sqlite":
            place = Place(folder, None, shared_spark())
        else:
            uri = stack.enter_context(request.getfixturevalue("postgres").database())
            place = Place(folder, uri, shared_spark())
        clocks = {Lake(stack.enter_context(place.server(clock=clock))): clock for clock in (Clock(), Clock())}
        one, two = clocks
        yield Pair(place, one, two, clocks)


only_postgresql = pytest.mark.parametrize("pair", ["postgresql"], indirect=True, scope="module")


# Both alive


@pytest.mark.tier("fast")
def test_a_commit_of_one_is_seen_by_the_other_at_once_and_whole(pair: Pair) -> None:
    (a, a2), (b, b2) = pair.table(), pair.table()
    early, tx = Tx(pair.two), Tx(pair.one)
    ids = a.ids()
    a.insert(people((10, "new")), tx.ctx)
    a.update([ids[1]], names("changed"), tx.ctx)
    b.delete([b.ids()[2]], tx.ctx)
    assert by_key(a2.sparkport()) == {0: "n0", 1: "n1", 2: "n2"}
    tx.commit()
    assert by_key(a2.sparkport()) == {0: "n0", 1: "changed", 2: "n2", 10: "new"}
    assert by_key(b2.sparkport()) == {0: "n0", 1: "n1"}
    assert a2.agreed(pyiceberg=False) == a.sparkport()
    assert [by_key(table.sparkport(early.ctx)) for table in (a2, b2)] == [{0: "n0", 1: "n1", 2: "n2"}] * 2
    early.commit()
    back = Tx(pair.two)
    a2.update([ids[1]], names("back"), back.ctx)
    back.commit()
    assert by_key(a.sparkport())[1] == "back"


@pytest.mark.tier("fast")
def test_the_first_of_the_two_to_commit_wins_a_row(pair: Pair) -> None:
    table, other = pair.table()
    ids = table.ids()
    first, second, beside = Tx(pair.two), Tx(pair.one), Tx(pair.one)
    other.update([ids[0]], names("theirs"), first.ctx)
    table.update([ids[0], ids[1]], names("ours", "ours"), second.ctx)
    table.update([ids[2]], names("beside"), beside.ctx)
    first.commit()
    with pytest.raises(Conflict, match=f"'{table.name}': 1 row changed by another transaction"):
        second.commit()
    beside.commit()
    assert by_key(other.agreed(pyiceberg=False)) == {0: "theirs", 1: "n1", 2: "beside"}
    assert (pair.state(first), pair.state(second)) == ([COMMITTED] * 2, [ABORTED] * 2)


@only_postgresql
def test_serializable_sees_what_the_other_has_changed(pair: Pair) -> None:
    (a, a2), (b, b2) = pair.table(), pair.table()
    skewed, crossed = Tx(pair.one, Isolation.SERIALIZABLE), Tx(pair.two, Isolation.SERIALIZABLE)
    b.sparkport(skewed.ctx)
    a.insert(people((10, "b was read")), skewed.ctx)
    a2.sparkport(crossed.ctx)
    b2.insert(people((10, "a was read")), crossed.ctx)
    crossed.commit()
    with pytest.raises(Conflict, match="was read by this transaction and has been changed since"):
        skewed.commit()
    assert (len(a2.sparkport()), len(b.sparkport())) == (3, 4)


@only_postgresql
def test_both_commit_the_same_two_tables_at_once_and_nothing_is_lost(pair: Pair) -> None:
    (a, a2), (b, b2) = pair.table(), pair.table()

    def work(lake: Lake, tables: tuple[Handle, Handle], first: int) -> None:
        for number in range(first, first + 2):
            tx = Tx(lake)
            for table in tables:
                table.insert(people((number, "new")), tx.ctx)
            tx.commit()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, pair.one, (a, b), 10), pool.submit(work, pair.two, (b2, a2), 20)]:
            done.result(timeout=200)
    assert sorted(by_key(a.agreed(pyiceberg=False))) == sorted(by_key(b2.sparkport())) == [0, 1, 2, 10, 11, 20, 21]


def test_a_transaction_is_open_to_both_and_can_be_used_at_its_own_server_only(pair: Pair) -> None:
    table, other = pair.table()
    tx, theirs = Tx(pair.one), Tx(pair.two)
    table.insert(people((10, "new")), tx.ctx)
    assert pair.state(tx) == pair.state(theirs) == [ACTIVE, ACTIVE]
    wrong = pair.two.opened.engine.transactions
    for use in (wrong.require_open, wrong.commit, wrong.rollback, wrong.defer):
        with pytest.raises(FailedPrecondition, match="is open on another server"):
            use(tx.id)
    with pytest.raises(FailedPrecondition, match="is open on another server"):
        other.insert(people((11, "new")), tx.ctx)
    assert wrong.owner(tx.id) == "anna"
    for lake in (pair.one, pair.two):
        listed = {item.id: item for item in lake.opened.engine.transactions.open_transactions()}
        assert listed.keys() == {tx.id, theirs.id}
        assert {item.owner for item in listed.values()} == {"anna"}

    tx.commit()
    wrong.commit(tx.id)
    with pytest.raises(TransactionNotActive, match="committed"):
        wrong.rollback(tx.id)
    with pytest.raises(TransactionNotActive, match="committed"):
        other.insert(people((11, "new")), tx.ctx)
    theirs.manager.rollback(theirs.id)
    assert (pair.state(tx), pair.state(theirs)) == ([COMMITTED] * 2, [ABORTED] * 2)
    assert by_key(other.sparkport())[10] == "new"


@only_postgresql
def test_calls_at_the_wrong_server_are_told_so(pair: Pair) -> None:
    table, _ = pair.table()
    with ExitStack() as stack:
        clients = []
        for lake in (pair.one, pair.two):
            server = stack.enter_context(serving(lake.opened.catalog))
            clients.append(stack.enter_context(connect(server.location)))
        right, wrong = clients
        tx = stack.enter_context(right.transaction())
        tx.insert(f"public.{table.name}", people((10, "new")))
        stray = wrong.resume_transaction(tx.id)
        uses: list[Callable[[], object]] = [
            lambda: stray.scan(f"public.{table.name}").read_all(),
            lambda: stray.insert(f"public.{table.name}", people((11, "new"))),
            lambda: stray.call("tx.commit", rows=1),
            lambda: _ask(wrong, "commit_transaction", tx.id),
            lambda: _ask(wrong, "rollback_transaction", tx.id),
        ]
        for use in uses:
            with pytest.raises(FailedPrecondition, match="is open on another server"):
                use()
        assert stray.status() is ACTIVE
        assert wrong.scan("tx.transactions").read_all().column("id").to_pylist() == [tx.id]
        tx.commit()
        assert stray.status() is COMMITTED
        assert wrong.scan(f"public.{table.name}").read_all().num_rows == 4


def _ask(client: Client, action: str, transaction_id: str) -> None:
    client.action(action, f'{{"transaction_id": "{transaction_id}"}}'.encode())


# One of them dead, or taken for dead


def test_a_server_that_only_seemed_dead_cannot_commit(pair: Pair) -> None:
    table, other = pair.table()
    ids = table.ids()
    tx = Tx(pair.one)
    table.insert(people((10, "late")), tx.ctx)
    table.update([ids[0]], names("late"), tx.ctx)
    with pair.ahead(pair.two):
        assert pair.two.opened.engine.transactions.status(tx.id) is ABORTED
        assert pair.two.opened.engine.transactions.open_transactions() == []
    with pytest.raises(TransactionNotActive, match="aborted"):
        tx.commit()
    assert pair.state(tx) == [ABORTED] * 2
    assert by_key(other.agreed(pyiceberg=False)) == {0: "n0", 1: "n1", 2: "n2"}
    assert list(table.current.metadata.refs) == ["main"]
    again = Tx(pair.one)
    table.update([ids[0]], names("again"), again.ctx)
    again.commit()
    assert by_key(other.sparkport())[0] == "again"


@pytest.mark.tier("fast")
@only_postgresql
def test_what_a_killed_server_left_open_is_aborted(pair: Pair) -> None:
    """After a while by whoever asks, and at once by the next server that finds its folder."""
    table, _ = pair.table()
    rig = Rig(pair.place.folder, spark=pair.place.spark.url, catalog_uri=pair.place.catalog_uri)
    with rig:
        begun = [rig.client.transaction() for _ in range(3)]
        for number, tx in enumerate(begun):
            tx.insert(f"public.{table.name}", people((10 + number, "new")))
        manager = pair.one.opened.engine.transactions
        begun[0].commit()
        assert by_key(table.sparkport())[10] == "new"
        assert [manager.status(tx.id) for tx in begun] == [COMMITTED, ACTIVE, ACTIVE]
        assert {item.id for item in manager.open_transactions()} == {begun[1].id, begun[2].id}
    # It was killed: nobody has been told.
    assert manager.status(begun[1].id) is ACTIVE
    with pair.ahead(pair.one):
        assert manager.status(begun[1].id) is ABORTED
    elsewhere, beside = pair.place.server("elsewhere"), pair.place.server()
    with elsewhere, beside:
        for server in (elsewhere, beside):
            status = [server.engine.transactions.status(tx.id) for tx in begun]
            assert status == [COMMITTED, ABORTED, ABORTED]
    assert sorted(by_key(table.agreed(pyiceberg=False))) == [0, 1, 2, 10]


def test_what_a_server_of_another_catalog_has_left_in_the_same_folder_is_not_ours_to_remove(tmp_path: Path) -> None:
    def server(warehouse: str) -> Lakehouse:
        settings = LakehouseSettings(warehouse=str(tmp_path / warehouse), staging=str(tmp_path / "staging"))
        return Lakehouse(settings, spark=shared_spark())

    dead = server("a")
    schema = dead.catalog.schema(ANNA, "public")
    assert isinstance(schema, MutableSchema)
    schema.create_table(ANNA, TableDefinition(name="t", columns=THREE.schema))
    location = dead.engine.storage.pointers.location(TableName("public", "t"))
    assert location is not None
    die(dead.engine.storage.staging)
    with server("b"):
        assert dead.engine.storage.files.exists(location)
        assert dead.engine.storage.staging.folder.exists()
    with server("a") as again:
        assert again.engine.storage.files.exists(location)
        assert not dead.engine.storage.staging.folder.exists()
    dead.stop()


# Maintenance by one of them


def maintenance(lake: Lake, *, later: float = 1.0) -> Maintenance:
    return maintenance_of(lake.opened, AT_ONCE, later=later)


def snapshots(table: Handle) -> list[int]:
    return [found.id for found in table.current.metadata.snapshots]


@only_postgresql
def test_snapshots_that_a_transaction_of_the_other_reads_are_kept(pair: Pair) -> None:
    table, other = pair.table()
    tx = Tx(pair.one)
    before = table.sparkport(tx.ctx)
    for number in (10, 11):
        other.insert(people((number, "new")))
    pinned, between, newest = snapshots(table)
    # It has not been said yet that it is needed, and cannot have been.
    assert maintenance(pair.two).run(TableName("public", table.name), ("expire",)).counts == {}
    with pair.ahead(pair.one, 30):
        pair.one.opened.engine.storage.ledger.beat(pair.one.opened.in_use.reported())
        report = maintenance(pair.two, later=31).run(TableName("public", table.name), ("compact", "expire"))
        assert report.counts["compacted_files"] == 3
        assert report.counts["expired_snapshots"] == 2
        assert pinned in snapshots(table)
        assert not {between, newest} & set(snapshots(table))
    assert table.sparkport(tx.ctx) == before
    table.insert(people((20, "late")), tx.ctx)
    tx.commit()
    assert sorted(by_key(other.agreed(pyiceberg=False))) == [0, 1, 2, 10, 11, 20]


def test_a_table_without_a_row_is_maintained_beside_another_server(pair: Pair) -> None:
    empty = create(pair.one, f"t_{uuid.uuid4().hex[:8]}", THREE.slice(0, 0))
    assert maintenance(pair.two).run(TableName("public", empty.name)).counts == {}


@only_postgresql
def test_all_is_kept_since_transactions_began_of_which_it_is_not_known_what_they_need(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = pair.table()
    tx = Tx(pair.one)
    before = table.sparkport(tx.ctx)
    one = pair.one.opened

    def unreadable(*_: object) -> None:
        raise Unavailable("the store does not answer")

    with monkeypatch.context() as patched:
        # Before the table moves on: what a pin is once known to need is kept.
        patched.setattr(one.engine.versions, "at", unreadable)
        for number in (10, 11):
            other.insert(people((number, "new")))
        with pair.ahead(pair.one, 30):
            one.engine.storage.ledger.beat(one.in_use.reported())
            kept = snapshots(other)
            assert maintenance(pair.two, later=31).run(TableName("public", table.name), ("expire",)).counts == {}
            assert snapshots(other) == kept
    assert table.sparkport(tx.ctx) == before
    tx.rollback()


@only_postgresql
def test_branches_that_nobody_will_publish_are_dropped(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = pair.table()
    one, two = (lake.opened.engine for lake in (pair.one, pair.two))
    theirs, ours, used, dead = (
        f"sparkport_{server}_{uuid.uuid4().hex}"
        for server in (
            one.storage.ledger.server,
            two.storage.ledger.server,
            two.storage.ledger.server,
            uuid.uuid4().hex,
        )
    )
    foreign = "sparkport_of_somebody"
    table.sql(*(f"ALTER TABLE {{t}} CREATE BRANCH {name}" for name in (theirs, ours, used, dead, foreign)))
    monkeypatch.setattr(two.applier, "uses", lambda branch: branch == used)
    maintenance(pair.two, later=-10).run(TableName("public", table.name), ("expire",))
    assert set(table.current.metadata.refs) == {"main", theirs, used, dead, foreign}
    maintenance(pair.two).run(TableName("public", table.name), ("expire",))
    assert set(table.current.metadata.refs) == {"main", theirs, used, foreign}
    monkeypatch.undo()
    with pair.ahead(pair.two):
        maintenance(pair.two).run(TableName("public", table.name), ("expire",))
    assert set(table.current.metadata.refs) == {"main", foreign}
