"""INSERT, UPDATE and DELETE by DoExchange, as DuckDB sends them: some of the columns, streamed, rows back in lock-step.

A statement happens once, at its end, whole or not at all. So a failure before the end of the input means that nothing
has happened; after it only the server knows. The statement's id lets it be sent again without being done twice.
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NoReturn, TypeVar

import pyarrow as pa

from sparkport.client.backoff import pause
from sparkport.client.connection import Connection
from sparkport.client.errors import OutcomeUnknown, Unreachable, translated
from sparkport.client.exchange import Exchange
from sparkport.client.rows import Input
from sparkport.client.scan import select
from sparkport.errors import Cancelled, DeadlineExceeded, InternalError, SparkportError, Unavailable
from sparkport.protocol.maps import MapReader, pack
from sparkport.protocol.targets import Target

__all__ = ["KeyedResult", "KeyedStatement", "Returning", "Statement", "WriteResult"]

logger = logging.getLogger(__name__)

R = TypeVar("R")

Returning = bool | Sequence[str]
"""Whether rows are wanted back, or which of their columns."""

_LOST = (Unavailable, DeadlineExceeded, Cancelled)
_LOOKS = 6  # for an answer that was lost, over some two seconds


@dataclass(frozen=True, slots=True)
class WriteResult:
    """``count`` is of rows really changed. ``rows`` are those that were asked for with ``returning``."""

    count: int
    rows: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class KeyedResult:
    """``count`` is of rows of the table that were changed, ``untouched`` of rows of the input that changed none.

    Of a statement whose answer was lost, and that another server has done, only ``count`` may be known. ``rows`` are
    those of the input, with ``returning``, and what became of each as ``merge_action``.
    """

    count: int
    inserted: int | None
    updated: int | None
    deleted: int | None
    untouched: int | None
    rows: pa.Table | None = None


@dataclass(slots=True, kw_only=True)
class _Statement(ABC, Generic[R]):
    """One row change on its way, tried a second time where that is safe. Inside a transaction nothing is decided
    before its commit, so a lost answer is simply a failure there."""

    connection: Connection
    target: Target
    operation: str
    rows: Input
    returning: Returning
    in_transaction: bool
    statement_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """By which the server knows a repeat."""
    sent: bool = False
    """The end of the input has been sent at least once: the server may have done it."""

    def run(self) -> R:
        try:
            return self.attempt()
        except _LOST as exc:
            if not isinstance(exc, Unavailable) or not self.rows.repeatable or self.returning is not False:
                self._fail(exc)
            logger.debug("%s is sent again: %s", self._what, exc.message)
        return self._again()

    def attempt(self) -> R:
        """Once, with whatever error that meets."""
        return self._attempt(self.connection.with_headers({"x-statement-id": self.statement_id}))

    def _again(self) -> R:
        """The same statement once more, until there is an answer or no hope of one.

        The server says that it is unavailable while the first one still runs.
        """
        look = 1
        while True:
            pause(look)  # a connection that was cut is found out a moment later
            try:
                return self.attempt()
            except _LOST as exc:
                hopeless = isinstance(exc, Unreachable) and not self.sent
                if not isinstance(exc, Unavailable) or hopeless or look == _LOOKS:
                    self._fail(exc)
            look += 1

    @abstractmethod
    def _attempt(self, connection: Connection) -> R: ...

    def _stream(self, exchange: Exchange) -> None:
        for batch in self.rows.open():
            if batch.num_rows and not exchange.feed(batch):
                return  # the server has ended the call: reading raises why
        self._finish(exchange)

    def _finish(self, exchange: Exchange) -> None:
        self.sent = True
        exchange.finish()

    def _fail(self, exc: SparkportError) -> NoReturn:
        if not self.sent or self.in_transaction:
            raise exc
        raise OutcomeUnknown(f"it is not known whether {self._what} has happened: {exc.message}") from exc

    def _counts(self, connection: Connection, metadata: bytes | None) -> MapReader:
        if metadata is None:
            raise InternalError(f"the server did not say how many rows {self._what} has changed")
        with translated(connection.location, what="count of changed rows"):
            return MapReader.from_msgpack(metadata)

    @property
    def _what(self) -> str:
        return f"the {self.operation.upper()} of '{self.target.name}'"


@dataclass(slots=True, kw_only=True)
class Statement(_Statement[WriteResult]):
    def _attempt(self, connection: Connection) -> WriteResult:
        wants_rows = self.returning is not False
        with Exchange(
            connection,
            self.target.descriptor(),
            self.rows.schema,
            operation=self.operation,
            return_chunks=wants_rows,
        ) as exchange:
            answer = exchange.read_schema()
            returned: pa.Table | None = None
            if wants_rows:
                returned = self._in_lock_step(exchange, answer)
            else:
                self._stream(exchange)
            extra, metadata = exchange.read()
            if extra is not None:
                raise InternalError(f"the server sent rows after the end of {self._what}")
        counts = self._counts(connection, metadata)
        with translated(connection.location, what="count of changed rows"):
            return WriteResult(counts.integer("total_changed"), returned)

    def _in_lock_step(self, exchange: Exchange, answer: pa.Schema) -> pa.Table:
        columns = None if isinstance(self.returning, bool) else self.returning
        returned = select(answer, columns=columns, what=f"the answer to {self._what}").returned
        answers: list[pa.RecordBatch] = []
        for batch in self.rows.open():
            if batch.num_rows:
                exchange.send(batch)
                answers += exchange.answers(batch.num_rows)
        self._finish(exchange)
        whole = pa.Table.from_batches(answers, answer)
        return pa.Table.from_arrays([whole.column(name) for name in returned.names], schema=returned)


@dataclass(slots=True, kw_only=True)
class KeyedStatement(_Statement[KeyedResult]):
    """Rows that find others by key; without ``key`` by the table's primary key."""

    key: Sequence[str] | None

    def _attempt(self, connection: Connection) -> KeyedResult:
        with Exchange(
            connection,
            self.target.descriptor(),
            self.rows.schema,
            operation=self.operation,
            preamble=pack({} if self.key is None else {"key": list(self.key)}),
            return_chunks=self.returning is not False,
        ) as exchange:
            schema = exchange.read_schema()
            self._stream(exchange)
            returned: list[pa.RecordBatch] = []
            batch, metadata = exchange.read()
            while batch is not None:
                returned.append(batch)
                batch, metadata = exchange.read()
        counts = self._counts(connection, metadata)
        with translated(connection.location, what="count of changed rows"):
            count = counts.integer("total_changed")
            inserted, updated = counts.optional_integer("inserted"), counts.optional_integer("updated")
            deleted, untouched = counts.optional_integer("deleted"), counts.optional_integer("untouched")
        rows = pa.Table.from_batches(returned, schema) if self.returning else None
        return KeyedResult(count, inserted, updated, deleted, untouched, rows)
