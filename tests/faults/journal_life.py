"""Days in the life of a journal, drawn by lot: changes, flushes, transactions, restarts, restored backups, a clock
that jumps by hours. After each step every row is as a model has it; what a transaction was told is what holds.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.parts import Item, Part, Place
from tests.faults.summary import Result
from tests.lakehouse.handles import Handle, create
from tests.lakehouse.small import backed_up, checked, to_new
from tests.lakehouse.transacting import THREE, Tx, names, people
from tests.support.lakehouse import Lake

from sparkport.catalog import CallContext
from sparkport.catalog.ddl import SetComment
from sparkport.errors import Conflict
from sparkport.lakehouse.faults import on_fault
from sparkport.lakehouse.journal.settings import JournalSettings
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.settings import LakehouseSettings
from sparkport.lakehouse.spark.server import SparkServer

__all__ = ["JournalLife", "JournalLives", "Life", "life"]

_SETTINGS = JournalSettings(new_tables=True, seconds=3_600.0)
_TABLES = ("a", "b")
_HOURS = 7_200.0
_SESSION = "the same"

Key = tuple[str, int]
"""A table, and the number of a row in it."""


@dataclass(slots=True)
class _Open:
    """A deferred transaction: what it has seen, what it has changed, what it would be told if it committed."""

    tx: Tx
    seen: dict[Key, int]
    """Row ids."""
    state: dict[Key, tuple[str, int]]
    changes: dict[Key, str | None] = field(default_factory=dict)
    may_conflict: bool = False

    @property
    def ctx(self) -> CallContext:
        return CallContext(transaction_id=self.tx.id, session_id=_SESSION)


class JournalLife:
    """``rows`` is the model: the value of each row, and how often it was changed."""

    def __init__(self, spark: SparkServer, folder: Path, seed: int) -> None:
        self._spark = spark
        self._folder = folder
        self._random = random.Random(seed)
        self._stack = ExitStack()
        self._later = 0.0
        self._moves = 0
        self._next = 0
        self.rows: dict[Key, tuple[str, int]] = {}
        self.open: _Open | None = None
        self.counts: Counter[str] = Counter()
        self._started(LakehouseSettings(warehouse=str(folder / "first"), sessions=2))
        for name in _TABLES:
            create(self.lake, name, THREE.slice(0, 0))

    def close(self) -> None:
        self._stack.close()

    def run(self, steps: int) -> None:
        for number in range(steps):
            step = self._random.choices(list(_STEPS), list(_STEPS.values()))[0]
            self.counts[step.__name__.strip("_")] += 1
            step(self)
            self._look(f"step {number}, {step.__name__}")
        self._commit()
        self._flush()
        self._look("the end")
        for name in _TABLES:
            table = Handle(self.lake, name)
            assert _values(table.agreed(pyiceberg=False)) == self._values(name)
        found = checked(self.lake.opened.settings).found
        assert not found, found

    # The server

    def _started(self, settings: LakehouseSettings) -> None:
        """The one before is not stopped, which would flush: it is not heard of any more, as if it had been killed."""
        self.open = None
        self.lake = Lake(self._stack.enter_context(Lakehouse(settings, spark=self._spark, journal=_SETTINGS)))
        self._set_clock()

    def _set_clock(self) -> None:
        records, later = self.lake.pointers.journal, self._later
        assert records is not None
        records.clock = lambda: time.time() + later
        records.remember_bytes = self._random.choice([64 << 20, 3_000])

    def _die_and_sleep(self) -> None:
        """Hours later there is another server."""
        self._later += _HOURS
        self._started(self.lake.opened.settings)

    def _hours_pass(self) -> None:
        self._later += _HOURS
        self._set_clock()
        if self.open is not None:
            self.open.may_conflict = True

    def _restore_a_backup(self) -> None:
        """Taken now, and restored hours later at another place."""
        self._moves += 1
        backup, place = self._folder / f"backup{self._moves}", self._folder / f"place{self._moves}"
        backed_up(self.lake.opened.settings, backup)
        self._later += _HOURS
        self._started(to_new(backup, place, sessions=2))

    # Changes that are committed at once

    def _table(self) -> str:
        return self._random.choice(_TABLES)

    def _insert(self) -> None:
        name, count = self._table(), self._random.choice([1, 1, 3])
        fresh = range(self._next, self._next + count)
        self._next += count
        Handle(self.lake, name).insert(people(*((number, f"n{number}") for number in fresh)))
        self.rows |= {(name, number): (f"n{number}", 0) for number in fresh}

    def _update(self) -> None:
        if key := self._some(self.rows):
            value = f"u{self._random.randrange(1_000_000)}"
            table = Handle(self.lake, key[0])
            table.update([table.ids()[key[1]]], names(value))
            self.rows[key] = (value, self.rows[key][1] + 1)

    def _delete(self) -> None:
        if key := self._some(self.rows):
            table = Handle(self.lake, key[0])
            table.delete([table.ids()[key[1]]])
            del self.rows[key]

    def _come_and_go(self) -> None:
        """A flush of nothing else comes to nothing."""
        table = Handle(self.lake, self._table())
        table.insert(people((-1, "for a moment")))
        table.delete([table.ids()[-1]])

    def _some(self, keys: dict[Key, tuple[str, int]] | dict[Key, int]) -> Key | None:
        return self._random.choice(sorted(keys)) if keys else None

    # Flushes

    def _flush(self) -> None:
        self.lake.opened.journal.flush(120)
        if self.open is not None:
            records = self.lake.pointers.journal
            assert records is not None
            self.open.may_conflict |= records.remember_bytes < 10_000

    def _flush_beside_changes(self) -> None:
        """They come between the cut and the commit, and are about rows that are given other ids just then."""

        def change() -> None:
            on_fault("publish.before", None)
            for step in self._random.choices([_insert, _update, _update, _delete], k=3):
                step(self)

        on_fault("publish.before", change)
        try:
            self._flush()
        finally:
            on_fault("publish.before", None)
        self._random.choice([_die_and_sleep, _restore_a_backup, _hours_pass, _look])(self)

    # A transaction

    def _begin(self) -> None:
        if self.open is None:
            tx = Tx(self.lake, who=CallContext(session_id=_SESSION))
            ctx = CallContext(transaction_id=tx.id, session_id=_SESSION)
            seen = {
                (name, row["id"]): row_id
                for name in _TABLES
                for row_id, row in Handle(self.lake, name).sparkport(ctx).items()
            }
            self.open = _Open(tx, seen, dict(self.rows))

    def _change_in_it(self) -> None:
        if self.open is None or (key := self._some(self.open.seen)) is None or key in self.open.changes:
            return
        table, value = Handle(self.lake, key[0]), self._random.choice([None, f"t{self._random.randrange(1_000_000)}"])
        try:
            if value is None:
                table.delete([self.open.seen[key]], self.open.ctx)
            else:
                table.update([self.open.seen[key]], names(value), self.open.ctx)
        except Conflict:
            assert self.open.may_conflict
            self.open = None
            return
        self.open.changes[key] = value

    def _alter_in_its_session(self) -> None:
        name = self._table()
        session = CallContext(session_id=_SESSION)
        Handle(self.lake, name).table(session).alter(session, SetComment(f"c{self._random.randrange(1_000_000)}"))
        if self.open is not None:
            self.open.may_conflict = True

    def _commit(self) -> None:
        if self.open is None:
            return
        done, self.open = self.open, None
        lost = [
            key
            for key, value in done.changes.items()
            if self.rows.get(key) != done.state[key] and not (value is None and key not in self.rows)
        ]
        try:
            done.tx.commit()
        except Conflict:
            assert lost or done.may_conflict, f"a conflict without a reason: {done.changes}"
            self.counts["conflicts"] += 1
            return
        assert not lost, f"committed over the changes of others: {lost}"
        self.counts["commits"] += 1
        for key, value in done.changes.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = (value, self.rows[key][1] + 1)

    # What must be so

    def _values(self, name: str) -> dict[int, str]:
        return {number: value for (table, number), (value, _) in self.rows.items() if table == name}

    def _look(self, when: str = "a flush") -> None:
        for name in _TABLES:
            found, expected = _values(Handle(self.lake, name).sparkport()), self._values(name)
            assert found == expected, f"after {when}, table {name} has {found}, not {expected}"


_insert, _update, _delete = JournalLife._insert, JournalLife._update, JournalLife._delete
_die_and_sleep, _restore_a_backup = JournalLife._die_and_sleep, JournalLife._restore_a_backup
_hours_pass, _look = JournalLife._hours_pass, JournalLife._look

_STEPS: dict[Callable[[JournalLife], None], int] = {
    JournalLife._insert: 5,
    JournalLife._update: 4,
    JournalLife._delete: 2,
    JournalLife._come_and_go: 2,
    JournalLife._flush: 3,
    JournalLife._flush_beside_changes: 4,
    JournalLife._begin: 4,
    JournalLife._change_in_it: 6,
    JournalLife._alter_in_its_session: 1,
    JournalLife._commit: 3,
    JournalLife._hours_pass: 2,
    JournalLife._die_and_sleep: 1,
}


def _values(rows: dict[int, dict[str, object]]) -> dict[object, object]:
    return {row["id"]: row["name"] for row in rows.values()}


@contextmanager
def life(spark: SparkServer, folder: Path, seed: int) -> Iterator[JournalLife]:
    made = JournalLife(spark, folder, seed)
    try:
        yield made
    finally:
        made.close()


@dataclass(frozen=True, slots=True)
class Life:
    number: int
    seed: int

    def __str__(self) -> str:
        return f"a journal's life, seed {self.seed}"


class JournalLives(Part):
    def __init__(self, lives: int = 30, steps: int = 60) -> None:
        self._lives = lives
        self._steps = steps

    def items(self, seed: int) -> Sequence[Life]:
        return [Life(number, seed * 1_000 + number) for number in range(1, self._lives + 1)]

    def run(self, item: Item, place: Place, catalog: str | None) -> Result:
        assert isinstance(item, Life)
        with life(place.spark("sqlite"), place.folder / f"life{item.number}", item.seed) as lived:
            lived.run(self._steps)
        told = ", ".join(f"{count} {what}" for what, count in sorted(lived.counts.items()))
        return Result(what=str(item), said=told, transactions=lived.counts["commits"])
