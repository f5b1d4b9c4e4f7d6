"""One table in a lakehouse of any kind, and what tests of maintenance do to it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.lakehouse import maintenance_of

from sparkport.catalog.context import CallContext
from sparkport.catalog.ddl import MutableSchema, OnConflict, TableDefinition
from sparkport.catalog.scan import AsOf, ScanRequest, as_scan
from sparkport.catalog.statement import Change, ChangeableTable, StatementRequest
from sparkport.lakehouse.iceberg.metadata import TableMetadata, load
from sparkport.lakehouse.iceberg.plan import plan
from sparkport.lakehouse.iceberg.version_numbers import number_of
from sparkport.lakehouse.lakehouse import Lakehouse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.upkeep.maintenance import Maintenance
from sparkport.lakehouse.upkeep.maintenance_plan import MaintenanceSettings

__all__ = ["AT_ONCE", "NAME", "Rig", "SCHEMA", "busy"]

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
NAME = TableName("public", "events")
AT_ONCE = MaintenanceSettings(
    small_files=3, retention_seconds=0, grace_seconds=0, staged_seconds=0, metadata_seconds=0, max_manifests=2
)
"""Nothing is too young to go."""


class Rig:
    """One table in a lakehouse, and what tests do to it."""

    def __init__(self, opened: Lakehouse) -> None:
        self.opened = opened
        self.engine = opened.engine
        schema = opened.catalog.schema(CallContext(), "public")
        assert isinstance(schema, MutableSchema)
        self.schema = schema
        schema.create_table(CallContext(), TableDefinition(name="events", columns=SCHEMA), OnConflict.REPLACE)

    def table(self, ctx: CallContext | None = None) -> ChangeableTable:
        found = self.schema.table(ctx or CallContext(), "events")
        assert isinstance(found, ChangeableTable)
        return found

    def change(
        self,
        change: Change,
        rows: list[dict[str, Any]],
        ids: list[int] | None = None,
        ctx: CallContext | None = None,
    ) -> int:
        ctx = ctx or CallContext()
        columns = pa.schema([]) if change is Change.DELETE else SCHEMA
        statement = self.table(ctx).open_statement(ctx, StatementRequest(change=change, columns=columns))
        batch = None if change is Change.DELETE else pa.RecordBatch.from_pylist(rows, SCHEMA)
        statement.push(batch, None if ids is None else pa.array(ids, pa.int64()))
        return statement.finish()

    def insert(self, *ids: int) -> None:
        assert self.change(Change.INSERT, [{"id": number, "v": f"v{number}"} for number in ids]) == len(ids)

    def rows(self, ctx: CallContext | None = None, at: AsOf | None = None) -> list[tuple[int, str, int]]:
        ctx = ctx or CallContext()
        batches = as_scan(self.table(ctx).scan(ctx, ScanRequest(at=at)))
        found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        return sorted(found)

    @property
    def metadata(self) -> TableMetadata:
        location = self.engine.storage.pointers.location(NAME)
        assert location is not None
        return load(self.engine.storage.files, location)

    @property
    def number(self) -> int:
        found = number_of(self.metadata)
        assert found is not None
        return found

    @property
    def data_files(self) -> int:
        return len(plan(self.engine.storage.files, self.metadata, self.metadata.main_snapshot_id).files)

    @property
    def folder(self) -> Path:
        return Path(self.metadata.location)

    def spark(self) -> AbstractContextManager[Any]:
        """A plain Spark session on the same catalog."""
        return self.engine.storage.spark.session()

    def maintenance(self, settings: MaintenanceSettings = AT_ONCE, *, later: float = 1.0) -> Maintenance:
        """Maintenance that takes place a moment after all that has happened."""
        return maintenance_of(self.opened, settings, later=later)


def busy(rig: Rig) -> list[tuple[int, str, int]]:
    """A table with small files, updated and deleted rows; what is in it."""
    for number in range(0, 12, 2):
        rig.insert(number, number + 1)
    ids = {row[0]: row[2] for row in rig.rows()}
    rig.change(Change.UPDATE, [{"id": 3, "v": "new"}], [ids[3]])
    rig.change(Change.DELETE, [], [ids[4], ids[5]])
    return rig.rows()
