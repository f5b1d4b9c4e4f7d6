"""The journal as the schema ``tx`` offers it to DuckDB."""

from __future__ import annotations

from collections.abc import Sequence

from sparkport.catalog.context import CallContext
from sparkport.catalog.journal import Journal, JournalledTable
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.upkeep.journal_control import JournalControl

__all__ = ["CatalogJournal"]


class CatalogJournal(Journal):
    def __init__(self, control: JournalControl) -> None:
        self._control = control

    def set_journal(self, ctx: CallContext, schema_name: str, table_name: str, *, on: bool) -> None:
        self._control.set(ctx, TableName(schema_name, table_name), on)

    def flush(self, ctx: CallContext) -> int:
        return self._control.flush(ctx.remaining(), sees=ctx.sees).rows

    def waiting(self) -> Sequence[JournalledTable]:
        return [
            JournalledTable(
                schema_name=item.table.schema,
                table_name=item.table.name,
                entries=item.entries,
                rows=item.rows,
                bytes=item.bytes,
                oldest=item.oldest,
                failure=item.failure,
                waits_for=item.waits_for,
            )
            for item in self._control.status()
        ]
