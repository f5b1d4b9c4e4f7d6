"""The soak's clients: each has tables of its own, keeps a ledger of them, and follows the servers over restarts."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

import grpc
import pyarrow as pa
import pyarrow.compute as pc
from tests.consistency.client import CallFailed, ContractClient
from tests.consistency.resolving import Clients, ResolvingDeferred
from tests.soak.latencies import Latencies
from tests.soak.ledger import Answer, Ledger, State
from tests.support.duckdb_client import Attached, DuckDBClient
from tests.support.filters import compare
from tests.support.flight_rpc import AirportError

from sparkport.catalog.transaction import Isolation
from sparkport.client import Client
from sparkport.client.errors import OutcomeUnknown, is_unreachable
from sparkport.errors import Code, SparkportError

__all__ = ["COLUMNS", "DdlWorker", "DuckDBWorker", "JsonWorker", "PythonWorker", "Worker", "rows_of"]

logger = logging.getLogger(__name__)

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])

_REFUSED = frozenset({Code.ABORTED, Code.FAILED_PRECONDITION, Code.NOT_FOUND})
_LOST = frozenset({Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.ALREADY_EXISTS})
"""ALREADY_EXISTS says of a statement that it was done before, by an attempt whose answer was lost."""

_ROWS = 60
_BATCH = 8
_PAUSE = 1.0
_STATUS_LOOKS = 30
_LISTINGS = 50
"""How many listings a DuckDB process keeps before another takes its place; every DDL makes a new one."""


def rows_of(changes: Mapping[int, State]) -> pa.Table:
    return pa.table({"id": list(changes), "v": list(changes.values())}, schema=COLUMNS)


class Worker(ABC):
    """``locations`` are those of the servers now. ``problems`` are answers that no client should ever get."""

    name: str
    tables: Sequence[str] = ()
    journalled: Sequence[str] = ()

    def __init__(self, locations: Callable[[], Sequence[str]], latencies: Latencies, *, seed: int) -> None:
        self.locations = locations
        self.latencies = latencies
        self.dice = random.Random(f"{seed}/{self.name}")
        self.ledgers = {table: Ledger(table) for table in self.tables}
        self.problems: list[str] = []
        self._keys = itertools.count(1)
        self._values = itertools.count(1)
        self._place = self.dice.randrange(2)

    @property
    def location(self) -> str:
        """The server that this worker is at; after a failure it tries the other."""
        locations = self.locations()
        return locations[self._place % len(locations)]

    def run(self, over: threading.Event) -> None:
        while not over.is_set():
            pause = _PAUSE
            try:
                self.step()
                pause = self.dice.uniform(0.0, 0.3)
            except (SparkportError, CallFailed, AirportError) as exc:
                self._place += 1
                self.latencies.count(f"{self.name} {_code(exc).name}")
                if _code(exc) not in _REFUSED | _LOST:
                    self.problem(exc)
            except Exception as exc:
                self.problem(exc)
            over.wait(pause)

    @abstractmethod
    def step(self) -> None:
        """One statement or transaction. What it raises means that no row was changed, or is in the ledger as lost."""

    def close(self) -> None:
        return None

    def problem(self, exc: Exception) -> None:
        logger.error("%s worker: %s", self.name, "".join(traceback.format_exception(exc)))
        self.problems.append(f"{self.name} worker got {type(exc).__name__}: {str(exc)[:300]}")

    # Changes

    def new_rows(self) -> dict[int, State]:
        return {next(self._keys): self.new_value() for _ in range(self.dice.randint(1, _BATCH))}

    def new_value(self) -> str:
        return f"{self.name}-{next(self._values)}"

    @contextmanager
    def changing(self, changes: Mapping[Ledger, Mapping[int, State]]) -> Iterator[None]:
        """Around all calls of a change: their outcome goes into the ledgers, and nobody compares meanwhile."""
        with ExitStack() as held:
            for ledger in sorted(changes, key=lambda item: item.table):
                held.enter_context(ledger.held())
            answer = Answer.LOST
            try:
                with self.latencies.timed(self.name):
                    yield
                answer = Answer.DONE
            except (SparkportError, CallFailed, AirportError) as exc:
                answer = answer_of(exc)
                raise
            finally:
                if answer is Answer.LOST:
                    self.latencies.count(f"{self.name} lost answers")
                for ledger, rows in changes.items():
                    ledger.note(rows, answer)

    def changed(self, count: int, rows: Mapping[int, State]) -> None:
        if count != len(rows):
            self.problems.append(f"{self.name} worker changed {count} rows where {len(rows)} were there: {dict(rows)}")

    def compare(self, ledger: Ledger, rows: pa.Table, wanted: Callable[[int], bool] = lambda key: True) -> None:
        """What a scan has found, of the keys that it has asked for; ``ledger`` MUST be held."""
        found = zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)
        self.problems += [f"{problem}, by {self.name}" for problem in ledger.compare(found, wanted=wanted)]


class PythonWorker(Worker):
    """Single statements, and transactions over two tables: one in five with the table that is not journalled."""

    name = "python"
    tables = ("soak_python", "soak_python_orders", "soak_python_items")
    journalled = ("soak_python_orders", "soak_python_items")

    def __init__(self, locations: Callable[[], Sequence[str]], latencies: Latencies, *, seed: int) -> None:
        super().__init__(locations, latencies, seed=seed)
        self._clients = Clients(locations)

    def close(self) -> None:
        self._clients.close()

    @property
    def client(self) -> Client:
        return self._clients.at(self.location)

    def step(self) -> None:
        choice = self.dice.random()
        if choice < 0.4:
            self._transaction()
            return
        ledger = self._some_ledgers()[0]
        full = len(ledger.there) > _ROWS
        if choice < 0.6 and not full:
            new = self.new_rows()
            with self.changing({ledger: new}):
                self.changed(self.client.insert(f"public.{ledger.table}", rows_of(new)).count, new)
        elif choice < 0.8:
            self._change(ledger, delete=full)
        else:
            self._change(ledger, delete=True)

    def _some_ledgers(self) -> tuple[Ledger, Ledger]:
        """Spark takes seconds for a change where the journal takes milliseconds."""
        plain, orders, items = (self.ledgers[table] for table in self.tables)
        return (plain, orders) if self.dice.random() < 0.2 else (orders, items)

    def _change(self, ledger: Ledger, *, delete: bool) -> None:
        keys = ledger.some(self.dice, _BATCH)
        with ledger.held():
            found = self.client.scan(f"public.{ledger.table}", row_id=True).read_all()
            self.compare(ledger, found)
        ids = dict(zip(found["id"].to_pylist(), found["rowid"].to_pylist(), strict=True))
        keys = [key for key in keys if key in ids]
        if not keys:
            return
        row_ids = pa.array([ids[key] for key in keys], pa.int64())
        changes: dict[int, State] = {key: None if delete else self.new_value() for key in keys}
        with self.changing({ledger: changes}):
            if delete:
                count = self.client.delete(f"public.{ledger.table}", row_ids).count
            else:
                rows = pa.table({"rowid": row_ids, "v": pa.array(changes.values(), pa.string())})
                count = self.client.update(f"public.{ledger.table}", rows).count
            self.changed(count, changes)

    def _transaction(self) -> None:
        """Rows go into both tables, and one of the first is deleted or changed."""
        one, two = self._some_ledgers()
        both = {one: self.new_rows(), two: self.new_rows()}
        old = one.some(self.dice, 2 * _BATCH if len(one.there) > _ROWS else 2)
        older = two.some(self.dice, 2 * _BATCH) if len(two.there) > _ROWS else []
        keeps = self.dice.random() < 0.4
        both[one] |= {key: self.new_value() if keeps else None for key in old}
        both[two] |= dict.fromkeys(older)
        with self.changing(both):
            calls = ResolvingDeferred(self._clients, Isolation.SNAPSHOT, first=self._place)
            try:
                for ledger, keys in ((one, old), (two, older)):
                    ids = {row["id"]: row["rowid"] for row in calls.read(ledger.table)} if keys else {}
                    self._of_transaction(calls, ledger.table, {key: ids[key] for key in keys}, both[ledger])
            except Exception:
                with suppress(SparkportError):
                    calls.rollback()
                raise
            calls.commit()
            self.latencies.count("transactions")

    def _of_transaction(
        self, calls: ResolvingDeferred, table: str, ids: Mapping[int, int], changes: Mapping[int, State]
    ) -> None:
        new = {key: value for key, value in changes.items() if key not in ids}
        self.changed(calls.insert(table, rows_of(new).to_batches()[0]), new)
        gone = [row_id for key, row_id in ids.items() if changes[key] is None]
        if gone:
            calls.delete(table, gone)
        kept = {row_id: changes[key] for key, row_id in ids.items() if changes[key] is not None}
        if kept:
            calls.update(table, pa.RecordBatch.from_pydict({"rowid": list(kept), "v": list(kept.values())}))


class JsonWorker(Worker):
    """The JSON contract: DoPut and actions, alone and in transactions that it commits."""

    name = "json"
    tables = ("soak_json",)

    def __init__(self, locations: Callable[[], Sequence[str]], latencies: Latencies, *, seed: int) -> None:
        super().__init__(locations, latencies, seed=seed)
        self._clients: dict[str, ContractClient] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _at(self, location: str) -> ContractClient:
        if location not in self._clients:
            self._clients[location] = ContractClient(location, timeout=120.0)
        return self._clients[location]

    def step(self) -> None:
        (ledger,) = self.ledgers.values()
        client = self._at(self.location)
        full = len(ledger.there) > _ROWS
        with ledger.held():
            found = client.read(ledger.table)
            self.compare(ledger, found)
        ids = dict(zip(found["id"].to_pylist(), found["rowid"].to_pylist(), strict=True))
        some = [key for key in ledger.some(self.dice, 2 * _BATCH if full else 2) if key in ids]
        gone: dict[int, State] = dict.fromkeys(some)
        changes: dict[int, State] = {key: self.new_value() for key in some}
        new = self.new_rows()
        choice = self.dice.random()
        if choice < 0.3 or not some:
            with self.changing({ledger: new}):
                self.changed(len(client.insert(ledger.table, rows_of(new).to_batches()[0])), new)
        elif choice < 0.5 and not full:
            with self.changing({ledger: changes}):
                rows = rows_of(changes).to_batches()[0]
                self.changed(client.update(ledger.table, [ids[key] for key in some], rows), changes)
        elif choice < 0.7:
            with self.changing({ledger: gone}):
                self.changed(client.delete(ledger.table, [ids[key] for key in some], returning=True), gone)
        else:
            with self.changing({ledger: {**new, **gone}}):
                transaction = client.begin(auto_commit=False)
                self.changed(client.add(ledger.table, rows_of(new).to_batches()[0], transaction), new)
                self.changed(client.delete(ledger.table, [ids[key] for key in some], transaction), gone)
                self._commit(client, transaction)
                self.latencies.count("transactions")

    def _commit(self, client: ContractClient, transaction: str) -> None:
        """A lost answer is asked for, wherever a server answers."""
        try:
            client.commit(transaction)
            return
        except CallFailed as exc:
            if answer_of(exc) is not Answer.LOST:
                raise
            lost = exc
        waiting = threading.Event()
        for look in range(_STATUS_LOOKS):
            locations = self.locations()
            try:
                state = self._at(locations[look % len(locations)]).status(transaction)
            except CallFailed:
                state = ""
            if state == "committed":
                return
            if state == "aborted":
                raise CallFailed(Code.ABORTED, f"{transaction} was aborted after {lost}")
            waiting.wait(1.0)
        raise lost


class DuckDBWorker(Worker):
    """Plays DuckDB with the Airport extension on a journalled table: RETURNING, filters, changes by row id."""

    name = "duckdb"
    tables = ("soak_duckdb",)
    journalled = ("soak_duckdb",)

    def __init__(self, locations: Callable[[], Sequence[str]], latencies: Latencies, *, seed: int) -> None:
        super().__init__(locations, latencies, seed=seed)
        self._client: DuckDBClient | None = None
        self._lake: Attached | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = self._lake = None

    def _attached(self) -> Attached:
        known = self._client
        if known is None or self._lake is None or known.location != self.location or len(known.contents) > _LISTINGS:
            self.close()
            self._client = DuckDBClient(self.location, watchdog=120.0)
            self._lake = self._client.attach("lake")
        return self._lake

    def step(self) -> None:
        (ledger,) = self.ledgers.values()
        name = f"public.{ledger.table}"
        lake = self._attached()
        full = len(ledger.there) > _ROWS
        returning = self.dice.random() < 0.5
        choice = self.dice.random()
        if choice < 0.4 and not full:
            new = self.new_rows()
            with self.changing({ledger: new}):
                self.changed(lake.insert(name, rows_of(new), returning=returning).count, new)
            return
        floor = self.dice.choice(sorted(ledger.there) or [0])
        with ledger.held(), self.latencies.timed(f"{self.name} scan"):
            found = lake.scan(name, ["id", "v", "rowid"], filters=[compare("id", ">=", floor)]).rows
            self.compare(ledger, found.filter(pc.greater_equal(found["id"], floor)), lambda key: key >= floor)
        ids = dict(zip(found["id"].to_pylist(), found["rowid"].to_pylist(), strict=True))
        some = [key for key in ledger.some(self.dice, 2 * _BATCH if full else _BATCH) if key in ids]
        row_ids = [ids[key] for key in some]
        if not some:
            return
        if choice < 0.7 and not full:
            changes: dict[int, State] = {key: self.new_value() for key in some}
            with self.changing({ledger: changes}):
                rows = pa.table({"v": list(changes.values()), "rowid": pa.array(row_ids, pa.int64())})
                self.changed(lake.update(name, rows, returning=returning).count, changes)
        else:
            gone: dict[int, State] = dict.fromkeys(some)
            with self.changing({ledger: gone}):
                self.changed(lake.delete(name, row_ids, returning=returning).count, gone)


class DdlWorker(Worker):
    """The life of a table, again and again. One whose answer was lost is left behind and dropped later."""

    name = "ddl"

    def __init__(self, locations: Callable[[], Sequence[str]], latencies: Latencies, *, seed: int) -> None:
        super().__init__(locations, latencies, seed=seed)
        self._clients = Clients(locations)
        self._left: list[str] = []

    def close(self) -> None:
        self._clients.close()

    def step(self) -> None:
        client = self._clients.at(self.location)
        while self._left:
            client.drop_table(self._left[-1], if_exists=True)
            self._left.pop()
        number = next(self._keys)
        table, renamed = f"public.soak_ddl_{number}", f"public.soak_ddl_{number}_renamed"
        self._left = [table, renamed]
        rows = self.new_rows()
        for work, columns in (
            (lambda: client.create_table(table, COLUMNS), ["id", "v"]),
            (lambda: client.insert(table, rows_of(rows)), ["id", "v"]),
            (lambda: client.add_column(table, pa.field("more", pa.int64()), default="7"), ["id", "v", "more"]),
            (lambda: client.rename_column(table, "more", "less"), ["id", "v", "less"]),
        ):
            self._do(client, table, work, columns)
        found = client.scan(table).read_all().to_pylist()
        wanted = [{"id": key, "v": value, "less": 7} for key, value in rows.items()]
        if sorted(found, key=lambda row: int(row["id"])) != wanted:
            self.problems.append(f"{table} has {found}, not {wanted}")
        self._do(client, table, lambda: client.drop_column(table, "less"), ["id", "v"])
        new_name = renamed.removeprefix("public.")
        self._do(client, renamed, lambda: client.rename_table(table, new_name), ["id", "v"])
        with self.latencies.timed(self.name):
            client.drop_table(renamed)
        there = {f"{found.schema_name}.{found.name}" for found in client.tables("public")}
        for name in there & {table, renamed}:
            self.problems.append(f"{name} is still listed after it was dropped")
        self._left = []

    def _do(self, client: Client, table: str, work: Callable[[], object], columns: Sequence[str]) -> None:
        with self.latencies.timed(self.name):
            work()
        found = client.describe(table).schema.names
        if found != list(columns):
            self.problems.append(f"{table} has the columns {found}, not {list(columns)}")


def answer_of(exc: SparkportError | CallFailed | AirportError) -> Answer:
    """What an error says of the change that it answers. Whatever it does not say for sure is in doubt."""
    if isinstance(exc, OutcomeUnknown):
        return Answer.LOST
    code = _code(exc)
    if code in _REFUSED or (code is Code.UNAVAILABLE and is_unreachable(str(exc))):
        return Answer.REFUSED
    return Answer.LOST


def _code(exc: SparkportError | CallFailed | AirportError) -> Code:
    if not isinstance(exc, AirportError):
        return exc.code
    known = exc.code.name in Code.__members__ and exc.code is not grpc.StatusCode.UNKNOWN
    return Code[exc.code.name] if known else Code.INTERNAL
