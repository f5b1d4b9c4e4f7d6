"""The checker of lists that somebody rewrites, on histories made by hand."""

from __future__ import annotations

import pytest
from tests.consistency.checker import Kind
from tests.consistency.epochs import check_rewritten_lists
from tests.consistency.history import Append, Operation, Outcome, Read, Rewrite, Transaction

pytestmark = pytest.mark.tier("fast")

T, X, Y = "t", ("t", 0), ("t", 1)
BOTH_EMPTY = frozenset({(0, ()), (1, ())})


def nth(place: int, *operations: Operation, outcome: Outcome = Outcome.OK) -> Transaction:
    """Of those who come one after the other."""
    return spanning(place, place, *operations, outcome=outcome)


def spanning(first: int, last: int, *operations: Operation, outcome: Outcome = Outcome.OK) -> Transaction:
    """One that begins as the one and ends as the other."""
    return Transaction(
        id=100 * first + last,
        operations=operations,
        outcome=outcome,
        begin_called=4 * first + 1,
        begun=4 * first + 2,
        end_called=4 * last + 3,
        ended=4 * last + 4,
    )


def kinds(*history: Transaction) -> set[Kind]:
    return {anomaly.kind for anomaly in check_rewritten_lists(history)}


FIRST = (nth(0, Read(X, ()), Append(X, 1)), nth(1, Read(X, (1,)), Append(X, 2)))
BACK = nth(2, Rewrite(T, frozenset({(0, (1,)), (1, ())})))


def test_appends_after_a_rollback_follow_what_it_left() -> None:
    assert not kinds(*FIRST, BACK, nth(3, Read(X, (1,)), Append(X, 3)), nth(4, Read(X, (1, 3)), Read(Y, ())))


def test_a_table_made_anew_begins_with_what_it_was_made_with() -> None:
    assert not kinds(*FIRST, nth(2, Rewrite(T, BOTH_EMPTY)), nth(3, Read(X, ()), Append(X, 3)), nth(4, Read(X, (3,))))


def test_a_transaction_may_read_before_a_rollback_and_append_after_it() -> None:
    spans = spanning(1, 3, Read(Y, ()), Append(Y, 5), Read(Y, (5,)))
    assert not kinds(FIRST[0], BACK, spans, nth(4, Read(X, (1,)), Read(Y, (5,))))


def test_a_rollback_that_is_undone_is_found() -> None:
    assert kinds(*FIRST, BACK, nth(3, Read(X, (1, 2)))) == {Kind.RESURRECTED}


def test_what_a_rollback_has_left_and_is_lost_is_found() -> None:
    assert kinds(*FIRST, BACK, nth(3, Read(X, ()))) == {Kind.DIVERGED}


def test_an_append_after_a_rollback_that_is_lost_is_found() -> None:
    history = [*FIRST, BACK, nth(3, Read(X, (1,)), Append(X, 3)), nth(4, Read(X, (1,)))]
    assert kinds(*history) == {Kind.LOST_UPDATE}


def test_an_element_of_an_aborted_transaction_after_a_rollback_is_found() -> None:
    aborted = nth(3, Read(X, (1,)), Append(X, 3), outcome=Outcome.ABORTED)
    assert kinds(*FIRST, BACK, aborted, nth(4, Read(X, (1, 3)))) == {Kind.ABORTED_READ}
