"""One fault: a statement under way, somebody dies or an answer is lost at a named step, and then all that must hold.

What was acknowledged is there; what was not is there wholly or not at all; the transaction's status tells which; the
same statement sent again finds out and happens once; nothing is left lying about, nothing that is needed is missing;
and the next statement works.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
from tests.faults.files import left_in_staging, leftovers, pointer_of, register_elsewhere
from tests.faults.rig import Rig, Rows, ending
from tests.support.attempts import AttemptingClient
from tests.support.fault_proxy import FaultProxy

from sparkport.catalog.statement import Change
from sparkport.catalog.transaction import TransactionState
from sparkport.client import Client
from sparkport.errors import AlreadyExists, Cancelled, Conflict, NotFound, SparkportError, Unavailable
from sparkport.lakehouse.faults import POINTS, Fault
from sparkport.protocol.maps import MapReader

__all__ = [
    "BASE",
    "CHANGES",
    "Case",
    "DDL",
    "Outcome",
    "SCHEMA",
    "NEW_ROWS_ONLY",
    "STATEMENT_POINTS",
    "WAYS",
    "armed",
    "cases",
    "check_clean",
    "ddl_points",
    "hold",
    "planned",
    "repeated",
    "run",
    "statement_points",
]

CHANGES = ("insert", "update", "delete")
_IN_TRANSACTIONS = ("defer.after", "commit.decided", "apply.between")
STATEMENT_POINTS = tuple(point for point in POINTS if point not in _IN_TRANSACTIONS)
"""Those that a statement by itself comes to."""

NEW_ROWS_ONLY = ("append.listed", "append.placed")
"""Of these an UPDATE and a DELETE come to none."""

DDL = ("create", "replace", "add column", "rename", "drop")
WAYS = ("", "auto-commit", "serializable")
"""A statement without a transaction, and in one that commits each statement."""

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
_WIDER = SCHEMA.append(pa.field("w", pa.int32()))
BASE: Rows = {number: f"base {number}" for number in range(1, 9)}

_PATIENCE = 60.0
_PAUSE = 0.7
"""Seconds that the server stands at a point while something befalls it."""

_TROUBLE = 25.0
"""Seconds that it lasts at most: more than a server waits for its database."""


def statement_points(change: str) -> tuple[str, ...]:
    return tuple(point for point in STATEMENT_POINTS if change == "insert" or point not in NEW_ROWS_ONLY)


def ddl_points(operation: str) -> tuple[str, ...]:
    """Those that a change of a table's name or columns comes to."""
    files = () if operation in ("rename", "drop") else ("metadata.before", "metadata.after")
    settled = ("settle.before",) if operation == "add column" else ()
    return (*files, "pointer.before", "pointer.after", *settled)


@dataclass(frozen=True, slots=True)
class Case:
    """Beside the actions of ``Fault`` there is ``cut``: the client's connection is lost at the point."""

    number: int
    operation: str
    fault: Fault
    way: str = ""

    @property
    def own_spark(self) -> bool:
        """Whether the server needs a Spark of its own, to be killed or to be seen to end."""
        kills_spark = self.fault.action in ("spark", "both")
        return kills_spark or (self.kills_server and self.operation not in DDL and self.number % 4 == 0)

    @property
    def kills_server(self) -> bool:
        return self.fault.action in ("server", "both")

    @property
    def loses_answer(self) -> bool:
        return self.fault.action not in ("server", "spark", "both")

    @property
    def goes_on(self) -> bool:
        """Whether what was asked for may still happen after the client has been told that nobody knows."""
        return self.loses_answer and self.fault.action != "lost"

    def __str__(self) -> str:
        return f"{self.operation}{f' ({self.way})' if self.way else ''} {self.fault}"


@dataclass(slots=True)
class Outcome:
    acknowledged: bool = False
    happened: bool = False
    error: str = ""


def cases(seed: int, count: int = 136) -> list[Case]:
    """Every change at every point with every victim, DDL at its points, in an order that the seed decides."""
    chance = random.Random(seed)
    chosen: list[tuple[str, Fault]] = []
    for operation in CHANGES:
        for point in statement_points(operation):
            for victim in ("server", "spark", "both"):
                # In the middle of Spark's work too, not only before it.
                late = point == "apply.before" and chance.random() < 0.7
                chosen.append((operation, Fault(point, victim, round(chance.uniform(0.05, 0.8), 2) if late else 0.0)))
    ddl = [(operation, Fault(point, "server")) for operation in DDL for point in ddl_points(operation)]
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


@contextmanager
def armed(case: Case, rig: Rig) -> Iterator[AttemptingClient]:
    """The client to use while the fault is due. When the block is over it has been met, and the dead are dead."""
    action = case.fault.action
    pause = replace(case.fault, action="pause", seconds=_PAUSE)
    over = threading.Event()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        if action in rig.troubles:
            client = rig.client
            rig.arm(*planned(pause))
            meeting = [pool.submit(_trouble, rig, rig.troubles[action], over)]
        elif action == "cut":
            proxy = stack.enter_context(FaultProxy(rig.location))
            client = stack.enter_context(AttemptingClient(proxy.location, timeout=_PATIENCE))
            client.tables()
            rig.arm(*planned(pause))
            meeting = [pool.submit(_cut, rig, proxy)]
        else:
            client = rig.client
            rig.arm(*planned(case.fault))
            meeting = []
        try:
            yield client
        finally:
            over.set()
        for done in meeting:
            done.result()
    if case.kills_server:
        rig.ended()
    hold(not rig.disarm(), "the fault was not met")
    rig.start()


def planned(fault: Fault) -> list[Fault]:
    """With what has to happen before: nobody settles a commit that was answered."""
    return [Fault("pointer.after", "lost"), fault] if fault.point == "settle.before" else [fault]


def _cut(rig: Rig, proxy: FaultProxy) -> None:
    rig.met()
    proxy.cut()


def _trouble(rig: Rig, trouble: Callable[[], AbstractContextManager[None]], over: threading.Event) -> None:
    """Until the client has been told something, or has waited long enough."""
    rig.met()
    with trouble():
        over.wait(_TROUBLE)


def _change(case: Case, rig: Rig, table: str, spark_rows: Callable[[str], Rows] | None) -> Outcome:
    rig.client.create_table(table, SCHEMA)
    rig.change(table, Change.INSERT, _table(BASE))
    change, rows, count, after = _statement(case.operation, rig.row_ids(table))
    statement = str(uuid.uuid4())
    outcome = Outcome()
    sparks = rig.sparks() if case.own_spark else []
    hold(bool(sparks) == case.own_spark, "the server has no Spark of its own")
    transaction = _begin(rig.client, case.way)
    with ending(sparks), armed(case, rig) as client:
        try:
            answered = rig.change(table, change, rows, statement=statement, transaction=transaction, client=client)
            outcome.acknowledged = True
            hold(answered == count, f"the answer was {answered}, not {count}")
        except (Unavailable, Cancelled) as exc:
            outcome.error = f"{type(exc).__name__}: {exc.message}"
        except SparkportError as exc:
            raise AssertionError(f"not UNAVAILABLE: {type(exc).__name__}: {exc.message}") from exc
    check_clean(rig, case, quiet=not case.goes_on)
    status = None if transaction is None or case.kills_server else _settled(rig, transaction)
    if not case.goes_on or status is not None:  # otherwise only its repetition can wait for it
        _check_seen(rig, table, outcome, after)
    if status is not None:
        wanted = TransactionState.COMMITTED if outcome.happened else TransactionState.ABORTED
        hold(status is wanted, f"the status is {status.value}, not {wanted.value}; {outcome.error}")
    in_transaction = transaction if outcome.happened and not case.kills_server else None
    again = repeated(lambda: rig.change(table, change, rows, statement=statement, transaction=in_transaction))
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
    check_clean(rig, case)
    return outcome


def _check_seen(rig: Rig, table: str, outcome: Outcome, after: Rows) -> None:
    seen = rig.rows(table)
    outcome.happened = seen == after
    hold(seen in (BASE, after), f"half a statement is there: {seen}")
    hold(outcome.happened or not outcome.acknowledged, "an acknowledged statement is lost")
    hold(rig.pyiceberg_rows(table) == seen, "PyIceberg sees other rows")


def _begin(client: Client, way: str) -> str | None:
    if not way:
        return None
    isolation = "serializable" if way == "serializable" else "snapshot"
    answer = client.action("create_transaction", f'{{"auto_commit": true, "isolation": "{isolation}"}}'.encode())
    return MapReader.from_json(answer[0]).text("transaction_id")


def _settled(rig: Rig, transaction: str) -> TransactionState:
    """Its state, once it has one that lasts."""
    found = rig.client.resume_transaction(transaction)
    waiting = threading.Event()
    for _ in range(int(_PATIENCE / 0.2)):
        try:
            if (state := found.status()) is not TransactionState.ACTIVE:
                return state
        except Unavailable:
            pass
        waiting.wait(0.2)
    raise AssertionError("how the transaction has ended cannot be found out")


def repeated(attempt: Callable[[], int]) -> int:
    """The answer, in the end: while the first attempt still runs it is refused."""
    waiting = threading.Event()
    for _ in range(int(_PATIENCE / 0.2)):
        try:
            return attempt()
        except (Conflict, Unavailable) as exc:
            refused = exc
            waiting.wait(0.2)
    raise AssertionError(f"the repetition is refused: {refused.message}")


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
    short = table.partition(".")[2]
    new = f"{table}_new"
    if case.operation != "create":
        rig.client.create_table(table, SCHEMA)
    last = pointer_of(rig.warehouse, short, catalog_uri=rig.catalog_uri)
    if case.number % 2 and last is not None:
        register_elsewhere(rig.warehouse, short, catalog_uri=rig.catalog_uri)
    outcome = Outcome()
    with armed(case, rig) as client:
        try:
            _alter(case.operation, client, table, new)
            outcome.acknowledged = True
        except Unavailable as exc:
            outcome.error = f"{type(exc).__name__}: {exc.message}"
        except SparkportError as exc:
            raise AssertionError(f"not UNAVAILABLE: {type(exc).__name__}: {exc.message}") from exc
    if last is not None and case.operation in ("drop", "replace"):
        rig.dropped.append(last)  # also when it was not: then it still is the table's
    if case.goes_on:
        return _resolve_ddl(case, rig, table, new)
    outcome.happened = _altered(case.operation, rig, table, new)
    hold(outcome.happened or not outcome.acknowledged, "an acknowledged change is lost")
    check_clean(rig, case)
    if case.operation == "create" and not outcome.happened and case.kills_server:
        left = list((rig.warehouse / "public").glob(f"{short}-*/metadata/*"))
        hold(not left, f"left behind: {left}")
    try:
        _alter(case.operation, rig.client, table, new)
    except (AlreadyExists, NotFound, Conflict) as exc:
        hold(outcome.happened, f"the repetition failed: {exc.message}")
    hold(_altered(case.operation, rig, table, new), "after the repetition it still has not happened")
    check_clean(rig, case)
    return outcome


def _resolve_ddl(case: Case, rig: Rig, table: str, new: str) -> Outcome:
    """What may still happen is asked for again until it has."""

    def attempt() -> int:
        try:
            _alter(case.operation, rig.client, table, new)
        except (AlreadyExists, NotFound):
            hold(_altered(case.operation, rig, table, new), "it is refused as if it had happened, and has not")
        return 1

    repeated(attempt)
    hold(_altered(case.operation, rig, table, new), "after the repetition it still has not happened")
    check_clean(rig, case)
    return Outcome(happened=True)


def _alter(operation: str, client: Client, table: str, new: str) -> None:
    if operation == "create":
        client.create_table(table, SCHEMA)
    elif operation == "replace":
        client.create_table(table, _WIDER, on_conflict="replace")
    elif operation == "add column":
        client.add_column(table, pa.field("w", pa.int32()))
    elif operation == "rename":
        client.rename_table(table, new.partition(".")[2])
    else:
        client.drop_table(table)


def _altered(operation: str, rig: Rig, table: str, new: str) -> bool:
    """Whether it has happened; raises when it has in part."""
    names = {f"public.{found.name}" for found in rig.client.tables()}
    if operation in ("add column", "replace"):
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


def check_clean(rig: Rig, case: Case, *, quiet: bool = True, spark_lives: bool = True) -> None:
    """Nothing is missing, and nothing is left that nobody will need.

    Not ``quiet`` while a statement may still run. A Spark that dies in the middle of a commit leaves a metadata file of
    its own, which is maintenance's to find; one whose answer was lost is removed when the server is started anew.
    """
    missing = rig.missing()
    hold(not missing, f"missing: {missing}")
    if not quiet:
        return
    if rig.maintenance or not spark_lives or case.loses_answer:  # with maintenance such files come and go all the time
        found = left_in_staging(rig.warehouse, servers=1)
    else:
        found = leftovers(rig.warehouse, servers=1, catalog_uri=rig.catalog_uri)
    hold(not found, f"left behind: {found}")


def _table(rows: Rows) -> pa.Table:
    return pa.table({"id": list(rows), "v": list(rows.values())}, SCHEMA)


def hold(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)
