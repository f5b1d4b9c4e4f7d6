"""Of large answers only some are made and sent at a moment, and who waits for a slow reader is in nobody's way."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sparkport.wire.turns import Turn, Turns

pytestmark = pytest.mark.tier("fast")

LONG, SHORT = 600.0, 0.01


def test_no_more_than_so_many_have_a_turn_at_once() -> None:
    turns = Turns(at_once=3, seconds=LONG)
    lock = threading.Lock()
    running = most = done = 0

    def send(_: int) -> None:
        nonlocal running, most, done
        turn = Turn(turns)
        for _ in range(50):
            turn.begin()
            with lock:
                running += 1
                most = max(most, running)
            with lock:
                running -= 1
                done += 1
            turn.end()

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(send, range(12)))
    assert done == 600
    assert 1 <= most <= 3


def test_who_waits_gets_the_turn_that_another_gives_back() -> None:
    turns = Turns(at_once=1, seconds=LONG)
    first, second = Turn(turns), Turn(turns)
    first.begin()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.begin)
        assert not waiting.done()
        first.end()
        waiting.result(timeout=60)


def test_a_turn_is_over_after_its_time() -> None:
    turns = Turns(at_once=1, seconds=SHORT)
    stalled, second, third = (Turn(turns) for _ in range(3))
    stalled.begin()
    second.begin()
    stalled.end()  # it was over: this one gives nobody's turn back
    with ThreadPoolExecutor(1) as pool:
        pool.submit(third.begin).result(timeout=60)


def test_an_end_without_a_beginning_gives_nothing_back() -> None:
    turns = Turns(at_once=1, seconds=LONG)
    first, second = Turn(turns), Turn(turns)
    first.begin()
    second.end()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.begin)
        threading.Event().wait(0.05)
        assert not waiting.done()
        first.end()
        waiting.result(timeout=60)
