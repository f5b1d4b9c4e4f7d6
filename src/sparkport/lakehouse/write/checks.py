"""CHECK conditions hold for the rows that come out: an UPDATE of some columns may meet one of others.

A statement has checked its rows as it saw them. Where others have changed some of these since, the row that is decided
on is another: the sent columns, and the rest as the table has it then. The commit is conditional on that very table.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

import numpy as np
import pyarrow as pa

from sparkport.catalog.constraints import check_rows
from sparkport.catalog.row_ids import ROW_ID
from sparkport.errors import Conflict
from sparkport.lakehouse.columns.storage import conformed_batch
from sparkport.lakehouse.columns.types import stored_columns
from sparkport.lakehouse.iceberg.lineage import Ids, Lineage, ascending, changed_since, positions_in
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.write.change_set import CHANGED_ID, ChangeSet, changed_column
from sparkport.lakehouse.write.conflicts import Decision

__all__ = ["require_checks_hold"]


def require_checks_hold(
    changes: Mapping[TableName, ChangeSet],
    decisions: Mapping[TableName, Decision],
    versions: Mapping[TableName, TableVersion | None],
    lineages: Mapping[TableName, Lineage],
) -> None:
    """Raises ConstraintViolation. ``decisions`` were made on ``versions``, by ``lineages``."""
    for table, change in changes.items():
        version, lineage = versions[table], lineages.get(table)
        if version is None:
            continue
        if version.checks != change.base.checks:
            raise Conflict(f"table '{table.name}' has been altered; run the statement again")
        if version.checks and lineage is not None:
            _require(change, decisions[table], version, lineage)


def _require(change: ChangeSet, decision: Decision, version: TableVersion, lineage: Lineage) -> None:
    base, names = change.base, version.columns.declared.names
    if change.changes is None or not change.columns or set(change.columns) >= set(names):
        return
    changed, _ = changed_since(decision.updated, lineage, base.sequence_number, base.revision)
    for batch in change.changes.batches() if len(changed) else ():
        ids = version.rows.resolve(batch.column(CHANGED_ID).to_numpy())
        chosen = np.flatnonzero(positions_in(changed, ids) >= 0)
        if len(chosen):
            rows = _merged(change, batch.take(pa.array(chosen)), ids[chosen], version)
            for whole in version.columns.as_declared(rows.to_batches(), names):
                check_rows(version.table.name, version.checks, whole)


def _merged(change: ChangeSet, sent: pa.RecordBatch, ids: Ids, version: TableVersion) -> pa.Table:
    """Rows as they are stored when they have got the sent values."""
    stored = stored_columns(version.columns.fields)
    names = [str(field["name"]) for field in version.columns.fields]
    schema = stored.append(pa.field(ROW_ID, pa.int64()))
    with closing(version.rows.stored(names, row_ids=ascending(ids))) as stream:
        old = pa.Table.from_batches([conformed_batch(batch, schema) for batch in stream], schema)
    there = old.column(ROW_ID).to_numpy()
    order = np.argsort(there, kind="stable")
    places = positions_in(there[order], ids)
    if bool(np.any(places < 0)):
        raise Conflict(f"table '{version.table.name}': a row is gone; run the statement again")
    rows = old.take(pa.array(order[places])).drop_columns([ROW_ID])
    for place, name in enumerate(change.columns):
        at = names.index(name)
        rows = rows.set_column(at, stored.field(at), sent.column(changed_column(place)))
    return rows.combine_chunks()
