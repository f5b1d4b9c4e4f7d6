"""One fault: a statement under way, somebody dies at a named step, and then all that must hold.

What was acknowledged is there; what was not is there wholly or not at all; the same statement sent again finds out
which and happens once; nothing is left lying about; and the next statement works.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
from tests.faults.rig import Rig, Rows, ending, left_in_staging, leftovers

from sparkport.catalog.statement import Change
from sparkport.errors import AlreadyExists, Conflict, NotFound, SparkportError, Unavailable
from sparkport.lakehouse.faults import POINTS, Fault

__all__ = [
    "BASE",
    "CHANGES",
    "Case",
    "DDL",
    "Outcome",
    "SCHEMA",
    "STATEMENT_POINTS",
    "cases",
    "check_clean",
    "hold",
    "run",
]

CHANGES = ("insert", "update", "delete")
_IN_TRANSACTIONS = ("defer.after", "commit.decided", "apply.between")
STATEMENT_POINTS = tuple(point for point in POINTS if point not in _IN_TRANSACTIONS)
"""Those that a statement by itself comes to."""

DDL = ("create", "add column", "rename", "drop")
_DDL_POINTS = {
    "create": ("metadata.before", "metadata.after", "pointer.before", "pointer.after"),
    "add column": ("metadata.before", "metadata.after", "pointer.before", "pointer.after"),
    "rename": ("pointer.before", "pointer.after"),
    "drop": ("pointer.before", "pointer.after"),
}
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
BASE: Rows = {number: f"base {number}" for number in range(1, 9)}


@dataclass(frozen=True, slots=True)
class Case:
    number: int
    operation: str
    fault: Fault

    @property
    def own_spark(self) -> bool:
        """Whether the server needs a Spark of its own, to be killed or to be seen to end."""
        return self.fault.action != "server" or (self.operation not in DDL and self.number % 4 == 0)

    def __str__(self) -> str:
        return f"{self.operation} {self.fault}"


@dataclass(slots=True)
class Outcome:
    acknowledged: bool = False
    happened: bool = False
    error: str = ""
    notes: list[str] = field(default_factory=list)


def cases(seed: int, count: int = 100) -> list[Case]:
    """Every change at every point with every victim, DDL at its points, in an order that the seed decides."""
    chance = random.Random(seed)
    chosen: list[tuple[str, Fault]] = []
    for operation in CHANGES:
        for point in STATEMENT_POINTS:
            for victim in ("server", "spark", "both"):
                # In the middle of Spark's work too, not only before it.
                late = point == "apply.before" and chance.random() < 0.7
                chosen.append((operation, Fault(point, victim, round(chance.uniform(0.05, 0.8), 2) if late else 0.0)))
    ddl = [(operation, Fault(point, "server")) for operation in DDL for point in _DDL_POINTS[operation]]
    chosen += chance.sample(ddl, 10)
    chance.shuffle(chosen)
    while len(chosen) < count:
        chosen.append(chance.choice(chosen))
    return [Case(number, operation, fault) for number, (operation, fault) in enumerate(chosen[:count], 1)]


def run(case: Case, rig: Rig, *, spark_rows: Callable[[str], Rows] | None = None) -> Outcome:
    """Raises AssertionError when something does not hold. The server runs, or can be started, afterwards."""
    rig.start()
    table = f"public.t_{uuid.uuid4().hex[:8]}"
    if case.operation in CHANGES:
        return _change(case, rig, table, spark_rows)
    return _ddl(case, rig, table)


def _change(case: Case, rig: Rig, table: str, spark_rows: Callable[[str], Rows] | None) -> Outcome:
    rig.client.create_table(table, SCHEMA)
    rig.change(table, Change.INSERT, _table(BASE))
    change, rows, count, after = _statement(case.operation, rig.row_ids(table))
    statement = str(uuid.uuid4())
    outcome = Outcome()
    sparks = rig.sparks() if case.own_spark else []
    hold(bool(sparks) == case.own_spark, "the server has no Spark of its own")
    with ending(sparks):
        rig.arm(case.fault)
        try:
            answered = rig.change(table, change, rows, statement=statement)
            outcome.acknowledged = True
            hold(answered == count, f"the answer was {answered}, not {count}")
        except SparkportError as exc:
            outcome.error = f"{type(exc).__name__}: {exc.message}"
            hold(isinstance(exc, Unavailable), f"not UNAVAILABLE: {outcome.error}")
        if case.fault.action in ("server", "both"):
            rig.ended()
    hold(not rig.disarm(), "the fault was not met")
    rig.start()
    seen = rig.rows(table)
    outcome.happened = seen == after
    hold(seen in (BASE, after), f"half a statement is there: {seen}")
    hold(outcome.happened or not outcome.acknowledged, "an acknowledged statement is lost")
    hold(rig.pyiceberg_rows(table) == seen, "PyIceberg sees other rows")
    check_clean(rig)
    again = rig.change(table, change, rows, statement=statement)
    hold(again == count, f"the repeated statement was told {again}, not {count}")
    hold(rig.rows(table) == after, f"after the repetition: {rig.rows(table)}")
    rig.change(table, Change.INSERT, _table({99: "next"}))
    final = {**after, 99: "next"}
    hold(rig.rows(table) == final, "the next statement did not work")
    hold(rig.pyiceberg_rows(table) == final, "PyIceberg sees other rows at the end")
    if not rig.maintenance:  # which publishes too, and forgets
        published = len(rig.pyiceberg_table(table).metadata.snapshot_log)
        hold(published == 3, f"{published} snapshots were published by 3 statements")
    if spark_rows is not None:
        hold(spark_rows(table) == final, "plain Spark sees other rows")
    check_clean(rig)
    return outcome


def _statement(operation: str, ids: dict[int, int]) -> tuple[Change, pa.Table, int, Rows]:
    if operation == "insert":
        new: Rows = {number: f"new {number}" for number in range(20, 25)}
        return Change.INSERT, _table(new), len(new), {**BASE, **new}
    touched = [2, 3, 5]
    row_ids = pa.array([ids[number] for number in touched], pa.int64())
    if operation == "update":
        changed: Rows = {number: f"changed {number}" for number in touched}
        rows = pa.table({"rowid": row_ids, "v": pa.array(list(changed.values()))})
        return Change.UPDATE, rows, len(touched), {**BASE, **changed}
    left = {number: value for number, value in BASE.items() if number not in touched}
    return Change.DELETE, pa.table({"rowid": row_ids}), len(touched), left


def _ddl(case: Case, rig: Rig, table: str) -> Outcome:
    client = rig.client
    new = f"{table}_new"
    if case.operation != "create":
        client.create_table(table, SCHEMA)
    outcome = Outcome()
    rig.arm(case.fault)
    try:
        _alter(case.operation, rig, table, new)
        outcome.acknowledged = True
    except SparkportError as exc:
        outcome.error = f"{type(exc).__name__}: {exc.message}"
        hold(isinstance(exc, Unavailable), f"not UNAVAILABLE: {outcome.error}")
    rig.ended()
    hold(not rig.disarm(), "the fault was not met")
    rig.start()
    outcome.happened = _altered(case.operation, rig, table, new)
    hold(outcome.happened or not outcome.acknowledged, "an acknowledged change is lost")
    check_clean(rig)
    if case.operation == "create" and not outcome.happened:
        left = list((rig.warehouse / "public").glob(f"{table.partition('.')[2]}-*/metadata/*"))
        hold(not left, f"left behind: {left}")
    try:
        _alter(case.operation, rig, table, new)
    except (AlreadyExists, NotFound, Conflict) as exc:
        hold(outcome.happened, f"the repetition failed: {exc.message}")
    hold(_altered(case.operation, rig, table, new), "after the repetition it still has not happened")
    check_clean(rig)
    return outcome


def _alter(operation: str, rig: Rig, table: str, new: str) -> None:
    client = rig.client
    if operation == "create":
        client.create_table(table, SCHEMA)
    elif operation == "add column":
        client.add_column(table, pa.field("w", pa.int32()))
    elif operation == "rename":
        client.rename_table(table, new.partition(".")[2])
    else:
        client.drop_table(table)


def _altered(operation: str, rig: Rig, table: str, new: str) -> bool:
    """Whether it has happened; raises when it has in part."""
    names = {f"public.{found.name}" for found in rig.client.tables()}
    if operation == "add column":
        columns = rig.client.describe(table).schema.names
        hold(columns in (["id", "v"], ["id", "v", "w"]), f"columns: {columns}")
        hold(rig.pyiceberg_table(table).schema().column_names == columns, "PyIceberg sees other columns")
        return len(columns) == 3
    if operation == "rename":
        hold((table in names) != (new in names), "a renamed table has no name, or two")
        return new in names
    if operation == "create":
        return table in names
    return table not in names


def check_clean(rig: Rig, *, spark_lives: bool = True) -> None:
    """A Spark that dies in the middle of a commit leaves a metadata file of its own, which is maintenance's to find."""
    if rig.maintenance or not spark_lives:  # with maintenance such files come and go all the time
        found = left_in_staging(rig.warehouse, servers=1)
    else:
        found = leftovers(rig.warehouse, servers=1, catalog_uri=rig.catalog_uri)
    hold(not found, f"left behind: {found}")


def _table(rows: Rows) -> pa.Table:
    return pa.table({"id": list(rows), "v": list(rows.values())}, SCHEMA)


def hold(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)
