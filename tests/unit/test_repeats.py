"""What a server remembers so that a call that is sent again is not done twice."""

from __future__ import annotations

import pytest

from sparkport.catalog.repeats import KNOWN_SECONDS, Recent
from sparkport.errors import Conflict, Unavailable
from sparkport.handlers.operations import StatementLog
from sparkport.memory import MemoryCatalog

pytestmark = pytest.mark.tier("fast")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def done(log: StatementLog, key: str = "k") -> int | None:
    with log.once(key, MemoryCatalog("lake"), schema="public", table="t") as once:
        return once.done


def test_what_is_older_than_the_time_is_forgotten() -> None:
    clock = Clock()
    recent: Recent[str, int] = Recent(10, clock)
    recent.put("a", 1)
    clock.now = 9.9
    assert recent.get("a") == 1
    recent.put("b", 2)
    clock.now = 10
    assert (recent.get("a"), recent.get("b")) == (None, 2)


def test_nothing_is_remembered_for_no_time_at_all() -> None:
    recent: Recent[str, int] = Recent(0)
    recent.put("a", 1, "owner")
    assert recent.get("a") is None


def test_of_more_than_can_be_kept_the_oldest_are_forgotten() -> None:
    recent: Recent[int, int] = Recent(at_most=2)
    for number in (1, 2, 1, 3):
        recent.put(number, number)
    assert [recent.get(number) for number in (1, 2, 3)] == [1, None, 3]


def test_a_statement_is_known_for_a_day() -> None:
    clock = Clock()
    log = StatementLog(clock=clock)
    with log.once("k", MemoryCatalog("lake"), schema="public", table="t") as once:
        assert once.done is None
        once.count = 7
    assert done(log) == 7
    assert done(log, "another") is None
    clock.now = KNOWN_SECONDS
    assert done(log) is None


def test_a_statement_that_still_runs_is_not_run_beside_itself() -> None:
    log = StatementLog()
    with log.once("k", MemoryCatalog("lake"), schema="public", table="t"):
        with pytest.raises(Unavailable, match="still running"):
            done(log)
        assert done(log, "another") is None
    assert done(log) is None


def failed(log: StatementLog, count: int | None) -> None:
    with log.once("k", MemoryCatalog("lake"), schema="public", table="t") as once:
        assert once.done is None
        once.count = count
        raise Conflict("the answer is lost")


def test_a_statement_that_failed_can_be_run_again_and_one_that_was_committed_not() -> None:
    log = StatementLog()
    for count in (None, 3):
        with pytest.raises(Conflict):
            failed(log, count)
    assert done(log) == 3


def test_repeats_of_what_is_done_may_come_at_the_same_time() -> None:
    log = StatementLog()
    with log.once("k", MemoryCatalog("lake"), schema="public", table="t") as once:
        once.count = 1
    with log.once("k", MemoryCatalog("lake"), schema="public", table="t") as once:
        assert (once.done, done(log)) == (1, 1)


def test_who_makes_up_keys_pushes_out_none_of_others() -> None:
    recent: Recent[str, int] = Recent(at_most=100)
    recent.put("ada's", 1, "ada")
    recent.put("nobody's", 2)
    for number in range(1_000):
        recent.put(f"made up {number}", number, "mallory")
    assert (recent.get("ada's"), recent.get("nobody's")) == (1, 2)
    kept = [number for number in range(1_000) if recent.get(f"made up {number}") is not None]
    assert kept == list(range(990, 1_000))


def test_a_key_that_changes_hands_counts_for_its_new_owner_alone() -> None:
    recent: Recent[str, int] = Recent(at_most=20)
    recent.put("k", 1, "ada")
    recent.put("k", 2, "bob")
    for number in range(5):
        recent.put(str(number), number, "ada")
    assert recent.get("k") == 2
