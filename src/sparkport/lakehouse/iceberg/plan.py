"""Which files make up a snapshot, and what has been taken out of each: all that reading and writing start from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from sparkport.errors import Conflict, NotFound
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.cached import cached_property
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.manifests import ROW_ID_FIELD, DataFile, DeleteFile, read_manifest, read_manifest_list
from sparkport.lakehouse.iceberg.metadata import TableMetadata
from sparkport.lakehouse.iceberg.ranges import FileIndex

__all__ = ["DataFile", "DeleteFile", "SnapshotPlan", "plan", "split"]

_CACHED_FILES = 400_000


@dataclass(frozen=True)
class SnapshotPlan:
    """A snapshot's files in the order in which their rows are read. ``snapshot_id`` is None for an empty table."""

    snapshot_id: int | None
    schema_id: int | None
    sequence_number: int
    files: tuple[DataFile, ...]
    _whole: FileIndex | None = field(default=None, repr=False, compare=False)

    @cached_property
    def needs_spark(self) -> bool:
        """Whether there are files here that only Spark reads right."""
        return any(file.equality_deletes or file.format != "parquet" for file in self.files)

    @cached_property
    def record_count(self) -> int:
        """How many rows there are at most; exact where all deletes are deletion vectors."""
        return sum(live_rows(file) for file in self.files)

    @cached_property
    def index(self) -> FileIndex:
        """The files for pruning, which remembers what it has decoded."""
        return FileIndex(self.files) if self._whole is None else self._whole.part(self.files)

    def only(self, files: Iterable[DataFile]) -> SnapshotPlan:
        return replace(self, files=tuple(files), _whole=self.index)


def live_rows(file: DataFile) -> int:
    vectors = sum(delete.record_count for delete in file.deletes if delete.is_vector)
    return max(file.record_count - vectors, 0)


_Key: TypeAlias = tuple[FileSystem, str, int]
_cache: BoundedCache[_Key, SnapshotPlan] = BoundedCache(
    _CACHED_FILES, weigh=lambda plan: len(plan.files) + 1, name="plans"
)


def plan(fs: FileSystem, metadata: TableMetadata, snapshot_id: int | None) -> SnapshotPlan:
    """The files of a snapshot; made once, since a snapshot never changes."""
    if snapshot_id is None:
        return SnapshotPlan(None, None, 0, ())
    return _cache.get((fs, metadata.uuid, snapshot_id), lambda: _make(fs, metadata, snapshot_id))


def _make(fs: FileSystem, metadata: TableMetadata, snapshot_id: int) -> SnapshotPlan:
    snapshot = metadata.snapshot(snapshot_id)
    data: list[DataFile] = []
    deletes: list[DeleteFile] = []
    try:
        for entry in reversed(read_manifest_list(fs, snapshot.manifest_list)):
            for file in read_manifest(fs, entry):
                if isinstance(file, DataFile):
                    data.append(file)
                else:
                    deletes.append(file)
    except NotFound as exc:
        raise Conflict(f"snapshot {snapshot_id} is gone: it was expired while it was being read") from exc
    # Manifests are listed newest first; rows come in the order in which they were written.
    data.sort(key=lambda file: (file.sequence_number, file.first_row_id if file.first_row_id is not None else -1))
    if any(name.startswith("write.metadata.metrics") for name in metadata.properties):
        data = [_uncounted(file) for file in data]
    files = _with_deletes(data, deletes, metadata) if deletes else data
    return SnapshotPlan(snapshot.id, snapshot.schema_id, snapshot.sequence_number, tuple(files))


def _uncounted(file: DataFile) -> DataFile:
    """If a table leaves columns uncounted, a missing count of row ids does not mean that a file has none of its own."""
    return file if ROW_ID_FIELD in file.value_counts else replace(file, value_counts={})


def _with_deletes(data: list[DataFile], deletes: list[DeleteFile], metadata: TableMetadata) -> list[DataFile]:
    by_file: dict[str, list[DeleteFile]] = defaultdict(list)
    by_partition: dict[tuple[int, tuple[Any, ...]], list[DeleteFile]] = defaultdict(list)
    everywhere: list[DeleteFile] = []
    unpartitioned = {spec_id for spec_id, fields in metadata.specs.items() if not fields}
    for delete in deletes:
        if delete.data_file is not None and not delete.equality:
            by_file[delete.data_file].append(delete)
        elif delete.equality and delete.spec_id in unpartitioned:
            everywhere.append(delete)
        else:
            by_partition[delete.spec_id, delete.partition].append(delete)

    def with_deletes(file: DataFile) -> DataFile:
        candidates = [*by_file.get(file.path, ()), *by_partition.get((file.spec_id, file.partition), ()), *everywhere]
        kept = tuple(delete for delete in candidates if _applies(delete, file))
        if any(delete.is_vector for delete in kept):  # a vector holds all that lists of positions said before it
            kept = tuple(delete for delete in kept if delete.is_vector or delete.equality)
        return replace(file, deletes=kept) if kept else file

    return [with_deletes(file) for file in data]


def _applies(delete: DeleteFile, file: DataFile) -> bool:
    if delete.equality:
        return file.sequence_number < delete.sequence_number
    return file.sequence_number <= delete.sequence_number


def split(files: Sequence[DataFile], parts: int) -> list[tuple[DataFile, ...]]:
    """Runs of neighbouring files of about the same size in bytes, at most ``parts``, for readers side by side."""
    total = sum(file.size for file in files)
    runs: list[list[DataFile]] = []
    passed = 0
    for file in files:
        run = min(parts * passed // max(total, 1), parts - 1)
        while len(runs) <= run:
            runs.append([])
        runs[run].append(file)
        passed += file.size
    return [tuple(run) for run in runs if run]
