"""The checker of sets itself, on histories made by hand: each anomaly is found, and no overlap is taken for one."""

from __future__ import annotations

import pytest
from tests.consistency.checker import Anomaly, Kind
from tests.consistency.history import Delete, Insert, Operation, Outcome, Read, Rewrite, Transaction
from tests.consistency.set_checker import check_sets

pytestmark = pytest.mark.tier("fast")

A, B = "a", "b"


def at(
    number: int, moments: tuple[int, int, int, int], *operations: Operation, outcome: Outcome = Outcome.OK
) -> Transaction:
    begin_called, begun, end_called, ended = moments
    return Transaction(
        id=number,
        operations=operations,
        outcome=outcome,
        begin_called=begin_called,
        begun=begun,
        end_called=end_called,
        ended=ended,
    )


def after(place: int) -> tuple[int, int, int, int]:
    """The moments of one that comes as the n-th, when all before it are over."""
    return 4 * place + 1, 4 * place + 2, 4 * place + 3, 4 * place + 4


def kinds(*history: Transaction) -> set[Kind]:
    return {anomaly.kind for anomaly in check_sets(history)}


def only(anomalies: list[Anomaly]) -> Anomaly:
    assert len(anomalies) == 1, anomalies
    return anomalies[0]


INSERTED = at(1, after(0), Insert(A, 1))


# What is no anomaly


def test_a_history_one_after_the_other_is_clean() -> None:
    assert not kinds(
        INSERTED,
        at(2, after(1), Read(A, (1,)), Insert(A, 2), Insert(B, 3), Read(A, (1, 2))),
        at(3, after(2), Read(A, (1, 2)), Read(B, (3,)), Delete(A, 1), Delete(B, 3), Read(A, (2,))),
        at(4, after(3), Read(A, (2,)), Read(B, ())),
    )


@pytest.mark.parametrize("seen", [(), (1,)])
def test_what_is_committed_while_a_reader_begins_may_be_seen_or_not(seen: tuple[int, ...]) -> None:
    assert not kinds(at(1, (1, 2, 3, 7), Insert(A, 1)), at(2, (4, 5, 8, 9), Read(A, seen)))


def test_a_reader_sees_the_moment_at_which_it_began() -> None:
    assert not kinds(at(2, (1, 2, 8, 9), Read(A, ())), at(1, (3, 4, 5, 6), Insert(A, 1)))


def test_what_was_made_and_removed_in_one_transaction_never_was() -> None:
    history = [at(1, after(0), Insert(A, 1), Read(A, (1,)), Delete(A, 1), Read(A, ())), at(2, after(1), Read(A, ()))]
    assert not kinds(*history)


def test_a_value_that_two_have_deleted_is_gone() -> None:
    assert not kinds(
        INSERTED,
        at(2, (5, 6, 9, 11), Read(A, (1,)), Delete(A, 1)),
        at(3, (7, 8, 10, 12), Read(A, (1,)), Delete(A, 1)),
        at(4, after(3), Read(A, ())),
    )


def test_a_rollback_takes_values_away_and_brings_others_back() -> None:
    assert not kinds(
        INSERTED,
        at(2, after(1), Delete(A, 1), Insert(A, 2)),
        at(3, after(2), Read(A, (2,))),
        at(4, after(3), Rewrite(A, frozenset({1}))),
        at(5, after(4), Read(A, (1,))),
    )


def test_a_commit_beside_a_rollback_may_be_undone_or_not() -> None:
    for seen in ((1,), (1, 2)):
        assert not kinds(
            INSERTED,
            at(2, (5, 6, 7, 12), Insert(A, 2)),
            at(3, (8, 9, 10, 11), Rewrite(A, frozenset({1}))),
            at(4, after(3), Read(A, seen)),
        )


def test_the_parts_of_a_transaction_may_be_undone_table_by_table() -> None:
    assert not kinds(
        at(1, after(0), Insert(A, 1), Insert(B, 2)),
        at(2, after(1), Rewrite(A, frozenset())),
        at(3, after(2), Read(A, ()), Read(B, (2,))),
    )


def test_who_began_before_a_value_came_does_not_see_that_it_went() -> None:
    moved = at(3, (7, 8, 9, 10), Delete(A, 1), Insert(B, 2))
    assert not kinds(at(1, (1, 2, 20, 21), Read(A, ()), Read(B, ())), at(2, (3, 4, 5, 6), Insert(A, 1)), moved)


def test_a_value_that_another_has_deleted_first_says_nothing_of_the_second() -> None:
    first = at(2, (5, 6, 8, 9), Delete(A, 1))
    second = at(3, (5, 7, 10, 16), Read(A, (1,)), Delete(A, 1), Insert(B, 2))
    assert not kinds(INSERTED, first, second, at(4, (11, 12, 13, 14), Read(A, ()), Read(B, ())))


# What is one


def test_a_value_that_is_there_twice_is_found() -> None:
    found = only(check_sets([INSERTED, at(2, after(1), Read(A, (1, 1)))]))
    assert (found.kind, found.transactions) == (Kind.DOUBLED, (2,))


def test_a_value_that_is_missing_is_found() -> None:
    found = only(check_sets([INSERTED, at(2, after(1), Read(A, ()))]))
    assert (found.kind, found.transactions) == (Kind.LOST, (2, 1))


def test_a_value_that_an_aborted_transaction_has_deleted_is_lost() -> None:
    deleted = at(2, after(1), Delete(A, 1), outcome=Outcome.ABORTED)
    assert kinds(INSERTED, deleted, at(3, after(2), Read(A, ()))) == {Kind.LOST}


def test_a_value_that_comes_back_is_found() -> None:
    found = only(check_sets([INSERTED, at(2, after(1), Delete(A, 1)), at(3, after(2), Read(A, (1,)))]))
    assert (found.kind, found.transactions) == (Kind.RESURRECTED, (3, 2))


def test_a_rollback_that_is_undone_is_found() -> None:
    history = [INSERTED, at(2, after(1), Rewrite(A, frozenset())), at(3, after(2), Read(A, (1,)))]
    assert kinds(*history) == {Kind.RESURRECTED}


def test_a_value_that_a_rollback_brought_back_and_that_is_missing_is_found() -> None:
    history = [
        INSERTED,
        at(2, after(1), Delete(A, 1)),
        at(3, after(2), Rewrite(A, frozenset({1}))),
        at(4, after(3), Read(A, ())),
    ]
    assert kinds(*history) == {Kind.LOST}


def test_a_table_made_anew_that_has_old_values_is_found() -> None:
    history = [INSERTED, at(2, after(1), Rewrite(A, frozenset())), at(3, after(2), Insert(A, 2))]
    assert kinds(*history, at(4, after(3), Read(A, (1, 2)))) == {Kind.RESURRECTED}


def test_a_value_of_an_aborted_transaction_is_found() -> None:
    aborted = at(1, after(0), Insert(A, 1), outcome=Outcome.ABORTED)
    found = only(check_sets([aborted, at(2, after(1), Read(A, (1,)))]))
    assert (found.kind, found.transactions) == (Kind.ABORTED_READ, (2, 1))


def test_a_value_of_nobody_is_found() -> None:
    assert kinds(INSERTED, at(2, after(1), Read(A, (1, 7)))) == {Kind.INVENTED}


def test_a_value_from_after_the_beginning_is_found() -> None:
    assert kinds(at(2, (1, 2, 8, 9), Read(A, (1,))), at(1, (3, 4, 5, 6), Insert(A, 1))) == {Kind.FUTURE_READ}


@pytest.mark.parametrize("part", [Insert(B, 2), Insert(A, 2)], ids=["two tables", "one table"])
def test_half_a_transaction_is_found(part: Insert) -> None:
    """While it is being committed, when each half by itself may be seen or not."""
    history = [at(1, (1, 2, 3, 9), Insert(A, 1), part), at(2, (4, 5, 6, 7), Read(A, (1,)), Read(B, ()))]
    found = only(check_sets(history))
    assert (found.kind, found.transactions) == (Kind.FRACTURED_READ, (2, 1))


def test_a_move_that_is_seen_at_both_ends_is_found() -> None:
    moved = at(2, (5, 6, 7, 13), Delete(A, 1), Insert(B, 2))
    assert kinds(INSERTED, moved, at(3, (8, 9, 10, 11), Read(A, (1,)), Read(B, (2,)))) == {Kind.FRACTURED_READ}


def test_an_own_value_that_is_not_seen_is_found() -> None:
    assert kinds(at(1, after(0), Insert(A, 1), Read(A, ()))) == {Kind.OWN_WRITE_MISSING}
    assert kinds(INSERTED, at(2, after(1), Delete(A, 1), Read(A, (1,)))) == {Kind.OWN_WRITE_MISSING}


def test_a_read_that_changes_inside_a_transaction_is_found() -> None:
    late = at(1, (1, 2, 3, 9), Insert(A, 1))
    assert kinds(late, at(2, (4, 5, 6, 7), Read(A, ()), Read(A, (1,)))) == {Kind.UNREPEATABLE_READ}


def test_a_value_that_comes_and_goes_while_its_insert_is_under_way_is_found() -> None:
    """Either is right by itself, but not one after the other."""
    late = at(1, (1, 2, 3, 20), Insert(A, 1))
    seen = [at(2, (4, 5, 6, 7), Read(A, (1,))), at(3, (8, 9, 10, 11), Read(A, ()))]
    assert kinds(late, *seen) == {Kind.LOST}
    deleting = at(4, (21, 22, 23, 40), Delete(A, 1))
    back = [at(5, (24, 25, 26, 27), Read(A, ())), at(6, (28, 29, 30, 31), Read(A, (1,)))]
    assert kinds(at(1, (1, 2, 3, 20), Insert(A, 1)), deleting, *back) == {Kind.RESURRECTED}


def test_an_outcome_that_stays_unknown_is_found() -> None:
    unknown = at(1, after(0), Insert(A, 1), outcome=Outcome.UNKNOWN)
    for seen in ((), (1,)):
        assert kinds(unknown, at(2, after(1), Read(A, seen))) == {Kind.UNRESOLVED}
