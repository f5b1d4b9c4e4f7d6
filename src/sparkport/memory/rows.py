"""One table's rows over time: append-only segments, each row with the commits that made and ended it.

A row is never changed in place. INSERT appends a segment; UPDATE ends the old rows and appends the new ones under the
same row ids; DELETE ends rows. A reader at commit *n* sees the rows made at or before *n* and not ended by then, so
readers need no lock: what they look at only ever grows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

__all__ = ["Place", "Rows", "Segment", "coalesce", "gather"]

_BATCH_ROWS = 65_536


@dataclass(slots=True, eq=False)
class Segment:
    """The rows that one commit created. ``row_ids`` counts up from ``first_id`` where it is not given."""

    batch: pa.RecordBatch
    created: int
    first_id: int = 0
    row_ids: pa.Int64Array | None = None
    ended: dict[int, int] = field(default_factory=dict)

    def ids(self) -> pa.Int64Array:
        if self.row_ids is not None:
            return self.row_ids
        return pa.arange(self.first_id, self.first_id + self.batch.num_rows)

    def alive(self, commit: int) -> list[int] | None:
        """Offsets of the rows that a reader at ``commit`` sees; None means all."""
        if not self.ended:
            return None
        ended = {offset for offset, at in self.ended.copy().items() if at <= commit}
        if not ended:
            return None
        return [offset for offset in range(self.batch.num_rows) if offset not in ended]


Place = tuple[Segment, int]


def gather(places: Sequence[Place], schema: pa.Schema) -> pa.RecordBatch:
    """The rows at the given places, in that order."""
    if not places:
        return pa.RecordBatch.from_arrays([pa.nulls(0, column.type) for column in schema], schema=schema)
    starts: dict[int, int] = {}
    batches: list[pa.RecordBatch] = []
    total = 0
    indices: list[int] = []
    for segment, offset in places:
        start = starts.get(id(segment))
        if start is None:
            start = starts[id(segment)] = total
            batches.append(segment.batch)
            total += segment.batch.num_rows
        indices.append(start + offset)
    table = pa.Table.from_batches(batches, schema).take(pa.array(indices, pa.int64()))
    return table.combine_chunks().to_batches()[0]


class Rows:
    """All rows of a table. Changes are made under the store's lock, one commit at a time."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._created: list[int] = []
        # Where the newest version of a row is: in the segment that inserted it, unless it has moved since.
        self._inserted: list[Segment] = []
        self._first_ids: list[int] = []
        self._moved: dict[int, Place] = {}

    def segments(self, commit: int) -> Iterator[Segment]:
        """What there was at ``commit``, in the order in which it was committed."""
        for index in range(bisect_right(self._created, commit)):
            yield self._segments[index]

    def newest(self, row_id: int) -> Place | None:
        """Where a row's newest version is, ended or not; None for an id that was never given out."""
        return self._moved.get(row_id) or self.inserted(row_id)

    def inserted(self, row_id: int) -> Place | None:
        """Where a row's first version is; None for one that was not inserted here."""
        index = bisect_right(self._first_ids, row_id) - 1
        if index < 0:
            return None
        segment = self._inserted[index]
        offset = row_id - segment.first_id
        return (segment, offset) if offset < segment.batch.num_rows else None

    def at(self, row_id: int, commit: int) -> Place | None:
        """Where the version of a row is that a reader at ``commit`` sees."""
        place = self.newest(row_id)
        if place is None:
            return None
        segment, offset = place
        if segment.created <= commit:
            return None if segment.ended.get(offset, commit + 1) <= commit else place
        return self._older(row_id, commit)

    def append(self, segment: Segment) -> None:
        """Rows of a new commit: new ones, or new versions of rows under their old ids."""
        self._segments.append(segment)
        self._created.append(segment.created)
        if segment.row_ids is not None:
            for offset, row_id in enumerate(segment.row_ids.to_pylist()):
                self._moved[row_id] = (segment, offset)
            return
        index = bisect_right(self._first_ids, segment.first_id)
        self._first_ids.insert(index, segment.first_id)
        self._inserted.insert(index, segment)

    def end(self, row_ids: Iterable[int], commit: int) -> None:
        for row_id in row_ids:
            place = self.newest(row_id)
            if place is not None:
                place[0].ended.setdefault(place[1], commit)

    def _older(self, row_id: int, commit: int) -> Place | None:
        """A version that has been replaced since; rare enough to be searched for."""
        for segment in reversed(list(self.segments(commit))):
            if segment.row_ids is None:
                offset = row_id - segment.first_id
                is_inside = 0 <= offset < segment.batch.num_rows
            else:
                offset = segment.row_ids.index(row_id).as_py()
                is_inside = offset >= 0
            if is_inside:
                return None if segment.ended.get(offset, commit + 1) <= commit else (segment, offset)
        return None


def coalesce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches put together, large ones as they are: a thousand one-row inserts still stream well."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if held and rows + batch.num_rows > _BATCH_ROWS:
            yield _joined(held)
            held, rows = [], 0
        held.append(batch)
        rows += batch.num_rows
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
