"""The checker against histories made by hand: a judge that never finds anything proves nothing."""

from __future__ import annotations

import pytest
from tests.consistency.checker import Kind, check_bank, check_lists, check_registers, violations
from tests.consistency.history import Append, Operation, Outcome, Read, Transaction, Write

from sparkport.catalog.transaction import Isolation

pytestmark = pytest.mark.tier("fast")

X, Y, Z = ("a", 1), ("b", 1), ("b", 2)


def transaction(number: int, *operations: Operation, outcome: Outcome = Outcome.OK) -> Transaction:
    return Transaction(id=number, client=number, operations=operations, outcome=outcome)


def at(number: int, span: tuple[int, int, int, int], *operations: Operation) -> Transaction:
    begin_called, begun, end_called, ended = span
    return Transaction(
        id=number,
        operations=operations,
        begin_called=begin_called,
        begun=begun,
        end_called=end_called,
        ended=ended,
    )


FAULTY_LISTS: dict[str, tuple[Kind, set[int], list[Transaction]]] = {
    "an aborted read": (
        Kind.ABORTED_READ,
        {1, 2},
        [transaction(1, Append(X, 1), outcome=Outcome.ABORTED), transaction(2, Read(X, (1,)))],
    ),
    "an aborted read further back in the list": (
        Kind.ABORTED_READ,
        {1, 3},
        [
            transaction(1, Append(X, 1), outcome=Outcome.ABORTED),
            transaction(2, Append(X, 2)),
            transaction(3, Read(X, (1, 2))),
        ],
    ),
    "an intermediate read": (
        Kind.INTERMEDIATE_READ,
        {1, 2},
        [transaction(1, Append(X, 1), Append(X, 2)), transaction(2, Read(X, (1,))), transaction(3, Read(X, (1, 2)))],
    ),
    "a cycle of writes": (
        Kind.DIRTY_WRITE,
        {1, 2},
        [
            transaction(1, Append(X, 1), Append(Y, 1)),
            transaction(2, Append(X, 2), Append(Y, 2)),
            transaction(3, Read(X, (1, 2)), Read(Y, (2, 1))),
        ],
    ),
    "a cycle of writes and reads": (
        Kind.CIRCULAR_INFORMATION,
        {1, 2},
        [transaction(1, Append(X, 1), Read(Y, (1,))), transaction(2, Append(Y, 1), Read(X, (1,)))],
    ),
    "a fractured read over two tables": (
        Kind.FRACTURED_READ,
        {1, 2},
        [
            transaction(1, Append(X, 1), Append(Y, 1)),
            transaction(2, Read(X, (1,)), Read(Y, ())),
            transaction(3, Read(X, (1,)), Read(Y, (1,))),
        ],
    ),
    "read skew": (
        Kind.READ_SKEW,
        {1, 2},
        [
            transaction(1, Append(X, 1), Append(Y, 1)),
            transaction(2, Read(X, ()), Read(Y, (1,))),
            transaction(3, Read(X, (1,)), Read(Y, (1,))),
        ],
    ),
    "a lost update": (
        Kind.LOST_UPDATE,
        {1, 2},
        [
            transaction(1, Read(X, ()), Append(X, 1)),
            transaction(2, Read(X, ()), Append(X, 2)),
            transaction(3, Read(X, (1, 2))),
        ],
    ),
    "write skew": (
        Kind.WRITE_SKEW,
        {1, 2},
        [
            transaction(1, Read(X, ()), Read(Y, ()), Append(X, 1)),
            transaction(2, Read(X, ()), Read(Y, ()), Append(Y, 1)),
            transaction(3, Read(X, (1,)), Read(Y, (1,))),
        ],
    ),
    "a read that changes inside a transaction": (
        Kind.UNREPEATABLE_READ,
        {2},
        [transaction(1, Append(X, 1)), transaction(2, Read(X, ()), Read(X, (1,)))],
    ),
    "a write that its own transaction does not see": (
        Kind.OWN_WRITE_MISSING,
        {1},
        [transaction(1, Append(X, 1), Read(X, ()))],
    ),
    "two orders of one list": (
        Kind.DIVERGED,
        {4},
        [
            transaction(1, Append(X, 1)),
            transaction(2, Append(X, 2)),
            transaction(3, Read(X, (1, 2))),
            transaction(4, Read(X, (2, 1))),
        ],
    ),
    "a commit not seen by one who began later": (
        Kind.STALE_READ,
        {1, 2},
        [
            at(1, (1, 2, 3, 4), Append(X, 1)),
            at(2, (5, 6, 7, 8), Read(X, ())),
            at(3, (9, 10, 11, 12), Read(X, (1,))),
        ],
    ),
    "a commit seen by one who had begun before": (
        Kind.FUTURE_READ,
        {1, 2},
        [at(1, (1, 2, 5, 6), Append(X, 1)), at(2, (3, 4, 7, 8), Read(X, (1,)))],
    ),
    "an acknowledged append that is nowhere": (
        Kind.LOST_UPDATE,
        {1, 2},
        [at(1, (1, 2, 3, 4), Append(X, 1)), at(2, (5, 6, 7, 8), Read(X, ()))],
    ),
}


@pytest.mark.parametrize("name", FAULTY_LISTS)
def test_each_anomaly_is_found_with_the_transactions_involved(name: str) -> None:
    kind, involved, history = FAULTY_LISTS[name]
    found = [anomaly for anomaly in check_lists(history) if anomaly.kind is kind]
    assert [set(anomaly.transactions) for anomaly in found] == [involved]


@pytest.mark.parametrize("name", [name for name in FAULTY_LISTS if name != "write skew"])
def test_each_anomaly_but_write_skew_violates_both_isolations(name: str) -> None:
    kind, _, history = FAULTY_LISTS[name]
    for isolation in Isolation:
        assert kind in {anomaly.kind for anomaly in violations(check_lists(history), isolation)}


def test_write_skew_is_allowed_under_snapshot_and_a_violation_under_serializable() -> None:
    anomalies = check_lists(FAULTY_LISTS["write skew"][2])
    assert [anomaly.kind for anomaly in anomalies] == [Kind.WRITE_SKEW]
    assert violations(anomalies, Isolation.SNAPSHOT) == []
    assert violations(anomalies, Isolation.SERIALIZABLE) == anomalies


def test_a_cycle_whose_anti_dependencies_are_apart_is_no_write_skew() -> None:
    """Two observers who disagree about the order of two independent writes: no snapshot can explain it."""
    history = [
        transaction(1, Append(X, 1)),
        transaction(2, Append(Y, 1)),
        transaction(3, Read(X, (1,)), Read(Y, ())),
        transaction(4, Read(X, ()), Read(Y, (1,))),
        transaction(5, Read(X, (1,)), Read(Y, (1,))),
    ]
    found = violations(check_lists(history), Isolation.SNAPSHOT)
    assert [(anomaly.kind, set(anomaly.transactions)) for anomaly in found] == [(Kind.NONADJACENT, {1, 2, 3, 4})]


def test_write_skew_of_three_is_found() -> None:
    history = [
        transaction(1, Read(X, ()), Append(Y, 1)),
        transaction(2, Read(Y, ()), Append(Z, 1)),
        transaction(3, Read(Z, ()), Append(X, 1)),
        transaction(4, Read(X, (1,)), Read(Y, (1,)), Read(Z, (1,))),
    ]
    found = check_lists(history)
    assert [(anomaly.kind, set(anomaly.transactions)) for anomaly in found] == [(Kind.WRITE_SKEW, {1, 2, 3})]


def test_a_serial_history_is_clean() -> None:
    history = [
        at(1, (1, 2, 3, 4), Read(X, ()), Append(X, 1), Read(X, (1,)), Append(Y, 1)),
        at(2, (5, 6, 7, 8), Read(X, (1,)), Read(Y, (1,)), Append(X, 2), Append(X, 3), Read(X, (1, 2, 3))),
        at(3, (9, 10, 11, 12), Read(X, (1, 2, 3)), Read(Y, (1,)), Append(Y, 2)),
    ]
    assert check_lists(history) == []


def test_concurrent_transactions_on_old_snapshots_are_clean() -> None:
    history = [
        at(1, (1, 3, 5, 7), Read(X, ()), Append(X, 1)),
        at(2, (2, 4, 6, 8), Read(X, ()), Read(Y, ()), Append(Y, 1)),
        at(3, (9, 10, 11, 12), Read(X, (1,)), Read(Y, (1,))),
    ]
    assert check_lists(history) == []


def test_an_aborted_transaction_that_nobody_saw_is_no_anomaly() -> None:
    history = [
        transaction(1, Read(X, ()), Append(X, 1), Read(X, (1,)), outcome=Outcome.ABORTED),
        transaction(2, Read(X, ()), Append(X, 2), Read(X, (2,))),
        transaction(3, Read(X, (2,))),
    ]
    assert check_lists(history) == []


def test_a_transaction_of_unknown_outcome_may_be_seen_or_not() -> None:
    for seen in ((), (1,)):
        history = [
            transaction(1, Read(X, ()), Append(X, 1), outcome=Outcome.UNKNOWN),
            transaction(2, Read(X, seen)),
        ]
        assert check_lists(history) == []


def test_a_transaction_of_unknown_outcome_must_still_be_seen_whole() -> None:
    history = [
        transaction(1, Append(X, 1), Append(Y, 1), outcome=Outcome.UNKNOWN),
        transaction(2, Read(X, (1,)), Read(Y, ())),
        transaction(3, Read(Y, (1,))),
    ]
    assert Kind.FRACTURED_READ in {anomaly.kind for anomaly in check_lists(history)}


# Registers and the bank

START_X, START_Y = (50, 0), (50, 0)


def test_transfers_one_after_the_other_are_clean() -> None:
    history = [
        transaction(1, Read(X, START_X), Read(Y, START_Y), Write(X, (40, 1)), Write(Y, (60, 1))),
        transaction(2, Read(X, (40, 1)), Read(Y, (60, 1)), Write(X, (45, 2)), Write(Y, (55, 2))),
        transaction(3, Read(X, (45, 2)), Read(Y, (55, 2))),
    ]
    assert check_bank(history, 100, 2) == []


def test_half_a_transfer_is_a_wrong_total_and_a_fractured_read() -> None:
    history = [
        transaction(1, Read(X, START_X), Read(Y, START_Y), Write(X, (40, 1)), Write(Y, (60, 1))),
        transaction(2, Read(X, (40, 1)), Read(Y, START_Y)),
    ]
    found = {anomaly.kind: set(anomaly.transactions) for anomaly in check_bank(history, 100, 2)}
    assert found[Kind.WRONG_TOTAL] == {2}
    assert found[Kind.FRACTURED_READ] == {1, 2}


def test_two_writers_of_one_version_are_a_lost_update() -> None:
    history = [
        transaction(1, Read(X, START_X), Write(X, (40, 1))),
        transaction(2, Read(X, START_X), Write(X, (30, 2))),
    ]
    found = check_registers(history)
    assert [(anomaly.kind, set(anomaly.transactions)) for anomaly in found] == [(Kind.LOST_UPDATE, {1, 2})]


def test_a_register_read_from_an_aborted_writer_is_found() -> None:
    history = [
        transaction(1, Read(X, START_X), Write(X, (40, 1)), outcome=Outcome.ABORTED),
        transaction(2, Read(X, (40, 1))),
    ]
    assert [anomaly.kind for anomaly in check_registers(history)] == [Kind.ABORTED_READ]


def test_a_register_read_between_two_writes_of_a_transaction_is_found() -> None:
    history = [
        transaction(1, Read(X, START_X), Write(X, (40, 1)), Write(X, (30, 1))),
        transaction(2, Read(X, (40, 1))),
    ]
    assert [anomaly.kind for anomaly in check_registers(history)] == [Kind.INTERMEDIATE_READ]


def test_write_skew_on_registers_is_found() -> None:
    history = [
        transaction(1, Read(X, START_X), Read(Y, START_Y), Write(X, (0, 1))),
        transaction(2, Read(X, START_X), Read(Y, START_Y), Write(Y, (0, 2))),
    ]
    anomalies = check_registers(history)
    assert [(anomaly.kind, set(anomaly.transactions)) for anomaly in anomalies] == [(Kind.WRITE_SKEW, {1, 2})]
    assert violations(anomalies, Isolation.SNAPSHOT) == []
