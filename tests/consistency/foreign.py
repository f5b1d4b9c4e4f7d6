"""Somebody who knows nothing of us and does to the clients' tables all that one can do past a server.

Plain Spark inserts and deletes, expires snapshots, unsets properties, rolls ``main`` back, and drops a table and makes
it anew. What it does to rows is in the record like a client's own transaction.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from tests.consistency.disturbances import Disturbance, until
from tests.consistency.history import NO_CLIENT, Append, Delete, Insert, Operation, Outcome, Recorder, Rewrite
from tests.consistency.history import Transaction as Entry
from tests.support.plain_spark import LostRace, PlainSpark

__all__ = ["Stranger"]

logger = logging.getLogger(__name__)

_RECENT = 4
"""How far back, in snapshots, a table is rolled back."""


@dataclass(slots=True)
class Stranger:
    """``closed`` is entered while a table is rewritten; ``dropping`` is told the name of a table before it is dropped.

    ``remade`` are the tables that may be dropped and made anew, by their places; ``keys`` those of lists, without which
    tables are sets.
    """

    spark: PlainSpark
    keys: Sequence[int] = ()
    remade: Sequence[int] = ()
    closed: Callable[[], AbstractContextManager[None]] = nullcontext
    dropping: Callable[[str], None] = lambda table: None
    counts: dict[str, int] = field(default_factory=dict)

    def on(self, tables: Sequence[str]) -> Disturbance:
        deeds: dict[str, tuple[int, Callable[[Recorder, str, random.Random], None]]] = {
            "write": (5, self._append if self.keys else self._write),
            "unset": (3, self._unset),
            "expire": (2, self._expire),
            "roll back": (3, self._roll_back),
            "make anew": (1, self._make_anew),
        }

        def disturb(recorder: Recorder, over: threading.Event, dice: random.Random) -> None:
            names = self._chosen(deeds, dice)
            for name, table in zip(names, until(over, recorder, tables), strict=False):
                chosen = tables[dice.choice(self.remade)] if name == "make anew" else table
                try:
                    deeds[name][1](recorder, chosen, dice)
                except LostRace as exc:
                    logger.info("%s of %s lost a race: %s", name, chosen, exc)
                else:
                    self.counts[name] = self.counts.get(name, 0) + 1

        return disturb

    def _chosen(self, deeds: dict[str, tuple[int, Any]], dice: random.Random) -> Iterator[str]:
        """Each once, and then as often as it weighs."""
        first = list(deeds)
        dice.shuffle(first)
        yield from first
        while True:
            yield dice.choices(list(deeds), [weight for weight, _ in deeds.values()])[0]

    # Rows

    def _write(self, recorder: Recorder, table: str, dice: random.Random) -> None:
        number = recorder.new_id()
        there = sorted(row["value"] for row in self.spark.rows(table))
        if there and dice.random() < 0.4:
            gone = dice.choice(there)
            self._recorded(
                recorder, number, [Delete(table, gone)], f"DELETE FROM {{t}} WHERE value = {gone}", table=table
            )
        else:
            sql = f"INSERT INTO {{t}} VALUES ({number * 10}), ({number * 10 + 1})"
            self._recorded(
                recorder, number, [Insert(table, number * 10), Insert(table, number * 10 + 1)], sql, table=table
            )

    def _append(self, recorder: Recorder, table: str, dice: random.Random) -> None:
        number = recorder.new_id()
        chosen = sorted(dice.sample(list(self.keys), dice.randint(1, 2)))
        sql = (
            f"UPDATE {{t}} SET elements = concat_ws(',', nullif(elements, ''), {number * 10} + key) "
            f"WHERE key IN ({', '.join(map(str, chosen))})"
        )
        operations = [Append((table, key), number * 10 + key) for key in chosen]
        self._recorded(recorder, number, operations, sql, table=table)

    # What is no change of rows

    def _unset(self, recorder: Recorder, table: str, dice: random.Random) -> None:
        """What servers of earlier versions had in their tables, and what they could not bear to lose."""
        change = dice.choice(("SET TBLPROPERTIES ('{}' = 'true')", "UNSET TBLPROPERTIES IF EXISTS ('{}')"))
        self.spark.run(f"ALTER TABLE {{t}} {change.format('write.wap.enabled')}", table)

    def _expire(self, recorder: Recorder, table: str, dice: random.Random) -> None:
        """All but the newest, however young, and with them what others have only staged."""
        try:
            self.spark.call(
                "expire_snapshots", table, "older_than => TIMESTAMP '2100-01-01 00:00:00'", "retain_last => 1"
            )
        except PySparkException as exc:  # Iceberg does not take it well when another expires the same ones
            raise LostRace(str(exc).splitlines()[0]) from exc

    # The whole table

    def _roll_back(self, recorder: Recorder, table: str, dice: random.Random) -> None:
        with self.closed():
            log = self.spark.query(
                "SELECT snapshot_id FROM {t}.history WHERE is_current_ancestor ORDER BY made_current_at DESC", table
            )
            known = {row["snapshot_id"] for row in self.spark.query("SELECT snapshot_id FROM {t}.snapshots", table)}
            older = [row["snapshot_id"] for row in log[1 : _RECENT + 1] if row["snapshot_id"] in known]
            if not older:
                return
            snapshot = dice.choice(older)
            content = self._content(self.spark.query(f"SELECT * FROM {{t}} VERSION AS OF {snapshot}", table))
            self._recorded(
                recorder,
                recorder.new_id(),
                [Rewrite(table, content)],
                partial(self.spark.call, "rollback_to_snapshot", table, f"snapshot_id => {snapshot}"),
                table=table,
            )

    def _make_anew(self, recorder: Recorder, table: str, dice: random.Random) -> None:
        """Without what our own tables have in their properties."""
        columns = "key BIGINT, elements STRING" if self.keys else "value BIGINT"
        rows = [(key, ()) for key in self.keys]

        def remake() -> None:
            self.dropping(table)
            self.spark.run("DROP TABLE {t}", table)
            self.spark.run(
                f"CREATE TABLE {{t}} ({columns}) USING iceberg TBLPROPERTIES ('format-version' = '3')", table
            )
            if rows:
                values = ", ".join(f"({key}, '')" for key, _ in rows)
                self.spark.run(f"INSERT INTO {{t}} VALUES {values}", table)

        with self.closed():
            self._recorded(recorder, recorder.new_id(), [Rewrite(table, frozenset(rows))], remake, table=table)

    def _content(self, rows: Sequence[dict[str, Any]]) -> frozenset[Any]:
        if self.keys:
            return frozenset(
                (row["key"], tuple(int(part) for part in row["elements"].split(",") if part)) for row in rows
            )
        return frozenset(row["value"] for row in rows)

    def _recorded(
        self,
        recorder: Recorder,
        number: int,
        operations: Sequence[Operation],
        work: str | Callable[[], object],
        *,
        table: str,
    ) -> None:
        called = recorder.clock()
        outcome = Outcome.OK
        try:
            if isinstance(work, str):
                self.spark.run(work, table)
            else:
                work()
        except LostRace:
            outcome = Outcome.ABORTED
            raise
        except PySparkException:
            outcome = Outcome.UNKNOWN
            raise
        finally:
            recorder.add(
                Entry(
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
