"""Two ways to put the same operations to an engine: straight at its tables, and over real gRPC.

Both speak in keys; that an engine changes rows by row id is the driver's business. A driver raises ``Refused`` with the
status code that a client would see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from tests.consistency.client import CallFailed, ContractClient, rows_of
from tests.consistency.engines import PATIENCE_SECONDS, EngineUnderTest, can_defer
from tests.consistency.model import Refused, Rows

from sparkport.catalog.context import CallContext
from sparkport.catalog.row_ids import ROW_ID
from sparkport.catalog.scan import AsOf, AsOfUnit, ScanRequest
from sparkport.catalog.statement import Change, MissingRows, StatementRequest
from sparkport.catalog.transaction import Isolation
from sparkport.errors import SparkportError
from sparkport.handlers.operations import Operations, require_manager
from sparkport.lakehouse.journal.net import FIRST_ID
from sparkport.memory import MemoryCatalog

__all__ = ["Driver", "EngineDriver", "WireDriver"]

COLUMNS = pa.schema([("key", pa.int64()), ("value", pa.int64())])
_NO_SUCH_ROW = 10**9


class Driver(ABC):
    """Tables ``a`` and ``b``, both empty at first.

    ``turns_deferred`` says that a transaction can become deferred after it has begun, ``defers`` that there are any.
    With ``reads_for_ids`` the row ids of new rows are found out by a read of the table, in the same transaction.
    """

    tables = ("a", "b")
    turns_deferred = False
    reads_for_ids = False
    defers = True

    def __init__(self) -> None:
        self._row_ids: dict[tuple[str, int], int] = {}
        self._own_ids: dict[tuple[str, str, int], int] = {}

    def ids(self, table: str, keys: list[int], transaction: str | None) -> list[int]:
        """A deferred transaction's new rows have ids of its own, which mean nothing to others."""
        known = [self._row_ids.get((table, key), _NO_SUCH_ROW + key) for key in keys]
        own = [None if transaction is None else self._own_ids.get((transaction, table, key)) for key in keys]
        return [mine if mine is not None else other for mine, other in zip(own, known, strict=True)]

    def close(self) -> None:
        return None

    @abstractmethod
    def begin(self, *, auto_commit: bool, serializable: bool) -> str: ...

    @abstractmethod
    def defer(self, transaction: str) -> None: ...

    @abstractmethod
    def commit(self, transaction: str) -> None: ...

    @abstractmethod
    def rollback(self, transaction: str) -> None: ...

    @abstractmethod
    def status(self, transaction: str) -> str: ...

    @abstractmethod
    def read(self, table: str, transaction: str | None, *, version: int | None = None) -> Rows: ...

    @abstractmethod
    def insert(self, table: str, rows: Rows, transaction: str | None) -> int: ...

    @abstractmethod
    def update(self, table: str, rows: Rows, transaction: str | None, *, refuse_missing: bool) -> int: ...

    @abstractmethod
    def delete(
        self, table: str, keys: set[int], transaction: str | None, *, refuse_missing: bool, returning: bool
    ) -> int: ...


class EngineDriver(Driver):
    """Calls memory tables as the server does, each statement in the same bracket."""

    turns_deferred = True

    def __init__(self) -> None:
        super().__init__()
        self._catalog = MemoryCatalog("lake")
        self._tables = {name: self._catalog.create_table(name, COLUMNS) for name in self.tables}
        self._operations = Operations()
        self._manager = require_manager(self._catalog)

    def begin(self, *, auto_commit: bool, serializable: bool) -> str:
        isolation = Isolation.SERIALIZABLE if serializable else Isolation.SNAPSHOT
        return self._manager.begin(CallContext(), auto_commit=auto_commit, isolation=isolation)

    def defer(self, transaction: str) -> None:
        with _refusals():
            self._manager.defer(transaction)

    def commit(self, transaction: str) -> None:
        with _refusals():
            self._manager.commit(transaction)

    def rollback(self, transaction: str) -> None:
        with _refusals():
            self._manager.rollback(transaction)

    def status(self, transaction: str) -> str:
        state = self._manager.status(transaction)
        return "unknown" if state is None else state.value

    def read(self, table: str, transaction: str | None, *, version: int | None = None) -> Rows:
        ctx = CallContext(transaction_id=transaction)
        at = None if version is None else AsOf(AsOfUnit.VERSION, str(version))
        with _refusals():
            if transaction is not None:
                self._operations.require_open(self._manager, transaction)
            (request,) = self._tables[table].plan(ctx, ScanRequest(at=at))
            batches = list(self._tables[table].scan(ctx, request))
        return _rows(pa.Table.from_batches(batches, self._tables[table].schema))

    def insert(self, table: str, rows: Rows, transaction: str | None) -> int:
        batch = rows_of(key=list(rows), value=list(rows.values()))
        request = StatementRequest(change=Change.INSERT, columns=COLUMNS, returning=True)
        count, back = self._run(table, request, batch, None, transaction)
        self._row_ids.update({(table, row["key"]): row[ROW_ID] for row in back})
        return count

    def update(self, table: str, rows: Rows, transaction: str | None, *, refuse_missing: bool) -> int:
        batch = rows_of(value=list(rows.values()))
        request = StatementRequest(change=Change.UPDATE, columns=batch.schema, missing=_missing(refuse_missing))
        return self._run(table, request, batch, self.ids(table, list(rows), transaction), transaction)[0]

    def delete(
        self, table: str, keys: set[int], transaction: str | None, *, refuse_missing: bool, returning: bool
    ) -> int:
        request = StatementRequest(
            change=Change.DELETE, columns=pa.schema([]), returning=returning, missing=_missing(refuse_missing)
        )
        return self._run(table, request, None, self.ids(table, list(keys), transaction), transaction)[0]

    def _run(
        self,
        table: str,
        request: StatementRequest,
        rows: pa.RecordBatch | None,
        row_ids: list[int] | None,
        transaction: str | None,
    ) -> tuple[int, list[dict[str, int]]]:
        ctx = CallContext(transaction_id=transaction)
        ids = None if row_ids is None else pa.array(row_ids, pa.int64())
        with _refusals(), self._operations.running(ctx, self._catalog):
            statement = self._tables[table].open_statement(ctx, request)
            try:
                back = statement.push(rows, ids)
                count = statement.finish()
            finally:
                statement.abort()
        return count, [] if back is None else back.to_pylist()


class WireDriver(Driver):
    """Over gRPC: the JSON contract where unknown ids are refused, DoExchange where they are skipped."""

    reads_for_ids = True

    def __init__(self, engine: EngineUnderTest) -> None:
        super().__init__()
        self.defers = can_defer(engine)
        self._names = {name: engine.new_table(name, COLUMNS.empty_table()) for name in self.tables}
        self._client = ContractClient(engine.location, timeout=PATIENCE_SECONDS)
        self._deferred: set[str] = set()

    def close(self) -> None:
        self._client.close()

    def begin(self, *, auto_commit: bool, serializable: bool) -> str:
        isolation = "serializable" if serializable else "snapshot"
        transaction = self._client.begin(auto_commit=auto_commit, isolation=isolation)
        if not auto_commit:
            self._deferred.add(transaction)
        return transaction

    def defer(self, transaction: str) -> None:
        raise NotImplementedError

    def commit(self, transaction: str) -> None:
        with _refusals():
            self._client.commit(transaction)
        for table in self.tables if transaction in self._deferred else ():
            self._learn(table, None)

    def rollback(self, transaction: str) -> None:
        with _refusals():
            self._client.rollback(transaction)

    def status(self, transaction: str) -> str:
        return self._client.status(transaction)

    def read(self, table: str, transaction: str | None, *, version: int | None = None) -> Rows:
        with _refusals():
            return _rows(self._client.read(self._names[table], transaction, version=version))

    def insert(self, table: str, rows: Rows, transaction: str | None) -> int:
        with _refusals():
            batch = rows_of(key=list(rows), value=list(rows.values()))
            count = self._client.add(self._names[table], batch, transaction)
            self._learn(table, transaction if transaction in self._deferred else None)
        return count

    def update(self, table: str, rows: Rows, transaction: str | None, *, refuse_missing: bool) -> int:
        row_ids = self.ids(table, list(rows), transaction)
        with _refusals():
            if refuse_missing:  # the JSON contract wants all columns
                batch = rows_of(key=list(rows), value=list(rows.values()))
                return self._client.update(self._names[table], row_ids, batch, transaction)
            batch = rows_of(value=list(rows.values()), rowid=row_ids)
            return self._client.exchange("update", self._names[table], batch, transaction)

    def delete(
        self, table: str, keys: set[int], transaction: str | None, *, refuse_missing: bool, returning: bool
    ) -> int:
        row_ids, name = self.ids(table, list(keys), transaction), self._names[table]
        with _refusals():
            if refuse_missing:
                return self._client.delete(name, row_ids, transaction, returning=returning)
            return self._client.exchange("delete", name, rows_of(rowid=row_ids), transaction, returning=returning)

    def _learn(self, table: str, transaction: str | None) -> None:
        for row in self._client.read(self._names[table], transaction).to_pylist():
            if transaction is None:
                known = self._row_ids.get((table, row["key"]), row["rowid"])
                # A row that was new in the journal gets its lasting id when it is published.
                lasts = known < FIRST_ID
                assert known == row["rowid"] or not lasts, f"the row id of {row} was {known} before"
                self._row_ids[(table, row["key"])] = row["rowid"]
            elif (table, row["key"]) not in self._row_ids:
                self._own_ids[(transaction, table, row["key"])] = row["rowid"]


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (SparkportError, CallFailed) as exc:
        raise Refused(exc.code) from exc


def _missing(refuse: bool) -> MissingRows:
    return MissingRows.REFUSE if refuse else MissingRows.SKIP


def _rows(table: pa.Table) -> Rows:
    keys = table.column("key").to_pylist()
    assert len(keys) == len(set(keys)), "a row is there twice"
    return dict(zip(keys, table.column("value").to_pylist(), strict=True))
