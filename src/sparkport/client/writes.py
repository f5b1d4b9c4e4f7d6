"""INSERT, UPDATE and DELETE by DoExchange, as DuckDB sends them: some of the columns, streamed, rows back in lock-step.

A statement happens once, at its end, whole or not at all. So a failure before the end of the input means that nothing
has happened; after it only the server knows. The statement's id lets it be sent again without being done twice.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa

from sparkport.catalog.statement import Change
from sparkport.client.backoff import pause
from sparkport.client.connection import Connection
from sparkport.client.errors import OutcomeUnknown, Unreachable, translated
from sparkport.client.exchange import Exchange
from sparkport.client.rows import Input
from sparkport.client.scan import select
from sparkport.errors import Cancelled, DeadlineExceeded, InternalError, SparkportError, Unavailable
from sparkport.protocol.maps import MapReader
from sparkport.protocol.targets import Target

__all__ = ["Returning", "Statement", "WriteResult"]

logger = logging.getLogger(__name__)

Returning = bool | Sequence[str]
"""Whether rows are wanted back, or which of their columns."""

_LOST = (Unavailable, DeadlineExceeded, Cancelled)
_LOOKS = 6  # for an answer that was lost, over some two seconds


@dataclass(frozen=True, slots=True)
class WriteResult:
    """``count`` is of rows really changed. ``rows`` are those that were asked for with ``returning``."""

    count: int
    rows: pa.Table | None = None


@dataclass(slots=True, kw_only=True)
class Statement:
    """One row change on its way, tried a second time where that is safe. Inside a transaction nothing is decided
    before its commit, so a lost answer is simply a failure there."""

    connection: Connection
    target: Target
    change: Change
    rows: Input
    returning: Returning
    in_transaction: bool
    sent: bool = False
    """The end of the input has been sent at least once: the server may have done it."""

    def run(self) -> WriteResult:
        connection = self.connection.with_headers({"x-statement-id": str(uuid.uuid4())})
        try:
            return self._attempt(connection)
        except _LOST as exc:
            if not isinstance(exc, Unavailable) or not self.rows.repeatable or self.returning is not False:
                self._fail(exc)
            logger.debug("%s is sent again: %s", self._what, exc.message)
        return self._again(connection)

    def _again(self, connection: Connection) -> WriteResult:
        """The same statement once more, until there is an answer or no hope of one.

        The server says that it is unavailable while the first one still runs.
        """
        look = 1
        while True:
            pause(look)  # a connection that was cut is found out a moment later
            try:
                return self._attempt(connection)
            except _LOST as exc:
                hopeless = isinstance(exc, Unreachable) and not self.sent
                if not isinstance(exc, Unavailable) or hopeless or look == _LOOKS:
                    self._fail(exc)
            look += 1

    def _attempt(self, connection: Connection) -> WriteResult:
        wants_rows = self.returning is not False
        with Exchange(
            connection,
            self.target.descriptor(),
            self.rows.schema,
            operation=self.change.value,
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
        if metadata is None:
            raise InternalError(f"the server did not say how many rows {self._what} has changed")
        with translated(connection.location, what="count of changed rows"):
            return WriteResult(MapReader.from_msgpack(metadata).integer("total_changed"), returned)

    def _stream(self, exchange: Exchange) -> None:
        for batch in self.rows.open():
            if batch.num_rows and not exchange.feed(batch):
                return  # the server has ended the call: reading tells why
        self._finish(exchange)

    def _in_lock_step(self, exchange: Exchange, answer: pa.Schema) -> pa.Table:
        columns = None if isinstance(self.returning, bool) else self.returning
        returned = select(answer, columns=columns, what=f"the answer to {self._what}").returned
        found: list[pa.RecordBatch] = []
        for batch in self.rows.open():
            if batch.num_rows:
                exchange.send(batch)
                found += exchange.answers(batch.num_rows)
        self._finish(exchange)
        whole = pa.Table.from_batches(found, answer)
        return pa.Table.from_arrays([whole.column(name) for name in returned.names], schema=returned)

    def _finish(self, exchange: Exchange) -> None:
        self.sent = True
        exchange.finish()

    def _fail(self, exc: SparkportError) -> NoReturn:
        if not self.sent or self.in_transaction:
            raise exc
        raise OutcomeUnknown(f"it is not known whether {self._what} has happened: {exc.message}") from exc

    @property
    def _what(self) -> str:
        return f"the {self.change.name} of '{self.target.name}'"
