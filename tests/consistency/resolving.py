"""Transactions at one of several servers, any of which may die: a client that hears nothing asks until it knows.

A deferred one is asked for its status, at whatever server answers, and committed again while it is open. A single
statement is sent again under its id.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import pyarrow as pa
from tests.consistency.history import Clock
from tests.consistency.sessions import Calls, Row
from tests.support.attempts import AttemptingClient

from sparkport.catalog.statement import Change
from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.client.errors import OutcomeUnknown
from sparkport.client.transaction import Transaction
from sparkport.errors import (
    AlreadyExists,
    Cancelled,
    Conflict,
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    SparkportError,
    Unavailable,
)
from sparkport.protocol.maps import MapReader

__all__ = ["Clients", "Gate", "ResolvingDeferred", "ResolvingStatement"]

_LOST = (Unavailable, DeadlineExceeded, Cancelled, OutcomeUnknown)
_PATIENCE = 120.0
_LOOKS = 600
_PAUSE = 0.2

_waiting = threading.Event()


@dataclass(slots=True)
class Clients:
    """One for each address that a server was ever heard at; ``locations`` are those of today."""

    locations: Callable[[], Sequence[str]]
    _clients: dict[str, AttemptingClient] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def at(self, location: str) -> AttemptingClient:
        with self._lock:
            if location not in self._clients:
                self._clients[location] = AttemptingClient(location, timeout=_PATIENCE)
            return self._clients[location]

    def in_turn(self, first: int = 0) -> Iterator[AttemptingClient]:
        """One server after the other, as they are now, as long as somebody wants to ask."""
        for look in range(first, first + _LOOKS):
            locations = self.locations()
            yield self.at(locations[look % len(locations)])
            _waiting.wait(_PAUSE)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


class Gate:
    """Keeps out all others while somebody rewrites a table, so that everybody knows on which side they are.

    Moments that are read from ``clock`` inside it are on the right side, too.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


def _passing(gate: Gate | None) -> AbstractContextManager[None]:
    return nullcontext() if gate is None else gate.passing()


class ResolvingDeferred(Calls):
    def __init__(self, clients: Clients, isolation: Isolation, *, first: int, gate: Gate | None = None) -> None:
        self._clients = clients
        self._gate = gate
        with _passing(gate):
            self._transaction = self._begin(isolation, first)
            self.begun = None if gate is None else gate.clock()

    def _begin(self, isolation: Isolation, first: int) -> Transaction:
        for client in self._clients.in_turn(first):
            try:
                return client.transaction(isolation=isolation.value)
            except _LOST:
                continue
        raise AssertionError("no server can be reached")

    def read(self, table: str) -> list[Row]:
        rows: list[Row] = self._transaction.scan(f"public.{table}", row_id=True).read_all().to_pylist()
        return rows

    def update(self, table: str, rows: pa.RecordBatch) -> int:
        return self._transaction.update(f"public.{table}", rows).count

    def insert(self, table: str, rows: pa.RecordBatch) -> int:
        return self._transaction.insert(f"public.{table}", rows).count

    def delete(self, table: str, row_ids: Sequence[int]) -> int:
        return self._transaction.delete(f"public.{table}", pa.array(row_ids, pa.int64())).count

    def commit(self) -> None:
        with _passing(self._gate):
            try:
                self._transaction.commit()
            except _LOST as exc:
                self._resolve(exc)
            finally:
                self.ended = None if self._gate is None else self._gate.clock()

    def rollback(self) -> None:
        try:
            self._transaction.rollback()
        except (*_LOST, NotFound):
            return  # its server is gone, and it has gone with it: nobody has asked to commit it

    def _resolve(self, lost: SparkportError) -> None:
        for client in self._clients.in_turn():
            again = client.resume_transaction(self._transaction.id)
            try:
                state = again.status()
                if state is TransactionState.ACTIVE:
                    again.commit()
                    return
            except (*_LOST, NotFound):
                continue
            except FailedPrecondition as exc:
                if "another server" in exc.message:
                    continue  # which may be dead: then this one will say so in a while
                raise Conflict(exc.message) from exc
            if state is TransactionState.COMMITTED:
                return
            raise Conflict(f"transaction '{self._transaction.id}' was aborted") from lost
        raise OutcomeUnknown(f"nobody says how transaction '{self._transaction.id}' has ended") from lost


class ResolvingStatement(Calls):
    """A transaction that commits its one statement."""

    def __init__(self, clients: Clients, isolation: Isolation, *, first: int) -> None:
        self._clients = clients
        self._statement = str(uuid.uuid4())
        for client in clients.in_turn(first):
            try:
                body = f'{{"auto_commit": true, "isolation": "{isolation.value}"}}'.encode()
                answer = client.action("create_transaction", body)
            except _LOST:
                continue
            self._client = client
            self._id = MapReader.from_json(answer[0]).text("transaction_id")
            return
        raise AssertionError("no server can be reached")

    def read(self, table: str) -> list[Row]:
        session = self._client.resume_transaction(self._id)
        rows: list[Row] = session.scan(f"public.{table}", row_id=True).read_all().to_pylist()
        return rows

    def update(self, table: str, rows: pa.RecordBatch) -> int:
        return self._change(table, Change.UPDATE, pa.Table.from_batches([rows]))

    def insert(self, table: str, rows: pa.RecordBatch) -> int:
        return self._change(table, Change.INSERT, pa.Table.from_batches([rows]))

    def delete(self, table: str, row_ids: Sequence[int]) -> int:
        return self._change(table, Change.DELETE, pa.table({"rowid": pa.array(row_ids, pa.int64())}))

    def commit(self) -> None:
        return None

    def rollback(self) -> None:
        raise AssertionError("it has committed itself")

    def _change(self, table: str, change: Change, rows: pa.Table) -> int:
        try:
            return self._client.attempt(
                f"public.{table}", change, rows, statement=self._statement, transaction=self._id
            )
        except _LOST as exc:
            state = self._state()
            if state is TransactionState.COMMITTED:
                return int(rows.num_rows)
            if state is TransactionState.ABORTED:
                raise Conflict(f"transaction '{self._id}' was aborted: {exc.message}") from exc
            return self._again(table, change, rows)

    def _state(self) -> TransactionState | None:
        """What its own server says of it; None where that one is gone."""
        try:
            return self._client.resume_transaction(self._id).status()
        except (*_LOST, NotFound):
            return None

    def _again(self, table: str, change: Change, rows: pa.Table) -> int:
        """Wherever a server answers, and outside of the transaction, which its server has taken with it."""
        for client in self._clients.in_turn():
            try:
                return client.attempt(f"public.{table}", change, rows, statement=self._statement)
            except AlreadyExists:
                return int(rows.num_rows)
            except Conflict as exc:
                if "still running" not in exc.message:
                    raise
            except _LOST:
                continue
        raise OutcomeUnknown(f"nobody says what became of statement '{self._statement}'")
