"""What a worker may conclude from the answers it got, and what a comparison then finds."""

from __future__ import annotations

import random

import pytest
from tests.consistency.client import CallFailed
from tests.soak.ledger import Answer, Ledger
from tests.soak.workers import answer_of

from sparkport.client.errors import OutcomeUnknown, Unreachable
from sparkport.errors import Code, Conflict, DeadlineExceeded, InternalError, NotFound, SparkportError, Unavailable

pytestmark = pytest.mark.tier("fast")


@pytest.fixture
def ledger() -> Ledger:
    """Row 1 is there, row 2 is gone."""
    made = Ledger("t")
    made.note({1: "a", 2: "b"}, Answer.DONE)
    made.note({2: None}, Answer.DONE)
    return made


def test_rows_as_they_must_be_are_no_problem(ledger: Ledger) -> None:
    assert ledger.compare([(1, "a")]) == []
    assert (ledger.there, ledger.gone, ledger.doubtful) == ({1: "a"}, 1, 0)


def test_a_row_that_is_not_there_is_lost(ledger: Ledger) -> None:
    assert ledger.compare([]) == ["t: row 1 is lost"]


def test_a_row_that_was_deleted_is_back_again(ledger: Ledger) -> None:
    assert ledger.compare([(1, "a"), (2, "b")]) == ["t: row 2 is back again"]


def test_a_row_is_there_once(ledger: Ledger) -> None:
    assert ledger.compare([(1, "a"), (1, "a")]) == ["t: row 1 is there 2 times"]


def test_a_row_has_its_value(ledger: Ledger) -> None:
    ledger.note({1: "c"}, Answer.DONE)
    assert ledger.compare([(1, "a")]) == ["t: row 1 is 'a', not 'c'"]


def test_a_row_of_null_is_a_row(ledger: Ledger) -> None:
    assert ledger.compare([(1, None), (2, None)]) == ["t: row 1 is 'NULL', not 'a'", "t: row 2 is back again"]


def test_nobody_else_inserts(ledger: Ledger) -> None:
    assert ledger.compare([(1, "a"), (3, "x")]) == ["t: row 3 was inserted by nobody"]


def test_a_change_that_was_refused_has_not_happened(ledger: Ledger) -> None:
    ledger.note({1: None, 2: "b", 3: "c"}, Answer.REFUSED)
    assert ledger.compare([(1, "a")]) == []
    assert ledger.compare([(1, "a"), (3, "c")]) == ["t: row 3 was inserted by nobody"]


def test_a_change_whose_answer_was_lost_has_happened_or_not(ledger: Ledger) -> None:
    ledger.note({1: "z", 3: "c"}, Answer.LOST)
    assert ledger.compare([(1, "a")]) == []
    assert ledger.compare([(1, "z"), (3, "c")]) == []
    assert ledger.compare([(3, "c")]) == ["t: row 1 is lost"]
    assert ledger.compare([(1, "y")]) == ["t: row 1 is 'y', not 'a' or 'z'"]
    assert ledger.doubtful == 2


def test_keys_in_doubt_are_left_alone(ledger: Ledger) -> None:
    ledger.note({3: "c", 4: "d"}, Answer.DONE)
    ledger.note({1: None, 3: "x"}, Answer.LOST)
    assert ledger.some(random.Random(1), 8) == [4]


def test_only_the_keys_that_were_asked_for_are_compared(ledger: Ledger) -> None:
    ledger.note({5: "e"}, Answer.DONE)
    assert ledger.compare([(5, "e")], wanted=lambda key: key >= 5) == []
    assert ledger.compare([], wanted=lambda key: key >= 5) == ["t: row 5 is lost"]


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (Conflict("another was first"), Answer.REFUSED),
        (NotFound("no such transaction"), Answer.REFUSED),
        (Unreachable("cannot reach a server at x: failed to connect to all addresses"), Answer.REFUSED),
        (OutcomeUnknown("it is not known: failed to connect to all addresses"), Answer.LOST),
        (Unavailable("the answer of the catalog was lost"), Answer.LOST),
        (DeadlineExceeded("too late"), Answer.LOST),
        (InternalError("error id 1"), Answer.LOST),
        (CallFailed(Code.ABORTED, "another was first"), Answer.REFUSED),
        (CallFailed(Code.UNAVAILABLE, "Socket closed"), Answer.LOST),
    ],
)
def test_only_what_an_error_says_for_sure_is_taken_for_sure(error: SparkportError | CallFailed, answer: Answer) -> None:
    assert answer_of(error) is answer
