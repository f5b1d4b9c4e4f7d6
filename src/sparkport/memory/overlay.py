"""Changes that are not committed yet: one statement's, or one transaction's, to one table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from sparkport.memory.rows import Place, Rows, Segment

__all__ = ["FrozenOverlay", "Overlay"]

_NOW = 1
"""An overlay has no history of its own: all in it is made and ended at one moment."""


@dataclass(frozen=True, slots=True)
class FrozenOverlay:
    """An overlay as it is at one moment, for a reader: what is written during a scan is not part of it."""

    replaced: tuple[int, ...]
    segments: tuple[tuple[pa.RecordBatch, Segment], ...]


@dataclass(slots=True, eq=False)
class Overlay:
    """``replaced`` are rows beneath that the overlay hides: with a new version in it, or in ``deleted``."""

    rows: Rows = field(default_factory=Rows)
    replaced: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    inserted: int = 0

    def find(self, row_id: int) -> Place | None:
        return self.rows.at(row_id, _NOW)

    def hides(self, row_id: int) -> bool:
        return row_id in self.replaced

    def insert(self, batch: pa.RecordBatch, first_id: int) -> None:
        self.rows.append(Segment(batch, _NOW, first_id))
        self.inserted += batch.num_rows

    def update(self, batch: pa.RecordBatch, row_ids: pa.Int64Array) -> None:
        """New versions; the ids are distinct."""
        ids = row_ids.to_pylist()
        self.rows.end(ids, _NOW)
        self.rows.append(Segment(batch, _NOW, row_ids=row_ids))
        self.replaced.update(ids)

    def delete(self, row_ids: set[int]) -> None:
        self.rows.end(row_ids, _NOW)
        self.replaced |= row_ids
        self.deleted |= row_ids

    def take(self, later: Overlay) -> None:
        """Put a later overlay on top of this one, which then holds both."""
        self.rows.end(later.replaced, _NOW)
        for segment in later.rows.segments(_NOW):
            self.rows.append(segment)
        beneath = {row_id for row_id in later.replaced if self.rows.inserted(row_id) is None}
        self.replaced |= beneath
        self.deleted |= later.deleted & beneath
        self.inserted += later.inserted

    def segments(self) -> Iterator[tuple[pa.RecordBatch, Segment]]:
        """What is left of the new rows and new versions: the batch of a segment, and a segment as it would be kept."""
        for segment in self.rows.segments(_NOW):
            alive = segment.alive(_NOW)
            if alive is None:
                yield segment.batch, segment
            elif alive:
                kept = pa.array(alive, pa.int64())
                batch = segment.batch.take(kept)
                yield batch, Segment(batch, _NOW, row_ids=segment.ids().take(kept))

    def frozen(self) -> FrozenOverlay:
        return FrozenOverlay(tuple(self.replaced), tuple(self.segments()))

    def changed_rows(self) -> int:
        """The net change, without rows that were inserted here and deleted again."""
        new = sum(int(item.batch.num_rows) - len(item.ended) for item in self.rows.segments(_NOW))
        return new + len(self.deleted)
