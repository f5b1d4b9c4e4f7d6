"""The lists of files behind a snapshot, as Iceberg's Avro manifests hold them, with all that is inherited filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from sparkport.errors import InternalError
from sparkport.lakehouse.cache import BoundedCache
from sparkport.lakehouse.files import FileSystem
from sparkport.lakehouse.iceberg.avro import reader
from sparkport.lakehouse.iceberg.bounds import decode

__all__ = [
    "DataFile",
    "DeleteFile",
    "ROW_ID_FIELD",
    "SEQUENCE_FIELD",
    "read_manifest",
    "read_manifest_list",
    "read_records",
]

ROW_ID_FIELD = 2147483540
SEQUENCE_FIELD = 2147483539
_FILE_PATH_FIELD = 2147483546

_ADDED, _DELETED = 1, 2
_DATA, _EQUALITY_DELETES = 0, 2
_CACHED_FILES = 200_000
_COUNTED_COLUMNS = 100  # where writers stop to count by default


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """Rows taken out of data files: a deletion vector (``length`` is set), a list of positions, or values to match."""

    path: str
    sequence_number: int
    record_count: int
    spec_id: int
    partition: tuple[Any, ...]
    equality: bool = False
    data_file: str | None = None
    offset: int = 0
    length: int | None = None

    @property
    def is_vector(self) -> bool:
        return self.length is not None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a snapshot and what is known of its rows without opening it.

    ``first_row_id`` is None in tables without row lineage. ``partition`` holds the values in the order of the spec's
    fields. Counts and bounds are by field id and may be missing; bounds are in Iceberg's binary form.
    """

    path: str
    format: str
    record_count: int
    size: int
    sequence_number: int
    file_sequence_number: int
    first_row_id: int | None
    spec_id: int
    partition: tuple[Any, ...]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]
    null_counts: Mapping[int, int]
    nan_counts: Mapping[int, int]
    value_counts: Mapping[int, int]
    deletes: tuple[DeleteFile, ...] = ()

    @property
    def equality_deletes(self) -> bool:
        return any(delete.equality for delete in self.deletes)

    @property
    def deleted_rows(self) -> int:
        """How many rows are gone at most: lists of positions may name rows of other files too."""
        return sum(delete.record_count for delete in self.deletes if not delete.equality)

    def bounds(self, field_id: int, iceberg_type: Any) -> tuple[Any, Any]:
        """The lowest and the highest value of a column, None for what is not known."""
        lower, upper = self.lower_bounds.get(field_id), self.upper_bounds.get(field_id)
        return decode(iceberg_type, lower), decode(iceberg_type, upper)

    @property
    def derives_row_ids(self) -> bool:
        """Whether the file is known to hold neither row ids nor commits of its own: they follow from its place."""
        counted = 0 < len(self.value_counts) < _COUNTED_COLUMNS
        return counted and not {ROW_ID_FIELD, SEQUENCE_FIELD} & self.value_counts.keys()

    @property
    def row_id_bounds(self) -> tuple[int, int] | None:
        """The first and the last row id that can be in the file, None where nothing is known."""
        lower, upper = self.bounds(ROW_ID_FIELD, "long")
        derived = None
        if self.first_row_id is not None:
            derived = (self.first_row_id, self.first_row_id + self.record_count - 1)
        if lower is None or upper is None:
            # Rewritten files hold row ids of their own. Only a file that counts all its columns shows that it has none.
            counted = 0 < len(self.value_counts) < _COUNTED_COLUMNS and ROW_ID_FIELD not in self.value_counts
            return derived if counted else None
        if self.null_counts.get(ROW_ID_FIELD) == 0:
            return (lower, upper)
        return None if derived is None else (min(lower, derived[0]), max(upper, derived[1]))


_Entry: TypeAlias = DataFile | DeleteFile
_Key: TypeAlias = tuple[FileSystem, str, int, int | None]
_cache: BoundedCache[_Key, tuple[_Entry, ...]] = BoundedCache(_CACHED_FILES, weigh=len, name="manifests")


def read_manifest_list(fs: FileSystem, path: str) -> list[dict[str, Any]]:
    return list(read_records(fs, path))


def read_manifest(fs: FileSystem, entry: Mapping[str, Any]) -> tuple[_Entry, ...]:
    """The live files of a manifest, given its entry in the manifest list; parsed once, snapshots share manifests."""
    sequence_number = entry.get("sequence_number") or 0
    first_row_id = entry.get("first_row_id")
    path = entry["manifest_path"]
    # A commit that is tried again lists the same manifest with other numbers, so they are part of the key.
    key = (fs, path, sequence_number, first_row_id)
    return _cache.get(key, lambda: tuple(_live_files(read_records(fs, path), entry, sequence_number, first_row_id)))


def read_records(fs: FileSystem, path: str) -> Iterator[dict[str, Any]]:
    """The records of a manifest or of a list of manifests, as they are."""
    data = fs.read_bytes(path)
    try:
        for record in reader(data):
            if not isinstance(record, dict):
                raise TypeError(f"a record expected, not {type(record).__name__}")
            yield record
    except (ValueError, KeyError, TypeError, EOFError, IndexError) as exc:
        raise InternalError(f"manifest '{path}' cannot be read: {exc}") from exc


def _live_files(
    records: Iterator[dict[str, Any]], entry: Mapping[str, Any], sequence_number: int, first_row_id: int | None
) -> Iterator[_Entry]:
    spec_id = entry.get("partition_spec_id") or 0
    next_row_id = first_row_id
    for record in records:
        if record["status"] == _DELETED:
            continue
        file = record["data_file"]
        explicit = record.get("sequence_number")
        inherits = explicit is None and (sequence_number == 0 or record["status"] == _ADDED)
        sequence = sequence_number if inherits else explicit or 0
        written = record.get("file_sequence_number")
        if (file.get("content") or _DATA) != _DATA:
            yield _delete_file(file, spec_id, sequence)
            continue
        row_id = None if first_row_id is None else file.get("first_row_id")
        if row_id is None and next_row_id is not None:
            row_id, next_row_id = next_row_id, next_row_id + file["record_count"]
        yield _data_file(file, spec_id, sequence, sequence_number if written is None else written, row_id)


def _data_file(file: dict[str, Any], spec_id: int, sequence: int, written: int, row_id: int | None) -> DataFile:
    return DataFile(
        path=file["file_path"],
        format=str(file["file_format"]).lower(),
        record_count=file["record_count"],
        size=file["file_size_in_bytes"],
        sequence_number=sequence,
        file_sequence_number=written,
        first_row_id=row_id,
        spec_id=spec_id,
        partition=_partition(file),
        lower_bounds=_map(file.get("lower_bounds")),
        upper_bounds=_map(file.get("upper_bounds")),
        null_counts=_map(file.get("null_value_counts")),
        nan_counts=_map(file.get("nan_value_counts")),
        value_counts=_map(file.get("value_counts")),
    )


def _delete_file(file: dict[str, Any], spec_id: int, sequence: int) -> DeleteFile:
    target = file.get("referenced_data_file")
    if target is None:
        lower, upper = (_map(file.get(name)).get(_FILE_PATH_FIELD) for name in ("lower_bounds", "upper_bounds"))
        # Equal bounds of one path's length or more could still be cut; a path that ends as a data file does is whole.
        if lower is not None and lower == upper and lower.endswith((b".parquet", b".orc", b".avro")):
            target = lower.decode()
    return DeleteFile(
        path=file["file_path"],
        sequence_number=sequence,
        record_count=file["record_count"],
        spec_id=spec_id,
        partition=_partition(file),
        equality=file["content"] == _EQUALITY_DELETES,
        data_file=target,
        offset=file.get("content_offset") or 0,
        length=file.get("content_size_in_bytes"),
    )


def _partition(file: dict[str, Any]) -> tuple[Any, ...]:
    """Dates and times are numbers here, other logical types come as Python values; pruning turns them back."""
    return tuple((file.get("partition") or {}).values())


def _map(pairs: Any) -> Mapping[int, Any]:
    if not pairs:
        return {}
    if isinstance(pairs, dict):
        return {int(key): value for key, value in pairs.items()}
    return {pair["key"]: pair["value"] for pair in pairs}
