"""What buttons do: each is one of Flight's actions, run with the caller's rights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace

from sparkport.catalog.call_record import CallRecord
from sparkport.catalog.context import CallContext, Cancellation, entered
from sparkport.console.background import Background, Task
from sparkport.console.records import recorded
from sparkport.console.requests import link
from sparkport.errors import InvalidArgument, NotFound, Unsupported
from sparkport.handlers.service import Handlers
from sparkport.observe.calls import Calls

__all__ = ["Buttons"]

Form = Mapping[str, str]


class Buttons:
    def __init__(self, handlers: Handlers, background: Background, calls: Calls | None = None) -> None:
        self._handlers = handlers
        self._calls = calls
        self._background = background
        self._presses: dict[str, Callable[[CallContext, Form], str]] = {
            "/end-transaction": self._end_transaction,
            "/end-job": self._end_job,
            "/maintain": self._maintain,
            "/flush": self._flush,
        }

    def press(self, path: str, ctx: CallContext, form: Form) -> str:
        """Do it, or begin it; where the browser goes then."""
        press = self._presses.get(path)
        if press is None:
            raise NotFound("there is no such button")
        return press(ctx, form)

    def _end_transaction(self, ctx: CallContext, form: Form) -> str:
        self._act(ctx, "rollback_transaction", transaction_id=_field(form, "id"), catalog_name=_field(form, "catalog"))
        return link("/", done="transaction")

    def _end_job(self, ctx: CallContext, form: Form) -> str:
        self._act(ctx, "end_job", job_id=_field(form, "id"), catalog_name=_field(form, "catalog"))
        return link("/", done="job")

    def _maintain(self, ctx: CallContext, form: Form) -> str:
        catalog, schema, name = (_field(form, key) for key in ("catalog", "schema", "name"))
        task = Task("maintain", catalog, (schema, name), ctx.identity.subject)
        self._begin(ctx, task, catalog_name=catalog, schema_name=schema, table_name=name)
        return link("/maintenance", done="maintain")

    def _flush(self, ctx: CallContext, form: Form) -> str:
        self._begin(ctx, Task("flush_journal", "", None, ctx.identity.subject))
        return link("/journal", done="flush")

    def _act(self, ctx: CallContext, action: str, **body: str) -> None:
        for _ in self._handlers.do_action(ctx, action, json.dumps(body).encode()):
            pass

    def _begin(self, ctx: CallContext, task: Task, **body: str) -> None:
        """Begin an action in the background. Whether the caller may is asked at once, and by the action again."""
        if not self._handlers.has_action(task.what):
            raise Unsupported("this server has nothing of the kind")
        data = json.dumps(body).encode()
        task.catalog = self._handlers.permitted(ctx, task.what, data).catalog
        # The page's own call is over long before.
        longer = replace(ctx, deadline=None, cancellation=Cancellation(), record=CallRecord())

        def results() -> Iterator[bytes]:
            record = nullcontext() if self._calls is None else recorded(self._calls, longer, ctx.record.peer)
            with record, entered(longer):
                yield from self._handlers.do_action(longer, task.what, data)

        self._background.begin(task, results())


def _field(form: Form, name: str) -> str:
    value = form.get(name, "")
    if not value:
        raise InvalidArgument(f"the form lacks '{name}'")
    return value
