"""What goes on beside the clients of a workload: the engine's work on its own tables, and changes past the server.

Each runs in a thread until the clients are done, at least once. What plain Spark does to rows that clients look at is
in the record like their own transactions.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from tests.consistency.history import NO_CLIENT, Append, Operation, Outcome, Recorder, Transaction
from tests.support.plain_spark import LostRace, PlainSpark

from sparkport.errors import Conflict, NotFound

__all__ = ["Disturbance", "Foreigner", "appends_to_lists", "keeps_rows_of_its_own", "maintains", "until"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

Disturbance = Callable[[Recorder, threading.Event, random.Random], None]
Foreigner = Callable[[PlainSpark, Sequence[str]], Disturbance]

_PAUSE = 4
"""How many transactions clients end between two disturbances of a kind."""


def maintains(maintain: Callable[[str], int], tables: Sequence[str]) -> Disturbance:
    def disturb(recorder: Recorder, over: threading.Event, dice: random.Random) -> None:
        for table in until(over, recorder, tables):
            try:
                maintain(table)
            except (Conflict, NotFound) as exc:  # it has had to give way to somebody, which is its place
                logger.info("maintenance of %s gave way: %s", table, exc)

    return disturb


def appends_to_lists(keys: int) -> Foreigner:
    """Plain Spark appends to the clients' own rows, now and then to two rows in one statement."""

    def foreigner(spark: PlainSpark, tables: Sequence[str]) -> Disturbance:
        def disturb(recorder: Recorder, over: threading.Event, dice: random.Random) -> None:
            for table in until(over, recorder, tables):
                number = recorder.new_id()
                chosen = sorted(dice.sample(range(keys), dice.randint(1, 2)))
                sql = (
                    f"UPDATE {{t}} SET elements = concat_ws(',', nullif(elements, ''), {number * 10} + key) "
                    f"WHERE key IN ({', '.join(map(str, chosen))})"
                )
                appends = [Append((table, key), number * 10 + key) for key in chosen]
                _recorded(recorder, number, appends, partial(spark.run, sql, table))

        return disturb

    return foreigner


def keeps_rows_of_its_own(spark: PlainSpark, tables: Sequence[str]) -> Disturbance:
    """Plain Spark inserts, updates and deletes rows that clients do not look at, between theirs."""
    statements = (
        "INSERT INTO {t} VALUES (-1, 1, 0), (-2, 1, 0)",
        "UPDATE {t} SET value = value + 1 WHERE key = -1",
        "DELETE FROM {t} WHERE key = -2",
    )

    def disturb(recorder: Recorder, over: threading.Event, dice: random.Random) -> None:
        for table, statement in zip(until(over, recorder, tables), itertools.cycle(statements), strict=False):
            try:
                spark.run(statement, table)
            except LostRace as exc:
                logger.info("plain Spark lost a race: %s", exc)

    return disturb


def _recorded(recorder: Recorder, number: int, operations: Sequence[Operation], work: Callable[[], None]) -> None:
    called = recorder.clock()
    outcome = Outcome.OK
    try:
        work()
    except LostRace as exc:
        logger.info("plain Spark lost a race: %s", exc)
        outcome = Outcome.ABORTED
    recorder.add(
        Transaction(
            id=number,
            client=NO_CLIENT,
            operations=tuple(operations),
            outcome=outcome,
            begin_called=called,
            begun=called,
            end_called=called,
            ended=recorder.clock(),
        )
    )


def until(over: threading.Event, recorder: Recorder, items: Sequence[T]) -> Iterator[T]:
    """One after another and from the start again, the first in any case.

    Between two of them clients get through: who is disturbed without a pause can be beaten every time.
    """
    for item in itertools.cycle(items):
        yield item
        ended = recorder.count_of_clients()
        while recorder.count_of_clients() < ended + _PAUSE:
            if over.wait(0.02):
                return
