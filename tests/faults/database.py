"""PostgreSQL failing under a server: swallowed by the network, silent, standing still, restarted, or holding a commit.

What runs meanwhile and what must hold is in ``cases`` and ``transactions``; a commit that the database holds back while
its server dies and the next one recovers is a course of its own.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from tests.faults.cases import BASE, SCHEMA, Case, hold, repeated
from tests.faults.rig import Rig
from tests.faults.transactions import TRANSACTIONS
from tests.support.attempts import AttemptingClient
from tests.support.fault_proxy import FaultProxy
from tests.support.postgres import PostgresCluster

from sparkport.catalog.statement import Change
from sparkport.errors import AlreadyExists, Conflict, DeadlineExceeded, SparkportError, Unavailable
from sparkport.lakehouse.faults import Fault

__all__ = ["HELD", "HeldCommit", "TROUBLES", "database_cases", "held_commits", "hold_commit", "troubled"]

TROUBLES = ("swallow", "hold", "freeze", "restart")
"""Nothing gets through to the database; it hears, and its answers are lost; it stands still; it is restarted."""

HELD = "held"
"""The role whose commits wait for a standby that is away."""

_OPERATIONS = ("insert", "update", "delete", "two tables", "create", "replace")
_PATIENCE = 60.0
_HASTE = 15.0


def database_cases(seed: int) -> list[Case]:
    """Every trouble between UPDATE and COMMIT for every operation, and before the first word to the database."""
    chance = random.Random(seed)
    chosen = [
        (operation, Fault("pointer.before", trouble), way)
        for trouble in TROUBLES
        for operation, way in [*((operation, "") for operation in _OPERATIONS), ("insert", "auto-commit")]
    ]
    for trouble in TROUBLES:
        chosen.append((chance.choice((*_OPERATIONS[:3], TRANSACTIONS[2])), Fault("publish.before", trouble), ""))
    chance.shuffle(chosen)
    return [Case(number, *what) for number, what in enumerate(chosen, 1)]


@contextmanager
def troubled(folder: Path, cluster: PostgresCluster, *, spark: str) -> Iterator[Rig]:
    """A server whose database can fail in each of these ways."""
    with ExitStack() as stack:
        uri = stack.enter_context(cluster.database())
        proxy = stack.enter_context(FaultProxy(uri))
        address = uri.replace(urlsplit(uri).netloc, f"sparkport@{urlsplit(proxy.location).netloc}")
        rig = Rig(folder, spark=spark, catalog_uri=uri, server_uri=address)
        stack.callback(rig.close)

        @contextmanager
        def swallowed() -> Iterator[None]:
            proxy.swallow()
            yield
            proxy.cut()

        @contextmanager
        def held() -> Iterator[None]:
            proxy.hold()
            yield
            proxy.cut()

        @contextmanager
        def restarted() -> Iterator[None]:
            cluster.stop()
            cluster.start()
            yield

        rig.troubles = {"swallow": swallowed, "hold": held, "freeze": cluster.frozen, "restart": restarted}
        yield rig


# A commit that is held back


@dataclass(frozen=True, slots=True)
class HeldCommit:
    number: int
    operation: str

    def __str__(self) -> str:
        return f"{self.operation}, whose commit is held back while the next server recovers"


def held_commits() -> list[HeldCommit]:
    operations = ("insert", "delete", "add column", "replace", "drop", "two tables")
    return [HeldCommit(number, operation) for number, operation in enumerate(operations, 1)]


def hold_commit(case: HeldCommit, folder: Path, cluster: PostgresCluster, *, spark: str) -> None:
    """The server dies after its COMMIT is sent; the database makes it visible after the next server has recovered."""
    with ExitStack() as stack:
        stack.enter_context(_standby_away(cluster))
        uri = stack.enter_context(cluster.database())
        rig = Rig(folder, spark=spark, catalog_uri=uri, server_uri=uri.replace("sparkport@", f"{HELD}@"))
        stack.callback(rig.close)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        rig.start()
        tables = [f"public.h_{uuid.uuid4().hex[:8]}" for _ in range(2)]
        for table in tables:
            rig.client.create_table(table, SCHEMA)
            rig.change(table, Change.INSERT, _rows(BASE))
        before = rig.rows(tables[0])
        statement = str(uuid.uuid4())
        ask = _operation(case.operation, rig, tables, statement)
        rig.arm(Fault("pointer.before", "pause", 1.0))
        asking = pool.submit(ask)
        rig.met()
        cluster.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        cluster.execute("SELECT pg_reload_conf()")
        _wait_until(cluster, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query ILIKE 'commit%'")
        rig.kill()
        hold(isinstance(asking.exception(_PATIENCE), SparkportError), "the client was told that it is done")

        rig.server_uri = uri  # the next server's own commits are not held back
        rig.start()
        hold(rig.missing() == [], f"missing after recovery: {rig.missing()}")
        hold(rig.rows(tables[0]) == before, "what is not committed is seen")
        if case.operation in ("insert", "delete"):
            with AttemptingClient(rig.location, timeout=_HASTE) as hasty:
                _refused(lambda: ask(hasty))
        cluster.execute("ALTER SYSTEM RESET synchronous_standby_names")
        cluster.execute("SELECT pg_reload_conf()")
        _wait_until(cluster, "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")
        hold(rig.missing() == [], f"missing after the commit: {rig.missing()}")
        _check_happened(case.operation, rig, tables)
        if case.operation in ("insert", "delete"):
            hold(repeated(ask) == 2, "the repetition is told another count")
        rig.kill()
        rig.start()  # which can recover all that the first has left
        hold(rig.missing() == [], f"missing in the end: {rig.missing()}")
        _check_happened(case.operation, rig, tables)


def _refused(ask: Callable[[], int]) -> None:
    """A repetition must neither be done nor be said to be, while nobody knows."""
    try:
        count = ask()
    except (Unavailable, Conflict, AlreadyExists, DeadlineExceeded):
        return
    raise AssertionError(f"a statement that may still be committed was repeated with {count} rows")


def _operation(operation: str, rig: Rig, tables: list[str], statement: str) -> Callable[..., int]:
    ids = rig.row_ids(tables[0])

    def ask(client: AttemptingClient | None = None) -> int:
        if operation == "insert":
            rows = _rows({20: "new", 21: "new"})
            return rig.change(tables[0], Change.INSERT, rows, statement=statement, client=client)
        if operation == "delete":
            rows = pa.table({"rowid": pa.array([ids[1], ids[2]], pa.int64())})
            return rig.change(tables[0], Change.DELETE, rows, statement=statement, client=client)
        if operation == "add column":
            rig.client.add_column(tables[0], pa.field("w", pa.int32()))
        elif operation == "replace":
            rig.client.create_table(tables[0], SCHEMA, on_conflict="replace")
        elif operation == "drop":
            rig.client.drop_table(tables[0])
        else:
            with rig.client.transaction() as transaction:
                for table in tables:
                    transaction.insert(table, _rows({20: "new", 21: "new"}))
        return 0

    return ask


def _check_happened(operation: str, rig: Rig, tables: list[str]) -> None:
    names = {f"public.{found.name}" for found in rig.client.tables()}
    hold((tables[0] in names) == (operation != "drop"), f"after {operation} there are {sorted(names)}")
    if operation == "drop":
        return
    new = {20: "new", 21: "new"}
    wanted = {
        "insert": BASE | new,
        "delete": {key: value for key, value in BASE.items() if key not in (1, 2)},
        "replace": {},
        "two tables": BASE | new,
    }.get(operation, BASE)
    hold(rig.rows(tables[0]) == wanted == rig.pyiceberg_rows(tables[0]), f"rows: {rig.rows(tables[0])}")
    if operation == "two tables":
        hold(rig.rows(tables[1]) == wanted, f"rows of the second: {rig.rows(tables[1])}")
    if operation == "add column":
        hold(rig.client.describe(tables[0]).schema.names == ["id", "v", "w"], "there is no new column")


@contextmanager
def _standby_away(cluster: PostgresCluster) -> Iterator[None]:
    """Commits of one role wait for standbys, if there are to be any; those of all others do not."""
    cluster.execute("ALTER SYSTEM SET synchronous_commit = local")
    cluster.execute("SELECT pg_reload_conf()")
    cluster.execute(f"CREATE ROLE {HELD} LOGIN SUPERUSER")
    cluster.execute(f"ALTER ROLE {HELD} SET synchronous_commit = on")
    try:
        yield
    finally:
        cluster.execute("ALTER SYSTEM RESET ALL")
        cluster.execute("SELECT pg_reload_conf()")
        cluster.execute(f"DROP ROLE IF EXISTS {HELD}")


def _wait_until(cluster: PostgresCluster, query: str) -> None:
    waiting = threading.Event()
    for _ in range(int(_PATIENCE / 0.05)):
        if cluster.query(query):
            return
        waiting.wait(0.05)
    raise AssertionError(f"it never came to this: {query}")


def _rows(rows: dict[int, str | None]) -> pa.Table:
    return pa.table({"id": list(rows), "v": list(rows.values())}, SCHEMA)
