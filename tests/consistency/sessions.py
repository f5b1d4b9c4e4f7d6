"""One client of a workload: its transactions, each call of them over gRPC and an entry in the record.

Deferred transactions go through the public client. It has none that commit each statement; those go through the
JSON contract and DuckDB's exchange.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from tests.consistency.client import CallFailed, ContractClient
from tests.consistency.history import (
    Append,
    Clock,
    Delete,
    Insert,
    Operation,
    Outcome,
    Read,
    Recorder,
    Transaction,
    Write,
)

from sparkport.catalog.transaction import Isolation
from sparkport.client import Client
from sparkport.errors import Code, SparkportError

__all__ = ["AutoCommitting", "Calls", "Deferring", "OpenTransaction", "Row", "Session"]

Row = dict[str, Any]

_TRIES = 10
_NO_ANSWER = frozenset({Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED})


class Calls(ABC):
    """The calls of one transaction. Rows are changed by the row ids that the same transaction has read.

    ``begun`` and ``ended`` are the moments at which it had begun and ended, where it knows that better than its caller.
    """

    begun: int | None = None
    ended: int | None = None

    @abstractmethod
    def read(self, table: str) -> list[Row]: ...

    @abstractmethod
    def update(self, table: str, rows: pa.RecordBatch) -> int:
        """``rows`` have a column ``rowid`` and those that are to change."""

    def insert(self, table: str, rows: pa.RecordBatch) -> int:
        raise NotImplementedError

    def delete(self, table: str, row_ids: Sequence[int]) -> int:
        raise NotImplementedError

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...


class Deferring(Calls):
    def __init__(self, client: Client, isolation: Isolation) -> None:
        self._transaction = client.transaction(isolation=isolation.value)

    def read(self, table: str) -> list[Row]:
        rows: list[Row] = self._transaction.scan(f"public.{table}", row_id=True).read_all().to_pylist()
        return rows

    def update(self, table: str, rows: pa.RecordBatch) -> int:
        return self._transaction.update(f"public.{table}", rows).count

    def commit(self) -> None:
        self._transaction.commit()

    def rollback(self) -> None:
        self._transaction.rollback()


class AutoCommitting(Calls):
    """Its one statement has committed itself when it has been answered."""

    def __init__(self, client: ContractClient, isolation: Isolation) -> None:
        self._client = client
        self._id = client.begin(auto_commit=True, isolation=isolation.value)

    def read(self, table: str) -> list[Row]:
        rows: list[Row] = self._client.read(table, self._id).to_pylist()
        return rows

    def update(self, table: str, rows: pa.RecordBatch) -> int:
        return self._client.exchange("update", table, rows, self._id)

    def commit(self) -> None:
        return None

    def rollback(self) -> None:
        self._client.rollback(self._id)


@dataclass(slots=True)
class OpenTransaction:
    """A transaction under way. ``number`` is in all that it writes; ``written`` is when it last asked for a change."""

    calls: Calls
    number: int
    clock: Clock
    operations: list[Operation] = field(default_factory=list)
    written: int = 0

    def lists(self, table: str) -> dict[int, Row]:
        rows = self._rows(table)
        self.operations += [Read((table, key), _elements(row["elements"])) for key, row in rows.items()]
        return rows

    def append(self, table: str, rows: Mapping[int, Row], elements: Mapping[int, int]) -> None:
        """One statement, however many keys get an element."""
        texts = {key: ",".join([*filter(None, [rows[key]["elements"]]), str(new)]) for key, new in elements.items()}
        self.operations += [Append((table, key), element) for key, element in elements.items()]
        self._update(table, [{"rowid": rows[key]["rowid"], "elements": text} for key, text in texts.items()])

    def registers(self, table: str) -> dict[int, Row]:
        rows = self._rows(table)
        self.operations += [Read((table, key), (row["value"], row["writer"])) for key, row in rows.items()]
        return rows

    def write(self, table: str, rows: Mapping[int, Row], values: Mapping[int, int]) -> None:
        """One statement, however many keys are written."""
        new = [{"rowid": rows[key]["rowid"], "value": value, "writer": self.number} for key, value in values.items()]
        self.operations += [Write((table, key), (value, self.number)) for key, value in values.items()]
        self._update(table, new)

    def values(self, table: str) -> dict[int, Row]:
        """The rows of a set, whatever was inserted into it."""
        found = self.calls.read(table)
        self.operations.append(Read(table, tuple(sorted(row["value"] for row in found))))
        return {row["value"]: row for row in found}

    def insert(self, table: str, values: Sequence[int]) -> None:
        self.operations += [Insert(table, value) for value in values]
        self.written = self.clock()
        rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.int64())})
        changed = self.calls.insert(table, rows)
        assert changed == len(values), f"{len(values)} rows were sent to {table}, {changed} inserted"

    def delete(self, table: str, rows: Mapping[int, Row], values: Sequence[int]) -> None:
        self.operations += [Delete(table, value) for value in values]
        self.written = self.clock()
        changed = self.calls.delete(table, [rows[value]["rowid"] for value in values])
        assert changed <= len(values), f"{len(values)} rows of {table} were to be deleted, {changed} were"

    def _rows(self, table: str) -> dict[int, Row]:
        """Those of the workload. Rows with keys below zero are somebody else's."""
        found = [row for row in self.calls.read(table) if row["key"] >= 0]
        rows = {row["key"]: row for row in sorted(found, key=lambda row: int(row["key"]))}
        assert len(rows) == len(found), f"a row of {table} is there twice: {found}"
        return rows

    def _update(self, table: str, rows: Sequence[Row]) -> None:
        self.written = self.clock()
        changed = self.calls.update(table, pa.RecordBatch.from_pylist(list(rows)))
        assert changed == len(rows), f"{len(rows)} rows of {table} were read in this transaction, {changed} updated"


@dataclass(slots=True)
class Session:
    """One client and its part of the record. ``refusals`` are the codes that say: nothing has happened."""

    begin: Callable[[], Calls]
    recorder: Recorder
    number: int
    auto_commit: bool = False
    refusals: frozenset[Code] = frozenset({Code.ABORTED})

    def run(self, body: Callable[[OpenTransaction], None], *, roll_back: bool = False) -> Outcome:
        """One try. Only a conflict, or what else is said to, may refuse it; the rest are errors of the server's."""
        clock = self.recorder.clock
        begin_called = clock()
        calls = self.begin()
        begun = calls.begun or clock()
        transaction = OpenTransaction(calls, self.recorder.new_id(), clock)
        end_called = 0
        try:
            body(transaction)
            end_called = clock()
            if roll_back:
                calls.rollback()
                outcome = Outcome.ABORTED
            else:
                calls.commit()
                outcome = Outcome.OK
        except (CallFailed, SparkportError) as failure:
            if failure.code not in self.refusals and failure.code not in _NO_ANSWER:
                raise
            asked = transaction.written if self.auto_commit else end_called
            unknown = failure.code in _NO_ANSWER and asked > 0
            outcome = Outcome.UNKNOWN if unknown else Outcome.ABORTED
        if self.auto_commit:  # its end is asked for by its statement
            end_called = transaction.written
        self.recorder.add(
            Transaction(
                id=transaction.number,
                client=self.number,
                operations=tuple(transaction.operations),
                outcome=outcome,
                begin_called=begin_called,
                begun=begun,
                end_called=end_called or clock(),
                ended=calls.ended or clock(),
            )
        )
        return outcome

    def run_until_committed(self, body: Callable[[OpenTransaction], None]) -> Outcome:
        """Tries again after a conflict, not for ever: under serializable somebody can be unlucky for long."""
        outcomes = (self.run(body) for _ in range(_TRIES))
        return next((outcome for outcome in outcomes if outcome is not Outcome.ABORTED), Outcome.ABORTED)


def _elements(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)
