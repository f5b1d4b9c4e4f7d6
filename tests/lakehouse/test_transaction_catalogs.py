"""Deferred transactions on the other catalogs: one or two tables at one instant, or nothing, and the truth about it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.lakehouse.crooked_catalog import crooked
from tests.lakehouse.handles import Handle, create
from tests.lakehouse.transacting import THREE, Tx, at_point, by_key, names, people
from tests.support.lakehouse import Lake, die
from tests.support.postgres import PostgresCluster
from tests.support.spark import shared_spark

from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.errors import Conflict, Unsupported
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.settings import LakehouseSettings

pytest_plugins = ["tests.support.services"]
pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]  # the first start of all downloads jars

COMMITTED, ABORTED = TransactionState.COMMITTED, TransactionState.ABORTED
OLD = {0: "n0", 1: "n1", 2: "n2"}


@pytest.fixture(scope="module")
def lakes(
    postgres: PostgresCluster, rest_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Lake]]:
    folder = tmp_path_factory.mktemp("catalogs")
    with ExitStack() as stack:
        uris = {"postgresql": stack.enter_context(postgres.database()), "rest": rest_uri}
        yield {
            kind: Lake(
                stack.enter_context(
                    Lakehouse(
                        LakehouseSettings(warehouse=str(folder / kind), catalog_uri=uri, sessions=2),
                        spark=shared_spark(),
                    )
                )
            )
            for kind, uri in uris.items()
        }


@pytest.fixture(params=["postgresql", "rest"])
def lake(request: pytest.FixtureRequest, lakes: dict[str, Lake]) -> Lake:
    return lakes[request.param]


@dataclass(frozen=True, slots=True)
class Tables:
    a: Handle
    b: Handle


@pytest.fixture
def tables(lake: Lake) -> Tables:
    return two_tables(lake)


def two_tables(lake: Lake) -> Tables:
    a, b = (create(lake, f"tx_{name}_{uuid.uuid4().hex[:8]}", THREE) for name in "ab")
    return Tables(a, b)


def rows_of(tables: Tables) -> tuple[dict[int, str | None], dict[int, str | None]]:
    """As Spark sees them too."""
    return by_key(tables.a.agreed(pyiceberg=False)), by_key(tables.b.agreed(pyiceberg=False))


def test_two_tables_change_at_one_instant(lake: Lake, tables: Tables) -> None:
    a, b, tx = tables.a, tables.b, Tx(lake)
    ids = a.ids()
    a.insert(people((10, "new")), tx.ctx)
    a.update([ids[1]], names("changed"), tx.ctx)
    b.delete([b.ids()[2]], tx.ctx)
    assert by_key(a.sparkport(tx.ctx)) == {0: "n0", 1: "changed", 2: "n2", 10: "new"}
    seen: list[tuple[dict[int, str | None], dict[int, str | None]]] = []
    with at_point("publish.before", lambda: seen.append(rows_of(tables))):
        tx.commit()
    assert seen == [(OLD, OLD)]
    assert rows_of(tables) == ({0: "n0", 1: "changed", 2: "n2", 10: "new"}, {0: "n0", 1: "n1"})
    assert {row["id"]: row_id for row_id, row in a.sparkport().items() if row["id"] < 10} == ids
    for table in (a, b):
        assert list(table.current.metadata.refs) == ["main"]
    tx.commit()
    assert tx.status is COMMITTED


def test_a_row_that_another_was_quicker_to_change_stops_all_of_it(lake: Lake, tables: Tables) -> None:
    late, ids = Tx(lake), tables.b.ids()
    tables.a.insert(people((10, "late")), late.ctx)
    tables.b.update([ids[0]], names("late"), late.ctx)
    tables.b.update([ids[0]], names("quick"))
    with pytest.raises(Conflict, match=f"'{tables.b.name}': 1 row changed by another transaction"):
        late.commit()
    assert late.status is ABORTED
    assert rows_of(tables) == (OLD, {**OLD, 0: "quick"})


def test_a_commit_finds_the_table_moved_and_is_made_on_top(lake: Lake, tables: Tables) -> None:
    tx, ids = Tx(lake), tables.a.ids()
    tables.a.insert(people((10, "new")), tx.ctx)
    tables.a.update([ids[0]], names("changed"), tx.ctx)
    tables.b.insert(people((10, "new")), tx.ctx)

    def foreign() -> None:
        tables.a.sql("INSERT INTO {t} VALUES (20, 'foreign')")

    with at_point("publish.before", foreign):
        tx.commit()
    assert rows_of(tables) == ({**OLD, 0: "changed", 10: "new", 20: "foreign"}, {**OLD, 10: "new"})


def test_serializable_holds_the_tables_that_were_read(lake: Lake, tables: Tables) -> None:
    kept, broken = Tx(lake, Isolation.SERIALIZABLE), Tx(lake, Isolation.SERIALIZABLE)
    for tx, key in ((kept, 10), (broken, 11)):
        tables.b.sparkport(tx.ctx)
        tables.a.insert(people((key, "new")), tx.ctx)
    kept.commit()

    def foreign() -> None:
        tables.b.sql("INSERT INTO {t} VALUES (20, 'foreign')")

    # It happens after all checks: the catalog itself has to notice.
    with at_point("publish.before", foreign), pytest.raises(Conflict, match="was read by this transaction"):
        broken.commit()
    assert rows_of(tables) == ({**OLD, 10: "new"}, {**OLD, 20: "foreign"})
    assert (kept.status, broken.status) == (COMMITTED, ABORTED)


@pytest.mark.parametrize("kind", ["postgresql", "rest"])
def test_the_next_server_knows_how_transactions_ended(kind: str, lakes: dict[str, Lake], tmp_path: Path) -> None:
    settings = replace(lakes[kind].opened.settings, staging=str(tmp_path))
    with Lakehouse(settings, spark=shared_spark()) as opened:
        lake = Lake(opened)
        a = create(lake, f"tx_{uuid.uuid4().hex[:8]}", THREE)
        committed, rolled_back, left = (Tx(lake) for _ in range(3))
        for number, tx in enumerate((committed, rolled_back, left)):
            a.insert(people((10 + number, "new")), tx.ctx)
        committed.commit()
        rolled_back.manager.rollback(rolled_back.id)
    with Lakehouse(settings, spark=shared_spark()) as opened:
        again = opened.engine.transactions
        states = [again.status(tx.id) for tx in (committed, rolled_back, left)]
        assert states == [COMMITTED, ABORTED, ABORTED]
        assert again.owner(committed.id) == "anonymous"
        again.commit(committed.id)
        assert sorted(by_key(Handle(Lake(opened), a.name).sparkport())) == [0, 1, 2, 10]


def test_the_tables_of_a_rest_catalog_tell_what_became_of_a_dead_servers_commits(
    lakes: dict[str, Lake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(lakes["rest"].opened.settings, staging=str(tmp_path))
    dead = Lakehouse(settings, spark=shared_spark())
    tables = two_tables(Lake(dead))
    made, unsent = Tx(Lake(dead)), Tx(Lake(dead))
    for tx in (made, unsent):
        for table in (tables.a, tables.b):
            table.insert(people((10, "new")), tx.ctx)
    with monkeypatch.context() as patch:
        patch.setattr(dead.engine.storage.ledger, "end", lambda transaction_id, state: state)
        made.commit()
    dead.engine.storage.ledger.publishing(
        [unsent.id], [TableName("public", tables.a.name), TableName("public", tables.b.name)]
    )
    die(dead.engine.storage.staging)
    with Lakehouse(settings, spark=shared_spark()) as opened:
        again = opened.engine.transactions
        assert again.status(made.id) is COMMITTED
        again.commit(made.id)
        assert again.status(unsent.id) is ABORTED  # and the catalog refuses it from now on
        assert [len(Handle(Lake(opened), table.name).sparkport()) for table in (tables.a, tables.b)] == [4, 4]
    dead.stop()


def test_a_rest_catalog_that_cannot_commit_two_tables_is_told_of_and_nothing_changes(
    rest_uri: str, tmp_path: Path
) -> None:
    with urllib.request.urlopen(f"{rest_uri}/v1/config") as answer:
        config = json.load(answer)
    config["endpoints"] = [item for item in config["endpoints"] if "transactions/commit" not in item]

    def forward(request: BaseHTTPRequestHandler) -> tuple[int, object]:
        body = getattr(request, "body", b"") or None
        headers = {"Content-Type": "application/json"} if body else {}
        asked = urllib.request.Request(rest_uri + request.path, body, headers, method=request.command)
        try:
            with urllib.request.urlopen(asked) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read()

    with crooked(forward, config) as uri:
        settings = LakehouseSettings(warehouse=str(tmp_path), catalog_uri=uri, sessions=2)
        with Lakehouse(settings, spark=shared_spark()) as opened:
            lake = Lake(opened)
            tables = two_tables(lake)
            tx, alone = Tx(lake), Tx(lake)
            tables.a.insert(people((10, "new")), tx.ctx)
            tables.b.update([tables.b.ids()[0]], names("changed"), tx.ctx)
            tables.b.insert(people((10, "new")), tx.ctx)
            with pytest.raises(Unsupported, match="this catalog cannot commit several tables at once"):
                tx.commit()
            assert tx.status is ABORTED
            assert rows_of(tables) == (OLD, OLD)
            assert list(tables.b.current.metadata.refs) == ["main"]
            tables.a.insert(people((11, "new")), alone.ctx)
            alone.commit()
            assert by_key(tables.a.sparkport())[11] == "new"
