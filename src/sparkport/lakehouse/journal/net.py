"""What the entries of a journal come to: which rows are new, changed or gone, and what they are now.

An entry's body is an Arrow batch: the id of each row, what happened to it, and all its values as they are stored, in
columns that are named by the field's id. The ids of new rows are above all that Iceberg gives.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.errors import InternalError
from sparkport.lakehouse.cached import cached_property
from sparkport.lakehouse.catalogs.journal_state import NET, NET_BEFORE, Entry, Flush, TableJournal
from sparkport.lakehouse.columns.older_rows import evolved, initial_values
from sparkport.lakehouse.columns.types import stored_type
from sparkport.lakehouse.iceberg.lineage import NO_IDS, Ids, ascending, positions_in
from sparkport.lakehouse.iceberg.metadata import TableMetadata

__all__ = [
    "Applied",
    "EntryRows",
    "FIRST_ID",
    "GONE",
    "Net",
    "RowChange",
    "UNTOLD",
    "applied",
    "column_of",
    "entry_body",
    "entry_rows",
    "flush_body",
    "is_about",
    "lost_among",
    "moved",
    "net_of",
    "require_known",
    "resolved",
    "touches_since",
    "unknown_among",
    "untold_among",
]

FIRST_ID = 1 << 61
"""Of rows that were new when they came into the journal."""

GONE, UNTOLD = -1, -2
"""In the record of a flush instead of a row's id: it came and went again; it is there, and nobody knows its id."""

_ID, _CHANGE, _NEW_ID, _REVISION = "row_id", "change", "new_id", "revision"
_TYPE, _SNAPSHOT = "type", b"snapshot"
_MOST_CHUNKS = 64
_parsed_lock = threading.Lock()


Fields: TypeAlias = Sequence[dict[str, Any]]
"""Of a table's schema."""


class RowChange(IntEnum):
    """What an entry did to a row, or all entries together. One that came and went again is UNDONE."""

    UNDONE = 0
    INSERTED = 1
    UPDATED = 2
    DELETED = 3


def entry_schema(fields: Fields) -> pa.Schema:
    """What the table said of a column is kept with it: a stranger may have changed that when it is read."""
    body = [
        pa.field(column_of(f), stored_type(f["type"]), metadata={"name": str(f["name"]), _TYPE: json.dumps(f["type"])})
        for f in fields
    ]
    return pa.schema([pa.field(_ID, pa.int64()), pa.field(_CHANGE, pa.int8()), *body])


def column_of(field: dict[str, Any]) -> str:
    return f"f{field['id']}"


def entry_body(
    ids: Ids,
    change: NDArray[np.int8],
    values: Sequence[pa.Array],
    fields: Fields,
    *,
    snapshot: int | None = None,
) -> bytes:
    """``snapshot`` is what the table was when the rows were changed."""
    batch = pa.RecordBatch.from_arrays([pa.array(ids), pa.array(change), *values], schema=entry_schema(fields))
    return _dump(batch, snapshot)


def flush_body(ids: Ids, row_ids: Ids, revisions: Ids, *, snapshot: int | None = None) -> bytes:
    """For each row its id in the journal, its id since, GONE or UNTOLD, and the revision that changed it last.

    ``snapshot`` is what the table is then.
    """
    columns = [pa.array(ids), pa.array(row_ids), pa.array(revisions)]
    return _dump(pa.RecordBatch.from_arrays(columns, names=[_ID, _NEW_ID, _REVISION]), snapshot)


def _dump(batch: pa.RecordBatch, snapshot: int | None) -> bytes:
    batch = batch.replace_schema_metadata(None if snapshot is None else {_SNAPSHOT: str(snapshot)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _load(body: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        return reader.read_all()


def _snapshot(table: pa.Table) -> int | None:
    noted = (table.schema.metadata or {}).get(_SNAPSHOT)
    return None if noted is None else int(noted)


class EntryRows:
    """An entry, taken apart."""

    def __init__(self, entry: Entry) -> None:
        table = _load(entry.body)
        self.revision = entry.revision
        self.ids: Ids = table.column(_ID).to_numpy()
        self.changes: NDArray[np.int8] = table.column(_CHANGE).to_numpy()
        self.snapshot = _snapshot(table)
        self.values = table.drop_columns([_ID, _CHANGE]).replace_schema_metadata(None)


class Applied:
    """A flush, taken apart: where its rows are now."""

    def __init__(self, flush: Flush) -> None:
        table = _load(flush.body)
        self.first_sequence = flush.first_sequence
        self.last_sequence = flush.last_sequence
        self.snapshot = _snapshot(table)
        self.flushed = flush.flushed
        self._ids: Ids = table.column(_ID).to_numpy()
        self._row_ids: Ids = table.column(_NEW_ID).to_numpy()
        self._revisions: Ids = table.column(_REVISION).to_numpy()
        new = self._ids[self._ids >= FIRST_ID]
        self._new = (int(new[0]), int(new[-1])) if len(new) else (0, -1)
        order = np.argsort(self._row_ids, kind="stable")
        self._by_row_id = self._row_ids[order], self._revisions[order]

    def has_ids_between(self, low: int, high: int) -> bool:
        return self._new[0] <= high and low <= self._new[1]

    def knows(self, ids: Ids) -> NDArray[np.bool_]:
        """True for each of these of which it says what became of the row."""
        return (positions_in(self._ids, ids) >= 0) & ~self.untold(ids)

    def untold(self, ids: Ids) -> NDArray[np.bool_]:
        """True for each of these whose row it has brought into the table, under an id that nobody knows."""
        places = positions_in(self._ids, ids)
        return (places >= 0) & (self._row_ids[places] == UNTOLD) if len(self._ids) else places >= 0

    def resolve(self, ids: Ids) -> Ids:
        """For ids of the journal those that the rows have since; those of rows that are gone stay, and others."""
        if not len(self._ids):
            return ids
        places = positions_in(self._ids, ids)
        return np.where((places >= 0) & (self._row_ids[places] >= 0), self._row_ids[places], ids)

    def revisions(self, row_ids: Ids) -> Ids:
        """Which revision changed each row, -1 for those that the flush did not touch."""
        known, revisions = self._by_row_id
        places = positions_in(known, row_ids)
        return np.where(places >= 0, revisions[places] if len(revisions) else -1, -1)


@dataclass(frozen=True, eq=False)
class Net:
    """By ascending ids: what became of each row, the revision of its last change, and its place in ``segments``.

    A segment holds rows of entries of one schema. Ids are those that the rows have after all flushes.
    """

    ids: Ids
    changes: NDArray[np.int8]
    revisions: Ids
    places: Ids
    segments: tuple[pa.Table, ...]
    entries: int
    last: int

    @cached_property
    def hidden(self) -> Ids:
        """Rows of the snapshot that are not as it has them."""
        ids: Ids = self.ids[(self.changes == RowChange.UPDATED) | (self.changes == RowChange.DELETED)]
        return ids

    @cached_property
    def lost(self) -> Ids:
        """Rows that were new in the journal, are changed or deleted by an entry, and are nowhere to be found."""
        lost: Ids = self.hidden[self.hidden >= FIRST_ID]
        return lost

    @cached_property
    def visible(self) -> NDArray[np.bool_]:
        visible: NDArray[np.bool_] = (self.changes == RowChange.UPDATED) | (self.changes == RowChange.INSERTED)
        return visible

    @cached_property
    def inserted(self) -> int:
        return int(np.count_nonzero(self.changes == RowChange.INSERTED))

    def without(self, gone: Ids) -> Net:
        """Rows that others have deleted from the snapshot: nothing is to be hidden there, and nothing to be shown."""
        changes = np.where(positions_in(gone, self.ids) >= 0, np.int8(RowChange.UNDONE), self.changes)
        return replace(self, changes=changes)

    def values(self, fields: Fields, names: Sequence[str], chosen: NDArray[np.bool_]) -> list[pa.Array]:
        """Columns of some rows as they are stored, in the order of ids."""
        places = pa.array(self.places[chosen])
        columns = []
        for field in fields:
            if field["name"] not in names:
                continue
            stored, name = stored_type(field["type"]), column_of(field)
            chunks: list[pa.Array] = []
            for segment in self.segments:
                if name in segment.schema.names:
                    before = json.loads(segment.schema.field(name).metadata[_TYPE.encode()])
                    chunks += [evolved(chunk, before, field["type"]) for chunk in segment.column(name).chunks]
                else:
                    chunks.append(initial_values(field, segment.num_rows))
            taken = pa.chunked_array(chunks, stored).take(places)
            columns.append(taken.combine_chunks() if taken.num_chunks != 1 else taken.chunk(0))
        order = {name: at for at, name in enumerate(f["name"] for f in fields if f["name"] in names)}
        return [columns[order[name]] for name in names]


_EMPTY = Net(NO_IDS, np.empty(0, np.int8), NO_IDS, NO_IDS, (), 0, 0)


def net_of(journal: TableJournal) -> Net:
    """Made once for each state, from what the one before it came to."""
    known = journal.known.get(NET)
    if isinstance(known, Net):
        return known
    before = journal.known.get(NET_BEFORE)
    net = before if isinstance(before, Net) else _EMPTY
    fresh = [entry_rows(entry) for entry in journal.entries[net.entries :]]
    if fresh:
        net = _extended(net, fresh, applied(journal))
    journal.known[NET] = net
    return net


_rows: weakref.WeakKeyDictionary[Entry, EntryRows] = weakref.WeakKeyDictionary()


def entry_rows(entry: Entry) -> EntryRows:
    with _parsed_lock:
        known = _rows.get(entry)
    if known is None:
        known = EntryRows(entry)
        with _parsed_lock:
            _rows[entry] = known
    return known


def touches_since(journal: TableJournal | None, revision: int, ids: Ids) -> bool:
    """Whether an entry after a revision changes one of these rows; ids ascend."""
    if journal is None or not len(ids) or journal.last <= revision:
        return False
    flushes = applied(journal)
    for entry in reversed(journal.entries):
        if entry.revision <= revision:
            return False
        if bool(np.any(positions_in(ids, resolved(entry_rows(entry).ids, flushes)) >= 0)):
            return True
    return False


_applied: weakref.WeakKeyDictionary[Flush, Applied] = weakref.WeakKeyDictionary()


def applied(journal: TableJournal) -> list[Applied]:
    """The flushes of a table, oldest first, each taken apart once."""
    with _parsed_lock:
        known = [_applied.get(flush) for flush in journal.flushes]
    fresh = {flush: Applied(flush) for flush, have in zip(journal.flushes, known, strict=True) if have is None}
    with _parsed_lock:
        _applied.update(fresh)
    return [have or fresh[flush] for flush, have in zip(journal.flushes, known, strict=True)]


def resolved(ids: Ids, flushes: Iterable[Applied]) -> Ids:
    """Ids as they are after flushes. Only those of rows that were new in the journal have changed."""
    if not len(ids) or int(ids.max()) < FIRST_ID:
        return ids
    low, high = int(ids[ids >= FIRST_ID].min()), int(ids.max())
    for flush in flushes:
        if flush.has_ids_between(low, high):
            ids = np.where(ids >= FIRST_ID, flush.resolve(ids), ids)
    return ids


def unknown_among(ids: Ids, journal: TableJournal) -> Ids:
    """Ids that the journal gave to rows of which it does not know any more what became of them."""
    unknown = ids[ids >= FIRST_ID]
    if len(unknown):
        unknown = unknown[positions_in(net_of(journal).ids, unknown) < 0]
        for flush in applied(journal):
            unknown = unknown[~flush.knows(unknown)]
    return unknown


def untold_among(ids: Ids, journal: TableJournal) -> Ids:
    """Ids that the journal gave to rows which are in the table under others that nobody knows."""
    new = ids[ids >= FIRST_ID]
    untold = [new[flush.untold(new)] for flush in applied(journal)] if len(new) else []
    return ascending(*untold)


def require_known(journal: TableJournal) -> Net:
    """What the entries come to. InternalError, and nothing may be done with them, if one is about an unknown row."""
    net = net_of(journal)
    if len(net.lost):
        raise InternalError(
            f"the journal of table '{journal.table}' has changes of {len(net.lost):,} rows that cannot be found, the "
            f"first with id {net.lost[0]}: they are kept and not applied; 'sparkport check' names the entries"
        )
    return net


def lost_among(entries: Iterable[Entry]) -> Ids:
    """Rows that were new in the journal and that entries change or delete, without one among them that has them."""
    rows = [entry_rows(entry) for entry in entries]
    ids, changes = (
        np.concatenate([NO_IDS, *(r.ids for r in rows)]),
        np.concatenate([NO_IDS, *(r.changes for r in rows)]),
    )
    inserted = changes == RowChange.INSERTED
    named = ascending(ids[~inserted & (ids >= FIRST_ID)])
    return named[positions_in(ascending(ids[inserted]), named) < 0]


def is_about(journal: TableJournal, metadata: TableMetadata) -> bool:
    """Whether a table with the journal's uuid has the snapshots that it is about.

    One that others made of the same metadata file has gone its own way: ids and sequence numbers mean other things.
    """
    known = {(entry_rows(entry).snapshot, entry.sequence) for entry in journal.entries}
    known |= {(flush.snapshot, flush.last_sequence) for flush in applied(journal)[-1:]}
    return all(s is None or metadata.has_snapshot(s) or metadata.descends_from(s, number) for s, number in known)


def moved(entry: Entry, flushes: Sequence[Applied]) -> Entry:
    """The same about rows by the ids that flushes have given them; itself if it is about none of those."""
    ids = entry_rows(entry).ids
    now = resolved(ids, flushes)
    if now is ids or np.array_equal(now, ids):
        return entry
    table = _load(entry.body)
    batch = table.set_column(0, table.schema.field(0), pa.array(now)).combine_chunks().to_batches()[0]
    return replace(entry, body=_dump(batch, flushes[-1].snapshot))


def _extended(net: Net, fresh: Sequence[EntryRows], flushes: Sequence[Applied]) -> Net:
    segments = list(net.segments)
    offset = sum(segment.num_rows for segment in segments)
    ids = [resolved(rows.ids, flushes) for rows in fresh]
    named = np.concatenate(ids)
    before = positions_in(net.ids, named)
    state: dict[int, tuple[int, int, int]] = {}
    at = 0
    for rows, row_ids in zip(fresh, ids, strict=True):
        for row_id, change in zip(row_ids.tolist(), rows.changes.tolist(), strict=True):
            known = -1 if before[at] < 0 else int(net.changes[before[at]])
            earlier = state[row_id][0] if row_id in state else known
            state[row_id] = (_combined(earlier, change), rows.revision, offset)
            at += 1
            offset += 1
        _append(segments, rows.values)
    new_ids = np.array(sorted(state), np.int64)
    values = np.array([state[row_id] for row_id in new_ids.tolist()], np.int64).reshape(-1, 3)
    keep = positions_in(new_ids, net.ids) < 0
    all_ids = np.concatenate([net.ids[keep], new_ids])
    order = np.argsort(all_ids, kind="stable")
    return Net(
        all_ids[order],
        np.concatenate([net.changes[keep], values[:, 0].astype(np.int8)])[order],
        np.concatenate([net.revisions[keep], values[:, 1]])[order],
        np.concatenate([net.places[keep], values[:, 2]])[order],
        tuple(segments),
        net.entries + len(fresh),
        fresh[-1].revision,
    )


def _combined(earlier: int, change: int) -> int:
    if earlier in (RowChange.INSERTED, RowChange.UNDONE):
        return RowChange.UNDONE if change == RowChange.DELETED else RowChange.INSERTED
    return change


def _append(segments: list[pa.Table], rows: pa.Table) -> None:
    if segments and segments[-1].schema.equals(rows.schema, check_metadata=True):
        joined = pa.concat_tables([segments[-1], rows])
        chunks = joined.column(0).num_chunks if joined.num_columns else 0
        segments[-1] = joined.combine_chunks() if chunks > _MOST_CHUNKS else joined
    else:
        segments.append(rows)
