"""Keys are kept when a change is decided: what it adds is looked for in the table as it is then.

Only rows that are new, or get other values in a key's columns, are looked for; what others have put in twice stays. The
commit is conditional on the table, and on the entries of its journal, that were looked at.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkport.catalog.key_values import KeyValues, duplicate_key
from sparkport.catalog.plain_values import stored_numbers
from sparkport.catalog.row_ids import ROW_ID
from sparkport.catalog.table import Key
from sparkport.errors import DuplicateKey, ResourceExhausted
from sparkport.filters.expressions import Between, Column, Expression, In, Literal, SqlType, conjunction
from sparkport.filters.types import arrow_sql_type
from sparkport.lakehouse.catalogs.journal_state import Entry, TableJournal
from sparkport.lakehouse.columns.columns import Json
from sparkport.lakehouse.columns.storage import conformed_batch
from sparkport.lakehouse.columns.types import stored_type
from sparkport.lakehouse.iceberg.file_numbers import are_in_files
from sparkport.lakehouse.iceberg.lineage import NO_IDS, Ids, ascending, positions_in
from sparkport.lakehouse.journal.net import RowChange, column_of, entry_rows
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.scan.version import TableVersion
from sparkport.lakehouse.write.change_set import CHANGED_ID, ChangeSet, changed_column
from sparkport.lakehouse.write.conflicts import Decision
from sparkport.lakehouse.write.key_room import CommitRoom

__all__ = ["AddedKey", "GroupKeys", "added_keys", "adds_since", "require_unique", "rows_with_keys"]

_FEW = 32
"""So many values are looked for one by one; of more, what is between the least and the greatest is read."""


_LOOKED_AT_ONCE = 1_000_000
"""Rows of the table: each look makes a hash table of the values anew."""

_HELD_BYTES = 32 << 20
"""Of rows of the table, or as much as the values take: so many are looked at before there are a million of them."""


@dataclass(frozen=True, slots=True, eq=False)
class AddedKey:
    """What one change set adds to a key. ``gone`` are rows of the table that do not have their values any more."""

    key: Key
    values: KeyValues
    gone: Ids
    only_inserts: bool


def added_keys(
    change: ChangeSet, decision: Decision, version: TableVersion, room: CommitRoom | None = None
) -> list[AddedKey]:
    """Raises DuplicateKey where the change set itself has a key twice."""
    added = []
    room = room or CommitRoom()
    with room.unless_it_fails():
        for key in version.keys:
            inserted = _inserted(change, key, version, room)
            moved, changed = _changed(change, decision, key, version, room)
            parts = [part for part in (inserted, changed) if part is not None and len(part)]
            if not parts:
                continue
            values = _joined(parts, room)
            with room.taken(values.comparing_bytes):
                repeated = values.repeated()
            if repeated is not None:
                raise _duplicate(version, key, repeated)
            added.append(AddedKey(key, values, ascending(moved, decision.deleted), not len(moved)))
    return added


def _joined(parts: Sequence[KeyValues], room: CommitRoom) -> KeyValues:
    values = KeyValues.joined(parts)
    if len(parts) > 1:  # it has the values of all, whose own room may be given back before
        size = values.nbytes
        room.take(size)
        room.leave_to(values, size)
    return values


def _inserted(change: ChangeSet, key: Key, version: TableVersion, room: CommitRoom) -> KeyValues | None:
    """New rows bring their columns by name; what they do not bring is NULL."""
    if change.inserts is None or not change.inserted:
        return None
    names = [str(field["name"]) for field in _fields(version, key)]
    if not set(names) <= set(change.inserts.schema.names):
        return None
    with _Charged(room) as charged:
        batches = charged.read(change.inserts.batches(names))
        values = KeyValues([pa.chunked_array([batch.column(name) for batch in batches]) for name in names])
        charged.leave_to(values)
        return values


class _Charged:
    """Rows that are read while they are charged; what is left to nobody is given back at the end of the block."""

    def __init__(self, room: CommitRoom) -> None:
        self._room = room
        self._size = 0

    def __enter__(self) -> _Charged:
        return self

    def __exit__(self, *_: object) -> None:
        self._room.give_back(self._size)

    def read(self, batches: Iterable[pa.RecordBatch], *, copies: int = 1) -> list[pa.RecordBatch]:
        found = []
        for batch in batches:
            self._room.take(copies * batch.nbytes)
            self._size += copies * batch.nbytes
            found.append(batch)
        return found

    def leave_to(self, values: KeyValues) -> None:
        size, self._size = self._size, 0
        self._room.leave_to(values, size)


_CHANGED_COPIES = 3
"""Of values that rows are changed to: as they were sent, in the order of the rows, and those that differ."""


def _changed(
    change: ChangeSet, decision: Decision, key: Key, version: TableVersion, room: CommitRoom
) -> tuple[Ids, KeyValues | None]:
    """Rows that get other values than they have, and those values."""
    if change.changes is None or not len(decision.updated) or set(key.columns).isdisjoint(change.columns):
        return NO_IDS, None
    sent_names = [changed_column(change.columns.index(name)) for name in key.columns if name in change.columns]
    with _Charged(room) as charged:
        names = [CHANGED_ID, *sent_names]
        sent = pa.Table.from_batches(charged.read(change.changes.batches(names), copies=_CHANGED_COPIES))
        ids = version.rows.resolve(sent.column(CHANGED_ID).to_numpy())
        chosen = np.flatnonzero(positions_in(decision.updated, ids) >= 0)
        ids, sent = ids[chosen], sent.take(pa.array(chosen))
        old = _old(version, key, ids, charged)
        new, differs = [], np.zeros(len(ids), np.bool_)
        for name, before in zip(key.columns, old, strict=True):
            after = sent.column(changed_column(change.columns.index(name))) if name in change.columns else before
            differs |= _differ(before, after)
            new.append(after)
        places = pa.array(np.flatnonzero(differs))
        values = KeyValues([column.take(places) for column in new])
        charged.leave_to(values)
        return ascending(ids[differs]), values


def _old(version: TableVersion, key: Key, ids: Ids, charged: _Charged) -> list[pa.ChunkedArray]:
    """The values of a key that rows have, NULL for those that are gone."""
    fields = _fields(version, key)
    schema = _stored_schema(fields)
    with closing(version.rows.stored([str(field["name"]) for field in fields], row_ids=ascending(ids))) as stream:
        batches = (conformed_batch(batch, schema) for batch in stream)
        rows = pa.Table.from_batches(charged.read(batches, copies=2), schema)
    there = rows.column(ROW_ID).to_numpy()
    order = np.argsort(there, kind="stable")
    found = positions_in(there[order], ids)
    places = pa.array(order[found] if len(order) else found, mask=found < 0)
    return [rows.column(place).take(places) for place in range(len(fields))]


def _differ(before: pa.ChunkedArray, after: pa.ChunkedArray) -> Any:
    same = pc.fill_null(pc.equal(before, after), False).to_numpy()
    both_null = pc.and_(before.is_null(), after.is_null()).to_numpy()
    return ~(same | both_null)


def rows_with_keys(
    version: TableVersion, key: Key, values: KeyValues, *, since: TableVersion | None = None
) -> pa.Table:
    """Rows of a table that have one of these values: the key's columns as they are stored, by place, and the row id.

    Files are pruned by their bounds. Of files that ``since`` has as well nothing is read.
    """
    fields = _fields(version, key)
    if version.journal is not None and not _may_be_in_journal(version.journal, fields, values):
        # What the journal hides and shows has to be worked out only if there is a row to be hidden.
        published = version.without_journal()
        found = rows_with_keys(published, key, values, since=since)
        if not found.num_rows:
            return found
    if len(values) > _FEW and len(fields) == 1 and version.journal is None:
        values = _in_files(version, fields[0], values, since)
        if not len(values):
            return _stored_schema(fields).empty_table()
    return _matching(version, fields, values, since)


def _in_files(version: TableVersion, field: Json, values: KeyValues, since: TableVersion | None) -> KeyValues:
    """Those of the values that the table's files have, as far as that is known without reading them again."""
    (column,) = values.columns
    if column.type not in (pa.int32(), pa.int64()):
        return values
    known = None if since is None else since.published_rows
    files = version.published_rows.files_matching(_condition([field], values), since=known)
    numbers = np.sort(column.to_numpy().astype(np.int64))
    are_there = are_in_files(files, int(field["id"]), numbers)
    return values if are_there is None else KeyValues([pa.array(numbers[are_there]).cast(column.type)])


def _matching(version: TableVersion, fields: Sequence[Json], values: KeyValues, since: TableVersion | None) -> pa.Table:
    schema = _stored_schema(fields)
    names = [str(field["name"]) for field in fields]
    found: list[pa.Table] = [schema.empty_table()]
    held: list[pa.RecordBatch] = []

    def look() -> None:
        rows = pa.Table.from_batches(held, schema)
        places = values.places_in(rows.columns[:-1])
        if places is not None:
            found.append(rows.take(places))
        held.clear()

    condition, is_range = _condition(fields, values), len(values) > _FEW
    most = max(_HELD_BYTES, values.nbytes)
    known = None if since is None else since.rows
    with closing(version.rows.matching(names, condition, since=known, skips_only=is_range)) as stream:
        for batch in stream:
            if not version.has_row_ids:
                batch = batch.append_column(ROW_ID, pa.array(np.full(len(batch), -1)))
            held.append(conformed_batch(batch, schema))
            if sum(map(len, held)) >= _LOOKED_AT_ONCE or sum(rows.nbytes for rows in held) >= most:
                look()
        look()
    return pa.concat_tables(found)


_values: weakref.WeakKeyDictionary[Entry, dict[tuple[str, ...], frozenset[tuple[Any, ...]]]]
_values = weakref.WeakKeyDictionary()
_values_lock = threading.Lock()


def _may_be_in_journal(journal: TableJournal, fields: Sequence[Json], values: KeyValues) -> bool:
    """Whether an entry has a row with one of these values, which may be gone since."""
    if len(values) > _FEW:
        return True
    wanted = set(zip(*(stored_numbers(column).to_pylist() for column in values.columns), strict=True))
    names = tuple(column_of(field) for field in fields)
    with _values_lock:
        known = [_values.get(entry, {}).get(names) for entry in journal.entries]
    for entry, there in zip(journal.entries, known, strict=True):
        there = _values_of(entry, names) if there is None else there
        if there is None or not wanted.isdisjoint(there):
            return True
    return False


def _values_of(entry: Entry, names: tuple[str, ...]) -> frozenset[tuple[Any, ...]] | None:
    """The values that an entry has in some columns, kept for the next time; None if it has not all of these."""
    rows = entry_rows(entry).values
    if not set(names) <= set(rows.column_names):
        return None
    there = frozenset(zip(*(stored_numbers(rows.column(name)).to_pylist() for name in names), strict=True))
    with _values_lock:
        _values.setdefault(entry, {})[names] = there
    return there


def _condition(fields: Sequence[Json], values: KeyValues) -> Expression | None:
    """What holds of all rows with such values, where it can be said in a filter; more rows may come."""
    parts: list[Expression] = []
    for field, column in zip(fields, values.columns, strict=True):
        about = Column(str(field["name"]))
        if len(column) <= _FEW:
            literals = [_literal(value, field) for value in column]
            known = tuple(literal for literal in literals if literal is not None)
            if len(known) == len(literals):
                parts.append(In(about, known))
            continue
        if pa.types.is_boolean(column.type) or pa.types.is_fixed_size_binary(column.type):
            continue
        bounds = pc.min_max(column)
        low, high = _literal(bounds["min"], field), _literal(bounds["max"], field)
        if low is not None and high is not None:
            parts.append(Between(about, low, high))
    return conjunction(parts) if parts else None


def _literal(value: pa.Scalar, field: Json) -> Literal | None:
    """A stored value as filters have it."""
    if field["type"] == "uuid":
        return Literal(uuid.UUID(value.as_py()), SqlType("UUID"))
    sql_type = arrow_sql_type(value.type)
    if sql_type is None or pa.types.is_binary(value.type) or pa.types.is_boolean(value.type):
        return None
    if pa.types.is_date(value.type) or pa.types.is_timestamp(value.type) or pa.types.is_time(value.type):
        return Literal(value.value, sql_type)
    return Literal(value.as_py(), sql_type)


def adds_since(journal: TableJournal | None, revision: int, version: TableVersion, added: Iterable[AddedKey]) -> bool:
    """Whether an entry of the journal after a revision has brought a row with one of the values that are added."""
    if journal is None or journal.last <= revision:
        return False
    keys = [(item.values, [column_of(field) for field in _fields(version, item.key)]) for item in added]
    for entry in reversed(journal.entries) if keys else ():
        if entry.revision <= revision:
            break
        rows = entry_rows(entry)
        there = pa.array(np.flatnonzero(rows.changes != RowChange.DELETED))
        for values, names in keys:
            if not set(names) <= set(rows.values.column_names):
                return True
            if values.places_in([rows.values.column(name).take(there) for name in names]) is not None:
                return True
    return False


class GroupKeys:
    """Keys of what is committed together. ``since`` are versions that were looked at already, for the same changes."""

    def __init__(
        self,
        changes: Iterable[Mapping[TableName, ChangeSet]],
        versions: Mapping[TableName, TableVersion | None],
        since: Mapping[TableName, TableVersion],
    ) -> None:
        self._changes = list(changes)
        self._versions = versions
        self._since = since
        self._found: dict[tuple[TableName, Key], pa.Table] = {}
        self._room = CommitRoom()
        self.added: dict[TableName, list[AddedKey]] = {}

    def admit(self, changes: Mapping[TableName, ChangeSet], decisions: Mapping[TableName, Decision]) -> bool:
        """False for what meets a key that another of the group adds or takes away, or has no room beside it: it waits.

        Raises DuplicateKey for what meets the table itself.
        """
        try:
            with self._room.unless_it_fails():
                admitted = self._admitted(changes, decisions)
        except ResourceExhausted:
            if not self.added:
                raise
            return False
        for table, added in admitted or ():
            self.added.setdefault(table, []).append(added)
        return admitted is not None

    def _admitted(
        self, changes: Mapping[TableName, ChangeSet], decisions: Mapping[TableName, Decision]
    ) -> list[tuple[TableName, AddedKey]] | None:
        admitted: list[tuple[TableName, AddedKey]] = []
        for table, version in self._keyed(changes):
            for added in added_keys(changes[table], decisions[table], version, self._room):
                others = [item for item in self.added.get(table, ()) if item.key == added.key]
                meets = require_unique(version, added, self._rows(version, added), others)
                if meets or any(added.values.places_in(other.values.columns) is not None for other in others):
                    return None
                admitted.append((table, added))
        return admitted

    def _keyed(self, changes: Mapping[TableName, ChangeSet]) -> Iterator[tuple[TableName, TableVersion]]:
        for table in changes:
            version = self._versions[table]
            if version is not None and version.keys:
                yield table, version

    def _rows(self, version: TableVersion, added: AddedKey) -> pa.Table:
        """New rows of the whole group are looked for together."""
        since = self._since.get(version.table)
        if not added.only_inserts:
            return rows_with_keys(version, added.key, added.values, since=since)
        place = (version.table, added.key)
        if place not in self._found:
            changes = [change[version.table] for change in self._changes if version.table in change]
            # Of one change these are the values that are added.
            values = added.values
            if len(changes) > 1:
                parts = [_inserted(change, added.key, version, self._room) for change in changes]
                values = _joined([part for part in parts if part is not None], self._room)
            with self._room.taken(values.comparing_bytes):
                self._found[place] = rows_with_keys(version, added.key, values, since=since)
        found = self._found[place]
        places = added.values.places_in(found.columns[:-1])
        return found.slice(0, 0) if places is None else found.take(places)


def require_unique(version: TableVersion, added: AddedKey, found: pa.Table, others: Sequence[AddedKey] = ()) -> bool:
    """Raises DuplicateKey where one of these rows stays as it is; True where the only such are those others remove."""
    if not found.num_rows:
        return False
    ids = found.column(ROW_ID).to_numpy()
    stays = positions_in(added.gone, ids) < 0
    removed = positions_in(ascending(NO_IDS, *(other.gone for other in others)), ids) >= 0
    if bool(np.any(stays & ~removed)):
        row = found.slice(int(np.flatnonzero(stays & ~removed)[0]), 1)
        raise _duplicate(version, added.key, [column.combine_chunks() for column in row.columns[:-1]])
    return bool(np.any(stays))


def _duplicate(version: TableVersion, key: Key, values: Sequence[pa.Array]) -> DuplicateKey:
    """``values`` are stored ones, of one row; clients know them as declared."""
    flat = [value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value for value in values]
    batch = pa.RecordBatch.from_arrays(flat, names=[f"k{place}" for place in range(len(flat))])
    declared = next(iter(version.columns.as_declared([batch], key.columns)))
    return duplicate_key(version.table.name, key, [column[0] for column in declared.columns])


def _fields(version: TableVersion, key: Key) -> list[Json]:
    return [version.columns.field(name) for name in key.columns]


def _stored_schema(fields: Sequence[Json]) -> pa.Schema:
    body = [pa.field(f"k{place}", stored_type(field["type"])) for place, field in enumerate(fields)]
    return pa.schema([*body, pa.field(ROW_ID, pa.int64())])
