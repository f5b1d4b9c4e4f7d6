"""Which rows are there, and which commit changed each last: told by row ids, in arrays, whatever their number.

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

__all__ = ["Ids", "Lineage", "NO_IDS", "ascending", "changed_since", "derived", "from_batch", "positions_in"]

Ids: TypeAlias = NDArray[np.int64]

NO_IDS: Ids = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Lineage:
    """Rows that are there, by ascending ids, each with the number of the commit that changed it last."""

    ids: Ids
    commits: Ids

    @classmethod
    def of(cls, parts: Iterable[tuple[Ids, Ids]]) -> Lineage:
        found = list(parts)
        ids = np.concatenate([NO_IDS, *(ids for ids, _ in found)])
        commits = np.concatenate([NO_IDS, *(commits for _, commits in found)])
        if len(ids) > 1 and not bool(np.all(ids[1:] > ids[:-1])):
            order = np.argsort(ids, kind="stable")
            ids, commits = ids[order], commits[order]
        return cls(ids, commits)

    def has(self, row_ids: Ids) -> NDArray[np.bool_]:
        """True for each of these that is there."""
        return positions_in(self.ids, row_ids) >= 0


def positions_in(ids: Ids, wanted: Ids) -> Ids:
    """Where each of ``wanted`` is in ``ids``, which ascend; -1 for those that are not."""
    if not len(ids):
        return np.full(len(wanted), -1, dtype=np.int64)
    places = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[places] == wanted, places, -1)


def ascending(*parts: Ids) -> Ids:
    """All of them in order, each once. ``np.unique`` goes by hashes, which takes ten times as long for a million."""
    ids = np.concatenate([NO_IDS, *parts])
    if bool(np.all(ids[1:] > ids[:-1])):
        return ids
    ids.sort()
    is_first = np.ones(len(ids), dtype=np.bool_)
    is_first[1:] = ids[1:] != ids[:-1]
    kept: Ids = ids[is_first]
    return kept


def changed_since(row_ids: Ids, present: Lineage, limit: int) -> tuple[Ids, Ids]:
    """Of rows that were there at commit ``limit`` those that others have changed since, and those that are gone.

    ``present`` is the lineage of the rows in the table as it is.
    """
    places = positions_in(present.ids, row_ids)
    there = places >= 0
    later = present.commits[places[there]] > limit
    return row_ids[there][later], row_ids[~there]


def derived(fs: FileSystem, files: Iterable[DataFile], row_ids: Ids) -> tuple[list[tuple[Ids, Ids]], list[DataFile]]:
    """Ids and commits of those of the rows that are in files without ids of their own; and the files that have some.

    ``row_ids`` ascend.
    """
    found: list[tuple[Ids, Ids]] = []
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
            found.append((ids, np.full(len(ids), file.sequence_number, dtype=np.int64)))
    return found, rest


def from_batch(row_ids: pa.Array, commits: pa.Array) -> tuple[Ids, Ids]:
    """Two columns of a scan; rows without an id are none that could be asked for."""
    known = pc.is_valid(row_ids)
    ids, numbers = (pc.fill_null(column.filter(known), 0) for column in (row_ids, commits))
    return ids.to_numpy(zero_copy_only=False), numbers.to_numpy(zero_copy_only=False)
