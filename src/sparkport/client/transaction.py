"""Several reads and row changes as one: they see one state, and others see what they change at one instant."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from sparkport.catalog.statement import Change
from sparkport.catalog.transaction import Isolation, TransactionState
from sparkport.client.backoff import pause
from sparkport.client.connection import Connection
from sparkport.client.errors import OutcomeUnknown, Unreachable, translated
from sparkport.client.names import NameLike
from sparkport.client.rows import Input, Rows
from sparkport.client.session import Session
from sparkport.client.writes import KeyedResult, Returning, WriteResult
from sparkport.errors import (
    Cancelled,
    Conflict,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    SparkportError,
    Unavailable,
)
from sparkport.protocol.maps import MapReader

__all__ = ["Transaction", "begin", "run"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_COMMITS = 4
_LOST = (Unavailable, DeadlineExceeded, Cancelled)


class Transaction(Session):
    """A session whose calls belong together. Made by ``Client.transaction``.

    The end of its ``with`` block commits, an exception in it rolls back. A row change that fails aborts it, as it
    does at the server. Results of scans MUST be read before the end.
    """

    _in_transaction = True

    def __init__(self, connection: Connection, transaction_id: str) -> None:
        # A session of its own: tables that the client makes or alters meanwhile are for it those of somebody else.
        headers = {"x-transaction-id": transaction_id, "airport-client-session-id": uuid.uuid4().hex}
        super().__init__(connection.with_headers(headers))
        self._outside = connection
        self._id = transaction_id
        self._ended: TransactionState | None = None
        self._failure: BaseException | None = None

    @property
    def id(self) -> str:
        return self._id

    def status(self) -> TransactionState:
        """As the server has it: an idle transaction expires there, and is then aborted."""
        return self._ask("get_transaction_status", repeatable=True)

    def commit(self) -> None:
        """Make all changes last, at once. Conflict when another transaction was first: run all of it again.

        A lost answer is asked for again. ``OutcomeUnknown`` is raised if there is none to be had.
        """
        if self._ended is TransactionState.COMMITTED:
            return
        self._require_open()
        if self._failure is not None:
            self._give_up()
            raise FailedPrecondition(
                f"transaction '{self._id}' was aborted by an earlier failure in it: {self._failure}"
            ) from self._failure
        self._ended = TransactionState.ABORTED  # unless the server says otherwise
        self._commit()
        self._ended = TransactionState.COMMITTED

    def rollback(self) -> None:
        """Undo all changes. Safe to repeat."""
        if self._ended is TransactionState.COMMITTED:
            raise FailedPrecondition(f"transaction '{self._id}' is not active (state: committed)")
        self._ended = TransactionState.ABORTED
        self._ask("rollback_transaction", repeatable=True)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ended is not None:
            return
        if exc is None:
            self.commit()
        else:
            self._give_up()

    def __repr__(self) -> str:
        return f"Transaction(id={self._id!r})"

    def _change(self, name: NameLike, change: Change, rows: Callable[[], Input], returning: Returning) -> WriteResult:
        self._require_open()
        try:
            return super()._change(name, change, rows, returning)
        except BaseException as exc:
            # The server may not know it yet, when it was here that it failed.
            self._failure = exc
            raise

    def _change_by_key(
        self, name: NameLike, operation: str, rows: Rows, key: Sequence[str] | None, returning: bool
    ) -> KeyedResult:
        self._require_open()
        try:
            return super()._change_by_key(name, operation, rows, key, returning)
        except BaseException as exc:
            self._failure = exc
            raise

    def _require_open(self) -> None:
        if self._ended is not None:
            raise FailedPrecondition(f"transaction '{self._id}' is not active (state: {self._ended.value})")

    def _give_up(self) -> None:
        """Roll back while another error is on its way, which is the one to be seen."""
        try:
            self.rollback()
        except SparkportError as exc:
            logger.warning("transaction %s could not be rolled back, it will expire: %s", self._id, exc.message)

    def _commit(self) -> None:
        """Committing again what is committed does nothing, so repeating the commit is the question."""
        lost: SparkportError | None = None
        for attempt in range(1, _COMMITS + 1):
            try:
                self._ask("commit_transaction")
                return
            except Unreachable as exc:
                failure: SparkportError = exc
            except _LOST as exc:
                failure = lost = exc
            except FailedPrecondition as exc:
                if lost is None:
                    raise
                # Whatever the lost answer said, it was not that it is committed.
                raise Conflict(f"transaction '{self._id}' was aborted: {exc.message}") from exc
            except NotFound as exc:
                if lost is None:
                    raise
                raise self._unknown(exc) from exc
            if attempt < _COMMITS:
                pause(attempt)
        if lost is None:
            raise failure
        raise self._unknown(failure) from failure

    def _unknown(self, exc: SparkportError) -> OutcomeUnknown:
        return OutcomeUnknown(f"it is not known whether transaction '{self._id}' is committed: {exc.message}")

    def _ask(self, action: str, *, repeatable: bool = False) -> TransactionState:
        body = _body(self._outside, transaction_id=self._id)
        answer = _only(self._outside.action(action, body, repeatable=repeatable), self._outside, action)
        with translated(self._outside.location, what=f"answer to action '{action}'"):
            text = answer.text("transaction_status")
            if text not in {state.value for state in TransactionState}:
                raise InvalidArgument(f"'{text}' is no state of a transaction")
            return TransactionState(text)


def begin(connection: Connection, isolation: str) -> Transaction:
    if isolation not in {item.value for item in Isolation}:
        raise InvalidArgument(f"isolation must be snapshot or serializable, not '{isolation}'")
    body = _body(connection, auto_commit=False, isolation=isolation)
    # One that is begun twice, because its answer was lost, is never used and expires.
    answer = _only(connection.action("create_transaction", body, repeatable=True), connection, "create_transaction")
    with translated(connection.location, what="answer to action 'create_transaction'"):
        return Transaction(connection, answer.text("transaction_id"))


def run(connection: Connection, function: Callable[[Transaction], T], *, attempts: int, isolation: str) -> T:
    """The function in a transaction of its own, from the start again after each conflict."""
    if attempts < 1:
        raise InvalidArgument("attempts must be at least 1")
    attempt = 1
    while True:
        try:
            with begin(connection, isolation) as transaction:
                return function(transaction)
        except Conflict as exc:
            if attempt >= attempts:
                raise
            logger.debug("attempt %d of a transaction met a conflict: %s", attempt, exc.message)
        pause(attempt)
        attempt += 1


def _body(connection: Connection, **values: str | bool) -> bytes:
    named: dict[str, str | bool] = {"catalog_name": connection.catalog} if connection.catalog else {}
    return json.dumps({**named, **values}).encode()


def _only(results: list[bytes], connection: Connection, action: str) -> MapReader:
    with translated(connection.location, what=f"answer to action '{action}'"):
        if len(results) != 1:
            raise InvalidArgument(f"it has {len(results)} results, not one")
        return MapReader.from_json(results[0])
