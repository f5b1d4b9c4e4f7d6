"""Eight clients at once over gRPC, and the record of what they did and saw put before the checker."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from tests.consistency.checker import Anomaly, Kind, check_bank, check_lists, check_registers, violations
from tests.consistency.engines import ENGINES, EngineUnderTest, can_defer, memory_engine
from tests.consistency.history import Outcome, Transaction
from tests.consistency.workloads import Load, append_to_lists, skew_writes, transfer_money
from tests.support.tiers import on_engines

from sparkport.catalog.transaction import Isolation
from sparkport.memory.overlay import Overlay
from sparkport.memory.store import Store, TableData, View

# A Spark job for each of some dozen transactions: on a busy machine that takes its time.
pytestmark = [pytest.mark.tier("fast"), pytest.mark.timeout(600)]

logger = logging.getLogger(__name__)

_SCALE = int(os.environ.get("SPARKPORT_CONSISTENCY_SCALE", "1"))
"""How many times as many transactions as in a quick run."""

_OPENING = 100


@pytest.fixture(scope="module", params=on_engines(sorted(ENGINES)))
def engine(request: pytest.FixtureRequest) -> Iterator[EngineUnderTest]:
    with ENGINES[request.param]() as engine:
        yield engine


@pytest.fixture
def deferring(engine: EngineUnderTest) -> EngineUnderTest:
    if not can_defer(engine):
        pytest.skip("this engine commits each statement by itself")
    return engine


@pytest.fixture(params=list(Isolation), ids=lambda isolation: isolation.value)
def isolation(request: pytest.FixtureRequest) -> Isolation:
    found: Isolation = request.param
    return found


def none_of(anomalies: Sequence[Anomaly]) -> None:
    assert not anomalies, "\n" + "\n".join(str(anomaly) for anomaly in anomalies[:20])


def outcomes(history: Sequence[Transaction]) -> Counter[Outcome]:
    counted = Counter(transaction.outcome for transaction in history)
    logger.info("%s", ", ".join(f"{number} {outcome.value}" for outcome, number in counted.items()))
    return counted


def load_for(engine: EngineUnderTest, isolation: Isolation, *, auto_commit: bool = False) -> Load:
    """Deferred transactions are disturbed by all that there is to disturb them."""
    return Load(
        isolation=isolation,
        transactions=engine.size.transactions * _SCALE,
        writers=engine.size.writers,
        auto_commit=auto_commit,
        disturbed=engine.maintain is not None and not auto_commit,
    )


def check_lists_of(engine: EngineUnderTest, load: Load) -> None:
    history = append_to_lists(engine, load)
    assert outcomes(history)[Outcome.OK] > load.clients
    assert outcomes(history)[Outcome.UNKNOWN] == 0
    none_of(violations(check_lists(history), load.isolation))


def check_transfers_of(engine: EngineUnderTest, load: Load) -> None:
    history = transfer_money(engine, load, opening=_OPENING)
    assert outcomes(history)[Outcome.OK] > load.clients
    assert outcomes(history)[Outcome.UNKNOWN] == 0
    accounts = 2 * load.keys
    none_of(violations(check_bank(history, accounts * _OPENING, accounts), load.isolation))


def test_lists_of_statements_that_commit_themselves_show_no_anomaly(
    engine: EngineUnderTest, isolation: Isolation
) -> None:
    check_lists_of(engine, load_for(engine, isolation, auto_commit=True))


def test_transfers_that_commit_themselves_keep_the_total(engine: EngineUnderTest) -> None:
    check_transfers_of(engine, load_for(engine, Isolation.SNAPSHOT, auto_commit=True))


def test_lists_over_four_tables_show_no_anomaly(deferring: EngineUnderTest, isolation: Isolation) -> None:
    check_lists_of(deferring, load_for(deferring, isolation))


def test_transfers_between_two_tables_keep_the_total(deferring: EngineUnderTest) -> None:
    check_transfers_of(deferring, load_for(deferring, Isolation.SNAPSHOT))


@pytest.mark.parametrize("engine", on_engines(["memory"]), indirect=True)
def test_transfers_under_serializable_keep_the_total(engine: EngineUnderTest) -> None:
    check_transfers_of(engine, load_for(engine, Isolation.SERIALIZABLE))


def test_write_skew_happens_under_snapshot_and_is_found(deferring: EngineUnderTest) -> None:
    rounds = deferring.size.rounds * _SCALE
    history = skew_writes(deferring, Load(isolation=Isolation.SNAPSHOT), rounds=rounds)
    anomalies = check_registers(history)
    skews = [anomaly for anomaly in anomalies if anomaly.kind is Kind.WRITE_SKEW]
    assert len(skews) == rounds
    none_of(violations(anomalies, Isolation.SNAPSHOT))


def test_write_skew_does_not_happen_under_serializable(deferring: EngineUnderTest) -> None:
    rounds = deferring.size.rounds * _SCALE
    history = skew_writes(deferring, Load(isolation=Isolation.SERIALIZABLE), rounds=rounds)
    none_of(check_registers(history))
    assert outcomes(history) == {Outcome.OK: rounds + 1, Outcome.ABORTED: rounds}


# The proof is worth something only if an engine with a defect does not pass


def test_an_engine_that_looks_for_no_conflicts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "conflicts", lambda *_: (0, set()))
    with memory_engine() as broken:
        history = append_to_lists(broken, Load(keys=1, transactions=4))
    assert Kind.LOST_UPDATE in {anomaly.kind for anomaly in check_lists(history)}


def test_an_engine_without_snapshots_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read sees the newest commits, as under read committed; conflicts are looked for as they should be."""
    with memory_engine() as broken:
        committed = threading.Condition()
        whole, pin = Store.apply, Store.pin
        stores: dict[View, Store] = {}
        first_reads: dict[View, int] = {}
        waited: set[View] = set()

        def told(store: Store, changes: dict[TableData, Overlay]) -> int:
            number = whole(store, changes)
            with committed:
                committed.notify_all()
            return number

        def known(store: Store) -> View:
            view = pin(store)
            stores[view] = store
            return view

        def newest(view: View, *_: object) -> int:
            store = stores[view]
            first = first_reads.get(view)
            first_reads.setdefault(view, store.commit)
            if first is not None and view not in waited:
                waited.add(view)
                with committed:  # until somebody has committed since the first read, or nobody is left to
                    committed.wait_for(lambda: store.commit > first, 0.05)
            return store.commit

        monkeypatch.setattr(Store, "apply", told)
        monkeypatch.setattr(Store, "pin", known)
        monkeypatch.setattr(View, "follow", newest)
        history = transfer_money(broken, Load(keys=2, transactions=3), opening=_OPENING)
    kinds = {anomaly.kind for anomaly in check_bank(history, 4 * _OPENING, 4)}
    assert kinds & {Kind.FRACTURED_READ, Kind.FUTURE_READ}


def test_an_engine_that_publishes_table_by_table_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, pin = Store.apply, Store.pin
    begun = threading.Event()

    def one_by_one(store: Store, changes: dict[TableData, Overlay]) -> int:
        (first, change), *others = changes.items()
        number = whole(store, {first: change})
        if others:
            begun.clear()
            begun.wait(0.2)  # until somebody has begun in between, or nobody is left to
            number = whole(store, dict(others))
        return number

    def noticed(store: Store) -> View:
        view = pin(store)
        begun.set()
        return view

    monkeypatch.setattr(Store, "apply", one_by_one)
    monkeypatch.setattr(Store, "pin", noticed)
    with memory_engine() as broken:
        history = transfer_money(broken, Load(keys=2, transactions=4), opening=_OPENING)
    assert Kind.FRACTURED_READ in {anomaly.kind for anomaly in check_bank(history, 4 * _OPENING, 4)}
