"""What can be asked of a served lakehouse beyond tables: JSON in, JSON out, one result per line of progress.

Every result is an object; the last one is the report, those before it have the one key ``progress``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sparkport.catalog.context import CallContext
from sparkport.errors import CatalogNotFound, InvalidArgument, SchemaNotFound, TableNotFound
from sparkport.lakehouse.backup.served import serve_backup
from sparkport.lakehouse.demo import DEMO_SCHEMA, ITEMS, fill_demo, statements_to_try
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.upkeep.catalog_journal import CatalogJournal
from sparkport.lakehouse.upkeep.maintenance import STEPS, Report, require_steps
from sparkport.lakehouse.upkeep.upgrade import upgrade_table

__all__ = ["LakehouseAction", "LakehouseActions"]

_MOST_ITEMS = 1_000_000_000
_TABLE = "table_name, schema_name?, catalog_name?"


@dataclass(frozen=True, slots=True)
class LakehouseAction:
    """``alters`` the table that the body names, or ``fills`` a schema: what the caller must be allowed to do.

    ``body`` and ``result`` are for people, as in the table of the protocol's actions.
    """

    name: str
    function: Callable[[CallContext, bytes], Iterator[bytes]]
    description: str
    body: str
    result: str
    alters: bool = False
    fills: str | None = None


class LakehouseActions:
    def __init__(self, lakehouse: Lakehouse) -> None:
        self._lakehouse = lakehouse

    def all(self) -> list[LakehouseAction]:
        return [
            LakehouseAction(
                "backup",
                self._backup,
                "Back up the catalog and all tables, at one instant",
                "target? (the place of the setting `backups`, or one below it), keep?",
                "progress, done and total, again and again; then number, tables, files, bytes, new_files, new_bytes, "
                "forgotten (older backups that went), removed_files",
            ),
            LakehouseAction(
                "demo",
                self._demo,
                "Fill the schema demo with tables to try",
                "items?, replace?",
                "progress, a line each time; then statements",
                fills=DEMO_SCHEMA,
            ),
            LakehouseAction(
                "flush_journal",
                self._flush_journal,
                "Publish now what the journal holds, and wait for it",
                "nothing",
                "tables, rows, seconds",
            ),
            LakehouseAction(
                "journal_status",
                self._journal_status,
                "How much waits in the journal, and why it could not be published",
                "nothing",
                "catalog, tables, entries, rows, bytes, age (seconds of the oldest, or null), failure (or null), "
                "overwritten, deleted (rows that others had changed and deleted past the journal), set_apart (how many "
                "tables), tables_set_apart (those that the caller may know of: schema_name, table_name, failure)",
            ),
            LakehouseAction(
                "maintain",
                self._maintain,
                "Compact a table, expire its snapshots, remove files that nobody needs",
                f"{_TABLE}, what? (steps: {', '.join(STEPS)})",
                "progress, a line for each of several steps; then table, and how many files and snapshots",
                alters=True,
            ),
            LakehouseAction(
                "set_table",
                self._set_table,
                "Switch the journal of a table on or off",
                f"{_TABLE}, journal",
                "table, journal",
                alters=True,
            ),
            LakehouseAction(
                "unreadable_tables",
                self._unreadable,
                "Tables that listings leave out because they cannot be read",
                "nothing",
                "catalog; then schema_name, table_name, reason of each that the caller may know of",
            ),
            LakehouseAction(
                "upgrade_table",
                self._upgrade,
                "Give an older table format v3, and its rows ids",
                _TABLE,
                "table, format_before, format, changed",
                alters=True,
            ),
        ]

    def _backup(self, ctx: CallContext, body: bytes) -> Iterator[bytes]:
        asked = _object(body)
        target, keep = asked.get("target"), asked.get("keep")
        if target is not None and not isinstance(target, str):
            raise InvalidArgument("body key 'target' must be a text")
        if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool)):
            raise InvalidArgument("body key 'keep' must be a number")
        yield from map(_json, serve_backup(ctx, self._lakehouse.settings, target, keep))

    def _set_table(self, ctx: CallContext, body: bytes) -> Iterator[bytes]:
        asked = _object(body)
        table, journal = self._table(asked), asked.get("journal")
        if not isinstance(journal, bool):
            raise InvalidArgument("body key 'journal' must be true or false")
        self._lakehouse.journal.set(replace(ctx, transaction_id=None), table, journal)
        yield _json({"table": str(table), "journal": journal})

    def _flush_journal(self, ctx: CallContext, body: bytes) -> Iterator[bytes]:
        yield _json(asdict(self._lakehouse.journal.flush(ctx.remaining(), sees=ctx.sees)))

    def _unreadable(self, ctx: CallContext, body: bytes) -> Iterator[bytes]:
        yield _json({"catalog": self._lakehouse.catalog.name})
        for table, why in self._lakehouse.engine.versions.left_out().items():
            if ctx.sees(*table):
                yield _json({"schema_name": table.schema, "table_name": table.name, "reason": why})

    def _journal_status(self, ctx: CallContext, body: bytes) -> Iterator[bytes]:
        """Sums of all, and the names of some tables: whoever may ask may still not know of every one."""
        control = self._lakehouse.journal
        waiting = CatalogJournal(control).waiting()
        apart = [item for item in waiting if item.failure is not None or item.waits_for]
        shown = [item for item in apart if ctx.sees(item.schema_name, item.table_name)]
        overwritten, deleted = control.foreign_changes
        oldest = min((item.oldest for item in waiting if item.oldest is not None), default=None)
        yield _json(
            {
                "catalog": self._lakehouse.catalog.name,
                "tables": len(waiting),
                "entries": sum(item.entries for item in waiting),
                "rows": sum(item.rows for item in waiting),
                "bytes": sum(item.bytes for item in waiting),
                "age": None if oldest is None else max(0.0, (datetime.now(UTC) - oldest).total_seconds()),
                "failure": control.failure,
                "overwritten": overwritten,
                "deleted": deleted,
                "set_apart": len(apart),
                "tables_set_apart": [
                    {"schema_name": item.schema_name, "table_name": item.table_name, "failure": item.why(ctx.sees)}
                    for item in shown
                ],
            }
        )

    def _maintain(self, ctx: CallContext, body: bytes) -> Iterator[bytes]:
        asked = _object(body)
        steps = asked.get("what") or list(STEPS)
        if not isinstance(steps, list) or not all(isinstance(step, str) for step in steps):
            raise InvalidArgument("body key 'what' must be a list of texts")
        require_steps(steps)
        table, wanted = self._table(asked), [step for step in STEPS if step in steps]
        report = Report(table, {}, {})
        for number, step in enumerate(wanted, start=1):
            ctx.check()
            if len(wanted) > 1:
                yield _json({"progress": f"{step}, step {number} of {len(wanted)}"})
            report = report.joined(self._lakehouse.maintenance.run(table, [step]))
        yield _json(report.as_dict())

    def _upgrade(self, ctx: CallContext, body: bytes) -> Iterator[bytes]:
        engine = self._lakehouse.engine
        yield _json(upgrade_table(engine.storage, engine.committer, self._table(_object(body))))

    def _demo(self, ctx: CallContext, body: bytes) -> Iterator[bytes]:
        asked = _object(body)
        items, replace = asked.get("items", ITEMS), asked.get("replace", False)
        if not isinstance(items, int) or isinstance(items, bool) or not 1 <= items <= _MOST_ITEMS:
            raise InvalidArgument(f"body key 'items' must be a number from 1 to {_MOST_ITEMS}")
        if not isinstance(replace, bool):
            raise InvalidArgument("body key 'replace' must be true or false")
        catalog = self._lakehouse.catalog
        for line in fill_demo(catalog, items=items, replace=replace):
            ctx.check()
            yield _json({"progress": line})
        yield _json({"statements": list(statements_to_try(catalog.name))})

    def _table(self, asked: dict[str, Any]) -> TableName:
        """The table by its names as the catalog has them."""
        catalog = self._lakehouse.catalog
        catalog_name = _text(asked, "catalog_name", catalog.name)
        if catalog_name.casefold() != catalog.name.casefold():
            raise CatalogNotFound(f"catalog '{catalog_name}' is not '{catalog.name}', which this action works on")
        schema_name = _text(asked, "schema_name", catalog.default_schema)
        table_name = _text(asked, "table_name")
        schema = catalog.schema(CallContext(), schema_name)
        if schema is None:
            raise SchemaNotFound(schema_name)
        table = schema.table(CallContext(), table_name)
        if table is None:
            raise TableNotFound(schema.name, table_name)
        return TableName(schema.name, table.name)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except (ValueError, RecursionError) as exc:
        raise InvalidArgument("the body is not JSON") from exc
    if not isinstance(value, dict):
        raise InvalidArgument("the body must be a JSON object")
    return value


def _text(asked: dict[str, Any], key: str, default: str = "") -> str:
    value = asked.get(key) or default
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"body key '{key}' must be a text")
    return value


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
