"""Bringing a dropped table back: its metadata is where it was, so its name has to point to it again."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from sparkport.catalog.context import CallContext
from sparkport.catalog.dropped import DroppedTable
from sparkport.errors import AlreadyExists, NotFound, SparkportError
from sparkport.lakehouse.catalogs.dropped_records import DroppedRecord
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.tables.engine import LakeEngine

__all__ = ["dropped_tables", "note_dropped", "restore"]

logger = logging.getLogger(__name__)


def note_dropped(engine: LakeEngine, ctx: CallContext, table: TableName, location: str) -> None:
    """The table is gone in any case: that it can be restored is not worth a failure."""
    records = engine.storage.dropped
    if records is None:
        return
    try:
        records.add(table, location, ctx.identity.subject)
    except SparkportError as exc:
        logger.warning("it is not noted where the dropped table '%s' was, at '%s': %s", table, location, exc)


def dropped_tables(engine: LakeEngine) -> list[DroppedTable]:
    return [
        DroppedTable(*record.table, datetime.fromtimestamp(record.dropped_at, UTC), record.author)
        for record in _restorable(engine)
    ]


def restore(engine: LakeEngine, ctx: CallContext, table: TableName) -> None:
    pointers, records = engine.storage.pointers, engine.storage.dropped
    asked = (table.schema.casefold(), table.name.casefold())
    taken = next((t for t in pointers.cut().tables if (t.schema.casefold(), t.name.casefold()) == asked), None)
    if taken is not None:
        raise AlreadyExists(f"table '{taken}' already exists: rename or drop it first")
    found = [r for r in _restorable(engine) if (r.table.schema.casefold(), r.table.name.casefold()) == asked]
    if not found or records is None:
        raise NotFound(f"no table '{table}' was dropped that could be restored")
    record = found[0]
    engine.versions.at(record.table, record.location)  # metadata that cannot be read is no table
    pointers.create(record.table, record.location)
    if not engine.storage.files.exists(record.location):  # removed as that of a dropped table in the same moment
        pointers.drop(record.table)
        raise NotFound(f"the files of table '{record.table}' have just been removed")
    records.forget(record.location)
    engine.views.session_ddl.note(ctx, record.table, None, record.location)


def _restorable(engine: LakeEngine) -> list[DroppedRecord]:
    """What has no name now and whose metadata is there. Another may have been given it by others."""
    records = engine.storage.dropped
    if records is None:
        return []
    used = set(engine.storage.pointers.registered())
    return [r for r in records.newest_first() if r.location not in used and engine.storage.files.exists(r.location)]
