"""One fault in the life of a deferred transaction: over one table or two, it is there wholly or not at all.

Whoever dies at whatever step: sparkport, PyIceberg and plain Spark see the same, the status tells the truth, the commit
can be asked for again, nothing is left lying about, and the next transaction works.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable

import pyarrow as pa
from tests.faults.cases import BASE, NEW_ROWS_ONLY, SCHEMA, Case, Outcome, armed, check_clean, hold
from tests.faults.rig import Rig, Rows, ending

from sparkport.catalog.statement import Change
from sparkport.catalog.transaction import TransactionState
from sparkport.client.errors import OutcomeUnknown
from sparkport.client.transaction import Transaction
from sparkport.errors import Conflict, FailedPrecondition, SparkportError, Unavailable
from sparkport.lakehouse.faults import POINTS, Fault

__all__ = ["TRANSACTIONS", "kinds_of_one_table", "run_transaction", "transaction_cases"]

TRANSACTIONS = ("one table", "one table, changed only", "two tables", "two tables, one of them new rows only")
_TWICE = (
    "stage.before",
    "defer.after",
    "shadow.before",
    "shadow.after",
    "apply.before",
    "apply.after",
    "metadata.before",
    "metadata.after",
)
"""Points that a transaction over two tables comes to more than once."""

_TRIES = 100


def kinds_of_one_table(point: str) -> tuple[str, ...]:
    """Those that come to the point."""
    return TRANSACTIONS[:1] if point in ("apply.between", *NEW_ROWS_ONLY) else TRANSACTIONS[:2]


def transaction_cases(seed: int, count: int = 200) -> list[Case]:
    """Every point with every victim for one table and for two; then more of them, at later times, as the seed says."""
    chance = random.Random(seed)
    chosen: list[tuple[str, Fault]] = []
    for two in (False, True):
        for point in POINTS:
            for victim in ("server", "spark", "both"):
                kinds = TRANSACTIONS[2:] if two else kinds_of_one_table(point)
                late = point.startswith("apply") and chance.random() < 0.5
                seconds = round(chance.uniform(0.05, 0.8), 2) if late else 0.0
                chosen.append((chance.choice(kinds), Fault(point, victim, seconds)))
    while len(chosen) < count:
        two = len(chosen) % 2 == 0
        kind = chance.choice(TRANSACTIONS[2:] if two else TRANSACTIONS[:1])
        point = chance.choice(POINTS)
        again = 2 if two and point in _TWICE and chance.random() < 0.5 else 1
        chosen.append((kind, Fault(point, chance.choice(("server", "server", "spark", "both")), time=again)))
    chosen = chosen[:count]
    chance.shuffle(chosen)
    return [Case(number, kind, fault) for number, (kind, fault) in enumerate(chosen, 1)]


def run_transaction(case: Case, rig: Rig, *, spark_rows: Callable[[str], Rows] | None = None) -> Outcome:
    """Raises AssertionError when something does not hold. The server runs, or can be started, afterwards."""
    rig.start()
    tables = [f"public.x_{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for table in tables:
        rig.client.create_table(table, SCHEMA)
        rig.change(table, Change.INSERT, _rows(BASE))
    ids = {table: rig.row_ids(table) for table in tables}
    after = [_changed(case.operation, 0), _changed(case.operation, 1)]
    outcome = Outcome()
    sparks = rig.sparks() if case.own_spark else []
    hold(bool(sparks) == case.own_spark, "the server has no Spark of its own")
    with ending(sparks), armed(case, rig) as client:
        transaction = client.transaction()
        committing = False
        try:
            for place, table in enumerate(tables):
                _run_statements(case.operation, transaction, table, ids[table], place)
            committing = True
            transaction.commit()
            outcome.acknowledged = True
        except SparkportError as exc:
            outcome.error = f"{type(exc).__name__}: {exc.message}"
    if case.goes_on and not outcome.acknowledged:
        _settle(rig, transaction.id, committing=committing)
    seen = [rig.rows(table) for table in tables]
    outcome.happened = seen == after
    hold(seen in ([BASE, BASE], after), f"half a transaction is there: {seen}")
    hold(outcome.happened or not outcome.acknowledged, f"an acknowledged transaction is lost: {outcome}")
    hold([rig.pyiceberg_rows(table) for table in tables] == seen, "PyIceberg sees other rows")
    if spark_rows is not None:
        hold([spark_rows(table) for table in tables] == seen, "plain Spark sees other rows")
    _check_status(rig, transaction.id, outcome)
    _check_left(rig, tables, case)
    with rig.client.transaction() as again:
        for table in tables:
            again.insert(table, _rows({99: "next"}))
    hold(
        [rig.pyiceberg_rows(table) for table in tables] == [{**rows, 99: "next"} for rows in seen],
        "the next transaction did not work",
    )
    _check_left(rig, tables, case)
    return outcome


def _settle(rig: Rig, transaction_id: str, *, committing: bool) -> None:
    """Ask until there is an answer; of one whose statement failed the client wants nothing any more."""
    waiting = threading.Event()
    for _ in range(_TRIES):
        again = rig.client.resume_transaction(transaction_id)
        try:
            return again.commit() if committing else again.rollback()
        except (FailedPrecondition, Conflict):
            return None
        except (Unavailable, OutcomeUnknown):
            waiting.wait(0.2)
    raise AssertionError("whether the transaction is committed cannot be found out")


def _check_status(rig: Rig, transaction_id: str, outcome: Outcome) -> None:
    found = rig.client.resume_transaction(transaction_id)
    wanted = TransactionState.COMMITTED if outcome.happened else TransactionState.ABORTED
    status = found.status()
    hold(status is wanted, f"the status is {status.value}, not {wanted.value}; {outcome.error}")
    try:
        found.commit()
        hold(outcome.happened, "an aborted transaction was committed")
    except FailedPrecondition:
        hold(not outcome.happened, "the commit of a committed transaction is refused")


def _check_left(rig: Rig, tables: list[str], case: Case) -> None:
    # Tables are applied side by side: whoever kills Spark at a point of one kills it in the middle of the other.
    check_clean(rig, case, spark_lives=not case.own_spark)
    files = [str(path) for path in (rig.warehouse / ".staging").rglob("tx-*")]
    hold(not files, f"left behind: {files}")
    if rig.maintenance:
        return
    for table in tables:
        refs = set(rig.pyiceberg_table(table).metadata.refs)
        hold(refs == {"main"}, f"refs of {table}: {sorted(refs)}")


def _plan(operation: str, place: int) -> tuple[bool, bool]:
    """Whether a table gets new rows, and whether rows of it are changed."""
    if operation in TRANSACTIONS[:2] and place == 1:
        return False, False
    if operation == TRANSACTIONS[1]:
        return False, True
    return True, not (operation == TRANSACTIONS[3] and place == 1)


def _changed(operation: str, place: int) -> Rows:
    new, changed = _plan(operation, place)
    rows = dict(BASE)
    if new:
        rows |= {20: "new", 22: "new and changed"}
    if changed:
        rows |= {2: "changed", 3: "changed twice"}
        del rows[5], rows[6]
    return rows


def _run_statements(operation: str, transaction: Transaction, table: str, ids: dict[int, int], place: int) -> None:
    new, changed = _plan(operation, place)
    if new:
        transaction.insert(table, _rows({20: "new", 21: "doomed", 22: "new"}))
        found = transaction.scan(table, row_id=True).read_all()
        own = dict(zip(found["id"].to_pylist(), found["rowid"].to_pylist(), strict=True))
        transaction.update(table, _values([own[22]], ["new and changed"]))
        transaction.delete(table, [own[21]])
    if changed:
        transaction.update(table, _values([ids[2], ids[3]], ["changed", "changed once"]))
        transaction.update(table, _values([ids[3], ids[5]], ["changed twice", "doomed"]))
        transaction.delete(table, [ids[5], ids[6]])


def _values(row_ids: list[int], values: list[str]) -> pa.Table:
    return pa.table({"rowid": pa.array(row_ids, pa.int64()), "v": values})


def _rows(rows: Rows) -> pa.Table:
    return pa.table({"id": list(rows), "v": list(rows.values())}, SCHEMA)
