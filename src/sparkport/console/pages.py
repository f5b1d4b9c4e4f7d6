"""What each page shows."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkport.auth.identity import Identity
from sparkport.auth.model import Operation, Resource
from sparkport.catalog.context import CallContext
from sparkport.catalog.history import HistoryTable
from sparkport.catalog.model import Catalog, find_by_name
from sparkport.console.activity import Activity, unrecorded
from sparkport.console.background import Background, Task
from sparkport.console.rows import Sample, sample
from sparkport.console.shown_settings import ShownSetting
from sparkport.console.tables import (
    SORTS,
    Totals,
    charts_of,
    columns_of,
    described,
    listed,
    matching,
    sorted_rows,
    totals,
)
from sparkport.errors import NotFound, PermissionDenied, SparkportError, without_places
from sparkport.handlers.directory import ResolvedTable
from sparkport.handlers.service import Handlers
from sparkport.protocol.targets import Kind, Target

__all__ = ["Page", "Pages"]

logger = logging.getLogger(__name__)

_PER_PAGE = 100
_HISTORY = 200
_CALLERS_KEPT = 100

_OTHERS_FAILURE = "who began it is told why"

Query = Mapping[str, str]

_DONE = {
    "transaction": "The transaction was rolled back.",
    "job": "The job is being ended.",
    "maintain": "Maintenance has begun.",
    "flush": "The journal is being flushed.",
}
"""What is said after a button was pressed: the address has only the word, so that nobody can put texts here."""


@dataclass(frozen=True, slots=True)
class Page:
    """``live`` pages are loaded again every few seconds."""

    template: str
    title: str
    values: dict[str, Any] = field(default_factory=dict)
    live: bool = False


@dataclass(frozen=True, slots=True)
class _KeptTotals:
    seen_by: tuple[Identity, int]
    until: float
    totals: Totals


class Pages:
    def __init__(
        self, handlers: Handlers, activity: Activity, background: Background, settings: Sequence[ShownSetting]
    ) -> None:
        self._handlers = handlers
        self._directory = handlers.directory
        self._activity = activity
        self._background = background
        self._settings = settings
        self._kept: dict[str, _KeptTotals] = {}
        self._pages: dict[str, Callable[[CallContext, Query], Page]] = {
            "/": self._running,
            "/tables": self._tables,
            "/table": self._table,
            "/maintenance": self._maintenance,
            "/journal": self._journal,
            "/slow": self._slow,
            "/settings": self._settings_page,
        }

    def page(self, path: str, ctx: CallContext, query: Query) -> Page:
        make = self._pages.get(path)
        if make is None:
            raise NotFound("there is no such page")
        page = make(ctx, query)
        page.values["done"] = _DONE.get(query.get("done", ""), "")
        return page

    def around(self, ctx: CallContext) -> dict[str, Any]:
        """What every page has: where one can go from here, and how Spark is."""
        catalogs = self._directory.catalogs(ctx)
        places = [("/", "Running", True), ("/tables", "Tables", True)]
        places.append(("/maintenance", "Maintenance", self._handlers.has_action("maintain")))
        places.append(("/journal", "Journal", any(catalog.journal is not None for catalog in catalogs)))
        places.append(("/slow", "Slow statements", self._activity.slow(ctx) is not None))
        places.append(("/settings", "Settings", bool(self._settings) and self._activity.is_operator(ctx)))
        return {
            "places": [(path, name) for path, name, there in places if there],
            "catalogs": [catalog.name for catalog in catalogs],
            "spark": self._activity.spark_state(ctx),
        }

    # Pages

    def _running(self, ctx: CallContext, query: Query) -> Page:
        """What runs is shown also when tables cannot be listed: that is when somebody looks here."""
        added_up, failure = totals([]), ""
        try:
            added_up = self._totals(ctx)
        except SparkportError as exc:
            failure = without_places(exc.message)
        return Page(
            "running.html",
            "Running",
            {
                "totals": added_up,
                "failure": failure,
                "calls": self._activity.running(ctx),
                "jobs": self._activity.jobs(ctx),
                "transactions": self._activity.transactions(ctx),
                "journal": self._activity.journal(ctx),
                "tasks": [task for task in self._visible_tasks(ctx) if task.is_open],
            },
            live=True,
        )

    def _tables(self, ctx: CallContext, query: Query) -> Page:
        everything = list(listed(self._directory, ctx))
        words, by = query.get("find", "")[:200], query.get("sort", "name")
        found = sorted_rows(matching(everything, words), by)
        number = _whole(query.get("page", "1"))
        pages = max(1, -(-len(found) // _PER_PAGE))
        number = min(max(number, 1), pages)
        return Page(
            "tables.html",
            "Tables",
            {
                "totals": totals(found),
                "all_tables": len(everything),
                "rows": found[(number - 1) * _PER_PAGE : number * _PER_PAGE],
                "find": words,
                "sort": by if by in SORTS else "name",
                "number": number,
                "pages": pages,
                "several": len({row.catalog for row in everything}) > 1,
                "with_history": any(row.history is not None for row in everything),
            },
        )

    def _table(self, ctx: CallContext, query: Query) -> Page:
        target = Target(query.get("catalog", ""), query.get("schema", ""), Kind.TABLE, query.get("name", ""))
        resolved = self._found(ctx, target, Operation.READ if query.get("show") == "rows" else Operation.LIST)
        catalog, schema, table = resolved.catalog.name, resolved.schema.name, resolved.table
        target = Target(catalog, schema, Kind.TABLE, table.name)
        try:
            self._directory.table(unrecorded(ctx), target, Operation.READ)
            may_read = True
        except PermissionDenied:
            may_read = False
        row = described(ctx, catalog, schema, table, may_read=may_read)
        show = query.get("show", "columns")
        rows: Sample | None = None
        failure = ""
        if show == "rows":
            names = [column.name for column in columns_of(table)]
            try:
                rows = sample(self._handlers, ctx, target, names)
            except SparkportError as exc:
                failure = without_places(exc.message)
            except Exception:  # a table of a user's own may raise anything
                logger.warning("rows of '%s.%s' cannot be read", schema, table.name, exc_info=True)
                failure = "internal error; the log has more"
        history = row.history
        return Page(
            "table.html",
            f"{schema}.{table.name}",
            {
                "row": row,
                "table": table,
                "columns": columns_of(table),
                "charts": [] if history is None else charts_of(history),
                "snapshots": [] if history is None else list(reversed(history.snapshots))[:_HISTORY],
                "has_history": isinstance(table, HistoryTable) and may_read,
                "show": show if show in ("columns", "rows", "history") else "columns",
                "sample": rows,
                "failure": failure,
                "may_read": may_read,
                "may_maintain": self._may_maintain(ctx, catalog, schema, table.name),
                "tasks": [
                    task
                    for task in self._visible_tasks(ctx)
                    if (task.catalog, task.table) == (catalog, (schema, table.name))
                ][:3],
            },
        )

    def _maintenance(self, ctx: CallContext, query: Query) -> Page:
        self._require_action("maintain")
        rows = [row for row in listed(self._directory, ctx) if row.history is not None]
        rows = matching(sorted_rows(rows, "files"), query.get("find", "")[:200])
        shown = rows[:_PER_PAGE]
        return Page(
            "maintenance.html",
            "Maintenance",
            {
                "rows": [(row, self._may_maintain(ctx, row.catalog, row.schema, row.name)) for row in shown],
                "left_out": len(rows) - len(shown),
                "find": query.get("find", "")[:200],
                "tasks": [task for task in self._visible_tasks(ctx) if task.what == "maintain"],
            },
            live=True,
        )

    def _journal(self, ctx: CallContext, query: Query) -> Page:
        waiting = self._activity.journal(ctx)
        if waiting is None:
            raise NotFound("no catalog here keeps a journal")
        status: dict[str, Any] | None = None
        if self._activity.may_run(ctx, "journal_status"):
            (answer,) = self._handlers.do_action(ctx, "journal_status", b"{}")
            status = json.loads(answer)
        return Page(
            "journal.html",
            "Journal",
            {
                "waiting": waiting,
                "status": status,
                "may_flush": self._activity.may_run(ctx, "flush_journal"),
                "tasks": [task for task in self._visible_tasks(ctx) if task.what == "flush_journal"],
            },
            live=True,
        )

    def _slow(self, ctx: CallContext, query: Query) -> Page:
        calls = self._activity.slow(ctx)
        if calls is None:
            raise NotFound("calls are not counted here")
        return Page("slow.html", "Slow statements", {"calls": calls})

    def _settings_page(self, ctx: CallContext, query: Query) -> Page:
        if not self._activity.is_operator(ctx):
            raise PermissionDenied(f"'{ctx.identity.subject}' may not see the settings")
        return Page("settings.html", "Settings", {"settings": self._settings})

    # Parts of them

    def _found(self, ctx: CallContext, target: Target, wanted: Operation) -> ResolvedTable:
        """A table to show something of. Who may not know of it has asked for that, and no more was done."""
        looking = unrecorded(ctx)
        try:
            return self._directory.table(looking, target, Operation.LIST)
        except SparkportError:
            if looking.record.asked != looking.record.granted:
                _, catalog, name = looking.record.asked
                ctx.record.asks(wanted.value, catalog=catalog, name=name)
            raise

    def _totals(self, ctx: CallContext) -> Totals:
        """Over all tables, for a page that is loaded every few seconds: adding up takes a tenth of the time at most."""
        generation = self._directory.authorizer.generation
        kept = self._kept.get(ctx.identity.subject)
        if kept is not None and kept.until > time.monotonic() and kept.seen_by == (ctx.identity, generation):
            return kept.totals
        began = time.monotonic()
        added_up = totals(list(listed(self._directory, ctx)))
        until = time.monotonic() + 10 * (time.monotonic() - began)
        if len(self._kept) >= _CALLERS_KEPT:
            self._kept.clear()
        self._kept[ctx.identity.subject] = _KeptTotals((ctx.identity, generation), until, added_up)
        return added_up

    def _require_action(self, name: str) -> None:
        if not self._handlers.has_action(name):
            raise NotFound("there is no such page")

    def _may_maintain(self, ctx: CallContext, catalog: str, schema: str, name: str) -> bool:
        return self._activity.may_run(ctx, "maintain", catalog_name=catalog, schema_name=schema, table_name=name)

    def _visible_tasks(self, ctx: CallContext) -> list[Task]:
        """Own ones, and others' on tables that the caller may read whole; what went wrong is told to the own alone."""
        catalogs = self._directory.catalogs(ctx)
        visible = []
        for task in self._background.tasks():
            catalog = find_by_name(catalogs, task.catalog)
            if task.subject == ctx.identity.subject:
                visible.append(task)
            elif catalog is not None and task.table is not None and self._reads_whole(ctx, catalog, *task.table):
                visible.append(replace(task, failure=_OTHERS_FAILURE) if task.failure else task)
        return visible

    def _reads_whole(self, ctx: CallContext, catalog: Catalog, schema: str, name: str) -> bool:
        authorizer, table = self._directory.authorizer, Resource(catalog.name, schema, name)
        if not self._directory.sees(ctx, catalog, schema, name):
            return False
        return authorizer.allows(ctx.identity, Operation.READ, table) and authorizer.policy(ctx.identity, table) is None


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1
