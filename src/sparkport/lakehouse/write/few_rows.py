"""The net change of a transaction that has changed a few rows of a table: it needs no database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkport.lakehouse.iceberg.lineage import Ids, positions_in
from sparkport.lakehouse.write.change_set import IS_DELETED

__all__ = ["DELETED", "FewRows", "INSERTED", "UNDONE", "UPDATED", "last_of_each"]

UNDONE, INSERTED, UPDATED, DELETED = 0, 1, 2, 3
"""Kinds of rows: one of the transaction's own that it deleted again stays as ``UNDONE``, so that it can be told."""

_MOST_ROWS = 1_000
_MOST_BYTES = 256 << 10
_HEAD = 3

_DELETING = np.array([UNDONE, UNDONE, DELETED, DELETED], np.int8)
"""What becomes of a row of each kind that is deleted."""


def last_of_each(sent: pa.Table) -> pa.Table:
    """Of several rows with one id the last, by ascending ids. The first column has the ids."""
    ids = sent.column(0).to_numpy()
    order = np.argsort(ids, kind="stable")
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = ids[order][1:] != ids[order][:-1]
    return sent.take(pa.array(order[is_last])).combine_chunks()


class FewRows:
    """``rows`` have id, kind, step and then all columns of the table; each change makes another table of them."""

    def __init__(self, columns: pa.Schema) -> None:
        head = [pa.field("row_id", pa.int64()), pa.field("kind", pa.int8()), pa.field("step", pa.int64())]
        self._schema = pa.schema([*head, *columns])
        self.reset()

    @property
    def ids(self) -> Ids:
        ids: Ids = self.rows.column("row_id").to_numpy()
        return ids

    @property
    def kinds(self) -> NDArray[np.int8]:
        kinds: NDArray[np.int8] = self.rows.column("kind").to_numpy()
        return kinds

    @property
    def counts(self) -> Mapping[int, int]:
        return Counter(self.kinds.tolist())

    def has_room(self, rows: int, nbytes: int) -> bool:
        return self.rows.num_rows + rows <= _MOST_ROWS and self.nbytes + nbytes <= _MOST_BYTES

    def reset(self, rows: pa.Table | None = None) -> None:
        """As they were before; none if nothing is said."""
        self.rows: pa.Table = self._schema.empty_table() if rows is None else rows
        self.nbytes = int(self.rows.nbytes)

    def of_kinds(self, *kinds: int) -> pa.Table:
        """Rows of the table by ascending ids, then new ones from -1 downwards, with whether each is deleted."""
        places = np.flatnonzero(np.isin(self.kinds, kinds))
        ids = self.ids[places]
        rows = self.rows.take(pa.array(places[np.lexsort((np.abs(ids), ids < 0))]))
        return rows.append_column(IS_DELETED, pa.array(rows.column("kind").to_numpy() == DELETED))

    # What statements do; ``sent`` are ids, numbers and then these columns of the table

    def insert(self, sent: pa.Table, columns: Sequence[int], step: int) -> None:
        ids = sent.column(0).to_numpy()
        self._put(self._made(ids, np.full(len(ids), INSERTED, np.int8), step, _columns(sent, columns)))

    def changed_after(self, ids: Ids, step: int) -> int:
        """How many of these rows a later step has changed."""
        steps = self.rows.column("step").to_numpy()
        return int(np.count_nonzero((positions_in(ids, self.ids) >= 0) & (steps > step)))

    def beneath(self, ids: Ids) -> Ids:
        """Of these rows those that the table itself has, if anybody has: nothing has been done to them here."""
        return ids[(ids >= 0) & ~np.isin(ids, self.ids)]

    def update(self, named: pa.Table, columns: Sequence[int], base: pa.Table, step: int) -> pa.Table:
        """Rows with new values, to be put here. ``base`` are rows of the table in the other columns, the id last."""
        ids = named.column(0).to_numpy()
        own = self.rows.take(pa.array(self._alive(ids)))
        changed = np.concatenate([own.column("row_id").to_numpy(), base.column("row_id").to_numpy()])
        kinds = np.concatenate([own.column("kind").to_numpy(), np.full(base.num_rows, UPDATED, np.int8)])
        values = _columns(named.take(pa.array(positions_in(ids, changed))), columns)
        for name in base.column_names[:-1]:
            at = self._schema.get_field_index(name) - _HEAD
            values[at] = pa.chunked_array([*own.column(name).chunks, *base.column(name).chunks], base.column(name).type)
        return self._made(changed, kinds, step, values)

    def delete(self, ids: Ids, base: Ids, step: int) -> pa.Table:
        own = self._alive(ids)
        kinds = np.concatenate([_DELETING[self.kinds[own]], np.full(len(base), DELETED, np.int8)])
        return self._made(np.concatenate([self.ids[own], base]), kinds, step, {})

    def replace(self, changed: pa.Table) -> None:
        """Put rows here instead of those with the same ids."""
        stays = ~np.isin(self.ids, changed.column("row_id").to_numpy())
        self.rows = self.rows.filter(pa.array(stays))
        self._put(changed)

    def _alive(self, ids: Ids) -> Ids:
        """The places of those of these rows that the transaction has made or updated."""
        return np.flatnonzero((positions_in(ids, self.ids) >= 0) & np.isin(self.kinds, (INSERTED, UPDATED)))

    def _put(self, rows: pa.Table) -> None:
        self.rows = pa.concat_tables([self.rows, rows]).combine_chunks()
        self.nbytes = int(self.rows.nbytes)

    def _made(self, ids: Ids, kinds: NDArray[np.int8], step: int, values: Mapping[int, pa.ChunkedArray]) -> pa.Table:
        count = len(ids)
        body = [
            values[at] if at in values else pa.nulls(count, type_)
            for at, type_ in enumerate(self._schema.types[_HEAD:])
        ]
        return pa.table([pa.array(ids), pa.array(kinds), pa.array(np.full(count, step)), *body], schema=self._schema)


def _columns(sent: pa.Table, columns: Sequence[int]) -> dict[int, pa.ChunkedArray]:
    return {column: sent.column(2 + place) for place, column in enumerate(columns)}
