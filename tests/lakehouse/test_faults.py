"""A handful of the deaths that ``make test-faults`` goes through by the hundred, and the orderly end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from tests.faults.cases import CHANGES, WAYS, Case, cases, run, statement_points
from tests.faults.files import leftovers
from tests.faults.lost import lost_cases
from tests.faults.rig import Rig, ending, pyiceberg_rows
from tests.faults.transactions import TRANSACTIONS, run_transaction, transaction_cases
from tests.support.spark import shared_spark
from tests.support.tiers import FAST

from sparkport.catalog.statement import Change
from sparkport.errors import InternalError, Unavailable
from sparkport.lakehouse.faults import POINTS, Fault, fault, on_kill_spark

pytestmark = [pytest.mark.tier("thorough"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A server whose Spark is the test run's own and outlives it: it starts in a second."""
    shared_spark().wait_ready(240)
    with Rig(tmp_path_factory.mktemp("shared"), spark=shared_spark().url) as rig:
        yield rig


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("own")) as rig:
        yield rig


@pytest.mark.parametrize(
    ("operation", "point", "happens"),
    [
        ("insert", "apply.after", False),
        pytest.param("update", "metadata.after", False, marks=FAST),
        pytest.param("insert", "pointer.after", True, marks=FAST),
        ("create", "metadata.after", False),
    ],
)
def test_a_server_killed_at_a_step_leaves_all_or_nothing(
    shared: Rig, operation: str, point: str, happens: bool
) -> None:
    outcome = run(Case(1, operation, Fault(point, "server")), shared)
    assert not outcome.acknowledged
    assert outcome.happened is happens


@pytest.mark.parametrize(
    ("operation", "way", "point", "action", "acknowledged"),
    [
        ("insert", "auto-commit", "settle.before", "lost", True),
        ("delete", "serializable", "pointer.after", "lost", True),
        ("delete", "", "apply.after", "lost", False),
        ("replace", "", "pointer.after", "lost", True),
        ("update", "", "publish.after", "cut", False),
        ("two tables", "", "pointer.after", "lost", True),
    ],
)
def test_an_answer_that_is_lost_on_the_way_is_found_out_by_asking_again(
    shared: Rig, operation: str, way: str, point: str, action: str, acknowledged: bool
) -> None:
    case = Case(1, operation, Fault(point, action), way)
    outcome = run_transaction(case, shared) if operation in TRANSACTIONS else run(case, shared)
    assert outcome.acknowledged is acknowledged


def test_spark_and_server_killed_together_come_back_to_all_or_nothing(own: Rig) -> None:
    outcome = run(Case(1, "update", Fault("apply.after", "both")), own)
    assert not outcome.happened


def test_a_write_that_has_not_reached_spark_waits_for_the_next_one(own: Rig) -> None:
    outcome = run(Case(1, "insert", Fault("stage.after", "spark")), own)
    assert outcome.acknowledged


def test_an_orderly_end_lets_writes_finish_and_leaves_nothing(own: Rig) -> None:
    """The last one of those who share the server."""
    own.start()
    own.client.create_table("public.last", pa.schema([("id", pa.int64()), ("v", pa.string())]))
    rows = pa.table({"id": [1, 2], "v": ["a", "b"]})
    with ThreadPoolExecutor(1) as pool, ending(own.sparks()):
        own.arm(Fault("apply.before", "pause", 1.0))
        writing = pool.submit(own.change, "public.last", Change.INSERT, rows)
        own.met()
        assert own.terminate() == 0
        assert writing.result(60) == 2
    assert leftovers(own.warehouse, servers=0) == []
    assert pyiceberg_rows(own.warehouse, "public.last") == {1: "a", 2: "b"}


# The plan of a fault


@pytest.mark.tier("fast")
def test_a_plan_is_read_as_it_is_written() -> None:
    plans = [Fault("publish.before"), Fault("apply.before", "spark", 0.25), Fault("stage.after", "error", 0.0, 3)]
    assert [Fault.parse(str(plan)) for plan in plans] == plans
    assert Fault.parse("publish.before") == plans[0]


@pytest.mark.tier("fast")
@pytest.mark.parametrize("text", ["", "nowhere", "publish.before=laugh", "publish.before#x", "publish.before=spark:-1"])
def test_a_plan_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no such fault"):
        Fault.parse(text)


@pytest.mark.tier("fast")
def test_a_fault_happens_at_its_point_and_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "plan"
    plan.write_text("stage.after#2=error")
    monkeypatch.setenv("SPARKPORT_FAULT", f"@{plan}")
    fault("stage.before")
    fault("stage.after")
    with pytest.raises(InternalError, match="as was asked for"):
        fault("stage.after")
    fault("stage.after")
    assert not plan.exists()


@pytest.mark.tier("fast")
def test_an_answer_is_lost_when_that_is_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "plan"
    plan.write_text("pointer.after=lost")
    monkeypatch.setenv("SPARKPORT_FAULT", f"@{plan}")
    with pytest.raises(Unavailable, match="as was asked for"):
        fault("pointer.after")


@pytest.mark.tier("fast")
def test_spark_is_killed_when_that_is_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, plan = threading.Event(), tmp_path / "plan"
    plan.write_text("apply.before=spark:0.01")
    monkeypatch.setenv("SPARKPORT_FAULT", f"@{plan}")
    before = on_kill_spark(killed.set)
    try:
        fault("apply.before")
        assert killed.wait(10)
    finally:
        on_kill_spark(before)


@pytest.mark.tier("fast")
def test_faults_of_one_plan_come_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "plan"
    plan.write_text("pointer.after=lost\nstage.after=error")
    monkeypatch.setenv("SPARKPORT_FAULT", f"@{plan}")
    fault("stage.after")
    with pytest.raises(Unavailable):
        fault("pointer.after")
    fault("pointer.after")
    with pytest.raises(InternalError):
        fault("stage.after")
    assert not plan.exists()


@pytest.mark.tier("fast")
def test_all_faults_are_every_change_at_every_point_with_every_victim() -> None:
    chosen = cases(7)
    assert chosen == cases(7)
    assert [case.operation for case in chosen] != [case.operation for case in cases(8)]
    met = {(case.operation, case.fault.point, case.fault.action) for case in chosen}
    victims = ("server", "spark", "both")
    assert met >= {
        (change, point, victim) for change in CHANGES for point in statement_points(change) for victim in victims
    }
    assert len(chosen) == 136


@pytest.mark.tier("fast")
def test_answers_are_lost_at_every_point_of_every_change() -> None:
    chosen = lost_cases(7)
    assert chosen == lost_cases(7) != lost_cases(8)
    met = {(case.operation, case.way, case.fault.point, case.fault.action) for case in chosen}
    for change in CHANGES:
        points = statement_points(change)
        assert met >= {(change, way, p, "lost") for way in WAYS for p in points if p != "publish.after"}
        assert met >= {(change, "", point, "cut") for point in points}
    deferred = {(case.fault.point, case.fault.action) for case in chosen if case.operation in TRANSACTIONS[2:]}
    assert deferred == {(point, action) for point in POINTS for action in ("lost", "cut")}


@pytest.mark.tier("fast")
def test_two_hundred_faults_in_transactions_are_half_over_two_tables() -> None:
    chosen = transaction_cases(7)
    assert chosen == transaction_cases(7) != transaction_cases(8)
    assert len(chosen) == 200
    assert sum(case.operation in TRANSACTIONS[2:] for case in chosen) >= 99
    met = {(case.operation in TRANSACTIONS[2:], case.fault.point, case.fault.action) for case in chosen}
    victims = ("server", "spark", "both")
    assert met >= {(two, point, victim) for two in (False, True) for point in POINTS for victim in victims}


@pytest.mark.parametrize(
    ("operation", "point", "happens"),
    [
        ("two tables", "defer.after", False),
        ("one table", "apply.between", False),
        pytest.param("two tables", "apply.after", False, marks=FAST),
        ("two tables", "pointer.before", False),
        pytest.param("two tables, one of them new rows only", "pointer.after", True, marks=FAST),
    ],
)
def test_a_killed_server_leaves_a_whole_transaction_or_none(
    shared: Rig, operation: str, point: str, happens: bool
) -> None:
    outcome = run_transaction(Case(1, operation, Fault(point)), shared)
    assert outcome.happened is happens
