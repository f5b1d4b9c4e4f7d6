"""Deferred transactions on tables of people, and what happens at a point of a commit, as several tests use them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from tests.lakehouse.handles import NOBODY, Rows
from tests.support.lakehouse import Lake

from sparkport.catalog import CallContext
from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.lakehouse.faults import on_fault

__all__ = ["FIVE", "THREE", "Tx", "at_each", "at_point", "by_key", "names", "people", "wait_until"]


def people(*rows: tuple[int, str | None]) -> pa.Table:
    return pa.table({"id": pa.array([row[0] for row in rows], pa.int64()), "name": pa.array([row[1] for row in rows])})


FIVE = people(*((number, f"n{number}") for number in range(5)))
THREE = FIVE.slice(0, 3)


def names(*values: str | None) -> pa.Table:
    return pa.table({"name": pa.array(values, pa.string())})


def by_key(rows: Rows) -> dict[int, str | None]:
    return {row["id"]: row["name"] for row in rows.values()}


class Tx:
    """A deferred transaction, of whoever calls."""

    def __init__(self, lake: Lake, isolation: Isolation = Isolation.SNAPSHOT, *, who: CallContext = NOBODY) -> None:
        self.manager = lake.opened.engine.transactions
        self.id = self.manager.begin(who, auto_commit=False, isolation=isolation)
        self.ctx = CallContext(transaction_id=self.id, identity=who.identity)

    def commit(self) -> None:
        self.manager.commit(self.id)

    def rollback(self) -> None:
        self.manager.rollback(self.id)

    @property
    def status(self) -> TransactionState | None:
        return self.manager.status(self.id)


@contextmanager
def at_point(point: str, action: Callable[[], object]) -> Iterator[None]:
    """Something that happens once when a write reaches a point."""
    left = [action]

    def once() -> None:
        if left:
            left.pop()()

    with at_each(point, once):
        yield
    assert not left, "the point was not reached"


@contextmanager
def at_each(point: str, action: Callable[[], None]) -> Iterator[None]:
    """Something that happens each time when a write reaches a point."""
    on_fault(point, action)
    try:
        yield
    finally:
        on_fault(point, None)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
