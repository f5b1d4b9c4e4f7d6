"""What goes on, as the caller may know it: calls, Spark's jobs, transactions, the journal.

Own calls are shown with everything. Others' are for those who may use the action ``console``, and only where they may
know of the table; what went wrong with them is not told, because messages have names and values in them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sparkport.auth.model import Operation, Resource
from sparkport.catalog.call_record import CallRecord
from sparkport.catalog.context import CallContext
from sparkport.catalog.jobs import Job
from sparkport.catalog.model import Catalog
from sparkport.catalog.transaction import OpenTransaction
from sparkport.console.rows import all_rows
from sparkport.errors import SparkportError, without_places
from sparkport.handlers.directory import Directory
from sparkport.handlers.service import Handlers
from sparkport.observe.calls import Calls, CallView
from sparkport.transactions.functions import TX_SCHEMA

__all__ = ["Activity", "CallRow", "JobRow", "OPERATOR", "TransactionRow", "unrecorded"]

OPERATOR = "console"
"""The action that a caller needs the right to, to see others' calls and the server's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    user: str
    what: str
    catalog: str
    table: str
    doing: str
    began: datetime
    seconds: float
    rows: int
    bytes: int
    code: str
    message: str
    steps: tuple[tuple[str, float, int], ...]

    @property
    def place(self) -> tuple[str, str] | None:
        """The schema and the name of the table, where it is one."""
        schema, dot, name = self.table.partition(".")
        return (schema, name) if dot and self.what != "action" else None


@dataclass(frozen=True, slots=True)
class JobRow:
    catalog: str
    job: Job
    may_end: bool


@dataclass(frozen=True, slots=True)
class TransactionRow:
    catalog: str
    values: dict[str, Any]
    may_end: bool


class Activity:
    def __init__(self, handlers: Handlers, calls: Calls | None) -> None:
        self._handlers = handlers
        self._directory: Directory = handlers.directory
        self._calls = calls

    # Rights

    def is_operator(self, ctx: CallContext) -> bool:
        return any(self._may_operate(ctx, catalog.name) for catalog in self._directory.catalogs(ctx))

    def _may_operate(self, ctx: CallContext, catalog: str) -> bool:
        return self._directory.authorizer.allows(ctx.identity, Operation.ACTION, Resource(catalog, None, OPERATOR))

    def may_run(self, ctx: CallContext, action: str, **body: str) -> bool:
        """Whether a button for an action that only some servers have makes sense."""
        if not self._handlers.has_action(action):
            return False
        try:
            self._handlers.permitted(unrecorded(ctx), action, json.dumps(body).encode())
        except SparkportError:
            return False
        return True

    # Calls

    def running(self, ctx: CallContext) -> list[CallRow] | None:
        return None if self._calls is None else self._visible(ctx, self._calls.running())

    def slow(self, ctx: CallContext) -> list[CallRow] | None:
        return None if self._calls is None else self._visible(ctx, self._calls.slow())

    def _visible(self, ctx: CallContext, calls: Sequence[CallView]) -> list[CallRow]:
        return [_call(call, own=call.user == ctx.identity.subject) for call in calls if self._sees(ctx, call)]

    def _sees(self, ctx: CallContext, call: CallView) -> bool:
        """Names that calls were sent with are the callers' own: what does not exist has no place to be seen in."""
        if call.user == ctx.identity.subject:
            return True
        catalogs = {catalog.name.casefold(): catalog for catalog in self._directory.catalogs(ctx)}
        catalog = catalogs.get(call.catalog.casefold())
        if catalog is None:
            return not call.catalog and not call.table and self.is_operator(ctx)
        if not self._may_operate(ctx, catalog.name):
            return False
        if not call.table:
            return True
        head, dot, tail = call.table.partition(".")
        schema, name = (head, tail) if dot else ("", head)
        # How many rows a call was about is told of rows that the caller may not see, too.
        return self._directory.sees_whole(ctx, catalog, schema, name)

    # Jobs and transactions

    def spark_state(self, ctx: CallContext) -> str | None:
        states = [catalog.jobs.state for catalog in self._directory.catalogs(ctx) if catalog.jobs is not None]
        return states[0] if states else None

    def jobs(self, ctx: CallContext) -> list[JobRow] | None:
        catalogs = [catalog for catalog in self._directory.catalogs(ctx) if catalog.jobs is not None]
        if not catalogs:
            return None
        return [
            JobRow(catalog.name, job, self._may_end(ctx, catalog, job))
            for catalog in catalogs
            for job in self._directory.jobs(ctx, catalog)
        ]

    def _may_end(self, ctx: CallContext, catalog: Catalog, job: Job) -> bool:
        try:
            self._directory.require_end_of_job(unrecorded(ctx), catalog, job)
        except SparkportError:
            return False
        return True

    def transactions(self, ctx: CallContext) -> list[TransactionRow] | None:
        """As ``FROM tx.transactions`` lists them; of who may not read that, the own ones."""
        catalogs = [catalog for catalog in self._directory.catalogs(ctx) if catalog.transactions is not None]
        if not catalogs:
            return None
        rows = []
        for catalog in catalogs:
            may_end = self._directory.authorizer.allows(ctx.identity, Operation.TRANSACTION, Resource(catalog.name))
            for values in self._listed(ctx, catalog):
                rows.append(TransactionRow(catalog.name, values, may_end and values["owner"] == ctx.identity.subject))
        return rows

    def _listed(self, ctx: CallContext, catalog: Catalog) -> list[dict[str, Any]]:
        try:
            return all_rows(self._handlers, ctx, catalog.name, TX_SCHEMA, "transactions")
        except SparkportError:
            opened = self._opened(catalog)
            names = ("id", "owner", "begun", "last_used", "changed_tables", "changed_rows")
            return [
                {**{name: getattr(item, name) for name in names}, "isolation": item.isolation.value}
                for item in opened
                if item.owner == ctx.identity.subject
            ]

    def _opened(self, catalog: Catalog) -> Sequence[OpenTransaction]:
        try:
            return () if catalog.transactions is None else catalog.transactions.open_transactions()
        except SparkportError:  # the catalog's database is away
            return ()

    # The journal

    def journal(self, ctx: CallContext) -> list[dict[str, Any]] | None:
        """What waits for the tables that the caller may know of; None where no catalog keeps a journal."""
        catalogs = [catalog for catalog in self._directory.catalogs(ctx) if catalog.journal is not None]
        if not catalogs:
            return None
        rows = []
        for catalog in catalogs:
            try:
                found = all_rows(self._handlers, ctx, catalog.name, TX_SCHEMA, "journal")
            except SparkportError:
                continue
            rows += [{"catalog": catalog.name, **row} for row in found]
        return rows


def unrecorded(ctx: CallContext) -> CallContext:
    """The same caller, who only looks at what could be done: nothing of that is for the audit."""
    return replace(ctx, record=CallRecord())


def _call(call: CallView, *, own: bool) -> CallRow:
    return CallRow(
        user=call.user,
        what=call.action or call.operation or call.rpc,
        catalog=call.catalog,
        table=call.table,
        doing=call.doing,
        began=datetime.fromtimestamp(call.started, UTC),
        seconds=call.seconds,
        rows=call.rows_in + call.rows_out,
        bytes=call.bytes_in + call.bytes_out,
        code=call.code,
        message=without_places(call.message) if own else "",
        steps=tuple((step.name, step.seconds, step.times) for step in call.steps),
    )
