"""A table that cannot be published among healthy ones, at a server that flushes all the time and is killed at times.

Clients go on meanwhile: small and large changes, commits over two tables, DDL and flushes, in an order that the seed
decides. Healthy tables must take all of it and be published; what is acknowledged for the others must be there, whole,
when the table is mended.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from tests.faults.poison import Mend, lose_data, lose_metadata, require_column
from tests.faults.rig import Rig, Rows

from sparkport.errors import SparkportError
from sparkport.lakehouse.catalogs.database import Database
from sparkport.lakehouse.catalogs.open_database import open_database
from sparkport.lakehouse.catalogs.sql_pointers import SqlPointers
from sparkport.lakehouse.faults import Fault
from sparkport.lakehouse.names import TableName

__all__ = ["ARGUMENTS", "POISONS", "Poisoning", "poisonings", "run_poisoned"]

ARGUMENTS = ("--journal", "--journal-seconds", "0.2", "--journal-rows", "50")
"""Of a server that publishes by itself, and takes more rows than these for a large change."""

POISONS = ("data", "metadata", "required", "dropped")
_FIRST = 5
"""Rows that each table has from the beginning."""
_STEPS = 24
_LARGE = 80
_EACH = 6
_PAUSE_SECONDS = 5.0
_POINTS = ("commit.decided", "apply.before", "apply.after", "publish.before")
"""That a flush and a large change pass, and a small one does not."""


@dataclass(frozen=True, slots=True)
class Poisoning:
    number: int
    poison: str
    chance: int
    catalog: str = "sqlite"
    steps: int = _STEPS

    def __str__(self) -> str:
        return f"{self.poison}, {self.steps} steps of chance {self.chance}"


def poisonings(seed: int) -> list[Poisoning]:
    chosen = [(poison, chance) for chance in range(_EACH) for poison in POISONS]
    return [
        Poisoning(number, poison, seed * 1_000 + chance, ("sqlite", "postgresql")[chance % 2])
        for number, (poison, chance) in enumerate(chosen, 1)
    ]


def run_poisoned(case: Poisoning, rig: Rig) -> tuple[int, int]:
    """How many commits were acknowledged, and kills; raises AssertionError where something is not as it must be."""
    return _Run(case, rig).whole()


class _Run:
    """``known`` are the rows that were acknowledged, by table."""

    def __init__(self, case: Poisoning, rig: Rig) -> None:
        self._case = case
        self._rig = rig.start()
        self._random = random.Random(case.chance)
        prefix = f"p{case.number}_{case.chance}"
        self.bad, self.tied, *self.healthy = (
            f"public.{prefix}_{name}" for name in ("bad", "tied", "first", "second", "third")
        )
        self.known: dict[str, Rows] = {}
        self._key = 1_000
        self._commits = 0
        self._kills = 0

    def whole(self) -> tuple[int, int]:
        first: Rows = {number: f"n{number}" for number in range(_FIRST)}
        for table in (self.bad, self.tied, *self.healthy):
            self._rig.client.create_table(table, _rows({0: ""}).schema)
            self._rig.client.insert(table, _rows(first))
            self.known[table] = dict(first)
        self._rig.client.flush_journal()
        with self._database() as database:
            mend = self._poisoned(database)
            try:
                for _ in range(self._case.steps):
                    self._step()
                self._flushed()
                if self._case.poison == "dropped":
                    self._check_put_aside()
                else:
                    self._check_set_apart()
            finally:
                mend()
        self._disarmed()
        self._rig.client.flush_journal()
        for table, rows in self.known.items():
            _same(self._rig.rows(table), rows, f"{table} through sparkport")
            _same(self._rig.pyiceberg_rows(table), rows, f"{table} by PyIceberg")
        _same(self._rig.missing(), [], "files that are missing")
        return self._commits, self._kills

    @contextmanager
    def _database(self) -> Iterator[Database]:
        """The catalog's, as others have it in their hands."""
        database = open_database(self._rig.catalog_uri or f"sqlite:///{self._rig.warehouse}/catalog.db")
        try:
            yield database
        finally:
            database.close()

    def _poisoned(self, database: Database) -> Mend:
        """A change of the table waits, and a flush of it has begun, when it becomes one that cannot be applied."""
        pointers, table, kind = SqlPointers(database, "lake"), TableName(*self.bad.split(".")), self._case.poison
        value = None if kind == "required" else "changed"
        row = pa.table({"rowid": [self._rig.row_ids(self.bad)[0]], "v": pa.array([value], pa.string())})
        self._rig.arm(Fault("commit.decided", "pause", _PAUSE_SECONDS))
        self._rig.client.update(self.bad, row)
        self.known[self.bad][0] = value
        self._rig.met()
        if kind == "data":
            return lose_data(pointers, table)
        if kind == "metadata":
            mend = lose_metadata(pointers, table)
            self._killed()  # a server that knows what is lost can publish: Spark changes a copy of it
            return mend
        if kind == "required":
            return require_column(pointers, table, "v")
        with database.transaction(write=True) as work:
            work.change("DELETE FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?", list(table))
        del self.known[self.bad]
        return lambda: None

    # What clients do

    def _step(self) -> None:
        what = self._random.choices(
            [self._small, self._tie, self._pair, self._large, self._alter, self._flushed, self._killed, self._armed],
            weights=[8, 3, 3, 2, 2, 2, 1, 2],
        )[0]
        what()

    def _small(self) -> None:
        self._commit([self._random.choice([self.bad, self.tied, *self.healthy])])

    def _tie(self) -> None:
        self._commit([self.bad, self.tied])

    def _pair(self) -> None:
        self._commit(self._random.sample(self.healthy, 2))

    def _commit(self, tables: Sequence[str], rows: int = 1) -> None:
        """A change of a healthy table is never refused; of the other it may be, and then nothing has happened."""
        new: Rows = {self._key + number: f"v{self._key}" for number in range(rows)}
        self._key += rows
        try:
            with self._rig.client.transaction() as transaction:
                for table in tables:
                    transaction.insert(table, _rows(new))
        except SparkportError:
            if self.bad not in tables:
                raise
            return
        self._commits += 1
        for table in tables:
            self.known[table].update(new)

    def _large(self) -> None:
        """Past the journal, after a flush of this table alone."""
        self._disarmed()
        self._commit([self._random.choice(self.healthy)], _LARGE)

    def _alter(self) -> None:
        self._disarmed()
        table = self._random.choice(self.healthy)
        self._rig.client.insert(table, _rows({self._key: "before"}))
        self.known[table][self._key] = "before"
        self._key += 1
        self._rig.client.add_column(table, pa.field("more", pa.int64()))
        self._rig.client.drop_column(table, "more")

    def _flushed(self) -> None:
        """All healthy tables are published; who could not be is named, and nobody else is."""
        self._disarmed()
        try:
            self._rig.client.flush_journal()
        except SparkportError as exc:
            if self.bad not in str(exc) or any(table in str(exc) for table in self.healthy):
                raise
        for table in self.healthy:
            _same(self._rig.pyiceberg_rows(table), self.known[table], f"{table} by PyIceberg, while others are apart")
            _same(self._rig.rows(table), self.known[table], f"{table} through sparkport, while others are apart")

    def _killed(self) -> None:
        self._kills += 1
        self._rig.kill()
        self._rig.start()

    def _armed(self) -> None:
        """The next flush, or large change, fails at some point of its way: that is nobody's fault."""
        self._rig.arm(Fault(self._random.choice(_POINTS), self._random.choice(["error", "lost"])))

    def _disarmed(self) -> None:
        self._rig.disarm()

    # What must be so while the table is as it is

    def _check_set_apart(self) -> None:
        """Of a commit over both tables nobody sees one half: the one cannot be published, so the other is not."""
        report = json.loads(self._rig.client.action("journal_status")[-1])
        apart = {f"{item['schema_name']}.{item['table_name']}" for item in report["tables_set_apart"]}
        if self.bad not in apart or not apart <= {self.bad, self.tied}:
            raise AssertionError(f"set apart are {sorted(apart)}")
        shared = self.known[self.bad].keys() & self.known[self.tied].keys() - set(range(_FIRST))
        if halves := self._rig.pyiceberg_rows(self.tied).keys() & shared:
            raise AssertionError(f"of commits over two tables one half is published: {sorted(halves)}")

    def _check_put_aside(self) -> None:
        name = self.bad.partition(".")[2]
        if not list((self._rig.warehouse / ".journal").glob(f"{name}-*.parquet")):
            raise AssertionError("what waited for the table that was dropped is nowhere")


def _same(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found}, not {expected}")


def _rows(rows: Rows) -> pa.Table:
    return pa.table({"id": pa.array(list(rows), pa.int64()), "v": pa.array(list(rows.values()), pa.string())})
