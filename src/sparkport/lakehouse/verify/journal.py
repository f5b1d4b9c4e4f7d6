"""What waits in the journal: whether it can be read, and is about tables and rows that there are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import pyarrow as pa

from sparkport.errors import InternalError
from sparkport.lakehouse.backup.contents import Contents
from sparkport.lakehouse.catalogs.journal_records import FORMAT
from sparkport.lakehouse.catalogs.journal_state import NO_TABLE, Entry, Flush, TableJournal
from sparkport.lakehouse.iceberg.lineage import NO_IDS, Ids
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.journal.net import FIRST_ID, applied, entry_rows, net_of
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.verify.findings import Findings, Wrong

__all__ = ["check_journal"]

_ENTRY, _FLUSH = "journal entry", "record of a flush"


def check_journal(contents: Contents, tables: Mapping[TableName, TableMetadata], findings: Findings) -> None:
    """``tables`` are those whose metadata can be read."""
    last = max((revision for revision, _ in contents.rows["sparkport_journal"]), default=0)
    flushed = {row[0]: row[3] for row in contents.rows["sparkport_journal_tables"]}
    owners = {row[0]: TableName(row[1], row[2]) for row in contents.rows["sparkport_journal_tables"]}
    lost = _lost(contents)
    for uuid, revision, sequence, form, count, written_at, body in contents.rows["sparkport_journal_entries"]:
        findings.files += 1
        with findings.catching(_ENTRY, f"{revision} of {uuid}"):
            _require_format(form)
            if not flushed.get(uuid, 0) < revision <= last:
                raise Wrong(f"its place in the order is not after {flushed.get(uuid, 0)} and up to {last}")
            entry = Entry(revision, sequence, count, written_at, body)
            _check_entry(entry, _table(uuid, owners.get(uuid), tables))
            if len(unknown := np.intersect1d(entry_rows(entry).ids, lost.get(uuid, NO_IDS))):
                raise Wrong(f"it changes row {unknown[0]}, which was new in the journal and cannot be found any more")
    for uuid, up_to, form, first, final, flushed_at, body in contents.rows["sparkport_journal_flushes"]:
        findings.files += 1
        with findings.catching(_FLUSH, f"{up_to} of {uuid}"):
            _require_format(form)
            try:
                flush = Flush(up_to, first, final, flushed_at, body)
                applied(TableJournal(uuid, NO_TABLE, flushes=(flush,)))
            except pa.ArrowException as exc:
                raise InternalError(f"cannot be read: {exc}") from exc


def _table(uuid: str, owner: TableName | None, tables: Mapping[TableName, TableMetadata]) -> TableMetadata | None:
    """The one that the journal belongs to, or, renamed by others, the one that is it by its uuid."""
    named = None if owner is None else tables.get(owner)
    if named is not None and named.uuid == uuid:
        return named
    return next((table for table in tables.values() if table.uuid == uuid), None)


def _lost(contents: Contents) -> dict[str, Ids]:
    """Rows, by the tables' uuids, that entries change and that neither they nor a record of a flush have."""
    entries: dict[str, list[Entry]] = {}
    flushes: dict[str, list[Flush]] = {}
    for uuid, revision, sequence, _, count, written_at, body in contents.rows["sparkport_journal_entries"]:
        entries.setdefault(uuid, []).append(Entry(revision, sequence, count, written_at, body))
    for uuid, up_to, _, first, final, flushed_at, body in contents.rows["sparkport_journal_flushes"]:
        flushes.setdefault(uuid, []).append(Flush(up_to, first, final, flushed_at, body))
    lost = {}
    for uuid, waiting in entries.items():
        waiting.sort(key=lambda entry: entry.revision)
        done = sorted(flushes.get(uuid, ()), key=lambda flush: flush.flushed)
        with suppress(pa.ArrowException):  # what cannot be read is a finding of its own
            lost[uuid] = net_of(TableJournal(uuid, NO_TABLE, entries=tuple(waiting), flushes=tuple(done))).lost
    return lost


def _check_entry(entry: Entry, table: TableMetadata | None) -> None:
    try:
        rows = entry_rows(entry)
    except pa.ArrowException as exc:
        raise InternalError(f"cannot be read: {exc}") from exc
    if len(rows.ids) != entry.rows:
        raise Wrong(f"it has {len(rows.ids):,} rows, not {entry.rows:,}")
    if table is None:
        raise Wrong("there is no such table, or its metadata cannot be read")
    if entry.sequence > table.json.get("last-sequence-number", 0):
        raise Wrong(f"it came after commit {entry.sequence}, which the table has not got")
    old = rows.ids[rows.ids < FIRST_ID]
    end = table.json.get("next-row-id") or 0
    if len(old) and int(np.max(old)) >= end:
        raise Wrong(f"it changes row {np.max(old)}, and the table's next row id is {end}")


def _require_format(form: int) -> None:
    if form > FORMAT:
        raise InternalError(f"a newer sparkport has written it: format {form}, not {FORMAT}")
