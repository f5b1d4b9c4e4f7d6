"""Row lineage: which rows there are, and which commit changed each last, in arrays, whatever their number.

Most files hold no row ids: a row's id follows from its place, and its commit is the file's. Such rows are found without
opening a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.deletes import deleted_positions
from sparkport.lakehouse.iceberg.manifests import DataFile

__all__ = [
    "Ids",
    "Lineage",
    "NO_IDS",
    "ascending",
    "changed_since",
    "derived",
    "filled",
    "from_batch",
    "ids_of",
    "places_of",
    "positions_in",
]

Ids: TypeAlias = NDArray[np.int64]

NO_IDS: Ids = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Lineage:
    """Rows that are there, by ascending ids, each with the number of the commit that changed it last.

    ``revisions``, where a journal knows of them, say which revision of it that was; -1 for commits of others.
    """

    ids: Ids
    commits: Ids
    revisions: Ids | None = None

    @classmethod
    def from_parts(cls, parts: Iterable[tuple[Ids, Ids]]) -> Lineage:
        pairs = list(parts)
        ids = np.concatenate([NO_IDS, *(ids for ids, _ in pairs)])
        commits = np.concatenate([NO_IDS, *(commits for _, commits in pairs)])
        if len(ids) > 1 and not bool(np.all(ids[1:] > ids[:-1])):
            order = np.argsort(ids, kind="stable")
            ids, commits = ids[order], commits[order]
        return cls(ids, commits)

    def has(self, row_ids: Ids) -> NDArray[np.bool_]:
        """True for each of these that is there."""
        return positions_in(self.ids, row_ids) >= 0

    def present(self, row_ids: Ids) -> Ids:
        """Those of these that are there; ``row_ids`` ascend."""
        return row_ids if np.array_equal(row_ids, self.ids) else row_ids[self.has(row_ids)]


def positions_in(ids: Ids, wanted: Ids) -> Ids:
    """Where each of ``wanted`` is in ``ids``, which ascend; -1 for those that are not."""
    if not len(ids):
        return np.full(len(wanted), -1, dtype=np.int64)
    places = np.searchsorted(ids, wanted)
    np.minimum(places, len(ids) - 1, out=places)
    places[ids[places] != wanted] = -1
    return places


def ids_of(column: pa.Array) -> Ids:
    """A column's numbers, -1 for NULL."""
    numbers: Ids = (pc.fill_null(column, -1) if column.null_count else column).to_numpy(zero_copy_only=False)
    return numbers


def places_of(wanted: Ids, ids: Ids) -> Ids:
    """Where ``ids`` has one of ``wanted``, which ascend. Quick where those of the rows ascend as well, as most do."""
    if not len(wanted) or not len(ids):
        return NO_IDS
    low, high = np.searchsorted(wanted, ids.min()), np.searchsorted(wanted, ids.max(), "right")
    wanted = wanted[low:high]
    if not len(wanted):
        return NO_IDS
    if bool(np.all(ids[1:] > ids[:-1])):
        places = positions_in(ids, wanted)
        found: Ids = places[places >= 0]
        return found
    return np.flatnonzero(positions_in(wanted, ids) >= 0)


def ascending(*parts: Ids) -> Ids:
    """All of them in order, each once. ``np.unique`` goes by hashes, which takes ten times as long for a million."""
    present = [part for part in parts if len(part)]
    # One that is in order already is not copied: it may be of ten million rows.
    ids = present[0] if len(present) == 1 else np.concatenate([NO_IDS, *present])
    if bool(np.all(ids[1:] > ids[:-1])):
        return ids
    ids = np.sort(ids)
    is_first = np.ones(len(ids), dtype=np.bool_)
    is_first[1:] = ids[1:] != ids[:-1]
    kept: Ids = ids[is_first]
    return kept


def changed_since(row_ids: Ids, present: Lineage, limit: int, revision: int = 0) -> tuple[Ids, Ids]:
    """The rows that others have changed since commit ``limit`` and ``revision``, and those that are gone.

    ``present`` is the lineage of the rows in the table as it is.
    """
    places = positions_in(present.ids, row_ids)
    there = places >= 0
    later = present.commits[places[there]] > limit
    if present.revisions is not None:
        revisions = present.revisions[places[there]]
        later = np.where(revisions >= 0, revisions > revision, later)
    return row_ids[there][later], row_ids[~there]


def derived(fs: FileSystem, files: Iterable[DataFile], row_ids: Ids) -> tuple[list[tuple[Ids, Ids]], list[DataFile]]:
    """Ids and commits of those of the rows that are in files without ids of their own; and the files that have some.

    ``row_ids`` ascend.
    """
    pairs: list[tuple[Ids, Ids]] = []
    rest: list[DataFile] = []
    for file in files:
        if file.first_row_id is None or not file.derives_row_ids or file.equality_deletes:
            rest.append(file)
            continue
        low, high = np.searchsorted(row_ids, (file.first_row_id, file.first_row_id + file.record_count))
        ids = row_ids[low:high]
        if file.deletes and len(ids):
            ids = ids[positions_in(deleted_positions(fs, file), ids - file.first_row_id) < 0]
        if len(ids):
            pairs.append((ids, np.broadcast_to(np.int64(file.sequence_number), len(ids))))
    return pairs, rest


def filled(written: pa.Array | None, follows: Ids | None, count: int) -> pa.Array:
    """What a file holds for a row itself, and where it holds nothing, what follows from the row's place."""
    if follows is None:
        return pa.nulls(count, pa.int64()) if written is None else written
    return pa.array(follows) if written is None else pc.coalesce(written, pa.array(follows))


def from_batch(row_ids: pa.Array, commits: pa.Array) -> tuple[Ids, Ids]:
    """Two columns of a scan, without rows that have no id: nobody could ask for them."""
    known = pc.is_valid(row_ids)
    ids, numbers = (pc.fill_null(column.filter(known), 0) for column in (row_ids, commits))
    return ids.to_numpy(zero_copy_only=False), numbers.to_numpy(zero_copy_only=False)
