"""Which calls that wait for their clients are ended: those that wait for too long, and of many when memory is short."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from sparkport.auth.identity import Identity
from sparkport.wire.gate import FIRST_MESSAGE, MESSAGE, READER, Gate
from sparkport.wire.limits import Limits
from sparkport.wire.memory import Memory

pytestmark = pytest.mark.tier("fast")

ROOM = 1_000
LIMITS = Limits(max_held_bytes=ROOM, first_message_seconds=30, idle_seconds=1_800, write_seconds=300)
KEPT = 4
"""Calls that wait and that a subject keeps in any case."""


@contextmanager
def waiting(memory: Memory, what: int, *callers: str) -> Iterator[tuple[Gate, list[tuple[str, int]]]]:
    """A call of each of the callers that waits, and which of them have been ended, by caller and number."""
    gate = Gate(LIMITS, memory=lambda: memory)
    ended: list[tuple[str, int]] = []
    with ExitStack() as calls:
        for number, caller in enumerate(callers):
            entry = (caller, number)
            call = calls.enter_context(gate.admitted(Identity(caller), lambda entry=entry: ended.append(entry)))  # type: ignore[misc]
            call.wait_for(what)
        yield gate, ended


def later(seconds: float) -> float:
    return time.monotonic() + seconds


@pytest.mark.parametrize(
    ("what", "memory", "seconds"),
    [
        (READER, Memory(0, ROOM + 1), 6),
        (MESSAGE, Memory(ROOM // 2 + 1, 0), 0.2),
        (MESSAGE, Memory(ROOM // 4 + 1, 0), 1),
        (FIRST_MESSAGE, Memory(ROOM // 2 + 1, 0), 0.2),
    ],
    ids=["readers", "uploads when it is very short", "uploads", "first messages"],
)
def test_when_memory_is_short_who_has_many_waiting_calls_keeps_the_newest(
    what: int, memory: Memory, seconds: float
) -> None:
    with waiting(memory, what, *["alice"] * 10, *["bob"] * KEPT) as (gate, ended):
        gate.look_around(later(seconds))
        assert ended == [("alice", number) for number in range(10 - KEPT)]


@pytest.mark.parametrize(
    ("what", "memory", "seconds"),
    [
        (READER, Memory(0, ROOM), 200),
        (READER, Memory(ROOM, ROOM + 1), 3),
        (MESSAGE, Memory(ROOM // 4, 10 * ROOM), 1_000),
        (FIRST_MESSAGE, Memory(ROOM // 4, 10 * ROOM), 20),
    ],
    ids=["there is room for readers", "readers that are slow", "there is room for uploads", "and for first messages"],
)
def test_while_there_is_room_nobody_is_ended(what: int, memory: Memory, seconds: float) -> None:
    with waiting(memory, what, *["alice"] * 10) as (gate, ended):
        gate.look_around(later(seconds))
        assert ended == []


@pytest.mark.parametrize(("what", "seconds"), [(FIRST_MESSAGE, 30), (MESSAGE, 1_800), (READER, 300)])
def test_who_does_nothing_for_too_long_is_ended_though_there_is_room(what: int, seconds: float) -> None:
    with waiting(Memory(0, 0), what, "alice") as (gate, ended):
        gate.look_around(later(seconds - 20))
        assert ended == []
        gate.look_around(later(seconds + 1))
        assert ended == [("alice", 0)]


def test_calls_that_are_at_work_are_left_alone() -> None:
    gate = Gate(LIMITS, memory=lambda: Memory(10 * ROOM, 10 * ROOM))
    with ExitStack() as calls:
        for _ in range(10):
            call = calls.enter_context(gate.admitted(Identity("alice"), lambda: pytest.fail("it was ended")))
            call.wait_for(READER)
            call.go_on()
        gate.look_around(later(10_000))
