"""Random operations of several clients, each compared with the model: all transaction rules of the contract at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.consistency.drivers import Driver, EngineDriver, WireDriver
from tests.consistency.engines import ENGINES
from tests.consistency.model import Model, ModelTransaction, Refused, Rows
from tests.support.tiers import on_engines

pytestmark = pytest.mark.tier("fast")

T = TypeVar("T")

_SCALE = int(os.environ.get("SPARKPORT_CONSISTENCY_SCALE", "1"))
"""How many times as many examples as in a quick run."""

_FEW = 5
_CLIENTS = 5
_OUTSIDE = _CLIENTS - 1
_ANY = st.integers(0, _OUTSIDE - 1)
_SOMEWHERE = st.integers(0, _OUTSIDE)
_SELDOM = st.integers(0, 4).map(lambda number: number == 4)
_SIZES = st.integers(1, 4)
_VALUES = st.integers(0, 99)
_TABLES = st.sampled_from(Driver.tables)
_PICKS = st.lists(st.integers(0, 40), min_size=1, max_size=3)


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """One transaction, in the model and in the engine."""

    model: ModelTransaction
    engine: str


def outcome(operation: Callable[[], T]) -> T | str:
    """What came of it, so that two can be compared: a value, or the code of a refusal."""
    try:
        return operation()
    except Refused as refused:
        return refused.code.name


class Consistency(RuleBasedStateMachine):
    """Each client is in one transaction at a time, some of the time in none; the last one never is in any."""

    def __init__(
        self, driver: Driver, *, looks_after_every_step: bool = False, commits_are_versions: bool = True
    ) -> None:
        super().__init__()
        self.commits_are_versions = commits_are_versions
        self.driver = driver
        self.looks_after_every_step = looks_after_every_step
        self.model = Model(*Driver.tables)
        self.clients: list[Pair | None] = [None] * _CLIENTS
        self.keys = 0

    def teardown(self) -> None:
        try:
            for table in Driver.tables:
                versions = [rows for _, rows in self.model.tables[table].history]
                assert self.driver.read(table, None) == versions[-1]
                if not self.commits_are_versions:
                    continue
                assert [self.driver.read(table, None, version=number) for number in range(len(versions))] == versions
                assert self.refused(table, version=len(versions)) == "NOT_FOUND", "there are more versions than commits"
        finally:
            self.driver.close()

    @initialize(sizes=st.tuples(_SIZES, _SIZES))
    def fill(self, sizes: tuple[int, int]) -> None:
        for table, size in zip(Driver.tables, sizes, strict=True):
            self.insert(_OUTSIDE, table, list(range(size)))

    # Transactions

    @rule(client=_ANY, auto_commit=st.booleans(), serializable=_SELDOM)
    def begin(self, client: int, auto_commit: bool, serializable: bool) -> None:
        if not self.driver.defers:
            auto_commit, serializable = True, False
        self.clients[client] = Pair(
            self.model.begin(auto_commit=auto_commit, serializable=serializable),
            self.driver.begin(auto_commit=auto_commit, serializable=serializable),
        )

    @precondition(lambda self: self.driver.turns_deferred)
    @rule(client=_ANY)
    def defer(self, client: int) -> None:
        if (pair := self.clients[client]) is not None:
            self.same(lambda: self.model.defer(pair.model), lambda: self.driver.defer(pair.engine), pair)

    @rule(client=_ANY, stay=_SELDOM)
    def commit(self, client: int, stay: bool) -> None:
        if (pair := self.clients[client]) is not None:
            self.same(lambda: self.model.commit(pair.model), lambda: self.driver.commit(pair.engine), pair)
            self.clients[client] = pair if stay else None

    @rule(client=_ANY, stay=_SELDOM, really=_SELDOM)
    def roll_back(self, client: int, stay: bool, really: bool) -> None:
        if (pair := self.clients[client]) is not None and really:
            self.same(lambda: self.model.rollback(pair.model), lambda: self.driver.rollback(pair.engine), pair)
            self.clients[client] = pair if stay else None

    # Reads

    @rule(client=_SOMEWHERE, table=_TABLES)
    def read(self, client: int, table: str) -> None:
        pair, model, engine = self.sides(client)
        self.same(lambda: self.model.read(table, model), lambda: self.driver.read(table, engine), pair)

    @rule(client=_SOMEWHERE, table=_TABLES, pick=st.integers(0, 30))
    def read_version(self, client: int, table: str, pick: int) -> None:
        pair, model, engine = self.sides(client)
        if not self.commits_are_versions:
            return
        version = pick % (len(self.model.tables[table].history) + 1)  # now and then one that is not there
        self.same(
            lambda: self.model.read_version(table, version, model),
            lambda: self.driver.read(table, engine, version=version),
            pair,
        )

    # Row changes

    @rule(client=_SOMEWHERE, table=_TABLES, values=st.lists(_VALUES, min_size=1, max_size=3))
    def insert(self, client: int, table: str, values: list[int]) -> None:
        pair, model, engine = self.sides(client)
        rows = {self.keys + index: value for index, value in enumerate(values)}
        self.keys += len(values)
        self.same(lambda: self.model.insert(table, rows, model), lambda: self.driver.insert(table, rows, engine), pair)
        if self.driver.reads_for_ids and model is not None and not model.auto_commit:
            model.read.add(table)

    @rule(client=_SOMEWHERE, table=_TABLES, picks=_PICKS, value=_VALUES, refuse=_SELDOM, any_key=_SELDOM)
    def update(self, client: int, table: str, picks: list[int], value: int, refuse: bool, any_key: bool) -> None:
        pair, model, engine = self.sides(client)
        keys = sorted(self.picked(table, picks, model=model, any_key=any_key))
        rows = {key: value + index for index, key in enumerate(keys)}
        self.same(
            lambda: self.model.update(table, rows, model, refuse_missing=refuse),
            lambda: self.driver.update(table, rows, engine, refuse_missing=refuse),
            pair,
        )

    @rule(client=_SOMEWHERE, table=_TABLES, picks=_PICKS, refuse=_SELDOM, any_key=_SELDOM, returning=_SELDOM)
    def delete(self, client: int, table: str, picks: list[int], refuse: bool, any_key: bool, returning: bool) -> None:
        pair, model, engine = self.sides(client)
        keys = self.picked(table, picks, model=model, any_key=any_key)
        self.same(
            lambda: self.model.delete(table, keys, model, refuse_missing=refuse, returning=returning),
            lambda: self.driver.delete(table, keys, engine, refuse_missing=refuse, returning=returning),
            pair,
        )

    @precondition(lambda self: self.looks_after_every_step)
    @invariant()
    def everybody_sees_what_is_committed(self) -> None:
        for table in Driver.tables:
            assert self.driver.read(table, None) == self.model.read(table)

    # Help

    def picked(self, table: str, picks: list[int], *, model: ModelTransaction | None, any_key: bool) -> set[int]:
        """Keys that were ever given out and one that was not; or, mostly, rows that the statement can find."""
        known: Sequence[int] = range(self.keys + 1)
        if not any_key:
            pinned = self.model.tables[table].now if model is None else self.model.tables[table].at(model.pin(table))
            known = sorted({*pinned, *({} if model is None else model.own.get(table, {}))}) or known
        return {known[pick % len(known)] for pick in picks}

    def sides(self, client: int) -> tuple[Pair | None, ModelTransaction | None, str | None]:
        pair = self.clients[client]
        return (None, None, None) if pair is None else (pair, pair.model, pair.engine)

    def refused(self, table: str, *, version: int) -> Rows | str:
        return outcome(lambda: self.driver.read(table, None, version=version))

    def same(self, expected: Callable[[], T], actual: Callable[[], T], pair: Pair | None) -> None:
        wanted, got = outcome(expected), outcome(actual)
        assert got == wanted
        if pair is not None:
            assert self.driver.status(pair.engine) == pair.model.status


def check(new_driver: Callable[[], Driver], *, examples: int, steps: int, **more: bool) -> None:
    machine: Any = lambda: Consistency(new_driver(), **more)  # noqa: E731 - it is taken for a class
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples * _SCALE,
            stateful_step_count=steps,
            database=None,
            suppress_health_check=list(HealthCheck),
            # To look for a smaller example costs a hundred times what it costs to find one.
            phases=[Phase.generate, Phase.shrink] if examples > _FEW else [Phase.generate],
        ),
    )


def test_the_memory_engine_equals_the_model() -> None:
    check(EngineDriver, examples=150, steps=50, looks_after_every_step=True)


@pytest.mark.parametrize("name", on_engines(sorted(ENGINES)))
def test_a_server_equals_the_model(name: str) -> None:
    with ENGINES[name]() as engine:
        size, versions = engine.size, not engine.is_journalled
        check(lambda: WireDriver(engine), examples=size.examples, steps=size.steps, commits_are_versions=versions)
